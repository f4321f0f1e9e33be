//! ICMP (RFC 792), ICMPv6 (RFC 4443) and neighbour discovery (RFC 4861).

use super::{Malformed, array, be16, be32, checksum::Checksum, ethernet::Mac};
use std::net::{IpAddr, Ipv6Addr};

/// Bytes of the fixed part: type, code, checksum and one word.
pub const LEN: usize = 8;

/// What a message says, whichever version of ICMP carried it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmp {
    /// Echo request or reply; what follows the fixed part is the payload.
    Echo {
        /// True for a request.
        request: bool,
        /// The word that names the asker and the number of the question.
        word: u32,
    },
    /// A packet of ours could not be delivered; the start of it follows the fixed part.
    Unreachable(Unreachable),
    /// A packet of ours was too big for a link; the start of it follows the fixed part.
    TooBig {
        /// The link's MTU in bytes; 0 if an old router did not say (RFC 1191 section 3).
        mtu: u32,
    },
    /// Time exceeded or a parameter problem: a soft error; the start of our packet follows.
    Soft,
    /// A neighbour asks for the hardware address of `target`.
    NeighbourSolicit {
        /// The address asked about.
        target: Ipv6Addr,
        /// The asker's hardware address, absent in duplicate address detection.
        source: Option<Mac>,
    },
    /// A neighbour states its hardware address.
    NeighbourAdvert {
        /// The address stated.
        target: Ipv6Addr,
        /// Its hardware address.
        mac: Option<Mac>,
        /// It answers a question of ours.
        solicited: bool,
        /// It replaces what is known.
        override_: bool,
    },
    /// A router describes the link.
    RouterAdvert {
        /// Seconds it is a default router, 0 for not.
        lifetime: u16,
        /// Its hardware address.
        mac: Option<Mac>,
        /// The link's MTU.
        mtu: Option<u32>,
        /// A prefix for addresses and its length, if it is marked for autonomous configuration.
        prefix: Option<(Ipv6Addr, u8)>,
    },
    /// Anything else.
    Other,
}

/// Why a packet was not delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// Network or host, a route or a filter: may pass.
    Host,
    /// The protocol is not spoken there.
    Protocol,
    /// No one listens at the port.
    Port,
}

impl Icmp {
    /// Reads an ICMP message.
    pub fn parse_v4(bytes: &[u8], verify: bool) -> Result<Icmp, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        let mut sum = Checksum::new();
        sum.add(bytes);
        if verify && !sum.is_valid() {
            return Err(Malformed::Checksum);
        }
        Ok(match (bytes[0], bytes[1]) {
            (0, _) => Icmp::Echo { request: false, word: be32(bytes, 4) },
            (8, _) => Icmp::Echo { request: true, word: be32(bytes, 4) },
            (3, 4) => Icmp::TooBig { mtu: u32::from(be16(bytes, 6)) },
            (3, 2) => Icmp::Unreachable(Unreachable::Protocol),
            (3, 3) => Icmp::Unreachable(Unreachable::Port),
            (3, _) => Icmp::Unreachable(Unreachable::Host),
            (11 | 12, _) => Icmp::Soft,
            _ => Icmp::Other,
        })
    }

    /// Reads an ICMPv6 message; `sum` is that of the pseudo-header. `hops` guards neighbour discovery, which is
    /// valid only straight from the link (RFC 4861 section 7.1).
    pub fn parse_v6(bytes: &[u8], mut sum: Checksum, verify: bool, hops: u8) -> Result<Icmp, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        sum.add(bytes);
        if verify && !sum.is_valid() {
            return Err(Malformed::Checksum);
        }
        let discovery = (133..=137).contains(&bytes[0]);
        if discovery && (hops != 255 || bytes[1] != 0) {
            return Err(Malformed::Header);
        }
        Ok(match bytes[0] {
            1 if bytes[1] == 4 => Icmp::Unreachable(Unreachable::Port),
            1 => Icmp::Unreachable(Unreachable::Host),
            2 => Icmp::TooBig { mtu: be32(bytes, 4) },
            4 if bytes[1] == 1 => Icmp::Unreachable(Unreachable::Protocol),
            3 | 4 => Icmp::Soft,
            128 => Icmp::Echo { request: true, word: be32(bytes, 4) },
            129 => Icmp::Echo { request: false, word: be32(bytes, 4) },
            134 => router_advert(bytes)?,
            135 | 136 => neighbour(bytes)?,
            _ => Icmp::Other,
        })
    }
}

fn neighbour(bytes: &[u8]) -> Result<Icmp, Malformed> {
    if bytes.len() < 24 {
        return Err(Malformed::Truncated);
    }
    let target = Ipv6Addr::from(array::<16>(bytes, 8));
    if target.is_multicast() {
        return Err(Malformed::Header);
    }
    if bytes[0] == 135 {
        return Ok(Icmp::NeighbourSolicit { target, source: link_address(&bytes[24..], 1)? });
    }
    Ok(Icmp::NeighbourAdvert {
        target,
        mac: link_address(&bytes[24..], 2)?,
        solicited: bytes[4] & 0x40 != 0,
        override_: bytes[4] & 0x20 != 0,
    })
}

fn router_advert(bytes: &[u8]) -> Result<Icmp, Malformed> {
    if bytes.len() < 16 {
        return Err(Malformed::Truncated);
    }
    let (mut mtu, mut prefix) = (None, None);
    each_option(&bytes[16..], |kind, option| match (kind, option.len()) {
        (5, 8) => mtu = Some(be32(option, 4)),
        // Autonomous prefixes of 64 bits (RFC 4862 section 5.5.3).
        (3, 32) if option[3] & 0x40 != 0 && option[2] == 64 && be32(option, 4) != 0 => {
            prefix = Some((Ipv6Addr::from(array::<16>(option, 16)), option[2]));
        }
        _ => {}
    })?;
    Ok(Icmp::RouterAdvert { lifetime: be16(bytes, 6), mac: link_address(&bytes[16..], 1)?, mtu, prefix })
}

fn link_address(options: &[u8], wanted: u8) -> Result<Option<Mac>, Malformed> {
    let mut found = None;
    each_option(options, |kind, option| {
        if kind == wanted && option.len() == 8 {
            found = Some(Mac(array(option, 2)));
        }
    })?;
    Ok(found)
}

fn each_option(mut rest: &[u8], mut with: impl FnMut(u8, &[u8])) -> Result<(), Malformed> {
    while rest.len() >= 2 {
        let len = usize::from(rest[1]) * 8;
        // RFC 4861 section 4.6: an option of length 0 makes the packet invalid.
        if len == 0 || len > rest.len() {
            return Err(Malformed::Header);
        }
        with(rest[0], &rest[..len]);
        rest = &rest[len..];
    }
    Ok(())
}

/// A message to send, built in place: fixed part, then `body`, checksummed.
pub fn message(kind: u8, code: u8, word: u32, body: &[u8], v6: Option<(Ipv6Addr, Ipv6Addr)>) -> Vec<u8> {
    let mut out = Vec::with_capacity(LEN + body.len());
    out.extend_from_slice(&[kind, code, 0, 0]);
    out.extend_from_slice(&word.to_be_bytes());
    out.extend_from_slice(body);
    let mut sum = match v6 {
        Some((src, dst)) => super::pseudo(IpAddr::V6(src), IpAddr::V6(dst), super::protocol::ICMPV6, out.len() as u32),
        None => Checksum::new(),
    };
    sum.add(&out);
    out[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    out
}

/// A neighbour solicitation or advertisement's body: target and one link-layer address option.
pub fn neighbour_body(target: Ipv6Addr, option: u8, mac: Mac) -> [u8; 24] {
    let mut body = [0; 24];
    body[..16].copy_from_slice(&target.octets());
    body[16] = option;
    body[17] = 1;
    body[18..].copy_from_slice(&mac.0);
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{protocol, pseudo};

    #[test]
    fn icmp_messages_built_are_read_back() {
        let echo = message(8, 0, 0x0001_0002, b"hello", None);
        assert_eq!(Icmp::parse_v4(&echo, true), Ok(Icmp::Echo { request: true, word: 0x0001_0002 }));
        let mut bad = echo.clone();
        bad[9] ^= 1;
        assert_eq!(Icmp::parse_v4(&bad, true), Err(Malformed::Checksum));
        let big = message(3, 4, 1400, &[0; 28], None);
        assert_eq!(Icmp::parse_v4(&big, true), Ok(Icmp::TooBig { mtu: 1400 }));
    }

    #[test]
    fn neighbour_solicitation_is_read_back_only_straight_from_the_link() {
        let (a, b): (Ipv6Addr, Ipv6Addr) = ("fe80::1".parse().unwrap(), "ff02::1:ff00:2".parse().unwrap());
        let target = "fe80::2".parse().unwrap();
        let bytes = message(135, 0, 0, &neighbour_body(target, 1, Mac([2; 6])), Some((a, b)));
        let sum = pseudo(IpAddr::V6(a), IpAddr::V6(b), protocol::ICMPV6, bytes.len() as u32);
        let want = Icmp::NeighbourSolicit { target, source: Some(Mac([2; 6])) };
        assert_eq!(Icmp::parse_v6(&bytes, sum, true, 255), Ok(want));
        assert_eq!(Icmp::parse_v6(&bytes, sum, true, 64), Err(Malformed::Header));
    }

    #[test]
    fn neighbour_options_of_length_zero_are_refused() {
        let target: Ipv6Addr = "fe80::2".parse().unwrap();
        let mut body = neighbour_body(target, 1, Mac([2; 6]));
        body[17] = 0;
        let bytes = message(135, 0, 0, &body, None);
        assert_eq!(Icmp::parse_v6(&bytes, Checksum::new(), false, 255), Err(Malformed::Header));
    }
}
