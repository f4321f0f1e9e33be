//! `INFO`, and the same counters as JSON for `towpath stats`.

use super::{Cx, Outcome, TABLE};
use crate::resp::Args;
use crate::state::State;
use crate::store::DATABASES;
use std::fmt::Write;

/// The version of Redis whose behaviour and error texts are followed; clients choose features by it.
pub const REDIS_VERSION: &str = "7.0.15";

const SECTIONS: [&str; 9] =
    ["Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "CPU", "Commandstats", "Keyspace"];

pub fn info(cx: &mut Cx<'_>, args: &Args<'_>) -> Outcome {
    let wanted = |section: &str| {
        if args.len() == 1 {
            return section != "Commandstats";
        }
        (1..args.len()).any(|i| {
            args.is(i, section) || args.is(i, "all") || args.is(i, "everything") || {
                args.is(i, "default") && section != "Commandstats"
            }
        })
    };
    let mut text = String::new();
    for section in SECTIONS {
        if wanted(section) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {section}\r\n");
            for (name, value) in facts(cx.state, section) {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
    }
    cx.reply.verbatim(&text);
    Ok(())
}

type Facts = Vec<(String, String)>;

fn facts(state: &State, section: &str) -> Facts {
    match section {
        "Server" => server(state),
        "Clients" => clients(state),
        "Memory" => memory(state),
        "Persistence" => persistence(state),
        "Stats" => stats(state),
        "Replication" => list([("role", "master"), ("connected_slaves", "0")]),
        "CPU" => cpu(),
        "Commandstats" => command_stats(state),
        _ => keyspace(state),
    }
}

fn list<const N: usize, V: ToString>(pairs: [(&str, V); N]) -> Facts {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn server(state: &State) -> Facts {
    let uptime = state.store.now.saturating_sub(state.started) / 1000;
    list([
        ("redis_version", REDIS_VERSION.to_string()),
        ("towpath_version", env!("CARGO_PKG_VERSION").to_string()),
        ("redis_mode", "standalone".to_string()),
        ("os", std::env::consts::OS.to_string()),
        ("arch_bits", usize::BITS.to_string()),
        ("process_id", std::process::id().to_string()),
        ("run_id", state.run_id.clone()),
        ("tcp_port", state.config.port.to_string()),
        ("uptime_in_seconds", uptime.to_string()),
        ("uptime_in_days", (uptime / 86400).to_string()),
    ])
}

fn clients(state: &State) -> Facts {
    let held: (usize, usize) = state.peers.values().map(|p| p.held.get()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    list([
        ("connected_clients", state.peers.len()),
        ("maxclients", state.config.maxclients),
        ("client_input_held_bytes", held.0),
        ("client_output_held_bytes", held.1),
        ("blocked_clients", 0),
    ])
}

fn memory(state: &State) -> Facts {
    let used = state.store.used();
    let resident = resident_bytes().unwrap_or(0);
    list([
        ("used_memory", used.to_string()),
        ("used_memory_human", human(used as u64)),
        ("used_memory_rss", resident.to_string()),
        ("used_memory_dataset", used.to_string()),
        ("maxmemory", state.config.maxmemory.to_string()),
        ("maxmemory_human", human(state.config.maxmemory)),
        ("maxmemory_policy", state.config.maxmemory_policy.name().to_string()),
        ("copied_bytes", towpath_cbuf::counters::copied_bytes().to_string()),
    ])
}

/// Resident memory of this process, if the system says.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    statm.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

fn human(bytes: u64) -> String {
    let units = [(1u64 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match units.iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{:.2}{unit}", bytes as f64 / *size as f64),
        None => format!("{bytes}B"),
    }
}

fn persistence(state: &State) -> Facts {
    let mut facts = list([
        ("loading", u8::from(state.store.loading).to_string()),
        ("rdb_bgsave_in_progress", "0".to_string()),
        ("rdb_last_save_time", state.last_save.to_string()),
        ("aof_enabled", u8::from(state.log.is_some()).to_string()),
    ]);
    if let Some(log) = &state.log {
        let ok = |good: bool| if good { "ok" } else { "err" };
        facts.extend(list([
            ("aof_rewrite_in_progress", u8::from(log.rewriting).to_string()),
            ("aof_rewrite_scheduled", u8::from(log.rewrite_wanted).to_string()),
            ("aof_last_bgrewrite_status", ok(log.rewrite_ok).to_string()),
            ("aof_last_write_status", ok(log.failure.is_none()).to_string()),
            ("aof_current_size", log.file_size.to_string()),
            ("aof_base_size", log.base_size.to_string()),
            ("aof_buffer_length", log.waiting_bytes().to_string()),
            ("aof_syncs", log.syncs.to_string()),
        ]));
    }
    facts
}

fn stats(state: &State) -> Facts {
    let (totals, counts) = (&state.totals, &state.store.counts);
    list([
        ("total_connections_received", totals.connections),
        ("total_commands_processed", totals.commands),
        ("total_net_input_bytes", totals.read_bytes),
        ("total_net_output_bytes", totals.written_bytes),
        ("total_reply_batches", totals.batches),
        ("total_error_replies", totals.errors),
        ("rejected_connections", totals.rejected),
        ("expired_keys", counts.expired),
        ("evicted_keys", counts.evicted),
        ("keyspace_hits", counts.hits),
        ("keyspace_misses", counts.misses),
    ])
}

/// Processor time of this process in seconds, from `/proc/self/stat` (ticks of 10 ms).
fn cpu() -> Facts {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let seconds = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0) as f64 / 100.0;
    list([("used_cpu_sys", format!("{:.6}", seconds(12))), ("used_cpu_user", format!("{:.6}", seconds(11)))])
}

fn command_stats(state: &State) -> Facts {
    let called = TABLE.iter().zip(&state.calls).filter(|(_, calls)| **calls > 0);
    called.map(|(spec, calls)| (format!("cmdstat_{}", spec.name), format!("calls={calls}"))).collect()
}

fn keyspace(state: &State) -> Facts {
    let filled = (0..DATABASES).filter(|&db| state.store.len(db) > 0);
    let show = |db: usize| format!("keys={},expires={},avg_ttl=0", state.store.len(db), state.store.ending(db));
    filled.map(|db| (format!("db{db}"), show(db))).collect()
}

/// The counters as one JSON object: section, then name, then number or text.
pub fn stats_json(state: &State) -> String {
    let mut text = String::from("{");
    for (i, section) in SECTIONS.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(text, "{comma}\"{}\":{{", section.to_lowercase());
        for (j, (name, value)) in facts(state, section).iter().enumerate() {
            let comma = if j > 0 { "," } else { "" };
            match value.parse::<f64>() {
                Ok(number) if number.is_finite() && !value.starts_with(['+', '.']) => {
                    let _ = write!(text, "{comma}\"{name}\":{value}");
                }
                _ => {
                    let _ = write!(text, "{comma}\"{name}\":\"{}\"", value.replace(['"', '\\', '\r', '\n'], "?"));
                }
            }
        }
        text.push('}');
    }
    text.push('}');
    text
}
