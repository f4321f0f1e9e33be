//! A hash table whose growth never stops the server for long, and whose entries never move.
//!
//! Entries lie in a slab of chunks; the index is 256 independent tables of slot numbers, each of which grows alone,
//! so the longest pause is a 256th of a whole rehash. Because a slot number stays with its entry, `SCAN` cursors are
//! slot numbers: what is there during a whole scan is seen, however the table grows meanwhile.

use super::Entry;
use foldhash::quality::FixedState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

const SHARDS: usize = 256;
/// Entries a chunk.
const CHUNK: usize = 256;

/// A block of slots with the number of occupied ones.
struct Chunk {
    slots: Box<[Option<Entry>]>,
    live: usize,
}

/// The keys of one database.
pub struct Table {
    hasher: FixedState,
    shards: Vec<HashTable<u32>>,
    chunks: Vec<Option<Chunk>>,
    free: Vec<u32>,
    live: usize,
}

impl Table {
    /// An empty table; `seed` keeps clients from choosing keys that collide.
    pub fn new(seed: u64) -> Table {
        Table { hasher: FixedState::with_seed(seed), shards: Vec::new(), chunks: Vec::new(), free: Vec::new(), live: 0 }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Upper end of slot numbers in use.
    pub fn slots(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    /// The slot of `key`.
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        let hash = hash(&self.hasher, key);
        self.shards[shard(hash)].find(hash, |&slot| self.key(slot) == key).copied()
    }

    /// The entry in `slot`.
    pub fn get(&self, slot: u32) -> Option<&Entry> {
        let chunk = self.chunks.get(slot as usize / CHUNK)?.as_ref()?;
        chunk.slots[slot as usize % CHUNK].as_ref()
    }

    /// The entry in `slot`, to change; its key must stay.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK)?.as_mut()?;
        chunk.slots[slot as usize % CHUNK].as_mut()
    }

    /// Adds an entry whose key is not there yet; its slot.
    pub fn insert(&mut self, entry: Entry) -> u32 {
        if self.shards.is_empty() {
            self.shards.resize_with(SHARDS, HashTable::new);
        }
        let hash = hash(&self.hasher, entry.key.as_bytes());
        let slot = self.free_slot();
        let chunk = self.chunks[slot as usize / CHUNK].get_or_insert_with(Chunk::new);
        chunk.slots[slot as usize % CHUNK] = Some(entry);
        chunk.live += 1;
        self.live += 1;
        let (chunks, hasher) = (&self.chunks, &self.hasher);
        self.shards[shard(hash)].insert_unique(hash, slot, |&slot| {
            let entry = chunks[slot as usize / CHUNK].as_ref().and_then(|c| c.slots[slot as usize % CHUNK].as_ref());
            entry.map_or(0, |e| self::hash(hasher, e.key.as_bytes()))
        });
        slot
    }

    /// Removes what is in `slot`.
    pub fn remove(&mut self, slot: u32) -> Option<Entry> {
        let hash = hash(&self.hasher, self.get(slot)?.key.as_bytes());
        if let Ok(found) = self.shards[shard(hash)].find_entry(hash, |&s| s == slot) {
            found.remove();
        }
        let place = self.chunks.get_mut(slot as usize / CHUNK)?;
        let chunk = place.as_mut()?;
        let entry = chunk.slots[slot as usize % CHUNK].take()?;
        chunk.live -= 1;
        if chunk.live == 0 {
            *place = None;
        }
        self.live -= 1;
        self.free.push(slot);
        if self.live == 0 && self.chunks.len() > 4 {
            *self = Table { hasher: self.hasher.clone(), ..Table::new(0) };
        }
        Some(entry)
    }

    /// The first occupied slot at or after `slot`.
    pub fn next_from(&self, slot: u32) -> Option<u32> {
        let mut slot = slot as usize;
        while slot < self.chunks.len() * CHUNK {
            match &self.chunks[slot / CHUNK] {
                None => slot = (slot / CHUNK + 1) * CHUNK,
                Some(chunk) if chunk.slots[slot % CHUNK].is_some() => return Some(slot as u32),
                Some(_) => slot += 1,
            }
        }
        None
    }

    /// An occupied slot near a random one; `random` is any number.
    pub fn sample(&self, mut random: impl FnMut() -> u64) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        for _ in 0..16 {
            let slot = (random() % u64::from(self.slots())) as u32;
            if self.get(slot).is_some() {
                return Some(slot);
            }
        }
        let start = (random() % u64::from(self.slots())) as u32;
        self.next_from(start).or_else(|| self.next_from(0))
    }

    fn key(&self, slot: u32) -> &[u8] {
        self.get(slot).map_or(&[], |entry| entry.key.as_bytes())
    }

    fn free_slot(&mut self) -> u32 {
        if self.free.is_empty() {
            let first = self.slots();
            self.chunks.push(None);
            self.free.extend((first..first + CHUNK as u32).rev());
        }
        self.free.pop().unwrap_or(0)
    }
}

impl Chunk {
    fn new() -> Chunk {
        Chunk { slots: (0..CHUNK).map(|_| None).collect(), live: 0 }
    }
}

fn hash(hasher: &FixedState, key: &[u8]) -> u64 {
    let mut state = hasher.build_hasher();
    state.write(key);
    state.finish()
}

/// Which table a hash belongs to: bits that the tables themselves use least.
fn shard(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}
