//! The out-of-order core: predicted fetch, renaming onto a physical register file, a reorder buffer, an issue queue,
//! load and store queues with forwarding, execution at execute on right and wrong paths alike, squash on mispredict
//! and on loads that read too early, commit in order. What must not be speculative (atomics, fences, control
//! registers, devices, vectors) runs as the oldest instruction, through `slow`; a vector load or store sends for its
//! lines as soon as its base is known.

mod commit;
mod execute;
mod front;

use super::Halt;
use super::predict::Repair;
use super::slow::Slow;
use super::trace::Trace;
use super::unit::{TOKEN_LOAD, Unit};
use crate::Devices;
use std::collections::VecDeque;
use towpath_isa::{Class, Trap, Uop, extend};
use towpath_mem::{Completion, System, Tick};

const NONE: u16 = u16::MAX;
const NEVER: Tick = Tick::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// In the issue queue.
    Waiting,
    /// A load whose line is on its way.
    Memory,
    /// The result is there at `ready`.
    Done,
    /// Runs when it is the oldest.
    Oldest,
}

#[derive(Clone, Copy)]
struct Entry {
    uop: Uop,
    pc: u64,
    predicted: u64,
    next: u64,
    repair: Repair,
    uid: u64,
    state: State,
    ready: Tick,
    dest: u16,
    old: u16,
    arch: u8,
    sources: [u16; 3],
    fflags: u8,
    replay: bool,
    fault: Option<Trap>,
    /// Address and bytes of a load or store once known (`size` 0 before).
    pa: u64,
    size: u8,
    data: u64,
    fetched: Tick,
    renamed: Tick,
    issued: Tick,
}

#[derive(Clone, Copy)]
struct Fetch {
    uop: Uop,
    pc: u64,
    predicted: u64,
    repair: Repair,
    fault: Option<Trap>,
    at: Tick,
    fetched: Tick,
}

pub(crate) struct OutOfOrder {
    pub(crate) unit: Unit,
    slow: Slow,
    rob: Vec<Entry>,
    head: u64,
    tail: u64,
    queue: Vec<u64>,
    loads: VecDeque<u64>,
    stores: VecDeque<u64>,
    /// Younger loads may not pass these.
    barriers: VecDeque<u64>,
    map: [u16; 64],
    free: Vec<u16>,
    values: Vec<u64>,
    ready: Vec<Tick>,
    front: VecDeque<Fetch>,
    fetch_pc: u64,
    fetch_at: Tick,
    fetch_stopped: bool,
    uid: u64,
    divider: Tick,
    fp_divider: Tick,
    /// Loads that once read too early wait for all older stores; one bit by program counter.
    cautious: Vec<bool>,
    trap: Option<Trap>,
    pub(crate) pause: bool,
    done: Vec<Completion>,
    notices: Vec<u64>,
    /// Something happened this cycle.
    moved: bool,
    /// The earliest tick at which something could.
    again: Tick,
    pub(crate) trace: Option<Trace>,
}

fn class_is_slow(class: Class) -> bool {
    matches!(
        class,
        Class::Amo
            | Class::Csr
            | Class::Fence
            | Class::System
            | Class::CacheOp
            | Class::Lazy
            | Class::VectorConfig
            | Class::VectorAlu
            | Class::VectorLoad
            | Class::VectorStore
            | Class::Illegal
    )
}

fn class_is_barrier(class: Class) -> bool {
    matches!(class, Class::Amo | Class::Fence | Class::System | Class::CacheOp | Class::Lazy)
}

impl OutOfOrder {
    pub(crate) fn new(unit: Unit, memory: &mut System) -> OutOfOrder {
        memory.want_notices(unit.data_port);
        let rob = unit.config.rob as usize;
        let pregs = 64 + rob;
        let empty = Entry {
            uop: Uop::new(towpath_isa::Op::Nop, 0, 4),
            pc: 0,
            predicted: 0,
            next: 0,
            repair: Repair::default(),
            uid: 0,
            state: State::Done,
            ready: 0,
            dest: NONE,
            old: NONE,
            arch: 0,
            sources: [NONE; 3],
            fflags: 0,
            replay: false,
            fault: None,
            pa: 0,
            size: 0,
            data: 0,
            fetched: 0,
            renamed: 0,
            issued: 0,
        };
        let mut core = OutOfOrder {
            unit,
            slow: Slow::new(),
            rob: vec![empty; rob],
            head: 0,
            tail: 0,
            queue: Vec::with_capacity(rob),
            loads: VecDeque::with_capacity(rob),
            stores: VecDeque::with_capacity(rob),
            barriers: VecDeque::with_capacity(rob),
            map: [0; 64],
            free: Vec::with_capacity(pregs),
            values: vec![0; pregs],
            ready: vec![0; pregs],
            front: VecDeque::with_capacity(64),
            fetch_pc: 0,
            fetch_at: 0,
            fetch_stopped: false,
            uid: 0,
            divider: 0,
            fp_divider: 0,
            cautious: vec![false; 1024],
            trap: None,
            pause: false,
            done: Vec::with_capacity(64),
            notices: Vec::with_capacity(64),
            moved: false,
            again: NEVER,
            trace: None,
        };
        core.redirect();
        core
    }

    #[inline]
    fn at(&self, seq: u64) -> &Entry {
        &self.rob[seq as usize % self.rob.len()]
    }

    #[inline]
    fn at_mut(&mut self, seq: u64) -> &mut Entry {
        let n = self.rob.len();
        &mut self.rob[seq as usize % n]
    }

    pub(crate) fn drained(&self) -> bool {
        self.head == self.tail && self.unit.stores.is_empty() && !self.slow.active()
    }

    /// Takes registers and program counter from the hart, which somebody else may have changed.
    pub(crate) fn redirect(&mut self) {
        assert!(self.head == self.tail, "registers were replaced under running instructions");
        (self.trap, self.pause) = (None, false);
        for r in 0..64 {
            self.map[r] = r as u16;
            self.values[r] = if r < 32 { self.unit.hart.x[r] } else { self.unit.hart.f[r - 32] };
            self.ready[r] = 0;
        }
        self.free.clear();
        self.free.extend(64..self.values.len() as u16);
        self.front.clear();
        self.unit.forget_code();
        self.fetch_pc = self.unit.hart.pc;
        self.fetch_stopped = false;
    }

    /// One cycle at the present tick: the tick of the next, or why it stopped with everything drained.
    pub(crate) fn tick<D: Devices>(&mut self, memory: &mut System, devices: &mut D) -> Result<Tick, Halt> {
        let now = memory.now();
        (self.moved, self.again) = (false, NEVER);
        self.collect(memory);
        if self.pause && self.trap.is_none() && !self.slow.active() && self.head != self.tail {
            // What has not committed is forgotten; it runs again after the pause.
            let (pc, repair) = (self.at(self.head).pc, self.at(self.head).repair);
            self.unit.predictor.rewind(&repair);
            self.squash(self.head, pc, now);
        }
        if self.trap.is_some() || (self.pause && self.head == self.tail) {
            self.unit.stores.step(memory);
            if self.drained() {
                if self.trap.is_none() {
                    self.unit.hart.pc = self.resume_pc();
                }
                return Err(self.trap.map_or(Halt::Paused, Halt::Trap));
            }
            return Ok(if self.unit.stores.eager() { now + self.unit.period } else { NEVER });
        }
        self.commit(memory, devices);
        self.moved |= self.unit.stores.step(memory);
        if self.trap.is_none() && !self.unit.hart.waiting {
            self.issue(memory);
            self.rename(now);
            self.fetch(memory);
        }
        if self.moved || self.trap.is_some() || self.unit.stores.eager() {
            self.unit.stats.active_cycles += u64::from(self.moved);
            return Ok(now + self.unit.period);
        }
        Ok(self.again)
    }

    fn later(&mut self, at: Tick) {
        self.again = self.again.min(at);
    }

    fn collect(&mut self, memory: &mut System) {
        let mut done = std::mem::take(&mut self.done);
        self.unit.collect(memory, &mut done);
        for c in done.drain(..) {
            if c.token & TOKEN_LOAD != TOKEN_LOAD {
                self.slow.complete(&c);
                continue;
            }
            let (uid, slot) = (c.token >> 10 & ((1 << 50) - 1), (c.token & 1023) as usize);
            let e = &self.rob[slot];
            if e.uid == uid && e.state == State::Memory {
                self.finish_load(slot, c.value as u64, c.ready);
            }
        }
        self.done = done;
        memory.take_notices(self.unit.data_port, &mut self.notices);
        if !self.notices.is_empty() {
            self.check_notices();
        }
    }

    fn finish_load(&mut self, slot: usize, raw: u64, ready: Tick) {
        self.moved = true;
        let e = &mut self.rob[slot];
        e.state = State::Done;
        e.ready = ready;
        if e.dest != NONE {
            self.values[e.dest as usize] = extend(e.uop.op, raw);
            self.ready[e.dest as usize] = ready;
        }
    }

    /// A line left the cache: a load that has read it, while an older load has not read yet, reads again.
    fn check_notices(&mut self) {
        let notices = std::mem::take(&mut self.notices);
        let mut unbound = false;
        for k in 0..self.loads.len() {
            let seq = self.loads[k];
            let e = self.at(seq);
            let bound = e.state == State::Done && e.size > 0;
            if !bound {
                unbound = true;
            } else if unbound && notices.contains(&(e.pa & !63)) {
                self.at_mut(seq).replay = true;
            }
        }
        self.notices = notices;
        self.notices.clear();
    }

    /// Throws away everything from `seq` on; fetch goes on at `pc` from tick `at`.
    fn squash(&mut self, seq: u64, pc: u64, at: Tick) {
        self.moved = true;
        while self.tail > seq {
            self.tail -= 1;
            let e = *self.at(self.tail);
            if e.dest != NONE {
                self.map[e.arch as usize] = e.old;
                self.free.push(e.dest);
            }
            self.at_mut(self.tail).uid = 0;
            self.unit.stats.squashed += 1;
            self.show(&e, NEVER, false);
        }
        self.queue.retain(|&s| s < seq);
        for list in [&mut self.loads, &mut self.stores, &mut self.barriers] {
            while list.back().is_some_and(|&s| s >= seq) {
                list.pop_back();
            }
        }
        self.front.clear();
        self.fetch_pc = pc;
        self.fetch_at = at;
        self.fetch_stopped = false;
    }

    fn show(&mut self, e: &Entry, end: Tick, retired: bool) {
        let Some(trace) = &mut self.trace else { return };
        let p = self.unit.period;
        let mut stages = vec![("F", e.fetched / p), ("Rn", e.renamed / p)];
        if e.issued > 0 {
            stages.push(("Is", e.issued / p));
        }
        if e.state == State::Done && e.ready > 0 {
            stages.push(("Wb", e.ready / p));
        }
        let last = stages.iter().map(|s| s.1).max().unwrap_or(0);
        let end = if end == NEVER { last + 1 } else { (end / p).max(last + 1) };
        trace.instruction(e.pc, &e.uop, &stages, end, retired);
    }
}
