//! Wire formats. For each header a *view* proves bounds (`checked`) and a plain value holds its meaning (`parse`);
//! `write` puts a value back into bytes. Nothing here keeps state or allocates.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod udp;

/// Why bytes from the network were not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Shorter than its header, or than a length it states.
    Truncated,
    /// A version, length or type field no valid packet has.
    Header,
    /// The checksum does not match.
    Checksum,
}

/// The bytes at `at`, as an array. Bounds were proven by the caller's view.
#[inline(always)]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[inline(always)]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

#[inline(always)]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// Internet protocol numbers this stack speaks.
pub mod protocol {
    /// ICMP (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// The fragment header of IPv6 (RFC 8200 section 4.5).
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
}

/// The sum of a pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1) to start a transport checksum with.
#[inline]
pub fn pseudo(src: std::net::IpAddr, dst: std::net::IpAddr, protocol: u8, len: u32) -> checksum::Checksum {
    use std::net::IpAddr::{V4, V6};
    let mut sum = checksum::Checksum::new();
    match (src, dst) {
        (V4(a), V4(b)) => {
            let (a, b) = (a.octets(), b.octets());
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&a);
            bytes[4..8].copy_from_slice(&b);
            bytes[9] = protocol;
            bytes[10..].copy_from_slice(&(len as u16).to_be_bytes());
            sum.add(&bytes);
        }
        (a, b) => {
            for address in [a, b] {
                let V6(address) = address else { continue };
                sum.add(&address.octets());
            }
            sum.add(&len.to_be_bytes());
            sum.add_u16(u16::from(protocol));
        }
    }
    sum
}
