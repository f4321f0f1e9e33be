//! Secrets and randomness, all grown from the seed the caller passed in: a stack given the same seed, packets, calls
//! and times does the same things. SipHash-2-4 keys initial sequence numbers (RFC 6528), ports (RFC 6056), SYN cookies
//! (RFC 4987) and timestamps; a folded multiplication with secret keys spreads the demultiplexing table.

/// SplitMix64: passes the seed on as a sequence of well-mixed words. Not for secrets by itself.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A sequence that `seed` determines.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next word.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n` (0 if `n` is 0).
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64 <= p
    }
}

/// A 128-bit key of SipHash.
#[derive(Clone, Copy, Debug)]
pub struct Key(pub u64, pub u64);

impl Key {
    /// SipHash-2-4 of `words` (their bytes in little-endian order, length folded in as the paper says).
    pub fn hash(&self, words: &[u64]) -> u64 {
        let mut v = [
            self.0 ^ 0x736f_6d65_7073_6575,
            self.1 ^ 0x646f_7261_6e64_6f6d,
            self.0 ^ 0x6c79_6765_6e65_7261,
            self.1 ^ 0x7465_6462_7974_6573,
        ];
        for &word in words.iter().chain([&((words.len() as u64 * 8) << 56)]) {
            v[3] ^= word;
            round(&mut v);
            round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        for _ in 0..4 {
            round(&mut v);
        }
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// Multiplies to 128 bits and folds the halves: the mixing step of the table's keyed hash.
#[inline]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ (wide >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_of_reference_vectors_matches_the_paper() {
        let key = Key(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(key.hash(&[]), 0x726f_db47_dd0e_0e31, "no bytes");
        assert_eq!(key.hash(&[0x0706_0504_0302_0100]), 0x93f5_f579_9a93_2462, "eight bytes");
    }

    #[test]
    fn rng_below_stays_below_and_repeats_by_seed() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        for n in 1..200 {
            let x = a.below(n);
            assert!(x < n);
            assert_eq!(x, b.below(n));
        }
    }
}
