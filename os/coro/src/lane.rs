//! The coroutines of one class: where they lie, which are ready, and the loop that runs them.

use crate::block::{BlockRef, Core, REGIONS, SLOTS, Summary};
use crate::sync::{Arc, Ordering};
use crate::task::{Chunk, Class, Entry, Owned, PollFn, SpawnError, TaskId};
use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Most coroutines a class can have: three levels of 64.
pub(crate) const LANE_MAX: usize = SLOTS * SLOTS * REGIONS;

/// How far the current pass over the ready coroutines has come. Kept across calls, so that a small budget of polls
/// reaches every ready coroutine in turn.
struct Pass {
    regions: Cell<u64>,
    region: Cell<usize>,
    blocks: Cell<u64>,
    block: Cell<Option<BlockRef>>,
    /// Ready bits taken from `block`. While a pass runs these are the bits as they were taken; what remains of them
    /// follows from the coroutine that runs, because they are taken in ascending order.
    slots: Cell<u64>,
}

/// A slot of a lane.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) block: BlockRef,
    pub(crate) slot: usize,
}

/// The coroutines of one class.
pub(crate) struct Lane {
    class: Class,
    summary: Arc<Summary>,
    /// By index, made as they are needed; room for all of them.
    blocks: Box<[Cell<Option<BlockRef>>]>,
    made: Cell<usize>,
    /// Blocks that may have room.
    open: RefCell<Vec<usize>>,
    pass: Pass,
    live: Cell<usize>,
    retired: Cell<usize>,
    limit: usize,
}

impl Lane {
    pub(crate) fn new(class: Class, limit: usize, core: Arc<Core>) -> Lane {
        let limit = limit.min(LANE_MAX);
        Lane {
            class,
            summary: Arc::new(Summary::new(core)),
            blocks: std::iter::repeat_with(|| Cell::new(None)).take(limit.div_ceil(SLOTS)).collect(),
            made: Cell::new(0),
            open: RefCell::new(Vec::new()),
            pass: Pass {
                regions: Cell::new(0),
                region: Cell::new(0),
                blocks: Cell::new(0),
                block: Cell::new(None),
                slots: Cell::new(0),
            },
            live: Cell::new(0),
            retired: Cell::new(0),
            limit,
        }
    }

    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    fn chunk(&self, block: BlockRef) -> &Chunk {
        // SAFETY: a chunk lives from the making of its block to the drop of this lane.
        unsafe { &*block.get().chunk() }
    }

    fn block(&self, index: usize) -> Option<BlockRef> {
        self.blocks.get(index).and_then(Cell::get)
    }

    /// Something may be ready here; never false when something is (other threads' wakes aside).
    #[inline(always)]
    pub(crate) fn maybe_ready(&self) -> bool {
        (self.summary.top.load(Ordering::Relaxed) | self.pass.slots.get() | self.pass.blocks.get()) != 0
    }

    /// Takes over the wakes of other threads.
    #[inline(always)]
    pub(crate) fn take_remote(&self) -> u64 {
        if self.summary.has_remote() { self.summary.take_remote(|index| self.block(index)) } else { 0 }
    }

    /// Whether a coroutine is ready, exactly, with the wakes of other threads that are visible.
    pub(crate) fn has_ready(&self) -> bool {
        if self.summary.has_remote() {
            return true;
        }
        if let Some(block) = self.pass.block.get()
            && self.pass.slots.get() & self.chunk(block).occupied() != 0
        {
            return true;
        }
        let mut regions = self.summary.top.load(Ordering::Relaxed);
        while regions != 0 {
            let region = regions.trailing_zeros() as usize;
            regions &= regions - 1;
            let mut blocks = self.summary.regions[region].load(Ordering::Relaxed);
            while blocks != 0 {
                let index = region * SLOTS + blocks.trailing_zeros() as usize;
                blocks &= blocks - 1;
                let Some(block) = self.block(index) else { continue };
                if block.get().local() & self.chunk(block).occupied() != 0 {
                    return true;
                }
            }
        }
        false
    }

    pub(crate) fn has_remote_before_sleep(&self) -> bool {
        self.summary.has_remote_before_sleep()
    }

    /// Runs ready coroutines, each at most once, until the pass is over or `left` polls are used up; updates `left`.
    /// Coroutines woken meanwhile wait for the next pass. `current` names the one that runs; `ended` is called for one
    /// that is done.
    #[inline(always)]
    pub(crate) fn run(&self, current: &Cell<*const Entry>, left: &Cell<usize>, ended: impl Fn(Place)) {
        let pass = &self.pass;
        let mut budget = left.get();
        let mut slots = pass.slots.get();
        let mut blocks = pass.blocks.get();
        let mut regions = pass.regions.get();
        if slots | blocks | regions == 0 {
            regions = self.summary.top.load(Ordering::Relaxed);
        }
        while budget != 0 {
            if slots == 0 {
                while blocks == 0 {
                    if regions == 0 {
                        pass.clear();
                        left.set(budget);
                        return;
                    }
                    blocks = self.enter_region(&mut regions);
                }
                slots = self.enter_block(&mut blocks);
                left.set(budget);
                continue;
            }
            let Some(block) = pass.block.get() else { break };
            let entries = self.chunk(block).entries.as_ptr();
            while slots != 0 && budget != 0 {
                let slot = slots.trailing_zeros() as usize;
                slots &= slots - 1;
                budget -= 1;
                // SAFETY: a word has no more bits than a chunk has entries.
                let entry = unsafe { &*entries.add(slot) };
                current.set(entry);
                // SAFETY: this loop is never entered from inside itself (`Scheduler::run_ready` sees to it).
                if unsafe { entry.poll() }.is_ready() {
                    ended(Place { block, slot });
                }
            }
        }
        pass.slots.set(slots);
        left.set(budget);
    }

    /// The listed blocks of the next region of this pass.
    #[inline(always)]
    fn enter_region(&self, regions: &mut u64) -> u64 {
        let region = regions.trailing_zeros() as usize;
        *regions &= *regions - 1;
        let blocks = self.summary.regions[region].load(Ordering::Relaxed);
        if blocks == 0 {
            let top = &self.summary.top;
            top.store(top.load(Ordering::Relaxed) & !(1 << region), Ordering::Relaxed);
        }
        self.pass.region.set(region);
        self.pass.regions.set(*regions);
        blocks
    }

    /// Takes the ready bits of the next listed block of this region. A block found idle leaves the summary here and not
    /// when its last coroutine blocks, so that one whose coroutines yield in a loop never leaves it.
    #[inline(always)]
    fn enter_block(&self, blocks: &mut u64) -> u64 {
        let bit = blocks.trailing_zeros() as usize;
        *blocks &= *blocks - 1;
        let region = self.pass.region.get();
        let Some(block) = self.block(region * SLOTS + bit) else { return 0 };
        let taken = block.get().take_local();
        if taken == 0 {
            block.get().set_unlisted();
            let word = &self.summary.regions[region];
            word.store(word.load(Ordering::Relaxed) & !(1 << bit), Ordering::Relaxed);
        }
        // Wakers of coroutines that ended may have set bits.
        let slots = taken & self.chunk(block).occupied();
        self.pass.blocks.set(*blocks);
        self.pass.block.set(Some(block));
        self.pass.slots.set(slots);
        slots
    }

    /// After a panic took the coroutine at `slot` of the pass's block: what comes after it is still to run. Returns how
    /// many polls of this block `left` does not know of yet.
    pub(crate) fn resume_after(&self, slot: usize) -> usize {
        let behind = u64::MAX.checked_shl(slot as u32 + 1).unwrap_or(0);
        let taken = self.pass.slots.get();
        self.pass.slots.set(taken & behind);
        (taken & !behind).count_ones() as usize
    }

    /// The place of the coroutine that runs in this lane, if `entry` is one of the pass's block.
    pub(crate) fn place_of(&self, entry: *const Entry) -> Option<Place> {
        let block = self.pass.block.get()?;
        self.slot_in(block, entry).map(|slot| Place { block, slot })
    }

    fn slot_in(&self, block: BlockRef, entry: *const Entry) -> Option<usize> {
        let base = self.chunk(block).entries.as_ptr().addr();
        let slot = entry.addr().checked_sub(base)? / size_of::<Entry>();
        (slot < SLOTS).then_some(slot)
    }

    /// Polls the `turn`th coroutine of a fast-path lane, at most `n` times and only while `go_on`.
    pub(crate) fn run_fast(
        &self,
        turn: usize,
        n: u32,
        current: &Cell<*const Entry>,
        left: &Cell<usize>,
        go_on: impl Fn() -> bool,
        ended: impl Fn(Place),
    ) {
        let Some(place) = self.nth(turn) else { return };
        let Place { block, slot } = place;
        self.pass.block.set(Some(block));
        let entry = &self.chunk(block).entries[slot];
        for _ in 0..n {
            left.set(left.get() - 1);
            current.set(entry);
            // SAFETY: as in `run`.
            let done = unsafe { entry.poll() }.is_ready();
            // It is polled again anyway: waking itself, as a yield does, says nothing.
            block.get().clear_local(1 << slot);
            if done {
                return ended(place);
            }
            if left.get() == 0 || !go_on() {
                return;
            }
        }
    }

    /// The coroutine at position `turn` modulo their number, by place.
    fn nth(&self, turn: usize) -> Option<Place> {
        let mut skip = turn.checked_rem(self.live.get())?;
        for index in 0..self.made.get() {
            let block = self.block(index)?;
            let mut occupied = self.chunk(block).occupied();
            let here = occupied.count_ones() as usize;
            if skip >= here {
                skip -= here;
                continue;
            }
            for _ in 0..skip {
                occupied &= occupied - 1;
            }
            return Some(Place { block, slot: occupied.trailing_zeros() as usize });
        }
        None
    }

    /// Puts a coroutine into a free slot and makes it ready.
    pub(crate) fn install(&self, task: Owned, poll: PollFn) -> Result<TaskId, SpawnError> {
        let Place { block, slot } = self.vacancy().ok_or(SpawnError::Full { limit: self.limit })?;
        let chunk = self.chunk(block);
        chunk.install(slot, task, poll);
        self.live.set(self.live.get() + 1);
        block.get().set_local(1 << slot);
        Ok(self.id(Place { block, slot }))
    }

    pub(crate) fn id(&self, place: Place) -> TaskId {
        let index = place.block.get().index() * SLOTS + place.slot;
        TaskId::new(self.class, index, self.chunk(place.block).generation(place.slot))
    }

    fn vacancy(&self) -> Option<Place> {
        if self.live.get() >= self.limit {
            return None;
        }
        loop {
            let last = self.open.borrow().last().copied();
            let Some(index) = last else {
                if self.retired.get() >= SLOTS && self.reclaim_everywhere() {
                    continue;
                }
                return self.grow();
            };
            let block = self.block(index)?;
            let chunk = self.chunk(block);
            if let Some(slot) = chunk.vacant() {
                return Some(Place { block, slot });
            }
            if self.reclaim(block) == 0 {
                chunk.open.set(false);
                self.open.borrow_mut().pop();
            }
        }
    }

    /// Makes a block. What can be reclaimed is reclaimed instead when no more blocks are allowed.
    fn grow(&self) -> Option<Place> {
        let index = self.made.get();
        if index == self.blocks.len() {
            return if self.reclaim_everywhere() { self.vacancy() } else { None };
        }
        let memory = Box::leak(Box::<Chunk>::new_uninit());
        let memory: NonNull<MaybeUninit<Chunk>> = NonNull::from(memory);
        let block = BlockRef::new(index, memory.cast().as_ptr(), self.summary.clone());
        // SAFETY: the memory is this function's own; from here on it is a chunk.
        unsafe { memory.cast::<Chunk>().write(Chunk::new(block)) };
        self.blocks[index].set(Some(block));
        self.made.set(index + 1);
        let mut open = self.open.borrow_mut();
        // Later pushes, one a block at most, must not allocate.
        open.reserve(index + 1);
        open.push(index);
        Some(Place { block, slot: 0 })
    }

    /// Frees the slots of `block` that no waker points at any more; returns how many.
    fn reclaim(&self, block: BlockRef) -> u32 {
        let freed = self.chunk(block).reclaim(|slot| block.get().has_wakers(slot));
        self.forget_wakes(block, freed);
        self.retired.set(self.retired.get() - freed.count_ones() as usize);
        freed.count_ones()
    }

    /// Late wakes are not for the next coroutine of a slot.
    fn forget_wakes(&self, block: BlockRef, slots: u64) {
        self.take_remote();
        block.get().clear_local(slots);
        if self.pass.block.get() == Some(block) {
            self.pass.slots.set(self.pass.slots.get() & !slots);
        }
    }

    fn reclaim_everywhere(&self) -> bool {
        let mut any = false;
        for index in 0..self.made.get() {
            let Some(block) = self.block(index) else { break };
            if self.reclaim(block) != 0 {
                any = true;
                self.reopen(block);
            }
        }
        any
    }

    fn reopen(&self, block: BlockRef) {
        if !self.chunk(block).open.replace(true) {
            self.open.borrow_mut().push(block.get().index());
        }
    }

    /// Takes the coroutine off its slot. The caller drops it, then calls [`Lane::settle`].
    pub(crate) fn remove(&self, place: Place) -> Option<Owned> {
        let chunk = self.chunk(place.block);
        let task = chunk.remove(place.slot)?;
        self.forget_wakes(place.block, 1 << place.slot);
        self.live.set(self.live.get() - 1);
        self.retired.set(self.retired.get() + 1);
        if chunk.generation(place.slot) == u32::MAX {
            // Every id of this slot has been given out.
            place.block.get().pin_slot(place.slot);
        }
        Some(task)
    }

    /// After a removed coroutine was dropped, its wakers with it: its slot is free unless others hold some.
    pub(crate) fn settle(&self, place: Place) {
        if self.reclaim(place.block) != 0 {
            self.reopen(place.block);
        }
    }

    /// The place that `id` names, if its coroutine lives and is not cancelled.
    pub(crate) fn find(&self, id: TaskId) -> Option<Place> {
        let block = self.block(id.index() / SLOTS)?;
        let slot = id.index() % SLOTS;
        self.chunk(block).holds(slot, id.generation()).then_some(Place { block, slot })
    }

    pub(crate) fn is_at(&self, place: Place, entry: *const Entry) -> bool {
        std::ptr::eq(&self.chunk(place.block).entries[place.slot], entry)
    }

    /// Marks the coroutine that runs as cancelled and lets it be polled once more, which ends it.
    pub(crate) fn cancel_running(&self, place: Place) {
        self.chunk(place.block).cancel_running(place.slot);
        place.block.get().set_local(1 << place.slot);
    }

    /// The ids of all coroutines, collected.
    pub(crate) fn ids(&self) -> Vec<TaskId> {
        let mut ids = Vec::with_capacity(self.live.get());
        for block in self.blocks.iter().filter_map(Cell::get) {
            let mut occupied = self.chunk(block).occupied();
            while occupied != 0 {
                let slot = occupied.trailing_zeros() as usize;
                occupied &= occupied - 1;
                ids.push(self.id(Place { block, slot }));
            }
        }
        ids
    }
}

impl Pass {
    #[inline(always)]
    fn clear(&self) {
        self.regions.set(0);
        self.blocks.set(0);
        self.slots.set(0);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        for block in self.blocks.iter().filter_map(Cell::take) {
            let chunk = block.get().chunk().cast_mut();
            block.orphan();
            // SAFETY: made by `grow` in a box of this type, and no pointer to it is used after: the wakers that still
            // live look at the block alone.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}
