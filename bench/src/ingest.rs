//! The stack alone: what a received segment costs until the waiting consumer holds its data, and what a push costs
//! until its frame is with the device. Checksums, timestamps, acknowledgement bookkeeping and the refill of the receive
//! frame are in the timed part; smoltcp does the same beside it.

use crate::report::{Better, Report, Row};
use crate::timing::{Samples, interleave};
use smol::Smol;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;
use towpath_cbuf::{Buf, BufMut, Memory, MemoryConfig, Sga};
use towpath_inet::random::Rng;
use towpath_inet::wire::ethernet::{Ethernet, ethertype};
use towpath_inet::wire::ipv4::{Ipv4, Ipv4View};
use towpath_inet::wire::tcp::{Options as Wire, Seq, Tcp, TcpView, flag};
use towpath_inet::wire::{protocol, pseudo};
use towpath_inet::{Cidr, Config, Event, Finish, Mac, Nanos, Options, Received, Sink, Stack, TcpId};

mod smol;

/// Bytes of a message.
const MESSAGE: usize = 64;
/// Bytes of a receive frame.
const FRAME: usize = 2048;
/// Segments timed at once: the clock is read twice for them.
const BATCH: usize = 32;
pub(crate) const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub(crate) const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const THEIR_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const PORT: u16 = 7;

/// The peer of one connection, as far as building its segments needs it.
pub(crate) struct Peer {
    port: u16,
    seq: u32,
    ack: u32,
    /// Where what the stack under test has sent ends; it is acknowledged a message at a time.
    heard: u32,
    clock: u32,
    echo: u32,
}

impl Peer {
    pub(crate) fn new(n: usize) -> Peer {
        Peer { port: 1024 + n as u16, seq: 1000, ack: 0, heard: 0, clock: 1, echo: 0 }
    }

    /// The bytes of its next segment.
    pub(crate) fn segment(&mut self, flags: u8, payload: &[u8], out: &mut [u8]) -> usize {
        let mut options = Wire { timestamps: Some((self.clock, self.echo)), ..Wire::default() };
        if flags & flag::SYN != 0 {
            (options.mss, options.scale, options.sack_permitted) = (Some(1460), Some(7), true);
        }
        let header = Tcp {
            src_port: self.port,
            dst_port: PORT,
            seq: Seq(self.seq),
            ack: Seq(self.ack),
            flags,
            window: 0xffff,
            options,
        };
        let at = Ethernet { dst: OURS, src: THEIRS, vlan: None, ethertype: ethertype::IPV4 }.write(out) + 20;
        let mut body = [0; 60];
        let n = header.write(&mut body);
        let len = n + payload.len();
        let ip = Ipv4 {
            src: THEIR_IP,
            dst: OUR_IP,
            protocol: protocol::TCP,
            tos: 0,
            ttl: 64,
            id: 1,
            df: true,
            more: false,
            offset: 0,
        };
        ip.write(len, &mut out[14..]);
        out[at..at + n].copy_from_slice(&body[..n]);
        out[at + n..at + len].copy_from_slice(payload);
        let mut sum = pseudo(IpAddr::V4(THEIR_IP), IpAddr::V4(OUR_IP), protocol::TCP, len as u32);
        sum.add(&out[at..at + len]);
        out[at + 16..at + 18].copy_from_slice(&sum.finish().to_be_bytes());
        self.seq = self.seq.wrapping_add(payload.len() as u32 + u32::from(flags & flag::SYN != 0));
        at + len
    }

    /// Takes note of what the stack under test sent.
    pub(crate) fn hear(&mut self, frame: &[u8]) {
        let Some(seg) = read(frame) else { return };
        if seg.0.dst_port == self.port {
            self.heard = seg.0.seq.0.wrapping_add(seg.1 + u32::from(seg.0.has(flag::SYN)));
            self.echo = seg.0.options.timestamps.map_or(0, |t| t.0);
            if seg.0.has(flag::SYN) {
                self.ack = self.heard;
            }
        }
    }

    /// Acknowledges one more message with the next segment, if one is unacknowledged.
    pub(crate) fn advance(&mut self) {
        if self.heard != self.ack {
            self.ack = self.ack.wrapping_add(MESSAGE as u32);
        }
    }

    /// Takes note of a message whose header this is.
    fn hear_header(&mut self, header: &[u8]) {
        if let Ok(view) = TcpView::checked(&header[34..])
            && let Ok(seg) = Tcp::parse(&view)
        {
            self.heard = seg.seq.0.wrapping_add(MESSAGE as u32);
            self.echo = seg.options.timestamps.map_or(0, |t| t.0);
        }
    }
}

fn read(frame: &[u8]) -> Option<(Tcp, u32)> {
    let view = Ipv4View::checked(frame.get(14..)?).ok()?;
    let body = frame.get(14 + view.header_len()..14 + view.total_len())?;
    let tcp = TcpView::checked(body).ok()?;
    Some((Tcp::parse(&tcp).ok()?, (body.len() - tcp.header_len()) as u32))
}

/// A device's transmit ring: a header chunk and the payload's references a slot, given back when the slot comes round.
struct Ring {
    slots: Vec<([u8; 128], usize, Option<Buf>)>,
    next: usize,
}

impl Sink for Ring {
    fn transmit(&mut self, header: &[u8], payload: &[Buf], _finish: Finish) {
        let slot = &mut self.slots[self.next];
        slot.0[..header.len()].copy_from_slice(header);
        slot.1 = header.len();
        slot.2 = payload.first().cloned();
        self.next = (self.next + 1) % self.slots.len();
    }
}

impl Ring {
    fn last(&self) -> &[u8] {
        let slot = &self.slots[(self.next + self.slots.len() - 1) % self.slots.len()];
        &slot.0[..slot.1]
    }
}

/// The stack under test with its connections.
struct Bench {
    stack: Stack,
    memory: Memory,
    ring: Ring,
    now: Nanos,
    ids: Vec<TcpId>,
    peers: Vec<Peer>,
    order: Vec<usize>,
    rng: Rng,
    message: Buf,
    spare: Vec<BufMut>,
}

impl Bench {
    fn new(connections: usize) -> Result<Bench, String> {
        let mut config = Config::new(OURS, [1, 2, 3, 4]);
        config.addresses.push(Cidr::new(OUR_IP, 24));
        let memory = Memory::new(MemoryConfig::default()).map_err(|e| e.to_string())?;
        let now = Nanos::secs(1);
        let mut stack = Stack::new(&config, memory.clone(), now);
        let mut ring = Ring { slots: vec![([0; 128], 0, None); 512], next: 0 };
        stack.set_neighbour(IpAddr::V4(THEIR_IP), THEIRS, now, &mut ring);
        let listener = stack.tcp_listen((OUR_IP, PORT).into(), 128).map_err(|e| e.to_string())?;
        let message = memory.copy_from(&[7; MESSAGE]).map_err(|e| e.to_string())?;
        let mut bench = Bench {
            stack,
            memory,
            ring,
            now,
            ids: Vec::new(),
            peers: (0..connections).map(Peer::new).collect(),
            order: (0..connections).collect(),
            rng: Rng::new(9),
            message,
            spare: Vec::new(),
        };
        for n in 0..connections {
            for flags in [flag::SYN, flag::ACK] {
                let frame = bench.frame(n, flags, &[])?;
                bench.stack.ingest(frame, Received::default(), bench.now, &mut bench.ring);
                if flags == flag::SYN {
                    let heard = bench.ring.last().to_vec();
                    bench.peers[n].hear(&heard);
                }
            }
            let (id, _) = bench
                .stack
                .tcp_accept(listener)
                .map_err(|e| e.to_string())?
                .ok_or("a connection was not established")?;
            bench.stack.tcp_set(id, Options::NoDelay(true), bench.now, &mut bench.ring).map_err(|e| e.to_string())?;
            bench.ids.push(id);
        }
        while bench.stack.next_event().is_some() {}
        Ok(bench)
    }

    fn frame(&mut self, n: usize, flags: u8, payload: &[u8]) -> Result<Buf, String> {
        let mut buf = match self.spare.pop() {
            Some(buf) => buf,
            None => self.memory.alloc_frame(FRAME).map_err(|e| e.to_string())?,
        };
        let len = self.peers[n].segment(flags, payload, &mut buf);
        let mut frame = buf.freeze();
        frame.trim_back(frame.len() - len);
        Ok(frame)
    }

    /// The connections of the next batch: all of one, or as many of many in random order.
    fn pick(&mut self) -> Vec<usize> {
        let n = self.order.len() as u64;
        (0..BATCH).map(|_| self.order[self.rng.below(n) as usize]).collect()
    }

    /// Receives and pushes batches; returns nanoseconds a segment in and a push out.
    fn run(&mut self, batches: usize) -> (f64, f64) {
        let (mut taken, mut pushed) = (0.0, 0.0);
        let mut failed = 0;
        for _ in 0..batches {
            self.now += Nanos::micros(100);
            self.stack.poll(self.now, &mut self.ring);
            while self.stack.next_event().is_some() {}
            let picked = self.pick();
            for &n in &picked {
                self.peers[n].clock = self.now.as_millis() as u32;
            }
            let mut frames = Vec::with_capacity(BATCH);
            for &n in &picked {
                self.peers[n].advance();
                match self.frame(n, flag::ACK | flag::PSH, &[5; MESSAGE]) {
                    Ok(frame) => frames.push(frame),
                    Err(_) => failed += 1,
                }
            }
            let start = Instant::now();
            for frame in frames {
                // The frame goes to the stack; another takes its place in the receive ring.
                if let Ok(refill) = self.memory.alloc_frame(FRAME) {
                    self.spare.push(refill);
                }
                self.stack.ingest(frame, Received::default(), self.now, &mut self.ring);
                while let Some(event) = self.stack.next_event() {
                    if let Event::Tcp(id, ready) = event
                        && ready.readable()
                    {
                        match self.stack.tcp_pop(id, usize::MAX, self.now, &mut self.ring) {
                            Ok(Some(data)) => {
                                std::hint::black_box(&data);
                            }
                            _ => failed += 1,
                        }
                    }
                }
            }
            taken += start.elapsed().as_nanos() as f64;
            let start = Instant::now();
            for &n in &picked {
                let message = Sga::from(self.message.clone());
                if self.stack.tcp_push(self.ids[n], message, self.now, &mut self.ring).is_err() {
                    failed += 1;
                }
            }
            pushed += start.elapsed().as_nanos() as f64;
            for (i, &n) in picked.iter().enumerate() {
                let slot = (self.ring.next + self.ring.slots.len() - BATCH + i) % self.ring.slots.len();
                let (header, len, _) = &self.ring.slots[slot];
                self.peers[n].hear_header(&header[..*len]);
            }
            self.spare.truncate(BATCH);
        }
        assert_eq!(failed, 0, "every segment must arrive and every push be taken");
        let n = (batches * BATCH) as f64;
        (taken / n, pushed / n)
    }
}

/// Runs it.
pub fn bench(smoke: bool) -> Result<Report, String> {
    let (rounds, batches) = if smoke { (3, 4) } else { (31, 400) };
    let mut report = Report::new("ingest");
    for connections in [1, 1024] {
        let mut ours = Bench::new(connections)?;
        let mut smol = Smol::new(connections)?;
        let (mut ours_out, mut smol_out) = (Vec::new(), Vec::new());
        ours.run(batches);
        smol.run(batches.min(8));
        let smol_batches = if connections == 1 { batches } else { (batches / 20).max(2) };
        let samples = interleave(
            rounds,
            &mut [
                (
                    "towpath",
                    Box::new(|| {
                        let (taken, pushed) = ours.run(batches);
                        ours_out.push(pushed);
                        taken
                    }),
                ),
                (
                    "smoltcp",
                    Box::new(|| {
                        let (taken, pushed) = smol.run(smol_batches);
                        smol_out.push(pushed);
                        taken
                    }),
                ),
            ],
        );
        let noun = if connections == 1 { "connection" } else { "connections in random order" };
        let name = format!("segment to consumer, {connections} {noun}");
        report.push(Row::from_samples(&name, "ns", Better::Lower, &samples[0], &samples[1..]));
        let name = format!("push to frame, {connections} {noun}");
        let ours = Samples { name: "towpath".into(), values: ours_out };
        let smol = Samples { name: "smoltcp".into(), values: smol_out };
        report.push(Row::from_samples(&name, "ns", Better::Lower, &ours, &[smol]));
    }
    report.say(
        "64 B segments with timestamps, checksums made and verified in software, each acknowledging an earlier push; \
         a new receive frame is allocated for each. smoltcp copies payload into and out of its socket buffers.",
    );
    Ok(report)
}
