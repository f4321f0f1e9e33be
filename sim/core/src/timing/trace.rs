//! A pipeline trace in the Kanata format, which the viewer Konata opens.

use std::fmt::Write;
use towpath_isa::Uop;

/// Collects instructions; [`Trace::text`] writes them in the order of cycles, as the format demands.
#[derive(Default)]
pub struct Trace {
    lines: Vec<(u64, u32, String)>,
    count: u64,
    retired: u64,
    limit: u64,
}

impl Trace {
    /// A trace of the first `limit` instructions.
    pub fn new(limit: u64) -> Trace {
        Trace { limit, ..Trace::default() }
    }

    pub(crate) fn instruction(&mut self, pc: u64, uop: &Uop, stages: &[(&str, u64)], end: u64, retired: bool) {
        if self.count == self.limit {
            return;
        }
        let id = self.count;
        self.count += 1;
        let Some(&(_, first)) = stages.first() else { return };
        let mut line = |cycle: u64, rank: u32, text: String| self.lines.push((cycle, rank, text));
        line(first, 0, format!("I\t{id}\t{id}\t0"));
        line(first, 1, format!("L\t{id}\t0\t{pc:x}: {uop}"));
        for (name, cycle) in stages {
            line(*cycle, 2, format!("S\t{id}\t0\t{name}"));
        }
        line(end, 3, format!("R\t{id}\t{}\t{}", self.retired, u8::from(!retired)));
        self.retired += u64::from(retired);
    }

    /// The whole trace.
    pub fn text(&self) -> String {
        let mut order: Vec<usize> = (0..self.lines.len()).collect();
        order.sort_by_key(|&k| (self.lines[k].0, self.lines[k].1, k));
        let mut out = String::from("Kanata\t0004\n");
        let mut now = order.first().map_or(0, |&k| self.lines[k].0);
        let _infallible = writeln!(out, "C=\t{now}");
        for k in order {
            let (cycle, _, text) = &self.lines[k];
            if *cycle > now {
                let _infallible = writeln!(out, "C\t{}", cycle - now);
                now = *cycle;
            }
            let _infallible = writeln!(out, "{text}");
        }
        out
    }
}
