//! Addresses of both ends: IPv4, IPv6 and UNIX, as text (`127.0.0.1:7`, `[::1]:7`, `name:7`, `unix:/path`,
//! `unix:@abstract`) and as the kernel wants them.

use crate::error::{Error, Result};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a queue is bound or connected.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IPv4 or IPv6 address and a port.
    Inet(SocketAddr),
    /// A UNIX socket.
    Unix(UnixAddress),
}

/// The name of a UNIX socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UnixAddress {
    /// A path in the file system, removed when the queue bound to it is closed.
    Path(PathBuf),
    /// A name in Linux' abstract namespace, without its leading zero byte.
    Abstract(Box<[u8]>),
    /// A socket that was never bound.
    Unnamed,
}

/// Which family of addresses a socket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Domain {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// UNIX sockets.
    Unix,
}

impl Address {
    /// The family it belongs to.
    pub fn domain(&self) -> Domain {
        match self {
            Address::Inet(SocketAddr::V4(_)) => Domain::V4,
            Address::Inet(SocketAddr::V6(_)) => Domain::V6,
            Address::Unix(_) => Domain::Unix,
        }
    }

    /// The IP address and port, if it is one.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            Address::Inet(address) => Some(*address),
            Address::Unix(_) => None,
        }
    }

    /// The port, if it has one.
    pub fn port(&self) -> Option<u16> {
        self.inet().map(|address| address.port())
    }

    /// A UNIX socket at `path`.
    pub fn unix(path: impl Into<PathBuf>) -> Address {
        Address::Unix(UnixAddress::Path(path.into()))
    }

    /// Every address `text` stands for, the preferred one first. A host name is looked up by the system's resolver,
    /// which blocks; do it at start.
    pub fn resolve(text: &str) -> Result<Vec<Address>> {
        let fail = |why: &str| Error::Address { text: text.into(), why: why.into() };
        if let Some(name) = text.strip_prefix("unix:") {
            return match name.strip_prefix('@') {
                _ if name.is_empty() || name == "@" => Err(fail("a UNIX address needs a path or @name")),
                Some(name) => Ok(vec![Address::Unix(UnixAddress::Abstract(name.as_bytes().into()))]),
                None => Ok(vec![Address::unix(name)]),
            };
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(vec![Address::Inet(address)]);
        }
        if !text.contains(':') {
            return Err(fail("an address is HOST:PORT, [IPV6]:PORT, unix:/PATH or unix:@NAME"));
        }
        let found: Vec<Address> = text
            .to_socket_addrs()
            .map_err(|e| fail(&format!("cannot be resolved ({e})")))?
            .map(Address::Inet)
            .collect();
        if found.is_empty() {
            return Err(fail("the name has no address"));
        }
        Ok(found)
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        Ok(Address::resolve(text)?.swap_remove(0))
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Inet(address)
    }
}

impl From<(Ipv4Addr, u16)> for Address {
    fn from((ip, port): (Ipv4Addr, u16)) -> Address {
        Address::Inet(SocketAddr::V4(SocketAddrV4::new(ip, port)))
    }
}

impl From<(Ipv6Addr, u16)> for Address {
    fn from((ip, port): (Ipv6Addr, u16)) -> Address {
        Address::Inet(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, 0)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Inet(address) => address.fmt(f),
            Address::Unix(UnixAddress::Path(path)) => write!(f, "unix:{}", path.display()),
            Address::Unix(UnixAddress::Abstract(name)) => write!(f, "unix:@{}", String::from_utf8_lossy(name)),
            Address::Unix(UnixAddress::Unnamed) => write!(f, "unix:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_as_text_reads_back_the_same() {
        for text in ["127.0.0.1:7", "[::1]:65535", "unix:/tmp/x", "unix:@abstract"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn address_without_a_port_says_what_an_address_is() {
        let error = "localhost".parse::<Address>().unwrap_err();
        assert!(error.to_string().contains("HOST:PORT"), "{error}");
        assert!("unix:".parse::<Address>().is_err());
        assert!("127.0.0.1:99999".parse::<Address>().is_err());
    }
}
