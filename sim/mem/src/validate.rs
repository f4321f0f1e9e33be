//! Measurements of the models beside what closed formulas say, each with its tolerance: unloaded latencies, peak
//! bandwidths, hit rates and prefetch coverage of cases that can be computed by hand. And the golden tables.

use crate::config::{AddressMap, CacheConfig, Config, DramConfig, Prefetch, Replace};
use crate::dram::{Channel, Issued, Map};
use crate::mutation::Mutation;
use crate::queue::Tick;
use crate::system::{Access, Completion, Op, Request, System};
use crate::verify::Rng;

/// One measurement beside its formula.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What.
    pub name: &'static str,
    /// By the models.
    pub value: f64,
    /// By the formula.
    pub expected: f64,
    /// How far apart they may be.
    pub tolerance: f64,
    /// Unit of all three.
    pub unit: &'static str,
}

impl Measured {
    /// Whether the measurement agrees.
    pub fn agrees(&self) -> bool {
        (self.value - self.expected).abs() <= self.tolerance
    }
}

/// The paper's machine with one core and no prefetchers, so that each access can be followed by hand.
fn quiet() -> Config {
    let c = Config::table1();
    let off = |cache: CacheConfig| CacheConfig { prefetch: Prefetch::None, ..cache };
    Config { cores: 2, l1i: off(c.l1i), l1d: off(c.l1d), l2: off(c.l2), size: 256 << 20, ..c }
}

/// Performs one access and waits for it; the ticks until its value may be used.
fn time(system: &mut System, port: u8, op: Op, addr: u64) -> Tick {
    // Accesses start on a clock of the crossbar, so that alignment costs the same each time.
    let start = (system.now() + 1).next_multiple_of(100_000);
    system.run_until(start);
    let request = Request { port, op, addr, size: 8, data: 1, pc: 0x100, token: 1 };
    let mut done: Vec<Completion> = Vec::new();
    match system.access(&request) {
        Access::Done { ready, .. } => return ready - start,
        Access::Pending => {}
        other => unreachable!("an access to idle memory was {other:?}"),
    }
    while done.is_empty() {
        let next = system.next_event().expect("a miss is under way");
        system.run_until(next);
        system.take_completions(port, &mut done);
    }
    done[0].ready - start
}

fn ns(ticks: Tick) -> f64 {
    ticks as f64 / 1000.0
}

/// Latencies of an idle machine.
pub fn latencies() -> Vec<Measured> {
    let c = quiet();
    let mut s = System::new(&c, true).expect("the configuration is valid");
    let (p, o, t) = (c.period, c.outer.period, c.dram.timing);
    let (d0, d1) = (s.data_port(0), s.data_port(1));
    let far = c.base + (64 << 20);
    let closed = time(&mut s, d0, Op::Load, far);
    let l1 = time(&mut s, d0, Op::Load, far);
    // The next line of the same row (columns follow the channel bit), then another row of the same bank.
    let row_hit = time(&mut s, d0, Op::Load, far + 128);
    let conflict = time(&mut s, d0, Op::Load, far + u64::from(c.dram.row_bytes) * 2 * 32);
    let peer = time(&mut s, d1, Op::Load, far);
    let fetch = s.fetch_port(0);
    let l2 = time(&mut s, fetch, Op::Load, far);
    time(&mut s, d0, Op::Store, far);
    let dirty = time(&mut s, d1, Op::Load, far);
    let i = &c.inner;
    let cross = |bytes: u32, vc: usize| Tick::from(bytes.div_ceil(i.width) + i.latency[vc]) * i.period;
    let outward = |bytes: u32, vc: usize| Tick::from(bytes.div_ceil(c.outer.width) + c.outer.latency[vc]) * o;
    let (h1, h2) = (Tick::from(c.l1d.hit_cycles) * p, Tick::from(c.l2.hit_cycles) * p);
    let (r1, r2) = (Tick::from(c.l1d.response_cycles) * p, Tick::from(c.l2.response_cycles) * p);
    let to_l2 = h1 + cross(8, 0) + h2;
    let back = cross(64, 3) + r1;
    let memory = |clocks: u32| {
        let dram = Tick::from(clocks + t.cl + t.burst) * t.tck;
        to_l2 + outward(8, 0) + c.dram.frontend + dram + c.dram.backend + outward(64, 3) + r2 + back
    };
    let snoop = cross(8, 2) + h1 + cross(64, 3) + r2;
    // Edges of the outer crossbar and of the DRAM clock each cost up to a cycle on the way out and back.
    let edges = ns(2 * o + 2 * t.tck);
    let row = |name, value, expected, tolerance| Measured {
        name,
        value: ns(value),
        expected: ns(expected),
        tolerance,
        unit: "ns",
    };
    vec![
        row("L1 hit", l1, h1, 0.0),
        row("L2 hit, shared", l2, to_l2 + back, 0.0),
        row("L2 hit, clean in a peer", peer, to_l2 + cross(8, 2) + h1 + cross(8, 3) + r2 + back, 0.0),
        row("L2 hit, dirty in a peer", dirty, to_l2 + snoop + back, 0.0),
        row("memory, closed row", closed, memory(t.rcd), edges),
        row("memory, open row", row_hit, memory(0), edges),
        row("memory, other row open", conflict, memory(t.rp + t.rcd), edges),
    ]
}

/// Reads as fast as a channel takes them: gigabytes a second, and the mean nanoseconds from arrival to last datum
/// when one arrives every `interval` clocks.
fn drive(c: &DramConfig, lines: u64, interval: u64, random: bool) -> (f64, f64) {
    let mut channel = Channel::new(c, Map::new(c, 0), Mutation::None);
    let mut rng = Rng(11);
    let mut arrivals = vec![0; lines as usize];
    let (mut sent, mut done, mut clock, mut total, mut end) = (0u64, 0u64, 0u64, 0u64, 0u64);
    while done < lines {
        while sent < lines && channel.reads.len() < c.read_queue as usize && sent * interval <= clock {
            let n = if random { rng.below(1 << 22) } else { sent };
            arrivals[sent as usize] = sent * interval;
            channel.push_read(n * 64 * u64::from(c.channels), sent as u32, clock);
            sent += 1;
        }
        let (issued, next) = channel.step(clock);
        if let Issued::Read(slot, at) = issued {
            done += 1;
            total += at - arrivals[slot as usize];
            end = end.max(at);
        }
        clock = next.min((sent * interval).max(clock + 1)).max(clock + 1);
    }
    let seconds = end as f64 * c.timing.tck as f64 * 1e-12;
    let mean = total as f64 / lines as f64 * c.timing.tck as f64 / 1000.0;
    (lines as f64 * 64.0 / seconds / 1e9, mean)
}

/// Bandwidths of one channel of reads with nothing else in the way.
pub fn bandwidths() -> Vec<Measured> {
    let base = DramConfig { channels: 1, channel_xor: 0, row_accesses_max: 0, ..Config::table1().dram };
    let t = base.timing;
    let awake = 1.0 - f64::from(t.rfc + t.rp) / f64::from(t.refi);
    let peak = |clocks: u32| 64.0 / (f64::from(clocks) * t.tck as f64 / 1000.0);
    let spread = DramConfig { map: AddressMap::RoCoRaBaCh, ranks: 1, ..base };
    let (one_bank, _) = drive(&DramConfig { ranks: 1, read_queue: 4, ..base }, 40_000, 0, false);
    let (all_banks, _) = drive(&spread, 40_000, 0, false);
    let row = |name, value, expected: f64| Measured { name, value, expected, tolerance: expected * 0.03, unit: "GB/s" };
    vec![
        row("stream within a bank group, at tCCD_L", one_bank, peak(t.ccd_l) * awake),
        row("stream over bank groups, at the bus", all_banks, peak(t.burst.max(t.ccd_s)) * awake),
    ]
}

fn tiny(replace: Replace, prefetch: Prefetch) -> Config {
    let c = quiet();
    let l1d = CacheConfig { size: 64 * 64, ways: 4, replace, prefetch, ..c.l1d };
    Config { cores: 1, l1d, ..c }
}

/// Demand misses of an L1 for a sequence of lines, one access at a time.
fn misses(c: &Config, lines: impl Iterator<Item = u64>) -> (u64, u64) {
    let mut s = System::new(c, true).expect("the configuration is valid");
    let port = s.data_port(0);
    let mut done: Vec<Completion> = Vec::new();
    let (mut all, mut pending) = (0u64, 0u64);
    for line in lines {
        all += 1;
        let request =
            Request { port, op: Op::Load, addr: c.base + line * 64, size: 8, data: 0, pc: 0x4000, token: all };
        if let Access::Pending = s.access(&request) {
            pending += 1;
            while done.is_empty() {
                let next = s.next_event().expect("a miss is under way");
                s.run_until(next);
                s.take_completions(port, &mut done);
            }
            done.clear();
        }
        let now = s.now();
        s.run_until(now + 1_000_000); // a refresh ends within
    }
    (pending, all)
}

/// Hit rates and prefetch coverage that can be computed by hand.
pub fn caches() -> Vec<Measured> {
    let lru = tiny(Replace::Lru, Prefetch::None);
    let cyclic = |lines: u64| (0..lines * 20).map(move |k| k % lines);
    let rate = |(missed, all): (u64, u64)| 100.0 * missed as f64 / all as f64;
    let mut rng = Rng(3);
    let uniform: Vec<u64> = (0..20_000).map(|_| rng.below(256)).collect();
    let random = misses(&tiny(Replace::Random, Prefetch::None), uniform.iter().copied());
    let uniform_lru = misses(&lru, uniform.iter().copied());
    let stream = misses(&tiny(Replace::Lru, Prefetch::Stride { degree: 4 }), 0..64 * 32);
    let next = misses(&tiny(Replace::Lru, Prefetch::NextLine), 0..64 * 32);
    let row = |name, value, expected, tolerance| Measured { name, value, expected, tolerance, unit: "% misses" };
    vec![
        row("loop over 64 of 64 lines, LRU", rate(misses(&lru, cyclic(64))), 5.0, 0.0),
        row("loop over 80 of 64 lines, LRU", rate(misses(&lru, cyclic(80))), 100.0, 0.0),
        row("uniform over 256 lines, 64 held, random", rate(random), 75.0, 1.5),
        row("uniform over 256 lines, 64 held, LRU", rate(uniform_lru), 75.0, 1.5),
        // A page holds 64 lines and no prefetch crosses it: each page costs its first line only, because the first
        // use of a prefetched line asks for the next ones.
        row("stream of lines, stride prefetcher of degree 4", rate(stream), 100.0 / 64.0, 0.2),
        row("stream of lines, next-line prefetcher", rate(next), 100.0 / 64.0, 0.2),
    ]
}

/// The table of mean latency by load of one channel: a line `interval mean-ns GB/s` each, for random and streaming
/// reads.
pub fn latency_by_load() -> String {
    let c = DramConfig { channels: 1, channel_xor: 0, ..Config::table1().dram };
    let mut out = String::from("# clocks between reads; random: ns, GB/s; stream: ns, GB/s\n");
    for interval in [400, 100, 50, 25, 16, 12, 10, 8, 7, 6, 5] {
        let (rb, rl) = drive(&c, 8000, interval, true);
        let (sb, sl) = drive(&c, 8000, interval, false);
        out += &format!("{interval:4} {rl:9.1} {rb:6.2} {sl:9.1} {sb:6.2}\n");
    }
    out
}

/// The table of L1 misses by size and policy for uniform accesses to 256 lines.
pub fn misses_by_size() -> String {
    let mut rng = Rng(5);
    let lines: Vec<u64> = (0..4000).map(|_| rng.below(256).min(rng.below(256))).collect();
    let mut out = String::from("# lines held; % misses of skewed accesses to 256 lines: lru, tree-plru, random\n");
    for held in [16u32, 32, 64, 128, 256] {
        out += &format!("{held:4}");
        for replace in [Replace::Lru, Replace::TreePlru, Replace::Random] {
            let mut c = tiny(replace, Prefetch::None);
            c.l1d.size = held * 64;
            let (missed, all) = misses(&c, lines.iter().copied());
            out += &format!(" {:6.2}", 100.0 * missed as f64 / all as f64);
        }
        out += "\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agree(rows: Vec<Measured>) {
        let wrong: Vec<&Measured> = rows.iter().filter(|m| !m.agrees()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn unloaded_latencies_agree_with_their_formulas() {
        agree(latencies());
    }

    #[test]
    fn peak_bandwidths_agree_with_their_formulas() {
        agree(bandwidths());
    }

    #[test]
    fn hit_rates_and_prefetch_coverage_agree_with_their_formulas() {
        agree(caches());
    }

    /// Compares with the file, or with `TOWPATH_BLESS` set writes it.
    fn golden(name: &str, text: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
        if std::env::var_os("TOWPATH_BLESS").is_some() {
            std::fs::write(&path, text).expect("the golden table can be written");
        }
        let want = std::fs::read_to_string(&path).expect("the golden table is there");
        assert_eq!(
            text, want,
            "{name} changed; if it should have, run this test with TOWPATH_BLESS=1 and review the diff"
        );
    }

    #[test]
    fn latency_by_load_is_as_recorded() {
        golden("latency-by-load.txt", &latency_by_load());
    }

    #[test]
    fn misses_by_size_are_as_recorded() {
        golden("misses-by-size.txt", &misses_by_size());
    }
}
