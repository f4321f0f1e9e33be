//! `towpath doctor`: what this machine offers, which library OS and device each thing enables, and the command that
//! would enable what is missing. Everything is tried where trying does no harm; nothing is changed.

mod probe;

use crate::doctor_nic;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Say what this machine allows, and what to do about what it does not
#[derive(clap::Args)]
pub struct Args {
    /// Look at one network interface: driver, queues, XDP modes, MTU, zero copy, capabilities
    #[arg(long, value_name = "IFACE")]
    nic: Option<String>,
    /// Print one JSON object instead of a table
    #[arg(long, conflicts_with = "nic")]
    json: bool,
}

/// One thing a machine may offer.
pub struct Finding {
    /// What it is.
    pub name: &'static str,
    /// Whether it can be used now.
    pub there: bool,
    /// What was found.
    pub detail: String,
    /// Library OSes and devices that use it, or what it is good for.
    pub enables: &'static str,
    /// The command that would enable it, where it is missing.
    pub remedy: Option<&'static str>,
}

/// Looks.
pub fn run(args: &Args) -> Result<ExitCode, String> {
    if let Some(name) = &args.nic {
        return doctor_nic::run(name);
    }
    let findings = probe::all();
    if args.json {
        println!("{}", as_json(&findings));
    } else {
        print_table(&findings);
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(findings: &[Finding]) -> Value {
    let found: Vec<Value> = findings
        .iter()
        .map(|f| {
            json!({ "name": f.name, "there": f.there, "detail": f.detail, "enables": f.enables, "remedy": f.remedy })
        })
        .collect();
    json!({ "machine": probe::machine(), "capabilities": doctor_nic::capabilities(), "findings": found })
}

fn print_table(findings: &[Finding]) {
    println!("{}", probe::machine());
    println!("capabilities: {}\n", doctor_nic::capabilities());
    let width = findings.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for f in findings {
        let mark = if f.there { "yes" } else { "no " };
        println!("  {mark} {:<width$}  {}", f.name, f.detail);
        println!("      {:<width$}  for {}", "", f.enables);
        if let (false, Some(remedy)) = (f.there, f.remedy) {
            println!("      {:<width$}  to enable: {remedy}", "");
        }
    }
    println!("\n`towpath doctor --nic IFACE` looks at one network interface.");
}
