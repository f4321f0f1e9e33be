//! A machine of timing cores: the same programs and the same system-call layer, on pipelines, caches and DRAM that
//! take time. The layer reaches memory through the coherent agent port, so it sees what the caches hold.

use crate::agent::Agent;
use crate::board::{Board, CoreKind};
use crate::error::Error;
use crate::kernel::{Console, Kernel, Options};
use crate::machine::Outcome;
use crate::stats::Statistics;
use std::path::Path;
use towpath_core::NoDevices;
use towpath_core::timing::{Cluster, CoreConfig, Stop};
use towpath_isa::{Hart, MSTATUS_FS, MSTATUS_VS, Mode, csr};
use towpath_mem::{Config, System};

impl Agent for System {
    fn read(&mut self, pa: u64, into: &mut [u8]) -> bool {
        let held = self.backing().holds(pa, into.len() as u64);
        if held {
            self.agent_read(pa, into);
        }
        held
    }

    fn write(&mut self, pa: u64, from: &[u8]) -> bool {
        let held = self.backing().holds(pa, from.len() as u64);
        if held {
            self.agent_write(pa, from);
        }
        held
    }
}

/// Replaces values of `base` by those of `over`, table by table.
fn merge(base: &mut toml::Table, over: &toml::Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            // A prefetcher is one choice with its parameters, replaced as a whole.
            (Some(toml::Value::Table(inner)), toml::Value::Table(new)) if key != "prefetch" => merge(inner, new),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

fn overridden<T>(preset: T, over: Option<&toml::Value>, what: &str) -> Result<T, String>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let Some(over) = over else { return Ok(preset) };
    let toml::Value::Table(over) = over else { return Err(format!("timing.{what} must be a table")) };
    let mut table = toml::Table::try_from(preset).map_err(|e| format!("timing.{what}: {e}"))?;
    merge(&mut table, over);
    table.try_into().map_err(|e| format!("timing.{what}: {e}"))
}

/// What the board's `[timing]` section makes of the preset that belongs to `kind` (or that it names): `table1`, the
/// (MC)2 paper's machine, or `rocket`. Number of cores, clock and memory come from the board's other sections.
///
/// # Errors
/// What in the section makes no sense.
pub fn configuration(board: &Board, kind: CoreKind) -> Result<(CoreConfig, Config), Error> {
    configure(board, kind).map_err(|why| Error::Board { board: board.name.clone(), why })
}

fn configure(board: &Board, kind: CoreKind) -> Result<(CoreConfig, Config), String> {
    let empty = toml::Table::new();
    let section = board.timing.as_ref().unwrap_or(&empty);
    if let Some(key) = section.keys().find(|k| !["preset", "core", "memory"].contains(&k.as_str())) {
        return Err(format!("timing.{key} is unknown; preset, core and memory are possible"));
    }
    let default = if kind == CoreKind::InOrder { "rocket" } else { "table1" };
    let preset = section.get("preset").and_then(toml::Value::as_str).unwrap_or(default);
    let memory = match preset {
        "table1" => Config::table1(),
        "rocket" => Config::rocket(),
        other => return Err(format!("timing.preset is {other:?}; it must be \"table1\" or \"rocket\"")),
    };
    let core = if kind == CoreKind::InOrder { CoreConfig::rocket() } else { CoreConfig::table1() };
    let core = overridden(core, section.get("core"), "core")?;
    let memory = overridden(memory, section.get("memory"), "memory")?;
    let memory = Config {
        cores: board.harts.count as u32,
        period: 1_000_000 / board.harts.frequency_mhz,
        base: board.memory.base,
        size: board.memory_size(),
        ..memory
    };
    core.check()?;
    memory.check()?;
    Ok((core, memory))
}

/// A machine of timing cores that runs a Linux program.
pub struct Timed {
    cluster: Cluster,
    kernel: Box<Kernel>,
    harts: u32,
    slice: u64,
}

impl Timed {
    /// A machine about to start a Linux program; `check` compares every load with an oracle.
    ///
    /// # Errors
    /// A board that makes no sense, a program that cannot be read or loaded.
    pub fn with_program(
        board: &Board,
        kind: CoreKind,
        check: bool,
        program: (&Path, &[String], &[String]),
        options: Options,
        console: Console,
    ) -> Result<Timed, Error> {
        let (core, memory) = configuration(board, kind)?;
        let wrong = |why| Error::Board { board: board.name.clone(), why };
        let mut system = System::new(&memory, check).map_err(wrong)?;
        let mut kernel = Kernel::new(board, options, console);
        let (path, arguments, environment) = program;
        kernel.start(&mut system, path, arguments, environment)?;
        let mut cluster = Cluster::new(&core, system).map_err(wrong)?;
        cluster.set_timebase(board.harts.timebase_hz);
        let harts = memory.cores;
        for slot in 0..harts {
            prepare(cluster.hart_mut(slot));
        }
        Ok(Timed { cluster, kernel: Box::new(kernel), harts, slice: board.program.slice_us * 1_000_000 })
    }

    /// The cores and their memory.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Keeps a pipeline trace of the first instructions of core 0.
    pub fn trace(&mut self, instructions: u64) {
        self.cluster.trace(0, instructions);
    }

    /// Instructions completed on all cores.
    pub fn instructions(&self) -> u64 {
        (0..self.harts).map(|slot| self.cluster.core_stats(slot).instructions).sum()
    }

    /// Runs until the program ends, or until about `budget` more instructions have completed.
    ///
    /// # Errors
    /// What makes the run impossible to continue, a load that differed from the oracle among it.
    pub fn run(&mut self, budget: u64) -> Result<Outcome, Error> {
        let end = self.instructions().saturating_add(budget);
        loop {
            if let Some(v) = self.cluster.memory().violations().first() {
                let why = format!("a load differed from the oracle: {v:x?}");
                return Err(Error::Stuck { hart: usize::from(v.port / 2), why });
            }
            if let Some(status) = self.kernel.exit {
                return Ok(Outcome::Exited(status));
            }
            if self.instructions() >= end {
                return Ok(Outcome::Budget);
            }
            self.fill()?;
            if self.kernel.exit.is_none() {
                self.advance()?;
            }
        }
    }

    fn set_time(&mut self) {
        self.kernel.set_time(self.cluster.now() / 1000);
    }

    /// Gives halted cores threads and starts them.
    fn fill(&mut self) -> Result<(), Error> {
        self.set_time();
        for slot in 0..self.harts {
            if self.cluster.running(slot) {
                continue;
            }
            let (hart, memory) = self.cluster.parts(slot);
            let ready = self.kernel.schedule(slot as usize, hart, memory)?;
            self.forget();
            if ready && self.kernel.exit.is_none() {
                self.cluster.resume(slot);
            }
        }
        Ok(())
    }

    /// Makes every core forget what the layer changed behind its back.
    fn forget(&mut self) {
        if self.kernel.tables_changed || self.kernel.code_changed {
            (0..self.harts).for_each(|slot| self.cluster.flush_translations(slot));
        }
        (self.kernel.tables_changed, self.kernel.code_changed) = (false, false);
    }

    /// Runs the cores to the next thing the layer must see.
    fn advance(&mut self) -> Result<(), Error> {
        let now = self.cluster.now();
        let event = self.kernel.next_event().map(|ns| (ns * 1000).max(now + 1));
        if (0..self.harts).all(|slot| !self.cluster.running(slot)) {
            let Some(event) = event else {
                return Err(Error::Deadlock { threads: self.kernel.describe_waits() });
            };
            self.cluster.memory_mut().run_until(event);
            return Ok(());
        }
        let limit = event.unwrap_or(u64::MAX).min(now + self.slice);
        match self.cluster.run(&mut NoDevices, limit) {
            Stop::Trap { core, trap } => {
                self.set_time();
                let (hart, memory) = self.cluster.parts(core);
                self.kernel.trap(core as usize, hart, memory, trap)?;
                let (hart, _) = self.cluster.parts(core);
                self.kernel.preempt(core as usize, hart);
                self.forget();
            }
            Stop::Paused { core } => {
                self.set_time();
                let (hart, _) = self.cluster.parts(core);
                self.kernel.preempt(core as usize, hart);
            }
            Stop::Limit => {
                if self.kernel.has_ready() {
                    (0..self.harts).for_each(|slot| self.cluster.pause(slot));
                }
            }
            Stop::Idle => {
                // User programs cannot wait for interrupts: a running core that sleeps for ever is a model's error.
                let slot = (0..self.harts).find(|&s| self.cluster.running(s)).unwrap_or(0);
                let why = format!("nothing will ever happen at {:#x}", self.cluster.hart(slot).pc);
                return Err(Error::Stuck { hart: slot as usize, why });
            }
        }
        Ok(())
    }

    /// What the program wrote, if the console captures it.
    pub fn output(&self) -> (&[u8], &[u8]) {
        self.kernel.console.captured.as_ref().map_or((&[][..], &[][..]), |(out, err)| (&out[..], &err[..]))
    }

    /// Figures of the run so far.
    pub fn statistics(&self) -> Statistics {
        let mut s = Statistics::default();
        s.push("sim.cycles", self.cluster.cycle() as f64, "cycles", "simulated cycles");
        s.push("sim.seconds", self.cluster.now() as f64 / 1e12, "s", "simulated time");
        s.push("sim.instructions", self.instructions() as f64, "instructions", "instructions completed on all harts");
        let k = self.kernel.stats;
        s.push("linux.calls", k.calls as f64, "calls", "system calls made");
        s.push("linux.faults", k.faults as f64, "faults", "page faults that brought in or copied a page");
        s.push("linux.switches", k.switches as f64, "switches", "times a hart was given a thread");
        for stat in self.cluster.stats() {
            s.push(stat.name, stat.value, stat.unit, stat.description);
        }
        s
    }
}

/// What Linux sets up for user programs: units on, counters readable, cache-block instructions allowed.
pub(crate) fn prepare(hart: &mut Hart) {
    hart.csrs.mstatus |= MSTATUS_FS | MSTATUS_VS;
    for (number, value) in [(csr::MCOUNTEREN, 7), (csr::SCOUNTEREN, 7), (csr::MENVCFG, 0xd0), (csr::SENVCFG, 0xd0)] {
        // These registers exist and M-mode may write them.
        let _ = hart.write_csr(number, value);
    }
    hart.mode = Mode::User;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(timing: &str) -> Board {
        let text = format!("name = \"t\"\n[harts]\ncount = 2\nfrequency_mhz = 4000\n[timing]\n{timing}");
        Board::parse("t", &text).expect("a well-formed board")
    }

    #[test]
    fn timing_section_overrides_single_values_of_the_preset() {
        let b = board("core.rob = 64\nmemory.l2.size = 1048576\nmemory.l1d.prefetch = \"none\"");
        let (core, memory) = configuration(&b, CoreKind::OutOfOrder).expect("it makes sense");
        assert_eq!((core.rob, memory.l2.size, memory.cores, memory.period), (64, 1 << 20, 2, 250));
        assert_eq!(memory.l1d.prefetch, towpath_mem::config::Prefetch::None);
        assert_eq!(memory.l2.ways, Config::table1().l2.ways);
    }

    #[test]
    fn timing_section_that_makes_no_sense_is_refused_with_its_name() {
        for (text, word) in [
            ("core.robb = 3", "robb"),
            ("memory.l2.ways = 3", "l2"),
            ("preset = \"gem5\"", "gem5"),
            ("cache = 3", "timing.cache"),
            ("memory.dram.channels = 3", "powers of two"),
        ] {
            let why = configuration(&board(text), CoreKind::OutOfOrder).expect_err(text).to_string();
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
