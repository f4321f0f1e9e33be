//! Synchronous exceptions and interrupts, numbered as in the privileged specification, table "mcause values".

/// Why an instruction did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Jump target not aligned (cannot occur with the C extension but through `tvec` writes).
    FetchMisaligned = 0,
    /// No memory answers at the fetched address, or PMP denies it.
    FetchAccess = 1,
    /// Not an instruction, or not permitted here.
    Illegal = 2,
    /// `ebreak`, or a debugger's breakpoint.
    Breakpoint = 3,
    /// A misaligned `lr`.
    LoadMisaligned = 4,
    /// No memory answers a load, or PMP denies it.
    LoadAccess = 5,
    /// A misaligned `sc` or AMO.
    StoreMisaligned = 6,
    /// No memory answers a store, or PMP denies it.
    StoreAccess = 7,
    /// `ecall` from U-mode.
    EcallUser = 8,
    /// `ecall` from S-mode.
    EcallSupervisor = 9,
    /// `ecall` from M-mode.
    EcallMachine = 11,
    /// The page tables do not allow the fetch.
    FetchPage = 12,
    /// The page tables do not allow the load.
    LoadPage = 13,
    /// The page tables do not allow the store.
    StorePage = 15,
}

/// An exception with the value that goes into `xtval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap {
    /// What happened.
    pub cause: Cause,
    /// The faulting address, or the bits of an illegal instruction.
    pub value: u64,
}

impl Trap {
    /// An exception `cause` with `xtval` = `value`.
    pub fn new(cause: Cause, value: u64) -> Trap {
        Trap { cause, value }
    }

    /// An illegal instruction with these bits.
    pub fn illegal(raw: u32) -> Trap {
        Trap::new(Cause::Illegal, u64::from(raw))
    }
}

/// Bit numbers of `mip` and `mie`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Interrupt {
    /// Supervisor software interrupt.
    SupervisorSoftware = 1,
    /// Machine software interrupt, from the CLINT.
    MachineSoftware = 3,
    /// Supervisor timer, from `stimecmp` or set by M-mode.
    SupervisorTimer = 5,
    /// Machine timer, from the CLINT.
    MachineTimer = 7,
    /// Supervisor external, from the PLIC.
    SupervisorExternal = 9,
    /// Machine external, from the PLIC.
    MachineExternal = 11,
}
