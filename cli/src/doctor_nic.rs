//! `towpath doctor --nic IFACE`: what an interface allows, tried and not guessed where trying does no harm.

use std::fmt::Write as _;
use std::process::ExitCode;
use towpath_device::link;
use towpath_device::xdp::{ProbeOutcome, XdpMode, probe};

/// Prints what `name` allows. Fails only if there is no such interface.
pub fn run(name: &str) -> Result<ExitCode, String> {
    print!("{}", describe(name)?);
    Ok(ExitCode::SUCCESS)
}

fn describe(name: &str) -> Result<String, String> {
    let index = link::index(name).map_err(|e| e.to_string())?;
    let mut out = format!("{name} (interface {index})\n");
    let or = |what: Result<String, towpath_device::Error>| what.unwrap_or_else(|e| format!("not known ({e})"));
    let mut line = |key: &str, value: String| {
        let _ = writeln!(out, "  {key:<16} {value}");
    };
    line("driver", or(link::driver(name)));
    line("MTU", or(link::mtu(name).map(|mtu| mtu.to_string())));
    let mac = link::mac(name).map(|mac| mac.map(|b| format!("{b:02x}")).join(":"));
    line("address", or(mac));
    line("queues", or(link::queues(name).map(|(rx, tx)| format!("{rx} receive, {tx} transmit"))));
    let checksum = link::tx_checksum_offload(name).map(|on| match on {
        true => "on: whoever receives these frames by AF_XDP on this machine sees unfinished checksums".to_string(),
        false => "off".to_string(),
    });
    line("tx checksum", or(checksum));
    let default_route = carries_default_route(name);
    if default_route {
        line("default route", "leaves here: it may carry your own session, so XDP is not tried on it".to_string());
    }
    for (key, mode) in [("XDP generic", XdpMode::Generic), ("XDP native", XdpMode::Native)] {
        let said = if default_route { "not tried".to_string() } else { said(probe(name, mode)) };
        line(key, said);
    }
    line("capabilities", capabilities());
    let program = std::env::current_exe().map_or("towpath".to_string(), |path| path.display().to_string());
    line("for non-root", format!("setcap {} {program}", SETCAP));
    Ok(out)
}

fn said(outcome: ProbeOutcome) -> String {
    match outcome {
        ProbeOutcome::Works { zero_copy: true } => "works, zero copy".to_string(),
        ProbeOutcome::Works { zero_copy: false } => {
            "works, with the kernel's copy (the driver has no zero copy)".to_string()
        }
        ProbeOutcome::Busy(why) => format!("in use by another program ({why})"),
        ProbeOutcome::Fails(why) => format!("no ({why})"),
    }
}

/// Whether the IPv4 or IPv6 default route leaves through `name`.
fn carries_default_route(name: &str) -> bool {
    let v4 = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let v4 = v4.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        fields.next() == Some(name) && fields.next() == Some("00000000")
    });
    let v6 = std::fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    let v6 = v6.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let unset = fields.first().is_some_and(|f| f.bytes().all(|b| b == b'0'));
        unset && fields.get(1) == Some(&"00") && fields.last() == Some(&name)
    });
    v4 || v6
}

const SETCAP: &str = "cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep";
/// Capabilities by number (linux/capability.h).
const NEEDED: [(&str, u32); 4] = [("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13), ("CAP_IPC_LOCK", 14), ("CAP_BPF", 39)];

/// Whether this process may open every kind of device.
pub fn capabilities() -> String {
    let missing = missing_capabilities();
    if missing.is_empty() { "all that devices need".to_string() } else { format!("missing {}", missing.join(", ")) }
}

fn missing_capabilities() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    NEEDED.iter().filter(|(_, bit)| effective & 1 << bit == 0).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_on_loopback_names_its_facts_and_the_setcap_line() {
        let text = describe("lo").expect("every machine has a loopback");
        for word in ["driver", "MTU", "queues", "XDP generic", "capabilities", "setcap cap_net_raw"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
    }

    #[test]
    fn report_on_an_interface_that_is_not_there_is_an_error() {
        assert!(describe("no-such-if").is_err());
    }
}
