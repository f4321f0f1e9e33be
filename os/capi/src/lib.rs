//! libtowpath: PDPIX for C. The contract is `include/towpath.h`; this crate only translates.
//!
//! No panic crosses into C: each function runs inside [`failure::guard`], which turns one into `-EIO`. Handles start
//! with a magic number, so that a null, stale or foreign one is an error wherever the memory behind it still tells.

mod address;
mod failure;
mod memory;
mod operations;
mod queues;
mod runtime;
mod sga;
mod waitset;
