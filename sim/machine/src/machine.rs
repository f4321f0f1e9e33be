//! A machine made from a board: harts, their cores, memory, and either the system-call layer or bare-metal devices.
//! Harts take turns of a fixed number of instructions, so a run is the same on every host.

use crate::board::Board;
use crate::devices::Devices;
use crate::elf::Image;
use crate::error::Error;
use crate::kernel::{Console, Kernel, Options};
use crate::stats::Statistics;
use std::path::Path;
use towpath_core::functional::{Clock, Core, Stop};
use towpath_core::{NoDevices, Ram};
use towpath_isa::{Hart, Interrupt};

/// Instructions a hart runs before the next gets its turn, when there are several.
const QUANTUM: u64 = 10_000;
/// Instructions between looks at timers when there is one hart.
const QUANTUM_ALONE: u64 = 200_000;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The program ended with this status.
    Exited(i32),
    /// The budget of instructions is used up; the run can go on.
    Budget,
}

/// What the machine runs.
pub(crate) enum Software {
    Linux(Box<Kernel>),
    Bare(Devices),
}

/// One simulated machine.
pub struct Machine {
    pub(crate) board: Board,
    pub(crate) ram: Ram,
    pub(crate) harts: Vec<Hart>,
    cores: Vec<Core>,
    pub(crate) software: Software,
    /// Simulated cycles since the start.
    pub(crate) cycle: u64,
    /// Instructions of all harts.
    pub(crate) instructions: u64,
}

impl Machine {
    fn new(board: Board, software: Software) -> Machine {
        let ram = Ram::new(board.memory.base, board.memory_size() as usize);
        let harts: Vec<Hart> = (0..board.harts.count as u64).map(Hart::new).collect();
        let cores = harts.iter().map(|_| Core::new()).collect();
        Machine { board, ram, harts, cores, software, cycle: 0, instructions: 0 }
    }

    /// A machine about to start a Linux program.
    ///
    /// # Errors
    /// If the program cannot be read or loaded.
    pub fn with_program(
        board: &Board,
        program: &Path,
        arguments: &[String],
        environment: &[String],
        options: Options,
        console: Console,
    ) -> Result<Machine, Error> {
        let mut kernel = Kernel::new(board, options, console);
        let mut machine = Machine::new(board.clone(), Software::Bare(Devices::new(0)));
        kernel.start(&mut machine.ram, program, arguments, environment)?;
        for hart in &mut machine.harts {
            crate::timed::prepare(hart);
        }
        machine.software = Software::Linux(Box::new(kernel));
        Ok(machine)
    }

    /// A machine whose harts start in M-mode at the entry of a bare-metal image, `a0` holding the hart's number.
    ///
    /// # Errors
    /// If the image does not fit memory.
    pub fn bare(board: &Board, program: &str, data: &[u8]) -> Result<Machine, Error> {
        let image = Image::parse(program, data)?;
        let mut machine = Machine::new(board.clone(), Software::Bare(Devices::new(board.harts.count)));
        for s in &image.segments {
            let outside = || Error::Program {
                program: program.to_string(),
                why: format!(
                    "the segment at {:#x} ({} bytes) lies outside the board's memory, {:#x} to {:#x}",
                    s.physical,
                    s.size,
                    board.memory.base,
                    board.memory.base + board.memory_size()
                ),
            };
            let place = machine.ram.slice_mut(s.physical, s.size).ok_or_else(outside)?;
            place[..s.data.len()].copy_from_slice(&data[s.data.clone()]);
        }
        for (id, hart) in machine.harts.iter_mut().enumerate() {
            (hart.pc, hart.x[10]) = (image.entry, id as u64);
        }
        Ok(machine)
    }

    /// Runs until the program ends, or until `budget` more instructions have completed.
    ///
    /// # Errors
    /// What makes the run impossible to continue.
    pub fn run(&mut self, budget: u64) -> Result<Outcome, Error> {
        let end = self.instructions.saturating_add(budget);
        while self.instructions < end {
            let left = end - self.instructions;
            let done = match &self.software {
                Software::Linux(_) => self.round_linux(left)?,
                Software::Bare(_) => self.round_bare(left)?,
            };
            if let Some(status) = done {
                return Ok(Outcome::Exited(status));
            }
        }
        Ok(Outcome::Budget)
    }

    fn quantum(&self, left: u64) -> u64 {
        if self.harts.len() == 1 { QUANTUM_ALONE.min(left) } else { QUANTUM.min(left) }
    }

    fn clock(&self) -> Clock {
        Clock {
            base: 0,
            since: 0,
            numerator: self.board.harts.timebase_hz,
            denominator: self.board.harts.frequency_mhz * 1_000_000,
        }
    }

    fn ns(&self, cycle: u64) -> u64 {
        (u128::from(cycle) * 1000 / u128::from(self.board.harts.frequency_mhz)) as u64
    }

    /// One turn of every hart of a machine that runs Linux programs.
    fn round_linux(&mut self, left: u64) -> Result<Option<i32>, Error> {
        let (clock, start, mut quantum) = (self.clock(), self.cycle, self.quantum(left));
        let (mut any, mut longest) = (false, 0);
        let Software::Linux(kernel) = &mut self.software else { return Ok(None) };
        let frequency = u128::from(self.board.harts.frequency_mhz);
        let ns = |cycle: u64| (u128::from(cycle) * 1000 / frequency) as u64;
        kernel.set_time(ns(start));
        if let Some(at) = kernel.next_event() {
            let until = (u128::from(at) * frequency).div_ceil(1000) as u64;
            quantum = quantum.min(until.saturating_sub(start).max(1));
        }
        for slot in 0..self.harts.len() {
            let mut used = 0;
            while used < quantum && kernel.exit.is_none() {
                kernel.set_time(ns(start + used));
                let hart = &mut self.harts[slot];
                if !kernel.schedule(slot, hart, &mut self.ram)? {
                    break;
                }
                any = true;
                forget(kernel, &mut self.cores);
                let core = &mut self.cores[slot];
                core.clock = clock;
                hart.csrs.cycle = start + used;
                let (stop, done) = core.run(hart, &mut self.ram, &mut NoDevices, quantum - used);
                used += done;
                self.instructions += done;
                kernel.set_time(ns(start + used));
                match stop {
                    Stop::Trap(trap) => kernel.trap(slot, hart, &mut self.ram, trap)?,
                    Stop::Yield => kernel.give_way(slot, hart),
                    Stop::Budget | Stop::Waiting => {}
                }
            }
            kernel.preempt(slot, &self.harts[slot]);
            // Another hart may now write what this one has reserved.
            self.harts[slot].reservation = None;
            longest = longest.max(used);
        }
        self.cycle = start + longest;
        if let Some(status) = kernel.exit {
            return Ok(Some(status));
        }
        if longest == 0 && !kernel.has_ready() {
            let Some(at) = kernel.next_event() else {
                if any {
                    return Ok(None);
                }
                return Err(Error::Deadlock { threads: kernel.describe_waits() });
            };
            self.cycle = self.cycle.max((u128::from(at) * frequency).div_ceil(1000) as u64);
        }
        Ok(None)
    }

    /// One turn of every hart of a bare-metal machine.
    fn round_bare(&mut self, left: u64) -> Result<Option<i32>, Error> {
        let (clock, start, mut quantum) = (self.clock(), self.cycle, self.quantum(left));
        let next = self.next_timer();
        if let Some(next) = next {
            quantum = quantum.min(next.saturating_sub(start).max(1));
        }
        let Software::Bare(devices) = &mut self.software else { return Ok(None) };
        let mut longest = 0;
        for slot in 0..self.harts.len() {
            let (hart, core) = (&mut self.harts[slot], &mut self.cores[slot]);
            core.clock = clock;
            let mut used = 0;
            while used < quantum && devices.finished.is_none() {
                hart.csrs.cycle = start + used;
                (hart.csrs.time, devices.time) = (clock.at(start + used), clock.at(start + used));
                drive_lines(hart, devices, slot);
                hart.take_interrupt();
                if hart.waiting && !hart.interrupt_pending() {
                    break;
                }
                hart.waiting = false;
                let (stop, done) = core.run(hart, &mut self.ram, devices, quantum - used);
                used += done;
                self.instructions += done;
                if let Stop::Trap(trap) = stop {
                    let pc = hart.pc;
                    hart.take_exception(trap);
                    if hart.pc == pc && done == 0 {
                        let why = format!("{:?} at {pc:#x} (value {:#x}) and no handler", trap.cause, trap.value);
                        return Err(Error::Stuck { hart: slot, why });
                    }
                }
            }
            hart.reservation = None;
            longest = longest.max(used);
        }
        self.cycle = start + longest;
        if let Some(code) = devices.finished {
            return Ok(Some(code));
        }
        if longest == 0 {
            match next {
                Some(next) => self.cycle = self.cycle.max(next),
                None => return Err(Error::Stuck { hart: 0, why: "every hart waits and no timer is set".into() }),
            }
        }
        Ok(None)
    }

    /// The cycle of the next timer interrupt that is set on any hart.
    fn next_timer(&self) -> Option<u64> {
        let Software::Bare(devices) = &self.software else { return None };
        let now = self.clock().at(self.cycle);
        let compares = devices.compare.iter().copied().chain(self.harts.iter().map(|h| h.csrs.stimecmp));
        let next = compares.filter(|&at| at > now && at != u64::MAX).min()?;
        let (frequency, timebase) = (self.board.harts.frequency_mhz * 1_000_000, self.board.harts.timebase_hz);
        let cycles = (u128::from(next) * u128::from(frequency)).div_ceil(u128::from(timebase));
        u64::try_from(cycles).ok()
    }

    /// Memory and harts were replaced: nothing cached holds.
    pub(crate) fn forget_caches(&mut self) {
        self.cores = self.harts.iter().map(|_| Core::new()).collect();
    }

    /// Instructions completed on all harts.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Simulated cycles.
    pub fn cycles(&self) -> u64 {
        self.cycle
    }

    /// What the program wrote, if the console captures it, or what the UART sent.
    pub fn output(&self) -> (&[u8], &[u8]) {
        match &self.software {
            Software::Linux(kernel) => {
                kernel.console.captured.as_ref().map_or((&[][..], &[][..]), |(out, err)| (&out[..], &err[..]))
            }
            Software::Bare(devices) => (&devices.output, &[]),
        }
    }

    /// The harts.
    pub fn harts(&self) -> &[Hart] {
        &self.harts
    }

    /// Figures of the run so far.
    pub fn statistics(&self) -> Statistics {
        let mut s = Statistics::default();
        s.push("sim.cycles", self.cycle as f64, "cycles", "simulated cycles");
        s.push("sim.seconds", self.ns(self.cycle) as f64 / 1e9, "s", "simulated time");
        s.push("sim.instructions", self.instructions as f64, "instructions", "instructions completed on all harts");
        for hart in &self.harts {
            let name = format!("hart{}.instructions", hart.csrs.hart_id);
            s.push(name, hart.csrs.instret as f64, "instructions", "instructions completed on this hart");
        }
        if let Software::Linux(kernel) = &self.software {
            let k = kernel.stats;
            s.push("linux.calls", k.calls as f64, "calls", "system calls made");
            s.push("linux.faults", k.faults as f64, "faults", "page faults that brought in or copied a page");
            s.push("linux.switches", k.switches as f64, "switches", "times a hart was given a thread");
            s.push("linux.signals", k.signals as f64, "signals", "signals delivered to handlers");
        }
        s
    }
}

/// Makes the cores forget what the kernel changed behind their backs.
fn forget(kernel: &mut Kernel, cores: &mut [Core]) {
    if kernel.tables_changed {
        cores.iter_mut().for_each(Core::tables_changed);
    }
    if kernel.code_changed {
        cores.iter_mut().for_each(Core::code_changed);
    }
    (kernel.tables_changed, kernel.code_changed) = (false, false);
}

fn drive_lines(hart: &mut Hart, devices: &Devices, slot: usize) {
    hart.csrs.set_line(Interrupt::MachineTimer, devices.time >= devices.compare[slot]);
    hart.csrs.set_line(Interrupt::MachineSoftware, devices.software[slot]);
}
