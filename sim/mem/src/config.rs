//! Every parameter of the memory system, with the machines it is validated on.

use crate::queue::Tick;
use serde::{Deserialize, Serialize};

/// Which line leaves a full set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replace {
    /// The least recently used line.
    Lru,
    /// A binary tree of one bit a node.
    TreePlru,
    /// A seeded choice.
    Random,
}

/// What guesses the next lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefetch {
    /// Nothing.
    None,
    /// A table of strides by program counter, miss-triggered.
    Stride {
        /// Lines fetched ahead at a trigger.
        degree: u8,
    },
    /// The line after a missed one.
    NextLine,
}

/// One cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Bytes of data; a power of two times the ways.
    pub size: u32,
    /// Lines a set, 1 to 64.
    pub ways: u32,
    /// Cycles from access to data on a hit.
    pub hit_cycles: u32,
    /// Cycles from a fill's arrival to its answer.
    pub response_cycles: u32,
    /// Lines that may be missing at a time.
    pub mshrs: u32,
    /// Dirty lines that may be on their way out at a time.
    pub write_buffers: u32,
    /// Replacement policy.
    pub replace: Replace,
    /// Prefetcher.
    pub prefetch: Prefetch,
}

/// A crossbar: one layer a destination, four virtual channels each with credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XbarConfig {
    /// Picoseconds a cycle.
    pub period: Tick,
    /// Bytes a cycle a layer moves.
    pub width: u32,
    /// Cycles of latency by virtual channel: requests, write-backs, snoops, responses.
    pub latency: [u32; 4],
    /// Messages a destination can hold by virtual channel.
    pub credits: [u16; 4],
}

/// How an address becomes channel, rank, bank, row and column; fields from the highest bit to the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressMap {
    /// Row, rank, bank, column, channel: neighbours in other channels, a page in one row.
    RoRaBaCoCh,
    /// Row, rank, bank, channel, column: a row's lines in one channel.
    RoRaBaChCo,
    /// Row, column, rank, bank, channel: neighbours in other banks.
    RoCoRaBaCh,
}

/// DDR4 timing in clocks of `tck` picoseconds (JESD79-4 names).
#[allow(missing_docs, reason = "the names are the standard's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DramTiming {
    pub tck: Tick,
    pub cl: u32,
    pub cwl: u32,
    pub rcd: u32,
    pub rp: u32,
    pub ras: u32,
    pub rrd_s: u32,
    pub rrd_l: u32,
    pub faw: u32,
    pub ccd_s: u32,
    pub ccd_l: u32,
    pub wtr_s: u32,
    pub wtr_l: u32,
    pub rtp: u32,
    pub wr: u32,
    pub rfc: u32,
    pub refi: u32,
    /// Clocks the data bus carries a burst of 64 bytes.
    pub burst: u32,
    /// Clocks between data of two ranks.
    pub rank_switch: u32,
    /// Clocks between read data and write data.
    pub read_to_write: u32,
}

impl DramTiming {
    /// ACT to ACT of one bank.
    pub fn rc(&self) -> u32 {
        self.ras + self.rp
    }

    /// gem5's `DDR4_2400_8x8`, in whole clocks: 17-17-17 with a write latency equal to the read latency.
    pub fn ddr4_2400_gem5() -> DramTiming {
        DramTiming {
            tck: 833,
            cl: 17,
            cwl: 17,
            rcd: 17,
            rp: 17,
            ras: 39,
            rrd_s: 4,
            rrd_l: 6,
            faw: 26,
            ccd_s: 4,
            ccd_l: 6,
            wtr_s: 6,
            wtr_l: 6,
            rtp: 9,
            wr: 18,
            rfc: 420,
            refi: 9364,
            burst: 4,
            rank_switch: 2,
            read_to_write: 2,
        }
    }

    /// JEDEC DDR4-2400U of an 8 Gb x8 part: 17-17-17, write latency 12.
    pub fn ddr4_2400u() -> DramTiming {
        DramTiming { cwl: 12, wtr_s: 3, wtr_l: 9, ..DramTiming::ddr4_2400_gem5() }
    }
}

/// The DRAM and its controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DramConfig {
    /// Independent channels, a power of two.
    pub channels: u32,
    /// Ranks a channel, a power of two.
    pub ranks: u32,
    /// Bank groups a rank.
    pub bank_groups: u32,
    /// Banks a group.
    pub banks: u32,
    /// Bytes a row holds over all chips of a rank.
    pub row_bytes: u32,
    /// Timing.
    pub timing: DramTiming,
    /// Address map.
    pub map: AddressMap,
    /// A higher address bit folded into the lowest channel bit; 0 for none.
    pub channel_xor: u32,
    /// Reads a controller holds.
    pub read_queue: u32,
    /// Writes a controller holds.
    pub write_queue: u32,
    /// Percent of the write queue that starts a drain.
    pub write_high: u32,
    /// Percent of the write queue that ends a drain, and at which an idle controller starts one.
    pub write_low: u32,
    /// Writes a drain issues at least while reads wait.
    pub writes_min: u32,
    /// Column accesses to a row before it is closed; 0 for no limit.
    pub row_accesses_max: u32,
    /// Picoseconds in the controller before a command can issue.
    pub frontend: Tick,
    /// Picoseconds from the last datum to the answer.
    pub backend: Tick,
}

/// The whole memory system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Cores, each with an L1I and an L1D.
    pub cores: u32,
    /// Coherent agents beside the cores (DMA), each with a small buffer cache.
    pub agents: u32,
    /// Picoseconds a core cycle; the L1s' and the L2's clock.
    pub period: Tick,
    /// Instruction caches.
    pub l1i: CacheConfig,
    /// Data caches.
    pub l1d: CacheConfig,
    /// The shared cache, inclusive of all L1s.
    pub l2: CacheConfig,
    /// Between the L1s and the L2.
    pub inner: XbarConfig,
    /// Between the L2 and the memory controllers.
    pub outer: XbarConfig,
    /// DRAM.
    pub dram: DramConfig,
    /// First physical address of the DRAM.
    pub base: u64,
    /// Bytes of DRAM.
    pub size: u64,
    /// Cycles a load-reserved holds its line against snoops, so that a pair makes progress.
    pub reservation_cycles: u32,
}

impl Config {
    /// The machine of the (MC)2 paper's Table I: 8 cores at 4 GHz, 64 KB L1D, 2 MB L2, two channels of DDR4-2400, 3 GB.
    pub fn table1() -> Config {
        let l1 = CacheConfig {
            size: 64 << 10,
            ways: 2,
            hit_cycles: 2,
            response_cycles: 2,
            mshrs: 4,
            write_buffers: 8,
            replace: Replace::Lru,
            prefetch: Prefetch::Stride { degree: 4 },
        };
        Config {
            cores: 8,
            agents: 1,
            period: 250,
            l1i: CacheConfig { size: 32 << 10, ..l1 },
            l1d: l1,
            l2: CacheConfig {
                size: 2 << 20,
                ways: 8,
                hit_cycles: 20,
                response_cycles: 20,
                mshrs: 20,
                write_buffers: 8,
                ..l1
            },
            inner: XbarConfig { period: 250, width: 32, latency: [1, 1, 1, 1], credits: [32, 16, 16, 32] },
            outer: XbarConfig { period: 1000, width: 16, latency: [7, 7, 4, 2], credits: [64, 128, 8, 32] },
            dram: DramConfig {
                channels: 2,
                ranks: 2,
                bank_groups: 4,
                banks: 4,
                row_bytes: 8192,
                timing: DramTiming::ddr4_2400_gem5(),
                map: AddressMap::RoRaBaCoCh,
                channel_xor: 20,
                read_queue: 64,
                write_queue: 128,
                write_high: 85,
                write_low: 50,
                writes_min: 16,
                row_accesses_max: 16,
                frontend: 10_000,
                backend: 10_000,
            },
            base: 0x8000_0000,
            size: 3 << 30,
            reservation_cycles: 64,
        }
    }

    /// A Rocket-like machine: one core at 1 GHz, 16 KB 4-way L1s, 512 KB L2, one channel of DDR4-2400, no prefetch.
    pub fn rocket() -> Config {
        let table1 = Config::table1();
        let l1 = CacheConfig {
            size: 16 << 10,
            ways: 4,
            hit_cycles: 2,
            response_cycles: 1,
            mshrs: 2,
            write_buffers: 4,
            replace: Replace::TreePlru,
            prefetch: Prefetch::None,
        };
        Config {
            cores: 1,
            period: 1000,
            l1i: l1,
            l1d: l1,
            l2: CacheConfig { size: 512 << 10, ways: 8, hit_cycles: 10, response_cycles: 4, mshrs: 7, ..l1 },
            inner: XbarConfig { period: 1000, width: 16, ..table1.inner },
            outer: XbarConfig { period: 1000, width: 16, latency: [2, 2, 1, 2], ..table1.outer },
            dram: DramConfig { channels: 1, ranks: 1, channel_xor: 0, timing: DramTiming::ddr4_2400u(), ..table1.dram },
            size: 1 << 30,
            ..table1
        }
    }

    /// Says what makes no sense, and what would.
    pub fn check(&self) -> Result<(), String> {
        let ports = self.cores * 2 + self.agents;
        if self.cores == 0 || ports > 62 {
            return Err(format!("{} cores and {} agents: the directory names 1 to 62 caches", self.cores, self.agents));
        }
        for (name, c) in [("l1i", &self.l1i), ("l1d", &self.l1d), ("l2", &self.l2)] {
            if c.ways == 0 || c.ways > 64 {
                return Err(format!("{name}: {} ways; 1 to 64 are possible", c.ways));
            }
            let sets = c.size / 64 / c.ways;
            if sets == 0 || !sets.is_power_of_two() || sets * c.ways * 64 != c.size {
                return Err(format!("{name}: {} bytes in {} ways is no power of two of sets", c.size, c.ways));
            }
            if c.mshrs == 0 || c.mshrs > 64 || c.write_buffers == 0 || c.write_buffers > 64 {
                return Err(format!("{name}: mshrs and write_buffers must be 1 to 64"));
            }
            if c.replace == Replace::TreePlru && !c.ways.is_power_of_two() {
                return Err(format!("{name}: tree-plru needs a power of two of ways, not {}", c.ways));
            }
            if matches!(c.prefetch, Prefetch::Stride { degree } if degree == 0 || degree > 8) {
                return Err(format!("{name}: a stride prefetcher's degree is 1 to 8"));
            }
        }
        for (name, x) in [("inner", &self.inner), ("outer", &self.outer)] {
            if x.period == 0 || x.width == 0 || x.credits.contains(&0) {
                return Err(format!("{name}: period, width and every credit must be at least 1"));
            }
        }
        self.check_dram()
    }

    fn check_dram(&self) -> Result<(), String> {
        let d = &self.dram;
        let powers = [d.channels, d.ranks, d.bank_groups, d.banks, d.row_bytes / 64];
        if powers.iter().any(|n| !n.is_power_of_two()) {
            return Err("dram: channels, ranks, bank_groups, banks and row_bytes / 64 must be powers of two".into());
        }
        if d.channels > 8 || d.ranks > 4 || d.bank_groups > 4 || d.bank_groups * d.banks > 16 {
            return Err("dram: at most 8 channels of 4 ranks of 4 bank groups, 16 banks a rank".into());
        }
        if d.read_queue == 0 || d.write_queue < 2 || d.write_low >= d.write_high || d.write_high > 100 {
            return Err("dram: read_queue >= 1, write_queue >= 2, write_low < write_high <= 100".into());
        }
        let t = &d.timing;
        if t.tck == 0 || t.burst == 0 || t.ccd_s < t.burst || t.refi <= t.rfc + t.rc() {
            return Err("dram.timing: tck, burst >= 1, ccd_s >= burst and refi > rfc + rc".into());
        }
        if self.period == 0
            || self.size < (1 << 16)
            || !self.size.is_multiple_of(4096)
            || !self.base.is_multiple_of(4096)
        {
            return Err("period >= 1; base and size in whole pages, size at least 64 KB".into());
        }
        Ok(())
    }
}
