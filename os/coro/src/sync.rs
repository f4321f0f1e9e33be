//! What the rest of the crate takes from `std` or, under the model checker, from `loom`; and who "this thread" is.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering},
};

/// Stands between `SeqCst` accesses whose order among each other matters. They are ordered already; loom takes them for
/// acquire and release only, so it is told by a fence.
#[inline(always)]
pub(crate) fn in_one_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// A number no other live thread has, never zero. A thread that starts after this one ended may get it again, so what
/// compares it must stay memory-safe (only lose time) in that case.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(any(miri, loom))))]
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    let pointer: usize;
    // SAFETY: the x86-64 psABI keeps the thread pointer itself at fs:0 for the life of the thread; reading it has no
    // other effect.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}

#[cfg(all(not(loom), any(miri, not(all(target_arch = "x86_64", target_os = "linux")))))]
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

#[cfg(loom)]
pub(crate) fn this_thread() -> usize {
    // Loom runs all its threads on one, so the mark must be loom's own. Boxed to have an address of its own.
    loom::thread_local!(static MARK: Box<u8> = Box::new(0));
    MARK.with(|mark| std::ptr::from_ref(&**mark).addr())
}
