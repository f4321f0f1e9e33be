//! Raw objects: what `malloc` and `#[global_allocator]` are made of.

use crate::heap::pool::{Misuse, Pool};
use crate::heap::{class, free_remote, huge, space};
use std::sync::atomic::Ordering;

/// Frees an object of the program's, from the thread that works with `mine` (if any).
#[inline(always)]
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
        Some(pool) if owner == pool.index + 1 => pool.free_local(place),
        _ if owner == 0 => Err(Misuse::Stale),
        _ => free_remote(space, place, space::pool(owner - 1)),
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
