//! Events: what became possible since the program last looked. Each socket stands in the queue at most once; what
//! happens meanwhile is merged, so the queue is bounded by the number of sockets.

use crate::tcp::TcpId;
use std::collections::VecDeque;

/// Names a listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ListenerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Names a UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct UdpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What a connection is ready for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ready(pub(crate) u8);

impl Ready {
    pub(crate) const READABLE: u8 = 1;
    pub(crate) const RELEASED: u8 = 2;
    pub(crate) const CONNECTED: u8 = 4;
    pub(crate) const DRAINED: u8 = 8;
    pub(crate) const CLOSED: u8 = 16;

    /// Data or the end of the stream can be popped.
    pub fn readable(self) -> bool {
        self.0 & Ready::READABLE != 0
    }

    /// A push that had to wait was taken responsibility for: see `tcp_released`.
    pub fn released(self) -> bool {
        self.0 & Ready::RELEASED != 0
    }

    /// The connection is established.
    pub fn connected(self) -> bool {
        self.0 & Ready::CONNECTED != 0
    }

    /// Everything pushed, and the end of the stream if this side closed, was acknowledged.
    pub fn drained(self) -> bool {
        self.0 & Ready::DRAINED != 0
    }

    /// The connection is over, by agreement or by an error: see `tcp_error`.
    pub fn closed(self) -> bool {
        self.0 & Ready::CLOSED != 0
    }
}

/// Something the program may want to act on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A connection is ready for something.
    Tcp(TcpId, Ready),
    /// A listener has a connection to accept.
    Accept(ListenerId),
    /// A UDP socket has a datagram or an error.
    Udp(UdpId),
}

/// A queue entry: connections keep their readiness themselves until it is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Queued {
    Tcp(TcpId),
    Accept(ListenerId),
    Udp(UdpId),
}

pub(crate) type Events = VecDeque<Queued>;
