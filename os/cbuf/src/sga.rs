//! Scatter-gather arrays.

use crate::{Buf, Error, Memory, counters};
use smallvec::SmallVec;

/// A message as a sequence of views. Clone, split, trim, prepend and append move no bytes.
#[derive(Clone, Debug, Default)]
pub struct Sga {
    segments: SmallVec<[Buf; 2]>,
    len: usize,
}

impl Sga {
    /// The empty message.
    pub fn new() -> Sga {
        Sga::default()
    }

    /// Bytes in all segments.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The segments in order; none is empty.
    pub fn segments(&self) -> &[Buf] {
        &self.segments
    }

    /// Adds a segment at the end.
    pub fn push_back(&mut self, buf: Buf) {
        if !buf.is_empty() {
            self.len += buf.len();
            self.segments.push(buf);
        }
    }

    /// Adds a segment in front.
    pub fn push_front(&mut self, buf: Buf) {
        if !buf.is_empty() {
            self.len += buf.len();
            self.segments.insert(0, buf);
        }
    }

    /// Moves all of `other` to the end of this.
    pub fn append(&mut self, other: &mut Sga) {
        self.len += std::mem::take(&mut other.len);
        self.segments.append(&mut other.segments);
    }

    /// Splits the first `n` bytes off.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, n: usize) -> Sga {
        let tail = self.split_off(n);
        std::mem::replace(self, tail)
    }

    /// Splits off what follows the first `n` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_off(&mut self, n: usize) -> Sga {
        assert!(n <= self.len, "{n} bytes of {}", self.len);
        let mut at = 0;
        let mut left = n;
        while at < self.segments.len() && self.segments[at].len() <= left {
            left -= self.segments[at].len();
            at += 1;
        }
        let mut tail = Sga::new();
        if left > 0 {
            tail.push_back(self.segments[at].split_off(left));
            at += 1;
        }
        self.segments.drain(at..).for_each(|b| tail.push_back(b));
        self.len = n;
        tail
    }

    /// Drops the first `n` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn trim_front(&mut self, n: usize) {
        drop(self.split_to(n));
    }

    /// Drops the last `n` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn trim_back(&mut self, n: usize) {
        assert!(n <= self.len, "{n} bytes of {}", self.len);
        drop(self.split_off(self.len - n));
    }

    /// Copies the message into the front of `to`; returns the bytes copied (counted).
    pub fn copy_to_slice(&self, to: &mut [u8]) -> usize {
        let mut at = 0;
        for segment in &self.segments {
            let n = segment.len().min(to.len() - at);
            to[at..at + n].copy_from_slice(&segment[..n]);
            at += n;
        }
        counters::count_copy(at);
        at
    }

    /// The message in one piece: the segment itself if there is one, else a copy (counted).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the copy finds no room.
    pub fn to_contiguous(&self, memory: &Memory) -> Result<Buf, Error> {
        match self.segments.as_slice() {
            [] => Ok(Buf::from_static(b"")),
            [one] => Ok(one.clone()),
            _ => {
                let mut buf = memory.alloc(self.len)?;
                self.copy_to_slice(&mut buf);
                Ok(buf.freeze())
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryConfig;

    #[test]
    fn message_cut_anywhere_keeps_its_bytes_and_copies_none() {
        let memory = Memory::new(MemoryConfig::default()).expect("memory");
        let bytes: Vec<u8> = (0..100).collect();
        let mut whole = Sga::from(memory.copy_from(&bytes[..33]).expect("room"));
        whole.push_back(memory.copy_from(&bytes[33..]).expect("room"));
        for cut in 0..=100 {
            let mut head = whole.clone();
            let tail = head.split_off(cut);
            let joined: Vec<u8> =
                head.segments().iter().chain(tail.segments()).flat_map(|b| b.iter().copied()).collect();
            assert_eq!((head.len(), tail.len()), (cut, 100 - cut));
            assert_eq!(joined, bytes);
        }
        drop(whole);
        assert_eq!(memory.stats().buffers_in_use, 0);
    }

    #[test]
    fn buffer_freed_on_another_thread_comes_back_to_its_own() {
        let memory = Memory::new(MemoryConfig::default()).expect("memory");
        let remote = memory.copy_from(b"abc").expect("room").into_remote();
        std::thread::spawn(move || assert_eq!(&remote[..], b"abc")).join().expect("the thread ends");
        memory.drain_remote();
        assert_eq!(memory.stats().buffers_in_use, 0);
    }
}
