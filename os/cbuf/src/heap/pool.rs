//! A pool: what one core (or one thread of a program on the malloc replacement) allocates from. Its hot paths are a
//! magazine for each size class, a stack of free objects that `take` pops and `give` pushes with plain loads and
//! stores; what is behind them is in [`super::supers`].
//!
//! No free object's memory holds anything of the allocator's, so writing through a stale pointer cannot corrupt it.
//! Each object has a state byte: bit 0 is the program's reference (a `malloc` not yet freed), the bits above count
//! references of buffers; counts that do not fit spill into a table. An object is free only when the byte is zero,
//! which is the use-after-free protection: a `free` by the program while the library OS, a device or TCP still holds
//! the object only clears bit 0, and the last holder makes the memory free.

use super::class::{self, COUNT, MAGAZINE_MAX};
use super::remote;
use super::space::{self, Desc, EXTENT, Geometry, NONE, Place, Space};
use crate::frame::FramePool;
use std::cell::{Cell, UnsafeCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// The program's reference in a state byte.
pub(crate) const PROGRAM: u8 = 1;
/// One buffer's reference in a state byte.
pub(crate) const REF: u8 = 2;
/// The count of references is in the spill table.
const SPILLED: u8 = 0xfe;

/// The magazine of one class, with what the hot paths need of the class: one cache line.
#[repr(C, align(64))]
pub(crate) struct Magazine {
    n: Cell<u32>,
    /// Zero in an orphaned pool, so that every `give` takes the slow path.
    cap: Cell<u32>,
    base: Cell<*mut u8>,
    states: Cell<*mut AtomicU8>,
    slots: Cell<*mut Taken>,
    descs: Cell<*const Desc>,
    reciprocal: Cell<u64>,
    size: Cell<u32>,
    shift: Cell<u8>,
    objects_log2: Cell<u8>,
}

const _: () = assert!(size_of::<Magazine>() == 64);

/// What became of a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Life {
    /// Nobody's, on the list of pools to take.
    Spare = 0,
    /// A core or thread uses it.
    Live = 1,
    /// Its handle is gone, but buffers of it are alive on its thread.
    Lingering = 2,
    /// No buffer of it is left on its thread, only some that travelled to other threads.
    Orphan = 3,
}

/// One core's allocator.
#[repr(C)]
pub(crate) struct Pool {
    mags: [Magazine; COUNT],
    /// Buffers alive on this thread.
    refs: Cell<usize>,
    /// Buffers that are with other threads.
    pub abroad: Cell<usize>,
    pub index: u32,
    pub life: AtomicU32,
    /// Next spare pool.
    pub next: Cell<u32>,
    /// The thread this pool works for.
    pub thread: Cell<u64>,
    pub frames: FramePool,
    // What follows is for slow paths.
    pub(super) space: Cell<Option<&'static Space>>,
    pub(super) partial: [Cell<u32>; COUNT],
    pub(super) empty: [Cell<u32>; COUNT],
    /// Bytes of superblocks owned, and of those the wholly free ones.
    pub(super) held: Cell<usize>,
    pub(super) idle: Cell<usize>,
    pub(super) limit: Cell<usize>,
    pub(super) allowed: Cell<usize>,
    pub(super) trimmed: Cell<u64>,
    pub(super) remote_freed: Cell<u64>,
    /// Bytes mapped one by one for large buffers.
    pub huge: Cell<usize>,
    spill: UnsafeCell<BTreeMap<usize, u64>>,
    /// Superblocks with objects that other threads freed.
    pub(super) remote_supers: remote::Stack,
    /// Buffers that other threads dropped.
    pub remote_nodes: remote::List<crate::buf::RemoteNode>,
    slots: [[Cell<std::mem::MaybeUninit<Taken>>; MAGAZINE_MAX as usize]; COUNT],
}

/// A fresh object, as a magazine keeps it. Either address follows from the other; both are kept so that an object
/// which is freed and taken at once comes back by one load, whichever of the two its user has.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Taken {
    pub ptr: *mut u8,
    pub state: *mut AtomicU8,
}

/// Why a free was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// The object is free already.
    DoubleFree,
    /// The pointer never came from this heap.
    Foreign,
    /// The pointer is inside an object, not at its start.
    Interior,
    /// The memory around the pointer was given back to the system since.
    Stale,
}

impl Pool {
    /// Writes a fresh pool.
    ///
    /// # Safety
    /// `at` is zeroed memory for a pool, not used by anybody.
    pub(crate) unsafe fn write(at: *mut Pool, index: u32, space: &'static Space) {
        // SAFETY: zero is a valid value of every other field: cells, atomics, null pointers, `None`; the map is
        // written before any reference to the pool exists.
        unsafe {
            (&raw mut (*at).index).write(index);
            (&raw mut (*at).spill).write(UnsafeCell::new(BTreeMap::new()));
            let pool = &*at;
            pool.space.set(Some(space));
            pool.next.set(NONE);
            for class in 0..COUNT {
                pool.partial[class].set(NONE);
                pool.empty[class].set(NONE);
                let g: &Geometry = space.geometry(class);
                let m = &pool.mags[class];
                m.base.set(g.base);
                m.states.set(g.states);
                m.slots.set((&raw mut (*at).slots[class]).cast());
                m.size.set(class::size(class) as u32);
                m.descs.set(g.descs);
                m.shift.set(class::state_shift(class) as u8);
                m.objects_log2.set(class::objects_log2(class) as u8);
                m.reciprocal.set(space::reciprocal(class));
            }
        }
    }

    /// Puts the pool to work for the calling thread, with at most `limit` bytes of superblocks and mappings.
    pub(crate) fn adopt(&self, limit: usize) {
        self.limit.set(limit);
        // What the last user's program never freed is not charged to this one.
        self.allowed.set(limit.saturating_add(self.held.get() + self.huge.get()));
        self.remote_freed.set(0);
        self.thread.set(crate::sys::thread_id());
        for (class, m) in self.mags.iter().enumerate() {
            m.cap.set(class::magazine(class));
        }
        self.frames.open();
        self.life.store(Life::Live as u32, Ordering::Relaxed);
    }

    pub(super) fn space(&self) -> &'static Space {
        self.space.get().expect("a pool is written with its space")
    }

    #[inline(always)]
    fn mag(&self, class: usize) -> &Magazine {
        debug_assert!(class < COUNT);
        // SAFETY: classes come from `class::of`, a buffer made with one, or `Space::locate`, all below COUNT.
        unsafe { self.mags.get_unchecked(class) }
    }

    /// Takes an object of `class`, with `state` as its state byte; `None` when memory or the limit is exhausted.
    #[inline(always)]
    pub(crate) fn take(&self, class: usize, state: u8) -> Option<Taken> {
        let m = self.mag(class);
        let mut n = m.n.get();
        if n == 0 {
            n = self.refill(class);
            if n == 0 {
                return None;
            }
        }
        n -= 1;
        m.n.set(n);
        // SAFETY: the magazine holds `n + 1` free objects of this class.
        unsafe {
            let taken = *m.slots.get().add(n as usize);
            (*taken.state).store(state, Ordering::Relaxed);
            Some(taken)
        }
    }

    /// Makes an object free. Its state byte is zero already.
    ///
    /// # Safety
    /// `object` is an object of `class` that belongs to this pool, was in use, and is on no list.
    #[inline(always)]
    pub(crate) unsafe fn give(&self, class: usize, object: Taken) {
        let m = self.mag(class);
        let n = m.n.get();
        if n >= m.cap.get() {
            return self.flush(class, object);
        }
        // SAFETY: `n < cap <= MAGAZINE_MAX`, the length of the slots.
        unsafe { *m.slots.get().add(n as usize) = object };
        m.n.set(n + 1);
    }

    /// Takes an object for the program if the magazine has one; null if not.
    #[inline(always)]
    pub(crate) fn take_fast(&self, class: usize) -> *mut u8 {
        let m = self.mag(class);
        let n = m.n.get();
        if n == 0 {
            return std::ptr::null_mut();
        }
        m.n.set(n - 1);
        // SAFETY: the magazine holds `n` free objects of this class.
        unsafe {
            let taken = *m.slots.get().add(n as usize - 1);
            (*taken.state).store(PROGRAM, Ordering::Relaxed);
            taken.ptr
        }
    }

    /// Frees an object of the program's if everything about it is as usual: the start of an object of this pool, the
    /// program's alone, with room in the magazine. Otherwise false, and nothing has changed.
    #[inline(always)]
    pub(crate) fn free_fast(&self, ptr: *mut u8) -> bool {
        let offset = ptr.addr().wrapping_sub(EXTENT.base.load(Ordering::Relaxed));
        if offset >= EXTENT.bytes.load(Ordering::Relaxed) {
            return false;
        }
        let m = self.mag(offset >> (EXTENT.shift.load(Ordering::Relaxed) & 63));
        let (index, start) = space::divide(ptr.addr() - m.base.get().addr(), m.reciprocal.get());
        // SAFETY: the tables cover every object a pointer into the region can fall into.
        unsafe {
            let desc = &*m.descs.get().add((index >> (m.objects_log2.get() & 31)) as usize);
            let state = m.states.get().add((index as usize) << (m.shift.get() & 63));
            let n = m.n.get();
            if !start
                || desc.owner.load(Ordering::Relaxed) != self.index + 1
                || (*state).load(Ordering::Relaxed) != PROGRAM
                || n >= m.cap.get()
            {
                return false;
            }
            (*state).store(0, Ordering::Relaxed);
            *m.slots.get().add(n as usize) = Taken { ptr, state };
            m.n.set(n + 1);
        }
        true
    }

    /// Fills an empty magazine; how many it holds then.
    #[cold]
    #[inline(never)]
    fn refill(&self, class: usize) -> u32 {
        let m = self.mag(class);
        self.drain();
        if m.n.get() > 0 {
            return m.n.get();
        }
        let want = (m.cap.get() / 2).max(1);
        // SAFETY: the slots are this pool's, MAGAZINE_MAX of them, and nobody else looks at them meanwhile.
        let slots = unsafe { std::slice::from_raw_parts_mut(m.slots.get(), want as usize) };
        let got = self.collect(class, slots);
        m.n.set(got);
        self.tidy();
        m.n.get()
    }

    /// The object of this number.
    pub(super) fn object(&self, class: usize, index: u32) -> Taken {
        let m = self.mag(class);
        Taken {
            ptr: m.base.get().wrapping_add(index as usize * m.size.get() as usize),
            state: m.states.get().wrapping_add((index as usize) << (m.shift.get() & 63)),
        }
    }

    /// Empties the older half of a full magazine into its superblocks and puts the object on top; in an orphaned pool
    /// everything goes to the superblocks.
    #[cold]
    #[inline(never)]
    fn flush(&self, class: usize, object: Taken) {
        let m = self.mag(class);
        if m.cap.get() == 0 {
            self.put_back(class, &[object]);
            return;
        }
        self.shed(class, m.cap.get() / 2);
        let n = m.n.get();
        // SAFETY: there is room now.
        unsafe { *m.slots.get().add(n as usize) = object };
        m.n.set(n + 1);
        self.drain();
        self.tidy();
    }

    /// Empties all but the newest `keep` entries of a magazine into their superblocks.
    pub(super) fn shed(&self, class: usize, keep: u32) {
        let m = self.mag(class);
        let n = m.n.get();
        if n <= keep {
            return;
        }
        let out = (n - keep) as usize;
        // SAFETY: the first `n` slots are initialised and this pool's alone.
        let slots = unsafe { std::slice::from_raw_parts_mut(m.slots.get(), n as usize) };
        self.put_back(class, &slots[..out]);
        slots.copy_within(out.., 0);
        m.n.set(keep);
    }

    /// Empties half of every magazine; one that holds an object keeps one.
    pub(super) fn halve_magazines(&self) {
        for class in 0..COUNT {
            self.shed(class, self.mag(class).n.get().div_ceil(2));
        }
    }

    /// Closes the magazines: what is in them and what will come goes straight to the superblocks.
    pub(super) fn close_magazines(&self) {
        for class in 0..COUNT {
            self.shed(class, 0);
            self.mag(class).cap.set(0);
        }
    }

    /// The state byte of an object.
    #[inline(always)]
    pub(crate) fn state_of(&self, place: Place) -> *mut AtomicU8 {
        let m = self.mag(place.class);
        m.states.get().wrapping_add((place.index as usize) << (m.shift.get() & 63))
    }

    /// The number of the object with this state byte.
    pub(super) fn index_of(&self, class: usize, state: *mut AtomicU8) -> u32 {
        let m = self.mag(class);
        ((state.addr() - m.states.get().addr()) >> (m.shift.get() & 63)) as u32
    }

    /// First byte of the object with this state byte.
    #[inline(always)]
    pub(crate) fn start_of(&self, class: usize, state: *mut AtomicU8) -> *mut u8 {
        let m = self.mag(class);
        let index = (state.addr() - m.states.get().addr()) >> (m.shift.get() & 63);
        m.base.get().wrapping_add(index * m.size.get() as usize)
    }

    /// Clears the program's reference and frees the object if that was the last; `ptr` must be the object's start
    /// and the object this pool's own.
    #[inline(always)]
    pub(crate) fn free_local(&self, place: Place, ptr: *mut u8) -> Result<(), Misuse> {
        let at = self.state_of(place);
        let object = Taken { ptr, state: at };
        // SAFETY: `place` is inside a region, whose state table covers it.
        let state = unsafe { (*at).load(Ordering::Relaxed) };
        if state == PROGRAM {
            // SAFETY: as above; the object is this pool's, was the program's alone, and is free now.
            unsafe {
                (*at).store(0, Ordering::Relaxed);
                self.give(place.class, object);
            }
            return Ok(());
        }
        if state & PROGRAM == 0 {
            return Err(Misuse::DoubleFree);
        }
        // Somebody still reads the object: the reuse waits for the last buffer on it.
        // SAFETY: as above.
        unsafe { (*at).store(state & !PROGRAM, Ordering::Relaxed) };
        Ok(())
    }

    /// Counts a buffer that came into being on this thread.
    #[inline(always)]
    pub(crate) fn count_buffer(&self) {
        self.refs.set(self.refs.get() + 1);
    }

    /// Counts a buffer that ended on this thread.
    #[inline(always)]
    pub(crate) fn uncount_buffer(&self) {
        self.refs.set(self.refs.get() - 1);
    }

    /// Buffers alive on this thread.
    #[inline(always)]
    pub(crate) fn buffers(&self) -> usize {
        self.refs.get()
    }

    /// One more buffer refers to the object.
    pub(crate) fn retain(&self, state: *mut AtomicU8) {
        // SAFETY: the caller holds a reference, so the state byte is that of a live object of this pool.
        let at = unsafe { &*state };
        let now = at.load(Ordering::Relaxed);
        if now & SPILLED == SPILLED {
            *self.spilled(state) += 1;
        } else if now & SPILLED == SPILLED - REF {
            *self.spilled(state) = u64::from(SPILLED / REF);
            at.store(now + REF, Ordering::Relaxed);
        } else {
            at.store(now + REF, Ordering::Relaxed);
        }
    }

    /// One buffer less refers to the object; frees it if nobody does any more.
    #[inline(always)]
    pub(crate) fn release(&self, class: usize, state: *mut AtomicU8) {
        // SAFETY: the caller gives up a reference, so the state byte is that of a live object of this pool, and with
        // the last reference the object is free.
        unsafe {
            let now = (*state).load(Ordering::Relaxed);
            if now == REF {
                (*state).store(0, Ordering::Relaxed);
                self.give(class, Taken { ptr: self.start_of(class, state), state });
            } else {
                self.release_shared(class, state, now);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn release_shared(&self, class: usize, state: *mut AtomicU8, now: u8) {
        // SAFETY: as in `release`.
        let at = unsafe { &*state };
        assert!(now >= REF, "a buffer refers to an object that nobody holds");
        if now & SPILLED == SPILLED {
            let count = self.spilled(state);
            *count -= 1;
            if *count >= u64::from(SPILLED / REF) {
                return;
            }
            // SAFETY: single-threaded, and no reference into the map is alive.
            unsafe { (*self.spill.get()).remove(&state.addr()) };
        }
        at.store(now - REF, Ordering::Relaxed);
        if now == REF {
            // SAFETY: as in `release`.
            unsafe { self.give(class, Taken { ptr: self.start_of(class, state), state }) };
        }
    }

    /// How many buffers refer to the object.
    pub(crate) fn references(&self, state: *mut AtomicU8) -> u64 {
        // SAFETY: the caller holds a reference.
        let now = unsafe { (*state).load(Ordering::Relaxed) };
        if now & SPILLED == SPILLED { *self.spilled(state) } else { u64::from(now / REF) }
    }

    #[allow(clippy::mut_from_ref, reason = "the pool is one thread's, and no two such references live at once")]
    fn spilled(&self, state: *mut AtomicU8) -> &mut u64 {
        // SAFETY: only this thread uses the map, and callers drop the reference before the next call. Should the map
        // allocate from this very pool (when it is the program's allocator), `take` and `give` do not look at it.
        unsafe { (*self.spill.get()).entry(state.addr()).or_insert(0) }
    }
}
