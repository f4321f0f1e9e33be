//! The switch from a coroutine that yields to the next one that is ready, with few and with thousands blocked.
//!
//! Demikernel reports 12 cycles for this (section 5.4). Cycles here are ticks of the time stamp counter.

use crate::report::{Better, Report, Row};
use crate::timing::{Contender, Samples, interleave};
use std::future::pending;
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use towpath_coro::{Class, Clock, Config, Scheduler, yield_now};

/// Coroutines alive, and how many of them yield in turn; the rest are blocked.
const CASES: [(usize, usize); 4] = [(1, 1), (64, 4), (4096, 4), (4096, 64)];

/// A scheduler in which `running` of `alive` coroutines yield for ever and the others wait for what never comes. Those
/// that yield lie as far from each other as they can.
fn scheduler(alive: usize, running: usize) -> Scheduler {
    let scheduler = Scheduler::new(Config { max_tasks: alive, ..Config::default() });
    let stride = alive / running;
    for n in 0..alive {
        let spawned = if n % stride == 0 {
            scheduler.spawn(Class::Program, async {
                loop {
                    yield_now().await;
                }
            })
        } else {
            scheduler.spawn(Class::Program, pending())
        };
        spawned.expect("the scheduler was made for as many");
    }
    // Every coroutine runs once, and those that wait block.
    scheduler.run_ready(2 * alive);
    scheduler
}

/// Nanoseconds a poll of a future that is never ready, called through its vtable: what no scheduler can be below.
fn bare_call(n: usize) -> f64 {
    let mut future: Pin<Box<dyn Future<Output = ()>>> = black_box(Box::pin(std::future::poll_fn(|_| Poll::Pending)));
    let mut cx = Context::from_waker(Waker::noop());
    let start = Instant::now();
    for _ in 0..n {
        let _ = black_box(future.as_mut().poll(&mut cx));
    }
    start.elapsed().as_nanos() as f64 / n as f64
}

/// As [`bare_call`], for a state machine that yields: what the coroutine's own code costs.
fn bare_yield(n: usize) -> f64 {
    let mut future: Pin<Box<dyn Future<Output = ()>>> = black_box(Box::pin(async {
        loop {
            yield_now().await;
        }
    }));
    let mut cx = Context::from_waker(Waker::noop());
    let start = Instant::now();
    for _ in 0..n {
        let _ = black_box(future.as_mut().poll(&mut cx));
    }
    start.elapsed().as_nanos() as f64 / n as f64
}

fn switch(scheduler: &Scheduler, n: usize) -> f64 {
    let start = Instant::now();
    let polls = scheduler.run_ready(n);
    start.elapsed().as_nanos() as f64 / polls as f64
}

/// Tokio's current-thread runtime with as many tasks; `running` of them yield `n` times in all.
struct Tokio {
    runtime: tokio::runtime::Runtime,
    running: usize,
}

impl Tokio {
    fn new(alive: usize, running: usize) -> Result<Tokio, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(|error| format!("tokio's runtime does not start: {error}"))?;
        for _ in 0..alive - running {
            runtime.spawn(pending::<()>());
        }
        runtime.block_on(tokio::task::yield_now());
        Ok(Tokio { runtime, running })
    }

    fn switch(&self, n: usize) -> f64 {
        let each = n.div_ceil(self.running);
        let tasks: Vec<_> = (0..self.running)
            .map(|_| {
                self.runtime.spawn(async move {
                    for _ in 0..each {
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let start = Instant::now();
        self.runtime.block_on(async {
            for task in tasks {
                task.await.expect("a task that only yields does not fail");
            }
        });
        start.elapsed().as_nanos() as f64 / (each * self.running) as f64
    }
}

/// Runs the benchmark.
pub fn run(smoke: bool) -> Result<Report, String> {
    let (rounds, n) = if smoke { (3, 2_000) } else { (41, 200_000) };
    let mut report = Report::new("coro");
    let ticks_per_ns = Clock::new().ticks_per_second().map(|ticks| ticks / 1e9);
    if ticks_per_ns.is_none() {
        report.skip("cycles", "the time stamp counter is not used on this machine; see the rows in ns");
    }
    for (alive, running) in CASES {
        let name = format!("switch, {running} of {alive} ready");
        let (ours, tokio) = (scheduler(alive, running), Tokio::new(alive, running)?);
        let mut contenders: [Contender<'_>; 4] = [
            ("towpath", Box::new(|| switch(&ours, n))),
            ("bare call", Box::new(|| bare_call(n))),
            ("bare yield", Box::new(|| bare_yield(n))),
            ("tokio yield_now", Box::new(|| tokio.switch(n))),
        ];
        let samples = interleave(rounds, &mut contenders);
        if let Some(ticks) = ticks_per_ns {
            let cycles: Vec<Samples> = samples
                .iter()
                .map(|s| Samples { name: s.name.clone(), values: s.values.iter().map(|v| v * ticks).collect() })
                .collect();
            report.push(Row::from_samples(&name, "cycles", Better::Lower, &cycles[0], &cycles[1..]));
        }
        report.push(Row::from_samples(&name, "ns", Better::Lower, &samples[0], &samples[1..]));
    }
    report.say(
        "A switch ends one poll, finds the next ready coroutine and enters it; cycles are ticks of the time stamp \
         counter. The paper has 12. It should not grow with the number of blocked coroutines.",
    );
    Ok(report)
}
