//! The one error type of the queue API. Each says what was tried and, where it helps, what to do about it; each has an
//! `errno` so that the C interface can hand it on.

use crate::{Qd, Token};
use std::fmt;

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused an operation.
    Os {
        /// What was tried, as the system call is named: `bind`, `accept`.
        operation: &'static str,
        /// The kernel's error number, positive.
        errno: i32,
        /// The address or path it was tried on, where one call serves many.
        subject: Option<Box<str>>,
    },
    /// The queue was closed before the operation completed.
    Canceled,
    /// The token was never issued, or its completion has been taken: a token is waited for once.
    StaleToken(Token),
    /// Another waiter waits for this token already.
    AlreadyWaited(Token),
    /// The queue descriptor was never issued or its queue is closed.
    BadQueue(Qd),
    /// This kind of queue, or a queue in this state, has no such operation.
    Unsupported {
        /// What was tried.
        operation: &'static str,
        /// Why it cannot be done.
        why: &'static str,
    },
    /// The time given ran out; what was waited for is still pending and can be waited for again.
    TimedOut,
    /// More is pending on this queue than its limit allows; wait for completions first.
    Full {
        /// The limit that was reached, in operations or bytes as `unit` says.
        limit: usize,
        /// `operations` or `bytes`.
        unit: &'static str,
    },
    /// Too many queues or operations are open in this runtime.
    Exhausted {
        /// What ran out.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// Memory for the buffer could not be had.
    OutOfMemory {
        /// Bytes asked for.
        requested: usize,
    },
    /// The text is no address, or its name cannot be resolved.
    Address {
        /// The text.
        text: Box<str>,
        /// Why not.
        why: Box<str>,
    },
    /// A blocking call was made from inside a coroutine, where only `await` may wait.
    InsideCoroutine,
    /// A coroutine could not be started.
    Spawn(Box<str>),
    /// A network device could not be opened, or failed for good.
    Device {
        /// Which.
        device: Box<str>,
        /// Why.
        why: Box<str>,
    },
}

/// `Result` of the queue API.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A refusal of the kernel.
    pub(crate) fn os(operation: &'static str, errno: i32) -> Error {
        Error::Os { operation, errno, subject: None }
    }

    /// A refusal of the kernel concerning an address or a path.
    pub(crate) fn os_on(operation: &'static str, errno: i32, subject: impl fmt::Display) -> Error {
        Error::Os { operation, errno, subject: Some(subject.to_string().into_boxed_str()) }
    }

    /// The error number (positive) that says this best; `ECANCELED` for operations of a closed queue.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Os { errno, .. } => *errno,
            Error::Canceled => libc::ECANCELED,
            Error::StaleToken(_) => libc::EINVAL,
            Error::AlreadyWaited(_) => libc::EBUSY,
            Error::BadQueue(_) => libc::EBADF,
            Error::Unsupported { .. } => libc::EOPNOTSUPP,
            Error::TimedOut => libc::ETIMEDOUT,
            Error::Full { .. } => libc::ENOBUFS,
            Error::Exhausted { .. } => libc::EMFILE,
            Error::OutOfMemory { .. } => libc::ENOMEM,
            Error::Address { .. } => libc::EADDRNOTAVAIL,
            Error::InsideCoroutine => libc::EDEADLK,
            Error::Spawn(_) => libc::EAGAIN,
            Error::Device { .. } => libc::ENETDOWN,
        }
    }
}

/// What a person can do about it, for errors where that is not plain.
fn advice(operation: &str, errno: i32) -> &'static str {
    match errno {
        libc::EADDRINUSE => "; another program listens there: stop it or choose another address",
        libc::EMFILE => "; this process has too many open files: raise `ulimit -n` or close connections",
        libc::ENFILE => "; the whole system has too many open files",
        libc::EACCES if operation == "bind" => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        libc::EADDRNOTAVAIL => "; no interface of this machine has that address",
        libc::ECONNREFUSED => "; nothing listens there",
        libc::ENOSPC => "; the disk is full",
        libc::EMSGSIZE => "; the datagram is larger than the network takes",
        _ => "",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Os { operation, errno, subject } => {
                write!(f, "{operation}")?;
                if let Some(subject) = subject {
                    write!(f, " {subject}")?;
                }
                let text = std::io::Error::from_raw_os_error(*errno).to_string();
                let text = text.split(" (os error").next().unwrap_or_default();
                write!(f, ": {text}{}", advice(operation, *errno))
            }
            Error::Canceled => write!(f, "the queue was closed before the operation completed"),
            Error::StaleToken(token) => {
                write!(f, "token {token} was never issued or has been waited for already; a token is waited for once")
            }
            Error::AlreadyWaited(token) => write!(f, "another waiter waits for token {token} already"),
            Error::BadQueue(qd) => write!(f, "queue {qd} is not open"),
            Error::Unsupported { operation, why } => write!(f, "{operation}: {why}"),
            Error::TimedOut => write!(f, "the time given ran out"),
            Error::Full { limit, unit } => {
                write!(f, "more than {limit} {unit} are pending on this queue; wait for completions first")
            }
            Error::Exhausted { what, limit } => write!(f, "this runtime has its {limit} {what} in use"),
            Error::OutOfMemory { requested } => write!(f, "no memory for {requested} bytes"),
            Error::Address { text, why } => write!(f, "{text}: {why}"),
            Error::InsideCoroutine => {
                write!(f, "a blocking call inside a coroutine would stop the runtime; await the operation instead")
            }
            Error::Spawn(why) => write!(f, "cannot start a coroutine: {why}"),
            Error::Device { device, why } => write!(f, "{device}: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<towpath_cbuf::Error> for Error {
    fn from(error: towpath_cbuf::Error) -> Error {
        match error {
            towpath_cbuf::Error::OutOfMemory { requested, .. } => Error::OutOfMemory { requested },
            _ => Error::OutOfMemory { requested: 0 },
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        match error {
            Error::Os { errno, subject: None, .. } => std::io::Error::from_raw_os_error(errno),
            other => std::io::Error::other(other),
        }
    }
}
