//! When may a shared buffer be reused? (CBUF paper, section 3.2, made sound.)
//!
//! Each domain keeps, for each buffer, a count of its references and, for each peer, how often it sent the buffer there
//! and received it from there. The counters of a domain are written by that domain alone, while the collector reads
//! them: no snapshot exists. The paper sums them in one pass, which is unsound. A buffer sent on after its receiver was
//! scanned, and received by a domain scanned later, balances the sum while a reference is held in between.
//!
//! What is sound, and what `tests/collect_model.rs` explores exhaustively:
//!
//! 1. Counts of sends and receipts only grow (64 bits, never reset), and balance is asked of every sender-receiver
//!    pair, never of the sum: a domain that lies about its receipts can only release what was sent to itself.
//! 2. A receiver takes its reference before it counts the receipt ([`RECEIVE`]).
//! 3. Two passes must read the same values, all balanced and without references (Mattern's four-counter method for
//!    termination detection). Since counters only grow, equal readings mean that nothing moved in between the end of
//!    the first pass and the start of the second, and at that moment the state was as read.
//! 4. Then the buffer's generation is raised, so that an id of the old generation is refused, and references are
//!    read once more. An honest client never notices; a receiver that took a reference through an id that was
//!    never counted as sent (its sender lied) is seen here, and the buffer is kept until it lets go.
//!
//! A dead domain holds no reference, and what was sent to it counts as received. What it sent may still lie in a
//! queue: its receiver acknowledges when it has emptied the dead domain's queues, and only then is the pair forgiven.

/// One shared-memory access a client makes, in the order it makes them. The client's fast paths are these tables,
/// unrolled by the compiler; the model steps through the same tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Add one reference (a locked, sequentially consistent addition: the store before [`Access::CheckGeneration`]).
    RefUp,
    /// Drop one reference; whoever drops the last one looks at the flags in the value returned.
    RefDown,
    /// Count one send to the peer.
    SentUp,
    /// Hand the id to the peer (after [`Access::SentUp`]: an id is never on its way uncounted).
    Publish,
    /// Compare the id's generation with the manager's; if it is older, undo the reference and report a stale id.
    CheckGeneration,
    /// Count one receipt from the peer.
    ReceivedUp,
}

/// `send`: count, then publish.
pub const SEND: &[Access] = &[Access::SentUp, Access::Publish];
/// `receive` (the paper's `cbuf2buf`): reference, check, count. Counting first is unsound.
pub const RECEIVE: &[Access] = &[Access::RefUp, Access::CheckGeneration, Access::ReceivedUp];
/// `free`: drop the reference.
pub const FREE: &[Access] = &[Access::RefDown];

/// What one domain's counters say of one buffer, as read at some moment, a word at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// References held in the domain.
    References {
        /// The domain.
        domain: u16,
    },
    /// How often the buffer was sent; kept by the sender.
    Sent {
        /// The sender.
        from: u16,
        /// The receiver.
        to: u16,
    },
    /// How often the buffer was received; kept by the receiver.
    Received {
        /// The sender.
        from: u16,
        /// The receiver.
        to: u16,
    },
}

/// What the collector knows of a domain by itself, not from shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// Its counters count.
    Alive,
    /// It ended: it holds nothing, and what was sent to it counts as received.
    Dead,
}

/// The domains that a buffer concerns: its owner and everybody it was ever mapped into.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Members {
    life: Vec<Life>,
    /// `(dead sender, receiver)` pairs whose queues the receiver has emptied.
    drained: Vec<(u16, u16)>,
}

impl Members {
    /// `count` living domains.
    pub fn new(count: u16) -> Members {
        Members { life: vec![Life::Alive; usize::from(count)], drained: Vec::new() }
    }

    /// Records the end of a domain. Scans begun before must be given up ([`Scan::new`] starts another).
    pub fn died(&mut self, domain: u16) {
        self.life[usize::from(domain)] = Life::Dead;
    }

    /// Records that `receiver` has emptied every queue from the dead `sender`.
    pub fn drained(&mut self, sender: u16, receiver: u16) {
        if !self.drained.contains(&(sender, receiver)) {
            self.drained.push((sender, receiver));
        }
    }

    /// Whether the domain lives.
    pub fn alive(&self, domain: u16) -> bool {
        self.life[usize::from(domain)] == Life::Alive
    }

    /// Number of domains, dead ones included.
    pub fn len(&self) -> u16 {
        self.life.len() as u16
    }

    /// Whether there is no domain at all.
    pub fn is_empty(&self) -> bool {
        self.life.is_empty()
    }

    /// Whether the pair's balance still matters.
    fn pair_counts(&self, from: u16, to: u16) -> bool {
        from != to && self.alive(to) && (self.alive(from) || !self.drained.contains(&(from, to)))
    }

    /// Every word a pass reads, in the order it reads them.
    fn words(&self) -> Vec<Word> {
        let n = self.len();
        let mut words = Vec::new();
        for domain in 0..n {
            if self.alive(domain) {
                words.push(Word::References { domain });
            }
            for peer in 0..n {
                if self.pair_counts(domain, peer) {
                    words.push(Word::Sent { from: domain, to: peer });
                }
                if self.pair_counts(peer, domain) {
                    words.push(Word::Received { from: peer, to: domain });
                }
            }
        }
        words
    }
}

/// What the collector must do next, or what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Read this word (with acquire order) and [`Scan::feed`] its value.
    Read(Word),
    /// Raise the generation in the manager's read-only table, then a full fence, then [`Scan::raised`].
    RaiseGeneration,
    /// Live, or changed while it was read: leave it and try at the next collection.
    Live,
    /// The generation is raised and somebody holds a reference all the same (through an uncounted id): scan again
    /// later with [`Scan::after_raise`]; nobody new can receive it.
    Held,
    /// Garbage: hand it back to its owner under the new generation.
    Garbage,
}

/// How a scan is weakened, to show that the model notices. The daemon uses [`Rules::default`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Passes that must agree before the generation is raised.
    pub passes: u8,
    /// Whether references are read once more after the generation was raised.
    pub recheck: bool,
    /// Whether balance is asked of each pair (or, as in the paper, of the sum).
    pub by_pair: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { passes: 2, recheck: true, by_pair: true }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Pass(u8),
    Raise,
    Recheck,
    Done(Step),
}

/// One attempt to collect one buffer, a word at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scan {
    rules: Rules,
    words: Vec<Word>,
    first: Vec<u64>,
    at: usize,
    phase: Phase,
}

impl Scan {
    /// A fresh attempt on a buffer that concerns `members`.
    pub fn new(members: &Members) -> Scan {
        Scan::with_rules(members, Rules::default())
    }

    /// An attempt under weakened rules, for the model's mutations.
    pub fn with_rules(members: &Members, rules: Rules) -> Scan {
        let words = members.words();
        let first = Vec::with_capacity(words.len());
        Scan { rules, words, first, at: 0, phase: Phase::Pass(0) }.settle()
    }

    /// Takes up a buffer whose generation is raised already and that was [`Step::Held`].
    pub fn after_raise(members: &Members) -> Scan {
        let words = members.words().into_iter().filter(|w| matches!(w, Word::References { .. })).collect();
        Scan { rules: Rules::default(), words, first: Vec::new(), at: 0, phase: Phase::Recheck }.settle()
    }

    /// What to do next.
    pub fn step(&self) -> Step {
        match self.phase {
            Phase::Pass(_) | Phase::Recheck => Step::Read(self.words[self.at]),
            Phase::Raise => Step::RaiseGeneration,
            Phase::Done(verdict) => verdict,
        }
    }

    /// The value of the word that [`Scan::step`] asked for.
    ///
    /// # Panics
    /// If no word was asked for.
    pub fn feed(&mut self, value: u64) {
        let Step::Read(word) = self.step() else { panic!("no word was asked for") };
        let is_reference = matches!(word, Word::References { .. });
        if is_reference && value != 0 {
            let verdict = if matches!(self.phase, Phase::Recheck) { Step::Held } else { Step::Live };
            self.phase = Phase::Done(verdict);
            return;
        }
        match self.phase {
            Phase::Pass(0) => self.first.push(value),
            Phase::Pass(_) if self.first[self.at] != value => {
                self.phase = Phase::Done(Step::Live);
                return;
            }
            _ => {}
        }
        self.at += 1;
        *self = std::mem::replace(self, Scan::empty()).settle();
    }

    /// The generation was raised and fenced.
    ///
    /// # Panics
    /// If that was not asked for.
    pub fn raised(&mut self) {
        assert_eq!(self.phase, Phase::Raise, "the generation was not to be raised");
        if !self.rules.recheck {
            self.phase = Phase::Done(Step::Garbage);
            return;
        }
        self.words.retain(|w| matches!(w, Word::References { .. }));
        self.at = 0;
        self.phase = Phase::Recheck;
        *self = std::mem::replace(self, Scan::empty()).settle();
    }

    fn empty() -> Scan {
        Scan { rules: Rules::default(), words: Vec::new(), first: Vec::new(), at: 0, phase: Phase::Done(Step::Live) }
    }

    /// Moves on to the next phase where the words of this one are all read.
    fn settle(mut self) -> Scan {
        if self.at < self.words.len() {
            return self;
        }
        self.phase = match self.phase {
            Phase::Pass(_) if !self.balanced() => Phase::Done(Step::Live),
            Phase::Pass(n) if n + 1 < self.rules.passes => {
                self.at = 0;
                if self.words.is_empty() { Phase::Raise } else { Phase::Pass(n + 1) }
            }
            Phase::Pass(_) => Phase::Raise,
            Phase::Recheck => Phase::Done(Step::Garbage),
            other => other,
        };
        self
    }

    /// Whether what the first pass read balances. A pair with more receipts than sends, read the same twice, is a lie
    /// of its sender (honest counts cannot be read so twice) and does not keep the buffer.
    fn balanced(&self) -> bool {
        if !self.rules.by_pair {
            return self.sum(|w| matches!(w, Word::Sent { .. })) == self.sum(|w| matches!(w, Word::Received { .. }));
        }
        self.words.iter().zip(&self.first).all(|(word, &sent)| match *word {
            Word::Sent { from, to } => self.value(Word::Received { from, to }) >= sent,
            _ => true,
        })
    }

    fn sum(&self, which: impl Fn(&Word) -> bool) -> u64 {
        self.words.iter().zip(&self.first).filter(|(w, _)| which(w)).map(|(_, v)| v).sum()
    }

    fn value(&self, word: Word) -> u64 {
        self.words.iter().position(|w| *w == word).map_or(0, |i| self.first[i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn run(members: &Members, values: &HashMap<Word, u64>) -> Step {
        let mut scan = Scan::new(members);
        loop {
            match scan.step() {
                Step::Read(word) => scan.feed(values.get(&word).copied().unwrap_or(0)),
                Step::RaiseGeneration => scan.raised(),
                verdict => return verdict,
            }
        }
    }

    #[test]
    fn buffer_of_figure_three_cb0_is_garbage() {
        let members = Members::new(3);
        let values = HashMap::from([
            (Word::Sent { from: 0, to: 1 }, 1),
            (Word::Received { from: 0, to: 1 }, 1),
            (Word::Sent { from: 1, to: 2 }, 1),
            (Word::Received { from: 1, to: 2 }, 1),
        ]);
        assert_eq!(run(&members, &values), Step::Garbage);
    }

    #[test]
    fn buffer_with_a_reference_anywhere_is_live() {
        let members = Members::new(3);
        for domain in 0..3 {
            assert_eq!(run(&members, &HashMap::from([(Word::References { domain }, 1)])), Step::Live);
        }
    }

    #[test]
    fn buffer_with_a_pending_send_is_live_until_its_receiver_dies() {
        let mut members = Members::new(3);
        let values = HashMap::from([(Word::Sent { from: 0, to: 2 }, 1)]);
        assert_eq!(run(&members, &values), Step::Live);
        members.died(2);
        assert_eq!(run(&members, &values), Step::Garbage);
    }

    #[test]
    fn buffer_sent_by_a_dead_domain_is_live_until_the_receiver_has_drained() {
        let mut members = Members::new(2);
        let values = HashMap::from([(Word::Sent { from: 0, to: 1 }, 3), (Word::Received { from: 0, to: 1 }, 2)]);
        members.died(0);
        assert_eq!(run(&members, &values), Step::Live);
        members.drained(0, 1);
        assert_eq!(run(&members, &values), Step::Garbage);
    }

    #[test]
    fn buffer_of_which_all_domains_died_is_garbage() {
        let mut members = Members::new(2);
        members.died(0);
        members.died(1);
        assert_eq!(run(&members, &HashMap::new()), Step::Garbage);
    }
}
