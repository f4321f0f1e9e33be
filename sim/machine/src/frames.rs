//! Which physical frames a program gets. Placement is a parameter: it decides DRAM channels and banks, cache sets, and
//! how many entries a copy of many pages makes in a tracking table.

use crate::board::Placement;

/// A small deterministic generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A value below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    fn shuffle(&mut self, items: &mut [u64]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Bytes of a frame.
pub const FRAME: u64 = 4096;
/// Bytes of a large frame.
pub const LARGE: u64 = 2 << 20;
const PER_LARGE: u64 = LARGE / FRAME;
/// Large frames broken up at a time when scattering: small frames spread over this many of them.
const SPREAD: usize = 64;

/// Hands out physical frames and counts their users.
#[derive(Clone, Debug)]
pub struct Frames {
    placement: Placement,
    base: u64,
    /// Users of each frame.
    users: Vec<u32>,
    /// Whole large frames, the next one last.
    large: Vec<u64>,
    /// Single frames, the next one last.
    small: Vec<u64>,
    rng: Rng,
}

impl Frames {
    /// All of `size` bytes from `base`, both multiples of 2 MiB.
    pub fn new(base: u64, size: u64, placement: Placement, seed: u64) -> Frames {
        let mut rng = Rng(seed);
        let mut large: Vec<u64> = (0..size / LARGE).rev().map(|i| base + i * LARGE).collect();
        if placement == Placement::Scattered {
            rng.shuffle(&mut large);
        }
        Frames { placement, base, users: vec![0; (size / FRAME) as usize], large, small: Vec::new(), rng }
    }

    /// A frame with one user, contents as its last user left them; `None` if memory is used up.
    pub fn allocate(&mut self) -> Option<u64> {
        if self.small.is_empty() {
            self.refill();
        }
        let pa = self.small.pop()?;
        let index = self.index(pa);
        self.users[index] = 1;
        Some(pa)
    }

    /// A large frame whose every small frame has one user.
    pub fn allocate_large(&mut self) -> Option<u64> {
        let pa = self.large.pop()?;
        let first = self.index(pa);
        self.users[first..first + PER_LARGE as usize].fill(1);
        Some(pa)
    }

    fn refill(&mut self) {
        let take = if self.placement == Placement::Scattered { SPREAD.min(self.large.len()) } else { 1 };
        for _ in 0..take {
            if let Some(start) = self.large.pop() {
                self.small.extend((0..PER_LARGE).rev().map(|i| start + i * FRAME));
            }
        }
        if self.placement == Placement::Scattered {
            let mut small = std::mem::take(&mut self.small);
            self.rng.shuffle(&mut small);
            self.small = small;
        }
    }

    /// One user more.
    pub fn share(&mut self, pa: u64) {
        let index = self.index(pa);
        self.users[index] += 1;
    }

    /// One user less; the last one gives the frame back.
    pub fn release(&mut self, pa: u64) {
        let index = self.index(pa);
        assert!(self.users[index] > 0, "frame {pa:#x} released once too often");
        self.users[index] -= 1;
        if self.users[index] == 0 {
            self.small.push(pa);
        }
    }

    /// How many use a frame.
    pub fn users(&self, pa: u64) -> u32 {
        self.users[self.index(pa)]
    }

    /// Frames in use.
    pub fn used(&self) -> u64 {
        self.users.len() as u64 - self.small.len() as u64 - self.large.len() as u64 * PER_LARGE
    }

    /// Bytes in all.
    pub fn size(&self) -> u64 {
        self.users.len() as u64 * FRAME
    }

    fn index(&self, pa: u64) -> usize {
        ((pa - self.base) / FRAME) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn frames_of_either_placement_are_distinct_until_memory_is_used_up() {
        for placement in [Placement::Contiguous, Placement::Scattered] {
            let mut frames = Frames::new(0x8000_0000, 8 << 20, placement, 3);
            let mut seen = BTreeSet::new();
            while let Some(pa) = frames.allocate() {
                assert!(pa % FRAME == 0 && seen.insert(pa));
            }
            assert_eq!(seen.len(), 2048);
            frames.release(0x8000_0000);
            assert_eq!(frames.allocate(), Some(0x8000_0000));
        }
    }

    #[test]
    fn frames_scattered_by_the_same_seed_come_in_the_same_order() {
        let run = |seed| {
            let mut frames = Frames::new(0, 64 << 20, Placement::Scattered, seed);
            (0..100).map(|_| frames.allocate()).collect::<Vec<_>>()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
        let adjacent = run(5).windows(2).filter(|w| w[1] == w[0].map(|pa| pa + FRAME)).count();
        assert!(adjacent < 5, "{adjacent} of 99 neighbours are adjacent");
    }
}
