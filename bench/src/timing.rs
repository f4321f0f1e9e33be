//! Clocks and sampling shared by the benchmarks: rounds interleave every contender so that a drift of the machine
//! touches all of them alike.

use crate::report::{Better, Report, Row};
use std::time::Instant;

/// Samples of one contender, in the unit its closure returns.
#[derive(Clone)]
pub struct Samples {
    pub name: String,
    pub values: Vec<f64>,
}

/// A closure that does its work once and returns one figure (already divided by its number of operations).
pub type Contender<'a> = (&'a str, Box<dyn FnMut() -> f64 + 'a>);

/// Runs every contender once to warm up, then `rounds` times in turn (A B C A B C ...), rotating who goes first.
pub fn interleave(rounds: usize, contenders: &mut [Contender<'_>]) -> Vec<Samples> {
    let mut samples: Vec<Samples> = contenders
        .iter()
        .map(|(name, _)| Samples { name: name.to_string(), values: Vec::with_capacity(rounds) })
        .collect();
    for (_, work) in contenders.iter_mut() {
        work();
    }
    let n = contenders.len();
    for round in 0..rounds {
        for k in 0..n {
            let i = (round + k) % n;
            let value = (contenders[i].1)();
            samples[i].values.push(value);
        }
    }
    samples
}

/// Nanoseconds a call of `work` takes, averaged over `n` calls.
pub fn ns_each(n: usize, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..n {
        work();
    }
    start.elapsed().as_nanos() as f64 / n as f64
}

/// Pins this thread to one processor; an error text if the kernel refuses (fewer processors, a cpuset).
pub fn pin(cpu: usize) -> Result<(), String> {
    // SAFETY: a zeroed cpu_set_t is valid, CPU_SET bounds its index, and the pointer outlives the call.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if rc == 0 {
        return Ok(());
    }
    Err(format!("cannot pin to processor {cpu}: {}", std::io::Error::last_os_error()))
}

/// The cost of the clock itself.
pub fn bench_clock(smoke: bool) -> Report {
    let (rounds, n) = if smoke { (3, 1_000) } else { (31, 100_000) };
    let mut report = Report::new("clock");
    let samples = interleave(
        rounds,
        &mut [
            (
                "Instant::now",
                Box::new(|| {
                    ns_each(n, || {
                        std::hint::black_box(Instant::now());
                    })
                }),
            ),
            (
                "empty loop",
                Box::new(|| {
                    ns_each(n, || {
                        std::hint::black_box(0u64);
                    })
                }),
            ),
        ],
    );
    report.push(Row::from_samples("read of the clock", "ns", Better::Lower, &samples[0], &samples[1..]));
    report.say("Figures of other benchmarks that read the clock once per operation include this much.");
    report
}
