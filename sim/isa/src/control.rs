//! Control and status registers: storage, legal values, and who may touch which.

use crate::hart::{Hart, Mode};
use crate::trap::Interrupt;

/// Numbers of the registers that other crates name.
#[allow(missing_docs, reason = "the names are the specification's")]
pub mod csr {
    pub const FFLAGS: u16 = 0x001;
    pub const FRM: u16 = 0x002;
    pub const FCSR: u16 = 0x003;
    pub const VSTART: u16 = 0x008;
    pub const VXSAT: u16 = 0x009;
    pub const VXRM: u16 = 0x00a;
    pub const VCSR: u16 = 0x00f;
    pub const SSTATUS: u16 = 0x100;
    pub const SIE: u16 = 0x104;
    pub const STVEC: u16 = 0x105;
    pub const SCOUNTEREN: u16 = 0x106;
    pub const SENVCFG: u16 = 0x10a;
    pub const SSCRATCH: u16 = 0x140;
    pub const SEPC: u16 = 0x141;
    pub const SCAUSE: u16 = 0x142;
    pub const STVAL: u16 = 0x143;
    pub const SIP: u16 = 0x144;
    pub const STIMECMP: u16 = 0x14d;
    pub const SATP: u16 = 0x180;
    pub const MSTATUS: u16 = 0x300;
    pub const MISA: u16 = 0x301;
    pub const MEDELEG: u16 = 0x302;
    pub const MIDELEG: u16 = 0x303;
    pub const MIE: u16 = 0x304;
    pub const MTVEC: u16 = 0x305;
    pub const MCOUNTEREN: u16 = 0x306;
    pub const MENVCFG: u16 = 0x30a;
    pub const MCOUNTINHIBIT: u16 = 0x320;
    pub const MSCRATCH: u16 = 0x340;
    pub const MEPC: u16 = 0x341;
    pub const MCAUSE: u16 = 0x342;
    pub const MTVAL: u16 = 0x343;
    pub const MIP: u16 = 0x344;
    pub const PMPCFG0: u16 = 0x3a0;
    pub const PMPADDR0: u16 = 0x3b0;
    pub const MCYCLE: u16 = 0xb00;
    pub const MINSTRET: u16 = 0xb02;
    pub const CYCLE: u16 = 0xc00;
    pub const TIME: u16 = 0xc01;
    pub const INSTRET: u16 = 0xc02;
    pub const VL: u16 = 0xc20;
    pub const VTYPE: u16 = 0xc21;
    pub const VLENB: u16 = 0xc22;
    pub const MVENDORID: u16 = 0xf11;
    pub const MHARTID: u16 = 0xf14;
}

pub(crate) const MSTATUS_SIE: u64 = 1 << 1;
pub(crate) const MSTATUS_MIE: u64 = 1 << 3;
pub(crate) const MSTATUS_SPIE: u64 = 1 << 5;
pub(crate) const MSTATUS_MPIE: u64 = 1 << 7;
pub(crate) const MSTATUS_SPP: u64 = 1 << 8;
/// Vector unit state in `mstatus`: off when zero, else dirty here.
pub const MSTATUS_VS: u64 = 3 << 9;
pub(crate) const MSTATUS_MPP: u64 = 3 << 11;
/// Floating-point unit state in `mstatus`: off when zero, else dirty here.
pub const MSTATUS_FS: u64 = 3 << 13;
pub(crate) const MSTATUS_MPRV: u64 = 1 << 17;
pub(crate) const MSTATUS_SUM: u64 = 1 << 18;
pub(crate) const MSTATUS_MXR: u64 = 1 << 19;
pub(crate) const MSTATUS_TVM: u64 = 1 << 20;
pub(crate) const MSTATUS_TW: u64 = 1 << 21;
pub(crate) const MSTATUS_TSR: u64 = 1 << 22;

const MSTATUS_XL: u64 = 2 << 32 | 2 << 34;
const MSTATUS_WRITABLE: u64 = MSTATUS_SIE
    | MSTATUS_MIE
    | MSTATUS_SPIE
    | MSTATUS_MPIE
    | MSTATUS_SPP
    | MSTATUS_VS
    | MSTATUS_MPP
    | MSTATUS_FS
    | MSTATUS_MPRV
    | MSTATUS_SUM
    | MSTATUS_MXR
    | MSTATUS_TVM
    | MSTATUS_TW
    | MSTATUS_TSR;
const SSTATUS_WRITABLE: u64 =
    MSTATUS_SIE | MSTATUS_SPIE | MSTATUS_SPP | MSTATUS_VS | MSTATUS_FS | MSTATUS_SUM | MSTATUS_MXR;
const SUPERVISOR_INTERRUPTS: u64 = 1 << 1 | 1 << 5 | 1 << 9;
const ALL_INTERRUPTS: u64 = SUPERVISOR_INTERRUPTS | 1 << 3 | 1 << 7 | 1 << 11;
/// Exceptions that may be delegated: all but `ecall` from M-mode.
const DELEGABLE: u64 = 0xb3ff;

pub(crate) const ENVCFG_CBIE: u64 = 3 << 4;
pub(crate) const ENVCFG_CBCFE: u64 = 1 << 6;
pub(crate) const ENVCFG_CBZE: u64 = 1 << 7;
const ENVCFG_STCE: u64 = 1 << 63;
const SENVCFG_WRITABLE: u64 = 1 | ENVCFG_CBIE | ENVCFG_CBCFE | ENVCFG_CBZE;

/// The access was not permitted or there is no such register: the instruction is illegal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsrError;

/// Control and status registers of one hart. Fields hold legal values only when written through
/// [`Hart::write_csr`].
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub struct Csrs {
    pub hart_id: u64,
    pub mstatus: u64,
    pub medeleg: u64,
    pub mideleg: u64,
    pub mie: u64,
    /// Pending bits that software set; those of lines are in `lines`.
    pub mip: u64,
    /// Pending bits driven by CLINT and PLIC.
    pub lines: u64,
    pub mtvec: u64,
    pub mcounteren: u64,
    pub mcountinhibit: u64,
    pub mscratch: u64,
    pub mepc: u64,
    pub mcause: u64,
    pub mtval: u64,
    pub menvcfg: u64,
    pub stvec: u64,
    pub scounteren: u64,
    pub sscratch: u64,
    pub sepc: u64,
    pub scause: u64,
    pub stval: u64,
    pub satp: u64,
    pub senvcfg: u64,
    pub stimecmp: u64,
    pub pmpcfg: [u8; 16],
    pub pmpaddr: [u64; 16],
    pub fflags: u8,
    pub frm: u8,
    /// `mtime`, kept current by the machine.
    pub time: u64,
    /// `mcycle`, kept current by the core.
    pub cycle: u64,
    /// `minstret`, kept current by the core.
    pub instret: u64,
}

impl Csrs {
    pub(crate) fn new(id: u64) -> Csrs {
        Csrs {
            hart_id: id,
            mstatus: MSTATUS_XL,
            medeleg: 0,
            mideleg: 0,
            mie: 0,
            mip: 0,
            lines: 0,
            mtvec: 0,
            mcounteren: 0,
            mcountinhibit: 0,
            mscratch: 0,
            mepc: 0,
            mcause: 0,
            mtval: 0,
            menvcfg: 0,
            stvec: 0,
            scounteren: 0,
            sscratch: 0,
            sepc: 0,
            scause: 0,
            stval: 0,
            satp: 0,
            senvcfg: 0,
            stimecmp: u64::MAX,
            pmpcfg: [0; 16],
            pmpaddr: [0; 16],
            fflags: 0,
            frm: 0,
            time: 0,
            cycle: 0,
            instret: 0,
        }
    }

    /// `mip` as an instruction reads it; the supervisor timer comes from `stimecmp` where Sstc is enabled.
    pub fn pending(&self) -> u64 {
        let mut pending = self.mip | self.lines;
        if self.menvcfg & ENVCFG_STCE != 0 {
            let bit = 1 << Interrupt::SupervisorTimer as u64;
            pending &= !bit;
            if self.time >= self.stimecmp {
                pending |= bit;
            }
        }
        pending
    }

    /// Drives an interrupt line.
    pub fn set_line(&mut self, line: Interrupt, on: bool) {
        let bit = 1 << line as u64;
        self.lines = if on { self.lines | bit } else { self.lines & !bit };
    }

    /// Whether floating-point instructions are enabled.
    #[inline(always)]
    pub fn fp_enabled(&self) -> bool {
        self.mstatus & MSTATUS_FS != 0
    }

    fn status(&self) -> u64 {
        let dirty = self.mstatus & MSTATUS_FS == MSTATUS_FS || self.mstatus & MSTATUS_VS == MSTATUS_VS;
        self.mstatus | u64::from(dirty) << 63
    }

    fn pmpcfg_word(&self, number: u16) -> Result<u64, CsrError> {
        if !number.is_multiple_of(2) {
            return Err(CsrError);
        }
        let first = usize::from(number - csr::PMPCFG0) * 4;
        let bytes = self.pmpcfg.get(first..first + 8);
        Ok(bytes.map_or(0, |b| b.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))))
    }

    fn set_pmpcfg_word(&mut self, number: u16, value: u64) {
        let first = usize::from(number - csr::PMPCFG0) * 4;
        for (i, slot) in self.pmpcfg.iter_mut().skip(first).take(8).enumerate() {
            let mut byte = (value >> (8 * i)) as u8 & 0x9f;
            // W without R is reserved.
            if byte & 3 == 2 {
                byte &= !2;
            }
            if *slot & 0x80 == 0 {
                *slot = byte;
            }
        }
    }

    fn set_pmpaddr(&mut self, index: usize, value: u64) {
        let locked = self.pmpcfg.get(index).is_none_or(|c| c & 0x80 != 0);
        // A locked top-of-range entry locks the address below it too.
        let locked_by_next = self.pmpcfg.get(index + 1).is_some_and(|c| c & 0x98 == 0x88);
        if let (Some(slot), false) = (self.pmpaddr.get_mut(index), locked || locked_by_next) {
            *slot = value & ((1 << 54) - 1);
        }
    }
}

fn legal_tvec(old: u64, value: u64) -> u64 {
    if value & 3 > 1 { old } else { value }
}

fn legal_envcfg(old: u64, value: u64, mask: u64) -> u64 {
    let mut value = value & mask;
    if value & ENVCFG_CBIE == 2 << 4 {
        value = value & !ENVCFG_CBIE | old & ENVCFG_CBIE;
    }
    value
}

impl Hart {
    /// Reads a register as the current mode would.
    ///
    /// # Errors
    /// If it does not exist or this mode may not read it.
    pub fn read_csr(&self, number: u16) -> Result<u64, CsrError> {
        self.check_csr(number)?;
        let c = &self.csrs;
        Ok(match number {
            csr::FFLAGS => u64::from(c.fflags),
            csr::FRM => u64::from(c.frm),
            csr::FCSR => u64::from(c.frm) << 5 | u64::from(c.fflags),
            csr::VSTART => self.v.vstart,
            csr::VXSAT => u64::from(self.v.vxsat),
            csr::VXRM => u64::from(self.v.vxrm),
            csr::VCSR => u64::from(self.v.vxrm) << 1 | u64::from(self.v.vxsat),
            csr::VL => self.v.vl,
            csr::VTYPE => self.v.vtype_bits(),
            csr::VLENB => crate::vector::VLEN_BYTES as u64,
            csr::SSTATUS => c.status() & (SSTATUS_WRITABLE | 1 << 63 | 3 << 32),
            csr::SIE => c.mie & c.mideleg,
            csr::STVEC => c.stvec,
            csr::SCOUNTEREN => c.scounteren,
            csr::SENVCFG => c.senvcfg,
            csr::SSCRATCH => c.sscratch,
            csr::SEPC => c.sepc,
            csr::SCAUSE => c.scause,
            csr::STVAL => c.stval,
            csr::SIP => c.pending() & c.mideleg,
            csr::STIMECMP => c.stimecmp,
            csr::SATP => c.satp,
            csr::MSTATUS => c.status(),
            csr::MISA => 2 << 62 | "ACDFIMSUV".bytes().fold(0, |bits, b| bits | 1 << (b - b'A')),
            csr::MEDELEG => c.medeleg,
            csr::MIDELEG => c.mideleg,
            csr::MIE => c.mie,
            csr::MTVEC => c.mtvec,
            csr::MCOUNTEREN => c.mcounteren,
            csr::MENVCFG => c.menvcfg,
            csr::MCOUNTINHIBIT => c.mcountinhibit,
            csr::MSCRATCH => c.mscratch,
            csr::MEPC => c.mepc,
            csr::MCAUSE => c.mcause,
            csr::MTVAL => c.mtval,
            csr::MIP => c.pending(),
            0x3a0..=0x3af => c.pmpcfg_word(number)?,
            0x3b0..=0x3ef => c.pmpaddr.get(usize::from(number - csr::PMPADDR0)).copied().unwrap_or(0),
            csr::MCYCLE | csr::CYCLE => c.cycle,
            csr::MINSTRET | csr::INSTRET => c.instret,
            csr::TIME => c.time,
            // Hardware performance counters and their selectors: present, always zero.
            0xb03..=0xb1f | 0xc03..=0xc1f | 0x323..=0x33f => 0,
            csr::MVENDORID..=0xf13 | 0xf15 => 0,
            csr::MHARTID => c.hart_id,
            _ => return Err(CsrError),
        })
    }

    /// Writes a register as the current mode would; values that are not legal are made so.
    ///
    /// # Errors
    /// If it does not exist, is read-only, or this mode may not write it.
    pub fn write_csr(&mut self, number: u16, value: u64) -> Result<(), CsrError> {
        self.check_csr(number)?;
        if number >> 10 == 3 {
            return Err(CsrError);
        }
        if self.write_unit_csr(number, value) {
            return Ok(());
        }
        let c = &mut self.csrs;
        match number {
            csr::SSTATUS => c.mstatus = c.mstatus & !SSTATUS_WRITABLE | value & SSTATUS_WRITABLE,
            csr::SIE => c.mie = c.mie & !c.mideleg | value & c.mideleg,
            csr::STVEC => c.stvec = legal_tvec(c.stvec, value),
            csr::SCOUNTEREN => c.scounteren = value & 0xffff_ffff,
            csr::SENVCFG => c.senvcfg = legal_envcfg(c.senvcfg, value, SENVCFG_WRITABLE),
            csr::SSCRATCH => c.sscratch = value,
            csr::SEPC => c.sepc = value & !1,
            csr::SCAUSE => c.scause = value,
            csr::STVAL => c.stval = value,
            // Only the software interrupt is writable from S-mode.
            csr::SIP => c.mip = c.mip & !(2 & c.mideleg) | value & 2 & c.mideleg,
            csr::STIMECMP => c.stimecmp = value,
            // Bare and Sv39; any other mode leaves the register as it was.
            csr::SATP if matches!(value >> 60, 0 | 8) => c.satp = value,
            csr::SATP | csr::MISA => {}
            csr::MSTATUS => {
                let mut value = value & MSTATUS_WRITABLE;
                if value & MSTATUS_MPP == 2 << 11 {
                    value = value & !MSTATUS_MPP | c.mstatus & MSTATUS_MPP;
                }
                c.mstatus = value | MSTATUS_XL;
            }
            csr::MEDELEG => c.medeleg = value & DELEGABLE,
            csr::MIDELEG => c.mideleg = value & SUPERVISOR_INTERRUPTS,
            csr::MIE => c.mie = value & ALL_INTERRUPTS,
            csr::MTVEC => c.mtvec = legal_tvec(c.mtvec, value),
            csr::MCOUNTEREN => c.mcounteren = value & 0xffff_ffff,
            csr::MENVCFG => c.menvcfg = legal_envcfg(c.menvcfg, value, SENVCFG_WRITABLE | ENVCFG_STCE),
            csr::MCOUNTINHIBIT => c.mcountinhibit = value & 0xffff_fffd,
            csr::MSCRATCH => c.mscratch = value,
            csr::MEPC => c.mepc = value & !1,
            csr::MCAUSE => c.mcause = value,
            csr::MTVAL => c.mtval = value,
            csr::MIP => c.mip = value & SUPERVISOR_INTERRUPTS,
            0x3a0..=0x3af if number.is_multiple_of(2) => c.set_pmpcfg_word(number, value),
            0x3b0..=0x3ef => c.set_pmpaddr(usize::from(number - csr::PMPADDR0), value),
            csr::MCYCLE => c.cycle = value,
            csr::MINSTRET => c.instret = value,
            0xb03..=0xb1f | 0x323..=0x33f => {}
            _ => return Err(CsrError),
        }
        Ok(())
    }

    /// The registers of the floating-point and vector units; says whether `number` was one.
    fn write_unit_csr(&mut self, number: u16, value: u64) -> bool {
        let c = &mut self.csrs;
        match number {
            csr::FFLAGS => c.fflags = value as u8 & 31,
            csr::FRM => c.frm = value as u8 & 7,
            csr::FCSR => (c.fflags, c.frm) = (value as u8 & 31, (value >> 5) as u8 & 7),
            csr::VSTART => self.v.vstart = value & 127,
            csr::VXSAT => self.v.vxsat = value & 1 == 1,
            csr::VXRM => self.v.vxrm = value as u8 & 3,
            csr::VCSR => (self.v.vxsat, self.v.vxrm) = (value & 1 == 1, (value >> 1) as u8 & 3),
            _ => return false,
        }
        c.mstatus |= if number <= csr::FCSR { MSTATUS_FS } else { MSTATUS_VS };
        true
    }

    fn check_csr(&self, number: u16) -> Result<(), CsrError> {
        let c = &self.csrs;
        let allowed = match number {
            csr::FFLAGS..=csr::FCSR => c.fp_enabled(),
            csr::VSTART..=csr::VCSR | csr::VL..=csr::VLENB => c.mstatus & MSTATUS_VS != 0,
            csr::SATP => self.mode != Mode::Supervisor || c.mstatus & MSTATUS_TVM == 0,
            csr::STIMECMP => self.mode == Mode::Machine || (c.menvcfg & ENVCFG_STCE != 0 && c.mcounteren & 2 != 0),
            0xc00..=0xc1f => {
                let bit = 1 << (number & 31);
                (self.mode == Mode::Machine || c.mcounteren & bit != 0)
                    && (self.mode != Mode::User || c.scounteren & bit != 0)
            }
            _ => true,
        };
        let privileged = self.mode as u16 >= number >> 8 & 3;
        if allowed && privileged { Ok(()) } else { Err(CsrError) }
    }

    /// Whether a bit of the environment configuration holds in this mode: `menvcfg` below M, and `senvcfg` in U.
    pub(crate) fn envcfg(&self, mask: u64) -> bool {
        (self.mode == Mode::Machine || self.csrs.menvcfg & mask != 0)
            && (self.mode != Mode::User || self.csrs.senvcfg & mask != 0)
    }
}
