//! A seeded choice (xorshift), the same in every run.

use super::Replacement;

/// The generator's state.
pub struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: seed | 1 }
    }
}

impl Replacement for Random {
    fn touch(&mut self, _set: usize, _way: usize) {}

    fn victim(&mut self, _set: usize, allowed: u64) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let nth = self.state % u64::from(allowed.count_ones());
        let mut rest = allowed;
        for _ in 0..nth {
            rest &= rest - 1;
        }
        rest.trailing_zeros() as usize
    }
}
