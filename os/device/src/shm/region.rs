//! The shared memory of a link. Each side owns one region, which only it writes and the other maps read-only:
//!
//! | offset | what |
//! | --- | --- |
//! | 0 | sleeping: 0 awake, else an odd number that changes with each sleep |
//! | 128 | how many of the other side's slots have been consumed |
//! | 256 | transmit slots of 128 bytes; the upper half of the first word is the lap in which it was filled |
//! | after them | completions: `lap << 16 \| token` of frames of the other side that are no longer used |
//!
//! A slot or completion is there when its lap is the expected one, so no counter has to travel with it. What the
//! other side writes is read once, word by word, into private memory and checked there.

use super::descriptor::WORDS;
use crate::Error;
use crate::sys::{self, Mapping};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Sizes both sides agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Transmit slots a side; a power of two.
    pub(crate) slots: u32,
    /// Frames a side may have in the other's hands; a power of two up to 32768, also the size of the completion ring.
    pub(crate) tokens: u32,
}

const SLEEPING: usize = 0;
const CONSUMED: usize = 128;
const SLOTS: usize = 256;
const SLOT_BYTES: usize = WORDS * 8;

const _: () = assert!(SLOT_BYTES == 128 && SLOTS.is_multiple_of(SLOT_BYTES));

impl Shape {
    /// Whether the numbers are ones we would offer ourselves.
    pub(crate) fn sound(self) -> bool {
        let slots = self.slots.is_power_of_two() && (16..=16_384).contains(&self.slots);
        slots && self.tokens.is_power_of_two() && (16..=32_768).contains(&self.tokens)
    }

    fn completions(self) -> usize {
        SLOTS + self.slots as usize * SLOT_BYTES
    }

    /// Bytes of a region, in whole pages.
    pub(crate) fn len(self) -> usize {
        (self.completions() + self.tokens as usize * 4).next_multiple_of(4096)
    }
}

/// A region: ours to write, or the peer's to read.
#[derive(Debug)]
struct Region {
    map: Mapping,
    shape: Shape,
}

impl Region {
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `at` bounds and aligns; the mapping lives as long as self and both sides use atomics only.
        unsafe { self.map.at::<AtomicU32>(offset).as_ref() }
    }

    #[inline]
    fn slot(&self, position: u32) -> &[AtomicU64; WORDS] {
        let index = (position & (self.shape.slots - 1)) as usize;
        // SAFETY: the index is below `slots`, whose end the constructor proved to lie inside the mapping, and the
        // slots start at an aligned offset of a page-aligned mapping; both sides use atomics only.
        unsafe { self.map.base().add(SLOTS + index * SLOT_BYTES).cast::<[AtomicU64; WORDS]>().as_ref() }
    }

    #[inline]
    fn completion(&self, position: u32) -> &AtomicU32 {
        let index = (position & (self.shape.tokens - 1)) as usize;
        // SAFETY: as for slots; the completions end inside the mapping too.
        unsafe { self.map.base().add(self.shape.completions() + index * 4).cast::<AtomicU32>().as_ref() }
    }

    fn slot_lap(&self, position: u32) -> u32 {
        (position / self.shape.slots).wrapping_add(1)
    }

    fn completion_lap(&self, position: u32) -> u16 {
        (position / self.shape.tokens).wrapping_add(1) as u16
    }
}

/// Our region, which we alone write.
#[derive(Debug)]
pub(crate) struct Own {
    region: Region,
    file: OwnedFd,
    sent: u32,
    completed: u32,
    sleeps: u32,
}

impl Own {
    /// Creates a region, maps it, and seals it against any other writer.
    pub(crate) fn create(shape: Shape) -> Result<Own, Error> {
        assert!(shape.sound());
        let file = sys::memory_file(c"towpath-shm", shape.len())?;
        let map = Mapping::new(file.as_raw_fd(), 0, shape.len(), true, "mapping the rings")?;
        sys::seal(file.as_raw_fd())?;
        Ok(Own { region: Region { map, shape }, file, sent: 0, completed: 0, sleeps: 0 })
    }

    /// The memory file, to be passed to the peer.
    pub(crate) fn file(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Slots sent so far, modulo 2^32.
    #[inline]
    pub(crate) fn sent(&self) -> u32 {
        self.sent
    }

    /// The lap to encode into the next slot.
    #[inline]
    pub(crate) fn lap(&self) -> u32 {
        self.region.slot_lap(self.sent)
    }

    /// Fills the next slot; the caller has seen room.
    #[inline]
    pub(crate) fn push(&mut self, words: &[u64; WORDS], used: usize) {
        let slot = self.region.slot(self.sent);
        for (to, &from) in slot[1..used].iter().zip(&words[1..used]) {
            to.store(from, Ordering::Relaxed);
        }
        slot[0].store(words[0], Ordering::Release); // SYNC slot-filled -> Peer::pop
        self.sent = self.sent.wrapping_add(1);
    }

    /// Returns a frame to the peer.
    #[inline]
    pub(crate) fn complete(&mut self, token: u16) {
        let lap = self.region.completion_lap(self.completed);
        let word = u32::from(lap) << 16 | u32::from(token);
        self.region.completion(self.completed).store(word, Ordering::Release); // SYNC frame-unused -> pop_completion
        self.completed = self.completed.wrapping_add(1);
    }

    /// Tells the peer how many of its slots are free again.
    pub(crate) fn publish_consumed(&self, count: u32) {
        self.region.word(CONSUMED).store(count, Ordering::Release); // SYNC slot-free -> Peer::consumed
    }

    /// Announces sleep; with `wants_completions` returned frames wake too.
    pub(crate) fn sleep(&mut self, wants_completions: bool) {
        self.sleeps = self.sleeps.wrapping_add(1);
        let word = self.sleeps << 2 | u32::from(wants_completions) << 1 | 1;
        self.region.word(SLEEPING).store(word, Ordering::SeqCst);
    }

    /// Announces being awake.
    pub(crate) fn wake(&self) {
        self.region.word(SLEEPING).store(0, Ordering::Relaxed);
    }
}

/// The peer's region. Every word of it may be a lie.
#[derive(Debug)]
pub(crate) struct Peer {
    region: Region,
    received: u32,
    completions: u32,
}

impl Peer {
    /// Maps the region the peer offered, read-only, once it is proven that it cannot shrink.
    pub(crate) fn map(file: RawFd, shape: Shape) -> Result<Peer, Error> {
        if !shape.sound() {
            return Err(Error::Protocol(format!("the peer offered rings of a senseless shape: {shape:?}")));
        }
        if sys::sealed_len(file)? < shape.len() as u64 {
            return Err(Error::Protocol("the peer's rings are shorter than it says".into()));
        }
        let map = Mapping::new(file, 0, shape.len(), false, "mapping the peer's rings")?;
        Ok(Peer { region: Region { map, shape }, received: 0, completions: 0 })
    }

    /// Slots received so far, modulo 2^32.
    #[inline]
    pub(crate) fn received(&self) -> u32 {
        self.received
    }

    /// Whether the next slot is filled.
    #[inline]
    pub(crate) fn has_slot(&self) -> bool {
        let first = self.region.slot(self.received)[0].load(Ordering::Acquire);
        (first >> 32) as u32 == self.region.slot_lap(self.received)
    }

    /// Copies the next slot's words to private memory, if it is filled. `used` is asked for how many of them there
    /// are; `None` from it means the slot is nonsense, and only the first word is copied.
    #[inline]
    pub(crate) fn pop(&mut self, used: impl Fn(u64) -> Option<usize>) -> Option<[u64; WORDS]> {
        let slot = self.region.slot(self.received);
        let first = slot[0].load(Ordering::Acquire); // SYNC slot-filled <- Own::push
        if (first >> 32) as u32 != self.region.slot_lap(self.received) {
            // While waiting for the first line, ask for the second: both then come in one round trip.
            crate::sys::prefetch(std::ptr::from_ref(&slot[WORDS / 2]).cast());
            return None;
        }
        let mut words = [0; WORDS];
        words[0] = first;
        let count = used(first).unwrap_or(1).min(WORDS);
        for (to, from) in words[1..count].iter_mut().zip(&slot[1..count]) {
            *to = from.load(Ordering::Relaxed);
        }
        self.received = self.received.wrapping_add(1);
        Some(words)
    }

    /// Takes the next returned token, if there is one; it may be any number.
    #[inline]
    pub(crate) fn pop_completion(&mut self) -> Option<u16> {
        let word = self.region.completion(self.completions).load(Ordering::Acquire); // SYNC frame-unused <- complete
        if (word >> 16) as u16 != self.region.completion_lap(self.completions) {
            return None;
        }
        self.completions = self.completions.wrapping_add(1);
        Some(word as u16)
    }

    /// Whether a returned token waits.
    pub(crate) fn has_completion(&self) -> bool {
        let word = self.region.completion(self.completions).load(Ordering::Acquire);
        (word >> 16) as u16 == self.region.completion_lap(self.completions)
    }

    /// Our slots the peer says it has consumed.
    pub(crate) fn consumed(&self) -> u32 {
        self.region.word(CONSUMED).load(Ordering::Acquire) // SYNC slot-free <- publish_consumed
    }

    /// The peer's sleeping word.
    #[inline]
    pub(crate) fn sleeping(&self) -> u32 {
        self.region.word(SLEEPING).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { slots: 16, tokens: 16 };

    #[test]
    fn slots_and_completions_cross_through_many_laps() {
        let mut own = Own::create(SHAPE).unwrap();
        let mut peer = Peer::map(own.file(), SHAPE).unwrap();
        for round in 0..1_000_000_u64 {
            if round % 16 == 0 {
                assert!(!peer.has_slot());
                assert_eq!(peer.pop_completion(), None);
            }
            let mut words = [round; WORDS];
            words[0] = u64::from(own.lap()) << 32 | 5;
            own.push(&words, 3);
            own.complete(round as u16);
            let got = peer.pop(|_| Some(3)).unwrap();
            assert_eq!((got[0] as u32, got[1], got[2], got[3]), (5, round, round, 0));
            assert_eq!(peer.pop_completion(), Some(round as u16));
        }
    }

    #[test]
    fn region_of_senseless_shape_or_length_is_refused() {
        let own = Own::create(SHAPE).unwrap();
        for shape in [
            Shape { slots: 0, tokens: 16 },
            Shape { slots: 17, tokens: 16 },
            Shape { slots: 16, tokens: 65_536 },
            Shape { slots: 4096, tokens: 16 },
        ] {
            assert!(matches!(Peer::map(own.file(), shape), Err(Error::Protocol(_))), "{shape:?}");
        }
    }
}
