//! Sparse bytes: what the DRAM chips hold, and the plain memory of the oracle.

const CHUNK: usize = 1 << 16;

/// Memory of `base .. base + size`, zero until written, with storage only where something was written.
pub struct Backing {
    base: u64,
    size: u64,
    chunks: Vec<Option<Box<[u8]>>>,
}

impl Backing {
    /// `size` bytes of zeroes at `base`.
    pub fn new(base: u64, size: u64) -> Backing {
        let chunks = (0..size.div_ceil(CHUNK as u64)).map(|_| None).collect();
        Backing { base, size, chunks }
    }

    /// Whether `len` bytes at `addr` lie inside.
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        addr >= self.base && addr - self.base <= self.size && len <= self.size - (addr - self.base)
    }

    /// Copies out; the range must be held.
    pub fn read(&self, addr: u64, out: &mut [u8]) {
        assert!(self.holds(addr, out.len() as u64), "read outside memory");
        let mut at = (addr - self.base) as usize;
        let mut done = 0;
        while done < out.len() {
            let n = (CHUNK - at % CHUNK).min(out.len() - done);
            match &self.chunks[at / CHUNK] {
                Some(chunk) => out[done..done + n].copy_from_slice(&chunk[at % CHUNK..at % CHUNK + n]),
                None => out[done..done + n].fill(0),
            }
            at += n;
            done += n;
        }
    }

    /// Copies in; the range must be held.
    pub fn write(&mut self, addr: u64, bytes: &[u8]) {
        assert!(self.holds(addr, bytes.len() as u64), "write outside memory");
        let mut at = (addr - self.base) as usize;
        let mut done = 0;
        while done < bytes.len() {
            let n = (CHUNK - at % CHUNK).min(bytes.len() - done);
            let chunk = self.chunks[at / CHUNK].get_or_insert_with(|| vec![0; CHUNK].into_boxed_slice());
            chunk[at % CHUNK..at % CHUNK + n].copy_from_slice(&bytes[done..done + n]);
            at += n;
            done += n;
        }
    }

    /// The 64 bytes of the line at `addr`.
    pub(crate) fn line(&self, addr: u64) -> [u8; 64] {
        let mut line = [0; 64];
        self.read(addr, &mut line);
        line
    }
}
