//! Where received bytes go. A receive is offered a buffer of one of three sizes; what came is handed out in that
//! buffer when it fills a fair part of it, and copied into a buffer of its own size (a counted copy) when it does not,
//! so that 64 bytes kept by a program never pin a large buffer.

use crate::error::Result;
use towpath_cbuf::{BufMut, Memory, Sga};

/// Sizes of receive buffers, smallest first; the last takes the largest datagram there is.
const SIZES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];
/// Up to here a copy costs less than keeping count (Demikernel section 5.3).
pub(crate) const COPY_MAX: usize = 1024;

/// Which size a queue is offered next: it follows what came last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

impl Class {
    /// For streams: a page more than most requests need.
    pub const MIDDLE: Class = Class(1);
    /// For datagrams: what does not fit is lost, so everything must.
    pub const LARGEST: Class = Class(2);

    /// The class after `n` bytes came into a buffer of this one.
    fn after(self, n: usize) -> Class {
        let size = SIZES[usize::from(self.0)];
        if n == size {
            Class((self.0 + 1).min(2))
        } else if n > COPY_MAX && n * 4 < size {
            Class(self.0.saturating_sub(1))
        } else {
            self
        }
    }
}

/// One empty buffer a size, kept between receives: a receive that finds nothing costs no allocation.
pub(crate) struct Spares([Option<BufMut>; 3]);

impl Spares {
    pub fn new() -> Spares {
        Spares([None, None, None])
    }

    /// The buffer to receive into.
    #[inline]
    pub fn offer(&mut self, class: Class, memory: &Memory) -> Result<&mut BufMut> {
        let spare = &mut self.0[usize::from(class.0)];
        if let Some(spare) = spare {
            return Ok(spare);
        }
        Ok(spare.insert(memory.alloc(SIZES[usize::from(class.0)])?))
    }

    /// What was received: the first `n` bytes of the buffer of `class`, which moves on to what fits such an amount.
    #[inline]
    pub fn deliver(&mut self, class: &mut Class, n: usize, fixed: bool, memory: &Memory) -> Result<Sga> {
        let at = usize::from(class.0);
        let Some(spare) = &mut self.0[at] else { return Ok(Sga::new()) };
        let keep = n <= COPY_MAX || n * 4 < SIZES[at];
        if !fixed {
            *class = class.after(n);
        }
        if keep {
            return Ok(Sga::from(memory.copy_from(&spare[..n])?));
        }
        let Some(mut buffer) = self.0[at].take() else { return Ok(Sga::new()) };
        buffer.truncate(n);
        Ok(Sga::from(buffer.freeze()))
    }
}
