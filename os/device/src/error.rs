//! The one error type of the devices: what was tried, what came of it, and what to do.

use std::fmt;
use std::io;

/// Why a device could not do what was asked.
#[derive(Debug)]
pub enum Error {
    /// A system call failed.
    System {
        /// What was being done, for the message.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No buffer for a frame.
    Memory(towpath_cbuf::Error),
    /// The process at the other end is gone; the device stays readable until drained, then fails with this for ever.
    PeerGone,
    /// The other process broke the protocol; the device is dead, this process is unharmed.
    Protocol(String),
    /// The device cannot do this here.
    Unsupported(String),
    /// A setting or name that makes no sense.
    Config(String),
}

impl Error {
    /// The last operating system error, met while doing `what`.
    pub(crate) fn last(what: &str) -> Error {
        Error::System { what: what.to_string(), source: io::Error::last_os_error() }
    }

    /// An I/O error met while doing `what`.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Error {
        Error::System { what: what.into(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::System { what, source } => {
                write!(f, "{what}: {source}")?;
                match source.raw_os_error() {
                    Some(libc::EPERM | libc::EACCES) => write!(
                        f,
                        " (needs CAP_NET_RAW and CAP_NET_ADMIN, for xdp also CAP_BPF and CAP_IPC_LOCK; \
                         `towpath doctor --nic IFACE` prints the setcap line)"
                    ),
                    _ => Ok(()),
                }
            }
            Error::Memory(error) => write!(f, "no buffer for a frame: {error}"),
            Error::PeerGone => write!(f, "the process at the other end of this device is gone"),
            Error::Protocol(what) => write!(f, "the process at the other end broke the protocol: {what}"),
            Error::Unsupported(what) => write!(f, "not possible here: {what}"),
            Error::Config(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<towpath_cbuf::Error> for Error {
    fn from(error: towpath_cbuf::Error) -> Error {
        Error::Memory(error)
    }
}
