//! The plain memory beside the models: updated when a store becomes globally visible, asked when a load binds. It
//! times nothing and answers nothing, so a run without it takes the same cycles.

use crate::backing::Backing;
use crate::queue::Tick;

/// A load that returned other bytes than the last visible store left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When the value was bound.
    pub tick: Tick,
    /// Which cache's client loaded.
    pub port: u8,
    /// Physical address.
    pub addr: u64,
    /// Bytes loaded.
    pub size: u8,
    /// What the models returned.
    pub got: u128,
    /// What was there.
    pub want: u128,
}

pub(crate) struct Oracle {
    memory: Backing,
    pub(crate) checked: u64,
    pub(crate) violations: Vec<Violation>,
}

const KEPT: usize = 64;

impl Oracle {
    pub(crate) fn new(base: u64, size: u64) -> Oracle {
        Oracle { memory: Backing::new(base, size), checked: 0, violations: Vec::new() }
    }

    pub(crate) fn wrote(&mut self, addr: u64, bytes: &[u8]) {
        self.memory.write(addr, bytes);
    }

    pub(crate) fn read(&self, addr: u64, out: &mut [u8]) {
        self.memory.read(addr, out);
    }

    pub(crate) fn bound(&mut self, tick: Tick, port: u8, addr: u64, size: u8, got: u128) {
        let mut bytes = [0; 16];
        self.memory.read(addr, &mut bytes[..size as usize]);
        let want = u128::from_le_bytes(bytes);
        self.checked += 1;
        if got != want && self.violations.len() < KEPT {
            self.violations.push(Violation { tick, port, addr, size, got, want });
        }
    }
}
