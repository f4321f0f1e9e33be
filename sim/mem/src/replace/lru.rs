//! Exact least-recently-used by time stamps.

use super::Replacement;

/// One stamp a line; the smallest leaves.
pub struct Lru {
    ways: usize,
    clock: u64,
    stamps: Vec<u64>,
}

impl Lru {
    pub(crate) fn new(sets: usize, ways: usize) -> Lru {
        Lru { ways, clock: 0, stamps: vec![0; sets * ways] }
    }
}

impl Replacement for Lru {
    #[inline]
    fn touch(&mut self, set: usize, way: usize) {
        self.clock += 1;
        self.stamps[set * self.ways + way] = self.clock;
    }

    fn victim(&mut self, set: usize, allowed: u64) -> usize {
        let ways = (0..self.ways).filter(|w| allowed >> w & 1 == 1);
        ways.min_by_key(|w| self.stamps[set * self.ways + w]).expect("a way is allowed")
    }
}
