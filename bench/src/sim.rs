//! How fast the simulated machine runs: instructions and core-cycles a second of the timing cores on four programs,
//! with the oracle off and on.

use crate::report::{Better, Report, Row};
use crate::timing::{Samples, interleave};
use std::time::Instant;
use towpath_core::functional::{Core, Stop};
use towpath_core::timing::{CoreConfig, probe};
use towpath_core::{NoDevices, Ram};
use towpath_mem::Config;

/// One thing to measure.
struct Case {
    name: String,
    program: probe::Program,
    core: CoreConfig,
    cores: u32,
    rounds: u32,
    /// Core-cycles instead of instructions: the figure that matters where cores mostly wait.
    cycles: bool,
}

fn cases(smoke: bool) -> Vec<Case> {
    use probe::Program::{Chase, CopyScalar, CopyVector, Resident, Store};
    let scale = |rounds: u32| if smoke { 1 } else { rounds };
    let mut all = Vec::new();
    for (kind, core) in [("in-order", CoreConfig::rocket()), ("out-of-order", CoreConfig::table1())] {
        for (program, rounds) in
            [(Resident, scale(200_000)), (CopyScalar, scale(20)), (CopyVector, scale(60)), (Chase, scale(60_000))]
        {
            let cycles = program == Chase;
            all.push(Case { name: format!("{kind}, {}", program.name()), program, core, cores: 1, rounds, cycles });
        }
        let name = format!("{kind}, {}, 8 cores", Store.name());
        all.push(Case { name, program: Store, core, cores: 8, rounds: scale(2000), cycles: true });
    }
    all
}

fn measure(case: &Case, check: bool) -> Result<f64, String> {
    let memory = Config { cores: case.cores, size: 64 << 20, ..Config::table1() };
    let mut cluster = probe::prepare(case.program, &case.core, &memory, case.rounds, check)?;
    let start = Instant::now();
    let ran = probe::finish(&mut cluster)?;
    let seconds = start.elapsed().as_secs_f64();
    let work = if case.cycles { ran.cycles * u64::from(case.cores) } else { ran.instructions };
    Ok(work as f64 / seconds / 1e6)
}

/// Memory of the programs, bytes.
const MEMORY: u64 = 64 << 20;

/// Instructions a second of the functional core on a program, in millions.
fn functional(program: probe::Program, rounds: u32) -> Result<f64, String> {
    let memory = Config { cores: 1, size: MEMORY, ..Config::table1() };
    // Only the memory image and the start are taken from the cluster; its cores never run.
    let mut cluster = probe::prepare(program, &CoreConfig::rocket(), &memory, rounds, false)?;
    let mut ram = Ram::new(memory.base, MEMORY as usize);
    let mut hart = cluster.hart_mut(0).clone();
    cluster.memory_mut().agent_read(memory.base, ram.bytes_mut());
    let mut core = Core::new();
    let start = Instant::now();
    let (stop, done) = core.run(&mut hart, &mut ram, &mut NoDevices, u64::MAX);
    let seconds = start.elapsed().as_secs_f64();
    // Every program ends with an ecall.
    if matches!(stop, Stop::Trap(_)) { Ok(done as f64 / seconds / 1e6) } else { Err(format!("it stopped by {stop:?}")) }
}

/// One row a program for the functional core, which keeps no caches and so has nothing to check.
fn functional_rows(report: &mut Report, smoke: bool) -> Result<(), String> {
    use probe::Program::{Chase, CopyScalar, CopyVector, Resident};
    for (program, rounds) in [(Resident, 4_000_000), (CopyScalar, 1000), (CopyVector, 2000), (Chase, 2_000_000)] {
        let rounds = if smoke { 1 } else { rounds };
        functional(program, rounds)?; // an error is told before anything is timed
        let mut rate = || functional(program, rounds).unwrap_or(f64::NAN);
        let samples = interleave(if smoke { 1 } else { 5 }, &mut [("functional", Box::new(&mut rate))]);
        let name = format!("functional, {}", program.name());
        report.push(Row::from_samples(&name, "Minstr/s", Better::Higher, &samples[0], &[]));
    }
    Ok(())
}

/// Runs every case, checks off and on interleaved.
pub fn bench(smoke: bool) -> Result<Report, String> {
    let mut report = Report::new("sim");
    functional_rows(&mut report, smoke)?;
    for case in cases(smoke) {
        measure(&case, true)?; // an error is told before anything is timed
        let rate = |check| move |case: &Case| measure(case, check).unwrap_or(f64::NAN);
        let (off, on) = (rate(false), rate(true));
        let samples: Vec<Samples> = interleave(
            if smoke { 1 } else { 5 },
            &mut [("checks off", Box::new(|| off(&case))), ("checks on", Box::new(|| on(&case)))],
        );
        let unit = if case.cycles { "Mcycle/s" } else { "Minstr/s" };
        report.push(Row::from_samples(&case.name, unit, Better::Higher, &samples[0], &samples[1..]));
    }
    report.skip(
        "rvsim",
        "the peer is a Python package that is not installed here; its documents report 0.5 to 0.65 Minstr/s",
    );
    report.say(
        "Simulated work per host second on one host core; core-cycles count every core of the machine, waiting or not.",
    );
    Ok(report)
}
