//! Commit: in order, the only place where architectural state changes.

use super::{NONE, OutOfOrder, State};
use crate::Devices;
use towpath_isa::{Class, MSTATUS_FS};
use towpath_mem::System;

impl OutOfOrder {
    pub(super) fn commit<D: Devices>(&mut self, memory: &mut System, devices: &mut D) {
        let now = memory.now();
        if self.unit.hart.waiting {
            self.unit.hart.waiting = !self.unit.hart.interrupt_pending();
        }
        if self.unit.hart.csrs.pending() != 0 && !self.slow.active() && self.interruptible() {
            self.unit.hart.pc = if self.head == self.tail { self.resume_pc() } else { self.at(self.head).pc };
            if self.unit.hart.take_interrupt() {
                self.unit.hart.waiting = false;
                let pc = self.unit.hart.pc;
                self.squash(self.head, pc, now + self.unit.period);
                self.unit.forget_translations();
            }
        }
        for _ in 0..self.unit.config.width {
            if self.head == self.tail || self.trap.is_some() || self.unit.hart.waiting {
                return;
            }
            let e = *self.at(self.head);
            if e.state == State::Oldest {
                self.oldest(memory, devices);
                return;
            }
            if e.state != State::Done {
                return;
            }
            if e.ready > now {
                self.later(e.ready);
                return;
            }
            if let Some(trap) = e.fault {
                self.unit.hart.pc = e.pc;
                self.squash(self.head, e.pc, now);
                self.fetch_stopped = true;
                self.trap = Some(trap);
                return;
            }
            if e.replay {
                self.unit.stats.order_squashes += 1;
                self.unit.predictor.rewind(&e.repair);
                self.squash(self.head, e.pc, now + self.unit.period);
                return;
            }
            let class = e.uop.class();
            if matches!(class, Class::Store | Class::FpStore) {
                self.unit.stores.push(e.pa, e.size, u128::from(e.data), e.pc);
                self.stores.pop_front();
                self.unit.stats.stores += 1;
            } else if matches!(class, Class::Load | Class::FpLoad) {
                self.loads.pop_front();
                self.unit.stats.loads += 1;
            } else if matches!(class, Class::Branch | Class::Jump) {
                self.unit.stats.branches += 1;
                self.unit.predictor.learn(e.pc, &e.uop, e.next, &e.repair);
            }
            self.unit.hart.csrs.fflags |= e.fflags;
            if e.dest != NONE {
                let value = self.values[e.dest as usize];
                if e.arch < 32 {
                    self.unit.hart.set_x(e.arch, value);
                } else {
                    self.unit.hart.f[usize::from(e.arch - 32)] = value;
                    self.unit.hart.csrs.mstatus |= MSTATUS_FS;
                }
            }
            self.unit.hart.pc = e.predicted;
            self.pop(now);
        }
    }

    fn interruptible(&self) -> bool {
        self.unit.hart.interrupt_pending()
    }

    /// Where execution goes on when nothing is in the buffer.
    pub(super) fn resume_pc(&self) -> u64 {
        self.front.front().map_or(self.fetch_pc, |f| f.pc)
    }

    fn pop(&mut self, now: u64) {
        let e = *self.at(self.head);
        if e.dest != NONE {
            self.free.push(e.old);
        }
        self.at_mut(self.head).uid = 0;
        self.head += 1;
        self.unit.stats.instructions += 1;
        self.moved = true;
        if self.trace.is_some() {
            self.show(&e, now, true);
        }
    }

    /// The oldest instruction runs alone, on the hart, which is exact here.
    fn oldest<D: Devices>(&mut self, memory: &mut System, devices: &mut D) {
        let now = memory.now();
        let seq = self.head;
        let e = *self.at(seq);
        if !self.slow.active() {
            self.unit.hart.pc = e.pc;
            self.slow.start(&e.uop);
            self.moved = true;
        }
        let outcome = match self.slow.advance(&mut self.unit, memory, devices) {
            Err(at) => {
                self.later(at);
                return;
            }
            Ok(outcome) => outcome,
        };
        self.moved = true;
        let effects = match outcome {
            Ok(effects) => effects,
            Err(trap) => {
                self.squash(seq, e.pc, now);
                self.fetch_stopped = true;
                self.trap = Some(trap);
                return;
            }
        };
        if e.dest != NONE {
            let arch = usize::from(e.arch);
            let value = if arch < 32 { self.unit.hart.x[arch] } else { self.unit.hart.f[arch - 32] };
            self.values[e.dest as usize] = value;
            self.ready[e.dest as usize] = now + self.unit.period;
        }
        for list in [&mut self.loads, &mut self.stores, &mut self.barriers] {
            if list.front() == Some(&seq) {
                list.pop_front();
            }
        }
        self.queue.retain(|&s| s != seq);
        let next = self.unit.hart.pc;
        let early = self.slow.stored().find_map(|(pa, size)| self.read_too_early(seq, pa, size));
        let class = e.uop.class();
        let fresh = matches!(class, Class::Csr | Class::System) || effects.code || effects.translation;
        if effects.translation {
            self.unit.forget_translations();
        } else if effects.code {
            self.unit.forget_code();
        }
        let entry = self.at_mut(seq);
        (entry.state, entry.ready) = (State::Done, now);
        if fresh || next != e.predicted {
            if self.tail > seq + 1 {
                let repair = self.at(seq + 1).repair;
                self.unit.predictor.rewind(&repair);
            }
            self.squash(seq + 1, next, now + self.unit.period);
        } else if let Some(load) = early {
            self.replay_from(load, now);
        }
        self.pop(now);
    }
}
