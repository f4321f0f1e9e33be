//! The protocol: requests in ([`Input`]), arguments as views of the received buffers ([`Args`]), replies out
//! ([`Reply`] on [`Gather`]). Nothing here does input or output; it is fed buffers and gives buffers back.
//!
//! Follows the Redis serialization protocol, versions 2 and 3 (RESP2, RESP3), and words its errors as Redis 7 does.

mod args;
mod gather;
mod input;
mod reply;
#[cfg(test)]
mod tests;

pub use args::{Arg, Args, Command, Payload, RETAIN_MIN};
pub use gather::Gather;
pub use input::{Input, Limits, ProtocolError, split_inline};
pub use reply::{Protocol, Reply};
