//! `towpath-bench`: one module an experiment, each measuring Towpath and its baselines interleaved in one run and
//! reporting through [`report`]. Baselines live only in this binary.

mod coro;
mod device;
mod echo;
mod heap;
mod heap_mallocs;
mod ingest;
mod kv;
mod net;
#[allow(dead_code, reason = "shared by benchmarks, not all of which use all of it")]
mod report;
#[allow(dead_code, reason = "shared by benchmarks, not all of which use all of it")]
mod timing;

mod relay;
mod sim;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Measure Towpath beside its baselines; prints a table, or one JSON object with --json
#[derive(Parser)]
#[command(name = "towpath bench", version, about, max_term_width = 110)]
struct Cli {
    /// Print one JSON object instead of a table
    #[arg(long, global = true)]
    json: bool,
    /// Run a tiny version that only proves the benchmark works
    #[arg(long, global = true)]
    smoke: bool,
    /// List the benchmarks, one name a line
    #[arg(long)]
    list: bool,
    #[command(subcommand)]
    bench: Option<Bench>,
}

#[derive(Subcommand)]
enum Bench {
    /// The stack alone: from segment to consumer and from push to frame, beside smoltcp
    Ingest,
    /// What reading the clock costs: the floor under every other figure
    Clock,
    /// How fast the simulated machine's timing cores run
    Sim,
    /// Allocations and frees in four patterns, beside the allocators of Debian
    Heap,
    /// Through a UDP relay: the queue API beside plain sockets and io_uring
    Relay,
    /// Round trips of raw frames through bare devices, beside a bare cache line and spinning kernel sockets
    Device,
    /// Round trips through our stack on each device, beside the bare device and spinning kernel sockets
    Net,
    /// Round trips of messages over TCP and UDP, beside loops on plain sockets
    Echo(echo::Args),
    /// The key-value server beside redis-server, both driven by redis-benchmark
    Kv(kv::Args),
    /// A switch from one coroutine to the next, with thousands blocked; beside tokio's
    Coro,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.list {
        for command in Cli::command().get_subcommands().filter(|c| c.get_name() != "help") {
            println!("{}", command.get_name());
        }
        return ExitCode::SUCCESS;
    }
    let Some(bench) = cli.bench else {
        eprintln!("towpath bench: name a benchmark (`--list` names them all, `--help` explains)");
        return ExitCode::from(2);
    };
    if let Bench::Kv(args) = &bench
        && args.demo
    {
        return match kv::demo() {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("towpath demo: {message}");
                ExitCode::FAILURE
            }
        };
    }
    let outcome = match bench {
        Bench::Net => net::bench_net(cli.smoke),
        Bench::Ingest => ingest::bench(cli.smoke),
        Bench::Device => device::bench_device(cli.smoke),
        Bench::Heap => heap::bench(cli.smoke),
        Bench::Clock => Ok(timing::bench_clock(cli.smoke)),
        Bench::Sim => sim::bench(cli.smoke),
        Bench::Relay => relay::bench(cli.smoke),
        Bench::Kv(args) => kv::bench(&args, cli.smoke),
        Bench::Echo(args) => echo::bench(&args, cli.smoke),
        Bench::Coro => coro::run(cli.smoke),
    };
    match outcome {
        Ok(report) => {
            report.print(cli.json);
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("towpath bench: {message}");
            ExitCode::FAILURE
        }
    }
}
