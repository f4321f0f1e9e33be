//! Objects too large for a region: each a mapping of its own, found by address in one table behind a lock. The system
//! calls around them cost microseconds, so the lock does not show.

use super::pool::Misuse;
use super::space::Lock;
use crate::sys::{self, PAGE};
use std::cell::Cell;

/// One mapping.
#[derive(Clone, Copy)]
pub(crate) struct Huge {
    pub base: *mut u8,
    /// Mapped bytes, whole pages.
    pub len: usize,
    /// The program's `malloc` is not freed yet.
    pub program: bool,
    /// Buffers that refer to it.
    pub refs: u32,
}

/// Open addressing with linear probing, at most half full, in memory of its own.
struct Table {
    lock: Lock,
    entries: Cell<*mut Huge>,
    capacity: Cell<usize>,
    used: Cell<usize>,
}

// SAFETY: every access is under `lock`.
unsafe impl Sync for Table {}

static TABLE: Table =
    Table { lock: Lock::new(), entries: Cell::new(std::ptr::null_mut()), capacity: Cell::new(0), used: Cell::new(0) };

impl Table {
    fn entry(&self, i: usize) -> *mut Huge {
        debug_assert!(i < self.capacity.get());
        self.entries.get().wrapping_add(i)
    }

    fn home(&self, base: *const u8) -> usize {
        let hash = (base.addr() as u64 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        hash as usize & (self.capacity.get() - 1)
    }

    /// Index of the entry of `base`, or of the hole where it would go.
    fn probe(&self, base: *const u8) -> Result<usize, usize> {
        let mut i = self.home(base);
        loop {
            // SAFETY: below capacity; entries are zeroed or written, and a null base marks a hole.
            let at = unsafe { (*self.entry(i)).base };
            if at.is_null() {
                return Err(i);
            }
            if at.cast_const() == base {
                return Ok(i);
            }
            i = (i + 1) & (self.capacity.get() - 1);
        }
    }

    fn insert(&self, huge: Huge) -> bool {
        if (self.used.get() + 1) * 2 > self.capacity.get() && !self.grow() {
            return false;
        }
        if let Err(hole) = self.probe(huge.base) {
            // SAFETY: below capacity.
            unsafe { self.entry(hole).write(huge) };
            self.used.set(self.used.get() + 1);
        }
        true
    }

    fn grow(&self) -> bool {
        let (old, old_capacity) = (self.entries.get(), self.capacity.get());
        let capacity = (old_capacity * 2).max(PAGE / size_of::<Huge>().next_power_of_two());
        let fresh = sys::map_private((capacity * size_of::<Huge>()).next_multiple_of(PAGE));
        if fresh.is_null() {
            return false;
        }
        self.entries.set(fresh.cast());
        self.capacity.set(capacity);
        for i in 0..old_capacity {
            // SAFETY: entries of the old table, below its capacity.
            let huge = unsafe { *old.add(i) };
            if !huge.base.is_null()
                && let Err(hole) = self.probe(huge.base)
            {
                // SAFETY: below capacity.
                unsafe { self.entry(hole).write(huge) };
            }
        }
        if !old.is_null() {
            // SAFETY: the old table was mapped with this length, and nobody looks at it any more.
            unsafe { sys::unmap(old.cast(), (old_capacity * size_of::<Huge>()).next_multiple_of(PAGE)) };
        }
        true
    }

    fn find(&self, base: *const u8) -> Option<*mut Huge> {
        if self.capacity.get() == 0 {
            return None;
        }
        self.probe(base).ok().map(|i| self.entry(i))
    }

    fn remove(&self, base: *const u8) {
        let Ok(mut hole) = self.probe(base) else { return };
        let mask = self.capacity.get() - 1;
        let mut i = hole;
        loop {
            i = (i + 1) & mask;
            // SAFETY: below capacity.
            let huge = unsafe { *self.entry(i) };
            if huge.base.is_null() {
                break;
            }
            // An entry may move back into the hole unless its home lies behind the hole.
            if (i.wrapping_sub(self.home(huge.base)) & mask) >= (i.wrapping_sub(hole) & mask) {
                // SAFETY: below capacity.
                unsafe { self.entry(hole).write(huge) };
                hole = i;
            }
        }
        // SAFETY: below capacity.
        unsafe { (*self.entry(hole)).base = std::ptr::null_mut() };
        self.used.set(self.used.get() - 1);
    }
}

/// Bytes of the mapping for `len` bytes; `None` if that overflows.
pub(crate) fn mapped(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE).filter(|&l| l <= isize::MAX as usize)
}

/// Maps zeroed memory for `len` bytes at a multiple of `align` (a power of two); null when there is none.
pub(crate) fn alloc(len: usize, align: usize, program: bool) -> *mut u8 {
    let Some(len) = mapped(len.max(1)) else { return std::ptr::null_mut() };
    let base = map_aligned(len, align);
    if base.is_null() {
        return base;
    }
    let _guard = TABLE.lock.guard();
    if !TABLE.insert(Huge { base, len, program, refs: u32::from(!program) }) {
        // SAFETY: mapped just above and shown to nobody.
        unsafe { sys::unmap(base, len) };
        return std::ptr::null_mut();
    }
    base
}

fn map_aligned(len: usize, align: usize) -> *mut u8 {
    if align <= PAGE || cfg!(miri) {
        return sys::map_private(len);
    }
    let Some(total) = len.checked_add(align) else { return std::ptr::null_mut() };
    let whole = sys::map_private(total);
    if whole.is_null() {
        return whole;
    }
    let base = whole.addr().next_multiple_of(align);
    let (front, back) = (base - whole.addr(), whole.addr() + total - base - len);
    // SAFETY: the ends of the mapping made just above, which nobody uses.
    unsafe {
        if front > 0 {
            sys::unmap(whole, front);
        }
        if back > 0 {
            sys::unmap(whole.add(front + len), back);
        }
    }
    whole.wrapping_add(front)
}

/// The mapping that starts at `base`.
pub(crate) fn find(base: *const u8) -> Option<Huge> {
    let _guard = TABLE.lock.guard();
    // SAFETY: entries are read under the lock.
    TABLE.find(base).map(|h| unsafe { *h })
}

/// Changes the references of a mapping and unmaps it when none is left; its state before.
fn change(base: *const u8, f: impl FnOnce(&mut Huge) -> Result<(), Misuse>) -> Result<Huge, Misuse> {
    let before;
    {
        let _guard = TABLE.lock.guard();
        let Some(huge) = TABLE.find(base) else { return Err(Misuse::Foreign) };
        // SAFETY: under the lock.
        let huge = unsafe { &mut *huge };
        before = *huge;
        f(huge)?;
        if huge.program || huge.refs > 0 {
            return Ok(before);
        }
        TABLE.remove(base);
    }
    // SAFETY: no reference is left and the table has forgotten it.
    unsafe { sys::unmap(before.base, before.len) };
    Ok(before)
}

/// The program frees the mapping at `base`.
pub(crate) fn free_program(base: *const u8) -> Result<usize, Misuse> {
    change(base, |h| if std::mem::take(&mut h.program) { Ok(()) } else { Err(Misuse::DoubleFree) }).map(|h| h.len)
}

/// One more buffer refers to it; false if there is no such mapping or it has too many.
pub(crate) fn retain(base: *const u8) -> bool {
    change(base, |h| h.refs.checked_add(1).map(|r| h.refs = r).ok_or(Misuse::Foreign)).is_ok()
}

/// One buffer less refers to it; its length if that unmapped it.
pub(crate) fn release(base: *const u8) -> Option<usize> {
    let before = change(base, |h| h.refs.checked_sub(1).map(|r| h.refs = r).ok_or(Misuse::DoubleFree)).ok()?;
    (before.refs == 1 && !before.program).then_some(before.len)
}

/// Resizes a mapping the program alone refers to; null if that is refused, which changes nothing.
pub(crate) fn resize(base: *mut u8, len: usize) -> *mut u8 {
    let Some(len) = mapped(len.max(1)) else { return std::ptr::null_mut() };
    let _guard = TABLE.lock.guard();
    let Some(entry) = TABLE.find(base) else { return std::ptr::null_mut() };
    // SAFETY: under the lock.
    let huge = unsafe { *entry };
    if !huge.program || huge.refs > 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: a whole mapping that only the caller refers to.
    let moved = unsafe { sys::remap(base, huge.len, len) };
    if !moved.is_null() {
        TABLE.remove(base);
        TABLE.insert(Huge { base: moved, len, ..huge });
    }
    moved
}

/// For a fork.
pub(crate) fn lock() {
    TABLE.lock.lock();
}

/// For a fork.
pub(crate) fn unlock() {
    TABLE.lock.unlock();
}
