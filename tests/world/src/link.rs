//! One direction of a link.

use towpath_inet::Nanos;
use towpath_inet::random::Rng;

/// How a link treats frames.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bits a second; 0 is no limit.
    pub rate: u64,
    /// From end to end.
    pub delay: Nanos,
    /// Bytes that may wait; what does not fit is lost.
    pub queue: usize,
    /// Bytes waiting from which on capable packets are marked (RFC 3168) instead of waiting to be lost.
    pub mark_from: usize,
    /// Chance to lose a frame.
    pub loss: f64,
    /// Chance to hold a frame back by up to `reorder_by`.
    pub reorder: f64,
    /// How long at most.
    pub reorder_by: Nanos,
    /// Chance to deliver a frame twice.
    pub duplicate: f64,
    /// Chance to change one bit.
    pub corrupt: f64,
    /// Frames longer than this vanish without a word, link header not counted: a black hole.
    pub mtu: usize,
}

impl Link {
    /// A link without limits or faults and this delay.
    pub const fn delay(delay: Nanos) -> Link {
        Link {
            rate: 0,
            delay,
            queue: usize::MAX,
            mark_from: usize::MAX,
            loss: 0.0,
            reorder: 0.0,
            reorder_by: Nanos::ZERO,
            duplicate: 0.0,
            corrupt: 0.0,
            mtu: usize::MAX,
        }
    }

    /// A link of so many megabits a second, this delay, and a queue of so many bytes.
    pub const fn rate(megabits: u64, delay: Nanos, queue: usize) -> Link {
        Link { rate: megabits * 1_000_000, queue, ..Link::delay(delay) }
    }
}

/// A link in use.
pub struct Pipe {
    pub(crate) link: Link,
    /// When the last frame waiting will have been put on the wire.
    busy_until: Nanos,
    pub(crate) lost: u64,
}

impl Pipe {
    pub(crate) fn new(link: Link) -> Pipe {
        Pipe { link, busy_until: Nanos::ZERO, lost: 0 }
    }

    fn waiting(&self, now: Nanos) -> usize {
        let span = self.busy_until.since(now);
        (u128::from(span.0) * u128::from(self.link.rate) / 8_000_000_000) as usize
    }

    /// Frames the device before the link still takes.
    pub(crate) fn room(&self, now: Nanos) -> usize {
        if self.link.rate == 0 || self.link.queue == usize::MAX {
            return usize::MAX;
        }
        self.link.queue.saturating_sub(self.waiting(now)) / 1600
    }

    /// When there will be room again.
    pub(crate) fn free_at(&self, now: Nanos) -> Nanos {
        let half = self.link.queue / 2;
        let span = (half as u128 * 8_000_000_000 / u128::from(self.link.rate.max(1))) as u64;
        self.busy_until.since(Nanos(span)).max(now + Nanos(1000))
    }

    /// When, and how, a frame entering now comes out.
    pub(crate) fn pass(&mut self, mut frame: Vec<u8>, now: Nanos, rng: &mut Rng) -> Vec<(Nanos, Vec<u8>)> {
        let link = self.link;
        let waiting = self.waiting(now);
        if waiting.saturating_add(frame.len()) > link.queue || frame.len() > link.mtu.saturating_add(14) {
            self.lost += 1;
            return Vec::new();
        }
        if waiting > link.mark_from {
            mark(&mut frame);
        }
        let mut leave = now;
        if link.rate > 0 {
            let span = (frame.len() as u128 * 8_000_000_000 / u128::from(link.rate)) as u64;
            leave = self.busy_until.max(now) + Nanos(span);
            self.busy_until = leave;
        }
        if rng.chance(link.loss) {
            self.lost += 1;
            return Vec::new();
        }
        if rng.chance(link.corrupt) {
            // Past the hardware address, so that it still arrives and a checksum has to catch it.
            let bit = 96 + rng.below(frame.len() as u64 * 8 - 96) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        let mut at = leave + link.delay;
        if rng.chance(link.reorder) {
            at += Nanos(rng.below(link.reorder_by.0));
        }
        let mut out = Vec::with_capacity(1);
        if rng.chance(link.duplicate) {
            out.push((at + Nanos(rng.below(1_000_000)), frame.clone()));
        }
        out.push((at, frame));
        out
    }
}

/// Marks a capable IPv4 packet as having met congestion.
fn mark(frame: &mut [u8]) {
    if frame.len() > 34 && frame[12..14] == [8, 0] && frame[15] & 3 != 0 {
        frame[15] |= 3;
        frame[24..26].fill(0);
        let sum = towpath_inet::wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}
