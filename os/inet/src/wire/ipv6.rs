//! IPv6 headers and the extension headers a host must pass over (RFC 8200).

use super::{Malformed, array, be16, be32, protocol};
use std::net::Ipv6Addr;

/// Bytes of the fixed header.
pub const LEN: usize = 40;
/// Bytes of a fragment header.
pub const FRAGMENT_LEN: usize = 8;
/// Extension headers looked at before a packet is given up: more than any real packet has.
const EXTENSIONS_MAX: usize = 8;

/// What the IPv6 header and its extension headers say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// From whom.
    pub src: Ipv6Addr,
    /// To whom.
    pub dst: Ipv6Addr,
    /// The upper-layer protocol, after all extension headers.
    pub protocol: u8,
    /// Traffic class: differentiated services and, in the low two bits, ECN.
    pub tos: u8,
    /// Hops left.
    pub hops: u8,
    /// The fragment header, if there is one.
    pub fragment: Option<Fragment>,
}

/// A fragment header (RFC 8200 section 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Identification, which fragments of one packet share.
    pub id: u32,
    /// Where this fragment's payload lies in the packet's, in bytes.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
}

impl Ipv6 {
    /// The headers at the start of `bytes`, and the range of the upper-layer payload.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Ipv6, std::ops::Range<usize>), Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        if bytes[0] >> 4 != 6 {
            return Err(Malformed::Header);
        }
        let end = LEN + usize::from(be16(bytes, 4));
        if end > bytes.len() {
            return Err(Malformed::Truncated);
        }
        let mut header = Ipv6 {
            src: Ipv6Addr::from(array::<16>(bytes, 8)),
            dst: Ipv6Addr::from(array::<16>(bytes, 24)),
            protocol: bytes[6],
            tos: (be16(bytes, 0) >> 4) as u8,
            hops: bytes[7],
            fragment: None,
        };
        let mut at = LEN;
        for _ in 0..EXTENSIONS_MAX {
            match header.protocol {
                // Hop-by-hop options, routing and destination options: length in units of eight bytes, less one.
                0 | 43 | 60 => {
                    if at + 8 > end {
                        return Err(Malformed::Truncated);
                    }
                    // Routing headers with segments left are not for a host (RFC 8200 section 4.4, RFC 5095).
                    if header.protocol == 43 && bytes[at + 3] != 0 {
                        return Err(Malformed::Header);
                    }
                    header.protocol = bytes[at];
                    at += 8 + usize::from(bytes[at + 1]) * 8;
                }
                protocol::FRAGMENT => {
                    if at + FRAGMENT_LEN > end || header.fragment.is_some() {
                        return Err(Malformed::Truncated);
                    }
                    let word = be16(bytes, at + 2);
                    header.fragment =
                        Some(Fragment { id: be32(bytes, at + 4), offset: word & 0xfff8, more: word & 1 == 1 });
                    header.protocol = bytes[at];
                    at += FRAGMENT_LEN;
                    // What follows the first fragment header belongs to the packet to be put together.
                    if word & 0xfff9 != 0 {
                        return Ok((header, at..end));
                    }
                }
                _ if at > end => return Err(Malformed::Truncated),
                _ => return Ok((header, at..end)),
            }
        }
        Err(Malformed::Header)
    }

    /// Writes the fixed header, and a fragment header if asked for, for `payload` bytes that follow them; returns
    /// the length written.
    #[inline]
    pub fn write(&self, payload: usize, out: &mut [u8]) -> usize {
        let extra = if self.fragment.is_some() { FRAGMENT_LEN } else { 0 };
        out[..4].copy_from_slice(&(6 << 28 | u32::from(self.tos) << 20).to_be_bytes());
        out[4..6].copy_from_slice(&((payload + extra) as u16).to_be_bytes());
        out[6] = self.protocol;
        out[7] = self.hops;
        out[8..24].copy_from_slice(&self.src.octets());
        out[24..40].copy_from_slice(&self.dst.octets());
        let Some(fragment) = self.fragment else { return LEN };
        out[6] = protocol::FRAGMENT;
        out[40] = self.protocol;
        out[41] = 0;
        out[42..44].copy_from_slice(&(fragment.offset & 0xfff8 | u16::from(fragment.more)).to_be_bytes());
        out[44..48].copy_from_slice(&fragment.id.to_be_bytes());
        LEN + FRAGMENT_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Ipv6 {
        Ipv6 {
            src: "fe80::1".parse().unwrap(),
            dst: "fe80::2".parse().unwrap(),
            protocol: 17,
            tos: 3,
            hops: 64,
            fragment: None,
        }
    }

    #[test]
    fn ipv6_headers_survive_a_round_trip() {
        let fragment = Fragment { id: 9, offset: 1448, more: true };
        for header in [sample(), Ipv6 { fragment: Some(fragment), ..sample() }] {
            let mut bytes = [0; 80];
            let n = header.write(5, &mut bytes);
            assert_eq!(Ipv6::parse(&bytes[..n + 5]), Ok((header, n..n + 5)));
            assert_eq!(Ipv6::parse(&bytes[..n + 4]), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn ipv6_extension_headers_are_passed_over_and_bounded() {
        let mut bytes = [0; 64];
        sample().write(24, &mut bytes);
        bytes[6] = 60;
        bytes[40] = 0;
        bytes[48] = 17;
        let (header, payload) = Ipv6::parse(&bytes).unwrap();
        assert_eq!((header.protocol, payload), (17, 56..64));
        bytes[41] = 9;
        assert!(Ipv6::parse(&bytes).is_err(), "an extension header longer than the packet");
        bytes[41] = 0;
        bytes[40] = 43;
        bytes[48 + 3] = 1;
        assert_eq!(Ipv6::parse(&bytes), Err(Malformed::Header), "a source route");
    }
}
