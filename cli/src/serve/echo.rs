//! `towpath serve echo`.

use std::path::PathBuf;
use std::process::ExitCode;
use towpath_echo::{Options, Server};
use towpath_libos::{Address, Config, LibOs, Runtime, Waiting};

/// Arguments of `towpath serve echo`.
#[derive(clap::Args)]
pub struct Args {
    /// Accept stream connections here: HOST:PORT, [IPV6]:PORT, unix:/PATH; may be given several times
    #[arg(long, value_name = "ADDRESS", env = "TOWPATH_LISTEN", value_delimiter = ',')]
    listen: Vec<String>,
    /// Answer datagrams here; may be given several times
    #[arg(long, value_name = "ADDRESS", env = "TOWPATH_DATAGRAMS", value_delimiter = ',')]
    datagrams: Vec<String>,
    /// Write every message to this file, and to the disk, before its reply is sent
    #[arg(long, value_name = "FILE", env = "TOWPATH_LOG")]
    log: Option<PathBuf>,
    /// The library OS: kernel, kernel@uring, kernel@syscalls, inet@shm, inet@tap, inet@packet or inet@xdp
    #[arg(long, default_value = "kernel", env = "TOWPATH_LIBOS")]
    libos: LibOs,
    /// How to wait: spin, adaptive or block
    #[arg(long, default_value = "adaptive", env = "TOWPATH_WAITING")]
    waiting: Waiting,
    #[command(flatten)]
    net: Box<crate::net_args::NetArgs>,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(args: Args) -> Result<ExitCode, String> {
    let resolve = |texts: &[String]| -> Result<Vec<Address>, String> {
        texts.iter().map(|text| text.parse::<Address>().map_err(|e| e.to_string())).collect()
    };
    let mut options = Options { streams: resolve(&args.listen)?, datagrams: resolve(&args.datagrams)?, log: args.log };
    if options.streams.is_empty() && options.datagrams.is_empty() {
        options.streams.push(Address::from((std::net::Ipv4Addr::LOCALHOST, 7007)));
    }
    let config = Config { libos: args.libos, waiting: args.waiting, net: args.net.config(), ..Config::default() };
    let rt = Runtime::start(config).map_err(|e| e.to_string())?;
    let signal = rt.shutdown_signal();
    let server = Server::start(&rt, &options).map_err(|e| e.to_string())?;
    for (i, address) in server.addresses().iter().enumerate() {
        let kind = if i < options.streams.len() { "streams" } else { "datagrams" };
        println!("echo: {kind} on {address} ({}, {})", rt.libos(), rt.waiting());
    }
    rt.block_on(signal);
    let (connections, _) = server.connections();
    println!("echo: {} messages, {} bytes, {connections} connections", server.messages(), server.bytes());
    if let Some(trouble) = server.take_trouble() {
        println!("echo: last trouble: {trouble}");
    }
    rt.shutdown();
    Ok(ExitCode::SUCCESS)
}
