//! The echo server and its closed-loop client (Demikernel section 7.3): the smallest program that shows what a message
//! costs. Each connection is a coroutine; a message goes back in the buffers it came in, and may first be written to a
//! log that is on the disk before the reply leaves (Figure 7).
#![forbid(unsafe_code)]

mod client;
mod server;

pub use client::{Load, Measured, run};
pub use server::{Options, Server};
