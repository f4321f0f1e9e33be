//! The address space of the heap: one reservation that holds a region for every size class, the tables that describe
//! them, and the pools. Whether a pointer is ours, its class, its object and its superblock follow from arithmetic on
//! the address alone; no foreign memory is ever read to find out.
//!
//! The reservation costs address space only. Where the system grants less of it (a limit on address space, a small
//! machine), the regions shrink; what no longer fits a region is mapped by itself.

use super::class;
use super::pool::Pool;
use crate::sys::{self, PAGE};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// "No superblock" in lists.
pub(crate) const NONE: u32 = u32::MAX;
/// How many pools (cores, threads) there can be at a time: fewer where address space is scarce.
fn pools_for(shift: u32) -> usize {
    if cfg!(miri) {
        16
    } else if shift >= 32 {
        1 << 14
    } else {
        1 << (shift / 2 - 5)
    }
}
/// Distance of two pools.
pub(crate) const POOL_STRIDE: usize = size_of::<Pool>().next_power_of_two();

/// Base-two logarithms of region sizes to try, in order.
const SHIFTS: &[u32] = if cfg!(miri) { &[17] } else { &[36, 34, 32, 30, 28, 26, 24, 22] };

/// What describes one superblock: one cache line.
#[repr(C, align(64))]
pub(crate) struct Desc {
    /// Pool that owns it plus one; zero while no pool does.
    pub owner: AtomicU32,
    /// 1 while it waits on its owner's list of superblocks with objects freed by others.
    pub queued: AtomicU32,
    /// The next one on that list (see [`super::remote`]).
    pub remote_next: AtomicU64,
    /// Objects that lie free in it (not in a magazine). Owner only.
    pub free: Cell<u32>,
    /// Lists of the owner, or the region's list of released superblocks.
    pub next: Cell<u32>,
    pub prev: Cell<u32>,
    /// 1 while it was handed out by the system and not given back.
    pub dirty: Cell<u32>,
    /// What a device knows this superblock by once it was registered; 0 before.
    pub registration: Cell<u64>,
}

const _: () = assert!(size_of::<Desc>() == 64);

/// Where the parts of a class lie.
#[derive(Clone, Copy)]
pub(crate) struct Geometry {
    pub base: *mut u8,
    pub states: *mut AtomicU8,
    pub free_bits: *mut Cell<u64>,
    pub remote_bits: *mut AtomicU64,
    pub descs: *mut Desc,
    /// Superblocks that fit the region.
    pub supers: u32,
}

/// Superblocks nobody owns, per class.
struct Region {
    lock: Lock,
    /// Superblocks below this were handed out before.
    bump: Cell<u32>,
    /// Head of the list of released ones.
    released: Cell<u32>,
    /// Bytes of the region made accessible so far.
    committed: Cell<usize>,
}

/// The whole heap of the process.
pub(crate) struct Space {
    state: AtomicU8,
    lock: Lock,
    base: AtomicPtr<u8>,
    heap_bytes: Cell<usize>,
    shift: Cell<u32>,
    pools: AtomicPtr<u8>,
    geometry: UnsafeCell<[Geometry; class::COUNT]>,
    regions: [Region; class::COUNT],
    pool_lock: Lock,
    reap_lock: Lock,
    pools_made: Cell<u32>,
    pool_free: Cell<u32>,
}

// SAFETY: `state` publishes what initialisation wrote once; everything changed later is behind one of the locks.
unsafe impl Sync for Space {}

static SPACE: Space = {
    const G: Geometry = Geometry {
        base: std::ptr::null_mut(),
        states: std::ptr::null_mut(),
        free_bits: std::ptr::null_mut(),
        remote_bits: std::ptr::null_mut(),
        descs: std::ptr::null_mut(),
        supers: 0,
    };
    Space {
        state: AtomicU8::new(0),
        lock: Lock::new(),
        base: AtomicPtr::new(std::ptr::null_mut()),
        heap_bytes: Cell::new(0),
        shift: Cell::new(0),
        pools: AtomicPtr::new(std::ptr::null_mut()),
        geometry: UnsafeCell::new([G; class::COUNT]),
        regions: [const {
            Region { lock: Lock::new(), bump: Cell::new(0), released: Cell::new(NONE), committed: Cell::new(0) }
        }; class::COUNT],
        pool_lock: Lock::new(),
        reap_lock: Lock::new(),
        pools_made: Cell::new(0),
        pool_free: Cell::new(NONE),
    }
};

/// Where in the heap a pointer points.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub class: usize,
    /// Number of the object in its region.
    pub index: u32,
    /// The pointer is the first byte of the object.
    pub start: bool,
}

/// Where the regions lie, for the fast paths: address, bytes and shift. No bytes before the heap is reserved.
pub(crate) struct Extent {
    pub base: AtomicUsize,
    pub bytes: AtomicUsize,
    pub shift: AtomicU32,
}

pub(crate) static EXTENT: Extent =
    Extent { base: AtomicUsize::new(0), bytes: AtomicUsize::new(0), shift: AtomicU32::new(0) };

/// The heap, reserved at first use; `None` if the system grants no address space at all.
#[inline(always)]
pub(crate) fn get() -> Option<&'static Space> {
    if SPACE.state.load(Ordering::Acquire) == 1 {
        return Some(&SPACE);
    }
    initialise()
}

#[cold]
fn initialise() -> Option<&'static Space> {
    let _guard = SPACE.lock.guard();
    if SPACE.state.load(Ordering::Acquire) == 1 {
        return Some(&SPACE);
    }
    for &shift in SHIFTS {
        if SPACE.lay_out(shift) {
            SPACE.state.store(1, Ordering::Release);
            return Some(&SPACE);
        }
    }
    None
}

/// The pool of number `index`, which exists.
#[inline(always)]
pub(crate) fn pool(index: u32) -> *const Pool {
    SPACE.pools.load(Ordering::Relaxed).wrapping_add(index as usize * POOL_STRIDE).cast()
}

impl Space {
    /// Reserves regions of `2^shift` bytes and the tables for them; false if the system refuses.
    fn lay_out(&self, shift: u32) -> bool {
        let region = 1usize << shift;
        let heap_bytes = region * class::COUNT;
        let mut tables = 0;
        let mut take = |bytes: usize| {
            let at = tables;
            // Whole pages, and an odd number of lines further each time, so that tables of different classes do not
            // meet in the same cache sets.
            tables = (tables + bytes).next_multiple_of(PAGE);
            at
        };
        let mut offsets = [[0usize; 4]; class::COUNT];
        let mut supers = [0u32; class::COUNT];
        for class in 0..class::COUNT {
            let objects = 1usize << class::objects_log2(class);
            let n = region / (class::size(class) * objects);
            supers[class] = n as u32;
            // One more entry than superblocks: a pointer into the rest of a region finds a superblock nobody owns.
            let entries = n + 1;
            let words = entries * class::words(class) * 8;
            offsets[class] = [
                take((entries * objects) << class::state_shift(class)),
                take(words),
                take(words),
                take(entries * size_of::<Desc>()),
            ];
        }
        let pools = take(pools_for(shift) * POOL_STRIDE);
        let huge = 2 << 20;
        let heap = sys::reserve(heap_bytes + huge);
        if heap.is_null() {
            return false;
        }
        let table = sys::map_private(tables);
        if table.is_null() {
            // SAFETY: reserved just above and never shown to anyone.
            unsafe { sys::unmap(heap, heap_bytes + huge) };
            return false;
        }
        let heap = heap.wrapping_add(heap.align_offset(huge));
        // SAFETY: initialisation is under the lock, and readers wait for `state`.
        let geometry = unsafe { &mut *self.geometry.get() };
        for (class, g) in geometry.iter_mut().enumerate() {
            let [states, free_bits, remote_bits, descs] = offsets[class].map(|o| table.wrapping_add(o));
            *g = Geometry {
                base: heap.wrapping_add(class << shift),
                states: states.cast(),
                free_bits: free_bits.cast(),
                remote_bits: remote_bits.cast(),
                descs: descs.cast(),
                supers: supers[class],
            };
        }
        self.heap_bytes.set(heap_bytes);
        self.shift.set(shift);
        self.pools.store(table.wrapping_add(pools), Ordering::Relaxed);
        self.base.store(heap, Ordering::Relaxed);
        EXTENT.base.store(heap.addr(), Ordering::Relaxed);
        EXTENT.shift.store(shift, Ordering::Relaxed);
        // Last: with bytes the rest counts.
        EXTENT.bytes.store(heap_bytes, Ordering::Release);
        true
    }

    #[inline(always)]
    pub(crate) fn geometry(&self, class: usize) -> &Geometry {
        debug_assert!(class < class::COUNT);
        // SAFETY: written once before `state` was published; `get` is the only way to a `&Space`. Classes are below
        // COUNT.
        unsafe { (&*self.geometry.get()).get_unchecked(class) }
    }

    /// Descriptor of a superblock.
    #[inline(always)]
    pub(crate) fn desc(&self, class: usize, number: u32) -> &Desc {
        let g = self.geometry(class);
        debug_assert!(number <= g.supers);
        // SAFETY: numbers come from `locate`, lists or the bump mark, all within the table, which is zeroed at first;
        // zero is a valid descriptor.
        unsafe { &*g.descs.add(number as usize) }
    }

    /// Which object a pointer points into, if it points into a region.
    #[inline(always)]
    pub(crate) fn locate(&self, p: *const u8) -> Option<Place> {
        let offset = p.addr().wrapping_sub(self.base.load(Ordering::Relaxed).addr());
        if offset >= self.heap_bytes.get() {
            return None;
        }
        let class = offset >> self.shift.get();
        let within = offset & ((1 << self.shift.get()) - 1);
        let (index, start) = divide(within, reciprocal(class));
        Some(Place { class, index, start })
    }

    /// The state byte of an object.
    pub(crate) fn state(&self, place: Place) -> &AtomicU8 {
        let at = (place.index as usize) << class::state_shift(place.class);
        // SAFETY: places are inside a region, whose table of states covers it.
        unsafe { &*self.geometry(place.class).states.add(at) }
    }

    /// Takes a superblock of `class` for pool `owner`; `None` when the region or memory is exhausted.
    pub(crate) fn take_super(&self, class: usize, owner: u32) -> Option<u32> {
        let g = self.geometry(class);
        let region = &self.regions[class];
        let _guard = region.lock.guard();
        let number = match region.released.get() {
            NONE => {
                let number = region.bump.get();
                if number >= g.supers || !Self::commit(region, g, class, number) {
                    return None;
                }
                region.bump.set(number + 1);
                number
            }
            number => {
                region.released.set(self.desc(class, number).next.get());
                number
            }
        };
        let desc = self.desc(class, number);
        desc.next.set(NONE);
        desc.prev.set(NONE);
        desc.owner.store(owner + 1, Ordering::Relaxed);
        Some(number)
    }

    /// Makes a superblock accessible; grows in steps that widen with the region, on huge pages once it is large.
    fn commit(region: &Region, g: &Geometry, class: usize, number: u32) -> bool {
        const HUGE: usize = 2 << 20;
        let bytes = class::size(class) << class::objects_log2(class);
        let need = (number as usize + 1) * bytes;
        let have = region.committed.get();
        if need <= have {
            return true;
        }
        let whole = g.supers as usize * bytes;
        let ahead = (need + have / 2).next_multiple_of(HUGE);
        let want = if have >= HUGE && ahead <= whole && ahead - have <= 64 << 20 { ahead } else { need };
        // SAFETY: the range lies in the region and past everything committed.
        unsafe {
            if !sys::commit(g.base.add(have), want - have) {
                return false;
            }
            if have >= HUGE && class::size(class) < HUGE {
                sys::advise_huge(g.base.add(have), want - have);
            }
        }
        region.committed.set(want);
        true
    }

    /// Takes back a superblock that nobody uses and gives its memory to the system.
    pub(crate) fn release_super(&self, class: usize, number: u32) {
        let g = self.geometry(class);
        let bytes = class::size(class) << class::objects_log2(class);
        let desc = self.desc(class, number);
        desc.owner.store(0, Ordering::Relaxed);
        desc.registration.set(0);
        // SAFETY: the superblock is committed, empty, and belongs to the caller alone.
        unsafe { sys::discard(g.base.add(number as usize * bytes), bytes) };
        let region = &self.regions[class];
        let _guard = region.lock.guard();
        desc.next.set(region.released.get());
        region.released.set(number);
    }

    /// Takes a pool: one that was given back, with what it still owns, or a new one.
    pub(crate) fn take_pool(&'static self) -> Option<&'static Pool> {
        let _guard = self.pool_lock.guard();
        let index = self.pool_free.get();
        if index != NONE {
            // SAFETY: pools on the list exist and belong to nobody.
            let pool = unsafe { &*pool(index) };
            self.pool_free.set(pool.next.get());
            return Some(pool);
        }
        let index = self.pools_made.get();
        if index as usize >= pools_for(self.shift.get()) {
            return None;
        }
        self.pools_made.set(index + 1);
        let at = pool(index).cast_mut();
        // SAFETY: the place is zeroed memory of this pool's own, which nobody else was told of.
        unsafe {
            Pool::write(at, index, self);
            Some(&*at)
        }
    }

    /// Gives a pool back for the next who needs one.
    pub(crate) fn give_pool(&self, index: u32) {
        let _guard = self.pool_lock.guard();
        // SAFETY: the pool exists, and its giver was the last to use it.
        unsafe { (*pool(index)).next.set(self.pool_free.get()) };
        self.pool_free.set(index);
    }

    /// The lock under which orphaned pools are taken apart.
    pub(crate) fn reaping(&self) -> Guard<'_> {
        self.reap_lock.guard()
    }

    /// Takes every lock, so that a fork finds none of them held by a thread that will not exist in the child.
    pub(crate) fn lock_all(&self) {
        self.lock.lock();
        self.reap_lock.lock();
        self.pool_lock.lock();
        for region in &self.regions {
            region.lock.lock();
        }
    }

    /// Releases what [`Space::lock_all`] took.
    pub(crate) fn unlock_all(&self) {
        for region in &self.regions {
            region.lock.unlock();
        }
        self.pool_lock.unlock();
        self.reap_lock.unlock();
        self.lock.unlock();
    }
}

/// The space whether initialised or not; for what must hold its locks around a fork.
pub(crate) fn uninitialised() -> &'static Space {
    &SPACE
}

/// `2^64 / size` rounded up: see [`divide`].
pub(crate) fn reciprocal(class: usize) -> u64 {
    static TABLE: [u64; class::COUNT] = {
        let mut table = [0; class::COUNT];
        let mut class = 0;
        while class < class::COUNT {
            table[class] = u64::MAX / class::reckon_size(class) as u64 + 1;
            class += 1;
        }
        table
    };
    TABLE[class]
}

/// Quotient of an offset by an object size, and whether the offset is a multiple of it, by one multiplication:
/// with `r = ceil(2^64 / size)`, the high half of `offset * r` is the quotient and the low half is below `r` exactly
/// for multiples, as long as `offset * size < 2^64` (offsets are below 2^36, sizes at most 2^22).
#[inline(always)]
pub(crate) const fn divide(offset: usize, reciprocal: u64) -> (u32, bool) {
    let product = offset as u128 * reciprocal as u128;
    ((product >> 64) as u32, (product as u64) < reciprocal)
}

/// A lock for slow paths: spins a little, then lets others run. It can be held across a fork.
pub(crate) struct Lock(AtomicU32);

/// Holds a [`Lock`].
pub(crate) struct Guard<'a>(&'a Lock);

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    pub(crate) fn lock(&self) {
        let mut spins = 0u32;
        while self.0.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spins += 1;
            if spins.is_multiple_of(64) {
                sys::yield_thread();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    pub(crate) fn unlock(&self) {
        self.0.store(0, Ordering::Release);
    }

    pub(crate) fn guard(&self) -> Guard<'_> {
        self.lock();
        Guard(self)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divide_of_any_offset_agrees_with_division() {
        for class in 0..class::COUNT {
            let size = class::size(class);
            for k in [0usize, 1, 2, 77, 4095, (1 << 36) / size - 1] {
                for d in [0, 1, size / 2, size - 1] {
                    let offset = k * size + d;
                    assert_eq!(divide(offset, reciprocal(class)), (k as u32, d == 0), "{offset} / {size}");
                }
            }
        }
    }

    #[test]
    fn locate_of_foreign_pointer_is_none() {
        let space = get().expect("address space");
        let local = 0u8;
        assert!(space.locate(&local).is_none());
        assert!(space.locate(std::ptr::null()).is_none());
    }
}
