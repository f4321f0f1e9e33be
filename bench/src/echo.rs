//! `towpath bench echo`: what a message costs, there and back, on two cores joined by the loopback interface. Client
//! and server run on the same system, as in the paper (Demikernel section 7.3); the baselines are loops on plain
//! sockets that wait in the same way.

mod plain;

use crate::report::{Baseline, Better, Report, Row, median};
use crate::timing::pin;
use hdrhistogram::Histogram;
use plain::Loop;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use towpath_echo::{Load, Options, Server};
use towpath_libos::{Address, Config, Kind, LibOs, Runtime, Waiting};

/// Streams or datagrams.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    Tcp,
    Udp,
}

/// Options of `towpath bench echo`; without any, the whole table of the default library OS.
#[derive(clap::Args)]
pub struct Args {
    /// The library OS: kernel, kernel@uring or kernel@syscalls
    #[arg(long, default_value = "kernel")]
    libos: LibOs,
    /// Only these ways to wait: spin, adaptive, block
    #[arg(long, value_delimiter = ',', default_value = "spin,adaptive,block")]
    waiting: Vec<Waiting>,
    /// Only these transports
    #[arg(long, value_delimiter = ',', default_value = "tcp,udp")]
    transport: Vec<Transport>,
    /// Only these message sizes, in bytes
    #[arg(long, value_delimiter = ',', default_value = "64,1024,16384,65536")]
    size: Vec<usize>,
    /// Only these numbers of connections
    #[arg(long, value_delimiter = ',', default_value = "1,16,256")]
    connections: Vec<usize>,
    /// Milliseconds a contender is measured in each round
    #[arg(long, default_value_t = 60)]
    time: u64,
    /// Rounds, in each of which every contender is measured once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// One case to measure.
pub struct Cell {
    pub transport: Transport,
    pub size: usize,
    pub connections: usize,
    pub warm_up: Duration,
    pub time: Duration,
}

/// The most a datagram carries.
const DATAGRAM_MAX: usize = 65_507;
/// Datagrams in flight beyond this many bytes overflow a socket's default buffer and are lost, which measures timers.
const DATAGRAMS_IN_FLIGHT: usize = 100 << 10;
/// What a datagram costs in that buffer beside its bytes.
const DATAGRAM_COST: usize = 768;

/// What one contender did in one round.
struct Sample {
    p50: f64,
    p99: f64,
    rate: f64,
}

fn sample(round_trips: &Histogram<u64>, rate: f64) -> Sample {
    let us = |q: f64| round_trips.value_at_quantile(q) as f64 / 1000.0;
    Sample { p50: us(0.5), p99: us(0.99), rate }
}

/// Runs the table.
pub fn bench(args: &Args, smoke: bool) -> Result<Report, String> {
    let mut report = Report::new("echo");
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        report.skip("echo", "client and server need a processor each, and there is one");
        return Ok(report);
    }
    let (sizes, connections): (&[usize], &[usize]) =
        if smoke { (&[64, 4096], &[1, 4]) } else { (&args.size, &args.connections) };
    let (time, rounds) = if smoke { (5, 2) } else { (args.time.max(1), args.rounds.max(1)) };
    for &waiting in &args.waiting {
        for &transport in &args.transport {
            for &size in sizes {
                for &connections in connections {
                    let size = if transport == Transport::Udp { size.min(DATAGRAM_MAX) } else { size };
                    let cell = Cell {
                        transport,
                        size,
                        connections,
                        warm_up: Duration::from_millis(time / 5 + 1),
                        time: Duration::from_millis(time),
                    };
                    measure(&mut report, &cell, args.libos, waiting, rounds)?;
                }
            }
        }
    }
    if args.waiting.contains(&Waiting::Adaptive) {
        idle(&mut report, args.libos, if smoke { 100 } else { 1000 })?;
    }
    report.say(
        "A round trip is client, server and both socket stacks, message and answer whole; ratios near 1 mean that the \
         queue API costs no more than the bare loop that waits the same way.",
    );
    Ok(report)
}

fn measure(report: &mut Report, cell: &Cell, libos: LibOs, waiting: Waiting, rounds: usize) -> Result<(), String> {
    let transport = if cell.transport == Transport::Tcp { "tcp" } else { "udp" };
    let name = format!("{waiting} {transport} {} B x{}", cell.size, cell.connections);
    if cell.transport == Transport::Udp
        && (cell.size + DATAGRAM_COST) * cell.connections > DATAGRAMS_IN_FLIGHT
        && cell.connections > 1
    {
        report.skip(&name, "so many datagrams at once overflow a socket's buffer");
        return Ok(());
    }
    let baselines: &[(&str, Loop)] = match waiting {
        Waiting::Spin => &[("spinning loop", Loop::Spin), ("spinning epoll", Loop::EpollSpin)],
        Waiting::Adaptive | Waiting::Block => &[("epoll loop", Loop::Epoll)],
    };
    let contenders = 1 + baselines.len();
    let mut samples: Vec<Vec<Sample>> = (0..contenders).map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for k in 0..contenders {
            let who = (round + k) % contenders;
            samples[who].push(match who.checked_sub(1) {
                None => towpath(cell, libos, waiting)?,
                Some(i) => on_plain_sockets(cell, baselines[i].1)?,
            });
        }
    }
    let column = |who: usize, of: fn(&Sample) -> f64| samples[who].iter().map(of).collect::<Vec<f64>>();
    let mut push = |what: &str, unit: &str, better: Better, of: fn(&Sample) -> f64, p99: fn(&Sample) -> f64| {
        let ours = column(0, of);
        report.push(Row {
            name: format!("{name} {what}"),
            value: median(&ours),
            unit: unit.to_string(),
            better,
            p99: median(&column(0, p99)),
            min: ours.iter().copied().fold(f64::INFINITY, f64::min),
            max: ours.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            n: ours.len(),
            baselines: baselines
                .iter()
                .enumerate()
                .map(|(i, (name, _))| Baseline { name: name.to_string(), value: median(&column(i + 1, of)) })
                .collect(),
        });
    };
    push("p50", "us", Better::Lower, |s| s.p50, |s| s.p99);
    push("p99", "us", Better::Lower, |s| s.p99, |s| s.p99);
    push("rate", "msg/s", Better::Higher, |s| s.rate, |s| s.rate);
    Ok(())
}

/// Server and client on the queue API.
fn towpath(cell: &Cell, libos: LibOs, waiting: Waiting) -> Result<Sample, String> {
    let config = Config { libos, waiting, expected_queues: cell.connections, ..Config::default() };
    let kind = if cell.transport == Transport::Tcp { Kind::Stream } else { Kind::Datagram };
    let local: Vec<Address> = vec![Address::from((std::net::Ipv4Addr::LOCALHOST, 0))];
    let options = match kind {
        Kind::Stream => Options { streams: local, ..Options::default() },
        Kind::Datagram => Options { datagrams: local, ..Options::default() },
    };
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let (server_config, options) = (config.clone(), &options);
        let server = scope.spawn(move || -> Result<(), String> {
            pin(0)?;
            let rt = Runtime::start(server_config).map_err(|e| e.to_string())?;
            let server = Server::start(&rt, options).map_err(|e| e.to_string())?;
            let (waker, wait) = stop_pair();
            tell.send((server.addresses()[0].clone(), waker)).map_err(|e| e.to_string())?;
            rt.block_on(wait);
            rt.shutdown();
            Ok(())
        });
        let client = scope.spawn(move || -> Result<Sample, String> {
            let (address, stop) = told.recv().map_err(|_| "the server did not start".to_string())?;
            pin(1)?;
            let load = Load {
                address,
                kind,
                connections: cell.connections,
                size: cell.size,
                warm_up: cell.warm_up,
                time: cell.time,
                messages: u64::MAX,
                verify: false,
            };
            let result = Runtime::start(config).and_then(|rt| {
                let measured = rt.block_on(towpath_echo::run(&rt, &load));
                rt.shutdown();
                measured
            });
            stop.stop();
            let measured = result.map_err(|e| e.to_string())?;
            Ok(sample(&measured.round_trips, measured.rate()))
        });
        let sample = client.join().map_err(|_| "the client panicked".to_string())?;
        server.join().map_err(|_| "the server panicked".to_string())??;
        sample
    })
}

/// Tells a runtime on another thread to stop, by waking what it blocks on.
struct Stop(std::sync::Arc<(AtomicBool, std::sync::Mutex<Option<std::task::Waker>>)>);

impl Stop {
    fn stop(&self) {
        self.0.0.store(true, Ordering::Release);
        if let Ok(mut waker) = self.0.1.lock()
            && let Some(waker) = waker.take()
        {
            waker.wake();
        }
    }
}

fn stop_pair() -> (Stop, impl Future<Output = ()>) {
    let shared = std::sync::Arc::new((AtomicBool::new(false), std::sync::Mutex::new(None)));
    let waited = shared.clone();
    let future = std::future::poll_fn(move |cx| {
        if let Ok(mut waker) = waited.1.lock() {
            *waker = Some(cx.waker().clone());
        }
        if waited.0.load(Ordering::Acquire) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    });
    (Stop(shared), future)
}

/// Server and client on plain sockets.
fn on_plain_sockets(cell: &Cell, how: Loop) -> Result<Sample, String> {
    let (server, address): (plain::Server, SocketAddr) =
        plain::Server::bind(cell.transport).map_err(|e| e.to_string())?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| -> Result<(), String> {
            pin(0)?;
            server.serve(cell, how, &stop).map_err(|e| format!("the baseline's server: {e}"))
        });
        let asking = scope.spawn(|| -> Result<(Histogram<u64>, f64), String> {
            pin(1)?;
            let result = plain::ask(address, cell, how, &stop);
            stop.store(true, Ordering::Relaxed);
            result.map_err(|e| format!("the baseline's client: {e}"))
        });
        let asked = asking.join().map_err(|_| "the client panicked".to_string())?;
        // The client has gone: its end of the stream, or a refused datagram, is how the server learns of it.
        let _ = serving.join().map_err(|_| "the server panicked".to_string())?;
        let (round_trips, rate) = asked?;
        Ok(sample(&round_trips, rate))
    })
}

/// The processor time an idle server with open connections takes.
fn idle(report: &mut Report, libos: LibOs, millis: u64) -> Result<(), String> {
    let config = Config { libos, waiting: Waiting::Adaptive, ..Config::default() };
    let rt = Runtime::start(config).map_err(|e| e.to_string())?;
    let options = Options { streams: vec![Address::from((std::net::Ipv4Addr::LOCALHOST, 0))], ..Options::default() };
    let server = Server::start(&rt, &options).map_err(|e| e.to_string())?;
    let Some(address) = server.addresses()[0].inet() else { return Err("the server has no address".to_string()) };
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(std::net::TcpStream::connect(address).map_err(|e| e.to_string())?);
    }
    rt.block_on(rt.sleep(Duration::from_millis(20)));
    let before = thread_time();
    rt.block_on(rt.sleep(Duration::from_millis(millis)));
    let percent = (thread_time() - before).as_secs_f64() / (millis as f64 / 1000.0) * 100.0;
    rt.shutdown();
    report.push(Row {
        name: "adaptive, idle with 16 connections".to_string(),
        value: percent,
        unit: "% CPU".to_string(),
        better: Better::Lower,
        p99: percent,
        min: percent,
        max: percent,
        n: 1,
        baselines: Vec::new(),
    });
    Ok(())
}

/// The processor time this thread has had.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer describes `time`, which outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
