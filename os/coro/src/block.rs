//! Waker blocks: the ready bits of 64 coroutines, and the wakers that set them from any thread at any time.
//!
//! A waker's data pointer points at its slot's reference counts inside the block; the block is aligned to its size, so
//! block and bit follow from the pointer alone. The block outlives the scheduler for as long as a waker lives.
//!
//! *Bits.* The owner sets and takes bits in `local` by plain loads and stores. Other threads set bits in `remote`, then
//! in the lane's remote summary, then in its remote top word; the owner takes them in the opposite order.
//!
//! *References* are biased: the owner counts in `Refs::local` by plain arithmetic, others in `Refs::remote` by atomic
//! arithmetic, and the sum is the number of wakers alive. Only the owner can tell when it is zero, and only it asks: a
//! slot is used again when no waker of its former coroutine is left. When the scheduler goes the counts are merged into
//! `remote`, and whoever drops the last waker frees the block.

use crate::sync::{Arc, AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, in_one_order, this_thread};
use crate::task::Chunk;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;
use std::task::{RawWaker, RawWakerVTable};

/// Coroutines a block, blocks a summary word and summary words a lane.
pub(crate) const SLOTS: usize = if cfg!(loom) { 2 } else { 64 };
/// Summary words a lane; with [`SLOTS`] blocks each.
pub(crate) const REGIONS: usize = if cfg!(loom) { 1 } else { 64 };

const ALIGN: usize = if cfg!(loom) { 4096 } else { 1024 };
/// An owner folds its count into the remote one at this distance from zero, so that neither overflows when wakers are
/// always made on one side and dropped on the other.
const FOLD: i32 = 1 << 20;
/// Added to a remote count when the scheduler is gone. Counts stay below half of it, see [`check_overflow`].
const ORPHANED: i32 = 1 << 30;

/// Wakes a runtime that sleeps, for example by writing to an eventfd. Called from any thread, at most once per
/// [`Scheduler::park_begin`](crate::Scheduler::park_begin).
pub trait Unpark: Send + Sync {
    /// Ends the sleep; must not block.
    fn unpark(&self);
}

/// The part of a scheduler that wakers on other threads reach.
pub(crate) struct Core {
    /// The owner is asleep or about to be, and wants [`Unpark::unpark`].
    sleeping: AtomicBool,
    unpark: Option<std::sync::Arc<dyn Unpark>>,
}

impl Core {
    pub(crate) fn new(unpark: Option<std::sync::Arc<dyn Unpark>>) -> Core {
        Core { sleeping: AtomicBool::new(false), unpark }
    }

    /// Owner: from here on a remote wake calls the hook. The caller must look for remote bits once more.
    pub(crate) fn sleep_begin(&self) {
        self.sleeping.store(true, Ordering::SeqCst); // SYNC sleeping -> notify
        in_one_order();
    }

    /// Owner: no hook calls wanted any more.
    pub(crate) fn sleep_end(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    fn notify(&self) {
        // SYNC sleeping <- sleep_begin: the bit was set (SeqCst) before this load, the owner sets the flag before it
        // looks at the bits, so one of the two sees the other.
        if self.sleeping.load(Ordering::SeqCst)
            && self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(hook) = &self.unpark
        {
            hook.unpark();
        }
    }
}

/// The summary words of one class.
pub(crate) struct Summary {
    /// Owner only: a bit per region with a listed block.
    pub(crate) top: AtomicU64,
    /// Owner only: a bit per listed block.
    pub(crate) regions: [AtomicU64; REGIONS],
    remote_top: Line<AtomicU64>,
    remote: [AtomicU64; REGIONS],
    core: Arc<Core>,
}

/// Keeps what other threads write away from the owner's cache lines.
#[repr(align(64))]
struct Line<T>(T);

impl Summary {
    pub(crate) fn new(core: Arc<Core>) -> Summary {
        Summary {
            top: AtomicU64::new(0),
            regions: std::array::from_fn(|_| AtomicU64::new(0)),
            remote_top: Line(AtomicU64::new(0)),
            remote: std::array::from_fn(|_| AtomicU64::new(0)),
            core,
        }
    }

    /// Whether another thread woke something that the owner has not taken yet. Costs a load.
    #[inline(always)]
    pub(crate) fn has_remote(&self) -> bool {
        self.remote_top.0.load(Ordering::Relaxed) != 0
    }

    /// As [`Summary::has_remote`], ordered after [`Core::sleep_begin`].
    pub(crate) fn has_remote_before_sleep(&self) -> bool {
        self.remote_top.0.load(Ordering::SeqCst) != 0
    }

    /// Owner: moves what other threads set into the owner's words. Returns the number of coroutines woken.
    #[cold]
    pub(crate) fn take_remote(&self, block_at: impl Fn(usize) -> Option<BlockRef>) -> u64 {
        let mut woken = 0;
        // SYNC remote <- wake_remote, in the opposite order of words.
        let mut top = self.remote_top.0.swap(0, Ordering::SeqCst);
        while top != 0 {
            let region = top.trailing_zeros() as usize;
            top &= top - 1;
            in_one_order();
            let mut blocks = self.remote[region].swap(0, Ordering::SeqCst);
            while blocks != 0 {
                let index = region * SLOTS + blocks.trailing_zeros() as usize;
                blocks &= blocks - 1;
                if let Some(block) = block_at(index) {
                    in_one_order();
                    let bits = block.get().remote.0.swap(0, Ordering::SeqCst);
                    woken += u64::from(bits.count_ones());
                    block.get().set_local(bits);
                }
            }
        }
        woken
    }
}

/// How many wakers of a slot are alive: `local + remote`.
#[repr(C)]
struct Refs {
    local: AtomicI32,
    remote: AtomicI32,
}

/// The ready bits of [`SLOTS`] coroutines of one class.
#[repr(C)]
#[cfg_attr(not(loom), repr(align(1024)))]
#[cfg_attr(loom, repr(align(4096)))]
pub(crate) struct Block {
    /// The owner's thread while the block is listed in the summary, else 0: one comparison decides for the short way.
    listed_owner: AtomicUsize,
    /// Ready bits, set and taken by the owner alone; atomic only so that a thread that inherits the identity of a dead
    /// owner races without undefined behaviour.
    local: AtomicU64,
    /// The owner's thread, 0 once the scheduler is gone.
    owner: AtomicUsize,
    /// Position among the lane's blocks.
    index: usize,
    /// The coroutines, for the owner alone; dangling once the scheduler is gone.
    chunk: *const Chunk,
    summary: Arc<Summary>,
    /// Once the scheduler is gone: slots with wakers alive, plus one during the handing over.
    pins: AtomicUsize,
    remote: Line<AtomicU64>,
    refs: Slots,
}

/// Aligned so that a slot's number is a few bits of its address.
#[repr(C)]
#[cfg_attr(not(loom), repr(align(512)))]
struct Slots([Refs; SLOTS]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Block>() == ALIGN && align_of::<Block>() == ALIGN && size_of::<Refs>() == 8);
const _: () = assert!(size_of::<Block>() <= ALIGN && align_of::<Block>() == ALIGN);

/// The owner's pointer to a block; valid until [`BlockRef::orphan`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRef(NonNull<Block>);

impl BlockRef {
    /// Allocates a block owned by this thread.
    pub(crate) fn new(index: usize, chunk: *const Chunk, summary: Arc<Summary>) -> BlockRef {
        let layout = Layout::new::<Block>();
        // SAFETY: the layout has a size.
        let block = unsafe { alloc(layout) }.cast::<Block>();
        let Some(block) = NonNull::new(block) else { handle_alloc_error(layout) };
        let value = Block {
            listed_owner: AtomicUsize::new(0),
            local: AtomicU64::new(0),
            owner: AtomicUsize::new(this_thread()),
            index,
            chunk,
            summary,
            pins: AtomicUsize::new(0),
            remote: Line(AtomicU64::new(0)),
            refs: Slots(std::array::from_fn(|_| Refs { local: AtomicI32::new(0), remote: AtomicI32::new(0) })),
        };
        // SAFETY: freshly allocated with the type's layout.
        unsafe { block.write(value) };
        BlockRef(block)
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> &Block {
        // SAFETY: the owner drops its references before it orphans the block, which alone frees it.
        unsafe { self.0.as_ref() }
    }

    /// The pointer a waker of `slot` carries.
    #[inline(always)]
    pub(crate) fn waker_data(self, slot: usize) -> *const () {
        // SAFETY: in bounds of the block, computed without a reference so that it may reach the whole block.
        unsafe { (&raw const (*self.0.as_ptr()).refs.0).cast::<Refs>().add(slot).cast() }
    }

    /// Gives the block up: it is freed now, or by whoever drops its last waker.
    pub(crate) fn orphan(self) {
        let block = self.get();
        block.owner.store(0, Ordering::Relaxed);
        block.listed_owner.store(0, Ordering::Relaxed);
        block.pins.store(SLOTS + 1, Ordering::Relaxed);
        let mut released = 1;
        for refs in &block.refs.0 {
            let local = refs.local.load(Ordering::Relaxed);
            let before = refs.remote.fetch_add(local + ORPHANED, Ordering::AcqRel); // SYNC orphan -> drop_remote
            if before + local == 0 {
                released += 1;
            }
        }
        // SAFETY: `released` pins are this function's own to give back, and the block is not used after.
        unsafe { unpin(self.0.as_ptr(), released) };
    }
}

/// Gives back `n` pins of an orphaned block and frees it with the last.
///
/// # Safety
/// The caller holds `n` pins and does not use the block after.
unsafe fn unpin(block: *const Block, n: usize) {
    // SAFETY: the caller's pins keep the block alive up to here.
    let before = unsafe { &*block }.pins.fetch_sub(n, Ordering::AcqRel);
    if before == n {
        // SAFETY: nobody else holds a pin, so this is the only pointer; it was allocated with this layout.
        unsafe {
            std::ptr::drop_in_place(block.cast_mut());
            dealloc(block.cast_mut().cast(), Layout::new::<Block>());
        }
    }
}

impl Block {
    #[inline(always)]
    pub(crate) fn chunk(&self) -> *const Chunk {
        self.chunk
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Owner: takes the ready bits.
    #[inline(always)]
    pub(crate) fn take_local(&self) -> u64 {
        let bits = self.local.load(Ordering::Relaxed);
        self.local.store(0, Ordering::Relaxed);
        bits
    }

    /// Owner: the ready bits.
    pub(crate) fn local(&self) -> u64 {
        self.local.load(Ordering::Relaxed)
    }

    /// Owner: the block stands in the summary no more.
    #[inline(always)]
    pub(crate) fn set_unlisted(&self) {
        self.listed_owner.store(0, Ordering::Relaxed);
    }

    /// Owner: makes the coroutines of `bits` ready.
    pub(crate) fn set_local(&self, bits: u64) {
        self.local.store(self.local.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
        let owner = self.owner.load(Ordering::Relaxed);
        if self.listed_owner.load(Ordering::Relaxed) != owner {
            self.listed_owner.store(owner, Ordering::Relaxed);
            let (region, bit) = (self.index / SLOTS, 1 << (self.index % SLOTS));
            let word = &self.summary.regions[region];
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
            let top = &self.summary.top;
            top.store(top.load(Ordering::Relaxed) | 1 << region, Ordering::Relaxed);
        }
    }

    /// Owner: forgets wakes of `bits`.
    pub(crate) fn clear_local(&self, bits: u64) {
        self.local.store(self.local.load(Ordering::Relaxed) & !bits, Ordering::Relaxed);
    }

    /// Owner: whether a waker of `slot` is alive anywhere.
    pub(crate) fn has_wakers(&self, slot: usize) -> bool {
        let refs = &self.refs.0[slot];
        // SYNC refs <- drop_remote: what a thread did before it dropped its waker happened before the slot's next use.
        refs.local.load(Ordering::Relaxed) + refs.remote.load(Ordering::Acquire) != 0
    }

    /// Owner: keeps `slot` from ever being used again.
    pub(crate) fn pin_slot(&self, slot: usize) {
        let local = &self.refs.0[slot].local;
        local.store(local.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Any thread: sets a ready bit and sees to it that the owner finds it.
    fn wake_remote(&self, slot: usize) {
        let (region, bit) = (self.index / SLOTS, 1u64 << (self.index % SLOTS));
        let summary = &*self.summary;
        // SYNC remote -> take_remote. Each word is set before the one above it is looked at, the owner clears from the
        // top: a bit seen above is one that the owner has yet to take, and it then finds the ones below.
        self.remote.0.fetch_or(1 << slot, Ordering::SeqCst);
        in_one_order();
        if summary.remote[region].load(Ordering::SeqCst) & bit == 0 {
            summary.remote[region].fetch_or(bit, Ordering::SeqCst);
        }
        if summary.remote_top.0.load(Ordering::SeqCst) & (1 << region) == 0 {
            summary.remote_top.0.fetch_or(1 << region, Ordering::SeqCst);
        }
        in_one_order();
        summary.core.notify();
    }
}

/// What every waker of this crate points at.
pub(crate) static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

#[inline(always)]
fn block_of(data: *const ()) -> *const Block {
    data.map_addr(|address| address & !(ALIGN - 1)).cast()
}

#[inline(always)]
fn slot_of(data: *const ()) -> usize {
    (((data.addr() & (ALIGN - 1)) - offset_of!(Block, refs)) / size_of::<Refs>()) & (SLOTS - 1)
}

/// Sets the ready bit of a waker, by a plain store when this is the owner's thread.
///
/// # Safety
/// `data` belongs to a live waker (or to the waker of a slot of a live scheduler).
#[inline(always)]
pub(crate) unsafe fn wake_by_data(data: *const ()) {
    // SAFETY: a live waker keeps its block alive.
    let block = unsafe { &*block_of(data) };
    if block.listed_owner.load(Ordering::Relaxed) == this_thread() {
        let bit = 1u64 << slot_of(data);
        block.local.store(block.local.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
    } else {
        wake_unlisted(block, slot_of(data));
    }
}

#[cold]
fn wake_unlisted(block: &Block, slot: usize) {
    if block.owner.load(Ordering::Relaxed) == this_thread() {
        block.set_local(1 << slot);
    } else {
        block.wake_remote(slot);
    }
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: called through a live waker.
    unsafe { wake_by_data(data) }
}

unsafe fn wake(data: *const ()) {
    // SAFETY: called through a live waker, which this consumes.
    unsafe {
        wake_by_data(data);
        drop_waker(data);
    }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: called through a live waker, which keeps its block alive.
    let block = unsafe { &*block_of(data) };
    let refs = &block.refs.0[slot_of(data)];
    if block.owner.load(Ordering::Relaxed) == this_thread() {
        let local = refs.local.load(Ordering::Relaxed) + 1;
        refs.local.store(local, Ordering::Relaxed);
        if local >= FOLD {
            fold(refs, local);
        }
    } else {
        check_overflow(refs.remote.fetch_add(1, Ordering::Relaxed));
    }
    RawWaker::new(data, &VTABLE)
}

unsafe fn drop_waker(data: *const ()) {
    let block = block_of(data);
    // SAFETY: called through a live waker, which keeps its block alive.
    let (owner, refs) = unsafe { ((*block).owner.load(Ordering::Relaxed), &(*block).refs.0[slot_of(data)]) };
    if owner == this_thread() {
        let local = refs.local.load(Ordering::Relaxed) - 1;
        refs.local.store(local, Ordering::Relaxed);
        if local <= -FOLD {
            fold(refs, local);
        }
        return;
    }
    // SYNC refs -> has_wakers, and drop_remote <- orphan.
    if refs.remote.fetch_sub(1, Ordering::AcqRel) == ORPHANED + 1 {
        // SAFETY: the count of an orphaned slot reached zero here and nowhere else: this is its pin.
        unsafe { unpin(block, 1) };
    }
}

/// Owner: moves its count into the remote one; the sum stays.
#[cold]
fn fold(refs: &Refs, local: i32) {
    check_overflow(refs.remote.fetch_add(local, Ordering::Relaxed).saturating_add(local));
    refs.local.store(0, Ordering::Relaxed);
}

/// More than 2^28 wakers of one coroutine: as with `Arc`, memory would run out first unless they are being forgotten.
fn check_overflow(count: i32) {
    // An orphaned count is offset; its distance from the offset is what counts.
    let count = if count > ORPHANED / 2 { count - ORPHANED } else { count };
    if count.abs() > ORPHANED / 4 {
        std::process::abort();
    }
}
