//! A hierarchical timing wheel. Each connection has one entry, at its earliest deadline or before it: a deadline that
//! moves later leaves the entry where it is, and its early firing puts it right. So restarting a retransmission timer
//! on every acknowledgement costs a comparison.
//!
//! Seven levels of 64 slots, the finest 1.024 us wide, reach 52 days ahead. Insertion and removal are constant time.

use crate::time::Nanos;

const LEVELS: usize = 7;
const SLOTS: usize = 64;
const SHIFT: u32 = 10;
const NONE: u32 = u32::MAX;
const UNLINKED: u16 = u16::MAX;

#[derive(Clone, Copy)]
struct Node {
    next: u32,
    prev: u32,
    /// In ticks.
    at: u64,
    slot: u16,
}

/// Timers named by small numbers, such as indices of connections.
pub struct Wheel {
    nodes: Vec<Node>,
    heads: Box<[u32; LEVELS * SLOTS]>,
    occupied: [u64; LEVELS],
    /// Ticks up to which everything has fired.
    now: u64,
}

impl Wheel {
    /// Bytes a timer costs.
    pub const BYTES_EACH: usize = size_of::<Node>();

    /// An empty wheel whose time starts at `now`.
    pub fn new(now: Nanos) -> Wheel {
        Wheel { nodes: Vec::new(), heads: Box::new([NONE; LEVELS * SLOTS]), occupied: [0; LEVELS], now: now.0 >> SHIFT }
    }

    /// Makes timer `id` fire at `at` (rounded up to a tick) unless it already fires earlier.
    #[inline]
    pub fn at_or_before(&mut self, id: u32, at: Nanos) {
        let ticks = (at.0 >> SHIFT) + 1;
        if let Some(node) = self.nodes.get(id as usize)
            && node.slot != UNLINKED
        {
            if node.at <= ticks {
                return;
            }
            self.remove(id);
        }
        if id as usize >= self.nodes.len() {
            self.nodes.resize(id as usize + 1, Node { next: NONE, prev: NONE, at: 0, slot: UNLINKED });
        }
        self.insert(id, ticks);
    }

    fn insert(&mut self, id: u32, ticks: u64) {
        let ticks =
            ticks.max(self.now + 1).min(self.now + (1 << (6 * LEVELS as u32)) - (1 << (6 * (LEVELS as u32 - 1))));
        let level = ((63 - ((ticks ^ self.now) | 1).leading_zeros()) / 6).min(LEVELS as u32 - 1) as usize;
        let slot = level * SLOTS + ((ticks >> (6 * level)) & 63) as usize;
        let head = self.heads[slot];
        self.nodes[id as usize] = Node { next: head, prev: NONE, at: ticks, slot: slot as u16 };
        if head != NONE {
            self.nodes[head as usize].prev = id;
        }
        self.heads[slot] = id;
        self.occupied[level] |= 1 << (slot % SLOTS);
    }

    /// Takes timer `id` out, if it is in.
    pub fn remove(&mut self, id: u32) {
        let Some(&node) = self.nodes.get(id as usize) else { return };
        if node.slot == UNLINKED {
            return;
        }
        if node.prev != NONE {
            self.nodes[node.prev as usize].next = node.next;
        } else {
            self.heads[usize::from(node.slot)] = node.next;
            if node.next == NONE {
                self.occupied[usize::from(node.slot) / SLOTS] &= !(1 << (usize::from(node.slot) % SLOTS));
            }
        }
        if node.next != NONE {
            self.nodes[node.next as usize].prev = node.prev;
        }
        self.nodes[id as usize].slot = UNLINKED;
    }

    /// The time by which [`Wheel::expire`] should next be called: never later than the earliest timer.
    pub fn next(&self) -> Option<Nanos> {
        let mut best: Option<u64> = None;
        for level in 0..LEVELS {
            let bits = self.occupied[level];
            if bits == 0 {
                continue;
            }
            let shift = 6 * level as u32;
            let here = (self.now >> shift) & 63;
            let ahead = u64::from(bits.rotate_right(here as u32).trailing_zeros());
            let start = ((self.now >> shift) + ahead) << shift;
            let start = start.max(self.now + 1);
            best = Some(best.map_or(start, |b| b.min(start)));
        }
        best.map(|ticks| Nanos(ticks << SHIFT))
    }

    /// Moves time to `now` and appends the timers that fired to `fired`.
    pub fn expire(&mut self, now: Nanos, fired: &mut Vec<u32>) {
        let target = now.0 >> SHIFT;
        while self.now < target {
            let Some(next) = self.next().map(|n| n.0 >> SHIFT).filter(|&n| n <= target) else {
                self.now = target;
                return;
            };
            self.now = next;
            // Slots of coarser levels that start here spread over finer ones; due ones fire.
            for level in (0..LEVELS).rev() {
                let slot = ((self.now >> (6 * level)) & 63) as usize;
                if self.occupied[level] & (1 << slot) == 0 {
                    continue;
                }
                self.occupied[level] &= !(1 << slot);
                let mut id = std::mem::replace(&mut self.heads[level * SLOTS + slot], NONE);
                while id != NONE {
                    let node = self.nodes[id as usize];
                    self.nodes[id as usize].slot = UNLINKED;
                    if node.at <= self.now {
                        fired.push(id);
                    } else {
                        self.insert(id, node.at);
                    }
                    id = node.next;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn wheel_beside_a_sorted_map_fires_the_same_timers_at_the_same_ticks() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut wheel = Wheel::new(Nanos(seed * 1_000_003));
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = Nanos(seed * 1_000_003);
            for _ in 0..3000 {
                let id = rng.below(50) as u32;
                match rng.below(4) {
                    0 => {
                        wheel.remove(id);
                        model.remove(&id);
                    }
                    1 | 2 => {
                        let bits = rng.below(48);
                        let at = now + Nanos(rng.below(1 << bits));
                        wheel.at_or_before(id, at);
                        let ticks = (at.0 >> SHIFT) + 1;
                        let old = model.entry(id).or_insert(ticks);
                        *old = (*old).min(ticks);
                    }
                    _ => {
                        let bits = rng.below(42);
                        let step = Nanos(rng.below(1 << bits));
                        if let Some(next) = wheel.next() {
                            let earliest = model.values().min().expect("the model holds what the wheel holds");
                            assert!(next.0 >> SHIFT <= *earliest, "seed {seed}");
                        } else {
                            assert!(model.is_empty(), "seed {seed}");
                        }
                        now += step;
                        let mut fired = Vec::new();
                        wheel.expire(now, &mut fired);
                        fired.sort_unstable();
                        let due: Vec<u32> =
                            model.iter().filter(|(_, at)| **at <= now.0 >> SHIFT).map(|(id, _)| *id).collect();
                        assert_eq!(fired, due, "seed {seed}");
                        for id in due {
                            model.remove(&id);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn wheel_next_reaches_a_far_timer_in_few_steps() {
        let mut wheel = Wheel::new(Nanos::ZERO);
        wheel.at_or_before(0, Nanos::secs(7200));
        let (mut fired, mut steps) = (Vec::new(), 0);
        while fired.is_empty() {
            let next = wheel.next().expect("a timer waits");
            wheel.expire(next, &mut fired);
            steps += 1;
            assert!(steps <= LEVELS + 1);
        }
    }
}
