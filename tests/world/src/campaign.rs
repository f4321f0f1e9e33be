//! Frames into a stack in every state: a conversation between two stacks is held, and on the way every so many frames
//! are mutated, cut, repeated, swapped, replayed from earlier, or made up. Nothing may panic, loop, or grow without
//! bound. A campaign is determined by its seed.

use std::net::SocketAddr;
use towpath_cbuf::{Buf, Memory, MemoryConfig, Sga};
use towpath_inet::random::Rng;
use towpath_inet::wire::checksum::Checksum;
use towpath_inet::{
    Cidr, Config, Event, Finish, KeepAlive, ListenerId, Mac, Nanos, Options, Received, Sink, Stack, TcpId,
};

/// Frames a stack may have outstanding after one input: more is an amplification.
const ANSWERS_MAX: usize = 4096;
/// Buffers either stack may hold, whatever arrives.
const BUFFERS_MAX: usize = 200_000;

#[derive(Default)]
struct Wire(Vec<Vec<u8>>);

impl Sink for Wire {
    fn transmit(&mut self, header: &[u8], payload: &[Buf], _finish: Finish) {
        let mut frame = header.to_vec();
        payload.iter().for_each(|piece| frame.extend_from_slice(piece));
        self.0.push(frame);
    }
}

struct Side {
    stack: Stack,
    memory: Memory,
    wire: Wire,
    listener: ListenerId,
    open: Vec<TcpId>,
}

impl Side {
    fn new(n: u8, seed: u64, now: Nanos) -> Side {
        let mut config = Config::new(Mac([2, 0, 0, 0, 0, n]), [seed, u64::from(n), 3, 4]);
        config.addresses.push(Cidr::new([10, 0, 0, n], 24));
        config.addresses.push(Cidr::new(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)), 64));
        config.tcp.ecn = seed & 1 == 1;
        config.tcp.sack = seed & 2 == 0;
        config.tcp.timestamps = seed & 4 == 0;
        config.tcp.connections_max = 256;
        config.tcp.receive_buffer = (64 << 10, 256 << 10);
        config.tcp.time_wait = Nanos::secs(2);
        let memory = Memory::new(MemoryConfig::default()).expect("memory");
        let mut stack = Stack::new(&config, memory.clone(), now);
        let listener = stack.tcp_listen(SocketAddr::new([0, 0, 0, 0].into(), 7), 8).expect("a free port");
        stack.udp_bind(SocketAddr::new([0, 0, 0, 0].into(), 9)).expect("a free port");
        Side { stack, memory, wire: Wire::default(), listener, open: Vec::new() }
    }

    /// A program without manners: pushes, pops, closes and forgets at random.
    fn act(&mut self, peer: u8, rng: &mut Rng, now: Nanos) {
        while let Some(event) = self.stack.next_event() {
            if let Event::Udp(id) = event {
                while let Ok(Some(_)) = self.stack.udp_receive(id) {}
            }
        }
        while let Ok(Some((id, _))) = self.stack.tcp_accept(self.listener) {
            self.open.push(id);
        }
        if self.open.len() < 6 && rng.chance(0.1) {
            let remote = match rng.below(3) {
                0 => SocketAddr::new(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(peer)).into(), 7),
                1 => SocketAddr::new([10, 0, 0, peer].into(), 8),
                _ => SocketAddr::new([10, 0, 0, peer].into(), 7),
            };
            self.open.extend(self.stack.tcp_connect(remote, None, now, &mut self.wire).ok());
        }
        if self.open.is_empty() {
            return;
        }
        let at = rng.below(self.open.len() as u64) as usize;
        let id = self.open[at];
        match rng.below(40) {
            0..=14 => {
                let waits = self.stack.tcp_info(id).is_ok_and(|i| i.unsent > 1 << 18);
                if !waits && let Ok(bytes) = self.memory.alloc(1 + rng.below(6000) as usize) {
                    let _ = self.stack.tcp_push(id, Sga::from(bytes.freeze()), now, &mut self.wire);
                }
            }
            15..=32 => {
                let popped = self.stack.tcp_pop(id, 1 + rng.below(9000) as usize, now, &mut self.wire);
                if popped.is_err() {
                    let _ = self.stack.tcp_close(id, now, &mut self.wire);
                    self.open.swap_remove(at);
                }
            }
            33 => {
                let _ = self.stack.tcp_shutdown(id, now, &mut self.wire);
            }
            34 => {
                let _ = self.stack.tcp_close(id, now, &mut self.wire);
                self.open.swap_remove(at);
            }
            35 if rng.chance(0.3) => {
                let _ = self.stack.tcp_abort(id, now, &mut self.wire);
                self.open.swap_remove(at);
            }
            36 => {
                let keep = KeepAlive { idle: Nanos::secs(1), interval: Nanos::millis(200), count: 3 };
                let option = match rng.below(5) {
                    0 => Options::KeepAlive(Some(keep)),
                    1 => Options::UserTimeout(Some(Nanos::secs(3))),
                    2 => Options::Cork(rng.chance(0.3)),
                    3 => Options::ReceiveBuffer(rng.below(1 << 18) as u32),
                    _ => Options::NoDelay(true),
                };
                let _ = self.stack.tcp_set(id, option, now, &mut self.wire);
            }
            _ => {}
        }
    }
}

/// Puts the checksums of an IPv4 packet right again, so that a mutation reaches the state machine behind them.
fn repair(frame: &mut [u8]) {
    if frame.len() < 54 || frame[12..14] != [8, 0] || frame[14] != 0x45 {
        return;
    }
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]])).clamp(40, frame.len() - 14);
    frame[16..18].copy_from_slice(&(total as u16).to_be_bytes());
    frame[24..26].fill(0);
    let mut sum = Checksum::new();
    sum.add(&frame[14..34]);
    let ip = sum.finish().to_be_bytes();
    frame[24..26].copy_from_slice(&ip);
    if frame[23] != 6 {
        return;
    }
    frame[50..52].fill(0);
    let mut sum = Checksum::new();
    sum.add(&frame[26..34]);
    sum.add(&[0, 6]);
    sum.add(&((total - 20) as u16).to_be_bytes());
    sum.add(&frame[34..14 + total]);
    let tcp = sum.finish().to_be_bytes();
    frame[50..52].copy_from_slice(&tcp);
}

/// Changes a frame.
fn mutate(frame: &mut Vec<u8>, rng: &mut Rng) {
    let len = frame.len() as u64;
    match rng.below(8) {
        0 => frame.truncate(rng.below(len) as usize),
        1 => {
            let from = rng.below(len) as usize;
            frame[from] = rng.next_u64() as u8;
        }
        // Flags, sequence and acknowledgement numbers, window and options of TCP over IPv4.
        2 if len > 54 => frame[47] = rng.next_u64() as u8,
        3 if len > 54 => {
            let at = 38 + 4 * rng.below(2) as usize;
            let old = u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
            let by = (rng.next_u64() as u32) >> rng.below(32);
            frame[at..at + 4].copy_from_slice(&old.wrapping_add(by).wrapping_sub(by / 2).to_be_bytes());
        }
        4 if len > 54 => frame[48..50].copy_from_slice(&(rng.next_u64() as u16 >> rng.below(16)).to_be_bytes()),
        5 if len > 66 => {
            let at = 54 + rng.below(12) as usize;
            frame[at] = rng.next_u64() as u8;
        }
        6 => frame.extend((0..rng.below(64)).map(|_| 0xa5)),
        _ => {
            for _ in 0..1 + rng.below(8) {
                let at = rng.below(len) as usize;
                frame[at] ^= 1 << rng.below(8);
            }
        }
    }
    if rng.chance(0.9) {
        repair(frame);
    }
}

/// What a campaign saw.
#[derive(Debug, Default, Clone, Copy)]
pub struct Outcome {
    /// Frames ingested.
    pub frames: u64,
    /// Connections that were established.
    pub connections: u64,
    /// The most buffers either stack held.
    pub buffers_max: usize,
}

/// Runs a campaign of so many frames.
pub fn campaign(seed: u64, frames: u64) -> Outcome {
    let mut outcome = Outcome::default();
    let mut round = seed;
    while outcome.frames < frames {
        conversation(round, (frames - outcome.frames).min(20_000), &mut outcome);
        round = round.wrapping_add(1);
    }
    outcome
}

fn conversation(seed: u64, frames: u64, outcome: &mut Outcome) {
    let mut rng = Rng::new(seed);
    let mut now = Nanos::secs(1);
    let mut sides = [Side::new(1, seed, now), Side::new(2, seed, now)];
    let mut old: Vec<Vec<u8>> = Vec::new();
    let end = outcome.frames + frames;
    while outcome.frames < end {
        let quiet = rng.chance(0.02);
        now += if quiet { Nanos::millis(rng.below(3000)) } else { Nanos::micros(rng.below(500)) };
        for from in 0..2 {
            let peer = 2 - from as u8;
            let side = &mut sides[from];
            side.act(peer, &mut rng, now);
            side.stack.poll(now, &mut side.wire);
            let sent = std::mem::take(&mut side.wire.0);
            assert!(sent.len() < ANSWERS_MAX, "seed {seed}: {} frames at once", sent.len());
            let to = &mut sides[1 - from];
            // Something must come in even when nobody has anything to say.
            let made_up =
                (sent.is_empty() && !old.is_empty()).then(|| old[rng.below(old.len() as u64) as usize].clone());
            for mut frame in sent.into_iter().chain(made_up) {
                if old.len() < 256 {
                    old.push(frame.clone());
                } else if rng.chance(0.1) {
                    let at = rng.below(256) as usize;
                    old[at] = frame.clone();
                }
                match rng.below(20) {
                    0 => mutate(&mut frame, &mut rng),
                    1 => continue,
                    2 => frame = old[rng.below(old.len() as u64) as usize].clone(),
                    _ => {}
                }
                if frame.is_empty() {
                    continue;
                }
                let buf = to.memory.copy_from(&frame).expect("memory");
                to.stack.ingest(buf, Received::default(), now, &mut to.wire);
                outcome.frames += 1;
            }
            let held = to.memory.stats().buffers_in_use;
            outcome.buffers_max = outcome.buffers_max.max(held);
            assert!(held < BUFFERS_MAX, "seed {seed}: {held} buffers held");
        }
    }
    outcome.connections += sides[0].stack.stats().connections;
    // Everybody leaves; in the end nothing is held.
    for side in &mut sides {
        for id in std::mem::take(&mut side.open) {
            let _ = side.stack.tcp_abort(id, now, &mut side.wire);
        }
        while let Ok(Some((id, _))) = side.stack.tcp_accept(side.listener) {
            let _ = side.stack.tcp_abort(id, now, &mut side.wire);
        }
        side.stack.tcp_close_listener(side.listener, now, &mut side.wire).expect("it listens");
        for _ in 0..400 {
            now += Nanos::secs(10);
            side.stack.poll(now, &mut side.wire);
        }
        while side.stack.next_event().is_some() {}
        side.wire.0.clear();
        assert_eq!(side.stack.tcp_census().0, 0, "seed {seed}: a connection is left");
    }
}
