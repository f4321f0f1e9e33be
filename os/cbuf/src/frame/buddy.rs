//! Which pages of an arena are free: a bitmap for each power-of-two size, blocks split on demand and joined with
//! their buddies when both are free.

/// Sizes from one page up to `2^(ORDERS - 1)` pages (2 MB).
pub(crate) const ORDERS: usize = 10;

/// The free blocks of one arena. Positions are pages from the arena's start.
pub(crate) struct Buddy {
    pages: u32,
    maps: Vec<Map>,
}

struct Map {
    words: Vec<u64>,
    free: u32,
    /// No word below this has a bit set.
    first: usize,
}

impl Map {
    fn set(&mut self, bit: u32) {
        let word = bit as usize / 64;
        debug_assert!(self.words[word] >> (bit % 64) & 1 == 0);
        self.words[word] |= 1 << (bit % 64);
        self.free += 1;
        self.first = self.first.min(word);
    }

    fn clear(&mut self, bit: u32) -> bool {
        let word = &mut self.words[bit as usize / 64];
        let was = *word >> (bit % 64) & 1 == 1;
        if was {
            *word &= !(1 << (bit % 64));
            self.free -= 1;
        }
        was
    }

    fn pop(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        while self.words[self.first] == 0 {
            self.first += 1;
        }
        let bit = self.first as u32 * 64 + self.words[self.first].trailing_zeros();
        self.clear(bit);
        Some(bit)
    }
}

impl Buddy {
    /// All of `pages` free; a power of two.
    pub(crate) fn new(pages: u32) -> Buddy {
        assert!(pages.is_power_of_two());
        let orders = (pages.ilog2() as usize + 1).min(ORDERS);
        let maps = (0..orders)
            .map(|o| Map { words: vec![0; ((pages >> o) as usize).div_ceil(64)], free: 0, first: 0 })
            .collect();
        let mut buddy = Buddy { pages, maps };
        let top = orders - 1;
        for block in 0..pages >> top {
            buddy.maps[top].set(block);
        }
        buddy
    }

    /// Largest size this arena can serve.
    pub(crate) fn top(&self) -> usize {
        self.maps.len() - 1
    }

    /// Takes `2^order` pages.
    pub(crate) fn take(&mut self, order: usize) -> Option<u32> {
        let from = (order..self.maps.len()).find(|&o| self.maps[o].free > 0)?;
        let mut block = self.maps[from].pop()?;
        for o in (order..from).rev() {
            block *= 2;
            self.maps[o].set(block + 1);
        }
        Some(block << order)
    }

    /// Gives `2^order` pages back.
    pub(crate) fn give(&mut self, order: usize, page: u32) {
        debug_assert!(page < self.pages);
        let (mut order, mut block) = (order, page >> order);
        while order < self.top() && self.maps[order].clear(block ^ 1) {
            block /= 2;
            order += 1;
        }
        self.maps[order].set(block);
    }

    /// Free pages.
    pub(crate) fn free_pages(&self) -> u32 {
        self.maps.iter().enumerate().map(|(o, m)| m.free << o).sum()
    }

    /// Positions of the wholly free blocks of the largest size.
    pub(crate) fn free_top_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        let top = self.top();
        (0..self.pages >> top).filter(move |&b| self.maps[top].words[b as usize / 64] >> (b % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    #[test]
    fn buddy_random_takes_and_gives_never_overlap_and_join_again() {
        for seed in 0..20u64 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut buddy = Buddy::new(1024);
            let mut owner = vec![false; 1024];
            let mut held: Vec<(usize, u32)> = Vec::new();
            for _ in 0..2000 {
                if rng.random_bool(0.55) {
                    let order = rng.random_range(0..6);
                    if let Some(page) = buddy.take(order) {
                        assert_eq!(page % (1 << order), 0, "seed {seed}");
                        for p in page..page + (1 << order) {
                            assert!(!std::mem::replace(&mut owner[p as usize], true), "seed {seed}");
                        }
                        held.push((order, page));
                    }
                } else if !held.is_empty() {
                    let (order, page) = held.swap_remove(rng.random_range(0..held.len()));
                    owner[page as usize..(page + (1 << order)) as usize].fill(false);
                    buddy.give(order, page);
                }
                let used: u32 = held.iter().map(|h| 1 << h.0).sum();
                assert_eq!(buddy.free_pages(), 1024 - used, "seed {seed}");
            }
            for (order, page) in held {
                buddy.give(order, page);
            }
            assert_eq!(buddy.free_top_blocks().count(), 2, "seed {seed}");
        }
    }
}
