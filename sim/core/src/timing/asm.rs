//! The few instruction encodings that litmus tests, probes and tests are written with.

pub(crate) fn r(op: u32, f3: u32, f7: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
    op | rd << 7 | f3 << 12 | rs1 << 15 | rs2 << 20 | f7 << 25
}
pub(crate) fn i(op: u32, f3: u32, rd: u32, rs1: u32, imm: i32) -> u32 {
    op | rd << 7 | f3 << 12 | rs1 << 15 | (imm as u32) << 20
}
pub(crate) fn s(op: u32, f3: u32, rs1: u32, rs2: u32, imm: i32) -> u32 {
    let imm = imm as u32;
    op | (imm & 31) << 7 | f3 << 12 | rs1 << 15 | rs2 << 20 | (imm >> 5 & 127) << 25
}
pub(crate) fn b(f3: u32, rs1: u32, rs2: u32, offset: i32) -> u32 {
    let o = offset as u32;
    0x63 | (o >> 11 & 1) << 7
        | (o >> 1 & 15) << 8
        | f3 << 12
        | rs1 << 15
        | rs2 << 20
        | (o >> 5 & 63) << 25
        | (o >> 12 & 1) << 31
}
pub(crate) fn addi(rd: u32, rs1: u32, imm: i32) -> u32 {
    i(0x13, 0, rd, rs1, imm)
}
pub(crate) fn ld(rd: u32, rs1: u32, imm: i32) -> u32 {
    i(3, 3, rd, rs1, imm)
}
pub(crate) fn sd(rs1: u32, rs2: u32, imm: i32) -> u32 {
    s(0x23, 3, rs1, rs2, imm)
}
pub(crate) const ECALL: u32 = 0x73;
pub(crate) const FENCE: u32 = 0x0ff0_000f;
/// `rd = address`, for an address whose low 12 bits are below 0x800.
pub(crate) fn la(rd: u32, address: u64) -> [u32; 3] {
    let (high, low) = ((address >> 12) as u32, (address & 0xfff) as i32);
    // lui sign-extends: the upper half is cleared by a shift pair folded into one `zext.w` (add.uw rd, rd, x0).
    [0x37 | rd << 7 | high << 12, r(0x3b, 0, 4, rd, rd, 0), addi(rd, rd, low)]
}
