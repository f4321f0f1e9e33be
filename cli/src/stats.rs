//! `towpath stats`: the counters of running servers.

use crate::control;
use serde_json::Value;
use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `towpath stats`.
#[derive(clap::Args)]
pub struct Args {
    /// Process of the server; without it every running server of this user
    pid: Option<u32>,
    /// Print a JSON array, one object a server
    #[arg(long)]
    json: bool,
}

/// Prints the counters; fails if no server runs.
pub fn run(args: &Args) -> Result<ExitCode, String> {
    let folder = control::folder()?;
    let sockets = match args.pid {
        Some(pid) => vec![folder.join(format!("{pid}.sock"))],
        None => list(&folder)?,
    };
    let mut found = Vec::new();
    for socket in sockets {
        match read(&socket) {
            Ok(counters) => found.push(counters),
            Err(error) if args.pid.is_some() => {
                return Err(format!("cannot read counters at {}: {error}", socket.display()));
            }
            // Left behind by a server that was killed.
            Err(_) => drop(std::fs::remove_file(&socket)),
        }
    }
    if args.json {
        println!("{}", Value::Array(found));
        return Ok(ExitCode::SUCCESS);
    }
    if found.is_empty() {
        return Err("no server is running; `towpath serve kv` starts one".to_string());
    }
    let text: String = found.iter().map(show).collect();
    // A reader that has seen enough, such as `head`, is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    let mut sockets: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "sock")).collect();
    sockets.sort();
    Ok(sockets)
}

fn read(socket: &Path) -> Result<Value, String> {
    let mut stream = UnixStream::connect(socket).map_err(|e| e.to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(|e| e.to_string())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|e| e.to_string())?;
    serde_json::from_str(&text).map_err(|e| e.to_string())
}

/// One server as a table: section, name, value.
fn show(counters: &Value) -> String {
    let mut text = format!("{} (process {})\n", counters["kind"].as_str().unwrap_or("server"), counters["pid"]);
    section(&mut text, "runtime", &counters["runtime"]);
    for (name, facts) in counters["server"].as_object().into_iter().flatten() {
        section(&mut text, name, facts);
    }
    text
}

fn section(text: &mut String, name: &str, facts: &Value) {
    let Some(facts) = facts.as_object().filter(|f| !f.is_empty()) else { return };
    text.push_str(&format!("  {name}\n"));
    let width = facts.keys().map(String::len).max().unwrap_or(0);
    for (key, value) in facts {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        text.push_str(&format!("    {key:<width$}  {value}\n"));
    }
}
