//! How a stack is set up, and the sink its packets go to.

use crate::tcp::congestion::Algorithm;
use crate::time::Nanos;
use crate::wire::ethernet::Mac;
use std::net::IpAddr;
use towpath_cbuf::Buf;

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Bits of it that name the network.
    pub prefix: u8,
}

impl Cidr {
    /// An address and its prefix length.
    pub fn new(address: impl Into<IpAddr>, prefix: u8) -> Cidr {
        Cidr { address: address.into(), prefix }
    }

    /// Whether `ip` lies in the same network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let bits = 32 - u32::from(self.prefix.min(32));
                u64::from(u32::from(a)) >> bits == u64::from(u32::from(b)) >> bits
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = u128::from(a) ^ u128::from(b);
                differ.leading_zeros() >= u32::from(self.prefix.min(128))
            }
            _ => false,
        }
    }
}

/// A way to a network through a gateway on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The network; a prefix of 0 is the default route.
    pub network: Cidr,
    /// The next hop.
    pub gateway: IpAddr,
}

/// What the device does for the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The device finishes TCP and UDP checksums: the field holds the pseudo-header's sum.
    pub checksum: bool,
    /// Bytes of TCP payload the device cuts into segments by itself; 0 if it does not.
    pub segment_bytes: u32,
}

/// Settings of one stack. `Config::new` gives sensible values.
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface's hardware address.
    pub mac: Mac,
    /// The VLAN to speak on, untagged if `None`; frames of other VLANs are ignored.
    pub vlan: Option<u16>,
    /// Bytes of the largest IP packet on the link.
    pub mtu: u16,
    /// The interface's addresses.
    pub addresses: Vec<Cidr>,
    /// Routes beyond the link; the longest prefix wins.
    pub routes: Vec<Route>,
    /// The secret everything random grows from. Draw it from the system; equal seeds repeat equal behaviour.
    pub seed: [u64; 4],
    /// What the device offers.
    pub offload: Offload,
    /// Whether router advertisements may add a default route and an address (RFC 4861, RFC 4862).
    pub router_adverts: bool,
    /// Settings of TCP.
    pub tcp: TcpConfig,
    /// Bytes a UDP socket holds for its program, frames charged whole, before it drops datagrams.
    pub udp_buffer: u32,
}

impl Config {
    /// Settings for an interface with the given hardware address and secret.
    pub fn new(mac: Mac, seed: [u64; 4]) -> Config {
        Config {
            mac,
            vlan: None,
            mtu: 1500,
            addresses: Vec::new(),
            routes: Vec::new(),
            seed,
            offload: Offload::default(),
            router_adverts: false,
            tcp: TcpConfig::default(),
            udp_buffer: 1 << 20,
        }
    }
}

/// Settings of TCP for all connections of a stack.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// The congestion controller.
    pub congestion: Algorithm,
    /// Segments of the initial window (RFC 6928).
    pub initial_window: u32,
    /// Whether sending is spread over the round trip once more than a burst is in flight.
    pub pacing: bool,
    /// Bytes a connection takes responsibility for ahead of the peer's acknowledgement: at first and at most.
    pub send_buffer: (u32, u32),
    /// Bytes of frames a connection may hold for its program: at first and at most.
    pub receive_buffer: (u32, u32),
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Offer window scaling (RFC 7323).
    pub scaling: bool,
    /// Offer explicit congestion notification on connections opened here; those offered by peers are taken (RFC 3168).
    pub ecn: bool,
    /// How long an acknowledgement may wait for company (RFC 1122 section 4.2.3.2: under 500 ms).
    pub delayed_ack: Nanos,
    /// Bounds of the retransmission timeout (RFC 6298; the lower bound is what systems use, not the RFC's second).
    pub rto: (Nanos, Nanos),
    /// The timeout before anything was measured (RFC 6298 section 2.1).
    pub rto_initial: Nanos,
    /// Retransmissions of a SYN or SYN-ACK before giving up.
    pub syn_retries: u8,
    /// Retransmissions of data before giving up (RFC 1122's R2).
    pub retries: u8,
    /// How long TIME-WAIT lasts: twice the maximum segment lifetime.
    pub time_wait: Nanos,
    /// How long a closed connection waits for the peer's FIN.
    pub fin_wait: Nanos,
    /// Connections a stack holds, of every state.
    pub connections_max: u32,
    /// Ephemeral ports (RFC 6056).
    pub ports: (u16, u16),
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            congestion: Algorithm::Cubic,
            initial_window: 10,
            pacing: true,
            send_buffer: (256 << 10, 64 << 20),
            receive_buffer: (256 << 10, 64 << 20),
            timestamps: true,
            sack: true,
            scaling: true,
            ecn: false,
            delayed_ack: Nanos::millis(40),
            rto: (Nanos::millis(200), Nanos::secs(120)),
            rto_initial: Nanos::secs(1),
            syn_retries: 6,
            retries: 15,
            time_wait: Nanos::secs(60),
            fin_wait: Nanos::secs(60),
            connections_max: 1 << 20,
            ports: (32768, 60999),
        }
    }
}

/// What the device said about a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// The device verified the IP and transport checksums.
    pub checksum_ok: bool,
}

/// What is left for the device to do with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Finish {
    /// Sum from byte `.0` of the frame to its end and put the complement at byte `.1`.
    pub checksum: Option<(u16, u16)>,
    /// Cut the TCP payload into segments of this many bytes.
    pub segment: Option<u16>,
}

/// Where packets go.
pub trait Sink {
    /// Takes one frame: `header` (from the link header on) is valid only during the call, the bytes of `payload`
    /// follow it. A sink that sends later keeps clones of the buffers: they are references.
    fn transmit(&mut self, header: &[u8], payload: &[Buf], finish: Finish);

    /// Whether another frame would find room. While not, data waits in the stack until the next `poll`.
    fn has_room(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidr_contains_exactly_its_network() {
        let net = Cidr::new([10, 1, 2, 3], 16);
        assert!(net.contains([10, 1, 255, 255].into()) && !net.contains([10, 2, 0, 0].into()));
        assert!(Cidr::new([0, 0, 0, 0], 0).contains([8, 8, 8, 8].into()));
        assert!(Cidr::new([10, 0, 0, 1], 32).contains([10, 0, 0, 1].into()));
        let net6 = Cidr::new("fd00::1".parse::<std::net::Ipv6Addr>().unwrap(), 64);
        assert!(net6.contains("fd00::ffff".parse().unwrap()) && !net6.contains("fd00:0:0:1::".parse().unwrap()));
        assert!(!net.contains("fd00::1".parse().unwrap()));
    }
}
