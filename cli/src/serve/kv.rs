//! `towpath serve kv`.

use crate::control::Control;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use towpath_kv::Server;
use towpath_kv::config::{Config, Fsync};
use towpath_kv::number::parse_memory;
use towpath_kv::store::Policy;
use towpath_libos::{LibOs, Runtime, Waiting};

/// Arguments of `towpath serve kv`: Redis's names where Redis has them.
#[derive(clap::Args)]
pub struct Args {
    /// Listen on these addresses (loopback unless told otherwise)
    #[arg(long, value_name = "IP", value_delimiter = ',', default_value = "127.0.0.1")]
    bind: Vec<IpAddr>,
    /// Listen on this port; 0 picks a free one
    #[arg(long, short, default_value_t = 6379)]
    port: u16,
    /// Clients must log in with this password (better given in the environment: command lines can be seen)
    #[arg(long, value_name = "PASSWORD", default_value = "", hide_env_values = true)]
    requirepass: String,
    /// Most memory for data, as 100mb or 2gb; 0 for no limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = memory)]
    maxmemory: u64,
    /// What goes when memory is short: noeviction, allkeys-lru, allkeys-random, volatile-lru, volatile-random,
    /// volatile-ttl
    #[arg(long, value_name = "POLICY", default_value = "noeviction", value_parser = policy)]
    maxmemory_policy: Policy,
    /// Most clients at once
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    maxclients: usize,
    /// Disconnect clients that idle for so many seconds; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
    /// Probe silent peers after so many seconds; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    tcp_keepalive: u64,
    /// Log every change to a file, and read it back at start
    #[arg(long)]
    appendonly: bool,
    /// Make the log durable: always (before a change is acknowledged), everysec, or no (when the system likes)
    #[arg(long, value_name = "WHEN", default_value = "everysec", value_parser = fsync)]
    appendfsync: Fsync,
    /// Name of the log's file
    #[arg(long, value_name = "NAME", default_value = "appendonly.aof")]
    appendfilename: String,
    /// Folder of the log's file
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    dir: PathBuf,
    /// The library OS: kernel, kernel@uring or kernel@syscalls
    #[arg(long, default_value = "kernel")]
    libos: LibOs,
    /// How to wait: spin, adaptive or block
    #[arg(long, default_value = "adaptive")]
    waiting: Waiting,
}

fn memory(text: &str) -> Result<u64, String> {
    parse_memory(text).ok_or_else(|| "give bytes, or a number with kb, mb or gb".to_string())
}

fn policy(text: &str) -> Result<Policy, String> {
    Policy::parse(text).ok_or_else(|| "no policy has that name".to_string())
}

fn fsync(text: &str) -> Result<Fsync, String> {
    Fsync::parse(text).ok_or_else(|| "give always, everysec or no".to_string())
}

/// Descriptors beside the clients': listeners, files, the control socket, epoll.
const OWN_FILES: u64 = 64;

/// Allows as many open files as the clients may need, as far as the system lets us.
fn allow_files(clients: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let (limit, wanted) = (getrlimit(Resource::Nofile), clients as u64 + OWN_FILES);
    if limit.current.is_none_or(|now| now >= wanted) {
        return;
    }
    let raised = limit.maximum.map_or(wanted, |most| most.min(wanted));
    let outcome = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
    if raised < wanted || outcome.is_err() {
        eprintln!("kv: at most {} clients: the limit of open files is {raised} (see `ulimit -n`)", raised - OWN_FILES);
    }
}

/// Serves until SIGTERM, SIGINT or `SHUTDOWN`.
pub fn run(args: Args) -> Result<ExitCode, String> {
    allow_files(args.maxclients);
    let runtime = towpath_libos::Config {
        libos: args.libos,
        waiting: args.waiting,
        queues_max: args.maxclients + 64,
        ..towpath_libos::Config::default()
    };
    let config = Config {
        bind: args.bind,
        port: args.port,
        requirepass: args.requirepass,
        maxmemory: args.maxmemory,
        maxmemory_policy: args.maxmemory_policy,
        maxclients: args.maxclients,
        timeout: Duration::from_secs(args.timeout),
        tcp_keepalive: Duration::from_secs(args.tcp_keepalive),
        appendonly: args.appendonly,
        appendfsync: args.appendfsync,
        appendfilename: args.appendfilename,
        dir: args.dir,
        ..Config::default()
    };
    let rt = Runtime::start(runtime).map_err(|e| e.to_string())?;
    let signal = rt.shutdown_signal();
    let server = std::rc::Rc::new(Server::start(&rt, config).map_err(|e| e.to_string())?);
    for notice in server.notices() {
        println!("kv: {notice}");
    }
    let _control = Control::open(&rt, "kv", {
        let server = server.clone();
        move || server.stats_json()
    });
    for address in server.addresses() {
        println!("kv: listening on {address} ({}, {})", rt.libos(), rt.waiting());
    }
    rt.block_on(either(signal, server.stop_asked()));
    println!("kv: stopping");
    let outcome = rt.block_on(server.stop());
    rt.shutdown();
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Completes when one of two does.
async fn either<A>(a: impl Future<Output = A>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    std::future::poll_fn(|cx| {
        if a.as_mut().poll(cx).is_ready() || b.as_mut().poll(cx).is_ready() {
            return std::task::Poll::Ready(());
        }
        std::task::Poll::Pending
    })
    .await;
}
