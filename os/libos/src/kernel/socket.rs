//! A socket of the kernel: its descriptor, its options and addresses, and the operations that wait on it. How they
//! make progress is the drivers' business.

use crate::core::Returned;
use crate::error::{Error, Result};
use crate::sys::{self, RawAddress};
use crate::tokens::OpList;
use crate::{Address, Domain};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

/// What a socket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A stream of bytes: TCP, or a UNIX stream.
    Stream,
    /// Messages: UDP, or UNIX datagrams.
    Datagram,
}

/// Options of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opt {
    /// Send small segments at once (TCP_NODELAY). On from the start, for a push is a whole message.
    NoDelay(bool),
    /// Probe a silent peer after this long, and drop it after three probes unanswered; off with none.
    KeepAlive(Option<Duration>),
    /// How long a close goes on sending; zero resets the connection; none leaves it to the kernel.
    Linger(Option<Duration>),
    /// Let several sockets listen on one address, each getting a share of the connections (SO_REUSEPORT).
    ReusePort(bool),
    /// Bytes the kernel may hold for this socket to receive.
    ReceiveBuffer(usize),
    /// Bytes the kernel may hold for this socket to send.
    SendBuffer(usize),
}

/// Where a socket is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Fresh,
    Listening,
    Connecting,
    Connected,
}

/// See the module.
pub(crate) struct Socket {
    pub fd: OwnedFd,
    pub domain: Domain,
    pub kind: Kind,
    pub role: Role,
    /// Pops, or accepts on a listener, oldest first.
    pub pops: OpList,
    /// Pushes, behind a connect that is under way.
    pub pushes: OpList,
    /// Bytes in `pushes`.
    pub push_bytes: usize,
    /// Completions that dropped futures gave back.
    pub returned: Returned,
    /// The stream has ended: every further pop is empty.
    pub ended: bool,
    /// The connection failed with this error: every further operation does too.
    pub failed: sys::Errno,
    /// A UNIX path this socket made and removes.
    bound: Option<PathBuf>,
    /// What the system-call driver knows.
    pub ready: super::syscalls::Readiness,
    /// What the io_uring driver knows.
    pub ring: super::uring::RingState,
}

/// An accept that either waits or has a connection.
pub(crate) enum Accepting {
    Pending(u32),
    Now(Socket, Address),
}

impl Socket {
    pub fn open(domain: Domain, kind: Kind) -> Result<Socket> {
        let fd = sys::socket(domain, kind == Kind::Stream).map_err(|e| Error::os("socket", e))?;
        let socket = Socket::from_fd(fd, domain, kind, Role::Fresh);
        if kind == Kind::Stream && domain != Domain::Unix {
            // Accepted sockets inherit it from their listener.
            socket.set_option(Opt::NoDelay(true))?;
        }
        Ok(socket)
    }

    fn from_fd(fd: OwnedFd, domain: Domain, kind: Kind, role: Role) -> Socket {
        Socket {
            fd,
            domain,
            kind,
            role,
            pops: OpList::EMPTY,
            pushes: OpList::EMPTY,
            push_bytes: 0,
            returned: Returned::new(),
            ended: false,
            failed: 0,
            bound: None,
            ready: Default::default(),
            ring: Default::default(),
        }
    }

    /// The socket of a connection that `self` accepted.
    pub fn accepted(&self, fd: OwnedFd) -> Socket {
        Socket::from_fd(fd, self.domain, Kind::Stream, Role::Connected)
    }

    #[inline]
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn is_stream(&self) -> bool {
        self.kind == Kind::Stream
    }

    pub fn bind(&mut self, address: &Address) -> Result<()> {
        self.check_domain("bind", address)?;
        if self.kind == Kind::Stream && self.domain != Domain::Unix {
            // A server that starts again must not wait for the old connections to leave TIME_WAIT.
            sys::set_option(self.raw(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1i32)
                .map_err(|e| Error::os("setsockopt SO_REUSEADDR", e))?;
        }
        let raw = RawAddress::new(address).map_err(|e| Error::os_on("bind", e, address))?;
        sys::bind(self.raw(), &raw).map_err(|e| Error::os_on("bind", e, address))?;
        if let Address::Unix(crate::UnixAddress::Path(path)) = address {
            self.bound = Some(path.clone());
        }
        Ok(())
    }

    pub fn listen(&mut self, backlog: u32) -> Result<()> {
        if self.kind != Kind::Stream {
            return Err(Error::Unsupported { operation: "listen", why: "only a stream socket listens" });
        }
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        sys::listen(self.raw(), backlog).map_err(|e| Error::os("listen", e))?;
        self.role = Role::Listening;
        Ok(())
    }

    pub fn check_domain(&self, operation: &'static str, address: &Address) -> Result<()> {
        if address.domain() != self.domain {
            return Err(Error::Unsupported { operation, why: "the address is of another family than the socket" });
        }
        Ok(())
    }

    pub fn set_option(&self, option: Opt) -> Result<()> {
        let fd = self.raw();
        let on = |operation: &'static str| move |errno| Error::os(operation, errno);
        let seconds = |time: Duration| time.as_secs().clamp(1, i32::MAX as u64) as i32;
        let size = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
        match option {
            Opt::NoDelay(_) | Opt::KeepAlive(_) if self.domain == Domain::Unix || self.kind == Kind::Datagram => {
                Err(Error::Unsupported { operation: "set_option", why: "only a TCP socket has this option" })
            }
            Opt::NoDelay(yes) => sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, i32::from(yes))
                .map_err(on("setsockopt TCP_NODELAY")),
            Opt::KeepAlive(None) => {
                sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0i32).map_err(on("setsockopt SO_KEEPALIVE"))
            }
            Opt::KeepAlive(Some(idle)) => {
                let probe = (seconds(idle) / 3).max(1);
                sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds(idle))
                    .and_then(|()| sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, probe))
                    .and_then(|()| sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3i32))
                    .and_then(|()| sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1i32))
                    .map_err(on("setsockopt SO_KEEPALIVE"))
            }
            Opt::Linger(time) => {
                let linger = libc::linger {
                    l_onoff: i32::from(time.is_some()),
                    l_linger: time.map_or(0, |t| t.as_secs().min(i32::MAX as u64) as i32),
                };
                sys::set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger).map_err(on("setsockopt SO_LINGER"))
            }
            Opt::ReusePort(yes) => sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, i32::from(yes))
                .map_err(on("setsockopt SO_REUSEPORT")),
            Opt::ReceiveBuffer(bytes) => {
                sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, size(bytes)).map_err(on("setsockopt SO_RCVBUF"))
            }
            Opt::SendBuffer(bytes) => {
                sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, size(bytes)).map_err(on("setsockopt SO_SNDBUF"))
            }
        }
    }

    pub fn local_address(&self) -> Result<Address> {
        let raw = sys::local_address(self.raw()).map_err(|e| Error::os("getsockname", e))?;
        raw.address().ok_or(Error::os("getsockname", libc::EAFNOSUPPORT))
    }

    pub fn peer_address(&self) -> Result<Address> {
        let raw = sys::peer_address(self.raw()).map_err(|e| Error::os("getpeername", e))?;
        raw.address().ok_or(Error::os("getpeername", libc::EAFNOSUPPORT))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(path) = &self.bound {
            // Already removed by someone else: then there is nothing left to do.
            let _ = std::fs::remove_file(path);
        }
    }
}
