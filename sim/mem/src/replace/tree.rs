//! Tree pseudo-LRU: each node's bit points away from the half used last.

use super::Replacement;

/// One word of node bits a set; node 1 is the root.
pub struct Tree {
    ways: usize,
    bits: Vec<u64>,
}

impl Tree {
    pub(crate) fn new(sets: usize, ways: usize) -> Tree {
        Tree { ways, bits: vec![0; sets] }
    }
}

impl Replacement for Tree {
    fn touch(&mut self, set: usize, way: usize) {
        let mut node = way + self.ways;
        while node > 1 {
            let parent = node / 2;
            if node.is_multiple_of(2) {
                self.bits[set] |= 1 << parent;
            } else {
                self.bits[set] &= !(1 << parent);
            }
            node = parent;
        }
    }

    fn victim(&mut self, set: usize, allowed: u64) -> usize {
        let mut node = 1;
        while node < self.ways {
            node = node * 2 + (self.bits[set] >> node & 1) as usize;
        }
        let way = node - self.ways;
        if allowed >> way & 1 == 1 { way } else { allowed.trailing_zeros() as usize }
    }
}
