//! Timing cores on the modelled memory: an in-order and an out-of-order pipeline, and [`Cluster`], which lets several
//! of them run on one memory, cycle by cycle where something can happen and in leaps where nothing can.

mod asm;
mod config;
mod inorder;
pub mod litmus;
mod ooo;
mod predict;
pub mod probe;
mod slow;
mod stores;
#[cfg(test)]
mod tests;
mod tlb;
mod trace;
mod unit;

pub use config::{CoreConfig, CoreKind, Latencies, StoreOrder};
pub use trace::Trace;
pub use unit::CoreStats;

use crate::Devices;
use inorder::InOrder;
use ooo::OutOfOrder;
use towpath_isa::{Hart, Trap};
use towpath_mem::{Stat, System, Tick};
use unit::Unit;

// The variants are all of one kind in a machine and live for its whole run: their sizes do not matter.
#[allow(clippy::large_enum_variant)]
enum Pipeline {
    InOrder(InOrder),
    OutOfOrder(OutOfOrder),
}

struct Core {
    pipeline: Pipeline,
    wake: Tick,
    running: bool,
}

/// Why [`Cluster::run`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A core stands at an exception with everything drained; it is halted until [`Cluster::resume`].
    Trap {
        /// Which core.
        core: u32,
        /// What its instruction at `pc` raised.
        trap: Trap,
    },
    /// A core asked to [`Cluster::pause`] stands between two instructions with everything drained, halted.
    Paused {
        /// Which core.
        core: u32,
    },
    /// No running core will ever do anything again by itself: all halted, or waiting for an interrupt.
    Idle,
    /// The tick given to `run` is reached.
    Limit,
}

/// Why a pipeline stopped.
pub(crate) enum Halt {
    Trap(Trap),
    Paused,
}

/// Cores of one kind and their memory.
pub struct Cluster {
    cores: Vec<Core>,
    memory: System,
    cycles: u64,
}

impl Cluster {
    /// As many cores as `memory` has ports for, all halted.
    ///
    /// # Errors
    /// What in `config` makes no sense.
    pub fn new(config: &CoreConfig, memory: System) -> Result<Cluster, String> {
        config.check()?;
        let mut memory = memory;
        let cores = (0..memory.config().cores)
            .map(|core| {
                let unit = Unit::new(core, config, &memory);
                let pipeline = match config.kind {
                    CoreKind::InOrder => Pipeline::InOrder(InOrder::new(unit)),
                    CoreKind::OutOfOrder => Pipeline::OutOfOrder(OutOfOrder::new(unit, &mut memory)),
                };
                Core { pipeline, wake: Tick::MAX, running: false }
            })
            .collect();
        Ok(Cluster { cores, memory, cycles: 0 })
    }

    /// The memory, for the loader and system calls (`agent_read`, `agent_write`).
    pub fn memory(&self) -> &System {
        &self.memory
    }

    /// The same, to be changed.
    pub fn memory_mut(&mut self) -> &mut System {
        &mut self.memory
    }

    /// The present in picoseconds.
    pub fn now(&self) -> Tick {
        self.memory.now()
    }

    fn unit(&self, core: u32) -> &Unit {
        match &self.cores[core as usize].pipeline {
            Pipeline::InOrder(p) => &p.unit,
            Pipeline::OutOfOrder(p) => &p.unit,
        }
    }

    fn unit_mut(&mut self, core: u32) -> &mut Unit {
        match &mut self.cores[core as usize].pipeline {
            Pipeline::InOrder(p) => &mut p.unit,
            Pipeline::OutOfOrder(p) => &mut p.unit,
        }
    }

    /// The architectural state of a core; exact while it is halted.
    pub fn hart(&self, core: u32) -> &Hart {
        &self.unit(core).hart
    }

    /// The state of a halted core, to be changed; interrupt lines may be changed at any time.
    pub fn hart_mut(&mut self, core: u32) -> &mut Hart {
        self.parts(core).0
    }

    /// Starts a halted core from its hart's state.
    pub fn resume(&mut self, core: u32) {
        let now = self.memory.now();
        self.memory.clear_reservation((core * 2) as u8);
        let c = &mut self.cores[core as usize];
        match &mut c.pipeline {
            Pipeline::InOrder(p) => p.redirect(),
            Pipeline::OutOfOrder(p) => p.redirect(),
        }
        c.running = true;
        c.wake = now + 1;
    }

    /// Asks a running core to stop between two instructions; [`Cluster::run`] then returns [`Stop::Paused`].
    pub fn pause(&mut self, core: u32) {
        let c = &mut self.cores[core as usize];
        match &mut c.pipeline {
            Pipeline::InOrder(p) => p.pause = c.running,
            Pipeline::OutOfOrder(p) => p.pause = c.running,
        }
        self.nudge(core);
    }

    /// A halted core's hart and the memory, for a system call.
    pub fn parts(&mut self, core: u32) -> (&mut Hart, &mut System) {
        let unit = match &mut self.cores[core as usize].pipeline {
            Pipeline::InOrder(p) => &mut p.unit,
            Pipeline::OutOfOrder(p) => &mut p.unit,
        };
        (&mut unit.hart, &mut self.memory)
    }

    /// Ticks of the `time` register a second; 10 MHz unless set.
    pub fn set_timebase(&mut self, hz: u64) {
        for core in 0..self.cores.len() as u32 {
            self.unit_mut(core).timebase = 1_000_000_000_000 / hz.max(1);
        }
    }

    /// An interrupt line of a core changed: it looks again.
    pub fn nudge(&mut self, core: u32) {
        let c = &mut self.cores[core as usize];
        if c.running {
            c.wake = c.wake.min(self.memory.now() + 1);
        }
    }

    /// Page tables or code of a core changed behind its back (a system call mapped memory, a loader wrote code).
    pub fn flush_translations(&mut self, core: u32) {
        self.unit_mut(core).forget_translations();
    }

    /// Whether the core runs.
    pub fn running(&self, core: u32) -> bool {
        self.cores[core as usize].running
    }

    /// Keeps a pipeline trace of the core's first `instructions` from now on.
    pub fn trace(&mut self, core: u32, instructions: u64) {
        let trace = Some(Trace::new(instructions));
        match &mut self.cores[core as usize].pipeline {
            Pipeline::InOrder(p) => p.trace = trace,
            Pipeline::OutOfOrder(p) => p.trace = trace,
        }
    }

    /// The trace kept by [`Cluster::trace`].
    pub fn trace_text(&self, core: u32) -> Option<String> {
        match &self.cores[core as usize].pipeline {
            Pipeline::InOrder(p) => p.trace.as_ref().map(Trace::text),
            Pipeline::OutOfOrder(p) => p.trace.as_ref().map(Trace::text),
        }
    }

    /// Counters of a core.
    pub fn core_stats(&self, core: u32) -> CoreStats {
        let unit = self.unit(core);
        CoreStats { walks: unit.walker.walks, ..unit.stats }
    }

    /// Cycles since the start, of any core.
    pub fn cycle(&self) -> u64 {
        self.memory.now() / self.memory.config().period
    }

    /// Core-cycles actually computed (the others were leapt over).
    pub fn computed_cycles(&self) -> u64 {
        self.cycles
    }

    /// Every counter of the cores and the memory.
    pub fn stats(&self) -> Vec<Stat> {
        let mut out = Vec::new();
        for core in 0..self.cores.len() as u32 {
            let s = self.core_stats(core);
            let rows: [(&str, u64, &str, &str); 10] = [
                ("instructions", s.instructions, "instructions", "instructions completed"),
                ("active_cycles", s.active_cycles, "cycles", "cycles in which the core did something"),
                ("branches", s.branches, "instructions", "branches and jumps completed"),
                ("mispredicts", s.mispredicts, "instructions", "branches and jumps predicted wrongly"),
                ("loads", s.loads, "instructions", "scalar loads completed"),
                ("stores", s.stores, "instructions", "scalar stores completed"),
                ("forwarded", s.forwarded, "loads", "loads answered by an older store of the core"),
                ("order_squashes", s.order_squashes, "squashes", "squashes because a load had read too early"),
                ("squashed", s.squashed, "instructions", "instructions thrown away before they completed"),
                ("walks", s.walks, "walks", "page-table walks begun"),
            ];
            for (name, value, unit, description) in rows {
                let name = format!("core{core}.{name}");
                out.push(Stat { name, value: value as f64, unit, description });
            }
        }
        let cycles = Stat {
            name: "cycles".into(),
            value: self.cycle() as f64,
            unit: "cycles",
            description: "simulated core cycles",
        };
        out.push(cycles);
        out.extend(self.memory.stats());
        out
    }

    fn deliver_wakes(&mut self) {
        let wakes = self.memory.take_wakes();
        if wakes == 0 {
            return;
        }
        let soon = self.memory.now() + 1;
        for (k, core) in self.cores.iter_mut().enumerate() {
            if wakes >> (2 * k) & 3 != 0 && core.running {
                match &mut core.pipeline {
                    Pipeline::InOrder(p) => p.unit.stores.woken(),
                    Pipeline::OutOfOrder(p) => p.unit.stores.woken(),
                }
                core.wake = core.wake.min(soon);
            }
        }
    }

    /// Runs until a core stops at an exception, nothing can happen, or the tick `limit` is reached.
    pub fn run<D: Devices>(&mut self, devices: &mut D, limit: Tick) -> Stop {
        let period = self.memory.config().period;
        loop {
            let next = self.cores.iter().map(|c| c.wake).min().unwrap_or(Tick::MAX);
            if next == Tick::MAX {
                // Refreshes go on for ever; with nothing in flight they wake nobody.
                let event = self.memory.next_event().filter(|_| self.cores.iter().any(|c| c.running));
                let Some(event) = event.filter(|_| !self.memory.idle()) else {
                    self.deliver_wakes();
                    if self.cores.iter().any(|c| c.wake != Tick::MAX) {
                        continue;
                    }
                    return Stop::Idle;
                };
                if event > limit {
                    return self.reach(limit);
                }
                self.memory.run_until(event);
                self.deliver_wakes();
                continue;
            }
            let at = next.next_multiple_of(period);
            let event = self.memory.next_event().unwrap_or(Tick::MAX);
            if event < at {
                if event > limit {
                    return self.reach(limit);
                }
                // An event may wake another core before this one.
                self.memory.run_until(event);
                self.deliver_wakes();
                continue;
            }
            if at > limit {
                return self.reach(limit);
            }
            self.memory.run_until(at);
            self.deliver_wakes();
            if let Some(stop) = self.cycle_at(at, devices) {
                return stop;
            }
        }
    }

    fn reach(&mut self, limit: Tick) -> Stop {
        self.memory.run_until(limit);
        self.deliver_wakes();
        Stop::Limit
    }

    /// One cycle of every core that is due.
    fn cycle_at<D: Devices>(&mut self, at: Tick, devices: &mut D) -> Option<Stop> {
        let mut stop = None;
        for k in 0..self.cores.len() {
            let core = &mut self.cores[k];
            if core.wake > at {
                continue;
            }
            self.cycles += 1;
            let outcome = match &mut core.pipeline {
                Pipeline::InOrder(p) => p.tick(&mut self.memory, devices),
                Pipeline::OutOfOrder(p) => p.tick(&mut self.memory, devices),
            };
            match outcome {
                Ok(next) => core.wake = next,
                Err(halt) => {
                    (core.wake, core.running) = (Tick::MAX, false);
                    let core = k as u32;
                    stop = Some(match halt {
                        Halt::Trap(trap) => Stop::Trap { core, trap },
                        Halt::Paused => Stop::Paused { core },
                    });
                    self.unit_mut(core).count(at);
                    break;
                }
            }
        }
        self.deliver_wakes();
        stop
    }
}
