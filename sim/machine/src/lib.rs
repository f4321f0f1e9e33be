//! The simulated machine: boards, program loading, and the Linux system-call layer that runs riscv64 programs
//! directly.
//!
//! [`Board`] is a readable file; [`Machine`] is one made from it, either with a Linux program
//! ([`Machine::with_program`]) or with a bare-metal image ([`Machine::bare`]). Everything is deterministic.
#![forbid(unsafe_code)]

mod agent;
mod board;
mod checkpoint;
mod devices;
pub mod doc;
mod elf;
mod error;
mod frames;
mod kernel;
mod machine;
mod space;
mod stats;
mod timed;
pub mod verify;

pub use agent::Agent;
pub use board::{Board, CoreKind, Harts, Memory, Placement, Program, parse_size};
pub use devices::Devices;
pub use elf::{Image, Segment};
pub use error::Error;
pub use frames::{Frames, Rng};
pub use kernel::{Console, Input, Kernel, KernelStats, Options, call_name};
pub use machine::{Machine, Outcome};
pub use stats::{Statistic, Statistics};
pub use timed::{Timed, configuration};
