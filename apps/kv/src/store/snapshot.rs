//! The data as it was at one moment, read out in steps while commands go on changing it.
//!
//! An entry that is about to change or go before the snapshot has reached it is copied first (long values by
//! reference); every entry carries the number of the last snapshot that has it, so none is read twice and none that
//! came later is read at all. A database that is flushed or swapped meanwhile keeps its place in the snapshot.

use super::table::Table;
use super::{DATABASES, Entry, Key, Store, Value};

/// One key as it was: its database, name, value, and when it ends (Unix milliseconds).
pub struct Item {
    /// The database it was in.
    pub db: usize,
    /// Its name.
    pub key: Key,
    /// Its value.
    pub value: Value,
    /// When it ends, in milliseconds of Unix time.
    pub expires: Option<u64>,
}

/// Where the reading of one database stands.
#[derive(Clone, Copy)]
struct Place {
    /// The number the database had when the snapshot began; `None` for one that has been emptied since.
    original: Option<usize>,
    cursor: u32,
}

/// A snapshot in progress.
pub struct Snapshot {
    epoch: u32,
    places: [Place; DATABASES],
    /// Entries that changed before they were reached.
    early: Vec<Item>,
    /// Databases flushed before they were read to the end, with their places.
    detached: Vec<(Place, Table)>,
}

impl Snapshot {
    /// Keeps `entry` of database `db` as it is, unless the snapshot has it.
    pub fn keep(&mut self, db: usize, entry: &mut Entry) {
        if entry.epoch == self.epoch {
            return;
        }
        entry.epoch = self.epoch;
        if let Some(original) = self.places[db].original {
            self.early.push(item(original, entry));
        }
    }

    /// A database was emptied; `table` is what it held.
    pub fn detach(&mut self, db: usize, table: Table) {
        let place = std::mem::replace(&mut self.places[db], Place { original: None, cursor: 0 });
        if place.original.is_some() {
            self.detached.push((place, table));
        }
    }

    /// Two databases changed places.
    pub fn swap(&mut self, a: usize, b: usize) {
        self.places.swap(a, b);
    }
}

fn item(db: usize, entry: &Entry) -> Item {
    Item { db, key: entry.key.clone(), value: entry.value.clone(), expires: entry.expires() }
}

/// Reads on from `place`; false at the end.
fn read(table: &mut Table, place: &mut Place, epoch: u32, most: usize, out: &mut Vec<Item>) -> bool {
    let Some(original) = place.original else { return false };
    while let Some(slot) = table.next_from(place.cursor) {
        if out.len() >= most {
            return true;
        }
        place.cursor = slot + 1;
        if let Some(entry) = table.get_mut(slot)
            && entry.epoch != epoch
        {
            entry.epoch = epoch;
            out.push(item(original, entry));
        }
    }
    false
}

impl Store {
    /// Begins a snapshot of this moment, in place of one that was in progress.
    pub fn snapshot_begin(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        let places = std::array::from_fn(|db| Place { original: Some(db), cursor: 0 });
        self.snapshot = Some(Snapshot { epoch: self.epoch, places, early: Vec::new(), detached: Vec::new() });
    }

    /// Gives up a snapshot in progress.
    pub fn snapshot_cancel(&mut self) {
        self.snapshot = None;
    }

    /// The next about `most` keys of the snapshot; none at its end, when it is over.
    pub fn snapshot_next(&mut self, most: usize) -> Vec<Item> {
        let Some(mut snapshot) = self.snapshot.take() else { return Vec::new() };
        let early = snapshot.early.len();
        let mut out = snapshot.early.split_off(early.saturating_sub(most));
        for db in 0..DATABASES {
            let place = &mut snapshot.places[db];
            if out.len() >= most || read(&mut self.databases[db].table, place, snapshot.epoch, most, &mut out) {
                break;
            }
        }
        while out.len() < most
            && let Some((mut place, mut table)) = snapshot.detached.pop()
        {
            if read(&mut table, &mut place, snapshot.epoch, most, &mut out) {
                snapshot.detached.push((place, table));
            }
        }
        if !out.is_empty() {
            self.snapshot = Some(snapshot);
        }
        out
    }
}
