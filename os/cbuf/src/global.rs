//! Raw objects, as C's `malloc` and Rust's [`GlobalAlloc`] know them: every thread allocates from a pool of its own,
//! any thread may free. An object may meanwhile be referred to by buffers ([`crate::Memory::hold`]): then its memory
//! is reused only after the last of them.

use crate::heap::pool::{Misuse, PROGRAM, Pool};
use crate::heap::{class, free_remote, huge, space};
use crate::sys::PAGE;
use crate::thread;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering;

/// Every object starts at a multiple of this.
pub const ALIGN: usize = 16;
/// Regions start at multiples of this, so objects of a size that is a multiple of an alignment up to it are aligned.
const REGION_ALIGN: usize = 2 << 20;

/// An object of at least `len` bytes at a multiple of [`ALIGN`]; null when there is no memory.
#[inline(always)]
pub fn alloc(len: usize) -> *mut u8 {
    if len <= class::LARGEST
        && let Some(pool) = thread::existing()
    {
        let ptr = pool.take_fast(class::of(len));
        if !ptr.is_null() {
            return ptr;
        }
    }
    alloc_slow(len)
}

#[cold]
#[inline(never)]
fn alloc_slow(len: usize) -> *mut u8 {
    if len <= class::LARGEST
        && let Some(taken) = thread::pool().and_then(|pool| pool.take(class::of(len), PROGRAM))
    {
        return taken.ptr;
    }
    // Large ones, and whatever finds no room in a region, get a mapping.
    huge::alloc(len, PAGE, true)
}

/// As [`alloc`], with zeroed bytes.
#[inline]
pub fn alloc_zeroed(len: usize) -> *mut u8 {
    if len > class::LARGEST {
        return huge::alloc(len, PAGE, true);
    }
    let ptr = alloc(len);
    if !ptr.is_null() {
        // SAFETY: a fresh object of at least `len` bytes.
        unsafe { ptr.write_bytes(0, len) };
    }
    ptr
}

/// As [`alloc`], at a multiple of `align`, a power of two.
pub fn alloc_aligned(len: usize, align: usize) -> *mut u8 {
    if align <= ALIGN {
        return alloc(len);
    }
    if len <= class::LARGEST && align <= REGION_ALIGN && !cfg!(miri) {
        let fits = (class::of(len.max(1))..class::COUNT).find(|&c| class::size(c).is_multiple_of(align));
        if let Some(class) = fits
            && let Some(taken) = thread::pool().and_then(|pool| pool.take(class, PROGRAM))
        {
            return taken.ptr;
        }
    }
    huge::alloc(len, align, true)
}

/// Frees an object of the program's, or says why it cannot be freed, which changes nothing.
///
/// # Safety
/// The program does not use the object any more.
#[inline(always)]
pub unsafe fn dealloc(ptr: *mut u8) -> Result<(), Misuse> {
    if thread::existing().is_some_and(|pool| pool.free_fast(ptr)) {
        return Ok(());
    }
    free(thread::existing(), ptr)
}

/// Frees an object of the program's, from the thread that works with `mine` (if any).
#[cold]
#[inline(never)]
pub(crate) fn free(mine: Option<&Pool>, ptr: *mut u8) -> Result<(), Misuse> {
    let Some(space) = space::get() else { return Err(Misuse::Foreign) };
    let Some(place) = space.locate(ptr) else {
        return huge::free_program(ptr).map(|_| ());
    };
    if !place.start {
        return Err(Misuse::Interior);
    }
    let desc = space.desc(place.class, place.index >> class::objects_log2(place.class));
    let owner = desc.owner.load(Ordering::Relaxed);
    match mine {
        Some(pool) if owner == pool.index + 1 => pool.free_local(place, ptr),
        _ if owner == 0 => Err(Misuse::Stale),
        _ => free_remote(space, place, space::pool(owner - 1)),
    }
}

/// Bytes the program may use of a live object of its own.
pub fn usable(ptr: *const u8) -> Result<usize, Misuse> {
    let space = space::get().ok_or(Misuse::Foreign)?;
    let Some(place) = space.locate(ptr) else {
        return huge::find(ptr).filter(|h| h.program).map(|h| h.len).ok_or(Misuse::Foreign);
    };
    if !place.start {
        return Err(Misuse::Interior);
    }
    let desc = space.desc(place.class, place.index >> class::objects_log2(place.class));
    if desc.owner.load(Ordering::Relaxed) == 0 {
        return Err(Misuse::Stale);
    }
    if space.state(place).load(Ordering::Relaxed) & PROGRAM == 0 {
        return Err(Misuse::DoubleFree);
    }
    Ok(class::size(place.class))
}

/// Makes an object `len` bytes long, in place or elsewhere, and returns where; null when there is no memory, which
/// leaves the object as it was. A wrong pointer is refused.
///
/// # Safety
/// The program uses only the returned pointer afterwards, unless it is null.
pub unsafe fn realloc(ptr: *mut u8, len: usize) -> Result<*mut u8, Misuse> {
    let old = usable(ptr)?;
    if len <= old && (len > old / 2 || old <= 64) {
        return Ok(ptr);
    }
    if old > class::LARGEST && len > class::LARGEST {
        let moved = huge::resize(ptr, len);
        if !moved.is_null() {
            return Ok(moved);
        }
    }
    let fresh = alloc(len);
    if !fresh.is_null() {
        // SAFETY: both objects are live and distinct, and have this many bytes.
        unsafe {
            fresh.copy_from_nonoverlapping(ptr, old.min(len));
            dealloc(ptr)?;
        }
    }
    Ok(fresh)
}

/// The heap as a Rust program's allocator: `#[global_allocator] static HEAP: TowpathAlloc = TowpathAlloc;`. All of the
/// program's objects can then be shown to devices, and a free of one that is still being sent is harmless.
pub struct TowpathAlloc;

// SAFETY: objects are disjoint, large and aligned enough, and stay until freed. A free that is refused (which only
// unsafe code can cause) changes nothing.
unsafe impl GlobalAlloc for TowpathAlloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGN { alloc(layout.size()) } else { alloc_aligned(layout.size(), layout.align()) }
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, _: Layout) {
        // SAFETY: forwarded.
        let freed = unsafe { dealloc(ptr) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGN {
            return alloc_zeroed(layout.size());
        }
        let ptr = alloc_aligned(layout.size(), layout.align());
        if !ptr.is_null() {
            // SAFETY: a fresh object of at least that size.
            unsafe { ptr.write_bytes(0, layout.size()) };
        }
        ptr
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        if layout.align() <= ALIGN {
            // SAFETY: forwarded.
            return unsafe { realloc(ptr, len) }.unwrap_or(std::ptr::null_mut());
        }
        let fresh = alloc_aligned(len, layout.align());
        if !fresh.is_null() {
            // SAFETY: both are live and distinct, and have this many bytes.
            unsafe {
                fresh.copy_from_nonoverlapping(ptr, layout.size().min(len));
                self.dealloc(ptr, layout);
            }
        }
        fresh
    }
}

/// Takes every lock of the heap, so that a fork finds none held by a thread that the child will not have.
///
/// # Safety
/// Called by the thread that forks, which calls [`unlock_after_fork`] in the parent and in the child.
pub unsafe fn lock_for_fork() {
    space::uninitialised().lock_all();
    huge::lock();
}

/// Releases what [`lock_for_fork`] took.
///
/// # Safety
/// As said there.
pub unsafe fn unlock_after_fork() {
    huge::unlock();
    space::uninitialised().unlock_all();
}
