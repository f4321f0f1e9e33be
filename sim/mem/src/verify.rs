//! The random tester of the whole hierarchy: several cores load, store, add atomically, pair load-reserved with
//! store-conditional, clean and flush, in a few lines that share sets, every store writing a value never written
//! before. The oracle checks each load when its value binds; at the end the memory is compared byte by byte, every
//! credit must be home, and the DRAM commands go through the independent checker.

use crate::config::{CacheConfig, Config, DramConfig};
use crate::dram::check::check;
use crate::dram::{Channel, Map};
use crate::mutation::Mutation;
use crate::packet::{Kind, State};
use crate::system::{Access, AmoOp, Completion, Coverage, Op, Request, System};

/// What a run of the tester found.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Accesses completed.
    pub operations: u64,
    /// Loads compared with the oracle.
    pub checked: u64,
    /// DRAM commands checked.
    pub commands: u64,
    /// Simulated picoseconds.
    pub ticks: u64,
    /// Transitions met.
    pub coverage: Coverage,
    /// What went wrong; empty if all is well.
    pub errors: Vec<String>,
}

/// A small generator (splitmix64), so that a seed names a run for ever.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }
}

/// A machine made small, so that a few thousand operations meet every conflict: two ways, few MSHRs, tiny L2.
pub fn small(cores: u32) -> Config {
    let table1 = Config::table1();
    let l1 = CacheConfig { size: 4 * 2 * 64, ways: 2, mshrs: 3, write_buffers: 2, ..table1.l1d };
    let mut config = Config {
        cores,
        agents: 1,
        l1i: l1,
        l1d: l1,
        l2: CacheConfig { size: 16 * 4 * 64, ways: 4, mshrs: 6, write_buffers: 2, hit_cycles: 8, ..table1.l2 },
        size: 1 << 24,
        ..table1
    };
    // Channels of different speed overtake each other as often as they can.
    config.inner.credits = [6, 4, 4, 6];
    config.inner.latency = [1, 9, 2, 3];
    config.outer.latency = [1, 30, 1, 2];
    config.dram.read_queue = 8;
    config.dram.write_queue = 8;
    config.dram.writes_min = 2;
    config.dram.row_accesses_max = 4;
    config
}

const OUTSTANDING: usize = 6;

struct Client {
    port: u8,
    waiting: Vec<u64>,
    think: u64,
    left: u64,
}

/// A request of the tester's mix, somewhere in `lines` lines of which few are hot.
fn draw(rng: &mut Rng, port: u8, fetch: bool, base: u64, lines: u64, token: u64) -> Request {
    let span = if rng.below(3) == 0 { 6 } else { lines };
    // A stride of the L2's sets piles lines into few sets; the rest is dense.
    let n = rng.below(span);
    let line = if rng.below(2) == 0 { n * 16 % 96 } else { n };
    let size = 1u8 << rng.below(5);
    let offset = rng.below(64 / u64::from(size)) * u64::from(size);
    let op = match rng.below(100) {
        _ if fetch => Op::Load,
        0..40 => Op::Load,
        40..78 => Op::Store,
        78..86 => Op::Amo(AmoOp::Add),
        86..90 => Op::LoadReserved,
        90..95 => Op::StoreConditional,
        95 => Op::Zero,
        96 => Op::Clean,
        97 => Op::Flush,
        98 => Op::PrefetchWrite,
        _ => Op::PrefetchRead,
    };
    let (size, offset) = match op {
        Op::Amo(_) | Op::LoadReserved | Op::StoreConditional => (8, offset & !7),
        _ => (size, offset),
    };
    let data = u128::from(token) << 64 | u128::from(rng.next_u64());
    Request { port, op, addr: base + line * 64 + offset, size, data, pc: 0x1000 + rng.below(8) * 4, token }
}

/// Runs the tester on `config` for about `operations` accesses.
pub fn random_test(config: &Config, seed: u64, operations: u64, mutation: Mutation) -> Outcome {
    let mut system = match System::with_mutation(config, true, mutation) {
        Ok(system) => system,
        Err(e) => return Outcome { errors: vec![e], ..Outcome::default() },
    };
    system.trace_dram();
    let mut rng = Rng(seed);
    let lines = 160;
    let base = config.base + 64 * rng.below(64);
    let image: Vec<u8> = (0..lines * 64).map(|_| rng.next_u64() as u8).collect();
    system.agent_write(base, &image);
    let ports = config.cores * 2 + config.agents;
    let mut clients: Vec<Client> = (0..ports)
        .map(|p| Client { port: p as u8, waiting: Vec::new(), think: 0, left: operations / u64::from(ports) })
        .collect();
    let mut outcome = Outcome::default();
    let mut token = 0;
    let mut quiet = 0u64;
    let mut done: Vec<Completion> = Vec::new();
    while clients.iter().any(|c| c.left > 0 || !c.waiting.is_empty()) {
        let now = system.now() + config.period;
        system.run_until(now);
        quiet += 1;
        for client in &mut clients {
            done.clear();
            system.take_completions(client.port, &mut done);
            for completion in &done {
                let Some(k) = client.waiting.iter().position(|&t| t == completion.token) else {
                    outcome.errors.push(format!("port {} got an answer nobody waits for", client.port));
                    continue;
                };
                client.waiting.swap_remove(k);
                outcome.operations += 1;
                quiet = 0;
            }
            client.think = client.think.saturating_sub(1);
            if client.left == 0 || client.think > 0 || client.waiting.len() >= OUTSTANDING {
                continue;
            }
            token += 1;
            let fetch = u32::from(client.port) < config.cores * 2 && client.port % 2 == 1;
            let mut request = draw(&mut rng, client.port, fetch, base, lines, token);
            // A line on its way out is the one a race needs.
            let leaving = system.l1[client.port as usize].wbs.iter().find(|w| w.valid).map(|w| w.line);
            if let Some(line) = leaving.filter(|_| rng.below(3) == 0) {
                request.addr = line | request.addr & 63;
            }
            client.think = if rng.below(8) == 0 { rng.below(400) } else { rng.below(12) };
            match system.access(&request) {
                Access::Done { .. } => {
                    client.left -= 1;
                    outcome.operations += 1;
                    quiet = 0;
                }
                Access::Pending => {
                    client.left -= 1;
                    client.waiting.push(token);
                }
                Access::Refused => {}
                Access::Fault => outcome.errors.push(format!("{request:x?} faulted")),
            }
        }
        if rng.below(2000) == 0 {
            poke(&mut system, &mut rng, base, lines, &mut outcome);
        }
        if quiet > 100_000 || outcome.errors.len() > 8 || system.violations().len() > 8 {
            outcome.errors.extend((quiet > 100_000).then(|| "no progress for 100000 cycles".to_string()));
            break;
        }
    }
    finish(&mut system, base, lines, &mut outcome);
    outcome
}

/// The immediate agent reads what the oracle holds, then writes.
fn poke(system: &mut System, rng: &mut Rng, base: u64, lines: u64, outcome: &mut Outcome) {
    let addr = base + rng.below(lines * 64 - 100);
    let mut bytes = [0; 100];
    system.agent_read(addr, &mut bytes);
    if let Some(wrong) = system.oracle_differs(addr, &bytes) {
        outcome.errors.push(format!("the agent read a stale byte at {wrong:#x}"));
    }
    bytes.iter_mut().for_each(|b| *b = rng.next_u64() as u8);
    system.agent_write(addr, &bytes);
}

fn finish(system: &mut System, base: u64, lines: u64, outcome: &mut Outcome) {
    outcome.errors.extend(system.violations().iter().map(|v| format!("{v:x?}")));
    outcome.checked = system.checked();
    outcome.coverage = *system.coverage();
    if !outcome.errors.is_empty() {
        return;
    }
    if let Err(e) = system.drain() {
        outcome.errors.push(e);
        return;
    }
    if !system.credits_home() {
        outcome.errors.push("a credit did not come home".into());
    }
    if let Err(e) = system.flush_all() {
        outcome.errors.push(e);
        return;
    }
    outcome.ticks = system.now();
    let mut bytes = vec![0; (lines * 64) as usize];
    system.backing().read(base, &mut bytes);
    if let Some(wrong) = system.oracle_differs(base, &bytes) {
        outcome.errors.push(format!("memory ends with a wrong byte at {wrong:#x}"));
    }
    for channel in 0..system.config().dram.channels as usize {
        let trace = system.dram_trace(channel);
        outcome.commands += trace.len() as u64;
        for fault in check(&system.config().dram, trace).iter().take(4) {
            outcome.errors.push(format!("channel {channel}: {} broken by command {}", fault.rule, fault.index));
        }
    }
}

impl System {
    /// The address of the first byte in which `bytes` differ from the oracle's at `addr`.
    pub fn oracle_differs(&self, addr: u64, bytes: &[u8]) -> Option<u64> {
        let oracle = self.oracle.as_ref()?;
        let mut want = vec![0; bytes.len()];
        oracle.read(addr, &mut want);
        bytes.iter().zip(&want).position(|(a, b)| a != b).map(|k| addr + k as u64)
    }
}

/// Every transition that can happen, as (message, state of the line where it is met): names for a report.
const REACHABLE: &[(Kind, State, &str)] = &[
    (Kind::GetS, State::S, "GetS at the home, held shared"),
    (Kind::GetS, State::E, "GetS at the home, held by nobody"),
    (Kind::GetS, State::M, "GetS at the home, owned by a peer"),
    (Kind::GetM, State::S, "GetM at the home, held shared"),
    (Kind::GetM, State::E, "GetM at the home, held by nobody"),
    (Kind::GetM, State::M, "GetM at the home, owned by a peer"),
    (Kind::Clean, State::I, "clean of a line that is nowhere"),
    (Kind::Clean, State::S, "clean of a shared line"),
    (Kind::Clean, State::E, "clean of a line only the home holds"),
    (Kind::Clean, State::M, "clean of an owned line"),
    (Kind::Flush, State::I, "flush of a line that is nowhere"),
    (Kind::Flush, State::S, "flush of a shared line"),
    (Kind::Flush, State::E, "flush of a line only the home holds"),
    (Kind::Flush, State::M, "flush of an owned line"),
    (Kind::Grant, State::S, "grant of S"),
    (Kind::Grant, State::E, "grant of E"),
    (Kind::Grant, State::M, "grant of M"),
    (Kind::Put, State::S, "eviction of S"),
    (Kind::Put, State::E, "eviction of E"),
    (Kind::Put, State::M, "eviction of M"),
    (Kind::PutAck, State::I, "write-back from a cache that lost the line meanwhile"),
    (Kind::PutAck, State::M, "write-back from the owner"),
    (Kind::SnoopShare, State::I, "share snoop after the line left"),
    (Kind::SnoopShare, State::E, "share snoop of E"),
    (Kind::SnoopShare, State::M, "share snoop of M"),
    (Kind::SnoopInvalidate, State::I, "invalidation after the line left"),
    (Kind::SnoopInvalidate, State::S, "invalidation of S"),
    (Kind::SnoopInvalidate, State::E, "invalidation of E"),
    (Kind::SnoopInvalidate, State::M, "invalidation of M"),
    (Kind::MemRead, State::S, "recall of a shared victim"),
    (Kind::MemRead, State::M, "recall of an owned victim, or a read forwarded from a write queue"),
    (Kind::MemWrite, State::S, "clean victim at the home"),
    (Kind::MemWrite, State::M, "dirty victim at the home"),
    (Kind::MemWrite, State::E, "write merged in a write queue"),
    (Kind::MemData, State::I, "fill of a home prefetch"),
    (Kind::MemData, State::S, "fill of a request"),
];

/// How often each reachable transition was met.
pub fn coverage_report(coverage: &Coverage) -> Vec<(&'static str, u64)> {
    REACHABLE.iter().map(|&(kind, state, name)| (name, coverage[kind as usize][state as usize])).collect()
}

/// Drives one channel to its limits: random, streaming and conflicting accesses over all ranks and banks, with a
/// queue that is kept full or runs dry; every command is checked.
pub fn dram_test(c: &DramConfig, seed: u64, operations: u64, mutation: Mutation) -> Outcome {
    let map = Map::new(c, 0);
    let mut channel = Channel::new(c, map, mutation);
    channel.trace = Some(Vec::new());
    let mut rng = Rng(seed);
    let mut outcome = Outcome::default();
    let (mut clock, mut sent, mut stream, mut pattern) = (0u64, 0, 0u64, 0);
    let mut quiet_until = 0;
    while sent < operations || !channel.idle() {
        channel.flush = sent >= operations;
        if sent % 512 == 0 {
            pattern = rng.below(4);
        }
        while sent < operations && clock >= quiet_until && rng.below(3) != 0 {
            let lines = match pattern {
                0 => rng.below(1 << 22),
                1 => rng.below(1 << 9),
                _ => stream,
            };
            stream = if pattern == 3 { stream + 128 * 16 } else { stream + 1 } % (1 << 24);
            let line = lines * 64 * u64::from(c.channels);
            let write = rng.below(3) == 0;
            let full = if write {
                channel.writes.len() as u32 >= c.write_queue
            } else {
                channel.reads.len() as u32 >= c.read_queue
            };
            if full {
                break;
            }
            if !write {
                channel.push_read(line, 0, clock);
            } else if channel.queued_write(line).is_none() {
                channel.push_write(line, 0, clock);
            }
            sent += 1;
            if rng.below(2000) == 0 {
                quiet_until = clock + rng.below(40_000);
            }
        }
        let (_, next) = channel.step(clock);
        clock = next.min(clock + 1 + rng.below(8));
    }
    let trace = channel.trace.take().unwrap_or_default();
    outcome.operations = sent;
    outcome.commands = trace.len() as u64;
    outcome.ticks = clock * c.timing.tck;
    outcome.errors =
        check(c, &trace).iter().take(8).map(|f| format!("{} broken by command {}", f.rule, f.index)).collect();
    outcome
}

/// What a tester says of a planted error within its seeds, a panic of the models' own assertions included; `None` if
/// it escapes.
pub fn catches(mutation: Mutation, seeds: u64) -> Option<String> {
    (0..seeds).find_map(|seed| {
        let run = || {
            let hierarchy = random_test(&small(4), seed, 40_000, mutation);
            if hierarchy.errors.is_empty() && mutation.is_dram_timing() {
                return dram_test(&Config::table1().dram, seed, 20_000, mutation);
            }
            hierarchy
        };
        match std::panic::catch_unwind(run) {
            Ok(outcome) => outcome.errors.first().cloned(),
            Err(panic) => Some(panic.downcast_ref::<&str>().map_or("an assertion failed", |s| s).to_string()),
        }
    })
}

#[cfg(test)]
mod tests;
