//! What can go wrong, for the caller of the stack.

use std::fmt;

/// Why a call failed, or why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The handle names nothing, or what it named is gone.
    NoSuchSocket,
    /// The address and port are taken.
    AddressInUse,
    /// The address is not one of this host's.
    AddressNotAvailable,
    /// No route leads to the address, or this host has no address of its family.
    NoRoute,
    /// Every port of the ephemeral range is taken towards that peer.
    NoPortLeft,
    /// The stack holds as many connections as its configuration allows.
    TooManyConnections,
    /// The connection is not established (any more), or this side has finished sending.
    NotConnected,
    /// The peer refused the connection.
    Refused,
    /// The peer reset the connection.
    Reset,
    /// This side gave the connection up.
    Aborted,
    /// The peer no longer answers.
    TimedOut,
    /// A router or the peer's host says the peer cannot be reached.
    Unreachable,
    /// A datagram larger than its protocol can carry.
    MessageTooLong {
        /// What fits, in bytes.
        limit: usize,
    },
    /// Too much waits to be sent already.
    QueueFull,
    /// Memory for a buffer ran out.
    OutOfMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NoSuchSocket => "the socket does not exist any more",
            Error::AddressInUse => "the address and port are in use: choose another port, or close what holds it",
            Error::AddressNotAvailable => "the address does not belong to this host: add it to the configuration",
            Error::NoRoute => "no route leads to the address: add a route or a gateway",
            Error::NoPortLeft => "every ephemeral port is in use towards that peer",
            Error::TooManyConnections => "the limit of connections is reached: raise `connections_max`",
            Error::NotConnected => "the connection is not open in that direction",
            Error::Refused => "the peer refused the connection: nothing listens there",
            Error::Reset => "the peer reset the connection",
            Error::Aborted => "the connection was given up by this side",
            Error::TimedOut => "the peer does not answer",
            Error::Unreachable => "the peer cannot be reached",
            Error::MessageTooLong { limit } => return write!(f, "the datagram is too long: {limit} bytes fit"),
            Error::QueueFull => "too much waits to be sent: try again after the next event",
            Error::OutOfMemory => "no memory is left for a buffer",
        })
    }
}

impl std::error::Error for Error {}

impl From<towpath_cbuf::Error> for Error {
    fn from(_: towpath_cbuf::Error) -> Error {
        Error::OutOfMemory
    }
}
