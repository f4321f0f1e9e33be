//! Vector loads and stores, element by element in order, so that a trap leaves `vstart` at the element that raised it.

use super::{VLEN_BYTES, VectorState, aligned, masked, vlmax};
use crate::trap::Trap;
use crate::uop::Uop;

/// Where the elements of one access are.
struct Plan {
    /// Bytes of a data element.
    size: usize,
    /// Fields of a segment.
    fields: usize,
    /// Registers between two fields.
    field_stride: u8,
    /// Elements to move.
    count: usize,
    pattern: Pattern,
    first_only: bool,
    masked: bool,
}

#[derive(Clone, Copy)]
enum Pattern {
    Strided(u64),
    /// Offsets of this many bytes in the group that starts at `rs2`.
    Indexed(usize),
}

/// Reads the plan from the bits; `None` if `vtype` or a register number is not permitted.
fn plan(unit: &VectorState, uop: &Uop, stride: u64, load: bool) -> Option<Plan> {
    let raw = uop.raw;
    let width = match raw >> 12 & 7 {
        0 => 1,
        5 => 2,
        6 => 4,
        _ => 8,
    };
    let fields = (raw >> 29) as usize + 1;
    let mop = raw >> 26 & 3;
    let unit_stride = mop == 0;
    if unit_stride && uop.rs2 == 8 {
        // Whole registers: independent of vtype.
        let log = fields.trailing_zeros() as i32;
        let plan = Plan {
            size: width,
            fields: 1,
            field_stride: 0,
            count: fields * VLEN_BYTES / width,
            pattern: Pattern::Strided(width as u64),
            first_only: false,
            masked: false,
        };
        return aligned(uop.rd, log).then_some(plan);
    }
    if unit.vill {
        return None;
    }
    if unit_stride && uop.rs2 == 11 {
        return Some(Plan {
            size: 1,
            fields: 1,
            field_stride: 0,
            count: (unit.vl as usize).div_ceil(8),
            pattern: Pattern::Strided(1),
            first_only: false,
            masked: false,
        });
    }
    let indexed = mop & 1 == 1;
    let relative = |size: usize| unit.lmul() + size.trailing_zeros() as i32 - unit.sew().trailing_zeros() as i32;
    let (size, lmul) = if indexed { (unit.sew(), unit.lmul()) } else { (width, relative(width)) };
    let registers = 1usize << lmul.max(0);
    let index_lmul = relative(width);
    let valid = (-3..=3).contains(&lmul)
        && fields * registers <= 8
        && usize::from(uop.rd) + fields * registers <= 32
        && aligned(uop.rd, lmul)
        && (!indexed || ((-3..=3).contains(&index_lmul) && aligned(uop.rs2, index_lmul)))
        && !(load && masked(uop) && uop.rd == 0)
        && !(load && indexed && !overlap_allowed(uop, fields, (size, lmul), (width, index_lmul)));
    valid.then_some(Plan {
        size,
        fields,
        field_stride: registers as u8,
        count: unit.vl as usize,
        pattern: match mop {
            0 => Pattern::Strided((size * fields) as u64),
            2 => Pattern::Strided(stride),
            _ => Pattern::Indexed(width),
        },
        first_only: unit_stride && uop.rs2 == 16,
        masked: masked(uop),
    })
}

/// Whether an indexed load's destination may share registers with its indices (V specification 5.2 and 7.8.3).
fn overlap_allowed(uop: &Uop, fields: usize, data: (usize, i32), index: (usize, i32)) -> bool {
    let registers = |lmul: i32| 1u32 << lmul.max(0);
    let (d, i) = (u32::from(uop.rd), u32::from(uop.rs2));
    let (d_end, i_end) = (d + fields as u32 * registers(data.1), i + registers(index.1));
    if d_end <= i || i_end <= d {
        return true;
    }
    match data.0.cmp(&index.0) {
        _ if fields > 1 => false,
        std::cmp::Ordering::Equal => true,
        std::cmp::Ordering::Greater => index.1 >= 0 && i_end == d_end,
        std::cmp::Ordering::Less => d == i,
    }
}

impl Plan {
    fn address(&self, unit: &VectorState, uop: &Uop, base: u64, index: usize) -> u64 {
        match self.pattern {
            Pattern::Strided(stride) => base.wrapping_add(stride.wrapping_mul(index as u64)),
            Pattern::Indexed(size) => base.wrapping_add(unit.get(uop.rs2, index, size)),
        }
    }

    /// Whether registers and memory hold the same bytes in the same order.
    fn contiguous(&self) -> bool {
        self.fields == 1 && !self.masked && matches!(self.pattern, Pattern::Strided(s) if s == self.size as u64)
    }
}

/// A vector load from `base` with `stride`; `read` gives the bytes at an address.
///
/// # Errors
/// The trap of the first element that raises one, or illegal instruction.
pub fn load(
    unit: &mut VectorState,
    uop: &Uop,
    base: u64,
    stride: u64,
    read: &mut impl FnMut(u64, u64) -> Result<u64, Trap>,
) -> Result<u64, Trap> {
    let plan = plan(unit, uop, stride, true).ok_or_else(|| Trap::illegal(uop.raw))?;
    debug_assert!(plan.count <= vlmax(1, 3));
    let mut index = unit.vstart as usize;
    if plan.contiguous() && index == 0 {
        let per_word = 8 / plan.size;
        while index + per_word <= plan.count {
            // A fault inside the word is found again, element by element, below.
            let Ok(word) = read(base.wrapping_add((index * plan.size) as u64), 8) else { break };
            unit.set(uop.rd, index / per_word, 8, word);
            index += per_word;
        }
    }
    while index < plan.count {
        if !plan.masked || unit.mask_bit(0, index) {
            let address = plan.address(unit, uop, base, index);
            for field in 0..plan.fields {
                match read(address.wrapping_add((field * plan.size) as u64), plan.size as u64) {
                    Ok(value) => unit.set(uop.rd + field as u8 * plan.field_stride, index, plan.size, value),
                    Err(_) if plan.first_only && index > 0 => {
                        (unit.vl, unit.vstart) = (index as u64, 0);
                        return Ok(0);
                    }
                    Err(trap) => {
                        unit.vstart = index as u64;
                        return Err(trap);
                    }
                }
            }
        }
        index += 1;
    }
    unit.vstart = 0;
    Ok(0)
}

/// A vector store to `base` with `stride`; `write` puts bytes at an address.
///
/// # Errors
/// The trap of the first element that raises one, or illegal instruction.
pub fn store(
    unit: &mut VectorState,
    uop: &Uop,
    base: u64,
    stride: u64,
    write: &mut impl FnMut(u64, u64, u64) -> Result<(), Trap>,
) -> Result<u64, Trap> {
    let plan = plan(unit, uop, stride, false).ok_or_else(|| Trap::illegal(uop.raw))?;
    let mut index = unit.vstart as usize;
    if plan.contiguous() && index == 0 {
        let per_word = 8 / plan.size;
        while index + per_word <= plan.count {
            let word = unit.get(uop.rd, index / per_word, 8);
            if write(base.wrapping_add((index * plan.size) as u64), 8, word).is_err() {
                break;
            }
            index += per_word;
        }
    }
    while index < plan.count {
        if !plan.masked || unit.mask_bit(0, index) {
            let address = plan.address(unit, uop, base, index);
            for field in 0..plan.fields {
                let value = unit.get(uop.rd + field as u8 * plan.field_stride, index, plan.size);
                if let Err(trap) = write(address.wrapping_add((field * plan.size) as u64), plan.size as u64, value) {
                    unit.vstart = index as u64;
                    return Err(trap);
                }
            }
        }
        index += 1;
    }
    unit.vstart = 0;
    Ok(0)
}
