//! A UDP relay server (the workload of the Demikernel paper's section 7.4, where calls between two parties behind
//! firewalls go through a relay).
//!
//! A datagram starts with the number of its session, eight bytes, most significant first; what follows is the parties'
//! own. The first two addresses that send in a session are its parties, and what one sends goes to the other as it
//! came, number included. Datagrams that arrive before the second party, from a third address, or shorter than the
//! number are dropped and counted. Nothing is answered to a stranger, so the relay amplifies nothing.
#![forbid(unsafe_code)]

mod server;
mod sessions;

pub use server::{Counts, Options, Server};
pub use sessions::{Sessions, Verdict};

/// Bytes of the session number in front of every datagram.
pub const HEADER_LEN: usize = 8;

/// The session a datagram belongs to; none if it is too short to say.
pub fn session_of(datagram: &[u8]) -> Option<u64> {
    datagram.first_chunk::<HEADER_LEN>().map(|bytes| u64::from_be_bytes(*bytes))
}
