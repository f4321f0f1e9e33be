//! Replacement policies. A new one is one file that implements [`Replacement`], one variant of [`Policy`] and one of
//! `config::Replace`; dispatch is static.

mod lru;
mod random;
mod tree;

use crate::config::Replace;

/// Chooses which way of a set leaves.
pub trait Replacement {
    /// A way was used.
    fn touch(&mut self, set: usize, way: usize);
    /// The way to evict among those whose bit is set in `allowed` (never zero).
    fn victim(&mut self, set: usize, allowed: u64) -> usize;
}

/// The policies there are.
pub enum Policy {
    /// Least recently used.
    Lru(lru::Lru),
    /// Seeded random.
    Random(random::Random),
    /// Tree pseudo-LRU.
    Tree(tree::Tree),
}

impl Policy {
    /// The policy `which` for a cache of `sets` times `ways`.
    pub fn new(which: Replace, sets: usize, ways: usize) -> Policy {
        match which {
            Replace::Lru => Policy::Lru(lru::Lru::new(sets, ways)),
            Replace::Random => Policy::Random(random::Random::new(0x7077)),
            Replace::TreePlru => Policy::Tree(tree::Tree::new(sets, ways)),
        }
    }

    /// See [`Replacement::touch`].
    #[inline]
    pub fn touch(&mut self, set: usize, way: usize) {
        match self {
            Policy::Lru(p) => p.touch(set, way),
            Policy::Random(p) => p.touch(set, way),
            Policy::Tree(p) => p.touch(set, way),
        }
    }

    /// See [`Replacement::victim`].
    pub fn victim(&mut self, set: usize, allowed: u64) -> usize {
        match self {
            Policy::Lru(p) => p.victim(set, allowed),
            Policy::Random(p) => p.victim(set, allowed),
            Policy::Tree(p) => p.victim(set, allowed),
        }
    }
}
