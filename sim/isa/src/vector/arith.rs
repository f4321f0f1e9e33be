//! Vector operations on registers. Elements are processed in order, which the overlap rules of widening and narrowing
//! operations are made for.

use super::{Reserved, VLEN_BYTES, VectorState, aligned, masked};
use crate::uop::Uop;

/// The second operand: a vector group, or one value for all elements.
#[derive(Clone, Copy)]
enum Second {
    Vector(u8),
    Scalar(u64),
}

/// One operation with its fields at hand.
struct Work<'a> {
    unit: &'a mut VectorState,
    vd: u8,
    vs2: u8,
    second: Second,
    masked: bool,
    size: usize,
    vl: usize,
    start: usize,
}

/// Carries out a vector operation on registers; `x` is the scalar operand. Returns the scalar result, if any.
///
/// # Errors
/// [`Reserved`]: an illegal instruction under this configuration.
pub fn arith(unit: &mut VectorState, uop: &Uop, x: u64) -> Result<u64, Reserved> {
    let (kind, funct6) = (uop.raw >> 12 & 7, uop.raw >> 26);
    if kind == 3 && funct6 == 0x27 {
        return move_whole(unit, uop);
    }
    if unit.vill {
        return Err(Reserved);
    }
    let second = match kind {
        0 | 2 => Second::Vector(uop.rs1),
        // Shifts take an unsigned amount, everything else a sign-extended immediate.
        3 if matches!(funct6, 0x25 | 0x28..=0x2f) => Second::Scalar(u64::from(uop.rs1)),
        3 => Second::Scalar(((uop.rs1 << 3) as i8 >> 3) as u64),
        _ => Second::Scalar(x),
    };
    let (size, vl, start) = (unit.sew(), unit.vl as usize, unit.vstart as usize);
    let mut work = Work { unit, vd: uop.rd, vs2: uop.rs2, second, masked: masked(uop), size, vl, start };
    let result = if kind == 2 || kind == 6 {
        work.multiply_group(funct6, kind == 6, x)
    } else {
        work.integer_group(funct6, kind)
    };
    if result.is_ok() {
        unit.vstart = 0;
    }
    result
}

/// `vmv1r.v` and its kin.
fn move_whole(unit: &mut VectorState, uop: &Uop) -> Result<u64, Reserved> {
    let count = usize::from(uop.rs1) + 1;
    let log = count.trailing_zeros() as i32;
    if !aligned(uop.rd, log) || !aligned(uop.rs2, log) {
        return Err(Reserved);
    }
    let from = usize::from(uop.rs2) * VLEN_BYTES;
    // A trap may have left vstart inside the group; the part before it is done.
    let done = (unit.vstart as usize * unit.sew()).min(count * VLEN_BYTES);
    unit.regs.copy_within(from + done..from + count * VLEN_BYTES, usize::from(uop.rd) * VLEN_BYTES + done);
    unit.vstart = 0;
    Ok(0)
}

fn sign(value: u64, size: usize) -> i64 {
    let shift = 64 - 8 * size as u32;
    ((value << shift) as i64) >> shift
}

fn low(value: u64, size: usize) -> u64 {
    let shift = 64 - 8 * size as u32;
    value << shift >> shift
}

/// Rounds `value >> by` by the fixed-point mode (V specification 3.8).
fn round_shift(value: i128, by: u32, mode: u8) -> i128 {
    if by == 0 {
        return value;
    }
    let kept = value >> by;
    let half = value >> (by - 1) & 1;
    let rest = value & ((1 << (by - 1)) - 1);
    let up = match mode {
        0 => half,
        1 => i128::from(half == 1 && (rest != 0 || kept & 1 == 1)),
        2 => 0,
        _ => i128::from(kept & 1 == 0 && (half != 0 || rest != 0)),
    };
    kept + up
}

impl Work<'_> {
    fn active(&self, index: usize) -> bool {
        !self.masked || self.unit.mask_bit(0, index)
    }

    fn second(&self, index: usize, size: usize) -> u64 {
        match self.second {
            Second::Vector(reg) => self.unit.get(reg, index, size),
            Second::Scalar(value) => low(value, size),
        }
    }

    /// Checks that groups are aligned: destination, vs2 and vs1 with these log2 LMULs.
    fn check(&self, vd: i32, vs2: i32, vs1: i32) -> Result<(), Reserved> {
        let second = match self.second {
            Second::Vector(reg) => aligned(reg, vs1),
            Second::Scalar(_) => true,
        };
        let valid =
            [vd, vs2, vs1].into_iter().all(|l| l <= 3) && aligned(self.vd, vd) && aligned(self.vs2, vs2) && second;
        if valid { Ok(()) } else { Err(Reserved) }
    }

    /// A masked operation may not write the mask it reads.
    fn check_mask(&self) -> Result<(), Reserved> {
        if self.masked && self.vd == 0 { Err(Reserved) } else { Ok(()) }
    }

    /// The destination group may not touch the source group.
    fn check_apart(&self, reg: u8, lmul: i32, vd_lmul: i32) -> Result<(), Reserved> {
        let (d, dn) = (u32::from(self.vd), 1u32 << vd_lmul.max(0));
        let (s, sn) = (u32::from(reg), 1u32 << lmul.max(0));
        if d < s + sn && s < d + dn { Err(Reserved) } else { Ok(()) }
    }

    /// A wider destination may overlap a narrower source only in its highest part, and with LMUL of at least 1.
    fn check_widening(&self, reg: u8, lmul: i32, vd_lmul: i32) -> Result<(), Reserved> {
        let top = u32::from(self.vd) + (1 << vd_lmul.max(0)) - (1 << lmul.max(0));
        if lmul >= 0 && vd_lmul > lmul && u32::from(reg) == top {
            return Ok(());
        }
        self.check_apart(reg, lmul, vd_lmul)
    }

    /// A narrower destination may overlap a wider source only in its lowest part.
    fn check_narrowing(&self, lmul: i32) -> Result<(), Reserved> {
        if self.vd == self.vs2 { Ok(()) } else { self.check_apart(self.vs2, lmul + 1, lmul) }
    }

    /// A mask as the result may overlap only the lowest register of a source group.
    fn check_mask_result(&self, lmul: i32) -> Result<(), Reserved> {
        if self.vd != self.vs2 {
            self.check_apart(self.vs2, lmul, 0)?;
        }
        match self.second {
            Second::Vector(reg) if reg != self.vd => self.check_apart(reg, lmul, 0),
            _ => Ok(()),
        }
    }

    /// Same-width operation of vs2 and the second operand.
    fn each(&mut self, f: impl Fn(u64, u64) -> u64) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(lmul, lmul, lmul)?;
        self.check_mask()?;
        for i in self.start..self.vl {
            if self.active(i) {
                let value = f(self.unit.get(self.vs2, i, size), self.second(i, size));
                self.unit.set(self.vd, i, size, value);
            }
        }
        Ok(0)
    }

    /// Same-width operation that also sees the old destination: `f(vd, vs2, second)`.
    fn accumulate(&mut self, f: impl Fn(u64, u64, u64) -> u64) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(lmul, lmul, lmul)?;
        self.check_mask()?;
        for i in self.start..self.vl {
            if self.active(i) {
                let value = f(self.unit.get(self.vd, i, size), self.unit.get(self.vs2, i, size), self.second(i, size));
                self.unit.set(self.vd, i, size, value);
            }
        }
        Ok(0)
    }

    /// Saturating operation: exact result and the range it is clamped to.
    fn saturate(&mut self, signed: bool, f: impl Fn(i128, i128) -> i128) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(lmul, lmul, lmul)?;
        self.check_mask()?;
        for i in self.start..self.vl {
            if self.active(i) {
                let (a, b) = (self.unit.get(self.vs2, i, size), self.second(i, size));
                let exact = if signed {
                    f(sign(a, size).into(), sign(b, size).into())
                } else {
                    f(low(a, size).into(), low(b, size).into())
                };
                let value = self.clamp(exact, size, signed);
                self.unit.set(self.vd, i, size, value);
            }
        }
        Ok(0)
    }

    fn clamp(&mut self, exact: i128, size: usize, signed: bool) -> u64 {
        let bits = 8 * size as u32;
        let (lowest, highest) =
            if signed { (-(1i128 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
        self.unit.vxsat |= exact < lowest || exact > highest;
        exact.clamp(lowest, highest) as u64
    }

    /// Comparison into a mask register.
    fn compare(&mut self, f: impl Fn(u64, u64) -> bool) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(0, lmul, lmul)?;
        self.check_mask_result(lmul)?;
        for i in self.start..self.vl {
            if self.active(i) {
                let bit = f(self.unit.get(self.vs2, i, size), self.second(i, size));
                self.unit.set_mask_bit(self.vd, i, bit);
            }
        }
        Ok(0)
    }

    /// Carry or borrow out into a mask register; the carry in is v0 where the operation is masked.
    fn carry_out(&mut self, subtract: bool) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(0, lmul, lmul)?;
        self.check_mask_result(lmul)?;
        let mut bits = Vec::with_capacity(self.vl);
        for i in self.start..self.vl {
            let carry = u128::from(self.masked && self.unit.mask_bit(0, i));
            let (a, b) = (u128::from(self.unit.get(self.vs2, i, size)), u128::from(self.second(i, size)));
            bits.push(if subtract { a < b + carry } else { (a + b + carry) >> (8 * size) != 0 });
        }
        for (i, bit) in bits.into_iter().enumerate() {
            self.unit.set_mask_bit(self.vd, self.start + i, bit);
        }
        Ok(0)
    }

    fn carry_in(&mut self, subtract: bool) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(lmul, lmul, lmul)?;
        for i in self.start..self.vl {
            let carry = u64::from(self.unit.mask_bit(0, i));
            let (a, b) = (self.unit.get(self.vs2, i, size), self.second(i, size));
            let value =
                if subtract { a.wrapping_sub(b).wrapping_sub(carry) } else { a.wrapping_add(b).wrapping_add(carry) };
            self.unit.set(self.vd, i, size, value);
        }
        Ok(0)
    }

    /// `vmerge` and `vmv.v.*`.
    fn merge(&mut self) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(lmul, if self.masked { lmul } else { 0 }, lmul)?;
        for i in self.start..self.vl {
            let value = if self.active(i) { self.second(i, size) } else { self.unit.get(self.vs2, i, size) };
            self.unit.set(self.vd, i, size, value);
        }
        Ok(0)
    }

    /// Narrowing shift of a double-width vs2, perhaps with rounding and clipping.
    fn narrow(&mut self, signed: bool, clip: bool) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        if size == 8 {
            return Err(Reserved);
        }
        self.check(lmul, lmul + 1, lmul)?;
        self.check_mask()?;
        self.check_narrowing(lmul)?;
        for i in self.start..self.vl {
            if !self.active(i) {
                continue;
            }
            let wide = self.unit.get(self.vs2, i, 2 * size);
            let by = (self.second(i, size) & (16 * size as u64 - 1)) as u32;
            let exact = if signed { i128::from(sign(wide, 2 * size)) } else { i128::from(wide) };
            let value = if clip {
                let rounded = round_shift(exact, by, self.unit.vxrm);
                self.clamp(rounded, size, signed)
            } else {
                (exact >> by) as u64
            };
            self.unit.set(self.vd, i, size, value);
        }
        Ok(0)
    }

    /// The shift amount or index of `vi` forms is unsigned.
    fn unsigned_second(&self) -> u64 {
        match self.second {
            Second::Scalar(value) => value,
            Second::Vector(_) => 0,
        }
    }

    fn integer_group(&mut self, funct6: u32, kind: u32) -> Result<u64, Reserved> {
        let size = self.size;
        let bits = 8 * size as u64 - 1;
        let vxrm = self.unit.vxrm;
        let s = move |value| sign(value, size);
        match funct6 {
            0x00 => self.each(u64::wrapping_add),
            0x02 => self.each(u64::wrapping_sub),
            0x03 => self.each(|a, b| b.wrapping_sub(a)),
            0x04 => self.each(u64::min),
            0x05 => self.each(move |a, b| s(a).min(s(b)) as u64),
            0x06 => self.each(u64::max),
            0x07 => self.each(move |a, b| s(a).max(s(b)) as u64),
            0x09 => self.each(|a, b| a & b),
            0x0a => self.each(|a, b| a | b),
            0x0b => self.each(|a, b| a ^ b),
            0x0c => self.gather(size, kind == 3),
            0x0e if kind == 0 => self.gather(2, false),
            0x0e => self.slide_up(self.scalar_index(kind)),
            0x0f => self.slide_down(self.scalar_index(kind)),
            0x10 | 0x12 => self.carry_in(funct6 == 0x12),
            0x11 | 0x13 => self.carry_out(funct6 == 0x13),
            0x17 => self.merge(),
            0x18 => self.compare(|a, b| a == b),
            0x19 => self.compare(|a, b| a != b),
            0x1a => self.compare(|a, b| a < b),
            0x1b => self.compare(move |a, b| s(a) < s(b)),
            0x1c => self.compare(|a, b| a <= b),
            0x1d => self.compare(move |a, b| s(a) <= s(b)),
            0x1e => self.compare(|a, b| a > b),
            0x1f => self.compare(move |a, b| s(a) > s(b)),
            0x20 => self.saturate(false, |a, b| a + b),
            0x21 => self.saturate(true, |a, b| a + b),
            0x22 => self.saturate(false, |a, b| a - b),
            0x23 => self.saturate(true, |a, b| a - b),
            0x25 => self.each(move |a, b| a << (b & bits)),
            0x27 => self.saturate(true, move |a, b| round_shift(a * b, bits as u32, vxrm)),
            0x28 => self.each(move |a, b| a >> (b & bits)),
            0x29 => self.each(move |a, b| (s(a) >> (b & bits)) as u64),
            0x2a => self.each(move |a, b| round_shift(a.into(), (b & bits) as u32, vxrm) as u64),
            0x2b => self.each(move |a, b| round_shift(s(a).into(), (b & bits) as u32, vxrm) as u64),
            0x2c => self.narrow(false, false),
            0x2d => self.narrow(true, false),
            0x2e => self.narrow(false, true),
            0x2f => self.narrow(true, true),
            0x30 | 0x31 => self.reduce_wide(funct6 == 0x31),
            _ => Err(Reserved),
        }
    }

    fn scalar_index(&self, kind: u32) -> u64 {
        let value = self.unsigned_second();
        if kind == 3 { value & 31 } else { value }
    }

    /// `vrgather`: element `second[i]` of vs2, zero beyond VLMAX.
    fn gather(&mut self, index_size: usize, immediate: bool) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        let index_lmul = lmul + index_size.trailing_zeros() as i32 - size.trailing_zeros() as i32;
        self.check(lmul, lmul, index_lmul)?;
        self.check_mask()?;
        self.check_apart(self.vs2, lmul, lmul)?;
        if let Second::Vector(reg) = self.second {
            if index_lmul < -3 {
                return Err(Reserved);
            }
            self.check_apart(reg, index_lmul, lmul)?;
        }
        let max = self.unit.vlmax() as u64;
        for i in self.start..self.vl {
            if self.active(i) {
                let at = match self.second {
                    Second::Vector(reg) => self.unit.get(reg, i, index_size),
                    Second::Scalar(value) => {
                        if immediate {
                            value & 31
                        } else {
                            value
                        }
                    }
                };
                let value = if at < max { self.unit.get(self.vs2, at as usize, size) } else { 0 };
                self.unit.set(self.vd, i, size, value);
            }
        }
        Ok(0)
    }

    fn slide_up(&mut self, by: u64) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(lmul, lmul, 0)?;
        self.check_mask()?;
        self.check_apart(self.vs2, lmul, lmul)?;
        let by = by.min(self.vl as u64) as usize;
        for i in self.start.max(by)..self.vl {
            if self.active(i) {
                let value = self.unit.get(self.vs2, i - by, size);
                self.unit.set(self.vd, i, size, value);
            }
        }
        Ok(0)
    }

    fn slide_down(&mut self, by: u64) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(lmul, lmul, 0)?;
        self.check_mask()?;
        let max = self.unit.vlmax() as u64;
        for i in self.start..self.vl {
            if self.active(i) {
                let at = (i as u64).saturating_add(by);
                let value = if at < max { self.unit.get(self.vs2, at as usize, size) } else { 0 };
                self.unit.set(self.vd, i, size, value);
            }
        }
        Ok(0)
    }

    fn slide1(&mut self, up: bool, x: u64) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(lmul, lmul, 0)?;
        self.check_mask()?;
        if up {
            self.check_apart(self.vs2, lmul, lmul)?;
        }
        let edge = if up { 0 } else { self.vl.wrapping_sub(1) };
        for i in self.start..self.vl {
            if self.active(i) {
                let from = if up { i.wrapping_sub(1) } else { i + 1 };
                let value = if i == edge { x } else { self.unit.get(self.vs2, from, size) };
                self.unit.set(self.vd, i, size, value);
            }
        }
        Ok(0)
    }

    /// Reduction of the active elements of vs2 onto element 0 of vs1.
    fn reduce(&mut self, f: impl Fn(u64, u64) -> u64) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        self.check(0, lmul, 0)?;
        if self.start != 0 {
            return Err(Reserved);
        }
        if self.vl == 0 {
            return Ok(0);
        }
        let mut sum = self.second(0, size);
        for i in 0..self.vl {
            if self.active(i) {
                sum = f(sum, self.unit.get(self.vs2, i, size));
            }
        }
        self.unit.set(self.vd, 0, size, sum);
        Ok(0)
    }

    fn reduce_wide(&mut self, signed: bool) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        if size == 8 || self.start != 0 {
            return Err(Reserved);
        }
        self.check(0, lmul, 0)?;
        if self.vl == 0 {
            return Ok(0);
        }
        let mut sum = self.second(0, 2 * size);
        for i in 0..self.vl {
            if self.active(i) {
                let value = self.unit.get(self.vs2, i, size);
                sum = sum.wrapping_add(if signed { sign(value, size) as u64 } else { value });
            }
        }
        self.unit.set(self.vd, 0, 2 * size, sum);
        Ok(0)
    }

    /// Widening operation `f(vd, vs2, second)`; `wide2`: vs2 is already wide.
    fn widen(&mut self, signed: (bool, bool), wide2: bool, f: impl Fn(u64, u64, u64) -> u64) -> Result<u64, Reserved> {
        let (lmul, size) = (self.unit.lmul(), self.size);
        if size == 8 {
            return Err(Reserved);
        }
        self.check(lmul + 1, if wide2 { lmul + 1 } else { lmul }, lmul)?;
        self.check_mask()?;
        if !wide2 {
            self.check_widening(self.vs2, lmul, lmul + 1)?;
        }
        if let Second::Vector(reg) = self.second {
            self.check_widening(reg, lmul, lmul + 1)?;
        }
        let grow = |value: u64, signed: bool| if signed { sign(value, size) as u64 } else { low(value, size) };
        for i in self.start..self.vl {
            if self.active(i) {
                let a = if wide2 {
                    self.unit.get(self.vs2, i, 2 * size)
                } else {
                    grow(self.unit.get(self.vs2, i, size), signed.0)
                };
                let value = f(self.unit.get(self.vd, i, 2 * size), a, grow(self.second(i, size), signed.1));
                self.unit.set(self.vd, i, 2 * size, value);
            }
        }
        Ok(0)
    }

    fn multiply_group(&mut self, funct6: u32, scalar: bool, x: u64) -> Result<u64, Reserved> {
        let size = self.size;
        let vxrm = self.unit.vxrm;
        let bits = 8 * size as u32;
        let s = move |value| sign(value, size);
        let (si, ui) = (move |v| i128::from(sign(v, size)), i128::from as fn(u64) -> i128);
        match funct6 {
            0x00 => self.reduce(u64::wrapping_add),
            0x01 => self.reduce(|a, b| a & b),
            0x02 => self.reduce(|a, b| a | b),
            0x03 => self.reduce(|a, b| a ^ b),
            0x04 => self.reduce(u64::min),
            0x05 => self.reduce(move |a, b| s(a).min(s(b)) as u64),
            0x06 => self.reduce(u64::max),
            0x07 => self.reduce(move |a, b| s(a).max(s(b)) as u64),
            0x08 => self.each(move |a, b| round_shift(ui(a) + ui(b), 1, vxrm) as u64),
            0x09 => self.each(move |a, b| round_shift(si(a) + si(b), 1, vxrm) as u64),
            0x0a => self.each(move |a, b| round_shift(ui(a) - ui(b), 1, vxrm) as u64),
            0x0b => self.each(move |a, b| round_shift(si(a) - si(b), 1, vxrm) as u64),
            0x0e | 0x0f if scalar => self.slide1(funct6 == 0x0e, x),
            0x10 if scalar => self.scalar_in(x),
            0x10 => self.scalar_out(),
            0x12 => self.extend(),
            0x14 => self.mask_unary(),
            0x17 => self.compress(),
            0x18..=0x1f => self.mask_logic(funct6),
            0x20 => self.each(move |a, b| a.checked_div(b).unwrap_or(u64::MAX)),
            0x21 => self.each(move |a, b| if b == 0 { u64::MAX } else { s(a).wrapping_div(s(b)) as u64 }),
            0x22 => self.each(move |a, b| a.checked_rem(b).unwrap_or(a)),
            0x23 => self.each(move |a, b| if b == 0 { a } else { s(a).wrapping_rem(s(b)) as u64 }),
            0x24 => self.each(move |a, b| ((u128::from(a) * u128::from(b)) >> bits) as u64),
            0x25 => self.each(u64::wrapping_mul),
            0x26 => self.each(move |a, b| ((si(a) * ui(b)) >> bits) as u64),
            0x27 => self.each(move |a, b| ((si(a) * si(b)) >> bits) as u64),
            0x29 => self.accumulate(|d, a, b| d.wrapping_mul(b).wrapping_add(a)),
            0x2b => self.accumulate(|d, a, b| a.wrapping_sub(d.wrapping_mul(b))),
            0x2d => self.accumulate(|d, a, b| d.wrapping_add(a.wrapping_mul(b))),
            0x2f => self.accumulate(|d, a, b| d.wrapping_sub(a.wrapping_mul(b))),
            _ => self.widening_group(funct6, scalar),
        }
    }

    fn widening_group(&mut self, funct6: u32, scalar: bool) -> Result<u64, Reserved> {
        let both = |signed| (signed, signed);
        let signed = funct6 & 1 == 1;
        match funct6 {
            0x30 | 0x31 => self.widen(both(signed), false, |_, a, b| a.wrapping_add(b)),
            0x32 | 0x33 => self.widen(both(signed), false, |_, a, b| a.wrapping_sub(b)),
            0x34 | 0x35 => self.widen(both(signed), true, |_, a, b| a.wrapping_add(b)),
            0x36 | 0x37 => self.widen(both(signed), true, |_, a, b| a.wrapping_sub(b)),
            0x38 => self.widen(both(false), false, |_, a, b| a.wrapping_mul(b)),
            0x3a => self.widen((true, false), false, |_, a, b| a.wrapping_mul(b)),
            0x3b => self.widen(both(true), false, |_, a, b| a.wrapping_mul(b)),
            0x3c => self.widen(both(false), false, |d, a, b| d.wrapping_add(a.wrapping_mul(b))),
            0x3d => self.widen(both(true), false, |d, a, b| d.wrapping_add(a.wrapping_mul(b))),
            // vs1 or the scalar unsigned, vs2 signed; exists only with a scalar.
            0x3e if scalar => self.widen((true, false), false, |d, a, b| d.wrapping_add(a.wrapping_mul(b))),
            0x3f => self.widen((false, true), false, |d, a, b| d.wrapping_add(a.wrapping_mul(b))),
            _ => Err(Reserved),
        }
    }

    /// `vmv.s.x`.
    fn scalar_in(&mut self, x: u64) -> Result<u64, Reserved> {
        if self.start < self.vl {
            self.unit.set(self.vd, 0, self.size, x);
        }
        Ok(0)
    }

    fn selector(&self) -> u8 {
        match self.second {
            Second::Vector(reg) => reg,
            Second::Scalar(_) => 0,
        }
    }

    /// `vmv.x.s`, `vcpop.m`, `vfirst.m`.
    fn scalar_out(&mut self) -> Result<u64, Reserved> {
        let selector = self.selector();
        if selector == 0 {
            return Ok(sign(self.unit.get(self.vs2, 0, self.size), self.size) as u64);
        }
        if self.start != 0 {
            return Err(Reserved);
        }
        let mut set = (0..self.vl).filter(|&i| self.active(i) && self.unit.mask_bit(self.vs2, i));
        Ok(if selector == 0x10 { set.count() as u64 } else { set.next().map_or(u64::MAX, |i| i as u64) })
    }

    /// `vzext` and `vsext` from an eighth, a quarter or half of the width.
    fn extend(&mut self) -> Result<u64, Reserved> {
        let selector = self.selector();
        let log = 4 - i32::from(selector / 2);
        let (lmul, size) = (self.unit.lmul(), self.size);
        let narrow = size >> log;
        if narrow == 0 || lmul - log < -3 {
            return Err(Reserved);
        }
        self.check(lmul, lmul - log, 0)?;
        self.check_mask()?;
        self.check_widening(self.vs2, lmul - log, lmul)?;
        for i in self.start..self.vl {
            if self.active(i) {
                let value = self.unit.get(self.vs2, i, narrow);
                let value = if selector & 1 == 1 { sign(value, narrow) as u64 } else { value };
                self.unit.set(self.vd, i, size, value);
            }
        }
        Ok(0)
    }

    /// `vmsbf`, `vmsof`, `vmsif`, `viota`, `vid`.
    fn mask_unary(&mut self) -> Result<u64, Reserved> {
        let (selector, size, lmul) = (self.selector(), self.size, self.unit.lmul());
        if selector == 0x11 {
            self.second = Second::Scalar(0);
            self.vs2 = self.vd;
            self.check(lmul, lmul, 0)?;
            self.check_mask()?;
            for i in self.start..self.vl {
                if self.active(i) {
                    self.unit.set(self.vd, i, size, i as u64);
                }
            }
            return Ok(0);
        }
        if self.start != 0 {
            return Err(Reserved);
        }
        self.check_mask()?;
        if selector == 0x10 {
            if !aligned(self.vd, lmul) {
                return Err(Reserved);
            }
            self.check_apart(self.vs2, 0, lmul)?;
            let mut count = 0;
            for i in 0..self.vl {
                if self.active(i) {
                    self.unit.set(self.vd, i, size, count);
                    count += u64::from(self.unit.mask_bit(self.vs2, i));
                }
            }
            return Ok(0);
        }
        self.check_apart(self.vs2, 0, 0)?;
        let mut found = false;
        for i in 0..self.vl {
            if self.active(i) {
                let here = !found && self.unit.mask_bit(self.vs2, i);
                let bit = match selector {
                    1 => !found && !here,
                    2 => here,
                    _ => !found,
                };
                found |= here;
                self.unit.set_mask_bit(self.vd, i, bit);
            }
        }
        Ok(0)
    }

    fn compress(&mut self) -> Result<u64, Reserved> {
        let (lmul, size, selector) = (self.unit.lmul(), self.size, self.selector());
        self.check(lmul, lmul, 0)?;
        self.check_apart(self.vs2, lmul, lmul)?;
        self.check_apart(selector, 0, lmul)?;
        if self.start != 0 {
            return Err(Reserved);
        }
        let mut next = 0;
        for i in 0..self.vl {
            if self.unit.mask_bit(selector, i) {
                let value = self.unit.get(self.vs2, i, size);
                self.unit.set(self.vd, next, size, value);
                next += 1;
            }
        }
        Ok(0)
    }

    fn mask_logic(&mut self, funct6: u32) -> Result<u64, Reserved> {
        let other = self.selector();
        for i in self.start..self.vl {
            let (a, b) = (self.unit.mask_bit(self.vs2, i), self.unit.mask_bit(other, i));
            let bit = match funct6 {
                0x18 => a && !b,
                0x19 => a && b,
                0x1a => a || b,
                0x1b => a != b,
                0x1c => a || !b,
                0x1d => !(a && b),
                0x1e => !(a || b),
                _ => a == b,
            };
            self.unit.set_mask_bit(self.vd, i, bit);
        }
        Ok(0)
    }
}
