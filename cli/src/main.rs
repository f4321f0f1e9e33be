//! The `towpath` command. Each subcommand lives in a file of its own and only parses, prints and exits here;
//! the work is done by the crates it calls.

mod bench;
mod config;
mod control;
mod demo;
mod doctor;
mod doctor_nic;
mod man;
mod net;
mod net_args;
mod serve;
mod sim;
mod sim_models;
mod sim_verify;
mod stats;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// A datapath operating system for Linux: moves data between network, storage, processes and memory with few copies.
#[derive(Parser)]
#[command(name = "towpath", version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure Towpath beside its baselines (starts `towpath-bench`)
    Bench(bench::Args),
    /// Compare the key-value server with redis-server, in under a minute
    Demo,
    /// Run a server
    Serve(serve::Args),
    /// Show the counters of running servers
    Stats(stats::Args),
    /// Say what this machine and its interfaces allow
    Doctor(doctor::Args),
    /// Make or remove a link to try things on
    Net(net::Args),
    /// Run programs on the simulated machine
    Sim(sim::Args),
    /// Write the man pages of this command into a folder
    #[command(hide = true)]
    Man(man::Args),
}

fn main() -> ExitCode {
    let command = match config::apply(Cli::command(), std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("towpath: {message}");
            return ExitCode::from(2);
        }
    };
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        Command::Bench(args) => bench::run(args),
        Command::Demo => demo::run(),
        Command::Serve(args) => serve::run(args),
        Command::Stats(args) => stats::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Net(args) => net::run(&args),
        Command::Sim(args) => sim::run(args),
        Command::Man(args) => man::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(message) => {
            eprintln!("towpath: {message}");
            ExitCode::FAILURE
        }
    }
}
