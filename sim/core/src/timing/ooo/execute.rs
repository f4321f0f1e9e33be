//! Issue and execution: oldest first, limited by width and ports.

use super::{Entry, NONE, OutOfOrder, State};
use crate::timing::config::StoreOrder;
use crate::timing::stores::{Forward, covered, overlaps};
use crate::timing::tlb::{Xlate, context};
use crate::timing::unit::{TOKEN_LOAD, timed};
use towpath_isa::{Access, Class, Operands, Trap, execute, memory_size};
use towpath_mem::{self as mem, System, Tick};

/// What became of an issue attempt.
enum Tried {
    /// It left the queue.
    Left,
    /// It stays, having used a port or not.
    Stays,
    /// A squash replaced the queue.
    Squashed,
}

fn cautious_slot(pc: u64) -> usize {
    (pc >> 1) as usize & 1023
}

impl OutOfOrder {
    pub(super) fn issue(&mut self, memory: &mut System) {
        let now = memory.now();
        let mut width = self.unit.config.width;
        let mut ports = self.unit.config.memory_ports;
        let mut k = 0;
        while k < self.queue.len() && width > 0 {
            let seq = self.queue[k];
            let e = *self.at(seq);
            let mut ready = 0;
            for s in e.sources {
                if s != NONE {
                    ready = self.ready[s as usize].max(ready);
                }
            }
            if ready > now {
                if ready != Tick::MAX {
                    self.later(ready);
                }
                k += 1;
                continue;
            }
            let class = e.uop.class();
            let touches = matches!(
                class,
                Class::Load | Class::FpLoad | Class::Store | Class::FpStore | Class::VectorLoad | Class::VectorStore
            );
            if touches && ports == 0 {
                self.later(now + self.unit.period);
                k += 1;
                continue;
            }
            let tried = match class {
                Class::Load | Class::FpLoad => self.load(seq, &e, memory),
                Class::Store | Class::FpStore => self.store(seq, &e, memory),
                Class::VectorLoad | Class::VectorStore => self.send_for(&e, memory),
                _ => self.compute(seq, &e, now),
            };
            match tried {
                Tried::Left => {
                    self.moved = true;
                    self.queue.remove(k);
                    self.at_mut(seq).issued = now;
                    width -= 1;
                    ports -= u32::from(touches);
                }
                Tried::Stays => k += 1,
                Tried::Squashed => return,
            }
        }
    }

    fn operands(&self, e: &Entry) -> Operands {
        let read = |s: u16| if s == NONE { 0 } else { self.values[s as usize] };
        let [a, b, c] = e.sources;
        let csrs = &self.unit.hart.csrs;
        // Flags raised so far belong to older instructions only at commit: each raises its own.
        Operands { a: read(a), b: read(b), c: read(c), pc: e.pc, frm: csrs.frm, fflags: 0 }
    }

    fn done(&mut self, seq: u64, ready: Tick) {
        let e = self.at_mut(seq);
        e.state = State::Done;
        e.ready = ready;
    }

    fn fail(&mut self, seq: u64, trap: Trap, now: Tick) -> Tried {
        self.at_mut(seq).fault = Some(trap);
        self.done(seq, now);
        Tried::Left
    }

    fn compute(&mut self, seq: u64, e: &Entry, now: Tick) -> Tried {
        let latency = &self.unit.config.latency;
        let class = e.uop.class();
        let cycles = match class {
            Class::Mul => latency.mul,
            Class::Div => latency.div,
            Class::FpAlu => latency.fp_alu,
            Class::FpMul => latency.fp_mul,
            Class::FpDiv => latency.fp_div,
            _ => latency.alu,
        };
        let ready = now + Tick::from(cycles) * self.unit.period;
        let unit = match class {
            Class::Div => Some(&mut self.divider),
            Class::FpDiv => Some(&mut self.fp_divider),
            _ => None,
        };
        if let Some(busy) = unit {
            if *busy > now {
                let at = *busy;
                self.later(at);
                return Tried::Stays;
            }
            *busy = ready;
        }
        let Some(outcome) = execute(&e.uop, &self.operands(e)) else {
            return self.fail(seq, Trap::illegal(e.uop.raw), now);
        };
        if e.dest != NONE {
            self.values[e.dest as usize] = outcome.value;
            self.ready[e.dest as usize] = ready;
        }
        let entry = self.at_mut(seq);
        entry.fflags = outcome.fflags;
        entry.next = outcome.next;
        self.done(seq, ready);
        if outcome.next == e.predicted {
            return Tried::Left;
        }
        let entry = self.at_mut(seq);
        entry.issued = now;
        entry.predicted = outcome.next;
        self.unit.stats.mispredicts += 1;
        self.unit.predictor.restore(&e.repair, e.pc, &e.uop, outcome.next);
        let at = ready + Tick::from(self.unit.config.mispredict_cycles) * self.unit.period;
        self.squash(seq + 1, outcome.next, at);
        self.queue.retain(|&s| s != seq);
        Tried::Squashed
    }

    /// It can only be done as the oldest instruction.
    fn demote(&mut self, seq: u64) -> Tried {
        self.at_mut(seq).state = State::Oldest;
        Tried::Left
    }

    /// The physical address of an access, if it lies in one line of memory and its translation is there; else what
    /// becomes of the instruction instead.
    #[inline]
    fn place(&mut self, seq: u64, va: u64, size: u8, access: Access, memory: &mut System) -> Result<u64, Tried> {
        let now = memory.now();
        if (va & 63) + u64::from(size) > 64 {
            return Err(self.demote(seq));
        }
        let pa = match self.unit.translate(va, access, false, memory) {
            Xlate::At(pa, at) if at <= now => pa,
            Xlate::At(_, at) => {
                self.later(at);
                return Err(Tried::Stays);
            }
            Xlate::Wait => return Err(Tried::Stays),
            Xlate::Oldest => return Err(self.demote(seq)),
            Xlate::Fault(trap) => return Err(self.fail(seq, trap, now)),
        };
        if !memory.backing().holds(pa & !63, 64) {
            return Err(self.demote(seq));
        }
        Ok(pa)
    }

    fn load(&mut self, seq: u64, e: &Entry, memory: &mut System) -> Tried {
        let now = memory.now();
        if self.barriers.front().is_some_and(|&b| b < seq) {
            return Tried::Stays;
        }
        let size = memory_size(e.uop.op) as u8;
        let va = self.operands(e).a.wrapping_add(e.uop.imm as u64);
        let pa = match self.place(seq, va, size, Access::Load, memory) {
            Ok(pa) => pa,
            Err(tried) => return tried,
        };
        let waits = self.cautious[cautious_slot(e.pc)];
        let mut found = Forward::Nothing;
        for &s in self.stores.iter().rev().filter(|&&s| s < seq) {
            let store = self.at(s);
            if store.size == 0 {
                if waits {
                    return Tried::Stays;
                }
                continue;
            }
            found = covered(pa, size, store.pa, store.size, u128::from(store.data));
            if found != Forward::Nothing {
                break;
            }
        }
        if found == Forward::Nothing {
            found = self.unit.stores.forward(pa, size);
        }
        let period = self.unit.period;
        let slot = (seq % self.rob.len() as u64) as usize;
        match found {
            Forward::Partly => return Tried::Stays,
            Forward::Value(value) => {
                self.unit.stats.forwarded += 1;
                self.finish_load(slot, value as u64, now + 2 * period);
            }
            Forward::Nothing => {
                let token = TOKEN_LOAD | e.uid << 10 | slot as u64;
                match memory.access(&timed(self.unit.data_port, mem::Op::Load, pa, size, 0, e.pc, token)) {
                    mem::Access::Done { value, ready } => self.finish_load(slot, value as u64, ready),
                    mem::Access::Pending => self.rob[slot].state = State::Memory,
                    mem::Access::Refused => return Tried::Stays,
                    mem::Access::Fault => return self.demote(seq),
                }
            }
        }
        let entry = &mut self.rob[slot];
        (entry.pa, entry.size) = (pa, size);
        Tried::Left
    }

    fn store(&mut self, seq: u64, e: &Entry, memory: &mut System) -> Tried {
        let now = memory.now();
        let size = memory_size(e.uop.op) as u8;
        let o = self.operands(e);
        let va = o.a.wrapping_add(e.uop.imm as u64);
        let pa = match self.place(seq, va, size, Access::Store, memory) {
            Ok(pa) => pa,
            Err(tried) => return tried,
        };
        let mask = if size == 8 { u64::MAX } else { (1 << (size * 8)) - 1 };
        let entry = self.at_mut(seq);
        (entry.pa, entry.size, entry.data) = (pa, size, o.b & mask);
        self.done(seq, now + self.unit.period);
        match self.read_too_early(seq, pa, size) {
            None => Tried::Left,
            Some(load) => {
                self.at_mut(seq).issued = now;
                self.replay_from(load, now);
                self.queue.retain(|&s| s != seq);
                Tried::Squashed
            }
        }
    }

    /// The oldest load after `seq` that has read bytes which `seq` writes.
    pub(super) fn read_too_early(&self, seq: u64, pa: u64, size: u8) -> Option<u64> {
        self.loads.iter().copied().find(|&l| {
            let e = self.at(l);
            l > seq && e.size > 0 && e.state != State::Waiting && overlaps(e.pa, e.size, pa, size)
        })
    }

    /// Squashes from a load that read too early; it will be careful from now on.
    pub(super) fn replay_from(&mut self, load: u64, now: Tick) {
        let e = *self.at(load);
        self.unit.stats.order_squashes += 1;
        self.cautious[cautious_slot(e.pc)] = true;
        self.unit.predictor.rewind(&e.repair);
        self.squash(load, e.pc, now + self.unit.period);
    }

    /// A vector access sends for its lines when its base is known, if the translation is at hand.
    fn send_for(&mut self, e: &Entry, memory: &mut System) -> Tried {
        let store = e.uop.class() == Class::VectorStore;
        if store && self.unit.config.store_order == StoreOrder::OneInFlight {
            return Tried::Left;
        }
        let base = self.operands(e).a;
        let bytes = (self.unit.hart.v.vl * self.unit.hart.v.sew() as u64).clamp(1, 256);
        let (access, op) =
            if store { (Access::Store, mem::Op::PrefetchWrite) } else { (Access::Load, mem::Op::PrefetchRead) };
        let context = context(&self.unit.hart, access);
        let mut va = base & !63;
        while va < base.saturating_add(bytes) {
            let Some(pa) = self.unit.dtlb.lookup(va, context, access) else { return Tried::Left };
            let ahead = timed(self.unit.data_port, op, pa & !63, 8, 0, e.pc, 0);
            if memory.access(&ahead) == mem::Access::Refused {
                return Tried::Stays;
            }
            va += 64;
        }
        Tried::Left
    }
}
