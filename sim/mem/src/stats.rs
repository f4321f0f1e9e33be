//! Counters of all parts with their names, units and descriptions.

use crate::l1::L1Stats;
use crate::system::System;
use serde::Serialize;

/// One published counter.
#[derive(Clone, Debug, Serialize)]
pub struct Stat {
    /// Dotted name: part, then counter.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What it counts.
    pub description: &'static str,
}

fn push(out: &mut Vec<Stat>, part: &str, name: &str, value: u64, unit: &'static str, description: &'static str) {
    out.push(Stat { name: format!("{part}.{name}"), value: value as f64, unit, description });
}

fn l1(out: &mut Vec<Stat>, part: &str, s: &L1Stats) {
    push(out, part, "hits", s.hits, "accesses", "accesses answered by the arrays");
    push(out, part, "misses", s.misses, "accesses", "accesses that opened an MSHR");
    push(out, part, "merged", s.merged, "accesses", "accesses that joined an MSHR");
    push(out, part, "refused", s.refused, "accesses", "accesses turned away for want of an MSHR or a target");
    push(out, part, "prefetches", s.prefetches, "lines", "prefetches sent");
    push(out, part, "prefetch_hits", s.prefetch_hits, "lines", "prefetches that a later access joined");
    push(out, part, "write_backs", s.write_backs, "lines", "modified lines written back");
    push(out, part, "snoops", s.snoops, "messages", "snoops answered");
}

impl System {
    /// Every counter of the memory.
    pub fn stats(&self) -> Vec<Stat> {
        let mut out = Vec::new();
        for (port, cache) in self.l1.iter().enumerate() {
            let part = if port >= self.config.cores as usize * 2 {
                format!("agent{}", port - self.config.cores as usize * 2)
            } else {
                format!("core{}.{}", port / 2, if port % 2 == 0 { "l1d" } else { "l1i" })
            };
            l1(&mut out, &part, &cache.stats);
        }
        let h = &self.home.stats;
        push(&mut out, "l2", "hits", h.hits, "requests", "requests that found their line");
        push(&mut out, "l2", "misses", h.misses, "requests", "requests that went to memory");
        push(&mut out, "l2", "conflicts", h.conflicts, "requests", "requests that waited for a busy line");
        push(&mut out, "l2", "stalls", h.stalls, "requests", "requests that waited for an MSHR, a way or a buffer");
        push(&mut out, "l2", "snoops", h.snoops, "messages", "snoops sent to L1s");
        push(&mut out, "l2", "recalls", h.recalls, "lines", "lines recalled from L1s to make room");
        push(&mut out, "l2", "write_backs", h.write_backs, "lines", "dirty lines written to memory");
        push(&mut out, "l2", "prefetches", h.prefetches, "lines", "prefetches sent");
        push(&mut out, "l2", "prefetch_hits", h.prefetch_hits, "lines", "prefetched lines used");
        for (k, channel) in self.channels.iter().enumerate() {
            let (part, s) = (format!("dram{k}"), &channel.stats);
            push(&mut out, &part, "reads", s.reads, "bursts", "read bursts");
            push(&mut out, &part, "writes", s.writes, "bursts", "write bursts");
            push(&mut out, &part, "activates", s.activates, "rows", "rows opened");
            push(&mut out, &part, "forwarded", s.forwarded, "reads", "reads answered from the write queue");
            push(&mut out, &part, "coalesced", s.coalesced, "writes", "writes merged into a queued one");
            push(&mut out, &part, "refreshes", s.refreshes, "commands", "refreshes");
            push(&mut out, &part, "drains", s.drains, "turns", "turns from reads to writes");
            push(
                &mut out,
                &part,
                "bus_busy",
                s.bus_clocks * self.config.dram.timing.tck,
                "ps",
                "time the bus held data",
            );
        }
        let (inner, outer) = self.crossbars();
        for (part, x) in [("inner", inner), ("outer", outer)] {
            for (vc, name) in ["requests", "write_backs", "snoops", "responses"].into_iter().enumerate() {
                push(&mut out, part, name, x.messages[vc], "messages", "messages that crossed in this channel");
            }
            push(&mut out, part, "busy", x.busy.iter().sum(), "ps", "time of all layers that carried messages");
        }
        out
    }
}
