//! One uop, carried out on a hart: the interpreter every core falls back on, and the meaning of the operations that
//! run alone at commit.

use crate::control::{
    ENVCFG_CBCFE, ENVCFG_CBIE, ENVCFG_CBZE, MSTATUS_FS, MSTATUS_TSR, MSTATUS_TVM, MSTATUS_TW, MSTATUS_VS, csr,
};
use crate::exec::{self, Operands};
use crate::hart::{Hart, Mode};
use crate::trap::{Cause, Trap};
use crate::uop::{Class, Op, Reg, Uop};
use crate::vector;

/// What a Zicbom or Zicboz instruction does to a block of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheOp {
    /// Write back and drop, or drop only.
    Invalidate,
    /// Write back.
    Clean,
    /// Write back and drop.
    Flush,
    /// Fill with zeros.
    Zero,
}

/// Virtual memory as one hart sees it. Addresses are virtual; implementations translate by the hart's state, split
/// accesses that cross a page, and return the trap the instruction takes.
pub trait Memory {
    /// Reads `size` (1, 2, 4 or 8) bytes, zero-extended.
    ///
    /// # Errors
    /// The load page fault or access fault.
    fn load(&mut self, hart: &Hart, va: u64, size: u64) -> Result<u64, Trap>;

    /// Writes the low `size` bytes of `value`.
    ///
    /// # Errors
    /// The store page fault or access fault.
    fn store(&mut self, hart: &Hart, va: u64, size: u64, value: u64) -> Result<(), Trap>;

    /// Replaces an aligned value by `change` of it, as one; returns the old.
    ///
    /// # Errors
    /// The store page fault or access fault.
    fn update(&mut self, hart: &Hart, va: u64, size: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Trap>;

    /// `lr`: reads and gives the physical address to reserve.
    ///
    /// # Errors
    /// The load page fault or access fault.
    fn load_reserved(&mut self, hart: &Hart, va: u64, size: u64) -> Result<(u64, u64), Trap>;

    /// `sc`: stores if `hart.reservation` still holds for this address; says whether it did.
    ///
    /// # Errors
    /// The store page fault or access fault.
    fn store_conditional(&mut self, hart: &Hart, va: u64, size: u64, value: u64) -> Result<bool, Trap>;

    /// Acts on the cache block that holds `va`.
    ///
    /// # Errors
    /// The store page fault or access fault (a load permission is enough for all but `Zero`).
    fn cache_op(&mut self, hart: &Hart, op: CacheOp, va: u64) -> Result<(), Trap>;

    /// `MCLAZY`: copies `len` bytes from `src` to `dest`, now or later.
    ///
    /// # Errors
    /// The page fault or access fault of either side.
    fn lazy_copy(&mut self, hart: &Hart, dest: u64, src: u64, len: u64) -> Result<(), Trap>;

    /// `MCFREE`: the contents of `len` bytes at `va` are no longer needed.
    ///
    /// # Errors
    /// The page fault or access fault.
    fn lazy_free(&mut self, hart: &Hart, va: u64, len: u64) -> Result<(), Trap>;

    /// `fence` with its predecessor and successor bits in the immediate.
    fn fence(&mut self, hart: &Hart, bits: u32);

    /// `fence.i`: later fetches see earlier stores.
    fn fence_i(&mut self, hart: &Hart);

    /// `sfence.vma`: later translations see earlier stores to page tables; `va` and `asid` narrow it.
    fn sfence(&mut self, hart: &Hart, va: Option<u64>, asid: Option<u16>);

    /// Translation may now differ: `satp`, PMP, `mstatus` or the mode changed.
    fn context_changed(&mut self, hart: &Hart);
}

/// Carries out `uop`, which was fetched at `hart.pc`: updates registers, memory, `pc`; not the counters.
///
/// # Errors
/// The exception it raises; then neither `pc` nor a register has changed (vector instructions may have advanced up to
/// `vstart`).
pub fn step<M: Memory>(hart: &mut Hart, uop: &Uop, memory: &mut M) -> Result<(), Trap> {
    let class = uop.class();
    if matches!(class, Class::FpLoad | Class::FpStore | Class::FpAlu | Class::FpMul | Class::FpDiv)
        && !hart.csrs.fp_enabled()
    {
        return Err(Trap::illegal(uop.raw));
    }
    let o = operands(hart, uop);
    match class {
        Class::Load | Class::FpLoad => {
            let raw = memory.load(hart, o.a.wrapping_add(uop.imm as u64), exec::memory_size(uop.op))?;
            finish(hart, uop, exec::extend(uop.op, raw));
        }
        Class::Store | Class::FpStore => {
            memory.store(hart, o.a.wrapping_add(uop.imm as u64), exec::memory_size(uop.op), o.b)?;
            finish(hart, uop, 0);
        }
        Class::Amo => atomic(hart, uop, &o, memory)?,
        Class::Csr => csr_access(hart, uop, o.a, memory)?,
        Class::System => return system(hart, uop, &o, memory),
        Class::Fence => {
            if uop.op == Op::FenceI {
                memory.fence_i(hart);
            } else {
                memory.fence(hart, uop.imm as u32);
            }
            finish(hart, uop, 0);
        }
        Class::CacheOp => cache_op(hart, uop, o.a, memory)?,
        Class::Lazy => {
            match uop.op {
                Op::McLazy => memory.lazy_copy(hart, o.a, o.b, o.c)?,
                _ => memory.lazy_free(hart, o.a, o.b)?,
            }
            finish(hart, uop, 0);
        }
        Class::VectorConfig | Class::VectorAlu | Class::VectorLoad | Class::VectorStore => {
            vector_step(hart, uop, &o, memory)?;
        }
        Class::Illegal => return Err(Trap::illegal(uop.raw)),
        _ => {
            let outcome = exec::execute(uop, &o).ok_or_else(|| Trap::illegal(uop.raw))?;
            hart.csrs.fflags |= outcome.fflags;
            write(hart, uop.dest(), outcome.value);
            hart.pc = outcome.next;
        }
    }
    Ok(())
}

/// Reads the operands of `uop` from the hart.
pub(crate) fn operands(hart: &Hart, uop: &Uop) -> Operands {
    let read = |reg: Option<Reg>| match reg {
        Some(Reg::X(n)) => hart.x[usize::from(n)],
        Some(Reg::F(n)) => hart.f[usize::from(n)],
        None => 0,
    };
    let [a, b, c] = uop.sources();
    Operands { a: read(a), b: read(b), c: read(c), pc: hart.pc, frm: hart.csrs.frm, fflags: hart.csrs.fflags }
}

fn write(hart: &mut Hart, reg: Option<Reg>, value: u64) {
    match reg {
        Some(Reg::X(n)) => hart.set_x(n, value),
        Some(Reg::F(n)) => {
            hart.f[usize::from(n)] = value;
            hart.csrs.mstatus |= MSTATUS_FS;
        }
        None => {}
    }
}

fn finish(hart: &mut Hart, uop: &Uop, value: u64) {
    write(hart, uop.dest(), value);
    hart.pc = hart.pc.wrapping_add(u64::from(uop.len));
}

fn atomic<M: Memory>(hart: &mut Hart, uop: &Uop, o: &Operands, memory: &mut M) -> Result<(), Trap> {
    let size = exec::memory_size(uop.op);
    if !o.a.is_multiple_of(size) {
        let load = matches!(uop.op, Op::LrW | Op::LrD);
        let cause = if load { Cause::LoadMisaligned } else { Cause::StoreMisaligned };
        return Err(Trap::new(cause, o.a));
    }
    let value = match uop.op {
        Op::LrW | Op::LrD => {
            let (raw, pa) = memory.load_reserved(hart, o.a, size)?;
            hart.reservation = Some(pa);
            exec::extend(uop.op, raw)
        }
        Op::ScW | Op::ScD => {
            let stored = memory.store_conditional(hart, o.a, size, o.b)?;
            hart.reservation = None;
            u64::from(!stored)
        }
        _ => {
            let (op, b) = (uop.op, o.b);
            let old = memory.update(hart, o.a, size, &|old| exec::amo(op, old, b))?;
            exec::extend(uop.op, old)
        }
    };
    finish(hart, uop, value);
    Ok(())
}

fn csr_access<M: Memory>(hart: &mut Hart, uop: &Uop, a: u64, memory: &mut M) -> Result<(), Trap> {
    let illegal = |_| Trap::illegal(uop.raw);
    let number = uop.imm as u16;
    let immediate = matches!(uop.op, Op::Csrrwi | Op::Csrrsi | Op::Csrrci);
    let source = if immediate { u64::from(uop.rs1) } else { a };
    let swap = matches!(uop.op, Op::Csrrw | Op::Csrrwi);
    // csrrw with rd = x0 does not read; csrrs and csrrc with rs1 = 0 do not write.
    let old = if swap && uop.rd == 0 { 0 } else { hart.read_csr(number).map_err(illegal)? };
    if swap || uop.rs1 != 0 {
        // Bits that only lines drive must not be written back as if software had set them.
        let base = if number == csr::MIP || number == csr::SIP { hart.csrs.mip } else { old };
        let new = match uop.op {
            Op::Csrrw | Op::Csrrwi => source,
            Op::Csrrs | Op::Csrrsi => base | source,
            _ => base & !source,
        };
        hart.write_csr(number, new).map_err(illegal)?;
        let translates = matches!(number, csr::SATP | csr::MSTATUS | csr::SSTATUS);
        if translates || (csr::PMPCFG0..csr::PMPADDR0 + 64).contains(&number) {
            memory.context_changed(hart);
        }
    }
    finish(hart, uop, old);
    Ok(())
}

fn system<M: Memory>(hart: &mut Hart, uop: &Uop, o: &Operands, memory: &mut M) -> Result<(), Trap> {
    let illegal = Err(Trap::illegal(uop.raw));
    let status = hart.csrs.mstatus;
    match uop.op {
        Op::Ecall => {
            let cause = match hart.mode {
                Mode::User => Cause::EcallUser,
                Mode::Supervisor => Cause::EcallSupervisor,
                Mode::Machine => Cause::EcallMachine,
            };
            return Err(Trap::new(cause, 0));
        }
        Op::Ebreak => return Err(Trap::new(Cause::Breakpoint, hart.pc)),
        Op::Mret => {
            if hart.mode != Mode::Machine {
                return illegal;
            }
            hart.return_machine();
            memory.context_changed(hart);
        }
        Op::Sret => {
            if hart.mode == Mode::User || (hart.mode == Mode::Supervisor && status & MSTATUS_TSR != 0) {
                return illegal;
            }
            hart.return_supervisor();
            memory.context_changed(hart);
        }
        Op::Wfi => {
            if hart.mode == Mode::User || (hart.mode == Mode::Supervisor && status & MSTATUS_TW != 0) {
                return illegal;
            }
            hart.waiting = !hart.interrupt_pending();
            finish(hart, uop, 0);
        }
        _ => {
            if hart.mode == Mode::User || (hart.mode == Mode::Supervisor && status & MSTATUS_TVM != 0) {
                return illegal;
            }
            let va = (uop.rs1 != 0).then_some(o.a);
            let asid = (uop.rs2 != 0).then_some(o.b as u16);
            memory.sfence(hart, va, asid);
            finish(hart, uop, 0);
        }
    }
    Ok(())
}

fn cache_op<M: Memory>(hart: &mut Hart, uop: &Uop, va: u64, memory: &mut M) -> Result<(), Trap> {
    let (op, enable) = match uop.op {
        Op::CboInval => (CacheOp::Invalidate, ENVCFG_CBIE),
        Op::CboClean => (CacheOp::Clean, ENVCFG_CBCFE),
        Op::CboFlush => (CacheOp::Flush, ENVCFG_CBCFE),
        _ => (CacheOp::Zero, ENVCFG_CBZE),
    };
    if !hart.envcfg(enable) {
        return Err(Trap::illegal(uop.raw));
    }
    // CBIE = 01 makes an invalidate a flush (Zicbom, table of CBIE).
    let flushes = |cfg: u64| cfg & ENVCFG_CBIE == 1 << 4;
    let softened = (hart.mode != Mode::Machine && flushes(hart.csrs.menvcfg))
        || (hart.mode == Mode::User && flushes(hart.csrs.senvcfg));
    let op = if op == CacheOp::Invalidate && softened { CacheOp::Flush } else { op };
    memory.cache_op(hart, op, va)?;
    finish(hart, uop, 0);
    Ok(())
}

fn vector_step<M: Memory>(hart: &mut Hart, uop: &Uop, o: &Operands, memory: &mut M) -> Result<(), Trap> {
    if hart.csrs.mstatus & MSTATUS_VS == 0 {
        return Err(Trap::illegal(uop.raw));
    }
    hart.csrs.mstatus |= MSTATUS_VS;
    // The unit is lent out so that memory can look at the hart while the unit changes.
    let mut unit = std::mem::take(&mut hart.v);
    let done = match uop.class() {
        Class::VectorConfig => Ok(unit.configure(uop, o.a, o.b)),
        Class::VectorAlu => vector::arith(&mut unit, uop, o.a).map_err(|_| Trap::illegal(uop.raw)),
        Class::VectorLoad => vector::load(&mut unit, uop, o.a, o.b, &mut |va, size| memory.load(hart, va, size)),
        _ => vector::store(&mut unit, uop, o.a, o.b, &mut |va, size, value| memory.store(hart, va, size, value)),
    };
    hart.v = unit;
    finish(hart, uop, done?);
    Ok(())
}
