//! Random programs: the model that made them, the functional core and QEMU must agree on every register.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use towpath_machine::verify::{difference, generate};
use towpath_machine::{Board, Console, Machine, Options, Outcome};
use towpath_testing::{TempDir, skip, which};

/// Programs of this many instructions each; TOWPATH_SOAK=1 runs a hundred times as many.
const LENGTH: usize = 1500;

fn programs() -> u64 {
    if std::env::var_os("TOWPATH_SOAK").is_some() { 2000 } else { 20 }
}

#[test]
fn random_programs_end_on_the_functional_core_as_the_model_says() {
    let board = Board::parse("test", "name = 'test'\n[memory]\nsize = '64 MiB'\nbase = 0x80000000\n").expect("sound");
    let folder = TempDir::new();
    for seed in 0..programs() {
        let program = generate(seed, LENGTH);
        let path = folder.join("random");
        std::fs::write(&path, &program.elf).expect("the folder is writable");
        let mut machine =
            Machine::with_program(&board, &path, &[], &[], Options::default(), Console::captured(&[])).expect("loads");
        let outcome = machine.run(1_000_000).expect("runs");
        let (out, err) = machine.output();
        assert_eq!(outcome, Outcome::Exited(0), "SEED={seed}: {}", String::from_utf8_lossy(err));
        assert_eq!(difference(out, &program.expected), None, "SEED={seed}");
    }
}

#[test]
fn random_programs_end_under_qemu_as_the_model_says() {
    let Some(qemu) = which("qemu-riscv64") else {
        return skip("random programs under QEMU", "no qemu-riscv64; install qemu-user");
    };
    let folder = TempDir::new();
    let mut compared = 0;
    for seed in 0..programs() {
        if let Some(wrong) = under_qemu(&qemu, &folder, seed, LENGTH) {
            // The shortest program that differs ends with the instruction to blame.
            let (mut good, mut bad) = (0, LENGTH);
            while bad - good > 1 {
                let middle = (good + bad) / 2;
                if under_qemu(&qemu, &folder, seed, middle).is_some() { bad = middle } else { good = middle }
            }
            panic!("SEED={seed}: {wrong}; first wrong after {bad} instructions: {}", generate(seed, bad).last);
        }
        compared += LENGTH;
    }
    eprintln!("{compared} random instructions compared with QEMU");
}

/// Where QEMU and the model differ.
fn under_qemu(qemu: &Path, folder: &TempDir, seed: u64, length: usize) -> Option<String> {
    let program = generate(seed, length);
    let path = folder.join("random");
    std::fs::write(&path, &program.elf).expect("the folder is writable");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("own file");
    let out = Command::new(qemu)
        .args(["-cpu", "rv64,v=true,vext_spec=v1.0,vlen=128,zba=true,zbb=true,zbs=true"])
        .arg(&path)
        .output()
        .expect("QEMU starts");
    if !out.status.success() {
        return Some(format!("{:?} {}", out.status, String::from_utf8_lossy(&out.stderr)));
    }
    difference(&out.stdout, &program.expected)
}
