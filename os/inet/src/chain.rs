//! A run of bytes in references to buffers: nearly always one, so one is held in place.

use towpath_cbuf::{Buf, Memory, Sga};

#[derive(Default)]
pub(crate) enum Chain {
    #[default]
    Empty,
    One(Buf),
    Many(Vec<Buf>),
}

impl Chain {
    #[inline]
    pub(crate) fn as_slice(&self) -> &[Buf] {
        match self {
            Chain::Empty => &[],
            Chain::One(buf) => std::slice::from_ref(buf),
            Chain::Many(bufs) => bufs,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Chain::Empty => 0,
            Chain::One(buf) => buf.len(),
            Chain::Many(bufs) => bufs.iter().map(|b| b.len()).sum(),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, buf: Buf) {
        match std::mem::take(self) {
            Chain::Empty => *self = Chain::One(buf),
            Chain::One(first) => *self = Chain::Many(vec![first, buf]),
            Chain::Many(mut bufs) => {
                bufs.push(buf);
                *self = Chain::Many(bufs);
            }
        }
    }

    pub(crate) fn from_sga(sga: Sga) -> Chain {
        let mut chain = Chain::Empty;
        for buf in sga.segments() {
            if !buf.is_empty() {
                chain.push(buf.clone());
            }
        }
        chain
    }

    /// Splits off the first `n` bytes.
    pub(crate) fn split_to(&mut self, n: usize) -> Chain {
        let mut front = Chain::Empty;
        let mut need = n;
        let mut rest = Chain::Empty;
        for mut buf in std::mem::take(self) {
            if need == 0 {
                rest.push(buf);
            } else if buf.len() <= need {
                need -= buf.len();
                front.push(buf);
            } else {
                front.push(buf.split_to(need));
                need = 0;
                rest.push(buf);
            }
        }
        *self = rest;
        front
    }

    #[inline]
    pub(crate) fn trim_front(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        if let Chain::One(buf) = self
            && n < buf.len()
        {
            buf.trim_front(n);
            return;
        }
        self.split_to(n);
    }

    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        match self {
            Chain::One(buf) if len > 0 => {
                let extra = buf.len().saturating_sub(len);
                if extra > 0 {
                    buf.trim_back(extra);
                }
            }
            _ if len >= self.len() => {}
            _ => *self = self.split_to(len),
        }
    }

    /// The same bytes in one new buffer.
    pub(crate) fn gather(&self, memory: &Memory) -> Option<Buf> {
        let mut whole = memory.alloc(self.len()).ok()?;
        towpath_cbuf::counters::count_copy(whole.len());
        let mut at = 0;
        for buf in self.as_slice() {
            whole[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Some(whole.freeze())
    }
}

impl From<Buf> for Chain {
    #[inline]
    fn from(buf: Buf) -> Chain {
        if buf.is_empty() { Chain::Empty } else { Chain::One(buf) }
    }
}

pub(crate) enum IntoIter {
    One(Option<Buf>),
    Many(std::vec::IntoIter<Buf>),
}

impl Iterator for IntoIter {
    type Item = Buf;
    #[inline]
    fn next(&mut self) -> Option<Buf> {
        match self {
            IntoIter::One(buf) => buf.take(),
            IntoIter::Many(bufs) => bufs.next(),
        }
    }
}

impl IntoIterator for Chain {
    type Item = Buf;
    type IntoIter = IntoIter;
    #[inline]
    fn into_iter(self) -> IntoIter {
        match self {
            Chain::Empty => IntoIter::One(None),
            Chain::One(buf) => IntoIter::One(Some(buf)),
            Chain::Many(bufs) => IntoIter::Many(bufs.into_iter()),
        }
    }
}
