//! Behind the magazines: superblocks with their free bitmaps, the drain of what other threads freed, the return of
//! memory to the system, and the end of a pool.

use super::class::{self, COUNT};
use super::pool::{Life, Misuse, PROGRAM, Pool, Taken};
use super::remote;
use super::space::{Desc, NONE, Place, Space};
use crate::sys;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Wholly free superblocks a pool keeps without asking the clock.
const IDLE_KEPT: usize = 1 << 20;
/// Wholly free superblocks a pool keeps at most: a batch of 64 objects of 1 MB may come and go without the system.
const IDLE_MOST: usize = 72 << 20;
/// What is left of them when they exceed that.
const IDLE_LEFT: usize = 16 << 20;
/// Half of what is idle goes back this often.
const DECAY_MILLIS: u64 = 50;

#[inline(always)]
fn super_bytes(class: usize) -> usize {
    class::size(class) << class::objects_log2(class)
}

impl Pool {
    fn desc(&self, class: usize, number: u32) -> &Desc {
        self.space().desc(class, number)
    }

    fn bits(&self, class: usize, number: u32) -> &[Cell<u64>] {
        let words = class::words(class);
        // SAFETY: the bitmap table covers every superblock of the region; the words of an owned superblock are this
        // pool's alone.
        unsafe {
            let at = self.space().geometry(class).free_bits.add(number as usize * words);
            std::slice::from_raw_parts(at, words)
        }
    }

    fn unlink(&self, head: &Cell<u32>, class: usize, number: u32) {
        let desc = self.desc(class, number);
        let (prev, next) = (desc.prev.get(), desc.next.get());
        if prev == NONE {
            head.set(next);
        } else {
            self.desc(class, prev).next.set(next);
        }
        if next != NONE {
            self.desc(class, next).prev.set(prev);
        }
        desc.next.set(NONE);
        desc.prev.set(NONE);
    }

    fn link(&self, head: &Cell<u32>, class: usize, number: u32) {
        let desc = self.desc(class, number);
        let next = head.replace(number);
        desc.next.set(next);
        desc.prev.set(NONE);
        if next != NONE {
            self.desc(class, next).prev.set(number);
        }
    }

    /// Takes free objects out of superblocks into `slots`; how many.
    pub(super) fn collect(&self, class: usize, slots: &mut [Taken]) -> u32 {
        let mut got = 0;
        while got < slots.len() {
            let mut number = self.partial[class].get();
            if number == NONE {
                // A fresh or idle superblock is opened only for the first object.
                if got > 0 || !self.open_super(class) {
                    break;
                }
                number = self.partial[class].get();
            }
            got += self.pick(class, number, &mut slots[got..]);
        }
        // Lower addresses are handed out first.
        slots[..got].reverse();
        got as u32
    }

    /// Puts a wholly free superblock on the empty list of partial ones; false if there is none to be had.
    fn open_super(&self, class: usize) -> bool {
        let idle = self.empty[class].get();
        if idle != NONE {
            self.unlink(&self.empty[class], class, idle);
            self.idle.set(self.idle.get() - super_bytes(class));
            self.link(&self.partial[class], class, idle);
            return true;
        }
        let bytes = super_bytes(class);
        if self.in_use_after(bytes) > self.allowed.get() {
            self.give_idle_back(0);
            if self.in_use_after(bytes) > self.allowed.get() {
                return false;
            }
        }
        let Some(number) = self.space().take_super(class, self.index) else { return false };
        let objects = 1u32 << class::objects_log2(class);
        for (i, word) in self.bits(class, number).iter().enumerate() {
            let here = objects - i as u32 * 64;
            word.set(if here >= 64 { u64::MAX } else { (1 << here) - 1 });
        }
        self.desc(class, number).free.set(objects);
        self.held.set(self.held.get() + bytes);
        self.link(&self.partial[class], class, number);
        true
    }

    fn in_use_after(&self, bytes: usize) -> usize {
        self.held.get() + self.huge.get() + bytes
    }

    /// Takes free objects of one superblock.
    fn pick(&self, class: usize, number: u32, slots: &mut [Taken]) -> usize {
        let first = number << class::objects_log2(class);
        let mut got = 0;
        for (i, word) in self.bits(class, number).iter().enumerate() {
            let mut bits = word.get();
            while bits != 0 && got < slots.len() {
                slots[got] = self.object(class, first + i as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
                got += 1;
            }
            word.set(bits);
            if got == slots.len() {
                break;
            }
        }
        let desc = self.desc(class, number);
        desc.free.set(desc.free.get() - got as u32);
        if desc.free.get() == 0 {
            self.unlink(&self.partial[class], class, number);
        }
        got
    }

    /// Puts free objects back into their superblocks.
    pub(super) fn put_back(&self, class: usize, objects: &[Taken]) {
        let log2 = class::objects_log2(class);
        for object in objects {
            let index = self.index_of(class, object.state);
            let (number, bit) = (index >> log2, index & ((1 << log2) - 1));
            let word = &self.bits(class, number)[bit as usize / 64];
            let mask = 1u64 << (bit % 64);
            assert!(word.get() & mask == 0, "an object was freed into its superblock twice");
            word.set(word.get() | mask);
            let desc = self.desc(class, number);
            let free = desc.free.get() + 1;
            desc.free.set(free);
            if free == 1 {
                self.link(&self.partial[class], class, number);
            }
            if free == 1 << log2 {
                self.unlink(&self.partial[class], class, number);
                self.link(&self.empty[class], class, number);
                self.idle.set(self.idle.get() + super_bytes(class));
            }
        }
        if self.idle.get() > IDLE_KEPT {
            self.decay();
        }
    }

    /// Gives idle superblocks back, half of them at a time and not more often than every [`DECAY_MILLIS`], so that a
    /// program that allocates and frees in turns does not pay the system each time; beyond [`IDLE_MOST`] at once, so
    /// that one which frees everything and then rests does not keep it. Whether the time had come.
    pub(crate) fn decay(&self) -> bool {
        let idle = self.idle.get();
        if idle > IDLE_MOST {
            self.give_idle_back(IDLE_LEFT);
            return false;
        }
        let now = sys::coarse_millis();
        if now.wrapping_sub(self.trimmed.get()) < DECAY_MILLIS {
            return false;
        }
        self.trimmed.set(now);
        self.give_idle_back(if idle <= 2 * IDLE_KEPT { 0 } else { idle / 2 });
        true
    }

    /// What the slow paths do last: when much is idle and the time has come, gives some of it back, and halves the
    /// magazines, whose few objects can each keep a superblock from being idle.
    pub(super) fn tidy(&self) {
        if self.idle.get() > IDLE_KEPT && self.decay() {
            self.halve_magazines();
        }
    }

    /// Gives idle superblocks back to the system until at most `keep` bytes of them are left.
    pub(crate) fn give_idle_back(&self, keep: usize) {
        for class in (0..COUNT).rev() {
            while self.idle.get() > keep {
                let number = self.empty[class].get();
                if number == NONE {
                    break;
                }
                self.unlink(&self.empty[class], class, number);
                self.idle.set(self.idle.get() - super_bytes(class));
                self.held.set(self.held.get() - super_bytes(class));
                self.space().release_super(class, number);
            }
        }
    }

    /// Gives back everything that is free, magazines included.
    pub(crate) fn trim(&self) {
        self.drain();
        for class in 0..COUNT {
            self.shed(class, 0);
        }
        self.give_idle_back(0);
    }

    /// Bytes of superblocks and mappings this pool holds.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.get() + self.huge.get()
    }

    /// Counts a mapping made for one large object against the limit; false if it does not fit.
    pub(crate) fn reserve_huge(&self, bytes: usize) -> bool {
        if self.in_use_after(bytes) > self.allowed.get() {
            self.trim();
            if self.in_use_after(bytes) > self.allowed.get() {
                return false;
            }
        }
        self.huge.set(self.huge.get() + bytes);
        true
    }

    /// The configured limit in bytes.
    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit.get()
    }

    /// Objects and buffers of this pool that other threads freed so far.
    pub(crate) fn remote_frees(&self) -> u64 {
        self.remote_freed.get()
    }

    /// Takes in what other threads freed.
    #[inline(always)]
    pub(crate) fn drain(&self) {
        if !self.remote_nodes.is_empty() {
            crate::buf::drain_nodes(self);
        }
        if !self.remote_supers.is_empty() {
            self.drain_supers();
        }
    }

    /// Counts objects freed from other threads.
    pub(crate) fn count_remote(&self, n: u64) {
        self.remote_freed.set(self.remote_freed.get() + n);
    }

    #[cold]
    #[inline(never)]
    fn drain_supers(&self) {
        let mut entry = self.remote_supers.take();
        while entry != 0 {
            let (class, number) = unpack(entry);
            let desc = self.desc(class, number);
            entry = desc.remote_next.load(Ordering::Relaxed);
            remote::unclaim(&desc.queued);
            let words = class::words(class);
            for i in 0..words {
                // SAFETY: the remote bitmap table covers every superblock of the region.
                let word = unsafe { &*self.space().geometry(class).remote_bits.add(number as usize * words + i) };
                if word.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let mut bits = remote::collect(word);
                while bits != 0 {
                    let index = (number << class::objects_log2(class)) + i as u32 * 64 + bits.trailing_zeros();
                    bits &= bits - 1;
                    self.count_remote(1);
                    // A local free that raced with the remote one was counted there; the object is free, not lost.
                    let ptr = self.object(class, index).ptr;
                    let _ = self.free_local(Place { class, index, start: true }, ptr);
                }
            }
        }
    }

    /// Ends the use of this pool by its thread. What is free goes back to the system, the pool itself to the next
    /// who needs one, at the latest when the last buffer of it is dropped.
    pub(crate) fn retire(&'static self) {
        self.drain();
        self.close_magazines();
        self.give_idle_back(0);
        self.frames.close();
        self.life.store(Life::Lingering as u32, Ordering::Relaxed);
        self.settle();
    }

    /// After a drop in a pool that was retired: passes it on once no buffer is left on this thread.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(&self) {
        if self.life.load(Ordering::Relaxed) != Life::Lingering as u32 || self.buffers() > 0 {
            return;
        }
        self.give_idle_back(0);
        self.life.store(Life::Orphan as u32, Ordering::SeqCst);
        // Whoever drops a travelling buffer after this store sees it and reaps; who did so before is drained now.
        self.reap();
    }

    /// Takes in what other threads dropped of an orphaned pool, and passes the pool on when nothing is abroad.
    #[cold]
    pub(crate) fn reap(&self) {
        let _guard = self.space().reaping();
        if self.life.load(Ordering::SeqCst) != Life::Orphan as u32 {
            return;
        }
        self.drain();
        self.give_idle_back(0);
        if self.abroad.get() == 0 {
            self.frames.leave();
            self.life.store(Life::Spare as u32, Ordering::Relaxed);
            self.space().give_pool(self.index);
        }
    }
}

/// The entry of a superblock on a remote list.
fn pack(class: usize, number: u32) -> u64 {
    ((class as u64) << 32 | u64::from(number)) + 1
}

fn unpack(entry: u64) -> (usize, u32) {
    (((entry - 1) >> 32) as usize, (entry - 1) as u32)
}

/// Frees an object of another thread's pool.
pub(crate) fn free_remote(space: &Space, place: Place, owner: *const Pool) -> Result<(), Misuse> {
    let g = space.geometry(place.class);
    let log2 = class::objects_log2(place.class);
    let number = place.index >> log2;
    let bit = place.index & ((1 << log2) - 1);
    // SAFETY: tables cover every object of the region; the state byte is only read, by an atomic.
    let (state, word) = unsafe {
        let state = &*g.states.add((place.index as usize) << class::state_shift(place.class));
        (state, &*g.remote_bits.add(number as usize * class::words(place.class) + bit as usize / 64))
    };
    if state.load(Ordering::Relaxed) & PROGRAM == 0 || !remote::mark(word, bit % 64) {
        return Err(Misuse::DoubleFree);
    }
    let desc = space.desc(place.class, number);
    if remote::claim(&desc.queued) {
        // SAFETY: pools are never unmapped, and the list is made for other threads to push on.
        unsafe { (*owner).remote_supers.push(pack(place.class, number), &desc.remote_next) };
    }
    Ok(())
}
