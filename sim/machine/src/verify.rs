//! Random programs for comparison with another implementation: each is a whole ELF executable that loads every
//! register, runs instructions no two alike, and writes every register and its scratch memory to standard output. The
//! generator steps a model beside itself and leaves out what traps, so whatever is left must run anywhere.

use crate::frames::Rng;
use towpath_isa::vector::VLEN_BYTES;
use towpath_isa::{
    CacheOp, Cause, Class, Hart, MSTATUS_FS, MSTATUS_VS, Memory, Mode, Op, Trap, Uop, csr, decode, is_amo, step,
};

const TEXT: u64 = 0x10000;
const TABLE: u64 = 0x80_0000;
const SCRATCH: u64 = 0x81_0000;
const SCRATCH_SIZE: usize = 4096;
const DUMP: u64 = 0x82_0000;
/// Registers, in the order they are dumped: x, f, v, then fcsr, vl, vtype, vcsr, then the scratch memory.
const DUMP_SIZE: usize = 256 + 256 + 512 + 32 + SCRATCH_SIZE;
/// Never written: x2 points into the scratch memory, x3 to the dump.
const KEPT: [u8; 2] = [2, 3];

/// A random program.
pub struct Program {
    /// The executable.
    pub elf: Vec<u8>,
    /// What it writes to standard output, by the model.
    pub expected: Vec<u8>,
    /// Instructions between prologue and epilogue.
    pub instructions: u64,
    /// The last of them, disassembled: with a length found by bisection, the one to blame.
    pub last: String,
}

/// The scratch memory of the model; everything else traps.
struct Scratch(Vec<u8>);

impl Scratch {
    fn place(&mut self, va: u64, size: u64) -> Result<&mut [u8], Trap> {
        let at = va.wrapping_sub(SCRATCH) as usize;
        let end = at.wrapping_add(size as usize);
        self.0.get_mut(at..end).ok_or(Trap::new(Cause::LoadPage, va))
    }
}

impl Memory for Scratch {
    fn load(&mut self, _: &Hart, va: u64, size: u64) -> Result<u64, Trap> {
        Ok(self.place(va, size)?.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
    }

    fn store(&mut self, _: &Hart, va: u64, size: u64, value: u64) -> Result<(), Trap> {
        self.place(va, size)?.copy_from_slice(&value.to_le_bytes()[..size as usize]);
        Ok(())
    }

    fn update(&mut self, hart: &Hart, va: u64, size: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Trap> {
        let old = self.load(hart, va, size)?;
        self.store(hart, va, size, change(old))?;
        Ok(old)
    }

    fn load_reserved(&mut self, hart: &Hart, va: u64, size: u64) -> Result<(u64, u64), Trap> {
        Ok((self.load(hart, va, size)?, va))
    }

    fn store_conditional(&mut self, _: &Hart, va: u64, _: u64, _: u64) -> Result<bool, Trap> {
        Err(Trap::new(Cause::StoreAccess, va))
    }

    fn cache_op(&mut self, _: &Hart, _: CacheOp, va: u64) -> Result<(), Trap> {
        Err(Trap::new(Cause::StoreAccess, va))
    }

    fn lazy_copy(&mut self, _: &Hart, va: u64, _: u64, _: u64) -> Result<(), Trap> {
        Err(Trap::new(Cause::StoreAccess, va))
    }

    fn lazy_free(&mut self, _: &Hart, va: u64, _: u64) -> Result<(), Trap> {
        Err(Trap::new(Cause::StoreAccess, va))
    }

    fn fence(&mut self, _: &Hart, _: u32) {}
    fn fence_i(&mut self, _: &Hart) {}
    fn sfence(&mut self, _: &Hart, _: Option<u64>, _: Option<u16>) {}
    fn context_changed(&mut self, _: &Hart) {}
}

/// Makes the program of `seed` with about `count` instructions.
pub fn generate(seed: u64, count: usize) -> Program {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9).wrapping_add(77));
    let mut table = vec![0; 256 + 256 + 512];
    for word in table.chunks_exact_mut(8) {
        word.copy_from_slice(&operand(&mut rng).to_le_bytes());
    }
    let mut scratch = Scratch((0..SCRATCH_SIZE).map(|_| rng.word() as u8).collect());
    let initial = scratch.0.clone();
    table[16..24].copy_from_slice(&(SCRATCH + 2048).to_le_bytes());
    table[24..32].copy_from_slice(&DUMP.to_le_bytes());
    let mut hart = Hart::new(0);
    hart.mode = Mode::User;
    hart.csrs.mstatus |= MSTATUS_FS | MSTATUS_VS;
    for (i, word) in table[..512].chunks_exact(8).enumerate() {
        let value = word.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b));
        if i < 32 { hart.set_x(i as u8, value) } else { hart.f[i - 32] = value }
    }
    hart.v.regs.copy_from_slice(&table[512..]);
    let mut code = prologue();
    // vsetvli x0, x0-sized: the prologue leaves SEW 8, LMUL 8, VL 128.
    (hart.v.vill, hart.v.vtype, hart.v.vl) = (false, 3, 128);
    let mut made = 0;
    let mut last = String::new();
    while made < count {
        let bits = candidate(&mut rng);
        let uop = decode(bits);
        if !wanted(&uop) {
            continue;
        }
        let before = hart.clone();
        let memory = scratch.0.clone();
        if step(&mut hart, &uop, &mut scratch).is_err()
            || KEPT.iter().any(|&k| hart.x[usize::from(k)] != before.x[usize::from(k)])
        {
            hart = before;
            scratch.0 = memory;
            continue;
        }
        code.extend_from_slice(&bits.to_le_bytes()[..usize::from(uop.len)]);
        if uop.class() == Class::Branch {
            // It skips one instruction, or does not.
            let skipped = decode(0x0015_4513 | 0x123 << 20);
            if hart.pc == before.pc + 4 {
                // Not taken: the instruction runs; xori x10, x10.
                let _ = step(&mut hart, &skipped, &mut scratch);
            }
            code.extend_from_slice(&skipped.raw.to_le_bytes());
        }
        last = format!("{uop} ({bits:#010x})");
        made += 1;
    }
    code.extend(epilogue().iter().flat_map(|w| w.to_le_bytes()));
    Program { elf: elf(&code, &table, &initial), expected: dump(&hart, &scratch.0), instructions: made as u64, last }
}

/// Numbers near the edges of their formats more often than not.
fn operand(rng: &mut Rng) -> u64 {
    let word = rng.word();
    match rng.below(8) {
        0 => word & 0xff,
        1 => (word as i8) as u64,
        2 => 1 << (word & 63),
        3 => 0xffff_ffff_0000_0000 | word >> 32,
        4 => 0xffff_ffff_7f80_0000 | word & 0x807f_ffff,
        5 => word | 0x7ff0_0000_0000_0000,
        6 => word & 0x800f_ffff_ffff_ffff,
        _ => word,
    }
}

/// Bits that may be an instruction.
fn candidate(rng: &mut Rng) -> u32 {
    let word = rng.word();
    let bits = word as u32;
    let low = |opcode: u32| bits & !0x7f | opcode;
    // Memory operations through x2, near the middle of the scratch memory.
    let based = |bits: u32| bits & !(31 << 15) | 2 << 15;
    match word >> 32 & 31 {
        0..=2 => low(0x33),
        3 => low(0x3b),
        4..=5 => low(0x13),
        6 => low(0x1b),
        7 => low(0x37),
        8..=11 => low(0x53),
        12 => low(0x43 | (bits >> 9 & 3) << 2),
        13 => based(low(0x03)),
        14 => based(low(0x23)),
        15 => based(low(if bits >> 9 & 1 == 0 { 0x07 } else { 0x27 })),
        16 => based(low(0x2f)),
        // Vector loads and stores, mostly unit-stride.
        17..=18 => {
            let mop = if bits >> 9 & 3 == 0 { bits & (3 << 26) } else { 0 };
            based(low(if bits >> 11 & 1 == 0 { 0x07 } else { 0x27 }) & !(0x1fff << 16)) & !(7 << 26)
                | mop
                | bits & (1 << 25)
        }
        19..=24 => low(0x57),
        // Configuration.
        25 => low(0x57) & 0x07ff_ffff & !(7 << 12) | 7 << 12 | if bits >> 30 == 0 { 0 } else { 3 << 30 },
        // Branch over one instruction.
        26 => low(0x63) & !0xfe00_0f80 | 8 << 7,
        27 => control(bits),
        _ => bits & 0xffff,
    }
}

/// An access to a control register of the arithmetic units. `vxrm` gets legal values only: QEMU 7.2 keeps others.
fn control(bits: u32) -> u32 {
    let access = |number: u16, bits: u32| 0x73 | bits & 0xf_ff80 | u32::from(number) << 20;
    match bits >> 20 & 3 {
        0 => access(csr::FFLAGS, bits),
        1 => access(csr::FRM, bits),
        2 => access(csr::FCSR, bits),
        _ => access(csr::VXRM, bits & !(0xff << 12) | 5 << 12 | bits & 3 << 15),
    }
}

fn wanted(uop: &Uop) -> bool {
    let class_ok = match uop.class() {
        Class::Illegal | Class::System | Class::Fence | Class::Jump | Class::CacheOp | Class::Lazy => false,
        Class::Amo => is_amo(uop.op),
        // A compressed branch has any target.
        Class::Branch => uop.len == 4 && uop.imm == 8,
        _ => true,
    };
    class_ok && uop.op != Op::Auipc && uop.op != Op::Pause && uop.op != Op::Prefetch
}

fn lui(rd: u32, address: u64) -> u32 {
    0x37 | rd << 7 | address as u32 & !0xfff
}

fn addi(rd: u32, rs1: u32, imm: u32) -> u32 {
    0x13 | rd << 7 | rs1 << 15 | imm << 20
}

/// Loads every register from the table; x31 last, as it is the pointer.
fn prologue() -> Vec<u8> {
    let mut words = vec![lui(31, TABLE)];
    // vsetvli x0, x0, e8, m8, then four groups of eight registers.
    words.extend([addi(30, 0, 128), 0x57 | 7 << 12 | 30 << 15 | 3 << 20]);
    for group in 0..4 {
        words.push(addi(30, 31, 512 + 128 * group));
        // vle8.v
        words.push(0x07 | (8 * group) << 7 | 30 << 15 | 1 << 25);
    }
    for f in 0..32 {
        words.push(0x07 | f << 7 | 3 << 12 | 31 << 15 | (256 + 8 * f) << 20);
    }
    for x in 1..32 {
        words.push(0x03 | x << 7 | 3 << 12 | 31 << 15 | (8 * x) << 20);
    }
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Dumps every register and the scratch memory, writes them out, exits.
fn epilogue() -> Vec<u32> {
    let store =
        |op: u32, f3: u32, reg: u32, at: u32| op | (at & 31) << 7 | f3 << 12 | 3 << 15 | reg << 20 | (at >> 5) << 25;
    let mut words = Vec::new();
    for x in 0..32 {
        words.push(store(0x23, 3, x, 8 * x));
    }
    for f in 0..32 {
        words.push(store(0x27, 3, f, 256 + 8 * f));
    }
    for (i, number) in [csr::FCSR, csr::VL, csr::VTYPE, csr::VCSR].into_iter().enumerate() {
        words.push(0x73 | 1 << 7 | 2 << 12 | u32::from(number) << 20);
        words.push(store(0x23, 3, 1, 1024 + 8 * i as u32));
    }
    for group in 0..4 {
        words.push(addi(1, 3, 512 + 128 * group));
        // vs8r.v
        words.push(0x27 | (8 * group) << 7 | 1 << 15 | 8 << 20 | 1 << 25 | 7 << 29);
    }
    let ecall = 0x73;
    words.extend([addi(10, 0, 1), addi(11, 3, 0), addi(12, 0, 1056), addi(17, 0, 64), ecall]);
    words.extend([addi(10, 0, 1), lui(11, SCRATCH), lui(12, SCRATCH_SIZE as u64), addi(17, 0, 64), ecall]);
    words.extend([addi(10, 0, 0), addi(17, 0, 93), ecall]);
    words
}

fn dump(hart: &Hart, scratch: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DUMP_SIZE);
    for word in hart.x.iter().chain(&hart.f) {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&hart.v.regs[..32 * VLEN_BYTES]);
    for number in [csr::FCSR, csr::VL, csr::VTYPE, csr::VCSR] {
        // The units are on, so the registers can be read.
        bytes.extend_from_slice(&hart.read_csr(number).unwrap_or(0).to_le_bytes());
    }
    bytes.extend_from_slice(scratch);
    bytes
}

/// A static executable: code, then one writable segment of table, scratch memory and dump.
fn elf(code: &[u8], table: &[u8], scratch: &[u8]) -> Vec<u8> {
    let mut data = table.to_vec();
    data.resize((SCRATCH - TABLE) as usize, 0);
    data.extend_from_slice(scratch);
    let start = 0x1000u64;
    let data_at = (start + code.len() as u64 + 0xfff) & !0xfff;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    for half in [2u16, 243] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1u32.to_le_bytes());
    for word in [TEXT, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    // Flags: compressed instructions, double-float ABI.
    file.extend_from_slice(&5u32.to_le_bytes());
    for half in [64u16, 56, 2, 64, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    let parts = [
        (5u32, start, TEXT, code.len() as u64, code.len() as u64),
        (6, data_at, TABLE, data.len() as u64, DUMP - TABLE + 0x1000),
    ];
    for (flags, offset, address, filled, size) in parts {
        file.extend_from_slice(&1u32.to_le_bytes());
        file.extend_from_slice(&flags.to_le_bytes());
        for word in [offset, address, address, filled, size, 0x1000] {
            file.extend_from_slice(&word.to_le_bytes());
        }
    }
    file.resize(start as usize, 0);
    file.extend_from_slice(code);
    file.resize(data_at as usize, 0);
    file.extend_from_slice(&data);
    file
}

/// Says where two dumps differ, for a person.
pub fn difference(got: &[u8], want: &[u8]) -> Option<String> {
    if got == want {
        return None;
    }
    if got.len() != want.len() {
        return Some(format!("{} bytes instead of {}", got.len(), want.len()));
    }
    let at = (0..got.len()).find(|&i| got[i] != want[i])? & !7;
    let place = match at {
        0..256 => format!("x{}", at / 8),
        256..512 => format!("f{}", (at - 256) / 8),
        512..1024 => format!("v{} byte {}", (at - 512) / 16, at % 16),
        1024..1056 => ["fcsr", "vl", "vtype", "vcsr"][(at - 1024) / 8].to_string(),
        _ => format!("memory {:#x}", at - 1056),
    };
    let word = |bytes: &[u8]| bytes[at..(at + 8).min(bytes.len())].iter().rev().fold(0, |w, &b| w << 8 | u64::from(b));
    Some(format!("{place}: {:#x} instead of {:#x}", word(got), word(want)))
}
