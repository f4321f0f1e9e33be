//! Small bare programs whose behaviour is known: what the simulator's own speed is measured on, and what the models
//! are validated with.

use super::asm::{ECALL, addi, b, i, la, ld, r, sd};
use super::{Cluster, CoreConfig, Stop};
use crate::NoDevices;
use towpath_isa::{Cause, MSTATUS_VS};
use towpath_mem::verify::Rng;
use towpath_mem::{Config, System};

const CODE: u64 = 0x8000_0000;
const DATA: u64 = 0x8010_0000;

/// The programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Arithmetic with a load and a store every ten instructions, all in the L1.
    Resident,
    /// Copies 64 KB by doublewords, eight an iteration.
    CopyScalar,
    /// Copies 64 KB by 128-byte vectors.
    CopyVector,
    /// Follows pointers through 16 MB in random order, every core from its own start.
    Chase,
    /// Every core picks rows of 512 bytes at random out of 32 MB, reads them and writes one word of every fourth.
    Store,
}

impl Program {
    /// Every program.
    pub const ALL: [Program; 5] =
        [Program::Resident, Program::CopyScalar, Program::CopyVector, Program::Chase, Program::Store];

    /// A name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Program::Resident => "cache-resident loop",
            Program::CopyScalar => "64 KB memcpy, scalar",
            Program::CopyVector => "64 KB memcpy, vector",
            Program::Chase => "pointer chase",
            Program::Store => "shared store",
        }
    }
}

/// What a run took.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Instructions of all cores.
    pub instructions: u64,
    /// Cycles of one core.
    pub cycles: u64,
    /// Loads compared with the oracle.
    pub checked: u64,
}

fn li(rd: u32, value: u32) -> [u32; 2] {
    let high = value.wrapping_add(0x800) & !0xfff;
    [0x37 | rd << 7 | high, i(0x1b, 0, rd, rd, value.wrapping_sub(high) as i32)]
}

fn close(code: &mut Vec<u32>, counter: u32, start: usize) {
    code.push(addi(counter, counter, -1));
    let back = (start as i32 - code.len() as i32) * 4;
    code.push(b(1, counter, 0, back));
}

fn resident(rounds: u32) -> Vec<u32> {
    let mut code: Vec<u32> = la(8, DATA).to_vec();
    code.extend(li(1, rounds));
    let start = code.len();
    code.extend([
        ld(10, 8, 0),
        addi(10, 10, 1),
        r(0x33, 0, 0, 11, 11, 10),
        i(0x13, 1, 12, 11, 3),
        r(0x33, 4, 0, 13, 13, 12),
        sd(8, 13, 64),
        i(0x13, 7, 6, 13, 1016),
        r(0x33, 3, 0, 7, 6, 12),
    ]);
    close(&mut code, 1, start);
    code
}

fn copy_scalar(rounds: u32) -> Vec<u32> {
    let mut code = li(1, rounds).to_vec();
    let outer = code.len();
    code.extend(la(8, DATA));
    code.extend(la(9, DATA + (1 << 20)));
    code.extend(li(2, 1024));
    let start = code.len();
    for k in 0..8 {
        code.push(ld(10 + k, 8, 8 * k as i32));
    }
    for k in 0..8 {
        code.push(sd(9, 10 + k, 8 * k as i32));
    }
    code.extend([addi(8, 8, 64), addi(9, 9, 64)]);
    close(&mut code, 2, start);
    close(&mut code, 1, outer);
    code
}

fn copy_vector(rounds: u32) -> Vec<u32> {
    let mut code = li(1, rounds).to_vec();
    code.push(0x0c30_72d7); // vsetvli x5, x0, e8, m8
    let outer = code.len();
    code.extend(la(8, DATA));
    code.extend(la(9, DATA + (1 << 20)));
    code.extend(li(2, 512));
    let start = code.len();
    code.extend([0x0200_0007 | 8 << 15 | 8 << 7, 0x0200_0027 | 9 << 15 | 8 << 7, addi(8, 8, 128), addi(9, 9, 128)]);
    close(&mut code, 2, start);
    close(&mut code, 1, outer);
    code
}

fn chase(rounds: u32, start_at: u64) -> Vec<u32> {
    let mut code: Vec<u32> = la(8, start_at).to_vec();
    code.extend(li(1, rounds));
    let start = code.len();
    code.push(ld(8, 8, 0));
    close(&mut code, 1, start);
    code
}

fn store(rounds: u32, seed: u32) -> Vec<u32> {
    let mut code: Vec<u32> = la(8, DATA).to_vec();
    code.extend(li(1, rounds));
    code.extend(li(2, seed | 1));
    let outer = code.len();
    // xorshift, then a row: 16 bits of it, 512 bytes each.
    for (f7, f3, by) in [(0, 1, 13), (0, 5, 7), (0, 1, 17)] {
        code.extend([i(0x13, f3, 3, 2, by | f7), r(0x33, 4, 0, 2, 2, 3)]);
    }
    code.extend([i(0x13, 1, 4, 2, 48), i(0x13, 5, 4, 4, 39), r(0x33, 0, 0, 4, 4, 8)]);
    for k in 0..8 {
        code.extend([ld(10, 4, 64 * k), r(0x33, 0, 0, 11, 11, 10)]);
    }
    code.push(i(0x13, 7, 5, 2, 0x300));
    code.push(b(1, 5, 0, 8));
    code.push(sd(4, 11, 8));
    close(&mut code, 1, outer);
    code
}

/// A ring of pointers through `lines` lines in random order.
fn ring(memory: &mut System, lines: u64, rng: &mut Rng) {
    let mut order: Vec<u64> = (0..lines).collect();
    for k in (1..order.len()).rev() {
        order.swap(k, rng.below(k as u64 + 1) as usize);
    }
    for (k, &line) in order.iter().enumerate() {
        let next = DATA + order[(k + 1) % order.len()] * 64;
        memory.agent_write(DATA + line * 64, &next.to_le_bytes());
    }
}

/// Runs `program` on every core of the machine, `rounds` rounds each.
///
/// # Errors
/// A configuration that makes no sense, a program that did not end, a load that differed from the oracle.
pub fn run(program: Program, core: &CoreConfig, memory: &Config, rounds: u32, check: bool) -> Result<Ran, String> {
    let mut cluster = prepare(program, core, memory, rounds, check)?;
    finish(&mut cluster)
}

/// The machine with the program loaded and its cores started, for [`finish`].
///
/// # Errors
/// A configuration that makes no sense.
pub fn prepare(
    program: Program,
    core: &CoreConfig,
    memory: &Config,
    rounds: u32,
    check: bool,
) -> Result<Cluster, String> {
    let mut system = System::new(memory, check)?;
    let mut rng = Rng(42);
    let lines = (16 << 20) / 64;
    if program == Program::Chase {
        ring(&mut system, lines, &mut rng);
    }
    let mut cluster = Cluster::new(core, system)?;
    for k in 0..memory.cores {
        let mut code = match program {
            Program::Resident => resident(rounds),
            Program::CopyScalar => copy_scalar(rounds),
            Program::CopyVector => copy_vector(rounds),
            // The low 12 bits of the start must stay below 0x800 for `la`.
            Program::Chase => chase(rounds, DATA + rng.below(lines / 64) * 4096),
            Program::Store => store(rounds, rng.next_u64() as u32),
        };
        code.push(ECALL);
        let at = CODE + u64::from(k) * 0x1000;
        let bytes: Vec<u8> = code.iter().flat_map(|w| w.to_le_bytes()).collect();
        cluster.memory_mut().agent_write(at, &bytes);
        let hart = cluster.hart_mut(k);
        hart.pc = at;
        hart.csrs.mstatus |= MSTATUS_VS;
        cluster.resume(k);
    }
    Ok(cluster)
}

/// Runs until every core has ended its program.
///
/// # Errors
/// A program that did not end within ten simulated seconds, a load that differed from the oracle.
pub fn finish(cluster: &mut Cluster) -> Result<Ran, String> {
    let cores = cluster.memory().config().cores;
    for _ in 0..cores {
        match cluster.run(&mut NoDevices, 10_000_000_000_000) {
            Stop::Trap { trap, .. } if trap.cause == Cause::EcallMachine => {}
            other => return Err(format!("a program stopped by {other:?}")),
        }
    }
    if let Some(v) = cluster.memory().violations().first() {
        return Err(format!("a load differed from the oracle: {v:x?}"));
    }
    let instructions = (0..cores).map(|k| cluster.core_stats(k).instructions).sum();
    Ok(Ran { instructions, cycles: cluster.cycle(), checked: cluster.memory().checked() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles_each(program: Program, core: &CoreConfig, memory: &Config, rounds: u32) -> f64 {
        let few = run(program, core, memory, rounds, true).expect("the program ends");
        let many = run(program, core, memory, rounds * 2, true).expect("the program ends");
        (many.cycles - few.cycles) as f64 / f64::from(rounds)
    }

    #[test]
    fn chase_costs_the_latency_of_memory_on_every_core() {
        // Unloaded: 73 to 95 ns by `towpath_mem::validate`; 16 MB does not fit the L2, one in eight hits it.
        let memory = Config { cores: 1, size: 64 << 20, ..Config::table1() };
        for core in [CoreConfig::table1(), CoreConfig::rocket()] {
            let ns = cycles_each(Program::Chase, &core, &memory, 2000) / 4.0;
            assert!((65.0..100.0).contains(&ns), "{:?}: {ns} ns a step", core.kind);
        }
    }

    #[test]
    fn resident_loop_of_ten_runs_near_its_width() {
        let memory = Config { cores: 1, size: 64 << 20, ..Config::table1() };
        let ooo = cycles_each(Program::Resident, &CoreConfig::table1(), &memory, 2000);
        let inorder = cycles_each(Program::Resident, &CoreConfig::rocket(), &memory, 2000);
        // One taken branch a cycle at best, and the 3 dependent additions; in order ten plus a load-use bubble.
        assert!((1.9..4.0).contains(&ooo), "{ooo} cycles a round");
        assert!((10.0..13.0).contains(&inorder), "{inorder} cycles a round");
    }

    #[test]
    fn copies_and_stores_of_eight_cores_agree_with_the_oracle() {
        let memory = Config { cores: 8, size: 64 << 20, ..Config::table1() };
        for program in [Program::CopyScalar, Program::CopyVector, Program::Store] {
            for core in [CoreConfig::table1(), CoreConfig::rocket()] {
                let ran = run(program, &core, &memory, if program == Program::Store { 200 } else { 1 }, true);
                assert!(ran.expect("the program ends").checked > 1000, "{program:?}");
            }
        }
    }
}
