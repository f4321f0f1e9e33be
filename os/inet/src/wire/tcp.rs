//! TCP headers and options (RFC 9293 section 3.1, RFC 7323, RFC 2018).

use super::{Malformed, be16, be32};

/// Bytes of a header without options.
pub const LEN: usize = 20;
/// Bytes of a header with all the options there is room for.
pub const LEN_MAX: usize = 60;

/// Control bits, as in byte 13 of the header.
pub mod flag {
    /// The sender has finished.
    pub const FIN: u8 = 1;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 2;
    /// Reset the connection.
    pub const RST: u8 = 4;
    /// Push.
    pub const PSH: u8 = 8;
    /// The acknowledgement field is valid.
    pub const ACK: u8 = 16;
    /// The urgent pointer is valid.
    pub const URG: u8 = 32;
    /// ECN-Echo (RFC 3168).
    pub const ECE: u8 = 64;
    /// Congestion window reduced (RFC 3168).
    pub const CWR: u8 = 128;
}

/// A sequence number: arithmetic and order modulo 2^32 (RFC 9293 section 3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Seq(pub u32);

impl Seq {
    /// The number `n` further on.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "adds a length, not another sequence number")]
    pub fn add(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// How far this number lies behind `earlier`; meaningful when it does.
    #[inline]
    pub fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this number comes before `other`.
    #[inline]
    pub fn before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether this number comes before `other` or is it.
    #[inline]
    pub fn at_or_before(self, other: Seq) -> bool {
        !other.before(self)
    }

    /// The later of the two.
    #[inline]
    pub fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    /// The earlier of the two.
    #[inline]
    pub fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }
}

/// A header whose bounds are proven.
#[derive(Clone, Copy, Debug)]
pub struct TcpView<'a> {
    bytes: &'a [u8],
    header: usize,
}

impl<'a> TcpView<'a> {
    /// Proves that header and options lie within `bytes`, which are the whole segment.
    #[inline]
    pub fn checked(bytes: &'a [u8]) -> Result<TcpView<'a>, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        let header = usize::from(bytes[12] >> 4) * 4;
        if header < LEN {
            return Err(Malformed::Header);
        }
        if header > bytes.len() {
            return Err(Malformed::Truncated);
        }
        Ok(TcpView { bytes, header })
    }

    /// Bytes of header and options.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header
    }
}

/// What a TCP header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tcp {
    /// The sender's port.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// The sequence number of the first byte, or of the SYN.
    pub seq: Seq,
    /// The next sequence number the sender expects, if [`flag::ACK`] is set.
    pub ack: Seq,
    /// Control bits, see [`flag`].
    pub flags: u8,
    /// The window field, unscaled.
    pub window: u16,
    /// The options understood.
    pub options: Options,
}

/// TCP options. Unknown ones are passed over; a malformed list ends the reading, and what was read before counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Timestamps: value and echo reply (RFC 7323 section 3).
    pub timestamps: Option<(u32, u32)>,
    /// Maximum segment size; only on a SYN.
    pub mss: Option<u16>,
    /// Window shift; only on a SYN, at most 14.
    pub scale: Option<u8>,
    /// Selective acknowledgement permitted; only on a SYN.
    pub sack_permitted: bool,
    /// How many of `sack` are meant.
    pub sack_count: u8,
    /// Selective acknowledgements: left and right edges (RFC 2018 section 3).
    pub sack: [(Seq, Seq); 4],
}

impl Options {
    /// The selective acknowledgements.
    #[inline]
    pub fn sacks(&self) -> &[(Seq, Seq)] {
        &self.sack[..usize::from(self.sack_count)]
    }

    /// Reads the list in `bytes`.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Options {
        // The common case has one shape: two no-operations and a timestamp (RFC 7323 appendix A).
        if bytes.len() == 12 && be32(bytes, 0) == 0x0101_080a {
            let timestamps = Some((be32(bytes, 4), be32(bytes, 8)));
            return Options { timestamps, ..Options::default() };
        }
        if bytes.is_empty() { Options::default() } else { Options::parse_list(bytes) }
    }

    fn parse_list(bytes: &[u8]) -> Options {
        let mut options = Options::default();
        let mut rest = bytes;
        while let Some(&kind) = rest.first() {
            match kind {
                0 => break,
                1 => {
                    rest = &rest[1..];
                    continue;
                }
                _ => {}
            }
            let len = match rest.get(1) {
                Some(&len) if len >= 2 && usize::from(len) <= rest.len() => usize::from(len),
                _ => break,
            };
            options.take(kind, &rest[2..len]);
            rest = &rest[len..];
        }
        options
    }

    fn take(&mut self, kind: u8, value: &[u8]) {
        match (kind, value.len()) {
            (2, 2) => self.mss = Some(be16(value, 0)),
            // RFC 7323 section 2.3: a shift above 14 is taken as 14.
            (3, 1) => self.scale = Some(value[0].min(14)),
            (4, 0) => self.sack_permitted = true,
            (5, n) if n % 8 == 0 && n <= 32 => {
                self.sack_count = (n / 8) as u8;
                for (edge, block) in self.sack.iter_mut().zip(value.chunks_exact(8)) {
                    *edge = (Seq(be32(block, 0)), Seq(be32(block, 4)));
                }
            }
            (8, 8) => self.timestamps = Some((be32(value, 0), be32(value, 4))),
            _ => {}
        }
    }

    /// Writes the list, padded to a multiple of four, and says how long it is: at most 40 bytes, selective
    /// acknowledgements that find no room are left out.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        let mut n = 0;
        if let Some(mss) = self.mss {
            out[..2].copy_from_slice(&[2, 4]);
            out[2..4].copy_from_slice(&mss.to_be_bytes());
            n = 4;
        }
        if let Some(scale) = self.scale {
            out[n..n + 4].copy_from_slice(&[1, 3, 3, scale]);
            n += 4;
        }
        if self.sack_permitted {
            out[n..n + 4].copy_from_slice(&[1, 1, 4, 2]);
            n += 4;
        }
        if let Some((value, echo)) = self.timestamps {
            out[n..n + 4].copy_from_slice(&[1, 1, 8, 10]);
            out[n + 4..n + 8].copy_from_slice(&value.to_be_bytes());
            out[n + 8..n + 12].copy_from_slice(&echo.to_be_bytes());
            n += 12;
        }
        let fit = self.sacks().len().min((40 - n).saturating_sub(4) / 8);
        if fit > 0 {
            out[n..n + 4].copy_from_slice(&[1, 1, 5, 2 + 8 * fit as u8]);
            n += 4;
            for (left, right) in &self.sack[..fit] {
                out[n..n + 4].copy_from_slice(&left.0.to_be_bytes());
                out[n + 4..n + 8].copy_from_slice(&right.0.to_be_bytes());
                n += 8;
            }
        }
        n
    }
}

impl Tcp {
    /// The meaning of a proven view. Ports of 0 are never valid.
    #[inline(always)]
    pub fn parse(view: &TcpView<'_>) -> Result<Tcp, Malformed> {
        let b = view.bytes;
        let header = Tcp {
            src_port: be16(b, 0),
            dst_port: be16(b, 2),
            seq: Seq(be32(b, 4)),
            ack: Seq(be32(b, 8)),
            flags: b[13],
            window: be16(b, 14),
            options: Options::parse(&b[LEN..view.header]),
        };
        if header.src_port == 0 || header.dst_port == 0 {
            return Err(Malformed::Header);
        }
        Ok(header)
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Writes header and options to the start of `out` with a checksum of 0, and says how long they are.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        let n = LEN + self.options.write(&mut out[LEN..]);
        out[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        out[12] = (n as u8 / 4) << 4;
        out[13] = self.flags;
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..20].fill(0);
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_header_with_every_option_survives_a_round_trip() {
        let syn = Options {
            mss: Some(1460),
            scale: Some(9),
            sack_permitted: true,
            timestamps: Some((1, 2)),
            ..Options::default()
        };
        let blocks = [(Seq(1), Seq(2)), (Seq(5), Seq(9)), (Seq(u32::MAX), Seq(3)), (Seq(0), Seq(0))];
        let ack = Options { timestamps: Some((7, 8)), sack_count: 3, sack: blocks, ..Options::default() };
        let plain = Options { timestamps: Some((7, 8)), ..Options::default() };
        for options in [syn, ack, plain, Options::default()] {
            let header = Tcp {
                src_port: 1,
                dst_port: 2,
                seq: Seq(3),
                ack: Seq(4),
                flags: flag::ACK | flag::ECE,
                window: 500,
                options,
            };
            let mut bytes = [0xff; 60];
            let n = header.write(&mut bytes);
            let view = TcpView::checked(&bytes[..n]).unwrap();
            let parsed = Tcp::parse(&view).unwrap();
            assert_eq!(view.header_len(), n);
            assert_eq!(parsed.options.sacks(), header.options.sacks());
            assert_eq!((parsed.options.mss, parsed.options.scale), (options.mss, options.scale));
            assert_eq!((parsed.options.timestamps, parsed.seq, parsed.ack), (options.timestamps, Seq(3), Seq(4)));
        }
    }

    #[test]
    fn tcp_header_with_bad_offset_is_refused() {
        let mut bytes = [0; 24];
        Tcp { src_port: 1, dst_port: 2, ..Tcp::default() }.write(&mut bytes);
        bytes[12] = 4 << 4;
        assert_eq!(TcpView::checked(&bytes).unwrap_err(), Malformed::Header);
        bytes[12] = 15 << 4;
        assert_eq!(TcpView::checked(&bytes).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn options_with_bad_lengths_end_the_list_without_harm() {
        for bytes in [&[2u8, 0][..], &[2], &[8, 10, 1], &[5, 255, 0, 0], &[2, 4, 5, 0xb4, 9, 1, 1]] {
            let options = Options::parse(bytes);
            assert_eq!(options.mss.is_some(), bytes.len() == 7);
        }
        assert_eq!(Options::parse(&[3, 3, 200]).scale, Some(14));
    }

    #[test]
    fn seq_order_holds_across_the_wrap() {
        let (a, b) = (Seq(u32::MAX - 5), Seq(10));
        assert!(a.before(b) && !b.before(a) && a.at_or_before(a));
        assert_eq!(b.since(a), 16);
        assert_eq!((a.max(b), a.min(b)), (b, a));
    }
}
