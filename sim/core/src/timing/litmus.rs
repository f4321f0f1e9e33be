//! Litmus tests: tiny programs on several cores, run many times with different skews, cache states and line sharing.
//! What each store order forbids must never be seen; what it allows and the out-of-order core is known to do must.

use super::asm::{ECALL, FENCE, addi, b, la, ld, r, sd};
use super::{Cluster, CoreConfig, Stop, StoreOrder};
use crate::NoDevices;
use std::collections::BTreeMap;
use towpath_mem::verify::Rng;
use towpath_mem::{Config, System};

const CODE: u64 = 0x8000_0000;
const X: u64 = 0x8010_0000;

/// One instruction of a litmus test; locations are 0, 1.
#[derive(Clone, Copy)]
enum Step {
    /// Writes 1.
    Write(u32),
    /// Writes 2.
    Write2(u32),
    /// Reads into the next result.
    Read(u32),
    Fence,
}

use Step::{Fence, Read, Write, Write2};

struct Test {
    name: &'static str,
    threads: &'static [&'static [Step]],
    /// The outcome in question: results in the order of threads.
    outcome: &'static [u64],
    /// Whether each store order allows it: TSO (one in flight, Ztso), RVWMO.
    allowed: (bool, bool),
}

const TESTS: &[Test] = &[
    Test {
        name: "SB",
        threads: &[&[Write(0), Read(1)], &[Write(1), Read(0)]],
        outcome: &[0, 0],
        allowed: (true, true),
    },
    Test {
        name: "SB+fences",
        threads: &[&[Write(0), Fence, Read(1)], &[Write(1), Fence, Read(0)]],
        outcome: &[0, 0],
        allowed: (false, false),
    },
    Test {
        name: "MP",
        threads: &[&[Write(0), Write(1)], &[Read(1), Read(0)]],
        outcome: &[1, 0],
        allowed: (false, true),
    },
    Test {
        name: "MP+fences",
        threads: &[&[Write(0), Fence, Write(1)], &[Read(1), Fence, Read(0)]],
        outcome: &[1, 0],
        allowed: (false, false),
    },
    Test {
        name: "LB",
        threads: &[&[Read(0), Write(1)], &[Read(1), Write(0)]],
        outcome: &[1, 1],
        allowed: (false, true),
    },
    Test { name: "CoRR", threads: &[&[Write(0)], &[Read(0), Read(0)]], outcome: &[1, 0], allowed: (false, false) },
    Test {
        name: "CoRW",
        threads: &[&[Write(0), Write2(0)], &[Read(0), Read(0)]],
        outcome: &[2, 1],
        allowed: (false, false),
    },
    Test {
        name: "IRIW",
        threads: &[&[Write(0)], &[Write(1)], &[Read(0), Read(1)], &[Read(1), Read(0)]],
        outcome: &[1, 0, 1, 0],
        allowed: (false, true),
    },
    Test {
        name: "IRIW+fences",
        threads: &[&[Write(0)], &[Write(1)], &[Read(0), Fence, Read(1)], &[Read(1), Fence, Read(0)]],
        outcome: &[1, 0, 1, 0],
        allowed: (false, false),
    },
];

/// What one test showed.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The test's usual name.
    pub name: &'static str,
    /// Times it ran.
    pub runs: u64,
    /// Outcomes and how often each was seen.
    pub outcomes: BTreeMap<Vec<u64>, u64>,
    /// How often the outcome in question was seen.
    pub seen: u64,
    /// Whether the store order allows it.
    pub allowed: bool,
}

fn location(n: u32, apart: u64) -> u64 {
    X + u64::from(n) * apart
}

fn program(thread: &[Step], rng: &mut Rng, apart: u64) -> Vec<u32> {
    let mut code: Vec<u32> = Vec::new();
    code.extend(la(8, location(0, apart)));
    code.extend(la(9, location(1, apart)));
    code.extend([addi(1, 0, 1), addi(2, 0, 2)]);
    // Warm some lines, then wait a while.
    for (base, reg) in [(8, 28), (9, 29)] {
        if rng.below(2) == 0 {
            code.extend([ld(reg, base, 0), r(0x33, 7, 0, reg, reg, 0)]);
        }
    }
    code.push(FENCE);
    code.push(addi(30, 0, 1 + rng.below(60) as i32));
    code.extend([addi(30, 30, -1), b(1, 30, 0, -4)]);
    let mut result = 10;
    for step in thread {
        code.push(match *step {
            Write(n) => sd(8 + n, 1, 0),
            Write2(n) => sd(8 + n, 2, 0),
            Read(n) => {
                result += 1;
                ld(result - 1, 8 + n, 0)
            }
            Fence => FENCE,
        });
    }
    code.push(ECALL);
    code
}

fn start(cluster: &mut Cluster, core: u32, code: &[u32]) {
    let at = CODE + u64::from(core) * 0x1000;
    let bytes: Vec<u8> = code.iter().flat_map(|w| w.to_le_bytes()).collect();
    cluster.memory_mut().agent_write(at, &bytes);
    cluster.hart_mut(core).pc = at;
    cluster.resume(core);
}

fn run_all(cluster: &mut Cluster, cores: u32) -> Result<(), String> {
    let mut left = cores;
    while left > 0 {
        match cluster.run(&mut NoDevices, cluster.now() + 10_000_000_000) {
            Stop::Trap { trap, .. } if trap.cause == towpath_isa::Cause::EcallMachine => left -= 1,
            other => return Err(format!("a litmus program stopped by {other:?}")),
        }
    }
    Ok(())
}

fn machine(config: &CoreConfig, cores: u32) -> Result<Cluster, String> {
    let memory = Config { cores, size: 64 << 20, ..Config::table1() };
    Cluster::new(config, System::new(&memory, true)?)
}

/// Runs every test `runs` times on cores of this kind.
///
/// # Errors
/// A program that did not end, or a load that differed from the oracle.
pub fn litmus(config: &CoreConfig, runs: u64, seed: u64) -> Result<Vec<Shown>, String> {
    let relaxed = config.store_order == StoreOrder::Rvwmo;
    let mut all = Vec::new();
    for test in TESTS {
        let cores = test.threads.len() as u32;
        let mut cluster = machine(config, cores)?;
        let mut rng = Rng(seed);
        let mut outcomes: BTreeMap<Vec<u64>, u64> = BTreeMap::new();
        for _ in 0..runs {
            let apart = [8, 64, 4096][rng.below(3) as usize];
            for n in 0..2 {
                cluster.memory_mut().agent_write(location(n, apart), &[0; 8]);
            }
            for (core, thread) in test.threads.iter().enumerate() {
                let code = program(thread, &mut rng, apart);
                start(&mut cluster, core as u32, &code);
            }
            run_all(&mut cluster, cores)?;
            let mut results = Vec::new();
            for (core, thread) in test.threads.iter().enumerate() {
                let reads = thread.iter().filter(|s| matches!(s, Read(_))).count();
                results.extend_from_slice(&cluster.hart(core as u32).x[10..10 + reads]);
            }
            *outcomes.entry(results).or_default() += 1;
        }
        if let Some(v) = cluster.memory().violations().first() {
            return Err(format!("{}: {v:x?}", test.name));
        }
        let seen = outcomes.get(test.outcome).copied().unwrap_or(0);
        let allowed = if relaxed { test.allowed.1 } else { test.allowed.0 };
        all.push(Shown { name: test.name, runs, outcomes, seen, allowed });
    }
    Ok(all)
}

/// Every core adds 1 to one word `rounds` times, with `amoadd` or with `lr`/`sc`; the word's last value.
///
/// # Errors
/// A program that did not end, or a load that differed from the oracle.
pub fn count_together(config: &CoreConfig, cores: u32, rounds: u32, reserve: bool) -> Result<u64, String> {
    let mut cluster = machine(config, cores)?;
    let mut code: Vec<u32> = la(8, X).to_vec();
    code.extend([addi(1, 0, 1), addi(30, 0, rounds as i32)]);
    if reserve {
        code.extend([
            r(0x2f, 3, 8, 5, 8, 0), // lr.d x5, (x8)
            addi(5, 5, 1),
            r(0x2f, 3, 12, 6, 8, 5), // sc.d x6, x5, (x8)
            b(1, 6, 0, -12),
            addi(30, 30, -1),
            b(1, 30, 0, -20),
        ]);
    } else {
        code.extend([r(0x2f, 3, 0, 5, 8, 1), addi(30, 30, -1), b(1, 30, 0, -8)]);
    }
    code.push(ECALL);
    for core in 0..cores {
        start(&mut cluster, core, &code);
    }
    run_all(&mut cluster, cores)?;
    if let Some(v) = cluster.memory().violations().first() {
        return Err(format!("{v:x?}"));
    }
    let mut bytes = [0; 8];
    cluster.memory().agent_read(X, &mut bytes);
    Ok(u64::from_le_bytes(bytes))
}
