//! Sv39 translation and physical memory protection, as pure functions over memory the caller provides: a timing core
//! walks through its caches, the functional core through plain memory.

use crate::control::{MSTATUS_MPRV, MSTATUS_MXR, MSTATUS_SUM};
use crate::hart::{Hart, Mode};
use crate::trap::{Cause, Trap};

/// Bytes in the smallest page.
pub const PAGE_SIZE: u64 = 4096;
/// Valid.
pub const PTE_V: u64 = 1;
/// Readable.
pub const PTE_R: u64 = 2;
/// Writable.
pub const PTE_W: u64 = 4;
/// Executable.
pub const PTE_X: u64 = 8;
/// Accessible in U-mode, and only there unless SUM is set.
pub const PTE_U: u64 = 16;
/// In every address space.
pub const PTE_G: u64 = 32;
/// Accessed.
pub const PTE_A: u64 = 64;
/// Dirty.
pub const PTE_D: u64 = 128;

/// What an address is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Instruction fetch.
    Fetch,
    /// Load.
    Load,
    /// Store, AMO, `sc`.
    Store,
}

impl Access {
    /// The page fault of this access at `va`.
    pub fn page_fault(self, va: u64) -> Trap {
        let cause = match self {
            Access::Fetch => Cause::FetchPage,
            Access::Load => Cause::LoadPage,
            Access::Store => Cause::StorePage,
        };
        Trap::new(cause, va)
    }

    /// The access fault of this access at `va`.
    pub fn access_fault(self, va: u64) -> Trap {
        let cause = match self {
            Access::Fetch => Cause::FetchAccess,
            Access::Load => Cause::LoadAccess,
            Access::Store => Cause::StoreAccess,
        };
        Trap::new(cause, va)
    }
}

/// Physical memory as the page-table walker sees it.
pub trait PhysicalMemory {
    /// Reads an aligned page-table entry; `None` where no memory is.
    fn read_pte(&mut self, pa: u64) -> Option<u64>;
    /// Replaces an entry just read, to set its A and D bits.
    fn write_pte(&mut self, pa: u64, pte: u64);
}

/// Where a virtual address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The physical address of the byte.
    pub pa: u64,
    /// Bytes in the page that maps it: 4 KB, 2 MB, 1 GB, or the whole space without translation.
    pub page: u64,
    /// The leaf entry, with A and D as they now are; all permissions without translation.
    pub pte: u64,
}

/// The mode data accesses are checked in: that of MPP while MPRV is set in M-mode.
pub fn data_mode(hart: &Hart) -> Mode {
    if hart.mode == Mode::Machine && hart.csrs.mstatus & MSTATUS_MPRV != 0 {
        Mode::from_bits(hart.csrs.mstatus >> 11)
    } else {
        hart.mode
    }
}

/// Translates `va` for an access of `size` bytes within one page, sets A and D, and checks PMP.
///
/// # Errors
/// The page fault or access fault the instruction takes.
pub fn translate(
    hart: &Hart,
    va: u64,
    size: u64,
    access: Access,
    memory: &mut impl PhysicalMemory,
) -> Result<Translation, Trap> {
    let mode = if access == Access::Fetch { hart.mode } else { data_mode(hart) };
    let found = if mode == Mode::Machine || hart.csrs.satp >> 60 == 0 {
        Translation { pa: va, page: 1 << 63, pte: PTE_R | PTE_W | PTE_X | PTE_A | PTE_D }
    } else {
        walk(hart, va, access, mode, memory)?
    };
    if pmp_allows(hart, found.pa, size, access, mode) { Ok(found) } else { Err(access.access_fault(va)) }
}

/// Sv39 (privileged specification 4.3.2 and 4.4.1).
fn walk(
    hart: &Hart,
    va: u64,
    access: Access,
    mode: Mode,
    memory: &mut impl PhysicalMemory,
) -> Result<Translation, Trap> {
    if (va as i64) << 25 >> 25 != va as i64 {
        return Err(access.page_fault(va));
    }
    let mut table = (hart.csrs.satp & ((1 << 44) - 1)) << 12;
    for level in (0..3u32).rev() {
        let at = table + (va >> (12 + 9 * level) & 511) * 8;
        // Page-table reads are checked as loads of S-mode.
        if !pmp_allows(hart, at, 8, Access::Load, Mode::Supervisor) {
            return Err(access.access_fault(va));
        }
        let pte = memory.read_pte(at).ok_or_else(|| access.access_fault(va))?;
        // Reserved: W without R, the bits above the page number (no Svnapot, no Svpbmt).
        if pte & PTE_V == 0 || pte & (PTE_R | PTE_W) == PTE_W || pte >> 54 != 0 {
            return Err(access.page_fault(va));
        }
        let next = (pte >> 10 & ((1 << 44) - 1)) << 12;
        if pte & (PTE_R | PTE_X) == 0 {
            if pte & (PTE_A | PTE_D | PTE_U) != 0 {
                return Err(access.page_fault(va));
            }
            table = next;
            continue;
        }
        let page = PAGE_SIZE << (9 * level);
        if next & (page - 1) != 0 || !permitted(hart, pte, access, mode) {
            return Err(access.page_fault(va));
        }
        let wanted = pte | PTE_A | if access == Access::Store { PTE_D } else { 0 };
        if wanted != pte {
            if !pmp_allows(hart, at, 8, Access::Store, Mode::Supervisor) {
                return Err(access.access_fault(va));
            }
            memory.write_pte(at, wanted);
        }
        return Ok(Translation { pa: next | va & (page - 1), page, pte: wanted });
    }
    Err(access.page_fault(va))
}

fn permitted(hart: &Hart, pte: u64, access: Access, mode: Mode) -> bool {
    let status = hart.csrs.mstatus;
    let user_page = pte & PTE_U != 0;
    if mode == Mode::User && !user_page {
        return false;
    }
    if mode == Mode::Supervisor && user_page && (access == Access::Fetch || status & MSTATUS_SUM == 0) {
        return false;
    }
    match access {
        Access::Fetch => pte & PTE_X != 0,
        Access::Load => pte & PTE_R != 0 || (status & MSTATUS_MXR != 0 && pte & PTE_X != 0),
        Access::Store => pte & PTE_W != 0,
    }
}

/// Whether PMP lets `mode` make this access (privileged specification 3.7.1): the lowest-numbered entry that matches
/// any byte decides and must match all of them.
pub fn pmp_allows(hart: &Hart, pa: u64, size: u64, access: Access, mode: Mode) -> bool {
    let (cfg, addr) = (&hart.csrs.pmpcfg, &hart.csrs.pmpaddr);
    let mut any = false;
    for i in 0..cfg.len() {
        let (low, high) = match cfg[i] >> 3 & 3 {
            0 => continue,
            1 => (if i == 0 { 0 } else { addr[i - 1] << 2 }, addr[i] << 2),
            2 => (addr[i] << 2, (addr[i] << 2) + 4),
            _ => {
                let ones = addr[i].trailing_ones();
                let low = (addr[i] & !((1u64 << ones) - 1)) << 2;
                (low, low.saturating_add(8 << ones))
            }
        };
        any = true;
        let end = pa.saturating_add(size);
        if end <= low || pa >= high {
            continue;
        }
        if pa < low || end > high {
            return false;
        }
        let bit = match access {
            Access::Load => 1,
            Access::Store => 2,
            Access::Fetch => 4,
        };
        return cfg[i] & bit != 0 || (mode == Mode::Machine && cfg[i] & 0x80 == 0);
    }
    // With no entry active S and U reach everything: a board without firmware needs no PMP setup.
    mode == Mode::Machine || !any
}
