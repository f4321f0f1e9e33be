//! ARP for IPv4 over Ethernet (RFC 826).

use super::ethernet::Mac;
use super::{Malformed, array, be16};
use std::net::Ipv4Addr;

/// Bytes of a packet.
pub const LEN: usize = 28;

/// What an ARP packet says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// True for a request, false for a reply.
    pub request: bool,
    /// Who speaks.
    pub sender_mac: Mac,
    /// The address the speaker claims; unspecified in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Whom a reply is for.
    pub target_mac: Mac,
    /// The address asked about.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// The packet in `bytes`, which may be followed by padding.
    pub fn parse(bytes: &[u8]) -> Result<Arp, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        let ethernet_ipv4 = be16(bytes, 0) == 1 && be16(bytes, 2) == 0x0800 && bytes[4] == 6 && bytes[5] == 4;
        let operation = be16(bytes, 6);
        if !ethernet_ipv4 || !(1..=2).contains(&operation) {
            return Err(Malformed::Header);
        }
        Ok(Arp {
            request: operation == 1,
            sender_mac: Mac(array(bytes, 8)),
            sender_ip: Ipv4Addr::from(array::<4>(bytes, 14)),
            target_mac: Mac(array(bytes, 18)),
            target_ip: Ipv4Addr::from(array::<4>(bytes, 24)),
        })
    }

    /// The packet's bytes.
    pub fn bytes(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, if self.request { 1 } else { 2 }]);
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender_ip.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..28].copy_from_slice(&self.target_ip.octets());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arp_survives_a_round_trip_and_other_hardware_is_refused() {
        let arp = Arp {
            request: true,
            sender_mac: Mac([2; 6]),
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target_mac: Mac::default(),
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        };
        let mut bytes = arp.bytes();
        assert_eq!(Arp::parse(&bytes), Ok(arp));
        assert_eq!(Arp::parse(&bytes[..27]), Err(Malformed::Truncated));
        bytes[1] = 6;
        assert_eq!(Arp::parse(&bytes), Err(Malformed::Header));
    }
}
