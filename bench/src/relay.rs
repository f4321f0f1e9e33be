//! `towpath bench relay` (Demikernel paper, section 7.4): how long a datagram takes from one party through the relay to
//! the other, with parties on kernel sockets. The same relay on Towpath, on plain sockets and on io_uring, each on a
//! thread of its own, all spinning, in one run.

use crate::report::{Better, Report, Row};
use crate::timing::{Contender, interleave, pin};
use io_uring::{IoUring, opcode, types};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use towpath_libos::{Backend, Config, LibOs, Nanos, Runtime, Waiting};
use towpath_relay::{Options, Server, Sessions, Verdict, session_of};

/// Bytes of a datagram, session number included: a voice packet's payload.
const DATAGRAM_LEN: usize = 200;
/// The relay's processor and the parties'.
const RELAY_CPU: usize = 1;
const PARTIES_CPU: usize = 0;

/// A relay on a thread of its own, ended when dropped.
struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Result<(), String>>>,
}

type Serve = fn(mpsc::Sender<SocketAddr>, &AtomicBool) -> Result<(), String>;

impl Relay {
    fn start(serve: Serve) -> Result<Relay, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            // On one processor the relay and its parties take turns; the figures then say so by their size.
            let _ = pin(RELAY_CPU);
            serve(tell, &flag)
        });
        match told.recv_timeout(Duration::from_secs(10)) {
            Ok(address) => Ok(Relay { address, stop, thread: Some(thread) }),
            Err(_) => {
                stop.store(true, Ordering::Relaxed);
                match thread.join() {
                    Ok(Err(why)) => Err(why),
                    _ => Err("the relay did not start".to_string()),
                }
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve_towpath(backend: Backend, tell: &mpsc::Sender<SocketAddr>, stop: &AtomicBool) -> Result<(), String> {
    let config = Config { libos: LibOs::Kernel(backend), waiting: Waiting::Spin, ..Config::default() };
    let rt = Runtime::start(config).map_err(|e| e.to_string())?;
    let listen = vec!["127.0.0.1:0".parse().map_err(|e: towpath_libos::Error| e.to_string())?];
    let server = Server::start(&rt, &Options { listen, ..Options::default() }).map_err(|e| e.to_string())?;
    let address = server.addresses()[0].inet().ok_or("no IP address")?;
    let _ = tell.send(address);
    rt.block_on(async {
        while !stop.load(Ordering::Relaxed) {
            rt.sleep(Duration::from_millis(5)).await;
        }
    });
    rt.shutdown();
    Ok(())
}

fn serve_syscalls(tell: mpsc::Sender<SocketAddr>, stop: &AtomicBool) -> Result<(), String> {
    serve_towpath(Backend::Syscalls, &tell, stop)
}

fn serve_uring(tell: mpsc::Sender<SocketAddr>, stop: &AtomicBool) -> Result<(), String> {
    serve_towpath(Backend::Uring, &tell, stop)
}

/// The same relay as a loop of recvfrom and sendto.
fn serve_plain(tell: mpsc::Sender<SocketAddr>, stop: &AtomicBool) -> Result<(), String> {
    let socket = bound()?;
    socket.set_nonblocking(true).map_err(|e| e.to_string())?;
    let _ = tell.send(socket.local_addr().map_err(|e| e.to_string())?);
    let mut sessions = Sessions::new(1 << 16, Duration::from_secs(300));
    let start = Instant::now();
    let mut buf = vec![0; 65536];
    while !stop.load(Ordering::Relaxed) {
        let Ok((n, from)) = socket.recv_from(&mut buf) else { continue };
        let Some(session) = session_of(&buf[..n]) else { continue };
        let now = Nanos(start.elapsed().as_nanos() as u64);
        if let Verdict::Forward(to) = sessions.route(session, &from, now) {
            let _ = socket.send_to(&buf[..n], to);
        }
    }
    Ok(())
}

/// The same relay with one receive and one send at a time on an io_uring that is polled.
fn serve_ring(tell: mpsc::Sender<SocketAddr>, stop: &AtomicBool) -> Result<(), String> {
    let socket = bound()?;
    let mut ring: IoUring = IoUring::builder()
        .setup_coop_taskrun()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(8)
        .map_err(|e| format!("io_uring: {e}"))?;
    let _ = tell.send(socket.local_addr().map_err(|e| e.to_string())?);
    let mut sessions = Sessions::new(1 << 16, Duration::from_secs(300));
    let start = Instant::now();
    let mut message = Box::new(RingMessage::new());
    message.aim();
    while !stop.load(Ordering::Relaxed) {
        message.header.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
        message.part.iov_len = message.bytes.len();
        let receive = opcode::RecvMsg::new(types::Fd(socket.as_raw_fd()), &mut message.header).build();
        let Some(n) = complete(&mut ring, &receive, stop)? else { break };
        let Some(session) = session_of(&message.bytes[..n]) else { continue };
        let now = Nanos(start.elapsed().as_nanos() as u64);
        let from = (message.name.sin_addr.s_addr, message.name.sin_port);
        if let Verdict::Forward((address, port)) = sessions.route(session, &from, now) {
            message.name.sin_addr.s_addr = address;
            message.name.sin_port = port;
            message.part.iov_len = n;
            let send = opcode::SendMsg::new(types::Fd(socket.as_raw_fd()), &message.header).build();
            if complete(&mut ring, &send, stop)?.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// What a message header of the kernel points to, in one place that does not move.
struct RingMessage {
    header: libc::msghdr,
    part: libc::iovec,
    name: libc::sockaddr_in,
    bytes: Vec<u8>,
}

impl RingMessage {
    fn new() -> RingMessage {
        // SAFETY: all three are plain C structures for which zeroes are valid.
        let (header, part, name) = unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
        RingMessage { header, part, name, bytes: vec![0; 65536] }
    }

    /// Points the header at the other fields; to be called once it is where it stays.
    fn aim(&mut self) {
        self.part.iov_base = self.bytes.as_mut_ptr().cast();
        self.header.msg_name = (&raw mut self.name).cast();
        self.header.msg_iov = &raw mut self.part;
        self.header.msg_iovlen = 1;
    }
}

/// Submits one request and spins until it is done; none if told to stop meanwhile or if it failed.
fn complete(ring: &mut IoUring, entry: &io_uring::squeue::Entry, stop: &AtomicBool) -> Result<Option<usize>, String> {
    // SAFETY: what the entry points to lives in the caller's box, which outlives the ring's use of it: either the
    // completion is seen here, or the caller ends and drops the ring, which waits for the request, before the box.
    unsafe { ring.submission().push(entry) }.map_err(|e| format!("io_uring: {e}"))?;
    ring.submit().map_err(|e| format!("io_uring: {e}"))?;
    loop {
        if let Some(done) = ring.completion().next() {
            return Ok(usize::try_from(done.result()).ok());
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (submitter, ..) = ring.split();
        // Deferred work runs only when the kernel is entered for events.
        // SAFETY: no argument is passed.
        let entered = unsafe { submitter.enter::<libc::sigset_t>(0, 0, 1, None) };
        entered.map_err(|e| format!("io_uring: {e}"))?;
    }
}

fn bound() -> Result<UdpSocket, String> {
    UdpSocket::bind("127.0.0.1:0").map_err(|e| format!("cannot open a UDP socket: {e}"))
}

/// The two parties, on one thread: what one sends it waits for at the other.
struct Parties {
    first: UdpSocket,
    second: UdpSocket,
    relay: SocketAddr,
    message: Vec<u8>,
    /// Microseconds of every datagram of the last round.
    times: Vec<f64>,
}

impl Parties {
    fn meet(relay: SocketAddr) -> Result<Parties, String> {
        let (first, second) = (bound()?, bound()?);
        let mut message = vec![0x5a; DATAGRAM_LEN];
        message[..8].copy_from_slice(&1u64.to_be_bytes());
        for socket in [&first, &second] {
            socket.set_read_timeout(Some(Duration::from_secs(5))).map_err(|e| e.to_string())?;
        }
        let mut buf = [0; 2048];
        first.send_to(&message, relay).map_err(|e| e.to_string())?;
        // The first datagram is dropped, there being no second party yet; this one introduces it.
        std::thread::sleep(Duration::from_millis(20));
        second.send_to(&message, relay).map_err(|e| e.to_string())?;
        first.recv(&mut buf).map_err(|e| format!("the relay forwards nothing: {e}"))?;
        for socket in [&first, &second] {
            socket.set_nonblocking(true).map_err(|e| e.to_string())?;
        }
        Ok(Parties { first, second, relay, message, times: Vec::new() })
    }

    /// Sends `n` datagrams one after the other; the median time of one, in microseconds.
    fn round(&mut self, n: usize) -> f64 {
        self.times.clear();
        let mut buf = [0; 2048];
        for i in 0..n {
            self.message[8..16].copy_from_slice(&(i as u64).to_be_bytes());
            let start = Instant::now();
            let sent = self.first.send_to(&self.message, self.relay);
            assert!(sent.is_ok_and(|sent| sent == DATAGRAM_LEN), "the datagram was not sent");
            let deadline = start + Duration::from_secs(2);
            loop {
                if let Ok(got) = self.second.recv(&mut buf) {
                    assert_eq!(buf[..got], self.message[..], "the relay changed a datagram");
                    break;
                }
                assert!(Instant::now() < deadline, "the relay lost a datagram");
            }
            self.times.push(start.elapsed().as_nanos() as f64 / 1000.0);
        }
        crate::report::median(&self.times)
    }

    fn p99(&mut self, n: usize) -> f64 {
        self.round(n);
        self.times.sort_by(f64::total_cmp);
        self.times[(self.times.len() - 1) * 99 / 100]
    }
}

/// Runs it.
pub fn bench(smoke: bool) -> Result<Report, String> {
    let (rounds, n) = if smoke { (2, 50) } else { (15, 5_000) };
    // Parties beside the relay's processor; where there is one only, everybody shares it.
    let _ = pin(PARTIES_CPU);
    let mut report = Report::new("relay");
    let servers: [(&str, Serve); 4] = [
        ("kernel@syscalls", serve_syscalls),
        ("kernel@uring", serve_uring),
        ("plain sockets", serve_plain),
        ("io_uring loop", serve_ring),
    ];
    let mut p50 = Vec::new();
    let mut p99 = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (name, serve) in servers {
        match Relay::start(serve) {
            Err(why) => report.skip(name, why),
            Ok(relay) => {
                drop(relay);
                names.push(name);
            }
        }
    }
    let usable: Vec<(&str, Serve)> = servers.into_iter().filter(|(name, _)| names.contains(name)).collect();
    for (figures, tail) in [(&mut p50, false), (&mut p99, true)] {
        // Each round starts its relay afresh: spinning relays would take the processor from one another.
        let mut contenders: Vec<Contender<'_>> = usable
            .iter()
            .map(|&(name, serve)| -> Contender<'_> { (name, Box::new(move || one(serve, n, tail))) })
            .collect();
        *figures = interleave(rounds, &mut contenders);
    }
    for (what, figures) in [("p50", &p50), ("p99", &p99)] {
        let (ours, others): (Vec<_>, Vec<_>) =
            (0..figures.len()).partition(|&i| figures[i].name.starts_with("kernel@"));
        for i in ours {
            let rest: Vec<_> = others.iter().map(|&o| figures[o].clone()).collect();
            let name = format!("through {}, {what}", figures[i].name);
            report.push(Row::from_samples(&name, "us", Better::Lower, &figures[i], &rest));
        }
    }
    report.say(
        "Party to party through the relay, everybody spinning: what lies between the relays is the price or gain of the \
         queue API, since all of them cross the same kernel UDP twice.",
    );
    Ok(report)
}

fn one(serve: Serve, n: usize, tail: bool) -> f64 {
    let relay = Relay::start(serve).expect("it started before");
    let mut parties = Parties::meet(relay.address).expect("it forwarded before");
    parties.round(n / 10 + 1);
    if tail { parties.p99(n) } else { parties.round(n) }
}
