//! `towpath demo`: the key-value server beside a private redis-server. The measuring is the benchmark's.

use crate::bench;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Replaces this process by the benchmark in its demo form. Returns only on failure.
pub fn run() -> Result<ExitCode, String> {
    let program = bench::find()?;
    let error = Command::new(&program).args(["kv", "--demo"]).exec();
    Err(format!("cannot start {}: {error}", program.display()))
}
