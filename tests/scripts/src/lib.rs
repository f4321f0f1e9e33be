//! Runs scripts in the packetdrill language against the stack in simulated time: packets in, packets expected out, and
//! socket calls, each at a time.
//!
//! What of the language is understood: `+t`, `t`, `t~u`, `*` times; packets `<` and `>` with `[ect0]`/`[ce]`, the flags
//! `SFRP.UEW`, `seq:end(len)`, `ack`, `win` and options; `icmp` unreachable and too-big packets in; the calls `socket`,
//! `bind`, `listen`, `accept`, `connect`, `read`, `write`, `shutdown`, `close`, `setsockopt`, `getsockopt(SO_ERROR)` and
//! `fcntl`; `%{ assert tcpi_... == n }%`; `--name=value` lines that set the stack up. Comments are those of C. Calls do
//! not block. Sequence numbers of the stack are relative to its first, timestamps to the first it sends.
#![forbid(unsafe_code)]

mod parse;
mod run;

pub use parse::{Item, Script, parse};
pub use run::run;

/// Parses and runs a script; the error names the line.
pub fn check(text: &str) -> Result<(), String> {
    run(&parse(text)?)
}
