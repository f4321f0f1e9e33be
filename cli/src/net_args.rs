//! The flags of the library OS `inet`, shared by all servers.

use std::time::Duration;
use towpath_libos::{Cidr, FaultConfig, NetConfig, Route, XdpMode, parse_cidr, parse_route};

/// Network of our own (only with --libos inet@...)
#[derive(clap::Args)]
#[command(next_help_heading = "Network of inet@shm, inet@tap, inet@packet, inet@xdp")]
pub struct NetArgs {
    /// The interface; for inet@shm the path of the socket where the two processes meet
    #[arg(long, value_name = "NAME", env = "TOWPATH_DEVICE")]
    device: Option<String>,
    /// An address of ours with its prefix length, such as 10.77.0.1/24; may be given several times
    #[arg(long, value_name = "CIDR", value_parser = parse_cidr, env = "TOWPATH_ADDRESS", value_delimiter = ',')]
    address: Vec<Cidr>,
    /// A way beyond the link: NETWORK/LEN=GATEWAY or default=GATEWAY; may be given several times
    #[arg(long, value_name = "ROUTE", value_parser = parse_route, env = "TOWPATH_ROUTE", value_delimiter = ',')]
    route: Vec<Route>,
    /// Bytes of the largest IP packet, if smaller than the link's
    #[arg(long, value_name = "BYTES", env = "TOWPATH_MTU")]
    mtu: Option<u16>,
    /// The network namespace the interface is in
    #[arg(long, value_name = "NAME", env = "TOWPATH_NETNS")]
    netns: Option<String>,
    /// Receive queue of an inet@xdp interface
    #[arg(long, default_value_t = 0, env = "TOWPATH_QUEUE")]
    queue: u32,
    /// Where the XDP program runs: native or generic; the better one that works if not given
    #[arg(long, value_parser = parse_mode, env = "TOWPATH_XDP_MODE")]
    xdp_mode: Option<XdpMode>,
    /// Finish checksums and cut packets here although the device would
    #[arg(long, env = "TOWPATH_NO_OFFLOADS")]
    no_offloads: bool,
    /// Write every frame to this pcapng file, for Wireshark
    #[arg(long, value_name = "FILE", env = "TOWPATH_CAPTURE")]
    capture: Option<std::path::PathBuf>,
    /// Put faults before the device, such as lose=0.01,corrupt=0.001,duplicate=0.01,reorder=0.01,delay=5ms,seed=7
    #[arg(long, value_name = "FAULTS", value_parser = parse_fault, env = "TOWPATH_FAULT")]
    fault: Option<FaultConfig>,
}

impl NetArgs {
    /// As the runtime wants them.
    pub fn config(&self) -> NetConfig {
        NetConfig {
            device: self.device.clone().unwrap_or_default(),
            addresses: self.address.clone(),
            routes: self.route.clone(),
            mtu: self.mtu,
            mac: None,
            namespace: self.netns.clone(),
            queue: self.queue,
            xdp_mode: self.xdp_mode,
            no_offloads: self.no_offloads,
            capture: self.capture.clone(),
            fault: self.fault,
        }
    }
}

fn parse_mode(text: &str) -> Result<XdpMode, String> {
    match text {
        "native" => Ok(XdpMode::Native),
        "generic" => Ok(XdpMode::Generic),
        _ => Err("there are native and generic".to_string()),
    }
}

fn parse_fault(text: &str) -> Result<FaultConfig, String> {
    let mut fault = FaultConfig::default();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
        let chance = || -> Result<u32, String> {
            let chance: f64 = value.parse().map_err(|_| format!("{value:?} is no probability"))?;
            if (0.0..=1.0).contains(&chance) {
                Ok((chance * 1e6).round() as u32)
            } else {
                Err(format!("{value} is not 0 to 1"))
            }
        };
        match key {
            "lose" => fault.lose_ppm = chance()?,
            "corrupt" => fault.corrupt_ppm = chance()?,
            "duplicate" => fault.duplicate_ppm = chance()?,
            "truncate" => fault.truncate_ppm = chance()?,
            "reorder" => {
                fault.reorder_ppm = chance()?;
                fault.reorder_ns = 1_000_000;
            }
            "delay" => fault.delay_ns = parse_time(value)?.as_nanos() as u64,
            "jitter" => fault.jitter_ns = parse_time(value)?.as_nanos() as u64,
            "rate" => fault.rate_bps = value.parse().map_err(|_| format!("{value:?} is no number of bits a second"))?,
            "seed" => fault.seed = value.parse().map_err(|_| format!("{value:?} is no seed"))?,
            _ => {
                return Err(format!(
                    "{key:?} is no fault; there are lose, corrupt, duplicate, truncate, reorder, delay, jitter, rate and seed"
                ));
            }
        }
    }
    Ok(fault)
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time such as 5ms or 200us");
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match unit {
        "s" => Ok(Duration::from_secs(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "us" => Ok(Duration::from_micros(number)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_written_as_text_become_numbers_and_nonsense_is_refused() {
        let fault = parse_fault("lose=0.01,delay=5ms,seed=7").unwrap();
        assert_eq!((fault.lose_ppm, fault.delay_ns, fault.seed), (10_000, 5_000_000, 7));
        for bad in ["", "lose", "lose=2", "lose=-1", "delay=5", "delay=5h", "explode=1"] {
            assert!(parse_fault(bad).is_err(), "{bad:?}");
        }
    }
}
