//! What is measured: commands, connections, pipeline depths, value sizes.

/// How the log is kept during a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Log {
    Off,
    /// Every change is on the disk before it is acknowledged.
    Always,
}

/// One measurement.
#[derive(Clone, Copy)]
pub struct Cell {
    /// `set` or `get`.
    pub command: &'static str,
    /// Bytes of a value.
    pub size: usize,
    pub connections: usize,
    /// Requests sent before their replies are read.
    pub pipeline: usize,
    pub requests: usize,
    pub log: Log,
}

impl Cell {
    pub fn name(&self) -> String {
        let log = if self.log == Log::Always { " log always" } else { "" };
        format!("{} {}B c{} P{}{log}", self.command.to_uppercase(), self.size, self.connections, self.pipeline)
    }
}

/// Every cell: enough requests for about half a second each.
pub fn all(log: Log, smoke: bool) -> Vec<Cell> {
    let connections: &[usize] = if smoke { &[4] } else { &[1, 16, 64] };
    let pipelines: &[usize] = if log == Log::Always || smoke { &[1] } else { &[1, 16] };
    let sizes: &[usize] = if log == Log::Always { &[64] } else { &[64, 16384] };
    let commands: &[&str] = if log == Log::Always { &["set"] } else { &["set", "get"] };
    let mut cells = Vec::new();
    for &size in sizes {
        for &pipeline in pipelines {
            for &connections in connections {
                for &command in commands {
                    let base = match (log, size > 1024, pipeline > 1, connections) {
                        _ if smoke => 200,
                        (Log::Always, _, _, 1) => 3_000,
                        (Log::Always, ..) => 12_000,
                        (_, false, false, 1) => 20_000,
                        (_, false, false, _) => 60_000,
                        (_, false, true, _) => 400_000,
                        (_, true, false, 1) => 12_000,
                        (_, true, ..) => 30_000,
                    };
                    cells.push(Cell { command, size, connections, pipeline, requests: base, log });
                }
            }
        }
    }
    cells
}
