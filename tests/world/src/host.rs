//! A host: a stack, its device and its programs.

use crate::Node;
use towpath_cbuf::{Buf, Memory, MemoryConfig};
use towpath_inet::wire::checksum::{Checksum, checksum};
use towpath_inet::{Cidr, Config, Event, Finish, Mac, Nanos, Received, Sink, Stack};

/// The host's device: it finishes what the stack left to it and keeps frames until the world takes them.
#[derive(Default)]
pub struct Wire {
    /// Frames sent.
    pub frames: Vec<Vec<u8>>,
    room: Option<usize>,
}

impl Sink for Wire {
    fn transmit(&mut self, header: &[u8], payload: &[Buf], finish: Finish) {
        let mut frame = header.to_vec();
        payload.iter().for_each(|piece| frame.extend_from_slice(piece));
        match finish.segment {
            Some(size) => cut(&frame, header.len(), usize::from(size), &mut self.frames),
            None => {
                if let Some((start, field)) = finish.checksum {
                    complete(&mut frame, usize::from(start), usize::from(field));
                }
                self.frames.push(frame);
            }
        }
        if let Some(room) = &mut self.room {
            *room = room.saturating_sub(1);
        }
    }

    fn has_room(&self) -> bool {
        self.room != Some(0)
    }
}

/// Finishes a checksum whose field holds the pseudo-header's sum.
fn complete(frame: &mut [u8], start: usize, field: usize) {
    let mut sum = Checksum::new();
    sum.add(&frame[start..]);
    let sum = sum.finish().to_be_bytes();
    frame[field..field + 2].copy_from_slice(&sum);
}

/// Cuts a TCP packet into segments as a device does: lengths, sequence numbers, flags and checksums made anew.
fn cut(frame: &[u8], header: usize, size: usize, out: &mut Vec<Vec<u8>>) {
    let v4 = frame[12..14] == [8, 0];
    let (ip, tcp) = (14, if v4 { 34 } else { 54 });
    let seq = u32::from_be_bytes([frame[tcp + 4], frame[tcp + 5], frame[tcp + 6], frame[tcp + 7]]);
    let payload = &frame[header..];
    let pieces = payload.chunks(size).count();
    for (i, piece) in payload.chunks(size).enumerate() {
        let mut one = frame[..header].to_vec();
        one.extend_from_slice(piece);
        one[tcp + 4..tcp + 8].copy_from_slice(&seq.wrapping_add((i * size) as u32).to_be_bytes());
        if i + 1 < pieces {
            one[tcp + 13] &= !(1 | 8);
        }
        if i > 0 {
            one[tcp + 13] &= !128;
        }
        let transport = (one.len() - tcp) as u32;
        let address = |from: usize, n: usize| &frame[from..from + n];
        let mut sum = Checksum::new();
        if v4 {
            let total = (one.len() - ip) as u16;
            one[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
            one[ip + 10..ip + 12].fill(0);
            let ip_sum = checksum(&one[ip..ip + 20]).to_be_bytes();
            one[ip + 10..ip + 12].copy_from_slice(&ip_sum);
            sum.add(address(ip + 12, 8));
        } else {
            one[ip + 4..ip + 6].copy_from_slice(&(transport as u16).to_be_bytes());
            sum.add(address(ip + 8, 32));
        }
        sum.add(&[0, 6]);
        sum.add(&transport.to_be_bytes());
        one[tcp + 16..tcp + 18].fill(0);
        sum.add(&one[tcp..]);
        let sum = sum.finish().to_be_bytes();
        one[tcp + 16..tcp + 18].copy_from_slice(&sum);
        out.push(one);
    }
}

/// What a program can reach.
pub struct HostApi<'a> {
    /// The host's stack.
    pub stack: &'a mut Stack,
    /// Its device.
    pub wire: &'a mut Wire,
    /// Its memory.
    pub memory: &'a Memory,
    /// The time.
    pub now: Nanos,
}

/// A program: it acts on events and at times it asks for.
pub trait Program {
    /// Begins.
    fn start(&mut self, _host: &mut HostApi<'_>) {}
    /// Something happened on the host, to this program or another.
    fn event(&mut self, host: &mut HostApi<'_>, event: Event);
    /// When it wants to be woken.
    fn wake_at(&self) -> Option<Nanos> {
        None
    }
    /// It asked for this time.
    fn wake(&mut self, _host: &mut HostApi<'_>) {}
}

/// A host with Towpath's stack.
pub struct Host {
    /// The stack.
    pub stack: Stack,
    /// Buffers of the host.
    pub memory: Memory,
    /// The device.
    pub wire: Wire,
    mac: Mac,
    programs: Vec<Box<dyn Program>>,
    started: bool,
}

impl Host {
    /// A host with the usual settings: number `n` has 10.0.0.n and fd00::n.
    pub fn config(n: u8) -> Config {
        let mut config = Config::new(Mac([2, 0, 0, 0, 0, n]), [u64::from(n), 0x5eed, 3, 4]);
        config.addresses.push(Cidr::new([10, 0, 0, n], 24));
        let v6 = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n));
        config.addresses.push(Cidr::new(v6, 64));
        config
    }

    /// A host set up by `config`, with its programs.
    pub fn new(config: &Config, programs: Vec<Box<dyn Program>>) -> Host {
        let memory = Memory::new(MemoryConfig::default()).expect("a heap");
        let stack = Stack::new(config, memory.clone(), Nanos::secs(1));
        Host { stack, memory, wire: Wire::default(), mac: config.mac, programs, started: false }
    }

    fn each(&mut self, now: Nanos, mut f: impl FnMut(&mut dyn Program, &mut HostApi<'_>)) {
        let mut programs = std::mem::take(&mut self.programs);
        for program in &mut programs {
            let mut api = HostApi { stack: &mut self.stack, wire: &mut self.wire, memory: &self.memory, now };
            f(program.as_mut(), &mut api);
        }
        self.programs = programs;
    }

    /// Lets the programs act until nothing is left to act on.
    fn settle(&mut self, now: Nanos) {
        while let Some(event) = self.stack.next_event() {
            self.each(now, |program, api| program.event(api, event));
        }
    }
}

impl Node for Host {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn deliver(&mut self, frame: &[u8], now: Nanos) {
        let mut buf = self.memory.alloc_frame(frame.len()).expect("a frame");
        buf.copy_from_slice(frame);
        self.stack.ingest(buf.freeze(), Received::default(), now, &mut self.wire);
        self.settle(now);
    }

    fn poll_at(&self) -> Option<Nanos> {
        if !self.started {
            return Some(Nanos::ZERO);
        }
        self.stack.poll_at().into_iter().chain(self.programs.iter().filter_map(|p| p.wake_at())).min()
    }

    fn poll(&mut self, now: Nanos) {
        if !std::mem::replace(&mut self.started, true) {
            self.each(now, |program, api| program.start(api));
        }
        self.stack.poll(now, &mut self.wire);
        self.settle(now);
        self.each(now, |program, api| {
            if program.wake_at().is_some_and(|at| at <= now) {
                program.wake(api);
            }
        });
        self.settle(now);
    }

    fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wire.frames)
    }

    fn set_room(&mut self, room: usize) {
        self.wire.room = Some(room);
    }
}
