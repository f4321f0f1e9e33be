//! The C extension for RV64 with D: each 16-bit instruction becomes the [`Uop`] of its 32-bit meaning with `len` 2.

use crate::uop::{Op, Uop};

fn bits(raw: u16, high: u32, low: u32) -> i32 {
    i32::from(raw) >> low & ((1 << (high - low + 1)) - 1)
}

fn bit(raw: u16, n: u32) -> i32 {
    bits(raw, n, n)
}

/// Sign-extends a value of `width` bits.
fn sign(value: i32, width: u32) -> i32 {
    value << (32 - width) >> (32 - width)
}

fn uop(op: Op, rd: u8, rs1: u8, rs2: u8, imm: i32, raw: u16) -> Uop {
    Uop { op, rd, rs1, rs2, rs3: 0, len: 2, rm: 0, imm, raw: u32::from(raw) }
}

/// Decodes a 16-bit instruction; what is not one has `op` [`Op::Illegal`].
pub fn decode16(raw: u16) -> Uop {
    let decoded = match raw & 3 {
        0 => quadrant0(raw),
        1 => quadrant1(raw),
        2 => quadrant2(raw),
        _ => None,
    };
    decoded.unwrap_or(Uop::new(Op::Illegal, u32::from(raw), 2))
}

fn quadrant0(raw: u16) -> Option<Uop> {
    let low = bits(raw, 4, 2) as u8 + 8;
    let base = bits(raw, 9, 7) as u8 + 8;
    let word = bits(raw, 12, 10) << 3 | bit(raw, 6) << 2 | bit(raw, 5) << 6;
    let double = bits(raw, 12, 10) << 3 | bits(raw, 6, 5) << 6;
    Some(match raw >> 13 {
        0 => {
            let imm = bits(raw, 12, 11) << 4 | bits(raw, 10, 7) << 6 | bit(raw, 6) << 2 | bit(raw, 5) << 3;
            if imm == 0 {
                return None;
            }
            uop(Op::Addi, low, 2, 0, imm, raw)
        }
        1 => uop(Op::Fld, low, base, 0, double, raw),
        2 => uop(Op::Lw, low, base, 0, word, raw),
        3 => uop(Op::Ld, low, base, 0, double, raw),
        5 => uop(Op::Fsd, 0, base, low, double, raw),
        6 => uop(Op::Sw, 0, base, low, word, raw),
        7 => uop(Op::Sd, 0, base, low, double, raw),
        _ => return None,
    })
}

fn quadrant1(raw: u16) -> Option<Uop> {
    let rd = bits(raw, 11, 7) as u8;
    let imm6 = sign(bit(raw, 12) << 5 | bits(raw, 6, 2), 6);
    let near = bits(raw, 9, 7) as u8 + 8;
    let branch = sign(
        bit(raw, 12) << 8 | bits(raw, 11, 10) << 3 | bits(raw, 6, 5) << 6 | bits(raw, 4, 3) << 1 | bit(raw, 2) << 5,
        9,
    );
    Some(match raw >> 13 {
        0 => uop(Op::Addi, rd, rd, 0, imm6, raw),
        1 if rd != 0 => uop(Op::Addiw, rd, rd, 0, imm6, raw),
        2 => uop(Op::Addi, rd, 0, 0, imm6, raw),
        3 if rd == 2 => {
            let imm = bit(raw, 12) << 9 | bit(raw, 6) << 4 | bit(raw, 5) << 6 | bits(raw, 4, 3) << 7 | bit(raw, 2) << 5;
            if imm == 0 {
                return None;
            }
            uop(Op::Addi, 2, 2, 0, sign(imm, 10), raw)
        }
        3 if imm6 != 0 => uop(Op::Lui, rd, 0, 0, imm6 << 12, raw),
        4 => arithmetic(raw, near, imm6)?,
        5 => {
            let imm = bit(raw, 12) << 11
                | bit(raw, 11) << 4
                | bits(raw, 10, 9) << 8
                | bit(raw, 8) << 10
                | bit(raw, 7) << 6
                | bit(raw, 6) << 7
                | bits(raw, 5, 3) << 1
                | bit(raw, 2) << 5;
            uop(Op::Jal, 0, 0, 0, sign(imm, 12), raw)
        }
        6 => uop(Op::Beq, 0, near, 0, branch, raw),
        7 => uop(Op::Bne, 0, near, 0, branch, raw),
        _ => return None,
    })
}

fn arithmetic(raw: u16, rd: u8, imm6: i32) -> Option<Uop> {
    let rs2 = bits(raw, 4, 2) as u8 + 8;
    Some(match bits(raw, 11, 10) {
        0 => uop(Op::Srli, rd, rd, 0, imm6 & 63, raw),
        1 => uop(Op::Srai, rd, rd, 0, imm6 & 63, raw),
        2 => uop(Op::Andi, rd, rd, 0, imm6, raw),
        _ => {
            let op = match (bit(raw, 12), bits(raw, 6, 5)) {
                (0, 0) => Op::Sub,
                (0, 1) => Op::Xor,
                (0, 2) => Op::Or,
                (0, _) => Op::And,
                (_, 0) => Op::Subw,
                (_, 1) => Op::Addw,
                _ => return None,
            };
            uop(op, rd, rd, rs2, 0, raw)
        }
    })
}

fn quadrant2(raw: u16) -> Option<Uop> {
    let rd = bits(raw, 11, 7) as u8;
    let rs2 = bits(raw, 6, 2) as u8;
    let double = bit(raw, 12) << 5 | bits(raw, 6, 5) << 3 | bits(raw, 4, 2) << 6;
    let word = bit(raw, 12) << 5 | bits(raw, 6, 4) << 2 | bits(raw, 3, 2) << 6;
    let double_out = bits(raw, 12, 10) << 3 | bits(raw, 9, 7) << 6;
    let word_out = bits(raw, 12, 9) << 2 | bits(raw, 8, 7) << 6;
    Some(match raw >> 13 {
        0 => uop(Op::Slli, rd, rd, 0, bit(raw, 12) << 5 | bits(raw, 6, 2), raw),
        1 => uop(Op::Fld, rd, 2, 0, double, raw),
        2 if rd != 0 => uop(Op::Lw, rd, 2, 0, word, raw),
        3 if rd != 0 => uop(Op::Ld, rd, 2, 0, double, raw),
        4 => match (bit(raw, 12), rd, rs2) {
            (0, 0, 0) => return None,
            (0, _, 0) => uop(Op::Jalr, 0, rd, 0, 0, raw),
            (0, ..) => uop(Op::Add, rd, 0, rs2, 0, raw),
            (_, 0, 0) => uop(Op::Ebreak, 0, 0, 0, 0, raw),
            (_, _, 0) => uop(Op::Jalr, 1, rd, 0, 0, raw),
            // Zihintntl: c.add x0 with x2 to x5.
            (_, 0, 2..=5) => uop(Op::NtlHint, 0, 0, rs2, 0, raw),
            (..) => uop(Op::Add, rd, rd, rs2, 0, raw),
        },
        5 => uop(Op::Fsd, 0, 2, rs2, double_out, raw),
        6 => uop(Op::Sw, 0, 2, rs2, word_out, raw),
        7 => uop(Op::Sd, 0, 2, rs2, double_out, raw),
        _ => return None,
    })
}
