//! The heap: private memory for ordinary objects, in superblocks of one size each, with references that outlive the
//! program's `free`.

pub(crate) mod class;
pub(crate) mod huge;
pub(crate) mod pool;
pub(crate) mod space;
mod supers;

pub(crate) use supers::free_remote;
pub(crate) mod remote;
