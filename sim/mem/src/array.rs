//! The arrays of one cache: tags, states, replacement, and the bytes themselves. What a load returns is read here.

use crate::config::CacheConfig;
use crate::packet::{Line, State};
use crate::replace::Policy;

const NO_TAG: u64 = u64::MAX;

pub(crate) struct Array {
    sets: usize,
    ways: usize,
    tags: Vec<u64>,
    states: Vec<State>,
    prefetched: Vec<bool>,
    data: Vec<Line>,
    policy: Policy,
}

impl Array {
    pub(crate) fn new(c: &CacheConfig) -> Array {
        let (ways, lines) = (c.ways as usize, (c.size / 64) as usize);
        let sets = lines / ways;
        Array {
            sets,
            ways,
            tags: vec![NO_TAG; lines],
            states: vec![State::I; lines],
            prefetched: vec![false; lines],
            data: vec![[0; 64]; lines],
            policy: Policy::new(c.replace, sets, ways),
        }
    }

    #[inline]
    fn set(&self, line: u64) -> usize {
        (line >> 6) as usize & (self.sets - 1)
    }

    /// The index of a held line.
    #[inline]
    pub(crate) fn find(&self, line: u64) -> Option<usize> {
        let first = self.set(line) * self.ways;
        self.tags[first..first + self.ways].iter().position(|&t| t == line).map(|w| first + w)
    }

    /// Marks a use; whether it was the first of a prefetched line.
    #[inline]
    pub(crate) fn touch(&mut self, index: usize) -> bool {
        self.policy.touch(index / self.ways, index % self.ways);
        std::mem::replace(&mut self.prefetched[index], false)
    }

    /// Where `line` would go: a free way, else the policy's choice among those `may` allows; `None` if it allows none.
    pub(crate) fn place(&mut self, line: u64, may: impl Fn(usize) -> bool) -> Option<usize> {
        let set = self.set(line);
        let first = set * self.ways;
        let mut allowed = 0u64;
        for w in 0..self.ways {
            if !may(first + w) {
                continue;
            }
            if self.tags[first + w] == NO_TAG {
                return Some(first + w);
            }
            allowed |= 1 << w;
        }
        (allowed != 0).then(|| first + self.policy.victim(set, allowed))
    }

    pub(crate) fn fill(&mut self, index: usize, line: u64, state: State, data: &Line, prefetched: bool) {
        assert_eq!(index / self.ways, self.set(line), "a line was put into a foreign set");
        self.tags[index] = line;
        self.states[index] = state;
        self.data[index] = *data;
        self.policy.touch(index / self.ways, index % self.ways);
        self.prefetched[index] = prefetched;
    }

    pub(crate) fn drop_line(&mut self, index: usize) {
        self.tags[index] = NO_TAG;
        self.states[index] = State::I;
    }

    /// The line held at an index, if any.
    pub(crate) fn line_at(&self, index: usize) -> Option<u64> {
        (self.tags[index] != NO_TAG).then_some(self.tags[index])
    }

    #[inline]
    pub(crate) fn state(&self, index: usize) -> State {
        self.states[index]
    }

    pub(crate) fn set_state(&mut self, index: usize, state: State) {
        self.states[index] = state;
    }

    #[inline]
    pub(crate) fn data(&self, index: usize) -> &Line {
        &self.data[index]
    }

    #[inline]
    pub(crate) fn data_mut(&mut self, index: usize) -> &mut Line {
        &mut self.data[index]
    }

    pub(crate) fn was_prefetched(&self, index: usize) -> bool {
        self.prefetched[index]
    }

    pub(crate) fn len(&self) -> usize {
        self.tags.len()
    }
}
