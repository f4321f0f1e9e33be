//! `towpath sim verify`: compares the simulated instructions with QEMU on random programs, and counts them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use towpath_machine::verify::{difference, generate};
use towpath_machine::{Board, Console, Machine, Options, Outcome};

/// A machine just large enough for a random program.
const BOARD: &str = "name = 'verify'\n[memory]\nsize = '16 MiB'\nbase = 0x80000000\n";

/// Arguments of `towpath sim verify`.
#[derive(clap::Args)]
pub struct Args {
    /// How many random programs
    #[arg(long, default_value_t = 200)]
    programs: u64,
    /// Instructions of each
    #[arg(long, default_value_t = 1500)]
    length: usize,
    /// Seed of the first program; the others follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The user-mode emulator to compare with
    #[arg(long, default_value = "qemu-riscv64")]
    qemu: PathBuf,
}

/// Runs the campaign and prints what was compared.
pub fn run(args: &Args) -> Result<ExitCode, String> {
    let board = Board::parse("verify", BOARD).map_err(|e| e.to_string())?;
    let path = std::env::temp_dir().join(format!("towpath-verify-{}", std::process::id()));
    let outcome = campaign(args, &board, &path);
    // Gone already if the campaign never began.
    let _ = std::fs::remove_file(&path);
    let compared = outcome?;
    println!("{compared} random instructions: the model, the functional core and QEMU agree on every register");
    Ok(ExitCode::SUCCESS)
}

fn campaign(args: &Args, board: &Board, path: &Path) -> Result<u64, String> {
    let mut compared = 0;
    for seed in args.seed..args.seed.saturating_add(args.programs) {
        let program = generate(seed, args.length);
        let told = |e: std::io::Error| format!("{}: {e}", path.display());
        std::fs::write(path, &program.elf).map_err(told)?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).map_err(told)?;
        let mut machine = Machine::with_program(board, path, &[], &[], Options::default(), Console::captured(&[]))
            .map_err(|e| e.to_string())?;
        let ended = machine.run(u64::MAX).map_err(|e| e.to_string())?;
        let ours = difference(machine.output().0, &program.expected);
        if ended != Outcome::Exited(0) || ours.is_some() {
            return Err(format!("seed {seed}: the functional core differs from the model: {ours:?}"));
        }
        let out = Command::new(&args.qemu)
            .args(["-cpu", "rv64,v=true,vext_spec=v1.0,vlen=128,zba=true,zbb=true,zbs=true"])
            .arg(path)
            .output()
            .map_err(|e| format!("{} cannot be started ({e}); install qemu-user", args.qemu.display()))?;
        if let Some(wrong) = difference(&out.stdout, &program.expected) {
            return Err(format!("seed {seed}: QEMU differs from the model at {wrong} ({})", out.status));
        }
        compared += program.instructions;
    }
    Ok(compared)
}
