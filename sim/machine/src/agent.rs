//! The one way the loader, system calls and the debugger reach simulated memory: a coherent port. With plain memory
//! there is nothing to keep coherent; with caches each access snoops them.

use towpath_core::Ram;

/// Access to physical memory that every core agrees with.
pub trait Agent {
    /// Reads bytes; false where no memory is.
    fn read(&mut self, pa: u64, into: &mut [u8]) -> bool;
    /// Writes bytes; false where no memory is.
    fn write(&mut self, pa: u64, from: &[u8]) -> bool;

    /// Reads an aligned 64-bit word, 0 where no memory is.
    fn read_word(&mut self, pa: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(pa, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Fills a frame with zeros.
    fn zero(&mut self, pa: u64, size: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (0..size).step_by(ZEROS.len()) {
            self.write(pa + at, &ZEROS);
        }
    }
}

impl Agent for Ram {
    fn read(&mut self, pa: u64, into: &mut [u8]) -> bool {
        match self.slice(pa, into.len() as u64) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    fn write(&mut self, pa: u64, from: &[u8]) -> bool {
        match self.slice_mut(pa, from.len() as u64) {
            Some(bytes) => {
                bytes.copy_from_slice(from);
                true
            }
            None => false,
        }
    }
}
