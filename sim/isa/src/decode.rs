//! Decoding of 32-bit instructions, and the choice between them and the 16-bit ones.

use crate::uop::{Op, Uop};
use crate::{decode16, vector};

/// Decodes the instruction that starts in the low bits of `bits`; the upper half is ignored for a 16-bit one.
pub fn decode(bits: u32) -> Uop {
    if bits & 3 == 3 { decode32(bits) } else { decode16(bits as u16) }
}

pub(crate) fn rd(raw: u32) -> u8 {
    (raw >> 7 & 31) as u8
}

pub(crate) fn rs1(raw: u32) -> u8 {
    (raw >> 15 & 31) as u8
}

pub(crate) fn rs2(raw: u32) -> u8 {
    (raw >> 20 & 31) as u8
}

fn funct3(raw: u32) -> u32 {
    raw >> 12 & 7
}

fn imm_i(raw: u32) -> i32 {
    raw as i32 >> 20
}

fn imm_s(raw: u32) -> i32 {
    (raw as i32 >> 25 << 5) | (raw >> 7 & 31) as i32
}

fn imm_b(raw: u32) -> i32 {
    let sign = raw as i32 >> 31 << 12;
    sign | (raw << 4 & 0x800) as i32 | (raw >> 20 & 0x7e0) as i32 | (raw >> 7 & 0x1e) as i32
}

fn imm_j(raw: u32) -> i32 {
    let sign = raw as i32 >> 31 << 20;
    sign | (raw & 0xff000) as i32 | (raw >> 9 & 0x800) as i32 | (raw >> 20 & 0x7fe) as i32
}

/// Decodes a 32-bit instruction; what is not one has `op` [`Op::Illegal`].
pub fn decode32(raw: u32) -> Uop {
    let mut uop = Uop::new(Op::Illegal, raw, 4);
    (uop.rd, uop.rs1, uop.rs2) = (rd(raw), rs1(raw), rs2(raw));
    let op = match raw >> 2 & 31 {
        0x00 => immediate(&mut uop, imm_i(raw), load(raw)),
        0x01 => float_memory(&mut uop, imm_i(raw), false),
        0x02 => custom0(&mut uop),
        0x03 => misc_mem(&mut uop),
        0x04 => op_imm(&mut uop),
        0x05 => immediate(&mut uop, (raw & !0xfff) as i32, Some(Op::Auipc)),
        0x06 => op_imm32(&mut uop),
        0x08 => immediate(&mut uop, imm_s(raw), store(raw)),
        0x09 => float_memory(&mut uop, imm_s(raw), true),
        0x0b => amo(&mut uop),
        0x0c => register(raw),
        0x0d => immediate(&mut uop, (raw & !0xfff) as i32, Some(Op::Lui)),
        0x0e => register32(raw),
        0x10..=0x13 => fused(&mut uop),
        0x14 => float(&mut uop),
        0x15 => vector::decode_arith(&mut uop),
        0x18 => immediate(&mut uop, imm_b(raw), branch(raw)),
        0x19 => immediate(&mut uop, imm_i(raw), (funct3(raw) == 0).then_some(Op::Jalr)),
        0x1b => immediate(&mut uop, imm_j(raw), Some(Op::Jal)),
        0x1c => system(&mut uop),
        _ => None,
    };
    match op {
        Some(op) => Uop { op, ..uop },
        None => Uop::new(Op::Illegal, raw, 4),
    }
}

fn immediate(uop: &mut Uop, imm: i32, op: Option<Op>) -> Option<Op> {
    uop.imm = imm;
    op
}

fn load(raw: u32) -> Option<Op> {
    [Op::Lb, Op::Lh, Op::Lw, Op::Ld, Op::Lbu, Op::Lhu, Op::Lwu].get(funct3(raw) as usize).copied()
}

fn store(raw: u32) -> Option<Op> {
    [Op::Sb, Op::Sh, Op::Sw, Op::Sd].get(funct3(raw) as usize).copied()
}

fn branch(raw: u32) -> Option<Op> {
    Some(match funct3(raw) {
        0 => Op::Beq,
        1 => Op::Bne,
        4 => Op::Blt,
        5 => Op::Bge,
        6 => Op::Bltu,
        7 => Op::Bgeu,
        _ => return None,
    })
}

fn float_memory(uop: &mut Uop, imm: i32, store: bool) -> Option<Op> {
    uop.imm = imm;
    match (funct3(uop.raw), store) {
        (2, false) => Some(Op::Flw),
        (3, false) => Some(Op::Fld),
        (2, true) => Some(Op::Fsw),
        (3, true) => Some(Op::Fsd),
        _ => {
            uop.imm = 0;
            vector::decode_memory(uop, store)
        }
    }
}

/// `MCLAZY rd=x0, rs1=destination, rs2=source, rs3=length` and `MCFREE rs1=address, rs2=length`: format R4 in the
/// custom-0 space, told apart by the two bits above rs2.
fn custom0(uop: &mut Uop) -> Option<Op> {
    uop.rs3 = (uop.raw >> 27) as u8;
    if uop.rd != 0 || funct3(uop.raw) != 0 {
        return None;
    }
    match uop.raw >> 25 & 3 {
        0 => Some(Op::McLazy),
        1 if uop.rs3 == 0 => Some(Op::McFree),
        _ => None,
    }
}

fn misc_mem(uop: &mut Uop) -> Option<Op> {
    match funct3(uop.raw) {
        // Zihintpause: a fence with predecessor W and no successor.
        0 if uop.raw == 0x0100_000f => Some(Op::Pause),
        0 => immediate(uop, imm_i(uop.raw), Some(Op::Fence)),
        1 => Some(Op::FenceI),
        2 if uop.rd == 0 => match uop.raw >> 20 {
            0 => Some(Op::CboInval),
            1 => Some(Op::CboClean),
            2 => Some(Op::CboFlush),
            4 => Some(Op::CboZero),
            _ => None,
        },
        _ => None,
    }
}

fn op_imm(uop: &mut Uop) -> Option<Op> {
    let raw = uop.raw;
    uop.imm = imm_i(raw);
    let shamt = (raw >> 20 & 63) as i32;
    Some(match (funct3(raw), raw >> 26) {
        (0, _) => Op::Addi,
        (2, _) => Op::Slti,
        (3, _) => Op::Sltiu,
        (4, _) => Op::Xori,
        // Zicbop: prefetches are hints encoded as `ori x0`.
        (6, _) if uop.rd == 0 && matches!(uop.rs2, 0 | 1 | 3) => {
            uop.imm &= !31;
            Op::Prefetch
        }
        (6, _) => Op::Ori,
        (7, _) => Op::Andi,
        (1, 0x18) => {
            let op = unary(raw >> 20 & 63)?;
            uop.imm = 0;
            op
        }
        (5, 0x0a) if raw >> 20 == 0x287 => immediate(uop, 0, Some(Op::OrcB))?,
        (5, 0x1a) if raw >> 20 == 0x6b8 => immediate(uop, 0, Some(Op::Rev8))?,
        (kind, top) => {
            uop.imm = shamt;
            match (kind, top) {
                (1, 0x00) => Op::Slli,
                (1, 0x0a) => Op::Bseti,
                (1, 0x12) => Op::Bclri,
                (1, 0x1a) => Op::Binvi,
                (5, 0x00) => Op::Srli,
                (5, 0x10) => Op::Srai,
                (5, 0x12) => Op::Bexti,
                (5, 0x18) => Op::Rori,
                _ => return None,
            }
        }
    })
}

fn unary(selector: u32) -> Option<Op> {
    [Op::Clz, Op::Ctz, Op::Cpop, Op::Illegal, Op::SextB, Op::SextH]
        .get(selector as usize)
        .copied()
        .filter(|&op| op != Op::Illegal)
}

fn op_imm32(uop: &mut Uop) -> Option<Op> {
    let raw = uop.raw;
    uop.imm = imm_i(raw);
    if funct3(raw) == 0 {
        return Some(Op::Addiw);
    }
    uop.imm = i32::from(uop.rs2);
    Some(match (funct3(raw), raw >> 25) {
        (1, 0x00) => Op::Slliw,
        (5, 0x00) => Op::Srliw,
        (5, 0x20) => Op::Sraiw,
        (5, 0x30) => Op::Roriw,
        (1, 0x04 | 0x05) => {
            uop.imm = (raw >> 20 & 63) as i32;
            Op::SlliUw
        }
        (1, 0x30) => {
            uop.imm = 0;
            *[Op::Clzw, Op::Ctzw, Op::Cpopw].get(usize::from(uop.rs2))?
        }
        _ => return None,
    })
}

fn register(raw: u32) -> Option<Op> {
    use Op::*;
    if funct3(raw) == 0 && raw >> 25 == 0 && rd(raw) == 0 && rs1(raw) == 0 && (2..=5).contains(&rs2(raw)) {
        return Some(NtlHint);
    }
    let row: [Op; 8] = match raw >> 25 {
        0x00 => [Add, Sll, Slt, Sltu, Xor, Srl, Or, And],
        0x01 => [Mul, Mulh, Mulhsu, Mulhu, Div, Divu, Rem, Remu],
        0x05 => [Illegal, Illegal, Illegal, Illegal, Min, Minu, Max, Maxu],
        0x10 => [Illegal, Illegal, Sh1add, Illegal, Sh2add, Illegal, Sh3add, Illegal],
        0x14 => [Illegal, Bset, Illegal, Illegal, Illegal, Illegal, Illegal, Illegal],
        0x20 => [Sub, Illegal, Illegal, Illegal, Xnor, Sra, Orn, Andn],
        0x24 => [Illegal, Bclr, Illegal, Illegal, Illegal, Bext, Illegal, Illegal],
        0x30 => [Illegal, Rol, Illegal, Illegal, Illegal, Ror, Illegal, Illegal],
        0x34 => [Illegal, Binv, Illegal, Illegal, Illegal, Illegal, Illegal, Illegal],
        _ => return None,
    };
    Some(row[funct3(raw) as usize]).filter(|&op| op != Illegal)
}

fn register32(raw: u32) -> Option<Op> {
    Some(match (raw >> 25, funct3(raw)) {
        (0x00, 0) => Op::Addw,
        (0x20, 0) => Op::Subw,
        (0x00, 1) => Op::Sllw,
        (0x00, 5) => Op::Srlw,
        (0x20, 5) => Op::Sraw,
        (0x01, 0) => Op::Mulw,
        (0x01, 4) => Op::Divw,
        (0x01, 5) => Op::Divuw,
        (0x01, 6) => Op::Remw,
        (0x01, 7) => Op::Remuw,
        (0x04, 0) => Op::AddUw,
        (0x04, 4) if rs2(raw) == 0 => Op::ZextH,
        (0x10, 2) => Op::Sh1addUw,
        (0x10, 4) => Op::Sh2addUw,
        (0x10, 6) => Op::Sh3addUw,
        (0x30, 1) => Op::Rolw,
        (0x30, 5) => Op::Rorw,
        _ => return None,
    })
}

fn amo(uop: &mut Uop) -> Option<Op> {
    use Op::*;
    uop.rm = (uop.raw >> 25 & 3) as u8;
    let wide = match funct3(uop.raw) {
        2 => false,
        3 => true,
        _ => return None,
    };
    let (word, double) = match uop.raw >> 27 {
        0x02 if uop.rs2 == 0 => (LrW, LrD),
        0x03 => (ScW, ScD),
        0x01 => (AmoswapW, AmoswapD),
        0x00 => (AmoaddW, AmoaddD),
        0x04 => (AmoxorW, AmoxorD),
        0x0c => (AmoandW, AmoandD),
        0x08 => (AmoorW, AmoorD),
        0x10 => (AmominW, AmominD),
        0x14 => (AmomaxW, AmomaxD),
        0x18 => (AmominuW, AmominuD),
        0x1c => (AmomaxuW, AmomaxuD),
        _ => return None,
    };
    Some(if wide { double } else { word })
}

fn rounding_valid(uop: &mut Uop) -> bool {
    uop.rm = funct3(uop.raw) as u8;
    !matches!(uop.rm, 5 | 6)
}

fn fused(uop: &mut Uop) -> Option<Op> {
    use Op::*;
    uop.rs3 = (uop.raw >> 27) as u8;
    if !rounding_valid(uop) {
        return None;
    }
    let row = match uop.raw >> 25 & 3 {
        0 => [FmaddS, FmsubS, FnmsubS, FnmaddS],
        1 => [FmaddD, FmsubD, FnmsubD, FnmaddD],
        _ => return None,
    };
    Some(row[(uop.raw >> 2 & 3) as usize])
}

fn float(uop: &mut Uop) -> Option<Op> {
    let double = match uop.raw >> 25 & 3 {
        0 => false,
        1 => true,
        _ => return None,
    };
    let (single_op, double_op, rounds) = float_pair(uop.raw)?;
    if rounds && !rounding_valid(uop) {
        return None;
    }
    Some(if double { double_op } else { single_op }).filter(|&op| op != Op::Illegal)
}

/// The operation for the S and the D format, and whether funct3 is a rounding mode.
fn float_pair(raw: u32) -> Option<(Op, Op, bool)> {
    use Op::*;
    let selector = usize::from(rs2(raw));
    let by_funct3 = |row: &[(Op, Op)]| row.get(funct3(raw) as usize).map(|&(s, d)| (s, d, false));
    let by_rs2 = |row: &[(Op, Op)]| row.get(selector).map(|&(s, d)| (s, d, true));
    match raw >> 27 {
        0x00 => Some((FaddS, FaddD, true)),
        0x01 => Some((FsubS, FsubD, true)),
        0x02 => Some((FmulS, FmulD, true)),
        0x03 => Some((FdivS, FdivD, true)),
        0x0b if selector == 0 => Some((FsqrtS, FsqrtD, true)),
        0x04 => by_funct3(&[(FsgnjS, FsgnjD), (FsgnjnS, FsgnjnD), (FsgnjxS, FsgnjxD)]),
        0x05 => by_funct3(&[(FminS, FminD), (FmaxS, FmaxD)]),
        0x08 => by_rs2(&[(Illegal, FcvtDS), (FcvtSD, Illegal)]),
        0x14 => by_funct3(&[(FleS, FleD), (FltS, FltD), (FeqS, FeqD)]),
        0x18 => by_rs2(&[(FcvtWS, FcvtWD), (FcvtWuS, FcvtWuD), (FcvtLS, FcvtLD), (FcvtLuS, FcvtLuD)]),
        0x1a => by_rs2(&[(FcvtSW, FcvtDW), (FcvtSWu, FcvtDWu), (FcvtSL, FcvtDL), (FcvtSLu, FcvtDLu)]),
        0x1c if selector == 0 => by_funct3(&[(FmvXW, FmvXD), (FclassS, FclassD)]),
        0x1e if selector == 0 => by_funct3(&[(FmvWX, FmvDX)]),
        _ => None,
    }
}

fn system(uop: &mut Uop) -> Option<Op> {
    let raw = uop.raw;
    if funct3(raw) == 0 {
        if raw >> 25 == 0x09 && uop.rd == 0 {
            return Some(Op::SfenceVma);
        }
        return Some(match raw {
            0x0000_0073 => Op::Ecall,
            0x0010_0073 => Op::Ebreak,
            0x1020_0073 => Op::Sret,
            0x3020_0073 => Op::Mret,
            0x1050_0073 => Op::Wfi,
            _ => return None,
        });
    }
    uop.imm = (raw >> 20) as i32;
    [Op::Illegal, Op::Csrrw, Op::Csrrs, Op::Csrrc, Op::Illegal, Op::Csrrwi, Op::Csrrsi, Op::Csrrci]
        .get(funct3(raw) as usize)
        .copied()
        .filter(|&op| op != Op::Illegal)
}
