//! Ethernet II frames, with or without one 802.1Q tag.

use super::{Malformed, array, be16};
use std::fmt;

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Everyone on the link.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether it names a group (the broadcast address included).
    pub fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The group an IPv4 or IPv6 multicast address maps to (RFC 1112 section 6.4, RFC 2464 section 7).
    pub fn multicast(ip: std::net::IpAddr) -> Mac {
        match ip {
            std::net::IpAddr::V4(ip) => {
                let o = ip.octets();
                Mac([0x01, 0x00, 0x5e, o[1] & 0x7f, o[2], o[3]])
            }
            std::net::IpAddr::V6(ip) => {
                let o = ip.octets();
                Mac([0x33, 0x33, o[12], o[13], o[14], o[15]])
            }
        }
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Types of payload.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// An 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
}

/// What an Ethernet header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// To whom.
    pub dst: Mac,
    /// From whom.
    pub src: Mac,
    /// The tag's VLAN identifier, 1 to 4094, if the frame is tagged with one.
    pub vlan: Option<u16>,
    /// The type of the payload, after the tag.
    pub ethertype: u16,
}

/// Bytes of an untagged header.
pub const LEN: usize = 14;
/// Bytes a tag adds.
pub const TAG_LEN: usize = 4;

impl Ethernet {
    /// The header at the start of `frame` and where its payload starts.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Ethernet, usize), Malformed> {
        if frame.len() < LEN {
            return Err(Malformed::Truncated);
        }
        let mut header =
            Ethernet { dst: Mac(array(frame, 0)), src: Mac(array(frame, 6)), vlan: None, ethertype: be16(frame, 12) };
        if header.ethertype != ethertype::VLAN {
            return Ok((header, LEN));
        }
        if frame.len() < LEN + TAG_LEN {
            return Err(Malformed::Truncated);
        }
        // A tag with identifier 0 carries only a priority (802.1Q section 9.6).
        let id = be16(frame, 14) & 0x0fff;
        header.vlan = (id != 0).then_some(id);
        header.ethertype = be16(frame, 16);
        Ok((header, LEN + TAG_LEN))
    }

    /// Writes the header to the start of `out` and says how long it is. `out` holds at least 18 bytes.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        out[..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        let Some(id) = self.vlan else {
            out[12..14].copy_from_slice(&self.ethertype.to_be_bytes());
            return LEN;
        };
        out[12..14].copy_from_slice(&ethertype::VLAN.to_be_bytes());
        out[14..16].copy_from_slice(&(id & 0x0fff).to_be_bytes());
        out[16..18].copy_from_slice(&self.ethertype.to_be_bytes());
        LEN + TAG_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_tagged_or_not_survives_a_round_trip() {
        for vlan in [None, Some(7), Some(4094)] {
            let header = Ethernet { dst: Mac([1; 6]), src: Mac([2; 6]), vlan, ethertype: ethertype::IPV6 };
            let mut bytes = [0; 18];
            let n = header.write(&mut bytes);
            assert_eq!(Ethernet::parse(&bytes[..n]), Ok((header, n)));
            assert_eq!(Ethernet::parse(&bytes[..n - 1]), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn ethernet_tag_with_identifier_zero_counts_as_untagged() {
        let mut bytes = [0; 18];
        Ethernet { dst: Mac([1; 6]), src: Mac([2; 6]), vlan: Some(5), ethertype: ethertype::ARP }.write(&mut bytes);
        bytes[14..16].copy_from_slice(&[0xe0, 0]);
        let (header, at) = Ethernet::parse(&bytes).unwrap();
        assert_eq!((header.vlan, header.ethertype, at), (None, ethertype::ARP, 18));
    }
}
