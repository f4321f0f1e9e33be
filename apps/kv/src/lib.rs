//! A key-value server that speaks RESP: strings with expiry, counters, transactions, an append-only log.
//!
//! The crate is built from the inside out. [`store`] keeps the data, [`resp`] reads requests and writes replies,
//! [`commands`] joins the two, [`log`] makes changes durable; none of these does input or output or reads a clock.
//! [`Server`] drives them on the queues of a library OS, one coroutine a connection.
//!
//! Long values stay in the buffers they arrived in and are sent from there: a reply refers to the value as it was
//! when the command ran, so overwriting or deleting it meanwhile changes nothing on the wire.
#![forbid(unsafe_code)]

pub mod commands;
pub mod config;
pub mod glob;
pub mod log;
pub mod number;
pub mod resp;
mod server;
pub mod state;
pub mod store;

pub use server::{Error, Server};
