//! A bare-metal S-mode program: timer interrupts, a page fault mended by its handler, a checkpoint at every place.

use std::path::PathBuf;
use std::process::Command;
use towpath_machine::{Board, Error, Machine, Outcome};
use towpath_testing::{root, skip, which};

const BOARD: &str = "name = 'bare'\n[memory]\nsize = '16 MiB'\nbase = 0x80000000\n";

fn image() -> Option<Vec<u8>> {
    let Some(compiler) = which("riscv64-linux-gnu-gcc") else {
        skip("bare-metal programs", "no riscv64-linux-gnu-gcc; install gcc-riscv64-linux-gnu");
        return None;
    };
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(towpath_testing::unique("supervisor"));
    let status = Command::new(compiler)
        .args(["-nostdlib", "-static", "-Wl,-Ttext=0x80000000,--build-id=none,-N,--no-warn-rwx-segments", "-o"])
        .arg(&output)
        .arg(root().join("sim/programs/supervisor.S"))
        .status()
        .expect("the compiler starts");
    assert!(status.success(), "supervisor.S does not assemble");
    Some(std::fs::read(output).expect("just written"))
}

fn machine(image: &[u8]) -> Machine {
    let board = Board::parse("bare", BOARD).expect("the board is sound");
    Machine::bare(&board, "supervisor", image).expect("it loads")
}

#[test]
fn supervisor_program_takes_interrupts_and_faults() {
    let Some(image) = image() else { return };
    let mut machine = machine(&image);
    assert_eq!(machine.run(1_000_000).expect("it runs"), Outcome::Exited(0));
    assert_eq!(machine.output().0, b"tttttpd\n");
}

#[test]
fn checkpoint_at_any_instruction_changes_nothing_after() {
    let Some(image) = image() else { return };
    let mut whole = machine(&image);
    whole.run(1_000_000).expect("it runs");
    for cut in (1..whole.instructions()).step_by(7) {
        let mut first = machine(&image);
        assert_eq!(first.run(cut).expect("it runs"), Outcome::Budget);
        let saved = first.checkpoint().expect("bare metal can be saved");
        let mut second = machine(&image);
        second.restore(&saved).expect("the same board");
        assert_eq!(second.run(1_000_000).expect("it runs"), Outcome::Exited(0), "cut at {cut}");
        assert_eq!(second.output().0, b"tttttpd\n", "cut at {cut}");
        assert_eq!(second.instructions(), whole.instructions(), "cut at {cut}");
    }
}

#[test]
fn checkpoint_of_another_version_or_board_is_refused() {
    let Some(image) = image() else { return };
    let mut machine = machine(&image);
    let saved = machine.checkpoint().expect("bare metal can be saved");
    let mut newer = saved.clone();
    newer[8] = 99;
    for (bytes, part) in [(&newer[..], "version 99"), (&saved[..100], "truncated"), (&b"something"[..], "not a")] {
        match machine.restore(bytes) {
            Err(Error::Checkpoint(why)) => assert!(why.contains(part), "{why}"),
            other => panic!("{part}: {other:?}"),
        }
    }
    let other = Board::parse("other", &BOARD.replace("16 MiB", "32 MiB")).expect("sound");
    let error = Machine::bare(&other, "supervisor", &image).expect("loads").restore(&saved).expect_err("another board");
    assert!(error.to_string().contains("made on a board"), "{error}");
}
