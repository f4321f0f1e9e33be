//! `towpath bench`: hands its arguments to `towpath-bench`, a separate binary so that baselines (other allocators,
//! other runtimes) never enter what ships.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Arguments after `towpath bench`, passed on unread.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The benchmark and its options; `towpath bench --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Replaces this process by `towpath-bench`. Returns only on failure.
pub fn run(args: Args) -> Result<ExitCode, String> {
    let program = find()?;
    let error = Command::new(&program).args(&args.rest).exec();
    Err(format!("cannot start {}: {error}", program.display()))
}

/// The benchmark binary: it stands beside this one, or on PATH.
pub(crate) fn find() -> Result<PathBuf, String> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| exe.canonicalize().ok())
        .and_then(|exe| exe.parent().map(|dir| dir.join("towpath-bench")))
        .filter(|path| path.is_file());
    if let Some(path) = beside {
        return Ok(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join("towpath-bench")).find(|path| path.is_file()).ok_or_else(|| {
        "towpath-bench is neither beside this program nor on PATH; build it with `cargo build --release -p \
             towpath-bench`"
            .to_string()
    })
}
