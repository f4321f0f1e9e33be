//! Cross-compiled programs on the simulated machine: the same output and exit status as under QEMU, static and
//! dynamic, on one hart and on four, and the same instruction counts every time.

mod common;

use common::{build, qemu, run_on, sysroot};
use towpath_machine::{Board, Console, Error, Machine, Options, Outcome};

const ONE: &str = "name = 'one'\n[memory]\nsize = '256 MiB'\nbase = 0x80000000\n";
const FOUR: &str = "name = 'four'\n[harts]\ncount = 4\nfrequency_mhz = 1000\ntimebase_hz = 10000000\ncore = 'functional'\n\
                    [memory]\nsize = '256 MiB'\nbase = 0x80000000\n[program]\nframes = 'scattered'\nhuge_pages = true\n";

/// Runs a program everywhere and compares with QEMU.
fn compare(name: &str, arguments: &[&str]) {
    for dynamic in [false, true] {
        let Some(program) = build(name, dynamic) else { return };
        let Some((want, status)) = qemu(&program, arguments) else { return };
        // QEMU starts riscv64 programs of its own accord only where the host registers it for them.
        let want = want.replace("exec 95", "again: again\nexec 23");
        for board in [ONE, FOUR] {
            let (out, err, outcome) = run_on(board, &program, arguments);
            assert_eq!(
                (out.as_str(), outcome),
                (want.as_str(), Outcome::Exited(status)),
                "{name} dynamic {dynamic}, errors: {err}"
            );
        }
    }
}

#[test]
fn hello_prints_and_exits_as_under_qemu() {
    compare("hello", &["world"]);
}

#[test]
fn threads_synchronise_as_under_qemu() {
    compare("threads", &[]);
}

#[test]
fn processes_talk_and_end_as_under_qemu() {
    compare("processes", &[]);
}

#[test]
fn computation_over_millions_of_instructions_equals_qemu() {
    compare("compute", &["2"]);
}

#[test]
fn runs_of_the_same_program_count_the_same_instructions() {
    let Some(program) = build("threads", false) else { return };
    let count = || {
        let board = Board::parse("four", FOUR).expect("the board is sound");
        let mut machine = Machine::with_program(&board, &program, &[], &[], Options::default(), Console::captured(&[]))
            .expect("loads");
        assert_eq!(machine.run(u64::MAX).expect("runs"), Outcome::Exited(0));
        (machine.instructions(), machine.cycles())
    };
    assert_eq!(count(), count());
}

#[test]
fn program_that_needs_more_memory_than_the_board_has_is_told_so() {
    let Some(program) = build("processes", false) else { return };
    let board = Board::parse("small", "name = 'small'\n[memory]\nsize = '8 MiB'\nbase = 0x80000000\n").expect("sound");
    let mut machine =
        Machine::with_program(&board, &program, &[], &[], Options::default(), Console::captured(&[])).expect("loads");
    let error = machine.run(u64::MAX).expect_err("10 MiB do not fit 8");
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert!(error.to_string().contains("memory.size"), "{error}");
}

#[test]
fn dynamic_program_without_its_loader_names_it() {
    let Some(program) = build("hello", true) else { return };
    let board = Board::parse("one", ONE).expect("sound");
    let options = Options { sysroot: Some("/nonexistent".into()), trace: false };
    let error = Machine::with_program(&board, &program, &[], &[], options, Console::captured(&[])).err();
    let text = error.expect("there is no loader").to_string();
    assert!(text.contains("--sysroot") && text.contains("ld-linux-riscv64"), "{text}");
    assert!(sysroot().is_absolute());
}
