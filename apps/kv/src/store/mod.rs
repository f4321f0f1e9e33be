//! The data: sixteen databases of string values with expiry, their memory accounted for and bounded.
//!
//! Time (milliseconds of Unix time) and the seed of random choices come from outside. Keys that expired or were
//! evicted are collected in [`Store::gone`] so that the caller can log their removal.

mod evict;
mod snapshot;
#[cfg(test)]
mod store_model;
mod table;
mod value;

pub use evict::Policy;
pub use snapshot::Item;
use std::collections::BTreeSet;
use table::Table;
pub use value::{Key, Large, Value};

/// Databases a client can select.
pub const DATABASES: usize = 16;
/// What an entry costs beside its key's and value's own allocations: the entry and its share of the index.
const ENTRY_COST: usize = size_of::<Option<Entry>>() + 8;
const _: () = assert!(size_of::<Option<Entry>>() == 64, "an entry fills one cache line");

/// A key with its value.
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// Its string.
    pub value: Value,
    /// When it ends, in milliseconds of Unix time; 0 for never.
    expires: u64,
    /// When it was last used, in units of 16 ms.
    used: u32,
    /// The last snapshot that has it.
    epoch: u32,
}

impl Entry {
    /// When it ends, in milliseconds of Unix time.
    pub fn expires(&self) -> Option<u64> {
        (self.expires != 0).then_some(self.expires)
    }

    fn cost(&self) -> usize {
        ENTRY_COST + self.key.footprint() + self.value.footprint()
    }
}

struct Database {
    table: Table,
    /// (when, slot) of every entry that ends.
    endings: BTreeSet<(u64, u32)>,
}

/// What happened to the data since start or since `CONFIG RESETSTAT`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Keys that ended.
    pub expired: u64,
    /// Keys removed to make room.
    pub evicted: u64,
}

/// What becomes of the expiry of a key that is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// None from now on.
    Never,
    /// Unchanged.
    Keep,
    /// At this time, in milliseconds of Unix time.
    At(u64),
}

/// All databases.
pub struct Store {
    databases: Vec<Database>,
    used: usize,
    random: u64,
    /// The time of the current command, in milliseconds of Unix time.
    pub now: u64,
    /// While the log is read back, nothing expires: the log says itself what ended.
    pub loading: bool,
    /// Counters.
    pub counts: Counts,
    /// Keys that expired or were evicted since the caller last took them.
    pub gone: Vec<(usize, Key)>,
    /// Whether changed keys are to be collected in `touched`.
    pub watched: bool,
    /// Keys changed since the caller last took them; no key stands for a whole database.
    pub touched: Vec<(usize, Option<Key>)>,
    epoch: u32,
    snapshot: Option<snapshot::Snapshot>,
}

impl Store {
    /// Empty databases; `seed` makes random choices, and keeps clients from choosing keys that collide.
    pub fn new(seed: u64) -> Store {
        let database = |i: usize| Database { table: Table::new(seed ^ i as u64), endings: BTreeSet::new() };
        Store {
            databases: (0..DATABASES).map(database).collect(),
            used: 0,
            random: seed | 1,
            now: 0,
            loading: false,
            counts: Counts::default(),
            gone: Vec::new(),
            watched: false,
            touched: Vec::new(),
            epoch: 0,
            snapshot: None,
        }
    }

    /// Bytes of memory the data takes, whole retained buffers counted whole.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Number of keys, expired ones that nobody has touched yet included.
    pub fn len(&self, db: usize) -> usize {
        self.databases[db].table.len()
    }

    /// Number of keys that end some time.
    pub fn ending(&self, db: usize) -> usize {
        self.databases[db].endings.len()
    }

    /// The slot of a key that is there and has not expired. One that has is removed.
    fn live(&mut self, db: usize, key: &[u8]) -> Option<u32> {
        let slot = self.databases[db].table.find(key)?;
        let entry = self.databases[db].table.get(slot)?;
        if entry.expires != 0 && entry.expires <= self.now && !self.loading {
            self.expire(db, slot);
            return None;
        }
        Some(slot)
    }

    fn expire(&mut self, db: usize, slot: u32) {
        if let Some(entry) = self.remove_slot(db, slot) {
            self.counts.expired += 1;
            self.gone.push((db, entry.key));
        }
    }

    /// Whether the key is there; neither a hit nor a use.
    pub fn contains(&mut self, db: usize, key: &[u8]) -> bool {
        self.live(db, key).is_some()
    }

    /// The entry, without counting a use.
    pub fn peek(&mut self, db: usize, key: &[u8]) -> Option<&Entry> {
        let slot = self.live(db, key)?;
        self.databases[db].table.get(slot)
    }

    /// The entry, for a reading command: counts a hit or a miss and a use.
    pub fn read(&mut self, db: usize, key: &[u8]) -> Option<&mut Entry> {
        let Some(slot) = self.live(db, key) else {
            self.counts.misses += 1;
            return None;
        };
        self.counts.hits += 1;
        let now = clock(self.now);
        let entry = self.databases[db].table.get_mut(slot)?;
        entry.used = now;
        Some(entry)
    }

    /// Seconds since the key was used.
    pub fn idle(&mut self, db: usize, key: &[u8]) -> Option<u64> {
        let now = clock(self.now);
        self.peek(db, key).map(|e| u64::from(now.wrapping_sub(e.used)) * 16 / 1000)
    }

    /// Sets `key`, whether it was there or not.
    pub fn set(&mut self, db: usize, key: &[u8], value: Value, expiry: Expiry) {
        let now = clock(self.now);
        if let Some(slot) = self.live(db, key) {
            self.change(db, slot, |entry| entry.value = value);
            match expiry {
                Expiry::Never => self.end_slot(db, slot, 0),
                Expiry::At(when) => self.end_slot(db, slot, when),
                Expiry::Keep => {}
            }
            return;
        }
        let entry = Entry { key: Key::new(key), value, expires: 0, used: now, epoch: self.epoch };
        self.used += entry.cost();
        if self.watched {
            self.touched.push((db, Some(entry.key.clone())));
        }
        let slot = self.databases[db].table.insert(entry);
        if let Expiry::At(when) = expiry {
            self.end_slot(db, slot, when);
        }
    }

    /// Sets an existing short value in place if it has the same length; false if that is not the case.
    pub fn overwrite(&mut self, db: usize, key: &[u8], bytes: &[u8]) -> bool {
        let Some(slot) = self.live(db, key) else { return false };
        let now = clock(self.now);
        if self.snapshot.is_some() || self.watched {
            self.before_change(db, slot);
        }
        let Some(entry) = self.databases[db].table.get_mut(slot) else { return false };
        if !entry.value.overwrite(bytes) {
            return false;
        }
        entry.used = now;
        if entry.expires != 0 {
            self.end_slot(db, slot, 0);
        }
        true
    }

    /// Changes the value of an existing key; `None` if it is not there.
    pub fn update<T>(&mut self, db: usize, key: &[u8], change: impl FnOnce(&mut Value) -> T) -> Option<T> {
        let slot = self.live(db, key)?;
        self.change(db, slot, |entry| change(&mut entry.value))
    }

    /// Removes a key; false if it was not there.
    pub fn remove(&mut self, db: usize, key: &[u8]) -> bool {
        self.take(db, key).is_some()
    }

    /// Removes a key and returns it.
    pub fn take(&mut self, db: usize, key: &[u8]) -> Option<Entry> {
        let slot = self.live(db, key)?;
        self.remove_slot(db, slot)
    }

    /// Changes when a key ends (`None`: never); false if it was not there.
    pub fn end(&mut self, db: usize, key: &[u8], when: Option<u64>) -> bool {
        let Some(slot) = self.live(db, key) else { return false };
        self.end_slot(db, slot, when.unwrap_or(0));
        true
    }

    /// Removes every key of a database; how many there were.
    pub fn flush(&mut self, db: usize) -> usize {
        if self.watched {
            self.touched.push((db, None));
        }
        let seed = self.next_random();
        let old =
            std::mem::replace(&mut self.databases[db], Database { table: Table::new(seed), endings: BTreeSet::new() });
        let mut slot = 0;
        while let Some(at) = old.table.next_from(slot) {
            self.used -= old.table.get(at).map_or(0, Entry::cost);
            slot = at + 1;
        }
        let len = old.table.len();
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.detach(db, old.table);
        }
        len
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, a: usize, b: usize) {
        if self.watched {
            self.touched.extend([(a, None), (b, None)]);
        }
        self.databases.swap(a, b);
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.swap(a, b);
        }
    }

    /// What must happen before an entry changes or goes: a snapshot in progress keeps it as it was, and who watches
    /// its key is told.
    fn before_change(&mut self, db: usize, slot: u32) {
        let Some(entry) = self.databases[db].table.get_mut(slot) else { return };
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.keep(db, entry);
        }
        if self.watched {
            self.touched.push((db, Some(entry.key.clone())));
        }
    }

    /// The first entry in a slot at or after `slot` that has not expired, with its slot.
    pub fn next_from(&self, db: usize, mut slot: u32) -> Option<(u32, &Entry)> {
        loop {
            let at = self.databases[db].table.next_from(slot)?;
            let entry = self.databases[db].table.get(at)?;
            if entry.expires == 0 || entry.expires > self.now || self.loading {
                return Some((at, entry));
            }
            slot = at + 1;
        }
    }

    /// A random key that has not expired.
    pub fn random_key(&mut self, db: usize) -> Option<Key> {
        for _ in 0..100 {
            let mut random = self.random;
            let slot = self.databases[db].table.sample(|| xorshift(&mut random));
            self.random = random;
            let entry = self.databases[db].table.get(slot?)?;
            if entry.expires == 0 || entry.expires > self.now {
                return Some(entry.key.clone());
            }
        }
        self.next_from(db, 0).map(|(_, entry)| entry.key.clone())
    }

    /// Removes at most `most` keys whose time has come; how many it removed.
    pub fn expire_due(&mut self, most: usize) -> usize {
        let mut removed = 0;
        for db in 0..DATABASES {
            while removed < most {
                let Some(&(when, slot)) = self.databases[db].endings.first() else { break };
                if when > self.now {
                    break;
                }
                self.expire(db, slot);
                removed += 1;
            }
        }
        removed
    }

    /// When the next key ends, in milliseconds of Unix time.
    pub fn next_ending(&self) -> Option<u64> {
        self.databases.iter().filter_map(|d| d.endings.first().map(|e| e.0)).min()
    }

    /// Bytes a key takes in memory.
    pub fn memory_of(&mut self, db: usize, key: &[u8]) -> Option<usize> {
        self.peek(db, key).map(Entry::cost)
    }

    fn change<T>(&mut self, db: usize, slot: u32, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let now = clock(self.now);
        if self.snapshot.is_some() || self.watched {
            self.before_change(db, slot);
        }
        let entry = self.databases[db].table.get_mut(slot)?;
        let before = entry.cost();
        let result = change(entry);
        entry.used = now;
        self.used = self.used - before + entry.cost();
        Some(result)
    }

    fn end_slot(&mut self, db: usize, slot: u32, when: u64) {
        if self.snapshot.is_some() || self.watched {
            self.before_change(db, slot);
        }
        let database = &mut self.databases[db];
        let Some(entry) = database.table.get_mut(slot) else { return };
        let before = std::mem::replace(&mut entry.expires, when);
        if before != 0 {
            database.endings.remove(&(before, slot));
        }
        if when != 0 {
            database.endings.insert((when, slot));
        }
    }

    fn remove_slot(&mut self, db: usize, slot: u32) -> Option<Entry> {
        if self.snapshot.is_some() || self.watched {
            self.before_change(db, slot);
        }
        let database = &mut self.databases[db];
        let entry = database.table.remove(slot)?;
        if entry.expires != 0 {
            database.endings.remove(&(entry.expires, slot));
        }
        self.used -= entry.cost();
        Some(entry)
    }

    fn next_random(&mut self) -> u64 {
        xorshift(&mut self.random)
    }
}

/// Unix milliseconds as the coarse clock that entries carry.
fn clock(now: u64) -> u32 {
    (now / 16) as u32
}

/// A step of the xorshift generator.
fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}
