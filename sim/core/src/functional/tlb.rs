//! The software translation cache: a hit gives the index into the host's bytes with one comparison. Entries are
//! tagged with a context (address space, mode and the status bits that change permissions), so that switching between
//! user and supervisor keeps both.

use towpath_isa::{Hart, Mode, data_mode};

const ENTRIES: usize = 1024;
/// Contexts that fit above a virtual page number of 52 bits.
const CONTEXTS: usize = 4000;
/// A tag no address has: context 4095 is never given out.
const INVALID: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Entry {
    load: u64,
    store: u64,
    fetch: u64,
    /// Host index minus virtual address.
    delta: u64,
}

const EMPTY: Entry = Entry { load: INVALID, store: INVALID, fetch: INVALID, delta: 0 };

/// What permissions depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Context {
    satp: u64,
    mode: Mode,
    /// SUM and MXR.
    status: u64,
}

/// Which kind of access an entry permits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Load,
    Store,
    Fetch,
}

pub(crate) struct Tlb {
    entries: Box<[Entry; ENTRIES]>,
    contexts: Vec<Context>,
    data: u64,
    fetch: u64,
    /// Some entry stands for part of a larger page, so flushing one address is not enough.
    large: bool,
    pmp: ([u8; 16], [u64; 16]),
    /// Goes up whenever a translation may have changed.
    pub(crate) epoch: u32,
}

impl Tlb {
    pub(crate) fn new() -> Tlb {
        Tlb {
            entries: Box::new([EMPTY; ENTRIES]),
            contexts: Vec::new(),
            data: 0,
            fetch: 0,
            large: false,
            pmp: ([0; 16], [0; 16]),
            epoch: 1,
        }
    }

    /// Makes the hart's present state the context of later lookups.
    pub(crate) fn select(&mut self, hart: &Hart) {
        if (hart.csrs.pmpcfg, hart.csrs.pmpaddr) != self.pmp {
            self.pmp = (hart.csrs.pmpcfg, hart.csrs.pmpaddr);
            self.flush();
        }
        let status = hart.csrs.mstatus >> 18 & 3;
        let satp = |mode| if mode == Mode::Machine { 0 } else { hart.csrs.satp };
        let (fetch_mode, mode) = (hart.mode, data_mode(hart));
        let fetch = self.context(Context { satp: satp(fetch_mode), mode: fetch_mode, status });
        let data = self.context(Context { satp: satp(mode), mode, status });
        if fetch != self.fetch {
            self.epoch = self.epoch.wrapping_add(1);
        }
        (self.fetch, self.data) = (fetch, data);
    }

    fn context(&mut self, wanted: Context) -> u64 {
        let known = self.contexts.iter().position(|&c| c == wanted);
        let index = known.unwrap_or_else(|| {
            if self.contexts.len() == CONTEXTS {
                self.flush();
                self.contexts.clear();
            }
            self.contexts.push(wanted);
            self.contexts.len() - 1
        });
        (index as u64) << 52
    }

    pub(crate) fn flush(&mut self) {
        self.entries.fill(EMPTY);
        self.large = false;
        self.epoch = self.epoch.wrapping_add(1);
    }

    pub(crate) fn flush_page(&mut self, va: u64) {
        if self.large {
            return self.flush();
        }
        self.entries[(va >> 12) as usize % ENTRIES] = EMPTY;
        self.epoch = self.epoch.wrapping_add(1);
    }

    #[inline(always)]
    fn key(&self, va: u64, kind: Kind) -> u64 {
        va >> 12 | if kind == Kind::Fetch { self.fetch } else { self.data }
    }

    /// The host index of `size` bytes at `va`, if they lie in one cached page.
    #[inline(always)]
    pub(crate) fn lookup(&self, va: u64, size: u64, kind: Kind) -> Option<usize> {
        let entry = &self.entries[(va >> 12) as usize % ENTRIES];
        let tag = match kind {
            Kind::Load => entry.load,
            Kind::Store => entry.store,
            Kind::Fetch => entry.fetch,
        };
        let hit = (tag == self.key(va, kind)) & ((va & 4095) + size <= 4096);
        hit.then_some(va.wrapping_add(entry.delta) as usize)
    }

    /// Remembers that the page of `va` may be used for `kind`; `index` is where `va` stands in the host's bytes.
    pub(crate) fn insert(&mut self, va: u64, kind: Kind, index: usize, large: bool) {
        let (data, fetch) = (self.key(va, Kind::Load), self.key(va, Kind::Fetch));
        let entry = &mut self.entries[(va >> 12) as usize % ENTRIES];
        let delta = (index as u64).wrapping_sub(va);
        let keep = |tag: u64, key: u64| tag == key && entry.delta == delta;
        let (load, store, fetched) = (keep(entry.load, data), keep(entry.store, data), keep(entry.fetch, fetch));
        let tag = |on: bool, key: u64| if on { key } else { INVALID };
        *entry = Entry {
            load: tag(load || kind == Kind::Load, data),
            store: tag(store || kind == Kind::Store, data),
            fetch: tag(fetched || kind == Kind::Fetch, fetch),
            delta,
        };
        self.large |= large;
    }
}
