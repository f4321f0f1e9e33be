//! `towpath serve`: the servers, each with flags, environment and a TOML file of the same names.

mod echo;
mod kv;
mod relay;

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
    /// Forward datagrams between the two parties of a session
    Relay(relay::Args),
    /// Keep strings for Redis clients
    Kv(kv::Args),
}

/// Runs the server until SIGTERM or SIGINT.
pub fn run(args: Args) -> Result<ExitCode, String> {
    match args.server {
        Server::Echo(args) => echo::run(args),
        Server::Relay(args) => relay::run(args),
        Server::Kv(args) => kv::run(args),
    }
}
