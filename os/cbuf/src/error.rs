//! What can go wrong with buffers.

use std::fmt;

/// An error of this crate: what was tried, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is not enough memory under the limit.
    OutOfMemory {
        /// Bytes asked for.
        requested: usize,
        /// The limit of this [`crate::Memory`] in bytes.
        limit: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::OutOfMemory { requested, limit } => {
                write!(f, "out of memory: {requested} bytes asked for, the limit is {limit}; raise it or free buffers")
            }
        }
    }
}

impl std::error::Error for Error {}
