//! What the manager of shared buffers decides: when a buffer is garbage ([`collect`]) and how much memory each
//! protection domain deserves ([`policy`]).
//!
//! Both are pure: they read counters and metrics and return a verdict, so that the model checker and the benchmarks
//! run the very code the daemon runs.
#![forbid(unsafe_code)]

pub mod collect;
pub mod policy;
