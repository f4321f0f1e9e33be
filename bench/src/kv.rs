//! `towpath bench kv`: the key-value server beside redis-server, both driven by redis-benchmark.
//!
//! For each number of connections, pipeline depth and value size: requests a second, median and 99th percentile
//! latency as redis-benchmark sees them, and processor time of the server for each request, which also compares where
//! redis-benchmark itself is the limit. With the log at `always`: how much of what one device write allows is reached.

mod cells;
mod demo;
mod redis;

pub use demo::run as demo;

use crate::report::{Better, Report, Row};
use crate::timing::Samples;
use cells::{Cell, Log};
use redis::{Contender, Measured, Programs, Server};
use std::io::Write;
use std::time::Instant;

/// Arguments of `towpath bench kv`.
#[derive(clap::Args)]
pub struct Args {
    /// Print the short comparison that `make demo` shows
    #[arg(long, hide = true)]
    pub demo: bool,
    /// Only cells whose name contains this, such as "16384B" or "c64 P1"
    #[arg(long, default_value = "")]
    only: String,
    /// Rounds; every cell is measured so often with each server
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Further arguments of `towpath serve kv`, such as "--libos kernel@uring"
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    serve: String,
}

/// Measures every cell with both servers in turn.
pub fn bench(args: &Args, smoke: bool) -> Result<Report, String> {
    let mut report = Report::new("kv");
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(why) => {
            report.skip("kv", why);
            return Ok(report);
        }
    };
    let rounds = if smoke { 1 } else { args.rounds.max(1) };
    for log in [Log::Off, Log::Always] {
        let cells: Vec<Cell> =
            cells::all(log, smoke).into_iter().filter(|cell| cell.name().contains(&args.only)).collect();
        if !cells.is_empty() {
            measure(&mut report, &programs, log, &cells, rounds, args)?;
        }
    }
    report.say(meaning(&report));
    Ok(report)
}

fn measure(
    report: &mut Report,
    programs: &Programs,
    log: Log,
    cells: &[Cell],
    rounds: usize,
    args: &Args,
) -> Result<(), String> {
    let extra: Vec<String> = args.serve.split_whitespace().map(str::to_string).collect();
    let ours = Server::start(programs, Contender::Towpath, log, &extra)?;
    let redis = Server::start(programs, Contender::Redis, log, &[])?;
    let device = if log == Log::Always { Some(device_write(&ours, rounds)?) } else { None };
    for cell in cells {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            // Who goes first alternates.
            if round % 2 == 0 {
                a.push(ours.measure(programs, cell)?);
                b.push(redis.measure(programs, cell)?);
            } else {
                b.push(redis.measure(programs, cell)?);
                a.push(ours.measure(programs, cell)?);
            }
        }
        rows(report, cell, &a, &b);
        if let Some(write) = &device {
            let allowed = |m: &Measured| m.rps * write / (cell.connections * cell.pipeline) as f64;
            let name = format!("{} share of what one device write allows", cell.name());
            report.push(row(&name, "", Better::Higher, &a, &b, allowed));
        }
    }
    Ok(())
}

fn rows(report: &mut Report, cell: &Cell, a: &[Measured], b: &[Measured]) {
    let name = cell.name();
    report.push(row(&format!("{name} rate"), "req/s", Better::Higher, a, b, |m| m.rps));
    report.push(row(&format!("{name} server CPU"), "us/req", Better::Lower, a, b, |m| m.cpu_us));
    report.push(row(&format!("{name} p50"), "ms", Better::Lower, a, b, |m| m.p50));
    report.push(row(&format!("{name} p99"), "ms", Better::Lower, a, b, |m| m.p99));
}

fn row(
    name: &str,
    unit: &str,
    better: Better,
    ours: &[Measured],
    redis: &[Measured],
    value: impl Fn(&Measured) -> f64,
) -> Row {
    let samples = |who: &str, all: &[Measured]| Samples { name: who.into(), values: all.iter().map(&value).collect() };
    Row::from_samples(name, unit, better, &samples("towpath", ours), &[samples("redis-server", redis)])
}

/// Seconds one durable append of a short record takes on the device the logs lie on: the median of many.
fn device_write(server: &Server, rounds: usize) -> Result<f64, String> {
    let path = server.folder().join("device-write");
    let failed = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
    let mut file = std::fs::File::create(&path).map_err(failed)?;
    let mut times = Vec::new();
    for _ in 0..200 * rounds {
        let start = Instant::now();
        file.write_all(&[b'x'; 120]).and_then(|()| file.sync_data()).map_err(failed)?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(crate::report::median(&times))
}

/// In how many cells each aim is met.
fn meaning(report: &Report) -> String {
    let ratios = |what: &str| -> Vec<f64> {
        let of = |r: &&Row| r.name.ends_with(what) && !r.name.contains("always");
        let base = |r: &Row| r.baselines.first().map_or(f64::NAN, |b| b.value);
        report.results.iter().filter(of).map(|r| r.value / base(r)).collect()
    };
    let (rate, cpu) = (ratios("rate"), ratios("server CPU"));
    format!(
        "Requests a second: at least redis-server's in {} of {} cells (median x{:.2}). Server CPU for a request: at \
         most 0.7 of redis-server's in {} of {} cells (median x{:.2}). Where both servers wait for redis-benchmark, \
         compare the CPU.",
        rate.iter().filter(|r| **r >= 1.0).count(),
        rate.len(),
        crate::report::median(&rate),
        cpu.iter().filter(|r| **r <= 0.7).count(),
        cpu.len(),
        crate::report::median(&cpu),
    )
}
