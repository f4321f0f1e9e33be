//! The table that finds a connection by its addresses and ports: open addressing over eight bytes a place (a tag and
//! an index), at most three quarters full, deletion by shifting back. The hash is keyed by a secret, so a flood of
//! chosen addresses cannot make it slow.

use crate::random::fold;
use std::net::IpAddr;

/// What names a connection at this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Our address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

impl Flow {
    /// The flow in four words, for keyed hashes of secrets.
    pub(crate) fn words(&self) -> [u64; 5] {
        let (a, b) = wide(self.local);
        let (c, d) = wide(self.remote);
        [a, b, c, d, (u64::from(self.local_port) << 16) | u64::from(self.remote_port)]
    }
}

pub(crate) fn wide(ip: IpAddr) -> (u64, u64) {
    match ip {
        IpAddr::V4(ip) => (u64::from(u32::from(ip)), 0xffff),
        IpAddr::V6(ip) => {
            let wide = u128::from(ip);
            (wide as u64, (wide >> 64) as u64)
        }
    }
}

#[derive(Clone, Copy)]
struct Place {
    tag: u32,
    index: u32,
}

const EMPTY: u32 = u32::MAX;

/// Finds indices by keyed hash.
pub(crate) struct Table {
    places: Vec<Place>,
    len: usize,
    keys: (u64, u64),
}

impl Table {
    pub(crate) fn new(keys: (u64, u64)) -> Table {
        Table { places: vec![Place { tag: 0, index: EMPTY }; 64], len: 0, keys: (keys.0 | 1, keys.1 | 1) }
    }

    /// The keyed hash of a flow.
    #[inline]
    pub(crate) fn hash(&self, flow: &Flow) -> u32 {
        let ports = (u64::from(flow.local_port) << 16) | u64::from(flow.remote_port);
        let mixed = match (flow.local, flow.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let pair = (u64::from(u32::from(local)) << 32) | u64::from(u32::from(remote));
                fold(pair ^ self.keys.0, ports ^ self.keys.1)
            }
            (local, remote) => {
                let ((a, b), (c, d)) = (wide(local), wide(remote));
                let x = fold(a ^ self.keys.0, c ^ self.keys.1);
                fold(x ^ b.rotate_left(17), d ^ self.keys.0) ^ fold(ports ^ self.keys.1, x | 1)
            }
        };
        fold(mixed ^ self.keys.1, self.keys.0) as u32
    }

    /// The index under `hash` for which `same` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let place = self.places[at];
            if place.index == EMPTY {
                return None;
            }
            if place.tag == hash && same(place.index) {
                return Some(place.index);
            }
            at = (at + 1) & mask;
        }
    }

    /// Puts `index` in. The caller has made sure that its flow is not there yet.
    pub(crate) fn insert(&mut self, hash: u32, index: u32) {
        if (self.len + 1) * 4 > self.places.len() * 3 {
            let bigger = vec![Place { tag: 0, index: EMPTY }; self.places.len() * 2];
            for place in std::mem::replace(&mut self.places, bigger) {
                if place.index != EMPTY {
                    self.put(place);
                }
            }
        }
        self.put(Place { tag: hash, index });
        self.len += 1;
    }

    fn put(&mut self, place: Place) {
        let mask = self.places.len() - 1;
        let mut at = place.tag as usize & mask;
        while self.places[at].index != EMPTY {
            at = (at + 1) & mask;
        }
        self.places[at] = place;
    }

    /// Takes `index` out, and moves up what was pushed past it.
    pub(crate) fn remove(&mut self, hash: u32, index: u32) {
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        while self.places[at].index != index {
            if self.places[at].index == EMPTY {
                return;
            }
            at = (at + 1) & mask;
        }
        self.len -= 1;
        let mut hole = at;
        loop {
            at = (at + 1) & mask;
            let place = self.places[at];
            if place.index == EMPTY {
                break;
            }
            let home = place.tag as usize & mask;
            // It may move into the hole if its home does not lie cyclically within (hole, at].
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.places[hole] = place;
                hole = at;
            }
        }
        self.places[hole].index = EMPTY;
    }

    /// Bytes the table holds.
    pub(crate) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;
    use std::collections::HashMap;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn table_beside_a_map_finds_the_same_after_random_steps() {
        let mut rng = Rng::new(3);
        let mut table = Table::new((rng.next_u64(), rng.next_u64()));
        let mut model: HashMap<u32, u32> = HashMap::new();
        for step in 0..60_000u32 {
            let index = rng.below(4000) as u32;
            // Few hashes, so that runs of collisions occur.
            let hash = index % 977;
            if model.remove(&index).is_some() {
                assert_eq!(table.find(hash, |i| i == index), Some(index), "step {step}");
                table.remove(hash, index);
            } else {
                assert_eq!(table.find(hash, |i| i == index), None, "step {step}");
                table.insert(hash, index);
                model.insert(index, hash);
            }
        }
        for (index, hash) in model {
            assert_eq!(table.find(hash, |i| i == index), Some(index));
        }
    }

    #[test]
    fn hash_of_neighbouring_flows_spreads_over_the_low_bits() {
        let mut rng = Rng::new(4);
        let table = Table::new((rng.next_u64(), rng.next_u64()));
        for v6 in [false, true] {
            let ip = |n: u32| match v6 {
                false => IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)),
                true => IpAddr::V6(Ipv6Addr::from(0xfe80 << 112 | u128::from(n))),
            };
            let mut seen = vec![0u32; 4096];
            for n in 0..4096 {
                let flow =
                    Flow { local: ip(1), remote: ip(2 + n / 64), local_port: 80, remote_port: 1024 + n as u16 % 64 };
                seen[table.hash(&flow) as usize % 4096] += 1;
            }
            // Thrown at random, 4096 balls in 4096 bins leave the fullest with about 8.
            assert!(seen.iter().max().unwrap() < &14, "v6 {v6}");
        }
    }
}
