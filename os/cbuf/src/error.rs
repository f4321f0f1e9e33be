//! What can go wrong with memory.

use crate::heap::pool::Misuse;
use crate::id::ArenaId;

/// Errors of this crate. After an error nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No memory for the request: the limit is reached, or the system has none. Free something or raise the limit.
    OutOfMemory {
        /// Bytes asked for.
        requested: usize,
        /// The limit in force, in bytes.
        limit: usize,
    },
    /// One buffer holds at most 4 GB less a byte; use a scatter-gather array.
    TooLarge {
        /// Bytes asked for.
        requested: usize,
    },
    /// All pools of the process are taken: there are as many memories as cores it can serve.
    TooManyPools,
    /// A pointer was refused.
    Misuse(Misuse),
    /// No such arena in this domain.
    NoArena(ArenaId),
    /// An arena that came from another process is not what it must be.
    BadArena(&'static str),
    /// A range outside the arena.
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// The configuration cannot work.
    Config(&'static str),
    /// The system refused a call.
    System {
        /// What was tried.
        what: &'static str,
        /// The number it gave (`errno`).
        errno: i32,
    },
}

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::OutOfMemory { requested, limit } if *limit == usize::MAX => {
                write!(f, "out of memory: the system has none left for {requested} bytes")
            }
            Error::OutOfMemory { requested, limit } => {
                write!(f, "out of memory: no {requested} bytes within the limit of {limit}; free some or raise it")
            }
            Error::TooLarge { requested } => {
                write!(f, "one buffer cannot hold {requested} bytes; split them over a scatter-gather array")
            }
            Error::TooManyPools => write!(f, "every memory pool of the process is in use; drop one first"),
            Error::Misuse(misuse) => write!(f, "{misuse}"),
            Error::NoArena(id) => write!(f, "no frame arena {} in this domain", id.0),
            Error::BadArena(why) => write!(f, "a frame arena of another process was refused: {why}"),
            Error::OutOfRange { offset, len, size } => {
                write!(f, "{len} bytes at {offset} do not lie in an arena of {size} bytes")
            }
            Error::Config(why) => write!(f, "memory configuration: {why}"),
            Error::System { what, errno } => {
                write!(f, "cannot {what}: {}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// What the system refused.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |e| Error::System { what, errno: e.raw_os_error().unwrap_or(0) }
    }
}

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Misuse::DoubleFree => "double free: the object is free already",
            Misuse::Foreign => "foreign pointer: it did not come from this heap",
            Misuse::Interior => "interior pointer: it is not the start of an object",
            Misuse::Stale => "stale pointer: its memory was given back to the system",
        })
    }
}
