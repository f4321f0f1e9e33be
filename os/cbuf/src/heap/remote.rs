//! Frees from other cores. Two lock-free queues of many producers and one consumer, each a list that producers push
//! on with one compare-and-swap and the owner takes whole with one swap, so there is no ABA:
//!
//! - [`Bits`] for raw objects (malloc): the freeing thread sets the object's bit in the superblock's remote bitmap,
//!   which finds double frees by itself and touches no freed memory, and queues the superblock if it is not queued.
//! - [`List`] for buffers that travelled as `RemoteBuf`: their own small nodes are linked.

use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A list many threads push on and one takes whole. Entries are nonzero numbers.
pub(crate) struct Stack(AtomicU64);

impl Stack {
    #[cfg(loom)]
    pub(crate) fn new() -> Stack {
        Stack(AtomicU64::new(0))
    }

    /// Nothing is on it, as far as this thread sees.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Pushes `entry`, whose link is `next`.
    pub(crate) fn push(&self, entry: u64, next: &AtomicU64) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            next.store(head, Ordering::Relaxed);
            // SYNC link-and-entry-written -> take
            match self.0.compare_exchange_weak(head, entry, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes everything: the first entry, or zero.
    pub(crate) fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Acquire) // SYNC <- push
    }
}

/// Marks bit `bit` of `word` freed from afar; false if it was marked already (a double free).
pub(crate) fn mark(word: &AtomicU64, bit: u32) -> bool {
    // SYNC the freeing thread's last use of the object -> collect
    word.fetch_or(1 << bit, Ordering::Release) & (1 << bit) == 0
}

/// Claims the right to queue a superblock: true for the one caller who must push it.
pub(crate) fn claim(queued: &AtomicU32) -> bool {
    queued.swap(1, Ordering::AcqRel) == 0
}

/// Ends the queueing of a superblock; marks made before are seen by a [`collect`] after it, and whoever marks later
/// queues it again.
pub(crate) fn unclaim(queued: &AtomicU32) {
    // Both halves matter: acquire pairs with the claim of a marker that found it queued and therefore did not push.
    queued.swap(0, Ordering::AcqRel);
}

/// Takes the marked bits of a word.
pub(crate) fn collect(word: &AtomicU64) -> u64 {
    word.swap(0, Ordering::Acquire) // SYNC <- mark
}

/// A list of heap nodes many threads push on and one takes whole.
pub(crate) struct List<T>(AtomicPtr<T>);

impl<T> List<T> {
    #[cfg(loom)]
    pub(crate) fn new() -> List<T> {
        List(AtomicPtr::new(std::ptr::null_mut()))
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Pushes `node`; `link` stores the head it is given into the node.
    pub(crate) fn push(&self, node: *mut T, mut link: impl FnMut(*mut T)) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link(head);
            // SYNC node-written -> take
            match self.0.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes everything: the first node or null.
    pub(crate) fn take(&self) -> *mut T {
        self.0.swap(std::ptr::null_mut(), Ordering::Acquire) // SYNC <- push
    }
}
