//! Making room when the data reaches its memory limit.

use super::{DATABASES, Store, clock, xorshift};

/// What goes when memory is short (`maxmemory-policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Nothing: commands that need memory get an error.
    #[default]
    NoEviction,
    /// Of a few random keys the one not used for longest.
    AllkeysLru,
    /// A random key.
    AllkeysRandom,
    /// As `AllkeysLru`, among keys that expire.
    VolatileLru,
    /// As `AllkeysRandom`, among keys that expire.
    VolatileRandom,
    /// The key that expires first.
    VolatileTtl,
}

/// Every policy with its name in the configuration.
pub const NAMES: [(&str, Policy); 6] = [
    ("noeviction", Policy::NoEviction),
    ("allkeys-lru", Policy::AllkeysLru),
    ("allkeys-random", Policy::AllkeysRandom),
    ("volatile-lru", Policy::VolatileLru),
    ("volatile-random", Policy::VolatileRandom),
    ("volatile-ttl", Policy::VolatileTtl),
];

impl Policy {
    /// The policy of that name.
    pub fn parse(name: &str) -> Option<Policy> {
        NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, p)| *p)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, p)| *p == self).map_or("noeviction", |(n, _)| n)
    }

    fn volatile(self) -> bool {
        matches!(self, Policy::VolatileLru | Policy::VolatileRandom | Policy::VolatileTtl)
    }
}

/// Keys looked at for one eviction in each database.
const SAMPLES: usize = 5;
/// Random slots tried for a key that expires, before the one that expires first is taken.
const TRIES: usize = 64;

impl Store {
    /// Evicts until the data takes at most `limit` bytes; false if the policy leaves nothing more to evict.
    pub fn make_room(&mut self, limit: usize, policy: Policy) -> bool {
        while self.used > limit {
            let Some((db, slot)) = self.victim(policy) else { return false };
            if let Some(entry) = self.remove_slot(db, slot) {
                self.counts.evicted += 1;
                self.gone.push((db, entry.key));
            }
        }
        true
    }

    fn victim(&mut self, policy: Policy) -> Option<(usize, u32)> {
        if policy == Policy::NoEviction {
            return None;
        }
        if policy == Policy::VolatileTtl {
            let first = |db: usize| self.databases[db].endings.first().map(|&(when, slot)| (when, db, slot));
            return (0..DATABASES).filter_map(first).min().map(|(_, db, slot)| (db, slot));
        }
        let mut best: Option<(u32, usize, u32)> = None;
        let random_choice = matches!(policy, Policy::AllkeysRandom | Policy::VolatileRandom);
        for db in 0..DATABASES {
            for _ in 0..SAMPLES {
                let Some(slot) = self.candidate(db, policy) else { break };
                let used = self.databases[db].table.get(slot).map_or(0, |e| e.used);
                // For a random choice the draw itself decides; for the least recently used one, its idle time.
                let age = if random_choice { self.next_random() as u32 } else { clock(self.now).wrapping_sub(used) };
                if best.is_none_or(|(oldest, ..)| age > oldest) {
                    best = Some((age, db, slot));
                }
            }
        }
        best.map(|(_, db, slot)| (db, slot))
    }

    fn candidate(&mut self, db: usize, policy: Policy) -> Option<u32> {
        let mut random = self.random;
        let database = &self.databases[db];
        let found = if policy.volatile() {
            let mut draw = || database.table.sample(|| xorshift(&mut random));
            let ends = |slot: &u32| database.table.get(*slot).is_some_and(|e| e.expires != 0);
            let first = database.endings.first().map(|e| e.1);
            first.map(|first| (0..TRIES).find_map(|_| draw().filter(ends)).unwrap_or(first))
        } else {
            database.table.sample(|| xorshift(&mut random))
        };
        self.random = random;
        found
    }
}
