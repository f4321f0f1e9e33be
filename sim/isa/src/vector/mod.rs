//! The vector extension with VLEN 128: configuration, loads and stores (unit-stride, strided, indexed, segment, whole
//! register, mask, fault-only-first), integer and fixed-point arithmetic, masks, reductions and permutations.
//! Left out: every floating-point operation (OPFVV, OPFVF); they decode as illegal instructions.
//! Tail and masked-off elements keep their values, which both policies allow.

mod arith;
mod decode;
mod memory;
#[cfg(test)]
mod tests;

use crate::uop::{Class, Op, Reg, Uop};
pub use arith::arith;
pub(crate) use decode::{decode_arith, decode_memory};
pub use memory::{load, store};

/// Bytes in a vector register.
pub const VLEN_BYTES: usize = 16;

/// An operation that the current `vtype` or its register numbers do not permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved;

/// Registers and configuration of the vector unit. `Default` is an empty place-holder; see [`VectorState::new`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VectorState {
    /// The 32 registers one after the other.
    pub regs: Vec<u8>,
    /// Elements that operations act on.
    pub vl: u64,
    /// First element to act on; nonzero only while resuming after a trap.
    pub vstart: u64,
    /// `vtype` without `vill`.
    pub vtype: u8,
    /// The configuration is invalid.
    pub vill: bool,
    /// Fixed-point rounding mode.
    pub vxrm: u8,
    /// Fixed-point saturation happened.
    pub vxsat: bool,
}

impl VectorState {
    /// The unit out of reset: no valid configuration.
    pub fn new() -> VectorState {
        VectorState { regs: vec![0; 32 * VLEN_BYTES], vill: true, ..VectorState::default() }
    }

    /// `vtype` as an instruction reads it.
    pub fn vtype_bits(&self) -> u64 {
        if self.vill { 1 << 63 } else { u64::from(self.vtype) }
    }

    /// Bytes of an element, by `vsew`.
    pub fn sew(&self) -> usize {
        1 << (self.vtype >> 3 & 7)
    }

    /// log2 of LMUL, -3 to 3.
    pub fn lmul(&self) -> i32 {
        i32::from((self.vtype << 5) as i8 >> 5)
    }

    /// Elements a group of the configured LMUL holds.
    pub fn vlmax(&self) -> usize {
        vlmax(self.sew(), self.lmul())
    }

    /// `vsetvli`, `vsetivli`, `vsetvl`: returns the new `vl`.
    pub fn configure(&mut self, uop: &Uop, a: u64, b: u64) -> u64 {
        let vtype = if uop.op == Op::Vsetvl { b } else { uop.imm as u64 };
        let (sew, lmul) = (vtype >> 3 & 7, i32::from((vtype << 5) as i8 >> 5));
        // Fractional LMUL must leave room for an element of that width: SEW <= LMUL * ELEN.
        let valid = vtype >> 8 == 0 && sew <= 3 && lmul != -4 && (lmul >= 0 || (sew as i32) <= 3 + lmul);
        self.vstart = 0;
        if !valid {
            (self.vill, self.vtype, self.vl) = (true, 0, 0);
            return 0;
        }
        (self.vill, self.vtype) = (false, vtype as u8);
        let max = self.vlmax() as u64;
        self.vl = match uop.op {
            Op::Vsetivli => u64::from(uop.rs1).min(max),
            _ if uop.rs1 != 0 => a.min(max),
            _ if uop.rd != 0 => max,
            _ => self.vl.min(max),
        };
        self.vl
    }

    /// Element `index` of the group that starts at `reg`, `size` bytes, zero-extended.
    #[inline]
    pub fn get(&self, reg: u8, index: usize, size: usize) -> u64 {
        let at = usize::from(reg) * VLEN_BYTES + index * size;
        self.regs.get(at..at + size).map_or(0, |bytes| {
            let mut word = [0; 8];
            word[..size].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        })
    }

    /// Sets element `index` of the group that starts at `reg`.
    #[inline]
    pub fn set(&mut self, reg: u8, index: usize, size: usize, value: u64) {
        let at = usize::from(reg) * VLEN_BYTES + index * size;
        if let Some(bytes) = self.regs.get_mut(at..at + size) {
            bytes.copy_from_slice(&value.to_le_bytes()[..size]);
        }
    }

    /// Bit `index` of mask register `reg`.
    pub fn mask_bit(&self, reg: u8, index: usize) -> bool {
        self.regs[usize::from(reg) * VLEN_BYTES + index / 8] >> (index % 8) & 1 == 1
    }

    /// Sets bit `index` of mask register `reg`.
    pub fn set_mask_bit(&mut self, reg: u8, index: usize, on: bool) {
        let byte = &mut self.regs[usize::from(reg) * VLEN_BYTES + index / 8];
        *byte = *byte & !(1 << (index % 8)) | u8::from(on) << (index % 8);
    }
}

/// Elements of `size` bytes in a group of LMUL = 2^`lmul`.
pub(crate) fn vlmax(size: usize, lmul: i32) -> usize {
    if lmul >= 0 { VLEN_BYTES << lmul } else { VLEN_BYTES >> -lmul }.checked_div(size).unwrap_or(0)
}

/// Whether `reg` may start a group of 2^`lmul` registers.
pub(crate) fn aligned(reg: u8, lmul: i32) -> bool {
    lmul <= 0 || reg & ((1 << lmul) - 1) == 0
}

pub(crate) fn masked(uop: &Uop) -> bool {
    uop.raw >> 25 & 1 == 0
}

/// The scalar registers a vector operation reads.
pub(crate) fn scalar_sources(uop: &Uop) -> [Option<Reg>; 3] {
    let base = Some(Reg::X(uop.rs1));
    match uop.class() {
        Class::VectorAlu if matches!(uop.raw >> 12 & 7, 4 | 6) => [base, None, None],
        Class::VectorAlu => [None; 3],
        _ if uop.raw >> 26 & 3 == 2 => [base, Some(Reg::X(uop.rs2)), None],
        _ => [base, None, None],
    }
}

/// The scalar register a vector operation writes: `vmv.x.s`, `vcpop.m`, `vfirst.m`.
pub(crate) fn scalar_dest(uop: &Uop) -> Option<Reg> {
    let scalar = uop.class() == Class::VectorAlu && uop.raw >> 26 == 0x10 && uop.raw >> 12 & 7 == 2;
    (scalar && uop.rd != 0).then_some(Reg::X(uop.rd))
}
