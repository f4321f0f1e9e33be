//! IPv4 headers (RFC 791). Options are skipped; source routes are refused (RFC 7126).

use super::{Malformed, array, be16, checksum::Checksum};
use std::net::Ipv4Addr;

/// Bytes of a header without options.
pub const LEN: usize = 20;

/// A header whose bounds are proven: header length, total length and the buffer agree.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4View<'a> {
    bytes: &'a [u8],
    header: usize,
}

impl<'a> Ipv4View<'a> {
    /// Proves the bounds of the packet at the start of `bytes`; what follows its total length is padding.
    #[inline]
    pub fn checked(bytes: &'a [u8]) -> Result<Ipv4View<'a>, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        if bytes[0] >> 4 != 4 {
            return Err(Malformed::Header);
        }
        let (header, total) = (usize::from(bytes[0] & 15) * 4, usize::from(be16(bytes, 2)));
        if header < LEN || total < header {
            return Err(Malformed::Header);
        }
        if total > bytes.len() {
            return Err(Malformed::Truncated);
        }
        Ok(Ipv4View { bytes: &bytes[..total], header })
    }

    /// Bytes of the header, options included.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// Bytes of the packet.
    #[inline]
    pub fn total_len(&self) -> usize {
        self.bytes.len()
    }
}

/// What an IPv4 header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// From whom.
    pub src: Ipv4Addr,
    /// To whom.
    pub dst: Ipv4Addr,
    /// What it carries.
    pub protocol: u8,
    /// Differentiated services and, in the low two bits, ECN (RFC 3168).
    pub tos: u8,
    /// Hops left.
    pub ttl: u8,
    /// Identification, which fragments of one packet share.
    pub id: u16,
    /// Don't fragment.
    pub df: bool,
    /// More fragments follow.
    pub more: bool,
    /// Where this fragment's payload lies in the packet's, in bytes.
    pub offset: u16,
}

impl Ipv4 {
    /// The meaning of a proven view; with `verify` its checksum must match.
    #[inline]
    pub fn parse(view: &Ipv4View<'_>, verify: bool) -> Result<Ipv4, Malformed> {
        let b = view.bytes;
        if verify {
            let mut sum = Checksum::new();
            sum.add(&b[..view.header]);
            if !sum.is_valid() {
                return Err(Malformed::Checksum);
            }
        }
        if view.header > LEN && has_source_route(&b[LEN..view.header]) {
            return Err(Malformed::Header);
        }
        let word = be16(b, 6);
        Ok(Ipv4 {
            src: Ipv4Addr::from(array::<4>(b, 12)),
            dst: Ipv4Addr::from(array::<4>(b, 16)),
            protocol: b[9],
            tos: b[1],
            ttl: b[8],
            id: be16(b, 4),
            df: word & 0x4000 != 0,
            more: word & 0x2000 != 0,
            offset: (word & 0x1fff) * 8,
        })
    }

    /// Writes a header without options for `payload` bytes to the start of `out`; its length is [`LEN`].
    #[inline]
    pub fn write(&self, payload: usize, out: &mut [u8]) -> usize {
        let out = &mut out[..LEN];
        let word = (u16::from(self.df) << 14) | (u16::from(self.more) << 13) | (self.offset / 8);
        out[0] = 0x45;
        out[1] = self.tos;
        out[2..4].copy_from_slice(&((LEN + payload) as u16).to_be_bytes());
        out[4..6].copy_from_slice(&self.id.to_be_bytes());
        out[6..8].copy_from_slice(&word.to_be_bytes());
        out[8] = self.ttl;
        out[9] = self.protocol;
        out[10..12].fill(0);
        out[12..16].copy_from_slice(&self.src.octets());
        out[16..20].copy_from_slice(&self.dst.octets());
        let mut sum = Checksum::new();
        sum.add(out);
        out[10..12].copy_from_slice(&sum.finish().to_be_bytes());
        LEN
    }
}

fn has_source_route(mut options: &[u8]) -> bool {
    while let Some(&kind) = options.first() {
        match kind {
            0 => return false,
            1 => options = &options[1..],
            131 | 137 => return true,
            _ => match options.get(1) {
                Some(&len) if len >= 2 && usize::from(len) <= options.len() => options = &options[usize::from(len)..],
                _ => return false,
            },
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Ipv4 {
        Ipv4 {
            src: Ipv4Addr::new(10, 0, 0, 1),
            dst: Ipv4Addr::new(10, 0, 0, 2),
            protocol: 6,
            tos: 2,
            ttl: 64,
            id: 77,
            df: true,
            more: false,
            offset: 0,
        }
    }

    #[test]
    fn ipv4_header_survives_a_round_trip() {
        for header in [sample(), Ipv4 { df: false, more: true, offset: 1480, ..sample() }] {
            let mut bytes = [0; 30];
            header.write(10, &mut bytes);
            let view = Ipv4View::checked(&bytes).unwrap();
            assert_eq!((view.header_len(), view.total_len()), (20, 30));
            assert_eq!(Ipv4::parse(&view, true), Ok(header));
        }
    }

    #[test]
    fn ipv4_header_with_wrong_lengths_or_checksum_is_refused() {
        let mut bytes = [0; 30];
        sample().write(10, &mut bytes);
        assert_eq!(Ipv4View::checked(&bytes[..29]).unwrap_err(), Malformed::Truncated);
        bytes[8] = 1;
        assert_eq!(Ipv4::parse(&Ipv4View::checked(&bytes).unwrap(), true), Err(Malformed::Checksum));
        bytes[0] = 0x44;
        assert_eq!(Ipv4View::checked(&bytes).unwrap_err(), Malformed::Header);
        bytes[0] = 0x65;
        assert_eq!(Ipv4View::checked(&bytes).unwrap_err(), Malformed::Header);
    }

    #[test]
    fn ipv4_source_route_is_refused_and_other_options_are_skipped() {
        let mut bytes = [0u8; 24];
        sample().write(4, &mut bytes);
        bytes[0] = 0x46;
        bytes[20..24].copy_from_slice(&[1, 131, 3, 4]);
        assert_eq!(Ipv4::parse(&Ipv4View::checked(&bytes).unwrap(), false), Err(Malformed::Header));
        bytes[20..24].copy_from_slice(&[1, 7, 3, 4]);
        assert!(Ipv4::parse(&Ipv4View::checked(&bytes).unwrap(), false).is_ok());
    }
}
