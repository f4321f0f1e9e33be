//! `towpath bench device`: bare devices, raw frames bounced between two processors that both spin, without a stack:
//! what every figure of a stack is to be judged by. Beside them the bare cache line between the same processors and
//! kernel UDP sockets that spin over a link of the same kind.

use crate::report::{Better, Report, Row};
use crate::timing::{Samples, pin};
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use towpath_cbuf::{Memory, MemoryConfig};
use towpath_device::packet::{PacketConfig, PacketSocketDevice};
use towpath_device::shm::{ShmConfig, ShmDevice};
use towpath_device::tap::{TapConfig, TapDevice};
use towpath_device::trylink::{FAR_V4, TemporaryLink, TryLinkConfig};
use towpath_device::xdp::{XdpConfig, XdpDevice, XdpMode};
use towpath_device::{PacketDevice, RxPacket, TxPacket};

/// An Ethernet type for local experiments.
const TYPE: [u8; 2] = [0x88, 0xb5];
/// How long one answer may take before the run is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the two sides of a contender share: whether the peer shall answer now.
pub struct Control(AtomicU32);

/// Whether the peer shall go on answering.
pub fn running(control: &Control) -> bool {
    control.0.load(Ordering::Relaxed) == RUN
}

const IDLE: u32 = 0;
const RUN: u32 = 1;
const END: u32 = 2;

/// A thread on the second processor that answers while told to, and sleeps otherwise.
pub struct Peer {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// Starts it: `make` builds the far end there, which then answers until it returns false.
    pub fn start<E, M>(make: M) -> Result<Peer, String>
    where
        E: FnMut(&Control),
        M: FnOnce() -> Result<E, String> + Send + 'static,
    {
        let control = Arc::new(Control(AtomicU32::new(IDLE)));
        let shared = control.clone();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let made = pin(1).and_then(|()| make());
            let mut answer = match made {
                Ok(answer) => {
                    let _ = tell.send(Ok(()));
                    answer
                }
                Err(why) => {
                    let _ = tell.send(Err(why));
                    return;
                }
            };
            loop {
                match shared.0.load(Ordering::Acquire) {
                    IDLE => std::thread::park(),
                    RUN => answer(&shared),
                    _ => return,
                }
            }
        });
        let peer = Peer { control, thread: Some(thread) };
        told.recv().map_err(|_| "the peer thread died".to_string())??;
        Ok(peer)
    }

    fn set(&self, state: u32) {
        self.control.0.store(state, Ordering::Release);
        if let Some(thread) = self.thread.as_ref().map(JoinHandle::thread) {
            Thread::unpark(thread);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.set(END);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One way to send a message to the other processor and back.
pub struct Contender {
    name: &'static str,
    peer: Peer,
    /// One round trip.
    ping: Box<dyn FnMut() -> Result<(), String>>,
    _link: Option<TemporaryLink>,
}

impl Contender {
    /// A contender whose far end is `peer`; `link` goes down after both ends.
    pub fn new(
        name: &'static str,
        peer: Peer,
        ping: Box<dyn FnMut() -> Result<(), String>>,
        link: Option<TemporaryLink>,
    ) -> Contender {
        Contender { name, peer, ping, _link: link }
    }

    /// What it is called in a table.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Nanoseconds a round trip takes, averaged over `n`.
    pub fn run(&mut self, n: usize) -> Result<f64, String> {
        self.peer.set(RUN);
        let mut outcome = (0..n / 10 + 10).try_for_each(|_| (self.ping)());
        let start = Instant::now();
        if outcome.is_ok() {
            outcome = (0..n).try_for_each(|_| (self.ping)());
        }
        let elapsed = start.elapsed();
        self.peer.set(IDLE);
        outcome.map_err(|why| format!("{}: {why}", self.name))?;
        Ok(elapsed.as_nanos() as f64 / n as f64)
    }
}

/// Two words, a cache line each.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

fn cache_line() -> Result<Contender, String> {
    let lines = Arc::new([Line::default(), Line::default()]);
    let theirs = lines.clone();
    let peer = Peer::start(move || {
        let mut seen = 0;
        Ok(move |control: &Control| {
            while control.0.load(Ordering::Relaxed) == RUN {
                let value = theirs[0].0.load(Ordering::Acquire);
                if value != seen {
                    seen = value;
                    theirs[1].0.store(value, Ordering::Release);
                }
            }
        })
    })?;
    let mut number = 0;
    let ping = move || {
        number += 1;
        lines[0].0.store(number, Ordering::Release);
        while lines[1].0.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
        Ok(())
    };
    Ok(Contender { name: "cache line", peer, ping: Box::new(ping), _link: None })
}

fn memory() -> Result<Memory, String> {
    Memory::new(MemoryConfig { frame_bytes: 16 << 20, ..MemoryConfig::default() }).map_err(|e| e.to_string())
}

/// A device with all that sending and receiving one frame needs.
struct Side<D> {
    device: D,
    memory: Memory,
    size: usize,
    queue: VecDeque<TxPacket>,
    got: Vec<RxPacket>,
}

impl<D: PacketDevice> Side<D> {
    fn new(device: D, memory: Memory, size: usize) -> Side<D> {
        Side { device, memory, size, queue: VecDeque::with_capacity(16), got: Vec::with_capacity(16) }
    }

    fn send(&mut self, number: u64) -> Result<(), String> {
        let mut frame = self.memory.alloc_frame(self.size).map_err(|e| e.to_string())?;
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&self.device.link().mac);
        frame[12..14].copy_from_slice(&TYPE);
        frame[14..22].copy_from_slice(&number.to_le_bytes());
        self.queue.push_back(TxPacket::plain(frame.freeze()));
        self.device.transmit(&mut self.queue).map_err(|e| e.to_string())?;
        Ok(())
    }

    /// The number in the next frame of ours, if one is there.
    fn receive(&mut self) -> Result<Option<u64>, String> {
        self.device.receive(&mut self.got, 1).map_err(|e| e.to_string())?;
        let number = self.got.pop().and_then(|packet| {
            let head = packet.frame.segments().first()?;
            let number = head.get(14..22)?.try_into().ok()?;
            (head[12..14] == TYPE).then(|| u64::from_le_bytes(number))
        });
        Ok(number)
    }

    fn ping(&mut self, number: u64) -> Result<(), String> {
        self.send(number)?;
        let mut spins = 0_u32;
        let mut start = None;
        while self.receive()? != Some(number) {
            spins += 1;
            if spins.is_multiple_of(1 << 16) && start.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(format!("frame {number} never came back"));
            }
        }
        Ok(())
    }

    fn answer(&mut self, control: &Control) {
        while control.0.load(Ordering::Relaxed) == RUN {
            match self.receive() {
                Ok(Some(number)) if self.send(number).is_ok() => {}
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

fn contender<D: PacketDevice + 'static, F: PacketDevice>(
    name: &'static str,
    size: usize,
    link: Option<TemporaryLink>,
    near: impl FnOnce(&Memory) -> Result<D, String>,
    far: impl FnOnce(&Memory) -> Result<F, String> + Send + 'static,
) -> Result<Contender, String> {
    let memory = memory()?;
    // The far end may wait for the near one, so it is started first only where it does not.
    let make = move || {
        let memory = self::memory()?;
        let mut side = Side::new(far(&memory)?, memory, size);
        Ok(move |control: &Control| side.answer(control))
    };
    let (device, peer) = std::thread::scope(|_| -> Result<_, String> {
        let handle = std::thread::spawn(move || Peer::start(make));
        let device = near(&memory);
        let peer = handle.join().map_err(|_| "the peer thread died".to_string())??;
        Ok((device?, peer))
    })?;
    let mut side = Side::new(device, memory, size);
    let mut number = 0;
    let ping = move || {
        number += 1;
        side.ping(number)
    };
    Ok(Contender { name, peer, ping: Box::new(ping), _link: link })
}

pub fn shm(size: usize) -> Result<Contender, String> {
    let (one, two) = ShmDevice::sockets().map_err(|e| e.to_string())?;
    let open = |socket, first, memory: &Memory| {
        ShmDevice::over(socket, first, memory, ShmConfig::default()).map_err(|e| e.to_string())
    };
    contender("shm", size, None, move |m| open(one, true, m), move |m| open(two, false, m))
}

pub fn link() -> Result<TemporaryLink, String> {
    let config = TryLinkConfig { near_namespace: true, ..TryLinkConfig::new("tpb") };
    TemporaryLink::up(config).map_err(|e| e.to_string())
}

/// A contender of one kind of kernel device at both ends of a veth pair.
pub fn over_veth<D: PacketDevice + 'static>(
    name: &'static str,
    size: usize,
    open: fn(&str, &Memory) -> Result<D, towpath_device::Error>,
) -> Result<Contender, String> {
    let link = link()?;
    let (near, far) = (link.clone(), link.clone());
    let near = move |memory: &Memory| {
        let _there = near.enter_near()?;
        open(&near.near_interface, memory)
    };
    let far = move |memory: &Memory| {
        let _there = far.enter_far()?;
        open(&far.far_interface, memory)
    };
    let text = |e: towpath_device::Error| e.to_string();
    contender(name, size, Some(link), move |m| near(m).map_err(text), move |m| far(m).map_err(text))
}

/// A tap, with a packet socket on the kernel's side of it.
fn tap(size: usize) -> Result<Contender, String> {
    let link = link()?;
    let (near, far) = (link.clone(), link.clone());
    let text = |e: towpath_device::Error| e.to_string();
    let open_near = move |memory: &Memory| {
        let _there = near.enter_near()?;
        TapDevice::open("tap0", memory, TapConfig::default())
    };
    let open_far = move |memory: &Memory| {
        let _there = far.enter_near()?;
        let deadline = Instant::now() + PATIENCE;
        while towpath_device::link::index("tap0").is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        PacketSocketDevice::open("tap0", memory, plain())
    };
    contender("tap", size, Some(link), move |m| open_near(m).map_err(text), move |m| open_far(m).map_err(text))
}

pub fn plain() -> PacketConfig {
    PacketConfig { offloads: false, ..PacketConfig::default() }
}

/// Kernel UDP sockets that spin.
pub fn kernel_udp(size: usize) -> Result<Contender, String> {
    let text = |e: std::io::Error| e.to_string();
    let link = link()?;
    link.give_near_kernel_addresses().map_err(|e| e.to_string())?;
    let far = link.clone();
    let peer = Peer::start(move || {
        let socket = {
            let _there = far.enter_far().map_err(|e| e.to_string())?;
            UdpSocket::bind((FAR_V4, 7000)).map_err(text)?
        };
        socket.set_nonblocking(true).map_err(text)?;
        Ok(move |control: &Control| {
            let mut bytes = [0; 2048];
            while control.0.load(Ordering::Relaxed) == RUN {
                if let Ok((len, from)) = socket.recv_from(&mut bytes) {
                    let _ = socket.send_to(&bytes[..len], from);
                }
            }
        })
    })?;
    let socket = {
        let _there = link.enter_near().map_err(|e| e.to_string())?;
        UdpSocket::bind("0.0.0.0:0").map_err(text)?
    };
    socket.connect((FAR_V4, 7000)).map_err(text)?;
    socket.set_nonblocking(true).map_err(text)?;
    // 42 bytes of headers make it as long a frame as the others'.
    let message = vec![7; size.saturating_sub(42).max(1)];
    let ping = move || {
        socket.send(&message).map_err(text)?;
        let mut bytes = [0; 2048];
        let start = Instant::now();
        while socket.recv(&mut bytes).is_err() {
            if start.elapsed() > PATIENCE {
                return Err("a datagram never came back".to_string());
            }
        }
        Ok(())
    };
    Ok(Contender { name: "kernel UDP", peer, ping: Box::new(ping), _link: Some(link) })
}

/// Opens an AF_XDP device in one mode.
pub fn xdp(name: &str, memory: &Memory, mode: XdpMode) -> Result<XdpDevice, towpath_device::Error> {
    XdpDevice::open(name, memory, XdpConfig { mode: Some(mode), ring: 256, ..XdpConfig::default() })
}

/// Puts this side on the first processor; peers put themselves on the second.
pub fn pin_pair() -> Result<(), String> {
    pin(0)
}

/// Runs it.
pub fn bench_device(smoke: bool) -> Result<Report, String> {
    let mut report = Report::new("device");
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        report.skip("device", "two ends that spin need two processors");
        return Ok(report);
    }
    pin_pair()?;
    let (rounds, n) = if smoke { (2, 50) } else { (15, 4000) };
    for size in [64, 1024] {
        measure(&mut report, size, rounds, n)?;
    }
    report.say(
        "Both ends spin on a processor each, so these are floors: a stack adds its own work, and a side that sleeps adds \
         a wake-up of some 80 us on such a machine. The shm figures include two frame allocations.",
    );
    Ok(report)
}

fn measure(report: &mut Report, size: usize, rounds: usize, n: usize) -> Result<(), String> {
    let made = [
        ("cache line", cache_line()),
        ("kernel UDP", kernel_udp(size)),
        ("shm", shm(size)),
        ("xdp generic", over_veth("xdp generic", size, |name, m| xdp(name, m, XdpMode::Generic))),
        ("xdp native", over_veth("xdp native", size, |name, m| xdp(name, m, XdpMode::Native))),
        ("packet", over_veth("packet", size, |name, m| PacketSocketDevice::open(name, m, plain()))),
        ("tap", tap(size)),
    ];
    let mut contenders = Vec::new();
    for (name, contender) in made {
        match contender {
            Ok(contender) => contenders.push(contender),
            Err(why) => report.skip(&format!("{name}, {size} B"), why),
        }
    }
    let mut samples: Vec<Samples> =
        contenders.iter().map(|c| Samples { name: c.name.to_string(), values: Vec::new() }).collect();
    let count = contenders.len();
    for round in 0..rounds {
        for k in 0..count {
            let i = (round + k) % count;
            samples[i].values.push(contenders[i].run(n)?);
        }
    }
    let (baselines, ours): (Vec<Samples>, Vec<Samples>) =
        samples.into_iter().partition(|s| ["cache line", "kernel UDP"].contains(&s.name.as_str()));
    for sample in &ours {
        let name = format!("{} round trip, {size} B frame", sample.name);
        report.push(Row::from_samples(&name, "ns", Better::Lower, sample, &baselines));
    }
    Ok(())
}
