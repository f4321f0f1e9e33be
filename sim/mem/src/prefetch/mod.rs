//! Prefetchers. A new one is one file that implements [`Prefetcher`], one variant of [`Guess`] and one of
//! `config::Prefetch`; dispatch is static.

mod next_line;
mod stride;

use crate::config::Prefetch;

/// One access as a prefetcher sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Program counter of the access; 0 where none is known.
    pub pc: u64,
    /// Byte address.
    pub addr: u64,
    /// It missed, or met a fill under way.
    pub miss: bool,
}

/// Lines proposed by one access.
#[derive(Default)]
pub struct Proposals {
    lines: [u64; 8],
    len: usize,
}

impl Proposals {
    /// Adds a line address; more than eight are dropped.
    pub fn push(&mut self, line: u64) {
        if self.len < self.lines.len() {
            self.lines[self.len] = line;
            self.len += 1;
        }
    }

    /// What was proposed, nearest first.
    pub fn lines(&self) -> &[u64] {
        &self.lines[..self.len]
    }
}

/// Guesses lines from accesses.
pub trait Prefetcher {
    /// Learns from `seen` and proposes lines.
    fn observe(&mut self, seen: Seen, out: &mut Proposals);
}

/// The prefetchers there are.
pub enum Guess {
    /// None.
    None,
    /// Strides by program counter.
    Stride(Box<stride::Stride>),
    /// The following line.
    NextLine(next_line::NextLine),
}

impl Guess {
    /// The prefetcher `which`.
    pub fn new(which: Prefetch) -> Guess {
        match which {
            Prefetch::None => Guess::None,
            Prefetch::Stride { degree } => Guess::Stride(Box::new(stride::Stride::new(degree))),
            Prefetch::NextLine => Guess::NextLine(next_line::NextLine),
        }
    }

    /// See [`Prefetcher::observe`].
    pub fn observe(&mut self, seen: Seen, out: &mut Proposals) {
        match self {
            Guess::None => {}
            Guess::Stride(p) => p.observe(seen, out),
            Guess::NextLine(p) => p.observe(seen, out),
        }
    }
}
