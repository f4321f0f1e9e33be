//! `towpath serve relay`.

use std::process::ExitCode;
use std::time::Duration;
use towpath_libos::{Address, Config, LibOs, Runtime, Waiting};
use towpath_relay::{Options, Server};

/// Arguments of `towpath serve relay`.
#[derive(clap::Args)]
pub struct Args {
    /// Take datagrams here: HOST:PORT or [IPV6]:PORT; may be given several times
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "TOWPATH_LISTEN",
        value_delimiter = ',',
        default_value = "127.0.0.1:3478"
    )]
    listen: Vec<String>,
    /// Most sessions at once on one address
    #[arg(long, value_name = "N", env = "TOWPATH_SESSIONS_MAX", default_value_t = 65536)]
    sessions_max: usize,
    /// A session idle for this many seconds may make room for another
    #[arg(long, value_name = "SECONDS", env = "TOWPATH_IDLE_SECONDS", default_value_t = 300)]
    idle_seconds: u64,
    /// The library OS: kernel, kernel@uring or kernel@syscalls
    #[arg(long, default_value = "kernel", env = "TOWPATH_LIBOS")]
    libos: LibOs,
    /// How to wait: spin, adaptive or block
    #[arg(long, default_value = "adaptive", env = "TOWPATH_WAITING")]
    waiting: Waiting,
}

/// Relays until SIGTERM or SIGINT.
pub fn run(args: Args) -> Result<ExitCode, String> {
    let listen = args.listen.iter().map(|text| text.parse::<Address>().map_err(|e| e.to_string()));
    let options = Options {
        listen: listen.collect::<Result<_, _>>()?,
        sessions_max: args.sessions_max,
        idle_max: Duration::from_secs(args.idle_seconds),
    };
    let config = Config { libos: args.libos, waiting: args.waiting, ..Config::default() };
    let rt = Runtime::start(config).map_err(|e| e.to_string())?;
    let signal = rt.shutdown_signal();
    let server = Server::start(&rt, &options).map_err(|e| e.to_string())?;
    for address in server.addresses() {
        println!("relay: on {address} ({}, {})", rt.libos(), rt.waiting());
    }
    rt.block_on(signal);
    let counts = server.counts();
    println!(
        "relay: {} forwarded ({} bytes); dropped: {} short, {} unpaired, {} from strangers, {} without room, {} unsent",
        counts.forwarded, counts.bytes, counts.short, counts.unpaired, counts.strangers, counts.full, counts.unsent
    );
    rt.shutdown();
    Ok(ExitCode::SUCCESS)
}
