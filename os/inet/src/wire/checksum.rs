//! The Internet checksum (RFC 1071) over scattered bytes. Sums are kept in native byte order and turned at the end;
//! long runs are added in eight lanes, which the compiler makes vector instructions of.

/// A sum being gathered. Pieces may have odd lengths: a piece that starts at an odd offset is added byte-swapped.
#[derive(Clone, Copy, Default, Debug)]
pub struct Checksum {
    sum: u64,
    odd: bool,
}

impl Checksum {
    /// An empty sum.
    pub const fn new() -> Checksum {
        Checksum { sum: 0, odd: false }
    }

    /// Adds the next bytes.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let part = u64::from(fold(sum(bytes)));
        self.sum += if self.odd { u64::from((part as u16).swap_bytes()) } else { part };
        self.odd ^= bytes.len() & 1 == 1;
    }

    /// Adds a 16-bit word given as a number. Only at an even offset.
    #[inline]
    pub fn add_u16(&mut self, word: u16) {
        self.sum += u64::from(word.to_be());
    }

    /// The checksum to put into a header: the complement of the folded sum.
    #[inline]
    pub fn finish(self) -> u16 {
        u16::from_be(!fold(self.sum))
    }

    /// Whether bytes that contain their own checksum are intact.
    #[inline]
    pub fn is_valid(self) -> bool {
        fold(self.sum) == 0xffff
    }

    /// The sum not complemented, as devices that finish a checksum expect it in the field.
    #[inline]
    pub fn partial(self) -> u16 {
        u16::from_be(fold(self.sum))
    }
}

/// The checksum of contiguous bytes, as a number.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = Checksum::new();
    sum.add(bytes);
    sum.finish()
}

#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A sum of 16-bit words congruent to that of `bytes`, small enough that millions of them can be added.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; 8];
    let mut long = bytes.chunks_exact(32);
    if bytes.len() >= 256 {
        for chunk in long.by_ref() {
            for (lane, word) in lanes.iter_mut().zip(chunk.chunks_exact(4)) {
                *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
            }
        }
    } else {
        long = [].chunks_exact(32);
    }
    let rest = if bytes.len() >= 256 { long.remainder() } else { bytes };
    let mut total: u64 = 0;
    for lane in lanes {
        total += (lane & 0xffff_ffff) + (lane >> 32);
    }
    let mut words = rest.chunks_exact(8);
    for word in words.by_ref() {
        let word = u64::from_ne_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        total += (word & 0xffff_ffff) + (word >> 32);
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        let mut last = [0u8; 8];
        last[..tail.len()].copy_from_slice(tail);
        let word = u64::from_ne_bytes(last);
        total += (word & 0xffff_ffff) + (word >> 32);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;

    /// RFC 1071's loop, word by word.
    fn model(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn checksum_of_random_bytes_matches_the_plain_loop() {
        let mut rng = Rng::new(1);
        for len in (0..600).chain([1460, 9000, 65535]) {
            let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            assert_eq!(checksum(&bytes), model(&bytes), "length {len}");
        }
    }

    #[test]
    fn checksum_in_odd_pieces_equals_checksum_of_the_whole() {
        let mut rng = Rng::new(2);
        let bytes: Vec<u8> = (0..3000).map(|_| rng.next_u64() as u8).collect();
        for _ in 0..200 {
            let (mut sum, mut at) = (Checksum::new(), 0);
            while at < bytes.len() {
                let n = (1 + rng.below(700) as usize).min(bytes.len() - at);
                sum.add(&bytes[at..at + n]);
                at += n;
            }
            assert_eq!(sum.finish(), model(&bytes));
        }
    }

    #[test]
    fn checksum_with_itself_inside_is_valid() {
        let mut bytes = vec![0x45, 0, 0, 20, 1, 2, 3, 4, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let sum = checksum(&bytes).to_be_bytes();
        bytes[10..12].copy_from_slice(&sum);
        let mut check = Checksum::new();
        check.add(&bytes);
        assert!(check.is_valid());
        bytes[4] ^= 1;
        let mut check = Checksum::new();
        check.add(&bytes);
        assert!(!check.is_valid());
    }
}
