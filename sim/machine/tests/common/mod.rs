//! Cross-compiling and running programs, here and under QEMU.
#![allow(dead_code, reason = "shared by test files, not all of which use all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use towpath_machine::{Board, Console, Machine, Options, Outcome};
use towpath_testing::{root, skip, which};

/// Where Debian's cross packages put the riscv64 libraries.
pub fn sysroot() -> PathBuf {
    PathBuf::from("/usr/riscv64-linux-gnu")
}

/// Compiles `sim/programs/NAME.c`; `None`, after saying so, where there is no compiler.
pub fn build(name: &str, dynamic: bool) -> Option<PathBuf> {
    let Some(compiler) = which("riscv64-linux-gnu-gcc") else {
        skip(name, "no riscv64-linux-gnu-gcc; install gcc-riscv64-linux-gnu and libc6-dev-riscv64-cross");
        return None;
    };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(towpath_testing::unique("riscv"));
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    let output = folder.join(name);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-w", "-pthread", "-o"]).arg(&output).arg(root().join(format!("sim/programs/{name}.c")));
    if !dynamic {
        command.arg("-static");
    }
    let status = command.arg("-lm").status().expect("the compiler starts");
    assert!(status.success(), "{name}.c does not compile");
    Some(output)
}

/// Output and exit status under QEMU.
pub fn qemu(program: &Path, arguments: &[&str]) -> Option<(String, i32)> {
    let Some(qemu) = which("qemu-riscv64") else {
        skip("comparison with QEMU", "no qemu-riscv64; install qemu-user");
        return None;
    };
    let out = Command::new(qemu)
        .args(["-cpu", "rv64,v=true,vext_spec=v1.0,vlen=128"])
        .arg("-L")
        .arg(sysroot())
        .arg(program)
        .args(arguments)
        .output()
        .expect("QEMU starts");
    Some((String::from_utf8_lossy(&out.stdout).into_owned(), out.status.code().unwrap_or(-1)))
}

/// Output, errors and outcome on a board.
pub fn run_on(board: &str, program: &Path, arguments: &[&str]) -> (String, String, Outcome) {
    let board = Board::parse("test", board).expect("the board is sound");
    let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
    let options = Options { sysroot: Some(sysroot()), trace: std::env::var_os("TOWPATH_TRACE").is_some() };
    let mut machine =
        Machine::with_program(&board, program, &arguments, &[], options, Console::captured(&[])).expect("it loads");
    let outcome = machine.run(2_000_000_000).unwrap_or_else(|e| {
        let (out, err) = machine.output();
        panic!("{e}; output so far: {}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
    });
    let (out, err) = machine.output();
    (String::from_utf8_lossy(out).into_owned(), String::from_utf8_lossy(err).into_owned(), outcome)
}
