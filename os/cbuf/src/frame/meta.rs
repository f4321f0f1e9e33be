//! The metadata table of a protection domain: one cache line for each page of its frame range, of which the line of
//! a CBUF's first page describes the CBUF. The table is a memory file of its own, so that a manager process can map
//! it too; a client writes only its own table, and a manager believes none of it without checking.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Crossings between this domain and one peer. Never reset while a client lives: garbage collection compares sums of
/// them over all domains in two identical passes.
#[repr(C)]
pub struct Crossings {
    /// Peer (upper 12 bits) and how often the CBUF was sent to it (lower 52 bits).
    pub sent: AtomicU64,
    /// Peer (upper 12 bits) and how often the CBUF was received from it (lower 52 bits).
    pub received: AtomicU64,
}

/// One entry.
#[repr(C, align(64))]
pub struct Meta {
    /// Address of the CBUF in this domain; zero where it is not mapped.
    pub address: AtomicU64,
    /// References of this domain (lower 24 bits, saturating) and [`state`] (upper 8 bits): one word, so that a pass
    /// over the table sees both of one moment.
    pub word: AtomicU32,
    /// Base-two logarithm of the page count, or [`ORDER_SINGLE`].
    pub order: AtomicU8,
    /// [`flags`]; the manager sets them, clients read them when the last reference goes.
    pub flags: AtomicU8,
    /// Protection domain that produces into the CBUF.
    pub producer: std::sync::atomic::AtomicU16,
    /// Its name ([`crate::CbufId`]); while the CBUF is free, the name it will have next.
    pub id: AtomicU64,
    /// Next entry of a list kept by a manager.
    pub next: AtomicU32,
    /// Entry that continues [`Meta::crossings`] for more peers; zero if none.
    pub more: AtomicU32,
    /// Crossings with the first two peers.
    pub crossings: [Crossings; 2],
}

const _: () = assert!(size_of::<Meta>() == 64 && align_of::<Meta>() == 64);

/// States of a CBUF, as they stand in [`Meta::word`].
pub mod state {
    /// Not carved out of its arena.
    pub const NONE: u32 = 0;
    /// Free, in a magazine or list.
    pub const FREE: u32 = 1 << 24;
    /// In use by its producer alone.
    pub const IN_USE: u32 = 2 << 24;
    /// Sent to or received from another domain.
    pub const SHARED: u32 = 3 << 24;
    /// Collected, not yet back with its producer.
    pub const GARBAGE: u32 = 4 << 24;
    /// Out of generations, or its count saturated: never used again.
    pub const RETIRED: u32 = 5 << 24;
    /// The bits of the state.
    pub const MASK: u32 = 0xff << 24;
}

/// Flags a manager sets.
pub mod flags {
    /// Give the CBUF to the manager when the last reference goes.
    pub const RELINQUISH: u8 = 1;
    /// The entry changed under the client, which must fetch it anew.
    pub const INCONSISTENT: u8 = 2;
}

/// References, saturated: the CBUF is never reused.
pub const REFS_SATURATED: u32 = (1 << 24) - 1;
/// [`Meta::order`] of a CBUF with an arena of its own.
pub const ORDER_SINGLE: u8 = 0xff;

impl Meta {
    /// References of this domain.
    pub fn refs(&self) -> u32 {
        self.word.load(Ordering::Relaxed) & !state::MASK
    }

    /// One of the constants in [`state`].
    pub fn state(&self) -> u32 {
        self.word.load(Ordering::Relaxed) & state::MASK
    }
}
