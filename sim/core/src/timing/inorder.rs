//! The in-order core: fetch, decode, execute, memory, write-back, one instruction a cycle. An instruction issues when
//! its operands are there and then occupies its stages; loads may miss under later independent instructions up to a
//! limit; branches are predicted at fetch and resolved in execute. A wrong path is fetched, never executed.

use super::Halt;
use super::config::StoreOrder;
use super::slow::Slow;
use super::stores::Forward;
use super::tlb::Xlate;
use super::trace::Trace;
use super::unit::{Fetched, TOKEN_LOAD, Unit, timed};
use crate::Devices;
use towpath_isa::{self as isa, Class, MSTATUS_FS, Operands, Reg, Trap, Uop, execute, extend, memory_size};
use towpath_mem::{self as mem, Completion, System, Tick};

pub(crate) struct InOrder {
    pub(crate) unit: Unit,
    slow: Slow,
    ready: [Tick; 64],
    loads: Vec<Option<Uop>>,
    in_flight: u32,
    next_issue: Tick,
    divider: Tick,
    trap: Option<Trap>,
    pub(crate) pause: bool,
    done: Vec<Completion>,
    pub(crate) trace: Option<Trace>,
}

const PENDING: Tick = Tick::MAX;

fn slot(reg: Reg) -> usize {
    match reg {
        Reg::X(n) => usize::from(n),
        Reg::F(n) => 32 + usize::from(n),
    }
}

impl InOrder {
    pub(crate) fn new(unit: Unit) -> InOrder {
        let loads = vec![None; unit.config.loads_in_flight as usize];
        InOrder {
            unit,
            slow: Slow::new(),
            ready: [0; 64],
            loads,
            in_flight: 0,
            next_issue: 0,
            divider: 0,
            trap: None,
            pause: false,
            done: Vec::with_capacity(16),
            trace: None,
        }
    }

    /// Nothing is under way: the hart is all there is.
    pub(crate) fn drained(&self) -> bool {
        self.in_flight == 0 && self.unit.stores.is_empty() && !self.slow.active()
    }

    pub(crate) fn redirect(&mut self) {
        (self.trap, self.pause) = (None, false);
        self.unit.forget_code();
    }

    fn write(&mut self, reg: Option<Reg>, value: u64) {
        match reg {
            Some(Reg::X(n)) => self.unit.hart.set_x(n, value),
            Some(Reg::F(n)) => {
                self.unit.hart.f[usize::from(n)] = value;
                self.unit.hart.csrs.mstatus |= MSTATUS_FS;
            }
            None => {}
        }
    }

    fn collect(&mut self, memory: &mut System) {
        let mut done = std::mem::take(&mut self.done);
        self.unit.collect(memory, &mut done);
        for c in done.drain(..) {
            if c.token & TOKEN_LOAD != TOKEN_LOAD {
                self.slow.complete(&c);
                continue;
            }
            let Some(uop) = self.loads[(c.token & 0xff) as usize].take() else { continue };
            self.in_flight -= 1;
            self.write(uop.dest(), extend(uop.op, c.value as u64));
            if let Some(reg) = uop.dest() {
                self.ready[slot(reg)] = c.ready;
            }
        }
        self.done = done;
    }

    /// One cycle at the present tick: the tick of the next, or why it stopped with everything drained.
    pub(crate) fn tick<D: Devices>(&mut self, memory: &mut System, devices: &mut D) -> Result<Tick, Halt> {
        self.collect(memory);
        let now = memory.now();
        let mut again = Tick::MAX;
        self.unit.stores.step(memory);
        if self.unit.stores.eager() {
            again = now + self.unit.period;
        }
        if let Some(trap) = self.trap {
            return if self.drained() { Err(Halt::Trap(trap)) } else { Ok(again) };
        }
        if self.slow.active() {
            return Ok(again.min(self.slow_step(memory, devices)));
        }
        if self.pause {
            return if self.drained() { Err(Halt::Paused) } else { Ok(again) };
        }
        if now < self.next_issue {
            return Ok(again.min(self.next_issue));
        }
        if self.unit.hart.csrs.pending() != 0 && self.in_flight == 0 && self.unit.hart.take_interrupt() {
            self.unit.forget_translations();
        }
        if self.unit.hart.waiting {
            self.unit.hart.waiting = !self.unit.hart.interrupt_pending();
            if self.unit.hart.waiting {
                return Ok(again);
            }
        }
        Ok(again.min(self.issue(memory, devices)))
    }

    fn slow_step<D: Devices>(&mut self, memory: &mut System, devices: &mut D) -> Tick {
        let now = memory.now();
        match self.slow.advance(&mut self.unit, memory, devices) {
            Err(at) => at,
            Ok(Err(trap)) => {
                self.trap = Some(trap);
                now + self.unit.period
            }
            Ok(Ok(effects)) => {
                if effects.translation {
                    self.unit.forget_translations();
                } else if effects.code {
                    self.unit.forget_code();
                }
                self.unit.stats.instructions += 1;
                self.next_issue = now + self.unit.period;
                self.next_issue
            }
        }
    }

    /// The tick at which all operands and the destination are there; `PENDING` while a load must answer first.
    fn operands_ready(&self, uop: &Uop) -> Tick {
        let sources = uop.sources();
        let regs = sources.iter().flatten().copied().chain(uop.dest());
        regs.map(|r| self.ready[slot(r)]).max().unwrap_or(0)
    }

    fn issue<D: Devices>(&mut self, memory: &mut System, devices: &mut D) -> Tick {
        let now = memory.now();
        let pc = self.unit.hart.pc;
        let bits = match self.unit.fetch(pc, memory) {
            Fetched::Bits(bits) => bits,
            Fetched::Wait(at) => return at,
            Fetched::Fault(trap) => {
                self.trap = Some(trap);
                return now + self.unit.period;
            }
        };
        self.unit.fetch_ahead(pc.wrapping_add(16), memory);
        let uop = self.unit.decode(bits);
        let ready = self.operands_ready(&uop);
        if ready > now {
            return if ready == PENDING { Tick::MAX } else { ready };
        }
        self.unit.stats.active_cycles += 1;
        let class = uop.class();
        let floats = matches!(class, Class::FpLoad | Class::FpStore | Class::FpAlu | Class::FpMul | Class::FpDiv);
        if floats && !self.unit.hart.csrs.fp_enabled() {
            self.trap = Some(Trap::illegal(uop.raw));
            return now + self.unit.period;
        }
        let o = self.operands(&uop);
        let latency = &self.unit.config.latency;
        let cycles = match class {
            Class::Alu | Class::Branch | Class::Jump => latency.alu,
            Class::Mul => latency.mul,
            Class::Div => latency.div,
            Class::FpAlu => latency.fp_alu,
            Class::FpMul => latency.fp_mul,
            Class::FpDiv => latency.fp_div,
            Class::Load | Class::FpLoad => return self.load(&uop, &o, memory, devices),
            Class::Store | Class::FpStore => return self.store(&uop, &o, memory, devices),
            _ => {
                // It runs alone: loads before it end first.
                if self.in_flight > 0 {
                    return Tick::MAX;
                }
                return self.begin_slow(&uop, memory, devices);
            }
        };
        if matches!(class, Class::Div | Class::FpDiv) {
            if self.divider > now {
                return self.divider;
            }
            self.divider = now + Tick::from(cycles) * self.unit.period;
        }
        let Some(outcome) = execute(&uop, &o) else {
            self.trap = Some(Trap::illegal(uop.raw));
            return now + self.unit.period;
        };
        self.unit.hart.csrs.fflags |= outcome.fflags;
        self.write(uop.dest(), outcome.value);
        let finish = now + Tick::from(cycles) * self.unit.period;
        if let Some(reg) = uop.dest() {
            self.ready[slot(reg)] = finish;
        }
        self.next_issue = now + self.unit.period;
        if matches!(class, Class::Branch | Class::Jump) {
            self.resolve(&uop, pc, outcome.next, memory);
        }
        self.retire(&uop, pc, outcome.next, now, finish);
        self.next_issue
    }

    fn operands(&self, uop: &Uop) -> Operands {
        let hart = &self.unit.hart;
        let read = |reg: Option<Reg>| match reg {
            Some(Reg::X(n)) => hart.x[usize::from(n)],
            Some(Reg::F(n)) => hart.f[usize::from(n)],
            None => 0,
        };
        let [a, b, c] = uop.sources();
        Operands { a: read(a), b: read(b), c: read(c), pc: hart.pc, frm: hart.csrs.frm, fflags: hart.csrs.fflags }
    }

    fn resolve(&mut self, uop: &Uop, pc: u64, next: u64, memory: &mut System) {
        let guess = self.unit.predictor.predict(pc, uop);
        self.unit.predictor.learn(pc, uop, next, &guess.repair);
        self.unit.stats.branches += 1;
        if guess.next != next {
            self.unit.stats.mispredicts += 1;
            self.unit.predictor.restore(&guess.repair, pc, uop, next);
            self.next_issue += Tick::from(self.unit.config.mispredict_cycles) * self.unit.period;
            self.unit.fetch_ahead(guess.next, memory); // the path not taken was fetched meanwhile
        } else if guess.bubble {
            self.next_issue += self.unit.period;
        }
    }

    fn retire(&mut self, uop: &Uop, pc: u64, next: u64, start: Tick, finish: Tick) {
        self.unit.hart.pc = next;
        self.unit.stats.instructions += 1;
        if let Some(trace) = &mut self.trace {
            let p = self.unit.period;
            let at = |k: u64| start.saturating_sub(k * p) / p;
            let stages =
                [("F", at(2)), ("D", at(1)), ("X", at(0)), ("M", start / p + 1), ("W", finish.max(start + 2 * p) / p)];
            trace.instruction(pc, uop, &stages, finish.max(start + 2 * p) / p + 1, true);
        }
    }

    fn begin_slow<D: Devices>(&mut self, uop: &Uop, memory: &mut System, devices: &mut D) -> Tick {
        self.slow.start(uop);
        self.slow_step(memory, devices)
    }

    /// Under a total store order nothing passes a load that has no value yet.
    fn ordered(&self) -> bool {
        self.in_flight > 0 && self.unit.config.store_order != StoreOrder::Rvwmo
    }

    fn load<D: Devices>(&mut self, uop: &Uop, o: &Operands, memory: &mut System, devices: &mut D) -> Tick {
        let now = memory.now();
        let period = self.unit.period;
        let va = o.a.wrapping_add(uop.imm as u64);
        let size = memory_size(uop.op);
        if self.in_flight == self.unit.config.loads_in_flight || self.ordered() {
            return Tick::MAX;
        }
        if (va & 63) + size > 64 {
            return if self.in_flight > 0 { Tick::MAX } else { self.begin_slow(uop, memory, devices) };
        }
        let pa = match self.unit.translate(va, isa::Access::Load, true, memory) {
            Xlate::At(pa, at) if at <= now => pa,
            Xlate::At(_, at) => return at,
            Xlate::Wait | Xlate::Oldest => return Tick::MAX,
            Xlate::Fault(trap) => {
                self.trap = Some(trap);
                return now + period;
            }
        };
        let pc = self.unit.hart.pc;
        let (value, ready) = match self.unit.stores.forward(pa, size as u8) {
            Forward::Value(value) => {
                self.unit.stats.forwarded += 1;
                (value, now + 2 * period)
            }
            Forward::Partly => return Tick::MAX,
            Forward::Nothing => {
                let k = self.loads.iter().position(Option::is_none).expect("in_flight counts them");
                let request = timed(self.unit.data_port, mem::Op::Load, pa, size as u8, 0, pc, TOKEN_LOAD | k as u64);
                match memory.access(&request) {
                    mem::Access::Done { value, ready } => (value, ready),
                    mem::Access::Pending => {
                        self.loads[k] = Some(*uop);
                        self.in_flight += 1;
                        if let Some(reg) = uop.dest() {
                            self.ready[slot(reg)] = PENDING;
                        }
                        self.unit.stats.loads += 1;
                        self.next_issue = now + period;
                        self.retire(uop, pc, pc.wrapping_add(u64::from(uop.len)), now, now + 2 * period);
                        return self.next_issue;
                    }
                    mem::Access::Refused => return Tick::MAX,
                    mem::Access::Fault => {
                        return if self.in_flight > 0 { Tick::MAX } else { self.begin_slow(uop, memory, devices) };
                    }
                }
            }
        };
        self.write(uop.dest(), extend(uop.op, value as u64));
        if let Some(reg) = uop.dest() {
            self.ready[slot(reg)] = ready;
        }
        self.unit.stats.loads += 1;
        self.next_issue = now + period;
        self.retire(uop, pc, pc.wrapping_add(u64::from(uop.len)), now, ready);
        self.next_issue
    }

    fn store<D: Devices>(&mut self, uop: &Uop, o: &Operands, memory: &mut System, devices: &mut D) -> Tick {
        let now = memory.now();
        let va = o.a.wrapping_add(uop.imm as u64);
        let size = memory_size(uop.op);
        if self.unit.stores.len() >= self.unit.config.store_queue as usize || self.ordered() {
            return Tick::MAX;
        }
        let alone = (va & 63) + size > 64;
        let pa = if alone {
            0
        } else {
            match self.unit.translate(va, isa::Access::Store, true, memory) {
                Xlate::At(pa, at) if at <= now => pa,
                Xlate::At(_, at) => return at,
                Xlate::Wait | Xlate::Oldest => return Tick::MAX,
                Xlate::Fault(trap) => {
                    self.trap = Some(trap);
                    return now + self.unit.period;
                }
            }
        };
        if alone || !memory.backing().holds(pa & !63, 64) {
            return if self.in_flight > 0 { Tick::MAX } else { self.begin_slow(uop, memory, devices) };
        }
        let pc = self.unit.hart.pc;
        let mask = if size == 8 { u64::MAX } else { (1 << (size * 8)) - 1 };
        self.unit.stores.push(pa, size as u8, u128::from(o.b & mask), pc);
        self.unit.stats.stores += 1;
        self.next_issue = now + self.unit.period;
        self.retire(uop, pc, pc.wrapping_add(u64::from(uop.len)), now, now + 2 * self.unit.period);
        self.next_issue
    }
}
