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
    #[cfg(not(loom))]
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

    #[cfg(not(loom))]
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

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Node {
        value: UnsafeCell<u32>,
        next: UnsafeCell<*mut Node>,
    }

    /// A superblock's remote half, as other threads and its owner see it.
    struct Super {
        bits: AtomicU64,
        queued: AtomicU32,
        next: AtomicU64,
        /// Written by the freeing thread before, read by the owner after: the object itself.
        object: [UnsafeCell<u32>; 2],
    }

    #[test]
    fn marks_of_two_threads_are_each_collected_once_and_in_order() {
        loom::model(|| {
            let stack = Arc::new(Stack::new());
            let sb = Arc::new(Super {
                bits: AtomicU64::new(0),
                queued: AtomicU32::new(0),
                next: AtomicU64::new(0),
                object: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            let freeing: Vec<_> = (0..2u32)
                .map(|bit| {
                    let (stack, sb) = (stack.clone(), sb.clone());
                    thread::spawn(move || {
                        // SAFETY: only this thread writes the object until its mark is set.
                        sb.object[bit as usize].with_mut(|o| unsafe { *o = 7 });
                        assert!(mark(&sb.bits, bit));
                        if claim(&sb.queued) {
                            stack.push(1, &sb.next);
                        }
                    })
                })
                .collect();
            let mut got = 0;
            let mut drain = || {
                if stack.take() == 0 {
                    return;
                }
                unclaim(&sb.queued);
                let bits = collect(&sb.bits);
                assert_eq!(got & bits, 0, "collected twice");
                for bit in (0..2).filter(|b| bits >> b & 1 == 1) {
                    // SAFETY: the mark was collected, so whoever freed the object is done with it.
                    sb.object[bit].with(|o| assert_eq!(unsafe { *o }, 7));
                }
                got |= bits;
            };
            drain();
            for t in freeing {
                t.join().unwrap();
            }
            drain();
            assert_eq!(got, 0b11, "a mark was lost");
        });
    }

    #[test]
    fn double_mark_is_refused_to_exactly_one() {
        loom::model(|| {
            let word = Arc::new(AtomicU64::new(0));
            let other = word.clone();
            let there = thread::spawn(move || mark(&other, 5));
            let here = mark(&word, 5);
            assert!(here != there.join().unwrap());
            assert_eq!(collect(&word), 1 << 5);
        });
    }

    #[test]
    fn nodes_of_two_threads_are_each_taken_once_with_their_contents() {
        loom::model(|| {
            let list = Arc::new(List::<Node>::new());
            let pushing: Vec<_> = (1..3u32)
                .map(|value| {
                    let list = list.clone();
                    thread::spawn(move || {
                        let node = Node { value: UnsafeCell::new(value), next: UnsafeCell::new(std::ptr::null_mut()) };
                        let node = Box::into_raw(Box::new(node));
                        // SAFETY: the node is this thread's until the push publishes it.
                        list.push(node, |head| unsafe { (*node).next.with_mut(|n| *n = head) });
                    })
                })
                .collect();
            let mut sum = 0;
            let mut drain = || {
                let mut node = list.take();
                while !node.is_null() {
                    // SAFETY: nodes come from Box::into_raw, and each is taken once: that is what is tried here.
                    let taken = unsafe { Box::from_raw(node) };
                    // SAFETY: the node is ours alone now; so below.
                    sum += taken.value.with(|v| unsafe { *v });
                    // SAFETY: as above.
                    node = taken.next.with(|n| unsafe { *n });
                }
            };
            drain();
            for t in pushing {
                t.join().unwrap();
            }
            drain();
            assert_eq!(sum, 3);
        });
    }
}
