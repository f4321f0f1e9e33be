//! A coroutine as the scheduler sees it: a poll function, a boxed future, a waker made once.

use crate::block::{BlockRef, SLOTS, VTABLE};
use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// What a coroutine is for; decides when it runs (Demikernel, section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Program code. All that are ready run once before anything else gets a turn.
    Program = 0,
    /// Work of an I/O stack that can wait: retransmission, acknowledgements, window updates. One that is ready runs
    /// between two rounds of program coroutines, in turn with the fast path.
    Background = 1,
    /// Polls a device. Always ready; yields to the others after [`Config::fast_path_polls`](crate::Config) polls, and at
    /// once when it has made a program coroutine ready.
    FastPath = 2,
}

/// Names one coroutine for ever: the id of an ended coroutine is never given to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    class_and_index: u32,
    generation: u32,
}

const CLASS_SHIFT: u32 = 30;

impl TaskId {
    pub(crate) fn new(class: Class, index: usize, generation: u32) -> TaskId {
        TaskId { class_and_index: (class as u32) << CLASS_SHIFT | index as u32, generation }
    }

    /// The class it was spawned in.
    pub fn class(self) -> Class {
        match self.class_and_index >> CLASS_SHIFT {
            0 => Class::Program,
            1 => Class::Background,
            _ => Class::FastPath,
        }
    }

    pub(crate) fn index(self) -> usize {
        (self.class_and_index & ((1 << CLASS_SHIFT) - 1)) as usize
    }

    pub(crate) fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{}#{}", self.class(), self.index(), self.generation)
    }
}

/// Why a coroutine could not be spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// The class has as many coroutines (or slots that wakers of ended ones still hold) as it may have.
    Full {
        /// How many that is.
        limit: usize,
    },
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::Full { limit } => write!(
                f,
                "cannot spawn a coroutine: {limit} are alive, the most this class may have; end some, or raise \
                 Config::max_tasks"
            ),
        }
    }
}

impl std::error::Error for SpawnError {}

pub(crate) type PollFn = unsafe fn(*mut (), &mut Context<'_>) -> Poll<()>;

/// What `Entry::data` points at. The header comes first, so that the pointer serves without knowing `F`.
#[repr(C)]
struct Task<F> {
    drop: unsafe fn(*mut ()),
    future: F,
}

/// A future taken off its slot; dropping this drops it.
pub(crate) struct Owned(*mut ());

impl Owned {
    pub(crate) fn new<F: Future<Output = ()> + 'static>(future: F) -> (Owned, PollFn) {
        let task = Box::into_raw(Box::new(Task { drop: drop_task::<F>, future }));
        (Owned(task.cast()), poll_task::<F>)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Owned::new` and is dropped only here; `drop` matches its type.
        unsafe { (*self.0.cast::<unsafe fn(*mut ())>())(self.0) }
    }
}

unsafe fn drop_task<F>(data: *mut ()) {
    // SAFETY: `data` came from a box of this type and is not used after.
    drop(unsafe { Box::from_raw(data.cast::<Task<F>>()) });
}

unsafe fn poll_task<F: Future<Output = ()>>(data: *mut (), cx: &mut Context<'_>) -> Poll<()> {
    // SAFETY: `data` is the box of this type, which never moves, and the scheduler polls no coroutine inside itself.
    let future = unsafe { Pin::new_unchecked(&mut (*data.cast::<Task<F>>()).future) };
    future.poll(cx)
}

/// Stands in an empty slot: a wake that comes late does nothing.
unsafe fn poll_empty(_: *mut (), _: &mut Context<'_>) -> Poll<()> {
    Poll::Pending
}

/// Stands in for a coroutine that cancelled itself.
unsafe fn poll_ended(_: *mut (), _: &mut Context<'_>) -> Poll<()> {
    Poll::Ready(())
}

/// A slot. Half a cache line, all that a switch reads.
#[repr(C)]
pub(crate) struct Entry {
    poll: Cell<PollFn>,
    data: Cell<*mut ()>,
    /// Not counted among the slot's wakers: it lives as long as the block's owner does.
    waker: ManuallyDrop<Waker>,
}

impl Entry {
    /// Polls what stands in the slot.
    ///
    /// # Safety
    /// The slot is not being polled already.
    #[inline(always)]
    pub(crate) unsafe fn poll(&self) -> Poll<()> {
        let mut cx = Context::from_waker(&self.waker);
        // SAFETY: `poll` and `data` were set together; the caller vouches for the rest.
        unsafe { (self.poll.get())(self.data.get(), &mut cx) }
    }
}

/// The owner's side of a block: its coroutines. Never moves.
pub(crate) struct Chunk {
    pub(crate) entries: [Entry; SLOTS],
    generations: [Cell<u32>; SLOTS],
    /// Slots with a coroutine.
    occupied: Cell<u64>,
    /// Slots whose coroutine ended while wakers of it live on.
    retired: Cell<u64>,
    /// Coroutines that cancelled themselves and still run.
    canceled: Cell<u64>,
    /// Stands in the lane's list of blocks with room.
    pub(crate) open: Cell<bool>,
}

const ALL: u64 = u64::MAX >> (64 - SLOTS);

impl Chunk {
    pub(crate) fn new(block: BlockRef) -> Chunk {
        Chunk {
            entries: std::array::from_fn(|slot| Entry {
                poll: Cell::new(poll_empty),
                data: Cell::new(std::ptr::null_mut()),
                // SAFETY: the table's functions expect exactly this pointer.
                waker: ManuallyDrop::new(unsafe { Waker::new(block.waker_data(slot), &VTABLE) }),
            }),
            generations: std::array::from_fn(|_| Cell::new(0)),
            occupied: Cell::new(0),
            retired: Cell::new(0),
            canceled: Cell::new(0),
            open: Cell::new(true),
        }
    }

    pub(crate) fn occupied(&self) -> u64 {
        self.occupied.get()
    }

    pub(crate) fn generation(&self, slot: usize) -> u32 {
        self.generations[slot].get()
    }

    /// A slot without coroutine and without wakers of a former one.
    pub(crate) fn vacant(&self) -> Option<usize> {
        let free = !(self.occupied.get() | self.retired.get()) & ALL;
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    pub(crate) fn install(&self, slot: usize, task: Owned, poll: PollFn) {
        let task = ManuallyDrop::new(task);
        let entry = &self.entries[slot];
        entry.data.set(task.0);
        entry.poll.set(poll);
        self.occupied.set(self.occupied.get() | 1 << slot);
    }

    /// Whether `slot` holds the coroutine of `generation`, not cancelled yet.
    pub(crate) fn holds(&self, slot: usize, generation: u32) -> bool {
        (self.occupied.get() & !self.canceled.get()) >> slot & 1 == 1 && self.generation(slot) == generation
    }

    /// Marks a coroutine that is being polled: its next poll ends it.
    pub(crate) fn cancel_running(&self, slot: usize) {
        self.canceled.set(self.canceled.get() | 1 << slot);
        self.entries[slot].poll.set(poll_ended);
    }

    /// Takes the coroutine off its slot, which retires: see [`Chunk::reclaim`]. `None` if there is none.
    pub(crate) fn remove(&self, slot: usize) -> Option<Owned> {
        let bit = 1u64 << slot;
        if self.occupied.get() & bit == 0 {
            return None;
        }
        let entry = &self.entries[slot];
        entry.poll.set(poll_empty);
        self.occupied.set(self.occupied.get() & !bit);
        self.canceled.set(self.canceled.get() & !bit);
        self.retired.set(self.retired.get() | bit);
        self.generations[slot].set(self.generation(slot).wrapping_add(1));
        Some(Owned(entry.data.replace(std::ptr::null_mut())))
    }

    /// Frees the retired slots that no waker points at any more; returns which.
    pub(crate) fn reclaim(&self, has_wakers: impl Fn(usize) -> bool) -> u64 {
        let mut left = self.retired.get();
        let mut freed = 0u64;
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            if !has_wakers(slot) {
                freed |= 1 << slot;
            }
        }
        self.retired.set(self.retired.get() & !freed);
        freed
    }
}
