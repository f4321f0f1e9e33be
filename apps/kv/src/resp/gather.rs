//! Bytes to be sent or logged: what is small packed together, what is large by reference.

use towpath_cbuf::{Buf, BufMut, Memory, Sga};

/// First block of a batch in bytes; most batches need no second one.
const FIRST: usize = 4 * 1024;
/// Further blocks in bytes.
const MORE: usize = 64 * 1024;

/// A growing scatter-gather array. Running out of memory is remembered and reported by [`Gather::take`]; what was
/// added after it is lost, so the batch must be given up.
pub struct Gather {
    memory: Memory,
    done: Sga,
    block: Option<BufMut>,
    fill: usize,
    /// References to insert into the current block: (position in it, buffer).
    cuts: Vec<(usize, Buf)>,
    len: usize,
    failed: bool,
}

impl Gather {
    /// An empty one that takes its blocks from `memory`.
    pub fn new(memory: Memory) -> Gather {
        Gather { memory, done: Sga::new(), block: None, fill: 0, cuts: Vec::new(), len: 0, failed: false }
    }

    /// Bytes added since the last [`Gather::take`].
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was added since the last [`Gather::take`].
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` in.
    pub fn bytes(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        loop {
            if let Some(block) = &mut self.block {
                let n = bytes.len().min(block.len() - self.fill);
                block[self.fill..self.fill + n].copy_from_slice(&bytes[..n]);
                self.fill += n;
                bytes = &bytes[n..];
            }
            if bytes.is_empty() || !self.next_block(bytes.len()) {
                return;
            }
        }
    }

    /// Appends one byte.
    pub fn byte(&mut self, byte: u8) {
        self.bytes(&[byte]);
    }

    /// Appends `buf` by reference.
    pub fn reference(&mut self, buf: Buf) {
        self.len += buf.len();
        if self.block.is_none() {
            self.done.push_back(buf);
        } else {
            self.cuts.push((self.fill, buf));
        }
    }

    /// Appends what `other` holds, by reference.
    pub fn append(&mut self, mut other: Sga) {
        self.len += other.len();
        self.close_block();
        self.done.append(&mut other);
    }

    /// Takes everything. `None` if memory ran out since the last call; what was gathered is dropped then.
    pub fn take(&mut self) -> Option<Sga> {
        self.close_block();
        self.len = 0;
        let sga = std::mem::take(&mut self.done);
        if std::mem::take(&mut self.failed) { None } else { Some(sga) }
    }

    fn next_block(&mut self, want: usize) -> bool {
        let size = if self.len <= FIRST && want <= FIRST { FIRST } else { MORE };
        self.close_block();
        match self.memory.alloc(size) {
            Ok(block) => self.block = Some(block),
            Err(_) => self.failed = true,
        }
        self.block.is_some()
    }

    fn close_block(&mut self) {
        let Some(mut block) = self.block.take() else { return };
        let fill = std::mem::take(&mut self.fill);
        block.truncate(fill);
        let whole = block.freeze();
        if self.cuts.is_empty() {
            if fill > 0 {
                self.done.push_back(whole);
            }
            return;
        }
        let mut at = 0;
        for (position, buf) in self.cuts.drain(..) {
            if position > at {
                self.done.push_back(whole.slice(at..position));
                at = position;
            }
            self.done.push_back(buf);
        }
        if fill > at {
            self.done.push_back(whole.slice(at..fill));
        }
    }
}
