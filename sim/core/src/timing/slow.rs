//! Instructions that run alone, as the oldest of their core: atomics, control registers, fences, cache-block
//! operations, vectors, accesses that cross a line, devices. The instruction is first carried out on a copy of the
//! hart to learn its accesses; these go through the timed memory; then it is carried out for good with what they
//! returned. There is one meaning of each instruction, `towpath_isa::step`.

use super::stores::Forward;
use super::tlb::Xlate;
use super::unit::{TOKEN_SLOW, Unit, timed};
use crate::Devices;
use towpath_isa::{self as isa, CacheOp, Class, Hart, Memory, Op, Trap, Uop, step};
use towpath_mem::{self as mem, AmoOp, Completion, System, Tick};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Load,
    Store,
    Amo(AmoOp),
    Reserve,
    Conditional,
    Block(CacheOp),
    Copy { src: u64, len: u64 },
    Free,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    va: u64,
    size: u8,
    kind: Kind,
    value: u64,
    pa: u64,
}

/// What a finished instruction changed beyond registers and memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Effects {
    pub(crate) code: bool,
    pub(crate) translation: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Addresses,
    Accesses,
}

pub(crate) struct Slow {
    phase: Phase,
    uop: Uop,
    pieces: Vec<Piece>,
    next: usize,
    outstanding: usize,
    ready: Tick,
    fault: Option<Trap>,
    copied: u64,
}

/// First pass: notes the accesses.
struct Recorder<'a> {
    pieces: &'a mut Vec<Piece>,
    op: Op,
    operand: u64,
}

impl Recorder<'_> {
    fn note(&mut self, va: u64, size: u64, kind: Kind, value: u64) {
        let first = (64 - (va & 63)).min(size);
        self.pieces.push(Piece { va, size: first as u8, kind, value, pa: 0 });
        if first < size {
            let (va, value) = (va.wrapping_add(first), value >> (first * 8));
            self.pieces.push(Piece { va, size: (size - first) as u8, kind, value, pa: 0 });
        }
    }
}

impl Memory for Recorder<'_> {
    fn load(&mut self, _: &Hart, va: u64, size: u64) -> Result<u64, Trap> {
        self.note(va, size, Kind::Load, 0);
        Ok(0)
    }
    fn store(&mut self, _: &Hart, va: u64, size: u64, value: u64) -> Result<(), Trap> {
        self.note(va, size, Kind::Store, value);
        Ok(())
    }
    fn update(&mut self, _: &Hart, va: u64, size: u64, _: &dyn Fn(u64) -> u64) -> Result<u64, Trap> {
        self.note(va, size, Kind::Amo(amo_op(self.op)), self.operand);
        Ok(0)
    }
    fn load_reserved(&mut self, _: &Hart, va: u64, size: u64) -> Result<(u64, u64), Trap> {
        self.note(va, size, Kind::Reserve, 0);
        Ok((0, 0))
    }
    fn store_conditional(&mut self, _: &Hart, va: u64, size: u64, value: u64) -> Result<bool, Trap> {
        self.note(va, size, Kind::Conditional, value);
        Ok(false)
    }
    fn cache_op(&mut self, _: &Hart, op: CacheOp, va: u64) -> Result<(), Trap> {
        self.note(va & !63, 1, Kind::Block(op), 0);
        Ok(())
    }
    fn lazy_copy(&mut self, _: &Hart, dest: u64, src: u64, len: u64) -> Result<(), Trap> {
        if len > 0 {
            self.pieces.push(Piece { va: dest, size: 1, kind: Kind::Copy { src, len }, value: 0, pa: 0 });
        }
        Ok(())
    }
    fn lazy_free(&mut self, _: &Hart, va: u64, _: u64) -> Result<(), Trap> {
        self.pieces.push(Piece { va, size: 1, kind: Kind::Free, value: 0, pa: 0 });
        Ok(())
    }
    fn fence(&mut self, _: &Hart, _: u32) {}
    fn fence_i(&mut self, _: &Hart) {}
    fn sfence(&mut self, _: &Hart, _: Option<u64>, _: Option<u16>) {}
    fn context_changed(&mut self, _: &Hart) {}
}

/// Second pass: answers with what the accesses returned.
struct Replayer<'a> {
    pieces: &'a [Piece],
    at: usize,
    fault: Option<Trap>,
    effects: Effects,
}

impl Replayer<'_> {
    fn take(&mut self, size: u64) -> Result<(u64, u64), Trap> {
        let mut value = 0;
        let mut have = 0;
        let mut pa = 0;
        while have < size {
            let Some(p) = self.pieces.get(self.at) else {
                return Err(self.fault.unwrap_or(Trap::illegal(0)));
            };
            self.at += 1;
            value |= p.value << (have * 8);
            pa = if have == 0 { p.pa } else { pa };
            have += u64::from(p.size);
        }
        Ok((value, pa))
    }
}

impl Memory for Replayer<'_> {
    fn load(&mut self, _: &Hart, _: u64, size: u64) -> Result<u64, Trap> {
        self.take(size).map(|(value, _)| value)
    }
    fn store(&mut self, _: &Hart, _: u64, size: u64, _: u64) -> Result<(), Trap> {
        self.take(size).map(|_| ())
    }
    fn update(&mut self, _: &Hart, _: u64, size: u64, _: &dyn Fn(u64) -> u64) -> Result<u64, Trap> {
        self.take(size).map(|(value, _)| value)
    }
    fn load_reserved(&mut self, _: &Hart, _: u64, size: u64) -> Result<(u64, u64), Trap> {
        self.take(size)
    }
    fn store_conditional(&mut self, _: &Hart, _: u64, size: u64, _: u64) -> Result<bool, Trap> {
        self.take(size).map(|(value, _)| value == 0)
    }
    fn cache_op(&mut self, _: &Hart, _: CacheOp, _: u64) -> Result<(), Trap> {
        self.take(1).map(|_| ())
    }
    fn lazy_copy(&mut self, _: &Hart, _: u64, _: u64, len: u64) -> Result<(), Trap> {
        if len > 0 { self.take(1).map(|_| ()) } else { Ok(()) }
    }
    fn lazy_free(&mut self, _: &Hart, _: u64, _: u64) -> Result<(), Trap> {
        self.take(1).map(|_| ())
    }
    fn fence(&mut self, _: &Hart, _: u32) {}
    fn fence_i(&mut self, _: &Hart) {
        self.effects.code = true;
    }
    fn sfence(&mut self, _: &Hart, _: Option<u64>, _: Option<u16>) {
        self.effects.translation = true;
    }
    fn context_changed(&mut self, _: &Hart) {
        self.effects.translation = true;
    }
}

fn amo_op(op: Op) -> AmoOp {
    match op {
        Op::AmoaddW | Op::AmoaddD => AmoOp::Add,
        Op::AmoxorW | Op::AmoxorD => AmoOp::Xor,
        Op::AmoandW | Op::AmoandD => AmoOp::And,
        Op::AmoorW | Op::AmoorD => AmoOp::Or,
        Op::AmominW | Op::AmominD => AmoOp::Min,
        Op::AmomaxW | Op::AmomaxD => AmoOp::Max,
        Op::AmominuW | Op::AmominuD => AmoOp::MinU,
        Op::AmomaxuW | Op::AmomaxuD => AmoOp::MaxU,
        _ => AmoOp::Swap,
    }
}

/// Whether every earlier store must be visible first.
fn drains(uop: &Uop) -> bool {
    match uop.class() {
        Class::Amo | Class::CacheOp | Class::Lazy | Class::System => true,
        // Predecessor bits: 27 input, 26 output, 25 read, 24 write.
        Class::Fence => uop.op == Op::FenceI || uop.raw >> 24 & 5 != 0,
        _ => false,
    }
}

enum Moved {
    /// The piece is done or on its way.
    Yes,
    /// Memory must answer first.
    Wait,
    /// Not before this tick.
    Until(Tick),
    Fault(Trap),
}

impl Slow {
    pub(crate) fn new() -> Slow {
        Slow {
            phase: Phase::Idle,
            uop: Uop::new(Op::Nop, 0, 4),
            pieces: Vec::with_capacity(64),
            next: 0,
            outstanding: 0,
            ready: 0,
            fault: None,
            copied: 0,
        }
    }

    pub(crate) fn active(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Begins `uop`, which stands at `hart.pc` and is the oldest instruction of its core.
    pub(crate) fn start(&mut self, uop: &Uop) {
        self.phase = Phase::Addresses;
        self.uop = *uop;
        self.pieces.clear();
        (self.next, self.outstanding, self.ready, self.fault, self.copied) = (0, 0, 0, None, 0);
    }

    pub(crate) fn complete(&mut self, c: &Completion) {
        let at = (c.token & 0xffff) as usize;
        let run = (c.token >> 16 & 0xff) as usize;
        self.spread(at, run, c.value);
        self.outstanding -= 1;
        self.ready = self.ready.max(c.ready);
    }

    fn spread(&mut self, at: usize, run: usize, value: u128) {
        let mut shift = 0;
        for p in &mut self.pieces[at..at + run] {
            let mask = if p.size == 8 { u64::MAX } else { (1 << (u32::from(p.size) * 8)) - 1 };
            p.value = (value >> shift) as u64 & mask;
            shift += u32::from(p.size) * 8;
        }
    }

    /// The bytes its stores wrote, for the order check of younger loads.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (u64, u8)> + '_ {
        self.pieces.iter().filter(|p| !matches!(p.kind, Kind::Load | Kind::Reserve)).map(|p| (p.pa, p.size))
    }

    /// Moves forward; the outcome when done, else the tick to come back (`Tick::MAX`: when memory answers).
    pub(crate) fn advance<D: Devices>(
        &mut self,
        unit: &mut Unit,
        memory: &mut System,
        devices: &mut D,
    ) -> Result<Result<Effects, Trap>, Tick> {
        if self.phase == Phase::Addresses {
            if drains(&self.uop) && !unit.stores.is_empty() {
                return Err(Tick::MAX);
            }
            unit.count(memory.now());
            if !matches!(
                self.uop.class(),
                Class::Csr | Class::System | Class::Fence | Class::VectorAlu | Class::VectorConfig
            ) {
                let mut copy = unit.hart.clone();
                let operand = copy.x[usize::from(self.uop.rs2 & 31)];
                let mut recorder = Recorder { pieces: &mut self.pieces, op: self.uop.op, operand };
                if let Err(trap) = step(&mut copy, &self.uop, &mut recorder) {
                    self.phase = Phase::Idle;
                    return Ok(Err(trap));
                }
            }
            self.phase = Phase::Accesses;
        }
        for _ in 0..unit.config.memory_ports {
            if self.next == self.pieces.len() || self.fault.is_some() {
                break;
            }
            match self.piece(unit, memory, devices) {
                Moved::Yes => {}
                Moved::Wait => return Err(Tick::MAX),
                Moved::Until(at) => return Err(at),
                Moved::Fault(trap) => self.fault = Some(trap),
            }
        }
        if self.outstanding > 0 {
            return Err(Tick::MAX);
        }
        let now = memory.now();
        if self.next < self.pieces.len() && self.fault.is_none() {
            return Err(now + unit.period);
        }
        if self.ready > now {
            return Err(self.ready);
        }
        self.phase = Phase::Idle;
        let mut replayer =
            Replayer { pieces: &self.pieces[..self.next], at: 0, fault: self.fault, effects: Effects::default() };
        let done = step(&mut unit.hart, &self.uop, &mut replayer);
        let effects = replayer.effects;
        Ok(done.map(|()| effects))
    }

    /// Pieces that one access of 16 aligned bytes can carry.
    fn run(&self) -> (usize, u8) {
        let first = self.pieces[self.next];
        if !matches!(first.kind, Kind::Load | Kind::Store) {
            return (1, first.size);
        }
        let mut size = first.size;
        let mut n = 1;
        for p in &self.pieces[self.next + 1..] {
            let end = first.va.wrapping_add(u64::from(size));
            let fits = p.kind == first.kind && p.va == end && size + p.size <= 16 && first.va >> 6 == p.va >> 6;
            if !fits {
                break;
            }
            size += p.size;
            n += 1;
        }
        (n, size)
    }

    fn piece<D: Devices>(&mut self, unit: &mut Unit, memory: &mut System, devices: &mut D) -> Moved {
        let (run, size) = self.run();
        let p = self.pieces[self.next];
        let access = match p.kind {
            Kind::Load | Kind::Reserve => isa::Access::Load,
            Kind::Block(op) if op != CacheOp::Zero => isa::Access::Load,
            Kind::Free => isa::Access::Load,
            _ => isa::Access::Store,
        };
        if let Kind::Copy { src, len } = p.kind {
            return self.copy(unit, memory, p.va, src, len);
        }
        let pa = match unit.translate(p.va, access, true, memory) {
            Xlate::At(pa, at) if at <= memory.now() => pa,
            Xlate::At(_, at) => return Moved::Until(at),
            Xlate::Wait | Xlate::Oldest => return Moved::Wait,
            Xlate::Fault(trap) => return Moved::Fault(trap),
        };
        let mut at = pa;
        for p in &mut self.pieces[self.next..self.next + run] {
            p.pa = at;
            at += u64::from(p.size);
        }
        if !memory.backing().holds(pa & !63, 64) {
            return self.device(unit, memory, devices, pa, access);
        }
        let op = match p.kind {
            Kind::Load => match unit.stores.forward(pa, size) {
                Forward::Value(value) => {
                    self.spread(self.next, run, value);
                    self.next += run;
                    return Moved::Yes;
                }
                Forward::Partly => return Moved::Wait,
                Forward::Nothing => mem::Op::Load,
            },
            Kind::Store => return self.store(unit, run, pa, size),
            Kind::Amo(op) => mem::Op::Amo(op),
            Kind::Reserve => mem::Op::LoadReserved,
            Kind::Conditional => mem::Op::StoreConditional,
            Kind::Block(CacheOp::Clean) => mem::Op::Clean,
            Kind::Block(CacheOp::Zero) => mem::Op::Zero,
            Kind::Block(_) => mem::Op::Flush,
            Kind::Copy { .. } | Kind::Free => {
                self.next += 1;
                return Moved::Yes;
            }
        };
        let token = TOKEN_SLOW | (run as u64) << 16 | self.next as u64;
        match memory.access(&timed(unit.data_port, op, pa, size, u128::from(p.value), unit.hart.pc, token)) {
            mem::Access::Done { value, ready } => {
                self.spread(self.next, run, value);
                self.ready = self.ready.max(ready);
            }
            mem::Access::Pending => self.outstanding += 1,
            mem::Access::Refused => return Moved::Wait,
            mem::Access::Fault => return Moved::Fault(access.access_fault(p.va)),
        }
        self.next += run;
        Moved::Yes
    }

    fn store(&mut self, unit: &mut Unit, run: usize, pa: u64, size: u8) -> Moved {
        if unit.stores.len() >= unit.config.store_queue as usize {
            return Moved::Wait;
        }
        let mut data = 0;
        let mut shift = 0;
        for p in &self.pieces[self.next..self.next + run] {
            data |= u128::from(p.value) << shift;
            shift += u32::from(p.size) * 8;
        }
        unit.stores.push(pa, size, data, unit.hart.pc);
        self.next += run;
        Moved::Yes
    }

    /// A device access: after all stores, once, one piece at a time.
    fn device<D: Devices>(
        &mut self,
        unit: &mut Unit,
        memory: &System,
        devices: &mut D,
        pa: u64,
        access: isa::Access,
    ) -> Moved {
        if !unit.stores.is_empty() {
            return Moved::Wait;
        }
        let hart = u64::from(unit.data_port / 2);
        let p = &mut self.pieces[self.next];
        let answer = match p.kind {
            Kind::Load => devices.load(hart, pa, u64::from(p.size)),
            Kind::Store => devices.store(hart, pa, u64::from(p.size), p.value).map(|()| 0),
            _ => None,
        };
        let Some(value) = answer else { return Moved::Fault(access.access_fault(p.va)) };
        p.value = value;
        self.ready = memory.now() + Tick::from(unit.config.latency.mmio) * unit.period;
        self.next += 1;
        Moved::Yes
    }

    /// `MCLAZY` without a tracking table: copies now, a page at a time.
    fn copy(&mut self, unit: &mut Unit, memory: &mut System, dest: u64, src: u64, len: u64) -> Moved {
        let (to, from) = (dest.wrapping_add(self.copied), src.wrapping_add(self.copied));
        let n = (len - self.copied).min(4096 - (to & 4095)).min(4096 - (from & 4095));
        let mut at = [0; 2];
        for (k, (va, access)) in [(from, isa::Access::Load), (to, isa::Access::Store)].into_iter().enumerate() {
            match unit.translate(va, access, true, memory) {
                Xlate::At(pa, _) if memory.backing().holds(pa, n) => at[k] = pa,
                Xlate::At(..) => return Moved::Fault(access.access_fault(va)),
                Xlate::Fault(trap) => return Moved::Fault(trap),
                Xlate::Wait | Xlate::Oldest => return Moved::Wait,
            }
        }
        let mut bytes = [0; 4096];
        memory.agent_read(at[0], &mut bytes[..n as usize]);
        memory.agent_write(at[1], &bytes[..n as usize]);
        self.copied += n;
        if self.copied == len {
            self.next += 1;
        }
        Moved::Yes
    }
}
