//! Which bits are vector instructions.

use crate::uop::{Op, Uop};

/// Vector loads and stores in the LOAD-FP and STORE-FP opcodes.
pub(crate) fn decode_memory(uop: &mut Uop, store: bool) -> Option<Op> {
    let raw = uop.raw;
    let (width, mew, mop, nf) = (raw >> 12 & 7, raw >> 28 & 1, raw >> 26 & 3, raw >> 29);
    if !matches!(width, 0 | 5 | 6 | 7) || mew == 1 {
        return None;
    }
    if mop == 0 {
        let unmasked = raw >> 25 & 1 == 1;
        match uop.rs2 {
            0 => {}
            // Whole registers: 1, 2, 4 or 8, stores of bytes only.
            8 if unmasked && matches!(nf, 0 | 1 | 3 | 7) && (!store || width == 0) => {}
            11 if unmasked && nf == 0 && width == 0 => {}
            16 if !store => {}
            _ => return None,
        }
    }
    Some(if store { Op::VStore } else { Op::VLoad })
}

/// Vector configuration and arithmetic in the OP-V opcode.
pub(crate) fn decode_arith(uop: &mut Uop) -> Option<Op> {
    let raw = uop.raw;
    let funct6 = raw >> 26;
    let known = match raw >> 12 & 7 {
        0 => matches!(funct6, 0x00 | 0x02 | 0x04..=0x07 | 0x09..=0x0c | 0x0e | 0x10..=0x13 | 0x17..=0x1d | 0x20..=0x23
            | 0x25 | 0x27..=0x31),
        3 => matches!(funct6, 0x00 | 0x03 | 0x09..=0x0c | 0x0e | 0x0f | 0x10 | 0x11 | 0x17..=0x19 | 0x1c..=0x21
            | 0x25 | 0x27..=0x2f),
        4 => matches!(funct6, 0x00 | 0x02..=0x07 | 0x09..=0x0c | 0x0e | 0x0f | 0x10..=0x13 | 0x17..=0x23
            | 0x25 | 0x27..=0x2f),
        2 => known_opmvv(uop, funct6),
        6 => {
            matches!(funct6, 0x08..=0x0b | 0x0e | 0x0f | 0x20..=0x27 | 0x29 | 0x2b | 0x2d | 0x2f..=0x38 | 0x3a..=0x3f)
                || (funct6 == 0x10 && uop.rs2 == 0 && raw >> 25 & 1 == 1)
        }
        7 => return configuration(uop),
        _ => false,
    };
    (known && carries_valid(uop, funct6)).then_some(Op::VArith)
}

/// Where the mask bit has another meaning it must have its one legal value.
fn carries_valid(uop: &Uop, funct6: u32) -> bool {
    let (kind, masked) = (uop.raw >> 12 & 7, uop.raw >> 25 & 1 == 0);
    match (kind, funct6) {
        // vadc, vsbc always read v0.
        (0 | 3 | 4, 0x10 | 0x12) => masked && uop.rd != 0,
        // vmv.v.* has no second source.
        (0 | 3 | 4, 0x17) => (masked && uop.rd != 0) || (!masked && uop.rs2 == 0),
        // vmv<n>r.v.
        (3, 0x27) => !masked && matches!(uop.rs1, 0 | 1 | 3 | 7),
        // Mask logic and vcompress are unmasked.
        (2, 0x17..=0x1f) => !masked,
        _ => true,
    }
}

fn known_opmvv(uop: &Uop, funct6: u32) -> bool {
    let masked = uop.raw >> 25 & 1 == 0;
    match funct6 {
        0x00..=0x0b | 0x17..=0x27 | 0x29 | 0x2b | 0x2d | 0x2f..=0x38 | 0x3a..=0x3d | 0x3f => true,
        0x10 => matches!(uop.rs1, 0x10 | 0x11) || (uop.rs1 == 0 && !masked),
        0x12 => (2..=7).contains(&uop.rs1),
        0x14 => matches!(uop.rs1, 1 | 2 | 3 | 0x10) || (uop.rs1 == 0x11 && uop.rs2 == 0),
        _ => false,
    }
}

fn configuration(uop: &mut Uop) -> Option<Op> {
    let raw = uop.raw;
    if raw >> 31 == 0 {
        uop.imm = (raw >> 20 & 0x7ff) as i32;
        return Some(Op::Vsetvli);
    }
    if raw >> 30 == 3 {
        uop.imm = (raw >> 20 & 0x3ff) as i32;
        return Some(Op::Vsetivli);
    }
    (raw >> 25 == 0x40).then_some(Op::Vsetvl)
}
