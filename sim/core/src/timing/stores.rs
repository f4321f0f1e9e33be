//! The store buffer: stores that have retired and are not yet visible. It answers the core's own loads, and lets
//! stores go in the configured order.

use super::config::StoreOrder;
use super::unit::{TOKEN_STORE, timed};
use std::collections::VecDeque;
use towpath_mem::{Access, Op, System};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    Sent,
    Done,
}

#[derive(Clone, Copy)]
struct Store {
    serial: u64,
    pa: u64,
    data: u128,
    size: u8,
    pc: u64,
    progress: Progress,
}

/// What the buffer knows of a load's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Forward {
    /// Nothing.
    Nothing,
    /// All of them.
    Value(u128),
    /// Some of them: the load waits for the store.
    Partly,
}

pub(crate) fn overlaps(a: u64, a_size: u8, b: u64, b_size: u8) -> bool {
    a < b.wrapping_add(u64::from(b_size)) && b < a.wrapping_add(u64::from(a_size))
}

/// What of a load's bytes a store at `pa` holds.
pub(crate) fn covered(load: u64, size: u8, pa: u64, store_size: u8, data: u128) -> Forward {
    if !overlaps(load, size, pa, store_size) {
        return Forward::Nothing;
    }
    if pa > load || load + u64::from(size) > pa + u64::from(store_size) {
        return Forward::Partly;
    }
    let value = data >> ((load - pa) * 8);
    let mask = if size == 16 { u128::MAX } else { (1 << (u32::from(size) * 8)) - 1 };
    Forward::Value(value & mask)
}

pub(crate) struct StoreBuffer {
    port: u8,
    order: StoreOrder,
    queue: VecDeque<Store>,
    serial: u64,
    in_flight: usize,
    /// Every waiting store was turned away and nothing has changed since.
    stuck: bool,
}

impl StoreBuffer {
    pub(crate) fn new(port: u8, order: StoreOrder) -> StoreBuffer {
        StoreBuffer { port, order, queue: VecDeque::with_capacity(64), serial: 0, in_flight: 0, stuck: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A retired store of bytes within one line.
    pub(crate) fn push(&mut self, pa: u64, size: u8, data: u128, pc: u64) {
        self.serial += 1;
        self.queue.push_back(Store { serial: self.serial, pa, data, size, pc, progress: Progress::Waiting });
        self.stuck = false;
    }

    pub(crate) fn complete(&mut self, serial: u64) {
        if let Some(store) = self.queue.iter_mut().find(|s| s.serial == serial) {
            store.progress = Progress::Done;
        }
        self.in_flight -= 1;
        self.retire();
    }

    fn retire(&mut self) {
        self.stuck = false;
        while self.queue.front().is_some_and(|s| s.progress == Progress::Done) {
            self.queue.pop_front();
        }
    }

    /// Memory has freed something: refused stores may try again.
    pub(crate) fn woken(&mut self) {
        self.stuck = false;
    }

    /// Whether a step now could send something.
    pub(crate) fn eager(&self) -> bool {
        !self.stuck && self.queue.len() > self.in_flight && (self.order == StoreOrder::Rvwmo || self.in_flight == 0)
    }

    /// Sends at most one store; whether it did.
    pub(crate) fn step(&mut self, memory: &mut System) -> bool {
        if !self.eager() {
            return false;
        }
        let reach = if self.order == StoreOrder::Rvwmo { 8 } else { 1 };
        for k in 0..self.queue.len().min(reach) {
            let store = self.queue[k];
            if store.progress != Progress::Waiting {
                continue;
            }
            let line = store.pa & !63;
            // Stores to one line stay in order; one that was sent but not finished holds the later ones back.
            if self.queue.iter().take(k).any(|s| s.pa & !63 == line && s.progress != Progress::Done) {
                continue;
            }
            let token = TOKEN_STORE | store.serial;
            match memory.access(&timed(self.port, Op::Store, store.pa, store.size, store.data, store.pc, token)) {
                Access::Done { .. } => {
                    self.queue[k].progress = Progress::Done;
                    self.retire();
                    return true;
                }
                Access::Pending => {
                    self.queue[k].progress = Progress::Sent;
                    self.in_flight += 1;
                    self.own_ahead(memory);
                    return true;
                }
                // Checked when the store was translated: no memory is gone since.
                Access::Fault => unreachable!("a retired store has an address in memory"),
                Access::Refused => {}
            }
        }
        self.stuck = true;
        false
    }

    /// Ztso: lines of the stores behind the one in flight are fetched for ownership.
    fn own_ahead(&mut self, memory: &mut System) {
        if self.order != StoreOrder::Ztso {
            return;
        }
        let head = self.queue[0].pa & !63;
        if let Some(next) = self.queue.iter().take(8).find(|s| s.pa & !63 != head) {
            let ahead = timed(self.port, Op::PrefetchWrite, next.pa & !63, 8, 0, next.pc, 0);
            let _sent_or_not = memory.access(&ahead);
        }
    }

    /// What a load of these bytes finds here, the youngest store first.
    #[inline]
    pub(crate) fn forward(&self, pa: u64, size: u8) -> Forward {
        for store in self.queue.iter().rev() {
            if store.progress == Progress::Done {
                continue; // the cache has it, perhaps with newer bytes of others
            }
            match covered(pa, size, store.pa, store.size, store.data) {
                Forward::Nothing => {}
                found => return found,
            }
        }
        Forward::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_takes_the_youngest_store_that_covers() {
        let mut buffer = StoreBuffer::new(0, StoreOrder::Ztso);
        buffer.push(0x100, 8, 0x1122_3344_5566_7788, 0);
        buffer.push(0x104, 4, 0xaabb_ccdd, 0);
        assert_eq!(buffer.forward(0x104, 4), Forward::Value(0xaabb_ccdd));
        assert_eq!(buffer.forward(0x102, 2), Forward::Value(0x5566));
        assert_eq!(buffer.forward(0x100, 8), Forward::Partly);
        assert_eq!(buffer.forward(0x108, 8), Forward::Nothing);
    }
}
