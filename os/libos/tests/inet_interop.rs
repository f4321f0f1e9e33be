//! Our stack against the kernel's TCP and UDP: as server and client, IPv4 and IPv6, on each device, with and without
//! offloads, and through a device that loses, repeats, reorders and damages frames. Each test has a link and namespaces
//! of its own.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_device::link::Namespace;
use towpath_device::trylink::{FAR_V4, FAR_V6, NEAR_V4, NEAR_V6, TemporaryLink, TryLinkConfig};
use towpath_libos::{
    Address, Config, Domain, FaultConfig, Kind, LibOs, NetConfig, NetDevice, Runtime, Waiting, XdpMode, parse_cidr,
};

const PORT: u16 = 7007;
const PATIENCE: Duration = Duration::from_secs(40);

/// One device to test, as its test names it.
#[derive(Clone, Copy)]
struct Kit {
    name: &'static str,
    device: NetDevice,
    offloads: bool,
    xdp_mode: Option<XdpMode>,
}

/// A link with our stack's settings for its near end.
struct Bench {
    link: Arc<TemporaryLink>,
    net: NetConfig,
    kit: Kit,
}

impl Bench {
    fn new(kit: Kit) -> Option<Bench> {
        // SAFETY: a call without arguments.
        if unsafe { libc::geteuid() } != 0 || towpath_testing::which("ip").is_none() {
            towpath_testing::skip(kit.name, "needs root and iproute2");
            return None;
        }
        let far_offloads = kit.offloads;
        let config = TryLinkConfig { near_namespace: true, far_offloads, ..TryLinkConfig::new("tpo") };
        let link = TemporaryLink::up(config).expect("a link");
        let device = if kit.device == NetDevice::Tap { "tap0".to_string() } else { link.near_interface.clone() };
        let net = NetConfig {
            device,
            addresses: vec![
                parse_cidr(&format!("{NEAR_V4}/24")).expect("an address"),
                parse_cidr(&format!("{NEAR_V6}/64")).expect("an address"),
            ],
            namespace: link.near_namespace.clone(),
            no_offloads: !kit.offloads,
            xdp_mode: kit.xdp_mode,
            ..NetConfig::default()
        };
        Some(Bench { link: Arc::new(link), net, kit })
    }

    fn runtime(&self) -> impl FnOnce() -> Runtime + Send + 'static {
        let (net, device, link) = (self.net.clone(), self.kit.device, self.link.clone());
        move || {
            let config = Config { libos: LibOs::Inet(device), waiting: Waiting::Adaptive, net, ..Config::default() };
            let rt = Runtime::start(config).expect("the library OS starts");
            assert_eq!(rt.libos(), device.libos());
            if device == NetDevice::Tap {
                // The kernel's side of a tap is in the namespace of the tap.
                let place = link.near_namespace.as_deref().expect("a near namespace");
                ip(&["-n", place, "addr", "add", &format!("{FAR_V4}/24"), "dev", "tap0"]);
                ip(&["-n", place, "-6", "addr", "add", &format!("{FAR_V6}/64"), "dev", "tap0", "nodad"]);
            }
            rt
        }
    }

    /// Runs `work` where the kernel's end is.
    fn with_kernel<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let place = match self.kit.device {
            NetDevice::Tap => self.link.near_namespace.clone().expect("a near namespace"),
            _ => self.link.name.clone(),
        };
        std::thread::spawn(move || {
            let _there = Namespace::enter(&place).expect("the kernel's namespace");
            work()
        })
    }
}

fn ip(arguments: &[&str]) {
    let out = Command::new("ip").args(arguments).output().expect("ip runs");
    assert!(out.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// An echo server on our stack, in a thread of its own, until dropped.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(runtime: impl FnOnce() -> Runtime + Send + 'static, addresses: Vec<IpAddr>) -> Server {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let rt = runtime();
            for ip in addresses {
                serve(&rt, &Address::Inet(SocketAddr::new(ip, PORT)));
            }
            tell.send(()).expect("the test waits");
            rt.block_on(async {
                while !stopped.load(Ordering::Relaxed) {
                    rt.sleep(Duration::from_millis(2)).await;
                }
            });
            rt.shutdown();
        });
        told.recv_timeout(PATIENCE).expect("the server starts");
        Server { stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("a thread").expect("the server ends well");
        }
    }
}

fn serve(rt: &Runtime, address: &Address) {
    let listener = rt.listen(address).expect("listens");
    let runtime = rt.clone();
    rt.spawn(async move {
        while let Ok((conn, _)) = listener.accept().await {
            let echo = async move {
                while let Ok(message) = conn.pop().await {
                    if message.is_empty() || conn.push(message).await.is_err() {
                        return;
                    }
                }
            };
            runtime.spawn(echo).expect("room for a connection");
        }
    })
    .expect("room for a coroutine");
    let datagrams = rt.socket(address.domain(), Kind::Datagram).expect("a socket");
    datagrams.bind(address).expect("binds");
    rt.spawn(async move {
        while let Ok(datagram) = datagrams.pop_from().await {
            let from = datagram.from.expect("datagrams have senders");
            let _ = datagrams.push_to(datagram.sga, &from).await;
        }
    })
    .expect("room for a coroutine");
}

fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out
}

fn near() -> [IpAddr; 2] {
    [NEAR_V4.parse().expect("an address"), NEAR_V6.parse().expect("an address")]
}

/// A kernel client sends `len` bytes to the echo at `to` and must get them back.
fn kernel_round_trip(to: SocketAddr, len: usize) {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let sent = pattern(len, 7);
    let mut writer = stream.try_clone().expect("a second handle");
    let bytes = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&bytes).expect("sends");
        writer.shutdown(Shutdown::Write).expect("ends");
    });
    let mut got = Vec::with_capacity(len);
    stream.read_to_end(&mut got).expect("receives to the end");
    writing.join().expect("the writer ends well");
    assert_eq!(got.len(), sent.len());
    assert!(got == sent, "bytes changed on the way to {to}");
}

fn our_server(kit: Kit) {
    let Some(bench) = Bench::new(kit) else { return };
    let _server = Server::start(bench.runtime(), near().to_vec());
    for ip in near() {
        let work = move || {
            kernel_round_trip(SocketAddr::new(ip, PORT), 1);
            kernel_round_trip(SocketAddr::new(ip, PORT), 3_000_000);
            let socket = UdpSocket::bind(if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).expect("binds");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            // One larger than the link's packets, too: it comes in fragments and goes back so.
            for len in [1, 99, 1400, 9000] {
                let sent = pattern(len, len as u32);
                socket.send_to(&sent, (ip, PORT)).expect("sends");
                let mut got = vec![0; 65_536];
                let (n, from) = socket.recv_from(&mut got).expect("answers");
                assert_eq!(from, SocketAddr::new(ip, PORT));
                assert!(got[..n] == sent, "a datagram of {len} bytes");
            }
        };
        bench.with_kernel(work).join().expect("the kernel's side is content");
    }
}

fn our_client(kit: Kit) {
    let Some(bench) = Bench::new(kit) else { return };
    let rt = bench.runtime()();
    for (ip, any) in [(FAR_V4, "0.0.0.0"), (FAR_V6, "::")] {
        let (tell, told) = mpsc::channel();
        let echo = bench.with_kernel(move || {
            let listener = TcpListener::bind((any, PORT)).expect("binds");
            tell.send(()).expect("the test waits");
            let (mut stream, _) = listener.accept().expect("accepts");
            let mut got = Vec::new();
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.read_to_end(&mut got).expect("receives to the end");
            stream.write_all(&got).expect("sends");
        });
        told.recv_timeout(PATIENCE).expect("the kernel listens");
        let to = Address::Inet(SocketAddr::new(ip.parse().expect("an address"), PORT));
        let sent = pattern(3_000_000, 3);
        let got = rt.block_on(async {
            let conn = rt.connect_to(&to).await.expect("connects");
            assert_eq!(conn.peer_addr().expect("a peer"), to);
            for chunk in sent.chunks(100_000) {
                conn.push(rt.memory().copy_from(chunk).expect("memory")).await.expect("pushes");
            }
            conn.shutdown(Shutdown::Write).expect("ends");
            let mut got = Vec::new();
            loop {
                let sga = rt.timeout(PATIENCE, conn.pop()).await.expect("in time").expect("pops");
                if sga.is_empty() {
                    break;
                }
                sga.segments().iter().for_each(|s| got.extend_from_slice(s));
            }
            conn.close().await.expect("closes");
            got
        });
        assert_eq!(got.len(), sent.len());
        assert!(got == sent, "bytes changed on the way");
        echo.join().expect("the kernel's side is content");
        // Nobody listens any more: the refusal arrives as an error.
        let refused = rt.block_on(rt.timeout(PATIENCE, rt.connect_to(&to))).expect("in time");
        assert_eq!(refused.err().map(|e| e.errno()), Some(libc::ECONNREFUSED));
    }
    rt.shutdown();
}

fn bad_link(kit: Kit) {
    let Some(mut bench) = Bench::new(kit) else { return };
    bench.net.fault = Some(FaultConfig {
        seed: 11,
        lose_ppm: 10_000,
        duplicate_ppm: 5_000,
        corrupt_ppm: 5_000,
        reorder_ppm: 10_000,
        reorder_ns: 500_000,
        ..FaultConfig::default()
    });
    let _server = Server::start(bench.runtime(), near().to_vec());
    let work = || near().into_iter().for_each(|ip| kernel_round_trip(SocketAddr::new(ip, PORT), 400_000));
    bench.with_kernel(work).join().expect("the kernel's side is content");
}

macro_rules! interoperate {
    ($($module:ident: $device:expr, $offloads:expr, $mode:expr;)*) => {
        $(mod $module {
            use super::*;

            fn kit(name: &'static str) -> Kit {
                Kit { name, device: $device, offloads: $offloads, xdp_mode: $mode }
            }

            #[test]
            fn kernel_clients_get_back_from_our_server_what_they_sent() {
                our_server(kit(concat!(stringify!($module), "::kernel_clients")));
            }

            #[test]
            fn our_client_gets_back_from_a_kernel_server_what_it_sent() {
                our_client(kit(concat!(stringify!($module), "::our_client")));
            }

            #[test]
            fn stream_through_a_bad_link_arrives_whole() {
                bad_link(kit(concat!(stringify!($module), "::bad_link")));
            }
        })*
    };
}

interoperate! {
    tap: NetDevice::Tap, true, None;
    tap_without_offloads: NetDevice::Tap, false, None;
    packet: NetDevice::Packet, true, None;
    packet_without_offloads: NetDevice::Packet, false, None;
    xdp_native: NetDevice::Xdp, false, Some(XdpMode::Native);
    xdp_generic: NetDevice::Xdp, false, Some(XdpMode::Generic);
}

/// Two runtimes of ours joined by shared memory, one thread each.
#[test]
fn two_of_our_stacks_exchange_megabytes_over_shared_memory() {
    let dir = towpath_testing::TempDir::new();
    let runtime = |address: &str| {
        let net = NetConfig {
            device: dir.join("link").display().to_string(),
            addresses: vec![parse_cidr(address).expect("an address")],
            ..NetConfig::default()
        };
        move || {
            let config = Config { libos: LibOs::Inet(NetDevice::Shm), net, ..Config::default() };
            Runtime::start(config).expect("the library OS starts")
        }
    };
    let starting = {
        let runtime = runtime("10.9.0.1/24");
        std::thread::spawn(move || Server::start(runtime, vec!["10.9.0.1".parse().expect("an address")]))
    };
    let rt = runtime("10.9.0.2/24")();
    let server = starting.join().expect("the server starts");
    let to: Address = "10.9.0.1:7007".parse().expect("an address");
    let sent = pattern(8_000_000, 5);
    let received = rt.block_on(async {
        let conn = std::rc::Rc::new(rt.connect_to(&to).await.expect("connects"));
        let (writer, bytes, memory) = (conn.clone(), sent.clone(), rt.memory().clone());
        let write = async move {
            for chunk in bytes.chunks(64_000) {
                writer.push(memory.copy_from(chunk).expect("memory")).await.expect("pushes");
            }
            writer.shutdown(Shutdown::Write).expect("ends");
        };
        rt.spawn(write).expect("room");
        let mut got = Vec::new();
        loop {
            let sga = rt.timeout(PATIENCE, conn.pop()).await.expect("in time").expect("pops");
            if sga.is_empty() {
                return got;
            }
            sga.segments().iter().for_each(|s| got.extend_from_slice(s));
        }
    });
    assert!(received == sent);
    let socket = rt.socket(Domain::V4, Kind::Datagram).expect("a socket");
    rt.block_on(async {
        for len in [1, 50, 1400, 60_000] {
            let sent = rt.memory().copy_from(&pattern(len, 9)).expect("memory");
            socket.push_to(sent.clone(), &to).await.expect("pushes");
            let got = rt.timeout(PATIENCE, socket.pop_from()).await.expect("in time").expect("pops");
            assert_eq!(got.from.as_ref(), Some(&to));
            let mut flat = vec![0; got.sga.len()];
            got.sga.copy_to_slice(&mut flat);
            assert!(flat == sent[..]);
        }
    });
    drop(server);
    // The other side is gone: what waits is told, and nothing hangs.
    let gone = rt.block_on(rt.timeout(PATIENCE, socket.pop())).expect("in time");
    assert_eq!(gone.err().map(|e| e.errno()), Some(libc::ENETDOWN));
    drop(socket);
    rt.shutdown();
}

/// Processor time this thread has used.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local that outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn idle_runtime_sleeps_and_is_woken_by_a_frame() {
    for device in [NetDevice::Packet, NetDevice::Xdp, NetDevice::Tap] {
        let kit = Kit { name: "idle_runtime_sleeps", device, offloads: false, xdp_mode: None };
        let Some(bench) = Bench::new(kit) else { return };
        let rt = bench.runtime()();
        let address = Address::Inet(SocketAddr::new(near()[0], PORT));
        serve(&rt, &address);
        // The kernel greets a new interface for a moment.
        rt.block_on(rt.sleep(Duration::from_millis(300)));
        let (used, slept) = (thread_time(), rt.stats().sleeps);
        rt.block_on(rt.sleep(Duration::from_millis(600)));
        let used = thread_time() - used;
        assert!(used < Duration::from_millis(60), "{device}: an idle runtime used {used:?} in 600 ms");
        assert!(rt.stats().sleeps > slept);
        let client = bench.with_kernel(|| kernel_round_trip(SocketAddr::new(near()[0], PORT), 100));
        rt.block_on(async {
            while !client.is_finished() {
                rt.sleep(Duration::from_millis(20)).await;
            }
        });
        client.join().expect("the kernel's side is content");
        rt.shutdown();
    }
}
