//! `towpath bench net`: round trips of 64 bytes through our stack on each device, UDP and TCP, between two processors
//! that both spin; beside them the same device bare, and the kernel's sockets spinning over a link of the same kind.

use crate::device::{Contender, Control, Peer, kernel_udp, link, over_veth, pin_pair, plain, running, shm, xdp};
use crate::report::{Better, Report, Row};
use crate::timing::Samples;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use towpath_device::packet::PacketSocketDevice;
use towpath_device::trylink::{FAR_V4, TemporaryLink};
use towpath_device::xdp::XdpMode;
use towpath_libos::{Address, Config, Domain, Kind, LibOs, NetConfig, NetDevice, Queue, Runtime, Waiting, parse_cidr};

/// Bytes of each message.
const SIZE: usize = 64;
/// Ethernet, IPv4 and UDP headers before it: a bare frame as long as the UDP one.
const FRAME: usize = SIZE + 42;
const PATIENCE: Duration = Duration::from_secs(5);
/// Addresses no kernel of the link has.
const NEAR: &str = "10.99.0.1";
const FAR: &str = "10.99.0.2";

/// A runtime on a device, with one of the two addresses.
fn runtime(kind: NetDevice, device: &str, namespace: Option<String>, address: &str) -> Result<Runtime, String> {
    let net = NetConfig {
        device: device.to_string(),
        addresses: vec![parse_cidr(&format!("{address}/24"))?],
        namespace,
        xdp_mode: (kind == NetDevice::Xdp).then_some(XdpMode::Generic),
        ..NetConfig::default()
    };
    let config = Config { libos: LibOs::Inet(kind), waiting: Waiting::Spin, net, ..Config::default() };
    Runtime::start(config).map_err(|e| e.to_string())
}

/// The far end: echoes on a datagram socket, or on the one connection that comes.
fn answer(rt: &Runtime, stream: bool) -> Result<impl FnMut(&Control) + use<>, String> {
    let text = |e: towpath_libos::Error| e.to_string();
    let address: Address = format!("{FAR}:7007").parse().map_err(text)?;
    let queue = if stream {
        let listener = rt.listen(&address).map_err(text)?;
        rt.block_on(rt.timeout(PATIENCE, listener.accept())).and_then(|r| r).map_err(text)?.0
    } else {
        let queue = rt.socket(Domain::V4, Kind::Datagram).map_err(text)?;
        queue.bind(&address).map_err(text)?;
        queue
    };
    let rt = rt.clone();
    Ok(move |control: &Control| {
        while running(control) {
            // The time limit lets the end of the round be seen.
            let echo = async {
                let datagram = queue.pop_from().await?;
                match datagram.from {
                    Some(from) if !stream => queue.push_to(datagram.sga, &from).await,
                    _ => queue.push(datagram.sga).await,
                }
            };
            let _ = rt.block_on(rt.timeout(Duration::from_millis(20), echo));
        }
    })
}

/// The near end: one round trip a call.
fn ping(rt: Runtime, stream: bool) -> Result<impl FnMut() -> Result<(), String>, String> {
    let text = |e: towpath_libos::Error| e.to_string();
    let to: Address = format!("{FAR}:7007").parse().map_err(text)?;
    let queue: Queue = if stream {
        rt.block_on(rt.timeout(PATIENCE, rt.connect_to(&to))).and_then(|r| r).map_err(text)?
    } else {
        rt.socket(Domain::V4, Kind::Datagram).map_err(text)?
    };
    Ok(move || {
        let round = async {
            let message = rt.memory().copy_from(&[7; SIZE])?;
            match stream {
                true => queue.push(message).await?,
                false => queue.push_to(message, &to).await?,
            }
            let mut got = 0;
            while got < SIZE {
                got += rt.timeout(PATIENCE, queue.pop()).await??.len();
            }
            Ok(())
        };
        rt.block_on(round).map_err(text)
    })
}

/// Our stack at both ends of `devices`, each in its namespace.
fn stack(
    name: &'static str,
    kind: NetDevice,
    stream: bool,
    link: Option<TemporaryLink>,
    devices: [(String, Option<String>); 2],
) -> Result<Contender, String> {
    let [(near, near_ns), (far, far_ns)] = devices;
    let peer = std::thread::spawn(move || {
        Peer::start(move || {
            let rt = runtime(kind, &far, far_ns, FAR)?;
            answer(&rt, stream)
        })
    });
    let rt = runtime(kind, &near, near_ns, NEAR)?;
    if stream {
        // The listener is there when a connect succeeds; a refusal before only means: not yet.
        let deadline = Instant::now() + PATIENCE;
        loop {
            match ping(rt.clone(), true) {
                Ok(ping) => {
                    let peer = peer.join().map_err(|_| "the peer thread died".to_string())??;
                    return Ok(Contender::new(name, peer, Box::new(ping), link));
                }
                Err(why) if Instant::now() > deadline => return Err(why),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
    let peer = peer.join().map_err(|_| "the peer thread died".to_string())??;
    Ok(Contender::new(name, peer, Box::new(ping(rt, false)?), link))
}

fn stack_shm(name: &'static str, stream: bool) -> Result<Contender, String> {
    let place = std::env::temp_dir().join(format!("towpath-bench-{}-{stream}", std::process::id()));
    let device = (place.display().to_string(), None);
    stack(name, NetDevice::Shm, stream, None, [device.clone(), device])
}

fn stack_veth(name: &'static str, kind: NetDevice, stream: bool) -> Result<Contender, String> {
    let link = link()?;
    let near = (link.near_interface.clone(), link.near_namespace.clone());
    let far = (link.far_interface.clone(), Some(link.name.clone()));
    stack(name, kind, stream, Some(link), [near, far])
}

/// Kernel TCP sockets that spin.
fn kernel_tcp() -> Result<Contender, String> {
    let text = |e: std::io::Error| e.to_string();
    let link = link()?;
    link.give_near_kernel_addresses().map_err(|e| e.to_string())?;
    let far = link.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let peer = std::thread::spawn(move || {
        Peer::start(move || {
            let listener = {
                let _there = far.enter_far().map_err(|e| e.to_string())?;
                TcpListener::bind((FAR_V4, 7000)).map_err(text)?
            };
            let _ = tell.send(());
            let (mut stream, _) = listener.accept().map_err(text)?;
            stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(text)?;
            Ok(move |control: &Control| {
                let mut bytes = [0; SIZE];
                while running(control) {
                    if let Ok(len) = stream.read(&mut bytes) {
                        let _ = stream.write_all(&bytes[..len]);
                    }
                }
            })
        })
    });
    told.recv_timeout(PATIENCE).map_err(|_| "the peer did not listen".to_string())?;
    let mut stream = {
        let _there = link.enter_near().map_err(|e| e.to_string())?;
        TcpStream::connect((FAR_V4, 7000)).map_err(text)?
    };
    stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(text)?;
    let peer = peer.join().map_err(|_| "the peer thread died".to_string())??;
    let ping = move || {
        stream.write_all(&[7; SIZE]).map_err(text)?;
        let (mut got, mut bytes, start) = (0, [0; SIZE], Instant::now());
        while got < SIZE {
            got += stream.read(&mut bytes).unwrap_or(0);
            if start.elapsed() > PATIENCE {
                return Err("a message never came back".to_string());
            }
        }
        Ok(())
    };
    Ok(Contender::new("kernel TCP", peer, Box::new(ping), Some(link)))
}

/// Runs it.
pub fn bench_net(smoke: bool) -> Result<Report, String> {
    let mut report = Report::new("net");
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        report.skip("net", "two ends that spin need two processors");
        return Ok(report);
    }
    pin_pair()?;
    let (rounds, n) = if smoke { (2, 50) } else { (15, 2000) };
    measure(&mut report, "shm", (rounds, n), shm(FRAME), stack_shm)?;
    let bare = over_veth("bare xdp", FRAME, |name, m| xdp(name, m, XdpMode::Generic));
    measure(&mut report, "xdp", (rounds, n), bare, |name, stream| stack_veth(name, NetDevice::Xdp, stream))?;
    let bare = over_veth("bare packet", FRAME, |name, m| PacketSocketDevice::open(name, m, plain()));
    measure(&mut report, "packet", (rounds, n), bare, |name, stream| stack_veth(name, NetDevice::Packet, stream))?;
    report.say(
        "What a stack costs is the difference to its bare device. Kernel sockets spin over a veth pair, as xdp and packet \
         do; shm needs no link at all.",
    );
    Ok(report)
}

/// One device: our stack, the device bare, and the kernel, in turn.
fn measure(
    report: &mut Report,
    device: &str,
    (rounds, n): (usize, usize),
    bare: Result<Contender, String>,
    ours: impl Fn(&'static str, bool) -> Result<Contender, String>,
) -> Result<(), String> {
    let made = [ours("UDP", false), ours("TCP", true), bare, kernel_udp(FRAME), kernel_tcp()];
    let mut contenders = Vec::new();
    for contender in made {
        match contender {
            Ok(contender) => contenders.push(contender),
            Err(why) => {
                report.skip(&format!("inet@{device}"), why);
                return Ok(());
            }
        }
    }
    let mut samples: Vec<Samples> =
        contenders.iter().map(|c| Samples { name: c.name().to_string(), values: Vec::new() }).collect();
    let count = contenders.len();
    for round in 0..rounds {
        for k in 0..count {
            let i = (round + k) % count;
            samples[i].values.push(contenders[i].run(n)?);
        }
    }
    let [udp, tcp, bare, kernel_udp, kernel_tcp] =
        <[Samples; 5]>::try_from(samples).map_err(|_| "five contenders have five samples".to_string())?;
    let copy = |s: &Samples| Samples { name: s.name.clone(), values: s.values.clone() };
    let row = |what: &str, ours: &Samples, others: &[Samples]| {
        Row::from_samples(&format!("{what} over inet@{device}, {SIZE} B"), "ns", Better::Lower, ours, others)
    };
    report.push(row("UDP", &udp, &[copy(&bare), kernel_udp]));
    report.push(row("TCP", &tcp, &[bare, kernel_tcp]));
    Ok(())
}
