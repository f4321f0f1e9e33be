//! Cores of the simulated machine. [`functional::Core`] counts instructions and knows no time; it is what loads,
//! fast-forwards and checks the timing cores.
#![forbid(unsafe_code)]

pub mod functional;
mod ram;
pub mod timing;

pub use ram::{Devices, NoDevices, Ram};
