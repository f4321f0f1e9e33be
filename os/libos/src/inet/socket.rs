//! A socket of the stack as a queue: what it is bound to, and the operations that wait on it.

use crate::core::Returned;
use crate::error::{Error, Result};
use crate::tokens::OpList;
use crate::{Address, Domain, Kind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use towpath_inet::{ListenerId, TcpId, UdpId};

/// What the socket is in the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing yet.
    Fresh,
    /// A listener.
    Listener(ListenerId),
    /// A connection that is being opened, and the slot of the connect.
    Connecting(TcpId, u32),
    /// A connection.
    Connected(TcpId),
    /// A datagram socket.
    Udp(UdpId),
}

/// See the module.
pub(crate) struct NetSocket {
    pub domain: Domain,
    pub kind: Kind,
    pub place: Place,
    /// Where `bind` put it.
    pub bound: Option<SocketAddr>,
    /// Who a datagram socket was connected to.
    pub peer: Option<SocketAddr>,
    /// Pops, or accepts on a listener, oldest first.
    pub pops: OpList,
    /// Pushes the connection has not taken responsibility for, oldest first.
    pub pushes: OpList,
    /// Completions that dropped futures gave back.
    pub returned: Returned,
    /// How a close ends the connection: zero resets it.
    pub linger: Option<Duration>,
}

impl NetSocket {
    pub fn new(domain: Domain, kind: Kind) -> NetSocket {
        NetSocket {
            domain,
            kind,
            place: Place::Fresh,
            bound: None,
            peer: None,
            pops: OpList::EMPTY,
            pushes: OpList::EMPTY,
            returned: Returned::new(),
            linger: None,
        }
    }

    /// The connection, open or being opened.
    pub fn tcp(&self) -> Option<TcpId> {
        match self.place {
            Place::Connecting(id, _) | Place::Connected(id) => Some(id),
            _ => None,
        }
    }

    /// The address given to an operation, which must be of this socket's family.
    pub fn inet(&self, operation: &'static str, address: &Address) -> Result<SocketAddr> {
        match address.inet() {
            Some(inet) if address.domain() == self.domain => Ok(inet),
            _ => Err(Error::Unsupported { operation, why: "the address is of another family than the socket" }),
        }
    }

    /// The address that stands for all of ours.
    pub fn any(&self) -> SocketAddr {
        let ip: IpAddr = match self.domain {
            Domain::V6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        SocketAddr::new(ip, 0)
    }
}

/// A refusal of the stack, told as the kernel would.
pub(crate) fn refused(operation: &'static str, error: towpath_inet::Error) -> Error {
    use towpath_inet::Error as Net;
    let errno = match error {
        Net::NoSuchSocket => libc::EBADF,
        Net::AddressInUse => libc::EADDRINUSE,
        Net::AddressNotAvailable | Net::NoPortLeft => libc::EADDRNOTAVAIL,
        Net::NoRoute => libc::ENETUNREACH,
        Net::TooManyConnections => libc::ENFILE,
        Net::NotConnected => libc::ENOTCONN,
        Net::Refused => libc::ECONNREFUSED,
        Net::Reset => libc::ECONNRESET,
        Net::Aborted => libc::ECONNABORTED,
        Net::TimedOut => libc::ETIMEDOUT,
        Net::Unreachable => libc::EHOSTUNREACH,
        Net::MessageTooLong { .. } => libc::EMSGSIZE,
        Net::QueueFull => libc::ENOBUFS,
        Net::OutOfMemory => libc::ENOMEM,
    };
    Error::os(operation, errno)
}
