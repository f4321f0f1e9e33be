//! Scatter-gather arrays: a message as a row of buffers. All of it works by reference; only what says "copy" copies.

use crate::buf::Buf;
use crate::counters::count_copy;
use crate::error::Result;
use crate::memory::Memory;
use smallvec::SmallVec;

/// Segments kept without an allocation: a header and its payload.
const INLINE: usize = 2;

/// A row of buffers that together are one message. Empty buffers leave no segment. Positions past the end panic, as
/// for slices.
#[derive(Clone, Default)]
pub struct Sga {
    segments: SmallVec<[Buf; INLINE]>,
    len: usize,
}

impl Sga {
    /// An empty one.
    pub fn new() -> Sga {
        Sga::default()
    }

    /// Bytes of all segments.
    pub fn len(&self) -> usize {
        self.len
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffers, in order; none is empty.
    pub fn segments(&self) -> &[Buf] {
        &self.segments
    }

    /// Appends a buffer.
    pub fn push_back(&mut self, buf: Buf) {
        if !buf.is_empty() {
            self.len += buf.len();
            self.segments.push(buf);
        }
    }

    /// Puts a buffer in front.
    pub fn push_front(&mut self, buf: Buf) {
        if !buf.is_empty() {
            self.len += buf.len();
            self.segments.insert(0, buf);
        }
    }

    /// Moves all of `other` behind this.
    pub fn append(&mut self, other: &mut Sga) {
        self.len += std::mem::take(&mut other.len);
        self.segments.append(&mut other.segments);
    }

    /// Number of the segment that holds byte `n`, and the byte's position in it; one past the last for the end.
    fn locate(&self, n: usize) -> (usize, usize) {
        assert!(n <= self.len, "a scatter-gather array of {} bytes has no byte {n}", self.len);
        let mut rest = n;
        for (i, segment) in self.segments.iter().enumerate() {
            if rest < segment.len() {
                return (i, rest);
            }
            rest -= segment.len();
        }
        (self.segments.len(), 0)
    }

    /// Cuts the first `n` bytes off and returns them.
    pub fn split_to(&mut self, n: usize) -> Sga {
        let back = self.split_off(n);
        std::mem::replace(self, back)
    }

    /// Cuts everything from byte `n` on off and returns it.
    pub fn split_off(&mut self, n: usize) -> Sga {
        let (i, at) = self.locate(n);
        let mut back = Sga { segments: SmallVec::new(), len: self.len - n };
        let mut whole = i;
        if at > 0 {
            back.segments.push(self.segments[i].split_off(at));
            whole += 1;
        }
        back.segments.extend(self.segments.drain(whole..));
        self.len = n;
        back
    }

    /// Drops the first `n` bytes.
    pub fn trim_front(&mut self, n: usize) {
        let (i, at) = self.locate(n);
        self.segments.drain(..i);
        if at > 0 {
            self.segments[0].trim_front(at);
        }
        self.len -= n;
    }

    /// Drops the last `n` bytes.
    pub fn trim_back(&mut self, n: usize) {
        assert!(n <= self.len, "a scatter-gather array of {} bytes cannot lose {n}", self.len);
        self.len -= n;
        let mut rest = n;
        while rest > 0 {
            let last = self.segments.last_mut().expect("the lengths sum to `len`");
            if last.len() > rest {
                last.trim_back(rest);
                return;
            }
            rest -= last.len();
            self.segments.pop();
        }
    }

    /// Copies the first bytes into `to`, as many as fit, counted; how many.
    pub fn copy_to_slice(&self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for segment in &self.segments {
            let n = segment.len().min(to.len() - done);
            to[done..done + n].copy_from_slice(&segment[..n]);
            done += n;
        }
        count_copy(done);
        done
    }

    /// The bytes in one buffer: the only segment by reference, several copied together, counted.
    pub fn to_contiguous(&self, memory: &Memory) -> Result<Buf> {
        if let [only] = &self.segments[..] {
            return Ok(only.clone());
        }
        let mut all = memory.alloc(self.len)?;
        self.copy_to_slice(&mut all);
        Ok(all.freeze())
    }

    /// The bytes in order.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.segments.iter().flat_map(|s| s.iter().copied())
    }
}

impl From<Buf> for Sga {
    fn from(buf: Buf) -> Sga {
        let mut sga = Sga::new();
        sga.push_back(buf);
        sga
    }
}

impl FromIterator<Buf> for Sga {
    fn from_iter<I: IntoIterator<Item = Buf>>(bufs: I) -> Sga {
        let mut sga = Sga::new();
        bufs.into_iter().for_each(|b| sga.push_back(b));
        sga
    }
}

impl std::fmt::Debug for Sga {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sga({} bytes in {} segments)", self.len, self.segments.len())
    }
}
