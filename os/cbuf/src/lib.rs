//! Buffers: reference-counted views of bytes, and scatter-gather arrays of them.
//!
//! A [`Buf`] is an immutable view that costs one count to clone and nothing to slice; a [`BufMut`] is the sole owner of
//! its bytes. An [`Sga`] strings views together, so a header is put beside a payload, and a message cut into packets,
//! without a copy. What copies, counts: [`counters::copied_bytes`].

mod arena;
mod buf;
pub mod counters;
mod error;
mod memory;
mod sga;

pub use arena::FrameArena;
pub use buf::{ArenaId, Buf, BufMut, CbufId, ForeignOwner, RemoteBuf};
pub use error::Error;
pub use memory::{Memory, MemoryConfig, MemoryStats};
pub use sga::Sga;
