//! Who talks to whom. Pure: time is a parameter.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;
use towpath_libos::Nanos;

/// The sessions of a relay, for addresses of type `A`.
#[derive(Debug)]
pub struct Sessions<A> {
    table: HashMap<u64, Session<A>>,
    sessions_max: usize,
    idle_max: Duration,
    swept: Nanos,
}

#[derive(Debug)]
struct Session<A> {
    first: A,
    second: Option<A>,
    used: Nanos,
}

/// What becomes of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<A> {
    /// It goes to this party.
    Forward(A),
    /// Its session has one party so far.
    Unpaired,
    /// Its session has two parties, and the sender is neither.
    Stranger,
    /// A new session, and there are as many as allowed.
    Full,
}

impl<A: Clone + Eq + Hash> Sessions<A> {
    /// At most `sessions_max` sessions; one that was idle for `idle_max` may be forgotten.
    pub fn new(sessions_max: usize, idle_max: Duration) -> Sessions<A> {
        Sessions { table: HashMap::new(), sessions_max, idle_max, swept: Nanos(0) }
    }

    /// Sessions known.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Where a datagram of `session` that `from` sent at `now` goes.
    pub fn route(&mut self, session: u64, from: &A, now: Nanos) -> Verdict<A> {
        if let Some(known) = self.table.get_mut(&session) {
            return known.route(from, now);
        }
        if self.table.len() >= self.sessions_max && !self.sweep(now) {
            return Verdict::Full;
        }
        self.table.insert(session, Session { first: from.clone(), second: None, used: now });
        Verdict::Unpaired
    }

    /// Forgets idle sessions; true if there is room then. Looks at the whole table at most once in a sixteenth of the
    /// idle time, so that a flood of new sessions cannot make every datagram pay for a sweep.
    fn sweep(&mut self, now: Nanos) -> bool {
        let idle = self.idle_max.as_nanos() as u64;
        if now.0.saturating_sub(self.swept.0) >= idle / 16 {
            self.swept = now;
            self.table.retain(|_, s| now.0.saturating_sub(s.used.0) < idle);
        }
        self.table.len() < self.sessions_max
    }
}

impl<A: Clone + Eq> Session<A> {
    fn route(&mut self, from: &A, now: Nanos) -> Verdict<A> {
        let Some(second) = &self.second else {
            self.used = now;
            if *from == self.first {
                return Verdict::Unpaired;
            }
            self.second = Some(from.clone());
            return Verdict::Forward(self.first.clone());
        };
        let to = if *from == self.first {
            second.clone()
        } else if from == second {
            self.first.clone()
        } else {
            return Verdict::Stranger;
        };
        self.used = now;
        Verdict::Forward(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn two_parties_of_a_session_reach_each_other_and_nobody_else_them() {
        let mut sessions = Sessions::new(8, IDLE);
        assert_eq!(sessions.route(1, &'a', at(1)), Verdict::Unpaired);
        assert_eq!(sessions.route(1, &'a', at(1)), Verdict::Unpaired);
        assert_eq!(sessions.route(1, &'b', at(1)), Verdict::Forward('a'));
        assert_eq!(sessions.route(1, &'a', at(1)), Verdict::Forward('b'));
        assert_eq!(sessions.route(1, &'c', at(1)), Verdict::Stranger);
        assert_eq!(sessions.route(2, &'a', at(1)), Verdict::Unpaired);
    }

    #[test]
    fn full_table_refuses_new_sessions_until_old_ones_are_idle() {
        let mut sessions = Sessions::new(2, IDLE);
        sessions.route(1, &'a', at(100));
        sessions.route(2, &'a', at(100));
        assert_eq!(sessions.route(3, &'a', at(110)), Verdict::Full);
        sessions.route(2, &'a', at(125));
        assert_eq!(sessions.route(3, &'a', at(131)), Verdict::Unpaired);
        assert_eq!(sessions.len(), 2, "the idle session made room, the busy one stayed");
    }

    #[test]
    fn strangers_do_not_keep_a_session_alive() {
        let mut sessions = Sessions::new(1, IDLE);
        sessions.route(1, &'a', at(0));
        sessions.route(1, &'b', at(0));
        for second in 0..60 {
            assert_eq!(sessions.route(1, &'x', at(second)), Verdict::Stranger);
        }
        assert_eq!(sessions.route(2, &'y', at(60)), Verdict::Unpaired);
    }
}
