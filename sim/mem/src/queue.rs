//! The calendar queue: events in the order of (tick, sequence), so that equal ticks keep the order in which they were
//! scheduled and a run is a function of its inputs. Near events live in a wheel of sorted lists over one slab of
//! nodes; far ones (refresh) in a heap. Nothing is allocated once the slab has grown to the peak of a run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Simulated time in picoseconds.
pub type Tick = u64;

const SHIFT: u32 = 8; // a bucket spans 256 ps, about one cycle at 4 GHz
const BUCKETS: usize = 2048; // the wheel spans 524 ns, beyond every latency but refresh
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node<E> {
    tick: Tick,
    seq: u64,
    next: u32,
    event: E,
}

/// Events ordered by (tick, sequence).
pub struct Calendar<E> {
    nodes: Vec<Node<E>>,
    free: u32,
    heads: Vec<u32>,
    tails: Vec<u32>,
    bits: Vec<u64>,
    far: BinaryHeap<Reverse<(Tick, u64, u32)>>,
    near: usize,
    current: u64,
    seq: u64,
}

impl<E: Copy> Default for Calendar<E> {
    fn default() -> Self {
        Calendar::new()
    }
}

impl<E: Copy> Calendar<E> {
    /// An empty queue at tick 0.
    pub fn new() -> Calendar<E> {
        Calendar {
            nodes: Vec::with_capacity(1024),
            free: NIL,
            heads: vec![NIL; BUCKETS],
            tails: vec![NIL; BUCKETS],
            bits: vec![0; BUCKETS / 64],
            far: BinaryHeap::with_capacity(64),
            near: 0,
            current: 0,
            seq: 0,
        }
    }

    /// Schedules `event`; `tick` may not lie before the last popped event.
    pub fn push(&mut self, tick: Tick, event: E) {
        let slot = tick >> SHIFT;
        assert!(slot >= self.current, "an event was scheduled into the past");
        self.seq += 1;
        let node = Node { tick, seq: self.seq, next: NIL, event };
        let index = if self.free != NIL {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        } else {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        };
        if slot - self.current >= BUCKETS as u64 {
            self.far.push(Reverse((tick, self.seq, index)));
            return;
        }
        self.near += 1;
        let b = slot as usize % BUCKETS;
        self.bits[b / 64] |= 1 << (b % 64);
        if self.heads[b] == NIL {
            self.heads[b] = index;
            self.tails[b] = index;
        } else if self.nodes[self.tails[b] as usize].tick <= tick {
            self.nodes[self.tails[b] as usize].next = index;
            self.tails[b] = index;
        } else if self.nodes[self.heads[b] as usize].tick > tick {
            self.nodes[index as usize].next = self.heads[b];
            self.heads[b] = index;
        } else {
            let mut at = self.heads[b];
            while self.nodes[self.nodes[at as usize].next as usize].tick <= tick {
                at = self.nodes[at as usize].next;
            }
            self.nodes[index as usize].next = self.nodes[at as usize].next;
            self.nodes[at as usize].next = index;
        }
    }

    fn first_bucket(&self) -> Option<usize> {
        if self.near == 0 {
            return None;
        }
        let start = self.current as usize % BUCKETS;
        let words = BUCKETS / 64;
        let first = self.bits[start / 64] & (!0 << (start % 64));
        if first != 0 {
            return Some(start / 64 * 64 + first.trailing_zeros() as usize);
        }
        (1..=words).find_map(|k| {
            let w = (start / 64 + k) % words;
            (self.bits[w] != 0).then(|| w * 64 + self.bits[w].trailing_zeros() as usize)
        })
    }

    /// The tick of the earliest event.
    pub fn next_tick(&self) -> Option<Tick> {
        let near = self.first_bucket().map(|b| self.nodes[self.heads[b] as usize].tick);
        let far = self.far.peek().map(|Reverse((tick, ..))| *tick);
        match (near, far) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Takes the earliest event that is due at or before `until`.
    pub fn pop_until(&mut self, until: Tick) -> Option<(Tick, E)> {
        let bucket = self.first_bucket();
        let near = bucket.map(|b| {
            let node = &self.nodes[self.heads[b] as usize];
            (node.tick, node.seq)
        });
        let far = self.far.peek().map(|Reverse((tick, seq, _))| (*tick, *seq));
        let take_far = match (near, far) {
            (None, None) => return None,
            (Some(n), Some(f)) => f < n,
            (None, Some(_)) => true,
            (Some(_), None) => false,
        };
        let index = if take_far {
            if far?.0 > until {
                return None;
            }
            self.far.pop()?.0.2
        } else {
            if near?.0 > until {
                return None;
            }
            let b = bucket?;
            let index = self.heads[b];
            self.heads[b] = self.nodes[index as usize].next;
            if self.heads[b] == NIL {
                self.bits[b / 64] &= !(1 << (b % 64));
            }
            self.near -= 1;
            index
        };
        let node = self.nodes[index as usize];
        self.nodes[index as usize].next = self.free;
        self.free = index;
        self.current = node.tick >> SHIFT;
        Some((node.tick, node.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_random_pushes_pop_in_tick_and_sequence_order() {
        let mut queue = Calendar::new();
        let mut model: Vec<(Tick, u32)> = Vec::new();
        let mut x = 12345u64;
        let mut now = 0;
        for n in 0..20_000u32 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let delay = if x >> 60 == 0 { (x >> 20) % 9_000_000 } else { (x >> 33) % 3000 };
            queue.push(now + delay, n);
            model.push((now + delay, n));
            if x >> 62 != 0 {
                let (k, _) = model.iter().enumerate().min_by_key(|(_, e)| **e).expect("not empty");
                let want = model.remove(k);
                assert_eq!(queue.next_tick(), Some(want.0));
                assert_eq!(queue.pop_until(u64::MAX), Some(want));
                now = want.0;
            }
        }
        assert_eq!(queue.pop_until(now.saturating_sub(1)), None);
    }
}
