//! How the library OS `inet` is set up, and the device it opens.

use crate::error::{Error, Result};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use towpath_cbuf::Memory;
use towpath_device::fault::{FaultConfig, FaultDevice};
use towpath_device::link::Namespace;
use towpath_device::packet::{PacketConfig, PacketSocketDevice};
use towpath_device::pcap::CaptureDevice;
use towpath_device::shm::{ShmConfig, ShmDevice};
use towpath_device::tap::{TapConfig, TapDevice};
use towpath_device::xdp::{XdpConfig, XdpDevice};
use towpath_device::{AnyDevice, PacketDevice};

pub use towpath_device::xdp::XdpMode;
pub use towpath_inet::{Cidr, Route};

/// The kinds of device the network stack runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetDevice {
    /// Shared memory with another Towpath process; the device's name is the path of the socket where they meet.
    Shm,
    /// A tap interface.
    Tap,
    /// A packet socket on an interface.
    Packet,
    /// An AF_XDP socket on an interface.
    Xdp,
}

impl NetDevice {
    /// The name of the library OS on this device, as on the command line.
    pub fn libos(self) -> &'static str {
        match self {
            NetDevice::Shm => "inet@shm",
            NetDevice::Tap => "inet@tap",
            NetDevice::Packet => "inet@packet",
            NetDevice::Xdp => "inet@xdp",
        }
    }
}

impl fmt::Display for NetDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.libos())
    }
}

impl FromStr for NetDevice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<NetDevice, String> {
        [NetDevice::Shm, NetDevice::Tap, NetDevice::Packet, NetDevice::Xdp]
            .into_iter()
            .find(|device| device.libos() == text)
            .ok_or_else(|| format!("{text:?} is no device; there are inet@shm, inet@tap, inet@packet and inet@xdp"))
    }
}

/// What the network stack and its device are started with; used by the library OS `inet` only.
#[derive(Debug, Clone, Default)]
pub struct NetConfig {
    /// The interface, or for `shm` the path of the socket where the two processes meet.
    pub device: String,
    /// Our addresses.
    pub addresses: Vec<Cidr>,
    /// Ways beyond the link.
    pub routes: Vec<Route>,
    /// Bytes of the largest IP packet, if smaller than the link's.
    pub mtu: Option<u16>,
    /// Station address instead of the device's.
    pub mac: Option<[u8; 6]>,
    /// The network namespace (as `ip netns` names it) the device is in.
    pub namespace: Option<String>,
    /// Receive queue of an XDP device.
    pub queue: u32,
    /// Where the XDP program runs; the best that works if not given.
    pub xdp_mode: Option<XdpMode>,
    /// Finish checksums and cut packets here, although the device would.
    pub no_offloads: bool,
    /// A pcapng file that every frame is written to as it passes.
    pub capture: Option<std::path::PathBuf>,
    /// Faults put before the device.
    pub fault: Option<FaultConfig>,
}

impl NetConfig {
    /// Opens the device.
    pub(crate) fn open(&self, kind: NetDevice, memory: &Memory) -> Result<AnyDevice> {
        let failed = |error: towpath_device::Error| Error::Device {
            device: format!("{kind} {}", self.device).into(),
            why: error.to_string().into(),
        };
        let _there = self.namespace.as_deref().map(Namespace::enter).transpose().map_err(failed)?;
        let name = self.device.as_str();
        let device = match kind {
            NetDevice::Shm => {
                let mtu = self.mtu.map_or(65_535, u32::from);
                let config = ShmConfig { mac: self.mac, mtu, ..ShmConfig::default() };
                ShmDevice::open(Path::new(name), memory, config).map(|d| AnyDevice::Shm(Box::new(d)))
            }
            NetDevice::Tap => {
                let config = TapConfig { mac: self.mac, offloads: !self.no_offloads, ..TapConfig::default() };
                TapDevice::open(name, memory, config).map(|d| AnyDevice::Tap(Box::new(d)))
            }
            NetDevice::Packet => {
                let config = PacketConfig { offloads: !self.no_offloads, ..PacketConfig::default() };
                PacketSocketDevice::open(name, memory, config).map(|d| AnyDevice::Packet(Box::new(d)))
            }
            NetDevice::Xdp => {
                let config = XdpConfig { mode: self.xdp_mode, queue: self.queue, ..XdpConfig::default() };
                XdpDevice::open(name, memory, config).map(|d| AnyDevice::Xdp(Box::new(d)))
            }
        };
        let mut device = device.map_err(failed)?;
        if let Some(path) = &self.capture {
            device = AnyDevice::Capture(Box::new(CaptureDevice::new(device, path).map_err(failed)?));
        }
        Ok(match self.fault {
            Some(fault) => AnyDevice::Fault(Box::new(FaultDevice::new(device, memory, fault))),
            None => device,
        })
    }

    /// The stack's settings on a device.
    pub(crate) fn stack(&self, device: &AnyDevice) -> Result<towpath_inet::Config> {
        let link = device.link();
        let mac = self.mac.unwrap_or(link.mac);
        let mut config = towpath_inet::Config::new(towpath_inet::Mac(mac), seed()?);
        let mtu = link.mtu.min(65_535) as u16;
        config.mtu = self.mtu.map_or(mtu, |wanted| wanted.min(mtu));
        config.addresses.clone_from(&self.addresses);
        config.routes.clone_from(&self.routes);
        let offloads = link.offloads;
        let segments = offloads.tso4 && offloads.tso6 && !self.no_offloads;
        config.offload = towpath_inet::Offload {
            checksum: offloads.tx_checksum && !self.no_offloads,
            segment_bytes: if segments { 60_000 } else { 0 },
        };
        Ok(config)
    }
}

/// Secrets from the system, which everything random in the stack grows from.
fn seed() -> Result<[u64; 4]> {
    let mut seed = [0u64; 4];
    // SAFETY: pointer and length describe the array, which outlives the call.
    let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), size_of_val(&seed), 0) };
    if got == size_of_val(&seed) as isize { Ok(seed) } else { Err(Error::os("getrandom", libc::EIO)) }
}

/// Reads `10.0.0.1/24` or `fd00::1/64`; without a length the address stands alone on its link.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_cidr(text: &str) -> std::result::Result<Cidr, String> {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
    let wrong = || format!("{text:?} is no address with a prefix length, such as 10.0.0.1/24 or fd00::1/64");
    let address: std::net::IpAddr = address.parse().map_err(|_| wrong())?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.map_or(Ok(longest), |p| p.parse().map_err(|_| wrong()))?;
    if prefix > longest { Err(wrong()) } else { Ok(Cidr::new(address, prefix)) }
}

/// Reads `NETWORK/LEN=GATEWAY`, or `default=GATEWAY`.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_route(text: &str) -> std::result::Result<Route, String> {
    let wrong = || format!("{text:?} is no route, such as 10.1.0.0/16=10.0.0.254 or default=10.0.0.254");
    let (network, gateway) = text.split_once('=').ok_or_else(wrong)?;
    let gateway: std::net::IpAddr = gateway.parse().map_err(|_| wrong())?;
    let network = match network {
        "default" if gateway.is_ipv4() => Cidr::new([0, 0, 0, 0], 0),
        "default" => Cidr::new([0u16; 8], 0),
        network => parse_cidr(network)?,
    };
    Ok(Route { network, gateway })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_routes_that_make_no_sense_are_refused() {
        for bad in ["", "10.0.0.1/33", "fd00::1/129", "10.0.0/8", "10.0.0.1/x", "name/8"] {
            assert!(parse_cidr(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "default", "default=", "10.0.0.0/8=x", "10.0.0.0/40=10.0.0.1"] {
            assert!(parse_route(bad).is_err(), "{bad:?}");
        }
        assert_eq!(parse_cidr("10.0.0.1").unwrap().prefix, 32);
        assert_eq!(parse_cidr("fd00::1/64").unwrap(), Cidr::new([0xfd00u16, 0, 0, 0, 0, 0, 0, 1], 64));
        assert_eq!(parse_route("default=fd00::2").unwrap().network.prefix, 0);
    }

    #[test]
    fn names_of_devices_round_trip() {
        for name in ["inet@shm", "inet@tap", "inet@packet", "inet@xdp"] {
            assert_eq!(name.parse::<NetDevice>().unwrap().to_string(), name);
        }
        assert!("inet@dpdk".parse::<NetDevice>().is_err());
    }
}
