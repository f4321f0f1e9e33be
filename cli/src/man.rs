//! `towpath man DIR`: writes the man pages of the command and its subcommands, made from the same definitions that
//! parse the arguments, so that they cannot drift apart.

use clap::CommandFactory;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `towpath man`.
#[derive(clap::Args)]
pub struct Args {
    /// The folder to write into; it must exist
    folder: PathBuf,
}

/// Writes `towpath.1` and one page a subcommand.
pub fn run(args: &Args) -> Result<ExitCode, String> {
    clap_mangen::generate_to(crate::Cli::command(), &args.folder)
        .map_err(|e| format!("cannot write man pages into {}: {e}", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
