//! The queue API, PDPIX (Demikernel, SOSP 2021, section 4.2), and the library operating systems behind it.
//!
//! A [`Runtime`] serves one core. It opens [`Queue`]s: sockets, files, in-memory queues. `push` and `pop` are whole
//! operations on scatter-gather arrays; they try to finish at once, and what cannot is named by a [`Token`] and waited
//! for. A program writes either style, also mixed:
//!
//! ```
//! use towpath_libos::{Address, Config, Runtime};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rt = Runtime::start(Config::default())?;
//! let listener = rt.listen(&"127.0.0.1:0".parse()?)?;
//! let address = listener.local_addr()?;
//!
//! // A connection is a coroutine.
//! rt.spawn(async move {
//!     let Ok((conn, _peer)) = listener.accept().await else { return };
//!     while let Ok(message) = conn.pop().await {
//!         if message.is_empty() || conn.push(message).await.is_err() {
//!             return;
//!         }
//!     }
//! })?;
//!
//! // Or operations are tokens.
//! let client = rt.block_on(rt.connect_to(&address))?;
//! let push = rt.push(client.qd(), rt.memory().copy_from(b"ping")?)?;
//! rt.wait(push, None)?.outcome?;
//! let answer = rt.block_on(client.pop())?;
//! assert_eq!(answer.segments()[0][..], b"ping"[..]);
//! rt.shutdown();
//! # Ok(())
//! # }
//! ```
//!
//! The library OS is chosen when the runtime starts ([`LibOs`]); no operation goes through dynamic dispatch.

mod address;
mod config;
mod core;
mod error;
mod inet;
mod kernel;
mod memory_queue;
mod queue;
mod runtime;
mod signal;
mod sys;
mod tokens;
mod waiting;
mod waitset;

pub use address::{Address, Domain, UnixAddress};
pub use config::{Backend, Config, LibOs, Waiting};
pub use core::{Counters, Qd};
pub use error::{Error, Result};
pub use inet::config::{Cidr, NetConfig, NetDevice, Route, XdpMode, parse_cidr, parse_route};
pub use kernel::file::{OpenOptions, Whence};
pub use kernel::socket::{Kind, Opt};
pub use queue::{Datagram, How, Queue};
pub use runtime::{Runtime, Stats};
pub use tokens::{Completion, Outcome, Token};
pub use towpath_coro::{Class, Nanos, TaskId, yield_now};
pub use towpath_device::fault::FaultConfig;
pub use waitset::WaitSet;

/// Connections that may wait to be accepted; the kernel lowers it to net.core.somaxconn.
pub const BACKLOG: u32 = 4096;
