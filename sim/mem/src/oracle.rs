//! The plain memory beside the models: updated when a store becomes globally visible, asked when a load binds. It
//! times nothing and answers nothing, so a run without it takes the same cycles.

use crate::backing::Backing;
use crate::queue::Tick;

/// A load that returned other bytes than the last visible store left, or (with size 0) a conditional store that
/// succeeded though its line had changed.
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
    /// What each port's reserved line held when it was reserved, or last written by the port itself.
    reserved: Vec<Option<(u64, [u8; 64])>>,
    pub(crate) checked: u64,
    pub(crate) violations: Vec<Violation>,
}

const KEPT: usize = 64;

impl Oracle {
    pub(crate) fn new(base: u64, size: u64, ports: usize) -> Oracle {
        let memory = Backing::new(base, size);
        Oracle { memory, reserved: vec![None; ports], checked: 0, violations: Vec::new() }
    }

    pub(crate) fn wrote(&mut self, addr: u64, bytes: &[u8]) {
        self.memory.write(addr, bytes);
    }

    /// A store by the port of a core; unlike [`Oracle::wrote`] it does not disturb the port's own reservation.
    pub(crate) fn stored(&mut self, port: u8, addr: u64, bytes: &[u8]) {
        self.wrote(addr, bytes);
        if self.reserved[port as usize].is_some_and(|(line, _)| line == addr & !63) {
            self.reserve(port, addr);
        }
    }

    pub(crate) fn reserve(&mut self, port: u8, addr: u64) {
        let line = addr & !63;
        self.reserved[port as usize] = Some((line, self.memory.line(line)));
    }

    /// A conditional store succeeds only if nobody else changed its line since it was reserved.
    pub(crate) fn paired(&mut self, tick: Tick, port: u8, addr: u64) {
        let line = addr & !63;
        let same =
            self.reserved[port as usize].take().is_some_and(|(l, was)| l == line && was == self.memory.line(line));
        if !same && self.violations.len() < KEPT {
            self.violations.push(Violation { tick, port, addr, size: 0, got: 0, want: 1 });
        }
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
