//! The memory of the simulated machine: private L1 caches, a shared inclusive L2 that is the directory, MSHRs,
//! write-back buffers, prefetchers, crossbars with four virtual channels and credits, and DDR4 behind FR-FCFS
//! controllers. The bytes a load returns come out of these models; a plain memory beside them is only an oracle.
//!
//! One [`System`] owns all parts. A core calls [`System::access`]: a hit is answered in the call, a miss completes
//! later. Between calls the owner of the machine runs the events up to the next core cycle. The same calls give the
//! same ticks in every run.
//!
//! Coherence is MESI with a blocking home: per line one transaction at a time, ended by the requester's
//! acknowledgement. Requests, write-backs, snoops and responses travel in channels of their own, and nothing in a
//! higher one waits for a lower one, which is the argument for progress:
//! responses are always taken; a snoop needs only room for its response; a write-back is always taken; so each
//! transaction ends, and each request becomes one.
#![forbid(unsafe_code)]

mod agent;
mod array;
mod backing;
pub mod config;
pub mod dram;
mod home;
mod l1;
mod mutation;
mod oracle;
mod packet;
pub mod prefetch;
mod queue;
pub mod replace;
mod stats;
mod system;
pub mod validate;
pub mod verify;
mod xbar;

pub use backing::Backing;
pub use config::Config;
pub use home::HomeStats;
pub use l1::L1Stats;
pub use mutation::Mutation;
pub use oracle::Violation;
pub use packet::{LINE, State};
pub use queue::{Calendar, Tick};
pub use stats::Stat;
pub use system::{Access, AmoOp, Completion, Coverage, Op, Request, System};
