//! The functional core: one instruction a cycle, no caches, as fast as a safe interpreter gets. Code is decoded once
//! into blocks; a block runs as a loop over plain uops with one jump table; memory is a hit in a software translation
//! cache and a copy.

mod blocks;
mod memory;
mod tlb;

use crate::ram::{Devices, Ram};
use blocks::{Block, Blocks};
use memory::View;
use tlb::Tlb;
use towpath_isa::{Access, Class, Hart, MSTATUS_FS, Op, Trap, Uop, box32, branch_taken, decode, integer, step};

/// Why [`Core::run`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The budget is used up.
    Budget,
    /// The instruction at `pc` raised an exception; nothing of it was done. The caller vectors or handles it.
    Trap(Trap),
    /// `wfi` with nothing pending.
    Waiting,
    /// `pause`, or a store to a device: another hart, or the devices, should get their turn.
    Yield,
}

/// How `time` follows the cycle counter: `time = base + (cycle - since) * numerator / denominator`.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// `mtime` at `since`.
    pub base: u64,
    /// The cycle at which `base` was taken.
    pub since: u64,
    /// Ticks for each `denominator` cycles.
    pub numerator: u64,
    /// Cycles for each `numerator` ticks; not zero.
    pub denominator: u64,
}

impl Clock {
    /// `mtime` at a cycle.
    pub fn at(&self, cycle: u64) -> u64 {
        let ticks = u128::from(cycle.wrapping_sub(self.since)) * u128::from(self.numerator);
        self.base.wrapping_add((ticks / u128::from(self.denominator.max(1))) as u64)
    }
}

/// Caches of one functional core; the architectural state is the [`Hart`] it runs.
pub struct Core {
    tlb: Tlb,
    blocks: Blocks,
    /// How `time` advances during a run.
    pub clock: Clock,
}

impl Default for Core {
    fn default() -> Core {
        Core::new()
    }
}

/// Why a block ended before its last uop.
enum Exit {
    Trap(Trap),
    /// The rest of the block may no longer be what should run.
    Refetch,
    Waiting,
    Yield,
}

impl Core {
    /// A core with empty caches.
    pub fn new() -> Core {
        let clock = Clock { base: 0, since: 0, numerator: 1, denominator: 400 };
        Core { tlb: Tlb::new(), blocks: Blocks::new(), clock }
    }

    /// Code in memory changed behind the core's back (a loader, a debugger): later fetches look again.
    pub fn code_changed(&mut self) {
        self.blocks.distrust();
    }

    /// Page tables changed behind the core's back.
    pub fn tables_changed(&mut self) {
        self.tlb.flush();
    }

    /// Runs at most `budget` instructions; returns why it stopped and how many completed. Counters in `hart.csrs` are
    /// brought up to date.
    pub fn run(&mut self, hart: &mut Hart, ram: &mut Ram, devices: &mut impl Devices, budget: u64) -> (Stop, u64) {
        self.tlb.select(hart);
        let mut left = budget;
        let stop = loop {
            if left == 0 {
                break Stop::Budget;
            }
            let mut view = View { tlb: &mut self.tlb, ram, devices, code_changed: false, device_stored: false };
            let epoch = view.tlb.epoch.wrapping_add(self.blocks.epoch);
            let block = match self.blocks.jump(hart.pc, epoch) {
                Some(block) => block,
                None => match find(&mut self.blocks, &mut view, hart) {
                    Ok(Some(block)) => block,
                    Ok(None) => {
                        let outcome = straddling(hart, &mut view);
                        left -= u64::from(outcome.is_ok());
                        count(hart, u64::from(outcome.is_ok()));
                        match outcome {
                            Ok(()) => continue,
                            Err(trap) => break Stop::Trap(trap),
                        }
                    }
                    Err(trap) => break Stop::Trap(trap),
                },
            };
            let len = u64::from(block.len).min(left) as usize;
            let uops = &self.blocks.arena[block.start as usize..][..len];
            let (done, exit) = run_block(hart, &mut view, uops, &self.clock);
            left -= done;
            count(hart, done);
            if view.code_changed {
                self.blocks.distrust();
            }
            match exit {
                None | Some(Exit::Refetch) => {}
                Some(Exit::Trap(trap)) => break Stop::Trap(trap),
                Some(Exit::Waiting) => break Stop::Waiting,
                Some(Exit::Yield) => break Stop::Yield,
            }
        };
        hart.csrs.time = self.clock.at(hart.csrs.cycle);
        (stop, budget - left)
    }
}

fn count(hart: &mut Hart, instructions: u64) {
    hart.csrs.cycle = hart.csrs.cycle.wrapping_add(instructions);
    hart.csrs.instret = hart.csrs.instret.wrapping_add(instructions);
}

/// Translates `pc` and finds its block; `None` if its first instruction crosses into the next page.
#[cold]
#[inline(never)]
fn find<D: Devices>(blocks: &mut Blocks, view: &mut View<'_, D>, hart: &Hart) -> Result<Option<Block>, Trap> {
    if hart.pc & 1 != 0 {
        return Err(Access::Fetch.access_fault(hart.pc));
    }
    let pa = view.fetch_address(hart, hart.pc)?;
    let Some(block) = blocks.find(pa, view.ram) else { return Ok(None) };
    let epoch = view.tlb.epoch.wrapping_add(blocks.epoch);
    blocks.remember(hart.pc, epoch, block);
    Ok(Some(block))
}

/// Fetches an instruction whose halves lie in two pages, and executes it.
fn straddling<D: Devices>(hart: &mut Hart, view: &mut View<'_, D>) -> Result<(), Trap> {
    let mut bits = 0;
    for half in 0..2 {
        let va = hart.pc.wrapping_add(2 * half);
        let pa = view.fetch_address(hart, va)?;
        let value = view.ram.load(pa, 2).ok_or_else(|| Access::Fetch.access_fault(va))?;
        bits |= (value as u32) << (16 * half);
    }
    step(hart, &decode(bits), view)
}

/// Runs uops one after the other; returns how many completed, and why it ended early. `hart.pc` is right afterwards.
fn run_block<D: Devices>(hart: &mut Hart, view: &mut View<'_, D>, uops: &[Uop], clock: &Clock) -> (u64, Option<Exit>) {
    let mut pc = hart.pc;
    for (i, uop) in uops.iter().enumerate() {
        macro_rules! trap_or {
            ($result:expr) => {
                match $result {
                    Ok(value) => value,
                    Err(trap) => {
                        hart.pc = pc;
                        return (i as u64, Some(Exit::Trap(trap)));
                    }
                }
            };
        }
        let a = hart.x[usize::from(uop.rs1 & 31)];
        let b = hart.x[usize::from(uop.rs2 & 31)];
        // Each arm names its operation, so that the shared function folds to that operation's own code.
        macro_rules! dispatch {
            (alu: $($alu:ident)*; branch: $($branch:ident)*; load: $($load:ident $n:literal $t:ty),*;
             store: $($store:ident $s:literal),*;) => {
                match uop.op {
                    Op::Nop | Op::Fence => {}
                    $(Op::$alu => hart.x[usize::from(uop.rd & 31)] = integer(Op::$alu, a, b, uop.imm, pc),)*
                    $(Op::$branch => {
                        let taken = branch_taken(Op::$branch, a, b);
                        let by = if taken { uop.imm as u64 } else { u64::from(uop.len) };
                        hart.pc = pc.wrapping_add(by);
                        return (i as u64 + 1, None);
                    })*
                    $(Op::$load => {
                        let raw = trap_or!(view.load_fast::<$n>(hart, a.wrapping_add(uop.imm as u64)));
                        hart.set_x(uop.rd, raw as $t as u64);
                    })*
                    $(Op::$store => {
                        trap_or!(view.store_fast::<$s>(hart, a.wrapping_add(uop.imm as u64), b));
                        if view.device_stored {
                            // What the store did, an interrupt or the end of the run, takes effect at once.
                            hart.pc = pc.wrapping_add(u64::from(uop.len));
                            return (i as u64 + 1, Some(Exit::Yield));
                        }
                    })*
                    Op::Jal => {
                        hart.set_x(uop.rd, pc.wrapping_add(u64::from(uop.len)));
                        hart.pc = pc.wrapping_add(uop.imm as u64);
                        return (i as u64 + 1, None);
                    }
                    Op::Jalr => {
                        hart.set_x(uop.rd, pc.wrapping_add(u64::from(uop.len)));
                        hart.pc = a.wrapping_add(uop.imm as u64) & !1;
                        return (i as u64 + 1, None);
                    }
                    Op::Fld if hart.csrs.fp_enabled() => {
                        let raw = trap_or!(view.load_fast::<8>(hart, a.wrapping_add(uop.imm as u64)));
                        hart.f[usize::from(uop.rd & 31)] = raw;
                        hart.csrs.mstatus |= MSTATUS_FS;
                    }
                    Op::Flw if hart.csrs.fp_enabled() => {
                        let raw = trap_or!(view.load_fast::<4>(hart, a.wrapping_add(uop.imm as u64)));
                        hart.f[usize::from(uop.rd & 31)] = box32(raw as u32);
                        hart.csrs.mstatus |= MSTATUS_FS;
                    }
                    Op::Fsd if hart.csrs.fp_enabled() => {
                        let value = hart.f[usize::from(uop.rs2 & 31)];
                        trap_or!(view.store_fast::<8>(hart, a.wrapping_add(uop.imm as u64), value));
                    }
                    _ => {
                        hart.pc = pc;
                        let exit = trap_or!(by_step(hart, view, uop, i as u64, clock));
                        if exit.is_some() {
                            return (i as u64 + 1, exit);
                        }
                    }
                }
            };
        }
        dispatch! {
            alu: Lui Auipc Addi Slti Sltiu Xori Ori Andi Slli Srli Srai Addiw Slliw Srliw Sraiw Add Sub Sll Slt Sltu
                Xor Srl Sra Or And Addw Subw Sllw Srlw Sraw Mul Mulh Mulhsu Mulhu Mulw Div Divu Rem Remu Divw Divuw
                Remw Remuw AddUw Sh1add Sh2add Sh3add Sh1addUw Sh2addUw Sh3addUw SlliUw Andn Orn Xnor Clz Ctz Cpop
                Clzw Ctzw Cpopw Max Maxu Min Minu SextB SextH ZextH Rol Ror Rori Rolw Rorw Roriw OrcB Rev8 Bclr Bext
                Binv Bset Bclri Bexti Binvi Bseti;
            branch: Beq Bne Blt Bge Bltu Bgeu;
            load: Lb 1 i8, Lbu 1 u8, Lh 2 i16, Lhu 2 u16, Lw 4 i32, Lwu 4 u32, Ld 8 u64;
            store: Sb 1, Sh 2, Sw 4, Sd 8;
        }
        pc = pc.wrapping_add(u64::from(uop.len));
    }
    hart.pc = pc;
    (uops.len() as u64, None)
}

/// Everything rare: floating point, vectors, atomics, control registers.
#[inline(never)]
fn by_step<D: Devices>(
    hart: &mut Hart,
    view: &mut View<'_, D>,
    uop: &Uop,
    before: u64,
    clock: &Clock,
) -> Result<Option<Exit>, Trap> {
    match uop.class() {
        Class::Csr | Class::System => {
            let (cycle, instret) = (hart.csrs.cycle, hart.csrs.instret);
            (hart.csrs.cycle, hart.csrs.instret) = (cycle.wrapping_add(before), instret.wrapping_add(before));
            hart.csrs.time = clock.at(hart.csrs.cycle);
            let outcome = step(hart, uop, view);
            // The caller counts the whole block; writes to the counters take effect all the same.
            hart.csrs.cycle = hart.csrs.cycle.wrapping_sub(before);
            hart.csrs.instret = hart.csrs.instret.wrapping_sub(before);
            outcome?;
            if hart.waiting {
                return Ok(Some(Exit::Waiting));
            }
            if hart.interrupt_pending() && hart.take_interrupt() {
                view.tlb.select(hart);
            }
            Ok(Some(Exit::Refetch))
        }
        Class::Alu => {
            hart.pc = hart.pc.wrapping_add(u64::from(uop.len));
            Ok((uop.op == Op::Pause).then_some(Exit::Yield))
        }
        _ => {
            step(hart, uop, view)?;
            Ok((uop.op == Op::FenceI).then_some(Exit::Refetch))
        }
    }
}
