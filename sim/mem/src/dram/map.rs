//! Addresses to channel, rank, bank group, bank, row and column, and back.

use crate::config::{AddressMap, DramConfig};

/// Where a line of 64 bytes lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Channel.
    pub channel: u32,
    /// Rank.
    pub rank: u32,
    /// Bank of the rank; its group is the remainder by the number of groups, so neighbours differ in group.
    pub bank: u32,
    /// Row.
    pub row: u32,
    /// Column in lines.
    pub column: u32,
}

/// The map of one configuration.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    order: AddressMap,
    channels: u64,
    ranks: u64,
    banks: u64,
    columns: u64,
    xor: u32,
    base: u64,
}

fn take(n: &mut u64, size: u64) -> u32 {
    let field = *n & (size - 1);
    *n >>= size.trailing_zeros();
    field as u32
}

impl Map {
    /// The map of `c` for memory at `base`.
    pub fn new(c: &DramConfig, base: u64) -> Map {
        Map {
            order: c.map,
            channels: u64::from(c.channels),
            ranks: u64::from(c.ranks),
            banks: u64::from(c.bank_groups * c.banks),
            columns: u64::from(c.row_bytes / 64),
            xor: if c.channels > 1 { c.channel_xor } else { 0 },
            base,
        }
    }

    /// The place of the line at `addr`.
    pub fn locate(&self, addr: u64) -> Location {
        let offset = addr - self.base;
        let mut n = offset >> 6;
        let (mut channel, column, bank, rank);
        match self.order {
            AddressMap::RoRaBaCoCh => {
                channel = take(&mut n, self.channels);
                column = take(&mut n, self.columns);
                bank = take(&mut n, self.banks);
                rank = take(&mut n, self.ranks);
            }
            AddressMap::RoRaBaChCo => {
                column = take(&mut n, self.columns);
                channel = take(&mut n, self.channels);
                bank = take(&mut n, self.banks);
                rank = take(&mut n, self.ranks);
            }
            AddressMap::RoCoRaBaCh => {
                channel = take(&mut n, self.channels);
                bank = take(&mut n, self.banks);
                rank = take(&mut n, self.ranks);
                column = take(&mut n, self.columns);
            }
        }
        if self.xor != 0 {
            channel ^= (offset >> self.xor & 1) as u32;
        }
        Location { channel, rank, bank, row: n as u32, column }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::collections::HashSet;

    #[test]
    fn map_every_order_gives_each_line_a_place_of_its_own() {
        for order in [AddressMap::RoRaBaCoCh, AddressMap::RoRaBaChCo, AddressMap::RoCoRaBaCh] {
            let c = DramConfig { map: order, ..Config::table1().dram };
            let map = Map::new(&c, 0x8000_0000);
            let mut seen = HashSet::new();
            for k in 0..100_000u64 {
                let l = map.locate(0x8000_0000 + k * 64);
                assert!(l.channel < c.channels && l.rank < c.ranks && l.bank < 16 && l.column < 128);
                assert!(seen.insert((l.channel, l.rank, l.bank, l.row, l.column)), "{order:?} maps two lines to {l:?}");
            }
        }
    }

    #[test]
    fn map_of_table1_takes_the_channel_from_bits_6_and_20() {
        let map = Map::new(&Config::table1().dram, 0x8000_0000);
        for (addr, channel) in [(0u64, 0), (64, 1), (1 << 20, 1), ((1 << 20) + 64, 0)] {
            assert_eq!(map.locate(0x8000_0000 + addr).channel, channel);
        }
    }
}
