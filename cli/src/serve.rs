//! `towpath serve`: the servers, each with flags, environment and a TOML file of the same names.

mod echo;

use clap::Subcommand;
use std::process::ExitCode;

/// Arguments of `towpath serve`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    server: Server,
}

#[derive(Subcommand)]
enum Server {
    /// Send every message back to who sent it
    Echo(echo::Args),
}

/// Runs the server until SIGTERM or SIGINT.
pub fn run(args: Args) -> Result<ExitCode, String> {
    match args.server {
        Server::Echo(args) => echo::run(args),
    }
}
