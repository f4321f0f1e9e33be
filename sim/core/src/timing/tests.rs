use super::*;
use crate::functional;
use crate::{NoDevices, Ram};
use towpath_isa::{Cause, MSTATUS_FS, MSTATUS_VS};
use towpath_mem::verify::Rng;
use towpath_mem::{Config, State};

pub(super) const CODE: u64 = 0x8000_0000;
pub(super) const DATA: u64 = 0x8010_0000;

use super::asm::*;

pub(super) fn memory(cores: u32, check: bool) -> System {
    let config = Config { cores, size: 64 << 20, ..Config::table1() };
    System::new(&config, check).expect("a valid machine")
}

fn load(cluster: &mut Cluster, code: &[u32], at: u64) {
    let bytes: Vec<u8> = code.iter().flat_map(|w| w.to_le_bytes()).collect();
    cluster.memory_mut().agent_write(at, &bytes);
}

fn prepare(hart: &mut Hart, pc: u64) {
    hart.pc = pc;
    hart.x[8] = DATA;
    hart.x[9] = DATA + 0x800;
    hart.csrs.mstatus |= MSTATUS_FS | MSTATUS_VS;
}

pub(super) fn kinds() -> Vec<(&'static str, CoreConfig)> {
    let ooo = CoreConfig::table1();
    let rocket = CoreConfig::rocket();
    vec![
        ("in-order", rocket),
        ("in-order blocking", CoreConfig { loads_in_flight: 1, ..rocket }),
        ("in-order ztso", CoreConfig { store_order: StoreOrder::Ztso, ..rocket }),
        ("ooo one in flight", ooo),
        ("ooo ztso", CoreConfig { store_order: StoreOrder::Ztso, ..ooo }),
        ("ooo rvwmo", CoreConfig { store_order: StoreOrder::Rvwmo, ..ooo }),
        ("ooo small", CoreConfig { rob: 16, issue_queue: 8, load_queue: 4, store_queue: 4, width: 2, ..ooo }),
    ]
}

/// `vsetvli x5, x0, e64, m1`.
const VSETVLI: u32 = 0x0d80_72d7;

/// Runs one program on one core until its `ecall`.
pub(super) fn run_one(config: &CoreConfig, code: &[u32], check: bool) -> Cluster {
    let mut cluster = Cluster::new(config, memory(1, check)).expect("a valid core");
    load(&mut cluster, code, CODE);
    prepare(cluster.hart_mut(0), CODE);
    cluster.resume(0);
    let stop = cluster.run(&mut NoDevices, 2_000_000_000);
    assert!(
        matches!(stop, Stop::Trap { core: 0, trap } if trap.cause == Cause::EcallMachine),
        "{stop:?} at {:#x}",
        cluster.hart(0).pc
    );
    assert_eq!(cluster.memory().violations(), &[]);
    cluster
}

/// A random program of ~`n` instructions in a loop of a few rounds: arithmetic, memory with and without alignment,
/// branches that depend on data, calls, atomics, floating point, vectors.
fn random_program(rng: &mut Rng, n: usize) -> Vec<u32> {
    let mut code = vec![addi(31, 0, 3), VSETVLI];
    let start = code.len();
    let reg = |rng: &mut Rng| 10 + rng.below(16) as u32;
    for _ in 0..n {
        let (rd, a, b) = (reg(rng), reg(rng), reg(rng));
        let base = 8 + rng.below(2) as u32;
        let offset = rng.below(512) as i32;
        let word = match rng.below(40) {
            0..8 => r(0x33, rng.below(8) as u32, 0, rd, a, b),
            8..11 => i(0x13, [0, 2, 3, 4, 6, 7][rng.below(6) as usize], rd, a, rng.below(4096) as i32 - 2048),
            11..13 => r(0x33, rng.below(8) as u32, 1, rd, a, b),
            13 => r(0x3b, 0, 0, rd, a, b),
            14..20 => i(3, rng.below(7) as u32, rd, base, offset),
            20..26 => s(0x23, rng.below(4) as u32, base, a, offset),
            26..30 => b_(rng, a, b),
            30 => r(0x2f, 3, 0, rd, base, a),
            31 => r(0x2f, 3, 4, rd, base, a),
            32 => FENCE,
            33 => r(0x53, 7, 0x69, rd % 32, a, 2), // fcvt.d.l
            34 => r(0x53, 7, 1, a, b, rd),
            35 => s(0x27, 3, base, a, offset & !7),
            36 => VSETVLI,
            37 => 0x0200_7007 | base << 15 | (a % 8) << 7, // vle64.v
            38 => 0x0200_7027 | base << 15 | (a % 8) << 7, // vse64.v
            _ => r(0x57, 0, 1, a % 8, b % 8, rd % 8),      // vadd.vv
        };
        code.push(word);
    }
    code.extend([addi(0, 0, 0); 4]); // the last branches may reach past the end
    code.push(addi(31, 31, -1));
    let back = (start as i32 - code.len() as i32) * 4;
    // Too far for a branch: skip over a jump back.
    code.push(b(0, 31, 0, 8));
    let o = (back - 4) as u32;
    code.push(0x6f | (o >> 12 & 255) << 12 | (o >> 11 & 1) << 20 | (o >> 1 & 1023) << 21 | (o >> 20 & 1) << 31);
    code.extend([addi(0, 0, 0); 8]);
    code.push(ECALL);
    code
}

/// A forward branch over up to three instructions.
fn b_(rng: &mut Rng, x: u32, y: u32) -> u32 {
    let f3 = [0, 1, 4, 5, 6, 7][rng.below(6) as usize];
    b(f3, x, y, 4 * (1 + rng.below(4) as i32))
}

fn reference(code: &[u32]) -> (Hart, Ram, u64) {
    let mut ram = Ram::new(CODE, 4 << 20);
    for (k, word) in code.iter().enumerate() {
        ram.store(CODE + 4 * k as u64, 4, u64::from(*word)).expect("inside");
    }
    let mut hart = Hart::new(0);
    prepare(&mut hart, CODE);
    let (stop, count) = functional::Core::new().run(&mut hart, &mut ram, &mut NoDevices, 10_000_000);
    assert!(matches!(stop, functional::Stop::Trap(t) if t.cause == Cause::EcallMachine), "{stop:?} {:#x}", hart.pc);
    (hart, ram, count)
}

#[test]
fn timing_cores_random_programs_end_as_on_the_functional_core() {
    for seed in 0..40 {
        let code = random_program(&mut Rng(seed), 400);
        let (hart, ram, count) = reference(&code);
        for (name, config) in kinds() {
            let cluster = run_one(&config, &code, true);
            let got = cluster.hart(0);
            assert_eq!(got.pc, hart.pc, "{name} seed {seed}");
            assert_eq!(got.x, hart.x, "{name} seed {seed}");
            assert_eq!(got.f, hart.f, "{name} seed {seed}");
            assert_eq!(got.csrs.fflags, hart.csrs.fflags, "{name} seed {seed}");
            assert_eq!(cluster.core_stats(0).instructions, count, "{name} seed {seed}");
            let mut bytes = vec![0; 0x1400];
            cluster.memory().agent_read(DATA, &mut bytes);
            assert_eq!(&bytes[..], ram.slice(DATA, 0x1400).expect("inside"), "{name} seed {seed}");
        }
    }
}

#[test]
fn timing_core_without_oracle_takes_the_same_cycles() {
    let code = random_program(&mut Rng(77), 300);
    for (name, config) in kinds() {
        let (with, without) = (run_one(&config, &code, true), run_one(&config, &code, false));
        assert!(with.memory().checked() > 100 && without.memory().checked() == 0);
        assert_eq!(with.now(), without.now(), "{name}");
    }
}

/// A branch that depends on a slow load and jumps over another load: that one is on the wrong path.
#[test]
fn ooo_wrong_path_load_fills_a_cache_line() {
    let code = [
        addi(1, 0, 1),
        ld(5, 8, 0),    // misses: 0
        b(1, 5, 1, 12), // bne x5, x1: taken, predicted not taken at first
        ld(6, 9, 0),    // wrong path
        addi(7, 0, 9),  // wrong path
        addi(0, 0, 0),
        ECALL,
    ];
    let mut cluster = run_one(&CoreConfig::table1(), &code, true);
    cluster.memory_mut().drain().expect("the line of the wrong path arrives");
    let port = cluster.memory().data_port(0);
    assert_ne!(cluster.memory().state(port, DATA + 0x800), State::I, "the wrong path left no line");
    assert_eq!((cluster.hart(0).x[6], cluster.hart(0).x[7]), (0, 0), "the wrong path left a register");
    let mut cluster = run_one(&CoreConfig::rocket(), &code, true);
    cluster.memory_mut().drain().expect("all lines arrive");
    assert_eq!(cluster.memory().state(port, DATA + 0x800), State::I, "an in-order core executes no wrong path");
}

#[test]
fn flipped_bit_in_the_l1_changes_what_the_program_reads() {
    let code = [ld(5, 8, 0), FENCE, ECALL, ld(6, 8, 0), ECALL];
    for (name, config) in kinds() {
        let mut cluster = run_one(&config, &code, false);
        assert_eq!(cluster.hart(0).x[5], 0);
        assert!(cluster.memory_mut().flip_bit(0, DATA, 3));
        cluster.hart_mut(0).pc += 4;
        cluster.resume(0);
        cluster.run(&mut NoDevices, u64::MAX);
        assert_eq!(cluster.hart(0).x[6], 8, "{name}");
    }
}

#[test]
fn litmus_forbidden_outcomes_are_never_seen_and_those_of_store_buffers_are() {
    for (name, config) in kinds() {
        for shown in litmus::litmus(&config, 150, 5).expect("litmus programs end") {
            assert!(shown.allowed || shown.seen == 0, "{name}: {shown:?}");
            if shown.name == "SB" {
                assert!(shown.seen > 0, "{name} has a store buffer: {shown:?}");
            }
        }
    }
}

#[test]
fn atomic_counters_of_four_cores_lose_no_increment() {
    for (name, config) in kinds() {
        for reserve in [false, true] {
            let total = litmus::count_together(&config, 4, 100, reserve);
            assert_eq!(total, Ok(400), "{name}, lr/sc {reserve}");
        }
    }
}

/// The first of two stores misses, the second hits: only RVWMO shows the second alone.
#[test]
fn second_store_is_visible_before_the_first_only_under_rvwmo() {
    let code = [ld(5, 9, 0), addi(1, 0, 1), FENCE, sd(8, 1, 0), sd(9, 1, 0), ECALL];
    for (name, config) in kinds() {
        let mut cluster = Cluster::new(&config, memory(1, true)).expect("a valid core");
        load(&mut cluster, &code, CODE);
        prepare(cluster.hart_mut(0), CODE);
        cluster.resume(0);
        let mut passed = false;
        while cluster.run(&mut NoDevices, cluster.now() + 250) == Stop::Limit {
            let word = |at| {
                let mut bytes = [0; 8];
                cluster.memory().agent_read(at, &mut bytes);
                u64::from_le_bytes(bytes)
            };
            passed |= word(DATA + 0x800) == 1 && word(DATA) == 0;
        }
        assert_eq!(passed, config.store_order == StoreOrder::Rvwmo, "{name}");
    }
}

#[test]
fn paused_core_resumes_where_it_stood() {
    for seed in 50..54 {
        let code = random_program(&mut Rng(seed), 200);
        let (hart, _, count) = reference(&code);
        for (name, config) in kinds() {
            let mut cluster = Cluster::new(&config, memory(1, true)).expect("a valid core");
            load(&mut cluster, &code, CODE);
            prepare(cluster.hart_mut(0), CODE);
            cluster.resume(0);
            let mut pauses = 0;
            let end = loop {
                match cluster.run(&mut NoDevices, cluster.now() + 300_000) {
                    Stop::Limit => cluster.pause(0),
                    Stop::Paused { core } => {
                        pauses += 1;
                        // A context switch and back: the hart is all that is kept.
                        let saved = cluster.hart(core).clone();
                        *cluster.hart_mut(core) = Hart::new(0);
                        *cluster.hart_mut(core) = saved;
                        cluster.resume(core);
                    }
                    other => break other,
                }
            };
            assert!(matches!(end, Stop::Trap { trap, .. } if trap.cause == Cause::EcallMachine), "{name}: {end:?}");
            assert!(pauses > 2, "{name}: {pauses}");
            assert_eq!(cluster.hart(0).x, hart.x, "{name} seed {seed}");
            assert_eq!(cluster.core_stats(0).instructions, count, "{name} seed {seed}");
        }
    }
}
