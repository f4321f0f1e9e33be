//! Buffers: heap objects and frames that can be shared, cut and sent without being copied, and the allocators they
//! come from.
//!
//! A core has one [`Memory`]. Its *heap* serves objects of any size from superblocks of one size class each; its
//! *frames* are CBUFs, whole pages in arenas that devices and other processes can be shown. [`Buf`] and [`BufMut`]
//! view either; [`Sga`] strings views together. Counts are plain words of one thread; a [`RemoteBuf`] takes a buffer
//! to another thread and brings the reference back by a lock-free queue.
//!
//! No object is reused while anyone refers to it, whoever frees it. Double frees, and pointers that are foreign, stale
//! or inside an object, are refused and change nothing.

#[cfg(not(loom))]
mod buf;
#[cfg(not(loom))]
pub mod counters;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
pub mod frame;
#[cfg(not(loom))]
pub mod global;
#[cfg(not(loom))]
mod heap;
#[cfg(not(loom))]
mod id;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod sga;
mod sync;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
mod thread;

#[cfg(loom)]
#[path = "heap/remote.rs"]
mod remote;

#[cfg(not(loom))]
pub use {
    buf::{Buf, BufMut, RemoteBuf},
    error::{Error, Result},
    frame::{ArenaExport, ArenaView, Domain, DomainConfig, FrameArena, ImportedArena},
    global::TowpathAlloc,
    heap::pool::Misuse,
    id::{ArenaId, CbufId},
    memory::{ForeignOwner, Memory, MemoryConfig, MemoryStats},
    sga::Sga,
};
