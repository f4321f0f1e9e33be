//! One frame as the words of a ring slot: a header, small bytes inline, and pieces that name bytes in the sender's
//! arenas. Decoding believes nothing: possession of a [`Descriptor`] proves that counts and lengths fit the slot, and
//! a [`Piece`] becomes memory only through the arena's own bounds check.

use crate::RxChecksum;

/// Words of a slot: two cache lines.
pub(crate) const WORDS: usize = 16;
/// Words before the inline bytes.
const HEAD: usize = 2;
/// Most bytes that travel inside the slot.
pub(crate) const INLINE_MAX: usize = (WORDS - HEAD) * 8;
/// Most pieces of one frame.
pub(crate) const PIECES_MAX: usize = (WORDS - HEAD) / 2;
/// Longest frame: a full IP packet, Ethernet header with one VLAN tag.
pub(crate) const FRAME_MAX: usize = 65_535 + 18;

const PARTIAL: u64 = 1;

/// Bytes in an arena of the sender: a *claim* until the arena has checked it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) arena: u32,
    pub(crate) len: u32,
    pub(crate) offset: u64,
}

/// A decoded or to be encoded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) token: u16,
    pub(crate) checksum: RxChecksum,
    pub(crate) gso_size: u16,
    pub(crate) inline_len: usize,
    pub(crate) inline: [u8; INLINE_MAX],
    pub(crate) pieces: [Piece; PIECES_MAX],
    pub(crate) piece_count: usize,
}

impl Descriptor {
    /// An empty frame.
    pub(crate) fn new() -> Descriptor {
        Descriptor {
            token: 0,
            checksum: RxChecksum::Unknown,
            gso_size: 0,
            inline_len: 0,
            inline: [0; INLINE_MAX],
            pieces: [Piece::default(); PIECES_MAX],
            piece_count: 0,
        }
    }

    /// Words that `inline` bytes and `pieces` pieces take.
    fn words(inline: usize, pieces: usize) -> usize {
        HEAD + inline.div_ceil(8) + 2 * pieces
    }

    /// Whether `inline` bytes and `pieces` pieces share a slot.
    pub(crate) fn fits(inline: usize, pieces: usize) -> bool {
        Self::words(inline, pieces) <= WORDS
    }

    /// Appends inline bytes; the caller has checked that they fit.
    #[inline]
    pub(crate) fn push_inline(&mut self, bytes: &[u8]) {
        let end = self.inline_len + bytes.len();
        self.inline[self.inline_len..end].copy_from_slice(bytes);
        self.inline_len = end;
    }

    /// Appends a piece; the caller has checked that it fits.
    pub(crate) fn push_piece(&mut self, piece: Piece) {
        self.pieces[self.piece_count] = piece;
        self.piece_count += 1;
    }

    /// The inline bytes.
    #[inline]
    pub(crate) fn inline(&self) -> &[u8] {
        &self.inline[..self.inline_len]
    }

    /// Length of the frame.
    pub(crate) fn frame_len(&self) -> usize {
        let pieces: usize = self.pieces[..self.piece_count].iter().map(|p| p.len as usize).sum();
        self.inline_len + pieces
    }

    /// Writes the slot's words for the turn `lap` and says how many are used.
    pub(crate) fn encode(&self, lap: u32, out: &mut [u64; WORDS]) -> usize {
        let (start, offset, flags) = match self.checksum {
            RxChecksum::Partial { start, offset } => (start, offset, PARTIAL),
            _ => (0, 0, 0),
        };
        let counts = (self.inline_len as u64) << 8 | (self.piece_count as u64) << 4 | flags;
        out[0] = u64::from(lap) << 32 | u64::from(self.token) << 16 | counts;
        out[1] = u64::from(start) | u64::from(offset) << 16 | u64::from(self.gso_size) << 32;
        let inline_words = self.inline_len.div_ceil(8);
        for (word, bytes) in out[HEAD..HEAD + inline_words].iter_mut().zip(self.inline.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let mut at = HEAD + inline_words;
        for piece in &self.pieces[..self.piece_count] {
            out[at] = u64::from(piece.arena) << 32 | u64::from(piece.len);
            out[at + 1] = piece.offset;
            at += 2;
        }
        at
    }

    /// Words a slot claims to use, from its first word; `None` if that is more than a slot has.
    pub(crate) fn used_words(first: u64) -> Option<usize> {
        let words = Self::words((first >> 8 & 0xff) as usize, (first >> 4 & 0xf) as usize);
        (words <= WORDS).then_some(words)
    }

    /// Reads a private copy of a slot's words.
    ///
    /// # Errors
    /// What is wrong with it, for the message that ends the link.
    pub(crate) fn decode(words: &[u64; WORDS]) -> Result<Descriptor, &'static str> {
        let first = words[0];
        let used = Self::used_words(first).ok_or("a slot claims more words than it has")?;
        let mut out = Descriptor::new();
        out.token = (first >> 16) as u16;
        out.inline_len = (first >> 8 & 0xff) as usize;
        out.gso_size = (words[1] >> 32) as u16;
        let inline_words = out.inline_len.div_ceil(8);
        for (word, bytes) in words[HEAD..HEAD + inline_words].iter().zip(out.inline.as_chunks_mut().0) {
            *bytes = word.to_le_bytes();
        }
        for pair in words[HEAD + inline_words..used].chunks_exact(2) {
            let piece = Piece { arena: (pair[0] >> 32) as u32, len: pair[0] as u32, offset: pair[1] };
            if piece.len == 0 || piece.len as usize > FRAME_MAX {
                return Err("a piece is empty or longer than a frame");
            }
            out.push_piece(piece);
        }
        let len = out.frame_len();
        if len == 0 || len > FRAME_MAX {
            return Err("a frame is empty or too long");
        }
        if first & PARTIAL != 0 {
            let (start, offset) = (words[1] as u16, (words[1] >> 16) as u16);
            if usize::from(start) + usize::from(offset) + 2 > len {
                return Err("a checksum lies outside its frame");
            }
            out.checksum = RxChecksum::Partial { start, offset };
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(inline: &[u8], pieces: &[Piece]) -> Descriptor {
        let mut descriptor = Descriptor::new();
        descriptor.push_inline(inline);
        pieces.iter().for_each(|p| descriptor.push_piece(*p));
        descriptor
    }

    #[test]
    fn descriptor_encoded_then_decoded_is_the_same() {
        let piece = Piece { arena: 3, len: 1448, offset: 0x1_2345_6000 };
        for inline in [0, 1, 7, 8, 66, 80] {
            let bytes: Vec<u8> = (0..inline as u8).collect();
            let mut descriptor = sample(&bytes, &[piece, piece]);
            descriptor.token = 999;
            descriptor.gso_size = 1448;
            descriptor.checksum = RxChecksum::Partial { start: 34, offset: 16 };
            let mut words = [0; WORDS];
            let used = descriptor.encode(7, &mut words);
            assert_eq!(Descriptor::used_words(words[0]), Some(used));
            assert_eq!(words[0] >> 32, 7);
            let back = Descriptor::decode(&words).unwrap();
            assert_eq!(back, descriptor);
            assert_eq!(back.inline(), &bytes[..]);
        }
    }

    #[test]
    fn slot_with_impossible_counts_is_refused() {
        let mut words = [0; WORDS];
        words[0] = 113 << 8;
        assert!(Descriptor::decode(&words).is_err(), "more inline bytes than the slot has");
        words[0] = 8 << 4;
        assert!(Descriptor::decode(&words).is_err(), "more pieces than the slot has");
        words[0] = 0;
        assert!(Descriptor::decode(&words).is_err(), "an empty frame");
        words[0] = 1 << 4;
        assert!(Descriptor::decode(&words).is_err(), "an empty piece");
        words[2] = 65_554;
        assert!(Descriptor::decode(&words).is_err(), "a frame over the limit");
    }

    #[test]
    fn random_words_decode_to_something_sound_or_nothing() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..200_000 {
            let mut words = [0; WORDS];
            for word in &mut words {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *word = state;
            }
            words[0] &= 0xffff_ffff_ffff_3f3f;
            if let Ok(descriptor) = Descriptor::decode(&words) {
                assert!(Descriptor::fits(descriptor.inline_len, descriptor.piece_count));
                assert!((1..=FRAME_MAX).contains(&descriptor.frame_len()));
            }
        }
    }
}
