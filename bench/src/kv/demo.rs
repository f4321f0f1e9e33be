//! The short comparison behind `make demo`.

use super::cells::{Cell, Log};
use super::redis::{Contender, Measured, Programs, Server};

/// What the demo measures: a name for people and the cell.
const CELLS: [(&str, Cell); 7] = [
    ("SET 64 B", cell("set", 64, 50, 1, 60_000, Log::Off)),
    ("GET 64 B", cell("get", 64, 50, 1, 60_000, Log::Off)),
    ("SET 64 B, pipelined 16", cell("set", 64, 50, 16, 600_000, Log::Off)),
    ("GET 64 B, pipelined 16", cell("get", 64, 50, 16, 600_000, Log::Off)),
    ("SET 16 KB", cell("set", 16384, 50, 1, 40_000, Log::Off)),
    ("GET 16 KB", cell("get", 16384, 50, 1, 40_000, Log::Off)),
    ("SET 64 B, on disk before the reply", cell("set", 64, 50, 1, 20_000, Log::Always)),
];

const fn cell(command: &'static str, size: usize, c: usize, p: usize, requests: usize, log: Log) -> Cell {
    Cell { command, size, connections: c, pipeline: p, requests, log }
}

/// Rounds of every cell; the better half of a demo's noise goes with the median of three.
const ROUNDS: usize = 3;

/// Measures both servers in turn and prints one table.
pub fn run() -> Result<(), String> {
    let programs = Programs::find()?;
    println!("towpath serve kv beside Debian's redis-server, driven by redis-benchmark over 50 connections\n");
    println!(
        "{:<36}{:>11}{:>9}{:>9}{:>9}   {:>11}{:>9}{:>9}{:>9}",
        "", "towpath", "p50", "p99", "CPU", "redis", "p50", "p99", "CPU"
    );
    println!(
        "{:<36}{:>11}{:>9}{:>9}{:>9}   {:>11}{:>9}{:>9}{:>9}",
        "", "req/s", "ms", "ms", "us/req", "req/s", "ms", "ms", "us/req"
    );
    let (mut rates, mut cpus) = (Vec::new(), Vec::new());
    for log in [Log::Off, Log::Always] {
        let ours = Server::start(&programs, Contender::Towpath, log, &[])?;
        let redis = Server::start(&programs, Contender::Redis, log, &[])?;
        for (name, cell) in CELLS.iter().filter(|(_, cell)| cell.log == log) {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                a.push(ours.measure(&programs, cell)?);
                b.push(redis.measure(&programs, cell)?);
            }
            let (a, b) = (medians(&a), medians(&b));
            println!("{name:<36}{}   {}", figures(&a), figures(&b));
            rates.push(a.rps / b.rps);
            cpus.push(a.cpu_us / b.cpu_us);
        }
    }
    let median = |ratios: &[f64]| crate::report::median(ratios);
    println!(
        "\nFor a request towpath takes x{:.2} of the processor time redis-server takes, and serves x{:.2} as many a \
         second (medians of the rows). Where one processor runs redis-benchmark at full load, both servers wait for \
         it: there the processor time is what differs.\n",
        median(&cpus),
        median(&rates)
    );
    println!("Try it by hand:");
    println!("  {} serve kv --port 7379 &", shown(&programs.towpath));
    println!("  {} -p 7379", shown(&programs.redis_cli));
    Ok(())
}

fn medians(all: &[Measured]) -> Measured {
    let of = |value: fn(&Measured) -> f64| crate::report::median(&all.iter().map(value).collect::<Vec<_>>());
    Measured { rps: of(|m| m.rps), p50: of(|m| m.p50), p99: of(|m| m.p99), cpu_us: of(|m| m.cpu_us) }
}

fn figures(m: &Measured) -> String {
    format!("{:>11.0}{:>9.3}{:>9.3}{:>9.2}", m.rps, m.p50, m.p99, m.cpu_us)
}

/// A path as short as the current folder allows.
fn shown(path: &std::path::Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).display().to_string()
}
