//! What a timing core is made of.

use serde::{Deserialize, Serialize};

/// Which core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoreKind {
    /// Five stages in order.
    InOrder,
    /// Out of order.
    OutOfOrder,
}

/// In which order, and how many at a time, stores leave the store buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreOrder {
    /// In order, the next only after the last is visible (gem5's x86).
    OneInFlight,
    /// In order, lines fetched for ownership ahead (Ztso).
    Ztso,
    /// Any order but per line (RVWMO).
    Rvwmo,
}

/// Cycles from operands to result, by kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "named after the classes of operations")]
pub struct Latencies {
    pub alu: u32,
    pub mul: u32,
    pub div: u32,
    pub fp_alu: u32,
    pub fp_mul: u32,
    pub fp_div: u32,
    pub mmio: u32,
}

/// One core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreConfig {
    /// Which pipeline.
    pub kind: CoreKind,
    /// Instructions fetched, renamed and committed a cycle (1 in order).
    pub width: u32,
    /// Cycles from fetch to rename.
    pub front_cycles: u32,
    /// Reorder buffer.
    pub rob: u32,
    /// Issue queue.
    pub issue_queue: u32,
    /// Load queue.
    pub load_queue: u32,
    /// Store queue, the store buffer included.
    pub store_queue: u32,
    /// Memory operations issued a cycle.
    pub memory_ports: u32,
    /// Loads under way at a time in order; 1 blocks on a miss.
    pub loads_in_flight: u32,
    /// Store order.
    pub store_order: StoreOrder,
    /// Translations held for instructions and for data, each.
    pub tlb: u32,
    /// Cycles lost by a mispredicted branch beyond its resolution.
    pub mispredict_cycles: u32,
    /// Entries of the branch predictor's tables, a power of two.
    pub predictor: u32,
    /// Entries of the branch target buffer, a power of two.
    pub btb: u32,
    /// Latencies.
    pub latency: Latencies,
}

impl CoreConfig {
    /// The out-of-order core of the (MC)2 paper's machine: 8 wide, 192 ROB, 64 queue entries, one store in flight.
    pub fn table1() -> CoreConfig {
        CoreConfig {
            kind: CoreKind::OutOfOrder,
            width: 8,
            front_cycles: 5,
            rob: 192,
            issue_queue: 64,
            load_queue: 64,
            store_queue: 64,
            memory_ports: 4,
            loads_in_flight: 16,
            store_order: StoreOrder::OneInFlight,
            tlb: 1024,
            mispredict_cycles: 1,
            predictor: 8192,
            btb: 4096,
            latency: Latencies { alu: 1, mul: 3, div: 20, fp_alu: 2, fp_mul: 4, fp_div: 12, mmio: 40 },
        }
    }

    /// A Rocket-like core: five stages, one instruction a cycle, three cycles of mispredict, small predictors.
    pub fn rocket() -> CoreConfig {
        CoreConfig {
            kind: CoreKind::InOrder,
            width: 1,
            front_cycles: 2,
            rob: 1,
            issue_queue: 1,
            load_queue: 2,
            store_queue: 8,
            memory_ports: 1,
            loads_in_flight: 2,
            store_order: StoreOrder::Rvwmo,
            tlb: 32,
            mispredict_cycles: 3,
            predictor: 512,
            btb: 32,
            latency: Latencies { alu: 1, mul: 4, div: 33, fp_alu: 4, fp_mul: 4, fp_div: 25, mmio: 20 },
        }
    }

    /// Says what makes no sense.
    pub fn check(&self) -> Result<(), String> {
        if self.width == 0 || self.width > 16 || self.memory_ports == 0 {
            return Err(format!(
                "core: width is 1 to 16 and memory_ports at least 1, not {} and {}",
                self.width, self.memory_ports
            ));
        }
        for (name, n, most) in [
            ("rob", self.rob, 1024),
            ("issue_queue", self.issue_queue, 512),
            ("load_queue", self.load_queue, 512),
            ("store_queue", self.store_queue, 512),
            ("loads_in_flight", self.loads_in_flight, 64),
        ] {
            if n == 0 || n > most {
                return Err(format!("core: {name} is 1 to {most}, not {n}"));
            }
        }
        if self.tlb < 4
            || !self.tlb.is_power_of_two()
            || !self.predictor.is_power_of_two()
            || !self.btb.is_power_of_two()
        {
            return Err("core: tlb (at least 4), predictor and btb are powers of two".into());
        }
        Ok(())
    }
}
