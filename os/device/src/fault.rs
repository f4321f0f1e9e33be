//! `fault`: a wrapper around any device that loses, delays, reorders, duplicates, corrupts, truncates and throttles
//! frames in both directions, by a seed: the same seed, frames and times give the same faults. It offers no offloads, so
//! that the checksums which must find the damage are finished before it is done.

use crate::{Error, LinkInfo, Offloads, PacketDevice, RxChecksum, RxPacket, Stats, TxPacket};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use towpath_cbuf::{Memory, Sga};

/// What happens to frames; each probability is in parts per million, each time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultConfig {
    /// Where the chances start from.
    pub seed: u64,
    /// Lost.
    pub lose_ppm: u32,
    /// Delivered twice.
    pub duplicate_ppm: u32,
    /// One bit flipped.
    pub corrupt_ppm: u32,
    /// Cut short at a random length.
    pub truncate_ppm: u32,
    /// Held back by `reorder_ns`, so that later frames overtake it.
    pub reorder_ppm: u32,
    /// How long a reordered frame is held back.
    pub reorder_ns: u64,
    /// Every frame's delay.
    pub delay_ns: u64,
    /// Up to this much more delay, evenly spread; frames keep their order.
    pub jitter_ns: u64,
    /// Bits a second in each direction; 0 means no limit.
    pub rate_bps: u64,
    /// Frames that wait for the rate before further ones are lost; 0 means 1000.
    pub queue: usize,
}

/// Counts of what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Frames lost by chance or for a full queue.
    pub lost: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames cut short.
    pub truncated: u64,
    /// Frames held back.
    pub reordered: u64,
}

/// A small generator (splitmix64) so that faults depend on nothing but the seed.
#[derive(Clone, Debug)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }
}

/// One direction: frames under way, each with the time it arrives.
#[derive(Debug)]
struct Lane<T> {
    chance: Chance,
    /// Ordered by time; equal times keep the order of arrival.
    under_way: VecDeque<(u64, T)>,
    /// When the last frame has left a throttled link, and when the last ordered one arrives.
    busy_until: u64,
    last_due: u64,
    counts: FaultCounts,
}

/// What a lane does to a frame.
trait Frame: Sized {
    fn len(&self) -> usize;
    fn twin(&self) -> Self;
    /// Replaces the bytes by a changed copy; without memory the frame stays as it is.
    fn rewrite(&mut self, memory: &Memory, change: impl FnOnce(&mut Vec<u8>));
}

fn rewritten(memory: &Memory, frame: &Sga, change: impl FnOnce(&mut Vec<u8>)) -> Option<Sga> {
    let mut bytes = vec![0; frame.len()];
    frame.copy_to_slice(&mut bytes);
    change(&mut bytes);
    memory.copy_from(&bytes).ok().map(Sga::from)
}

/// Finishes the ones' complement checksum (RFC 1071) from `start` on, into the field at `start + offset`.
fn finish(bytes: &mut [u8], start: usize, offset: usize) {
    let Some(covered) = bytes.get(start..).filter(|covered| offset + 2 <= covered.len()) else { return };
    let words =
        covered.chunks(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // A UDP checksum of zero would mean that there is none; its other form means the same to TCP.
    let sum = if sum == 0xffff { 0xffff } else { !(sum as u16) };
    bytes[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
}

impl Frame for RxPacket {
    fn len(&self) -> usize {
        self.frame.len()
    }

    fn twin(&self) -> RxPacket {
        RxPacket { frame: self.frame.clone(), checksum: self.checksum, gso_size: self.gso_size }
    }

    fn rewrite(&mut self, memory: &Memory, change: impl FnOnce(&mut Vec<u8>)) {
        // Nobody vouches for a damaged frame: its checksum is finished first, to be verified by the stack.
        let checksum = self.checksum;
        let damage = |bytes: &mut Vec<u8>| {
            if let RxChecksum::Partial { start, offset } = checksum {
                finish(bytes, usize::from(start), usize::from(offset));
            }
            change(bytes);
        };
        if let Some(frame) = rewritten(memory, &self.frame, damage) {
            self.frame = frame;
            self.checksum = RxChecksum::Unknown;
        }
    }
}

impl Frame for TxPacket {
    fn len(&self) -> usize {
        self.frame.len()
    }

    fn twin(&self) -> TxPacket {
        TxPacket { frame: self.frame.clone(), offload: self.offload }
    }

    fn rewrite(&mut self, memory: &Memory, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(frame) = rewritten(memory, &self.frame, change) {
            self.frame = frame;
        }
    }
}

impl<T: Frame> Lane<T> {
    fn new(seed: u64) -> Lane<T> {
        Lane {
            chance: Chance(seed),
            under_way: VecDeque::new(),
            busy_until: 0,
            last_due: 0,
            counts: FaultCounts::default(),
        }
    }

    /// Takes a frame in at the time `now`.
    fn enter(&mut self, mut frame: T, now: u64, config: &FaultConfig, memory: &Memory) {
        let limit = if config.queue == 0 { 1000 } else { config.queue };
        let full = config.rate_bps > 0 && self.under_way.len() >= limit;
        if full || self.chance.happens(config.lose_ppm) {
            self.counts.lost += 1;
            return;
        }
        if self.chance.happens(config.corrupt_ppm) && frame.len() > 0 {
            let bit = self.chance.below(frame.len() as u64 * 8);
            frame.rewrite(memory, |bytes| bytes[(bit / 8) as usize] ^= 1 << (bit % 8));
            self.counts.corrupted += 1;
        }
        if self.chance.happens(config.truncate_ppm) && frame.len() > 1 {
            let len = 1 + self.chance.below(frame.len() as u64 - 1);
            frame.rewrite(memory, |bytes| bytes.truncate(len as usize));
            self.counts.truncated += 1;
        }
        let twin = self.chance.happens(config.duplicate_ppm).then(|| frame.twin());
        self.place(frame, now, config);
        if let Some(twin) = twin {
            self.counts.duplicated += 1;
            self.place(twin, now, config);
        }
    }

    fn place(&mut self, frame: T, now: u64, config: &FaultConfig) {
        let sending = (frame.len() as u64 * 8_000_000_000).checked_div(config.rate_bps).unwrap_or(0);
        self.busy_until = self.busy_until.max(now) + sending;
        let jitter = if config.jitter_ns > 0 { self.chance.below(config.jitter_ns) } else { 0 };
        let mut due = self.busy_until.saturating_add(config.delay_ns).saturating_add(jitter);
        if self.chance.happens(config.reorder_ppm) {
            self.counts.reordered += 1;
            due = due.saturating_add(config.reorder_ns);
        } else {
            due = due.max(self.last_due);
            self.last_due = due;
        }
        let at = self.under_way.partition_point(|(other, _)| *other <= due);
        self.under_way.insert(at, (due, frame));
    }

    fn leave(&mut self, now: u64) -> Option<T> {
        if self.under_way.front()?.0 > now {
            return None;
        }
        self.under_way.pop_front().map(|(_, frame)| frame)
    }

    fn next_due(&self) -> Option<u64> {
        self.under_way.front().map(|(due, _)| *due)
    }
}

/// A device with faults in front of it.
pub struct FaultDevice<D> {
    inner: D,
    link: LinkInfo,
    config: FaultConfig,
    memory: Memory,
    now: u64,
    rx: Lane<RxPacket>,
    tx: Lane<TxPacket>,
    arrived: Vec<RxPacket>,
    ready: VecDeque<TxPacket>,
}

impl<D: std::fmt::Debug> std::fmt::Debug for FaultDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultDevice").field("inner", &self.inner).field("config", &self.config).finish_non_exhaustive()
    }
}

impl<D: PacketDevice> FaultDevice<D> {
    /// Puts faults before `inner`; `memory` holds the changed copies of damaged frames.
    pub fn new(inner: D, memory: &Memory, config: FaultConfig) -> FaultDevice<D> {
        let offloads = Offloads { rx_checksum: inner.link().offloads.rx_checksum, ..Offloads::default() };
        FaultDevice {
            link: LinkInfo { offloads, ..inner.link().clone() },
            inner,
            config,
            memory: memory.clone(),
            now: 0,
            rx: Lane::new(config.seed),
            tx: Lane::new(config.seed ^ 0x5478_5478_5478_5478),
            arrived: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// What was done to received and to sent frames.
    pub fn counts(&self) -> (FaultCounts, FaultCounts) {
        (self.rx.counts, self.tx.counts)
    }

    /// The device behind the faults.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn send_ready(&mut self) -> Result<(), Error> {
        while let Some(packet) = self.tx.leave(self.now) {
            self.ready.push_back(packet);
        }
        if !self.ready.is_empty() {
            self.inner.transmit(&mut self.ready)?;
        }
        Ok(())
    }
}

impl<D: PacketDevice> PacketDevice for FaultDevice<D> {
    fn link(&self) -> &LinkInfo {
        &self.link
    }

    fn receive(&mut self, out: &mut Vec<RxPacket>, max: usize) -> Result<usize, Error> {
        self.send_ready()?;
        self.inner.receive(&mut self.arrived, max)?;
        for frame in self.arrived.drain(..) {
            self.rx.enter(frame, self.now, &self.config, &self.memory);
        }
        let mut count = 0;
        while count < max {
            let Some(frame) = self.rx.leave(self.now) else { break };
            out.push(frame);
            count += 1;
        }
        Ok(count)
    }

    fn transmit(&mut self, packets: &mut VecDeque<TxPacket>) -> Result<usize, Error> {
        let taken = packets.len();
        for packet in packets.drain(..) {
            self.tx.enter(packet, self.now, &self.config, &self.memory);
        }
        self.send_ready()?;
        Ok(taken)
    }

    fn reclaim(&mut self) {
        self.inner.reclaim();
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.tx.under_way.len() + self.ready.len()
    }

    fn tick(&mut self, now_ns: u64) {
        self.now = self.now.max(now_ns);
        self.inner.tick(now_ns);
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        let blocked = (!self.ready.is_empty()).then_some(self.now + 1_000_000);
        [self.rx.next_due(), self.tx.next_due(), blocked, self.inner.next_deadline_ns()].into_iter().flatten().min()
    }

    fn wait_fd(&self) -> RawFd {
        self.inner.wait_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        let due = self.next_deadline_ns().is_some_and(|due| due <= self.now);
        self.inner.prepare_sleep() && !due
    }

    fn wake(&mut self) {
        self.inner.wake();
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_cbuf::{Buf, MemoryConfig};

    fn lane(seed: u64, config: &FaultConfig) -> (Vec<(u64, Vec<u8>)>, FaultCounts) {
        let memory = Memory::new(MemoryConfig::default()).unwrap();
        let mut lane = Lane::new(seed);
        let mut out = Vec::new();
        for n in 0..2000_u64 {
            let mut bytes = vec![0; 100];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            let frame = memory.copy_from(&bytes).unwrap();
            lane.enter(RxPacket::plain(frame), n * 1000, config, &memory);
            while let Some(packet) = lane.leave(n * 1000) {
                let mut flat = vec![0; packet.frame.len()];
                packet.frame.copy_to_slice(&mut flat);
                out.push((n * 1000, flat));
            }
        }
        (out, lane.counts)
    }

    #[test]
    fn faults_by_one_seed_repeat_and_by_another_do_not() {
        let config = FaultConfig {
            lose_ppm: 50_000,
            duplicate_ppm: 50_000,
            corrupt_ppm: 50_000,
            truncate_ppm: 50_000,
            reorder_ppm: 50_000,
            reorder_ns: 5000,
            jitter_ns: 3000,
            ..FaultConfig::default()
        };
        assert_eq!(lane(1, &config), lane(1, &config));
        assert_ne!(lane(1, &config).0, lane(2, &config).0);
        let counts = lane(1, &config).1;
        for count in [counts.lost, counts.duplicated, counts.corrupted, counts.truncated, counts.reordered] {
            assert!((60..160).contains(&count), "about one in twenty of 2000: {counts:?}");
        }
    }

    #[test]
    fn no_faults_change_nothing_and_a_delay_keeps_the_order() {
        let (plain, counts) = lane(1, &FaultConfig::default());
        assert_eq!((plain.len(), counts), (2000, FaultCounts::default()));
        let (late, _) = lane(1, &FaultConfig { delay_ns: 10_000, jitter_ns: 7000, ..FaultConfig::default() });
        let numbers: Vec<u64> = late.iter().map(|(_, b)| u64::from_le_bytes(b[..8].try_into().unwrap())).collect();
        assert!(numbers.is_sorted());
        assert!(late.iter().zip(&numbers).all(|((at, _), n)| *at >= n * 1000 + 10_000));
    }

    #[test]
    fn rate_paces_frames_and_overflow_is_lost() {
        // 100 bytes a microsecond come, 10 leave: a queue of 20 fills and loses most.
        let config = FaultConfig { rate_bps: 80_000_000, queue: 20, ..FaultConfig::default() };
        let (out, counts) = lane(1, &config);
        assert!((190..=220).contains(&out.len()), "{} frames in 2 ms", out.len());
        assert!(counts.lost > 1700);
    }

    #[test]
    fn damaged_frame_with_unfinished_checksum_is_finished_first() {
        let memory = Memory::new(MemoryConfig::default()).unwrap();
        let mut packet = RxPacket::plain(Buf::from_static(&[0, 0, 1, 2, 3, 4, 0, 0]));
        packet.checksum = RxChecksum::Partial { start: 2, offset: 4 };
        packet.rewrite(&memory, |_| {});
        assert_eq!(packet.checksum, RxChecksum::Unknown);
        assert_eq!(packet.frame.segments()[0][..], [0, 0, 1, 2, 3, 4, 0xfb, 0xf9]);
    }
}
