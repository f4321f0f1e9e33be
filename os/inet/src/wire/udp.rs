//! UDP headers (RFC 768).

use super::{Malformed, be16};

/// Bytes of a header.
pub const LEN: usize = 8;

/// What a UDP header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// The sender's port, 0 for none.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// Header and payload, in bytes.
    pub len: usize,
    /// The checksum field; 0 says there is none (IPv4 only).
    pub checksum: u16,
}

impl Udp {
    /// The header at the start of `bytes`, its length checked against them.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Udp, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        let header = Udp {
            src_port: be16(bytes, 0),
            dst_port: be16(bytes, 2),
            len: usize::from(be16(bytes, 4)),
            checksum: be16(bytes, 6),
        };
        if header.len < LEN || header.dst_port == 0 {
            return Err(Malformed::Header);
        }
        if header.len > bytes.len() {
            return Err(Malformed::Truncated);
        }
        Ok(header)
    }

    /// Writes the header to the start of `out`.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        out[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..6].copy_from_slice(&(self.len as u16).to_be_bytes());
        out[6..8].copy_from_slice(&self.checksum.to_be_bytes());
        LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_header_survives_a_round_trip_and_bad_lengths_are_refused() {
        let header = Udp { src_port: 5, dst_port: 53, len: 10, checksum: 0xabcd };
        let mut bytes = [0; 12];
        header.write(&mut bytes);
        assert_eq!(Udp::parse(&bytes), Ok(header));
        assert_eq!(Udp::parse(&bytes[..9]), Err(Malformed::Truncated));
        bytes[5] = 7;
        assert_eq!(Udp::parse(&bytes), Err(Malformed::Header));
    }
}
