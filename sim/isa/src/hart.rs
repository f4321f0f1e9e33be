//! The architectural state of one hardware thread, and how traps and returns change it.

use crate::control::{
    Csrs, MSTATUS_MIE, MSTATUS_MPIE, MSTATUS_MPP, MSTATUS_MPRV, MSTATUS_SIE, MSTATUS_SPIE, MSTATUS_SPP,
};
use crate::trap::{Interrupt, Trap};
use crate::vector::VectorState;

/// Privilege modes by their encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mode {
    /// U-mode.
    User = 0,
    /// S-mode.
    Supervisor = 1,
    /// M-mode.
    Machine = 3,
}

impl Mode {
    /// The mode encoded by two bits; the reserved encoding reads as user.
    pub fn from_bits(bits: u64) -> Mode {
        match bits & 3 {
            3 => Mode::Machine,
            1 => Mode::Supervisor,
            _ => Mode::User,
        }
    }
}

/// One hardware thread.
#[derive(Clone, Debug)]
pub struct Hart {
    /// Integer registers; `x[0]` is always 0.
    pub x: [u64; 32],
    /// Floating-point registers, singles NaN-boxed.
    pub f: [u64; 32],
    /// Address of the next instruction.
    pub pc: u64,
    /// Current privilege.
    pub mode: Mode,
    /// Control and status registers.
    pub csrs: Csrs,
    /// Vector registers and configuration.
    pub v: VectorState,
    /// Physical address reserved by `lr`, if any.
    pub reservation: Option<u64>,
    /// Set by `wfi` until an interrupt is pending.
    pub waiting: bool,
}

impl Hart {
    /// A hart just out of reset: M-mode, registers zero.
    pub fn new(id: u64) -> Hart {
        Hart {
            x: [0; 32],
            f: [0; 32],
            pc: 0,
            mode: Mode::Machine,
            csrs: Csrs::new(id),
            v: VectorState::new(),
            reservation: None,
            waiting: false,
        }
    }

    /// Writes an integer register; writes to `x0` vanish.
    #[inline(always)]
    pub fn set_x(&mut self, reg: u8, value: u64) {
        self.x[usize::from(reg & 31)] = value;
        self.x[0] = 0;
    }

    /// Takes an exception raised by the instruction at `pc`: delegation, cause, return address and new mode
    /// (privileged specification 3.1.6 to 3.1.16 and 4.1).
    pub fn take_exception(&mut self, trap: Trap) {
        let cause = trap.cause as u64;
        let delegated = self.mode <= Mode::Supervisor && self.csrs.medeleg >> cause & 1 == 1;
        self.enter(delegated, cause, trap.value);
    }

    /// Takes the most urgent interrupt that is pending and enabled; says whether there was one.
    pub fn take_interrupt(&mut self) -> bool {
        let Some((number, delegated)) = self.pending_interrupt() else { return false };
        self.waiting = false;
        self.enter(delegated, 1 << 63 | number, 0);
        true
    }

    /// Whether any enabled interrupt is pending, whatever the global enables: what ends `wfi`.
    pub fn interrupt_pending(&self) -> bool {
        self.csrs.pending() & self.csrs.mie != 0
    }

    fn pending_interrupt(&self) -> Option<(u64, bool)> {
        let pending = self.csrs.pending() & self.csrs.mie;
        if pending == 0 {
            return None;
        }
        let machine_on = self.mode < Mode::Machine || self.csrs.mstatus & MSTATUS_MIE != 0;
        let supervisor_on =
            self.mode < Mode::Supervisor || (self.mode == Mode::Supervisor && self.csrs.mstatus & MSTATUS_SIE != 0);
        let machine = if machine_on { pending & !self.csrs.mideleg } else { 0 };
        let supervisor = if supervisor_on { pending & self.csrs.mideleg } else { 0 };
        let (set, delegated) = if machine != 0 { (machine, false) } else { (supervisor, true) };
        use Interrupt::*;
        [MachineExternal, MachineSoftware, MachineTimer, SupervisorExternal, SupervisorSoftware, SupervisorTimer]
            .into_iter()
            .map(|i| i as u64)
            .find(|&number| set >> number & 1 == 1)
            .map(|number| (number, delegated))
    }

    fn enter(&mut self, delegated: bool, cause: u64, value: u64) {
        let csrs = &mut self.csrs;
        let from = self.mode as u64;
        let tvec = if delegated {
            (csrs.sepc, csrs.scause, csrs.stval) = (self.pc, cause, value);
            let enabled = csrs.mstatus & MSTATUS_SIE != 0;
            csrs.mstatus &= !(MSTATUS_SIE | MSTATUS_SPIE | MSTATUS_SPP);
            csrs.mstatus |= if enabled { MSTATUS_SPIE } else { 0 } | if from != 0 { MSTATUS_SPP } else { 0 };
            self.mode = Mode::Supervisor;
            csrs.stvec
        } else {
            (csrs.mepc, csrs.mcause, csrs.mtval) = (self.pc, cause, value);
            let enabled = csrs.mstatus & MSTATUS_MIE != 0;
            csrs.mstatus &= !(MSTATUS_MIE | MSTATUS_MPIE | MSTATUS_MPP);
            csrs.mstatus |= if enabled { MSTATUS_MPIE } else { 0 } | from << 11;
            self.mode = Mode::Machine;
            csrs.mtvec
        };
        let interrupt = cause >> 63 == 1;
        let base = tvec & !3;
        self.pc = if interrupt && tvec & 1 == 1 { base.wrapping_add(4 * (cause & 63)) } else { base };
        self.reservation = None;
    }

    /// `sret`.
    pub fn return_supervisor(&mut self) {
        let status = self.csrs.mstatus;
        self.mode = if status & MSTATUS_SPP != 0 { Mode::Supervisor } else { Mode::User };
        let enabled = status & MSTATUS_SPIE != 0;
        self.csrs.mstatus =
            status & !(MSTATUS_SPP | MSTATUS_SIE | MSTATUS_MPRV) | MSTATUS_SPIE | if enabled { MSTATUS_SIE } else { 0 };
        self.pc = self.csrs.sepc;
    }

    /// `mret`.
    pub fn return_machine(&mut self) {
        let status = self.csrs.mstatus;
        self.mode = Mode::from_bits(status >> 11);
        let enabled = status & MSTATUS_MPIE != 0;
        let mut next = status & !(MSTATUS_MPP | MSTATUS_MIE) | MSTATUS_MPIE | if enabled { MSTATUS_MIE } else { 0 };
        if self.mode != Mode::Machine {
            next &= !MSTATUS_MPRV;
        }
        self.csrs.mstatus = next;
        self.pc = self.csrs.mepc;
    }
}
