//! Putting fragments together (RFC 791 section 3.2, RFC 8200 section 4.5), within bounds: a handful of packets at a
//! time, each at most 64 KB, each for at most 30 seconds. Overlaps drop the packet (RFC 5722), and an ECN mark on any
//! fragment marks the whole (RFC 3168 section 5.3).

use crate::time::Nanos;
use std::net::IpAddr;
use towpath_cbuf::Buf;

/// Packets in the making at once: each may hold 64 KB of frames.
const PACKETS_MAX: usize = 64;
/// Fragments of one packet: 64 KB at the smallest MTU of IPv6 are 54; tiny ones are an attack.
const FRAGMENTS_MAX: usize = 64;
/// RFC 8200 section 4.5 says 60 seconds, Linux uses 30.
const LIFETIME: Nanos = Nanos::secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Whole {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) id: u32,
    pub(crate) protocol: u8,
}

struct Packet {
    key: Whole,
    until: Nanos,
    /// Sorted by offset, without overlap.
    parts: Vec<(u32, Buf)>,
    total: Option<u32>,
    ce: bool,
}

#[derive(Default)]
pub(crate) struct Reassembly {
    packets: Vec<Packet>,
}

impl Reassembly {
    /// Takes one fragment; when it completes its packet, the packet's bytes in order and whether any was marked.
    pub(crate) fn insert(
        &mut self,
        key: Whole,
        (offset, more, ce): (u32, bool, bool),
        bytes: Buf,
        now: Nanos,
    ) -> Option<(Vec<Buf>, bool)> {
        let len = bytes.len() as u32;
        let end = offset + len;
        // All but the last are multiples of eight bytes; none is empty or reaches past the largest packet.
        if len == 0 || end > 65_535 || (more && !len.is_multiple_of(8)) {
            return None;
        }
        let at = match self.packets.iter().position(|p| p.key == key) {
            Some(at) => at,
            None => {
                if self.packets.len() == PACKETS_MAX {
                    self.packets.remove(0);
                }
                let fresh = Packet { key, until: now + LIFETIME, parts: Vec::new(), total: None, ce: false };
                self.packets.push(fresh);
                self.packets.len() - 1
            }
        };
        if !self.packets[at].add(offset, end, more, bytes) {
            self.packets.remove(at);
            return None;
        }
        self.packets[at].ce |= ce;
        if !self.packets[at].complete() {
            return None;
        }
        let done = self.packets.remove(at);
        Some((done.parts.into_iter().map(|(_, b)| b).collect(), done.ce))
    }

    pub(crate) fn poll_at(&self) -> Option<Nanos> {
        self.packets.first().map(|p| p.until)
    }

    pub(crate) fn poll(&mut self, now: Nanos) {
        self.packets.retain(|p| p.until > now);
    }
}

impl Packet {
    fn add(&mut self, offset: u32, end: u32, more: bool, bytes: Buf) -> bool {
        let last = self.parts.last().map_or(0, |(o, b)| o + b.len() as u32);
        if !more {
            if self.total.is_some_and(|t| t != end) || last > end {
                return false;
            }
            self.total = Some(end);
        } else if self.total.is_some_and(|t| end > t) {
            return false;
        }
        let at = self.parts.partition_point(|(o, _)| *o < offset);
        if let Some((o, b)) = self.parts.get(at) {
            // An exact duplicate is the network's doing and harmless (RFC 8200 section 4.5).
            if *o == offset && b.len() as u32 == end - offset {
                return true;
            }
            if *o < end {
                return false;
            }
        }
        if at > 0 && self.parts[at - 1].0 + self.parts[at - 1].1.len() as u32 > offset {
            return false;
        }
        if self.parts.len() == FRAGMENTS_MAX {
            return false;
        }
        self.parts.insert(at, (offset, bytes));
        true
    }

    fn complete(&self) -> bool {
        let Some(total) = self.total else { return false };
        let mut at = 0;
        for (offset, bytes) in &self.parts {
            if *offset != at {
                return false;
            }
            at += bytes.len() as u32;
        }
        at == total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    static BYTES: [u8; 4096] = [7; 4096];

    fn key(id: u32) -> Whole {
        Whole { src: Ipv4Addr::LOCALHOST.into(), dst: Ipv4Addr::LOCALHOST.into(), id, protocol: 17 }
    }

    fn part(n: usize) -> Buf {
        Buf::from_static(&BYTES[..n])
    }

    #[test]
    fn fragments_in_any_order_make_the_packet_and_carry_the_mark() {
        let mut all = Reassembly::default();
        assert!(all.insert(key(1), (16, false, false), part(5), Nanos::ZERO).is_none());
        assert!(all.insert(key(1), (8, true, true), part(8), Nanos::ZERO).is_none());
        assert!(all.insert(key(1), (8, true, false), part(8), Nanos::ZERO).is_none(), "a duplicate changes nothing");
        let (parts, ce) = all.insert(key(1), (0, true, false), part(8), Nanos::ZERO).unwrap();
        assert_eq!(parts.iter().map(|b| b.len()).sum::<usize>(), 21);
        assert!(ce);
        assert!(all.poll_at().is_none());
    }

    #[test]
    fn fragments_that_overlap_or_overrun_drop_the_packet() {
        let mut all = Reassembly::default();
        assert!(all.insert(key(1), (0, true, false), part(16), Nanos::ZERO).is_none());
        assert!(all.insert(key(1), (8, false, false), part(16), Nanos::ZERO).is_none());
        assert!(all.packets.is_empty(), "overlap");
        assert!(all.insert(key(2), (65_528, false, false), part(100), Nanos::ZERO).is_none());
        assert!(all.packets.is_empty(), "longer than any packet");
    }

    #[test]
    fn fragments_of_a_flood_stay_bounded_and_expire() {
        let mut all = Reassembly::default();
        for id in 0..1000 {
            assert!(all.insert(key(id), (0, true, false), part(8), Nanos::ZERO).is_none());
        }
        assert_eq!(all.packets.len(), PACKETS_MAX);
        all.poll(LIFETIME);
        assert!(all.packets.is_empty());
    }
}
