//! DDR4: the address map, the controller that schedules commands, and an independent checker of its traces.

pub mod check;
mod controller;
mod map;

pub(crate) use controller::{Channel, Issued};
pub use controller::{Command, CommandKind, DramStats};
pub use map::{Location, Map};
