//! What a benchmark prints: a table for a person, or one JSON object whose shape is a contract:
//! `{"bench", "commit", "machine", "results": [{"name", "value", "unit", "better", "p99", "min", "max", "n",
//! "baselines": [{"name", "value"}]}], "skipped": [{"name", "why"}]}`; `value` is the median.

use crate::timing::Samples;
use serde::Serialize;

/// Which direction is an improvement.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Lower,
    Higher,
}

/// Another system measured in the same run.
#[derive(Serialize)]
pub struct Baseline {
    pub name: String,
    /// Median, in the row's unit.
    pub value: f64,
}

/// One figure with its spread and its baselines.
#[derive(Serialize)]
pub struct Row {
    pub name: String,
    pub value: f64,
    pub unit: String,
    pub better: Better,
    pub p99: f64,
    pub min: f64,
    pub max: f64,
    pub n: usize,
    pub baselines: Vec<Baseline>,
}

/// A part that could not run here, and why.
#[derive(Serialize)]
pub struct Skipped {
    pub name: String,
    pub why: String,
}

/// Everything one `towpath bench NAME` has to say.
#[derive(Serialize)]
pub struct Report {
    pub bench: String,
    pub commit: String,
    pub machine: String,
    pub results: Vec<Row>,
    pub skipped: Vec<Skipped>,
    /// The closing sentence for a person: what the numbers mean.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub meaning: String,
}

impl Row {
    /// A row from the samples of the contender and of its baselines; medians throughout.
    pub fn from_samples(name: &str, unit: &str, better: Better, ours: &Samples, others: &[Samples]) -> Row {
        let sorted = sorted(&ours.values);
        Row {
            name: name.to_string(),
            value: quantile(&sorted, 0.5),
            unit: unit.to_string(),
            better,
            p99: quantile(&sorted, 0.99),
            min: quantile(&sorted, 0.0),
            max: quantile(&sorted, 1.0),
            n: sorted.len(),
            baselines: others.iter().map(|s| Baseline { name: s.name.clone(), value: median(&s.values) }).collect(),
        }
    }
}

impl Report {
    /// An empty report of the benchmark `name`, with this machine and this commit filled in.
    pub fn new(name: &str) -> Report {
        Report {
            bench: name.to_string(),
            commit: commit(),
            machine: machine(),
            results: Vec::new(),
            skipped: Vec::new(),
            meaning: String::new(),
        }
    }

    pub fn push(&mut self, row: Row) {
        self.results.push(row);
    }

    /// Records a part that could not run.
    pub fn skip(&mut self, name: &str, why: impl Into<String>) {
        self.skipped.push(Skipped { name: name.to_string(), why: why.into() });
    }

    /// The closing sentence.
    pub fn say(&mut self, meaning: impl Into<String>) {
        self.meaning = meaning.into();
    }

    /// Prints to standard output.
    pub fn print(&self, json: bool) {
        if json {
            println!("{}", serde_json::to_string(self).expect("a report of numbers and strings serialises"));
            return;
        }
        println!("{} on {} ({})", self.bench, self.machine, self.commit);
        let width = self.results.iter().map(|r| r.name.chars().count()).max().unwrap_or(0);
        for row in &self.results {
            print!(
                "  {:<width$}  {:>10} {:<8} [{} .. {}]",
                row.name,
                figure(row.value),
                row.unit,
                figure(row.min),
                figure(row.max)
            );
            for base in &row.baselines {
                let ratio = if base.value != 0.0 { row.value / base.value } else { f64::NAN };
                print!("  {} {} (x{ratio:.2})", base.name, figure(base.value));
            }
            println!();
        }
        for skipped in &self.skipped {
            println!("  skipped {}: {}", skipped.name, skipped.why);
        }
        if !self.meaning.is_empty() {
            println!("{}", self.meaning);
        }
    }
}

/// Median of unsorted values; NaN when there are none.
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    sorted[((sorted.len() - 1) as f64 * q).round() as usize]
}

fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn commit() -> String {
    std::process::Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()
        .filter(|out| out.status.success())
        .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_string())
        .unwrap_or_else(|| "unknown".to_string())
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_string())
        .unwrap_or_else(|| "unknown processor".to_string());
    // Of the machine, not of this thread: the benchmark may have pinned it.
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_count_is_middle_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn report_as_json_keeps_the_contract() {
        let mut report = Report::new("x");
        let ours = Samples { name: "ours".into(), values: vec![1.0, 2.0, 3.0] };
        let other = Samples { name: "other".into(), values: vec![4.0] };
        report.push(Row::from_samples("r", "ns", Better::Lower, &ours, &[other]));
        report.skip("y", "no device");
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        for key in ["bench", "commit", "machine", "results", "skipped"] {
            assert!(json.get(key).is_some(), "{key} missing");
        }
        let row = &json["results"][0];
        assert_eq!(row["value"], 2.0);
        assert_eq!(row["better"], "lower");
        assert_eq!(row["baselines"][0]["name"], "other");
        for key in ["name", "unit", "p99", "min", "max", "n"] {
            assert!(row.get(key).is_some(), "{key} missing");
        }
    }
}
