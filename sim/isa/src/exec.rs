//! What scalar instructions compute: pure functions of their operands, shared by every core.

use crate::float::{self, Format, Round};
use crate::uop::{Class, Op, Uop};

/// What a uop reads. `a`, `b`, `c` are the registers of [`Uop::sources`] in order; floating-point registers as their
/// 64 raw bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operands {
    /// First source.
    pub a: u64,
    /// Second source.
    pub b: u64,
    /// Third source.
    pub c: u64,
    /// Address of the instruction.
    pub pc: u64,
    /// The dynamic rounding mode, `frm`.
    pub frm: u8,
    /// Flags already set in `fflags`; [`execute`] may leave those out of its outcome, which lets it take a fast path.
    pub fflags: u8,
}

/// What a uop produces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The result for [`Uop::dest`]; for memory operations the effective address; for others 0.
    pub value: u64,
    /// Address of the next instruction.
    pub next: u64,
    /// Floating-point exception flags raised (NV 16, DZ 8, OF 4, UF 2, NX 1).
    pub fflags: u8,
}

/// Carries out any scalar uop but those of class `Csr`, `System`, `Fence` and the data part of memory operations, for
/// which the outcome holds the effective address. `None`: the rounding mode is reserved, an illegal instruction.
#[inline]
pub fn execute(uop: &Uop, o: &Operands) -> Option<Outcome> {
    let sequential = o.pc.wrapping_add(u64::from(uop.len));
    let value = |value| Some(Outcome { value, next: sequential, fflags: 0 });
    match uop.class() {
        Class::Alu | Class::Mul | Class::Div => value(integer(uop.op, o.a, o.b, uop.imm, o.pc)),
        Class::Branch => {
            let taken = branch_taken(uop.op, o.a, o.b);
            let next = if taken { o.pc.wrapping_add(uop.imm as u64) } else { sequential };
            Some(Outcome { value: 0, next, fflags: 0 })
        }
        Class::Jump => {
            let base = if uop.op == Op::Jal { o.pc } else { o.a };
            Some(Outcome { value: sequential, next: base.wrapping_add(uop.imm as u64) & !1, fflags: 0 })
        }
        Class::FpAlu | Class::FpMul | Class::FpDiv => {
            let (result, fflags) = fp(uop, o)?;
            Some(Outcome { value: result, next: sequential, fflags })
        }
        Class::Load | Class::Store | Class::FpLoad | Class::FpStore => value(o.a.wrapping_add(uop.imm as u64)),
        _ => value(o.a),
    }
}

fn word(value: u32) -> u64 {
    value as i32 as u64
}

/// The integer operations, `a` and `b` being the sources, `imm` the immediate.
#[inline(always)]
pub fn integer(op: Op, a: u64, b: u64, imm: i32, pc: u64) -> u64 {
    let i = imm as i64 as u64;
    match op {
        Op::Lui => i,
        Op::Auipc => pc.wrapping_add(i),
        Op::Addi => a.wrapping_add(i),
        Op::Slti => u64::from((a as i64) < i as i64),
        Op::Sltiu => u64::from(a < i),
        Op::Xori => a ^ i,
        Op::Ori => a | i,
        Op::Andi => a & i,
        Op::Slli => a << (i & 63),
        Op::Srli => a >> (i & 63),
        Op::Srai => (a as i64 >> (i & 63)) as u64,
        Op::Addiw => word((a as u32).wrapping_add(imm as u32)),
        Op::Slliw => word((a as u32) << (i & 31)),
        Op::Srliw => word(a as u32 >> (i & 31)),
        Op::Sraiw => (a as i32 >> (i & 31)) as u64,
        Op::Add => a.wrapping_add(b),
        Op::Sub => a.wrapping_sub(b),
        Op::Sll => a << (b & 63),
        Op::Slt => u64::from((a as i64) < b as i64),
        Op::Sltu => u64::from(a < b),
        Op::Xor => a ^ b,
        Op::Srl => a >> (b & 63),
        Op::Sra => (a as i64 >> (b & 63)) as u64,
        Op::Or => a | b,
        Op::And => a & b,
        Op::Addw => word((a as u32).wrapping_add(b as u32)),
        Op::Subw => word((a as u32).wrapping_sub(b as u32)),
        Op::Sllw => word((a as u32) << (b & 31)),
        Op::Srlw => word(a as u32 >> (b & 31)),
        Op::Sraw => (a as i32 >> (b & 31)) as u64,
        Op::Mul => a.wrapping_mul(b),
        Op::Mulh => ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
        Op::Mulhsu => ((i128::from(a as i64) * b as i128) >> 64) as u64,
        Op::Mulhu => ((u128::from(a) * u128::from(b)) >> 64) as u64,
        Op::Mulw => word((a as u32).wrapping_mul(b as u32)),
        Op::Div | Op::Divu | Op::Rem | Op::Remu | Op::Divw | Op::Divuw | Op::Remw | Op::Remuw => divide(op, a, b),
        _ => bit_manipulation(op, a, b, i),
    }
}

#[inline]
fn divide(op: Op, a: u64, b: u64) -> u64 {
    let (sa, sb) = (a as i64, b as i64);
    let (wa, wb) = (a as u32, b as u32);
    match op {
        Op::Div => {
            if sb == 0 {
                u64::MAX
            } else {
                sa.wrapping_div(sb) as u64
            }
        }
        Op::Divu => a.checked_div(b).unwrap_or(u64::MAX),
        Op::Rem => {
            if sb == 0 {
                a
            } else {
                sa.wrapping_rem(sb) as u64
            }
        }
        Op::Remu => a.checked_rem(b).unwrap_or(a),
        Op::Divw => {
            if wb == 0 {
                u64::MAX
            } else {
                (wa as i32).wrapping_div(wb as i32) as u64
            }
        }
        Op::Divuw => wa.checked_div(wb).map_or(u64::MAX, word),
        Op::Remw => {
            if wb == 0 {
                word(wa)
            } else {
                (wa as i32).wrapping_rem(wb as i32) as u64
            }
        }
        _ => word(wa.checked_rem(wb).unwrap_or(wa)),
    }
}

/// Zba, Zbb and Zbs.
#[inline(always)]
fn bit_manipulation(op: Op, a: u64, b: u64, i: u64) -> u64 {
    let low = u64::from(a as u32);
    match op {
        Op::AddUw => low.wrapping_add(b),
        Op::Sh1add => (a << 1).wrapping_add(b),
        Op::Sh2add => (a << 2).wrapping_add(b),
        Op::Sh3add => (a << 3).wrapping_add(b),
        Op::Sh1addUw => (low << 1).wrapping_add(b),
        Op::Sh2addUw => (low << 2).wrapping_add(b),
        Op::Sh3addUw => (low << 3).wrapping_add(b),
        Op::SlliUw => low << (i & 63),
        Op::Andn => a & !b,
        Op::Orn => a | !b,
        Op::Xnor => !(a ^ b),
        Op::Clz => u64::from(a.leading_zeros()),
        Op::Ctz => u64::from(a.trailing_zeros()),
        Op::Cpop => u64::from(a.count_ones()),
        Op::Clzw => u64::from((a as u32).leading_zeros()),
        Op::Ctzw => u64::from((a as u32).trailing_zeros()),
        Op::Cpopw => u64::from((a as u32).count_ones()),
        Op::Max => (a as i64).max(b as i64) as u64,
        Op::Maxu => a.max(b),
        Op::Min => (a as i64).min(b as i64) as u64,
        Op::Minu => a.min(b),
        Op::SextB => a as i8 as u64,
        Op::SextH => a as i16 as u64,
        Op::ZextH => u64::from(a as u16),
        Op::Rol => a.rotate_left(b as u32 & 63),
        Op::Ror => a.rotate_right(b as u32 & 63),
        Op::Rori => a.rotate_right(i as u32 & 63),
        Op::Rolw => word((a as u32).rotate_left(b as u32 & 31)),
        Op::Rorw => word((a as u32).rotate_right(b as u32 & 31)),
        Op::Roriw => word((a as u32).rotate_right(i as u32 & 31)),
        Op::OrcB => {
            // A byte's top bit is set by the carry of its low bits, or by itself.
            let low7 = 0x7f7f_7f7f_7f7f_7f7f;
            let tops = ((a & low7).wrapping_add(low7) | a) & !low7;
            (tops >> 7).wrapping_mul(0xff)
        }
        Op::Rev8 => a.swap_bytes(),
        Op::Bclr => a & !(1 << (b & 63)),
        Op::Bext => a >> (b & 63) & 1,
        Op::Binv => a ^ 1 << (b & 63),
        Op::Bset => a | 1 << (b & 63),
        Op::Bclri => a & !(1 << (i & 63)),
        Op::Bexti => a >> (i & 63) & 1,
        Op::Binvi => a ^ 1 << (i & 63),
        Op::Bseti => a | 1 << (i & 63),
        _ => 0,
    }
}

/// Whether the conditional branch `op` is taken.
#[inline(always)]
pub fn branch_taken(op: Op, a: u64, b: u64) -> bool {
    match op {
        Op::Beq => a == b,
        Op::Bne => a != b,
        Op::Blt => (a as i64) < b as i64,
        Op::Bge => a as i64 >= b as i64,
        Op::Bltu => a < b,
        _ => a >= b,
    }
}

/// Bytes a scalar memory operation moves; 0 for what is not one.
pub const fn memory_size(op: Op) -> u64 {
    match op {
        Op::Lb | Op::Lbu | Op::Sb => 1,
        Op::Lh | Op::Lhu | Op::Sh => 2,
        Op::Lw | Op::Lwu | Op::Sw | Op::Flw | Op::Fsw | Op::LrW | Op::ScW => 4,
        Op::Ld | Op::Sd | Op::Fld | Op::Fsd | Op::LrD | Op::ScD => 8,
        _ if matches!(op.class(), Class::Amo) => {
            if (op as u8) < Op::AmoswapD as u8 {
                4
            } else {
                8
            }
        }
        _ => 0,
    }
}

/// Whether it is a read-modify-write (not `lr` or `sc`).
pub fn is_amo(op: Op) -> bool {
    (Op::AmoswapW..=Op::AmomaxuD).contains(&op)
}

/// Turns the bytes a load, `lr` or AMO read (zero-extended) into the value of its destination register.
#[inline(always)]
pub fn extend(op: Op, raw: u64) -> u64 {
    match op {
        Op::Lb => raw as i8 as u64,
        Op::Lh => raw as i16 as u64,
        Op::Flw => box32(raw as u32),
        Op::Lw | Op::LrW => raw as i32 as u64,
        _ if is_amo(op) && memory_size(op) == 4 => raw as i32 as u64,
        _ => raw,
    }
}

/// The value an AMO stores, from the old memory value and its second source.
pub fn amo(op: Op, old: u64, b: u64) -> u64 {
    let (o, v) = (old as u32, b as u32);
    let signed = |take: bool| u64::from(if take { v } else { o });
    match op {
        Op::AmoswapW => u64::from(v),
        Op::AmoaddW => u64::from(o.wrapping_add(v)),
        Op::AmoxorW => u64::from(o ^ v),
        Op::AmoandW => u64::from(o & v),
        Op::AmoorW => u64::from(o | v),
        Op::AmominW => signed((v as i32) < o as i32),
        Op::AmomaxW => signed(v as i32 > o as i32),
        Op::AmominuW => u64::from(o.min(v)),
        Op::AmomaxuW => u64::from(o.max(v)),
        Op::AmoswapD => b,
        Op::AmoaddD => old.wrapping_add(b),
        Op::AmoxorD => old ^ b,
        Op::AmoandD => old & b,
        Op::AmoorD => old | b,
        Op::AmominD => (old as i64).min(b as i64) as u64,
        Op::AmomaxD => (old as i64).max(b as i64) as u64,
        Op::AmominuD => old.min(b),
        Op::AmomaxuD => old.max(b),
        _ => b,
    }
}

/// NaN-boxes a single (unprivileged specification, "NaN Boxing of Narrower Values").
#[inline(always)]
pub fn box32(value: u32) -> u64 {
    0xffff_ffff_0000_0000 | u64::from(value)
}

/// The single in a register, or the canonical NaN if it is not boxed.
#[inline(always)]
pub fn unbox32(value: u64) -> u64 {
    if value >> 32 == 0xffff_ffff { value & 0xffff_ffff } else { 0x7fc0_0000 }
}

/// The floating-point operations on registers: result and flags, or `None` for a reserved rounding mode.
pub fn fp(uop: &Uop, o: &Operands) -> Option<(u64, u8)> {
    use Op::*;
    let rm = if uop.rm == 7 { o.frm } else { uop.rm };
    let single = is_single(uop.op);
    let format = if single { Format::Single } else { Format::Double };
    let (a, b, c) = if single { (unbox32(o.a), unbox32(o.b), unbox32(o.c)) } else { (o.a, o.b, o.c) };
    let mut flags = 0;
    let fl = &mut flags;
    let round = || Round::from_bits(rm);
    let s = 1u64 << if single { 31 } else { 63 };
    let boxed = |v: u64| if single { box32(v as u32) } else { v };
    let value = match uop.op {
        FaddS | FaddD => boxed(float::add(format, a, b, round()?, o.fflags, fl)),
        FsubS | FsubD => boxed(float::add(format, a, b ^ s, round()?, o.fflags, fl)),
        FmulS | FmulD => boxed(float::mul(format, a, b, round()?, o.fflags, fl)),
        FdivS | FdivD => boxed(float::div(format, a, b, round()?, o.fflags, fl)),
        FsqrtS | FsqrtD => boxed(float::sqrt(format, a, round()?, o.fflags, fl)),
        FmaddS | FmaddD => boxed(float::fma(format, a, b, c, round()?, o.fflags, fl)),
        FmsubS | FmsubD => boxed(float::fma(format, a, b, c ^ s, round()?, o.fflags, fl)),
        FnmsubS | FnmsubD => boxed(float::fma(format, a ^ s, b, c, round()?, o.fflags, fl)),
        FnmaddS | FnmaddD => boxed(float::fma(format, a ^ s, b, c ^ s, round()?, o.fflags, fl)),
        FsgnjS | FsgnjD => boxed(a & !s | b & s),
        FsgnjnS | FsgnjnD => boxed(a & !s | !b & s),
        FsgnjxS | FsgnjxD => boxed(a ^ b & s),
        FminS | FminD => boxed(float::min_max(format, a, b, false, fl)),
        FmaxS | FmaxD => boxed(float::min_max(format, a, b, true, fl)),
        FeqS | FeqD => u64::from(float::equal(format, a, b, fl)),
        FltS | FltD => u64::from(float::less(format, a, b, false, fl)),
        FleS | FleD => u64::from(float::less(format, a, b, true, fl)),
        FclassS | FclassD => float::classify(format, a),
        FcvtSD => box32(float::convert(Format::Double, Format::Single, o.a, round()?, fl) as u32),
        FcvtDS => {
            round()?;
            float::convert(Format::Single, Format::Double, unbox32(o.a), Round::NearestEven, fl)
        }
        FmvXW => o.a as i32 as u64,
        FmvXD => o.a,
        FmvWX => box32(o.a as u32),
        FmvDX => o.a,
        FcvtWS | FcvtWD => float::to_integer(format, a, true, 32, round()?, fl),
        FcvtWuS | FcvtWuD => float::to_integer(format, a, false, 32, round()?, fl) as i32 as u64,
        FcvtLS | FcvtLD => float::to_integer(format, a, true, 64, round()?, fl),
        FcvtLuS | FcvtLuD => float::to_integer(format, a, false, 64, round()?, fl),
        FcvtSW | FcvtDW => boxed(float::from_integer(format, i128::from(o.a as i32), round()?, fl)),
        FcvtSWu | FcvtDWu => boxed(float::from_integer(format, i128::from(o.a as u32), round()?, fl)),
        FcvtSL | FcvtDL => boxed(float::from_integer(format, i128::from(o.a as i64), round()?, fl)),
        FcvtSLu | FcvtDLu => boxed(float::from_integer(format, i128::from(o.a), round()?, fl)),
        _ => return None,
    };
    Some((value, flags))
}

/// Whether the operands (of a conversion from integer: the result) are single precision.
fn is_single(op: Op) -> bool {
    (Op::FmaddS..=Op::FmvWX).contains(&op)
}
