//! `towpath doctor`: what this machine and its interfaces allow.

use crate::doctor_nic;
use std::process::ExitCode;

/// Say what this machine allows, and what to do about what it does not
#[derive(clap::Args)]
pub struct Args {
    /// Look at one network interface: driver, queues, XDP modes, MTU, zero copy, capabilities
    #[arg(long, value_name = "IFACE")]
    nic: Option<String>,
}

/// Looks.
pub fn run(args: &Args) -> Result<ExitCode, String> {
    if let Some(name) = &args.nic {
        return doctor_nic::run(name);
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!("kernel            {}", kernel.trim());
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!("processors        {cores}{}", if cores < 2 { " (two ends that spin need two)" } else { "" });
    let tun = std::path::Path::new("/dev/net/tun").exists();
    println!("tap               {}", if tun { "/dev/net/tun is there" } else { "no /dev/net/tun: modprobe tun" });
    println!("capabilities      {}", doctor_nic::capabilities());
    println!("\n`towpath doctor --nic IFACE` looks at one interface.");
    Ok(ExitCode::SUCCESS)
}
