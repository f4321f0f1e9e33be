//! Wait sets: thousands of tokens, waited for in the number of ready ones.

use crate::failure::{Failure, Outcome, guard, place};
use crate::operations::{CResult, limit, result};
use crate::runtime::{Os, enter};
use std::ffi::c_int;
use std::thread::ThreadId;
use towpath_libos::{Token, WaitSet};

const MAGIC: u64 = 0x746f_7770_6174_6803;

/// `struct tp_waitset`.
pub struct Set {
    magic: u64,
    thread: ThreadId,
    set: WaitSet,
    memory: towpath_cbuf::Memory,
}

/// # Safety
/// `set` is null, or was made by `tp_waitset_create` and its memory is still readable.
unsafe fn open<'a>(set: *mut Set) -> Outcome<&'a Set> {
    if set.is_null() || !set.is_aligned() {
        return Err(Failure::invalid("the wait set is NULL or none"));
    }
    // SAFETY: the caller's contract; the magic number tells whether it is one.
    let set = unsafe { &*set };
    if set.magic != MAGIC {
        return Err(Failure::invalid("the wait set was destroyed, or is none"));
    }
    if set.thread != std::thread::current().id() {
        return Err(Failure::new(libc::EPERM, "a wait set belongs to the thread that made it"));
    }
    Ok(set)
}

/// An empty wait set. Destroy it before `tp_stop`.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `set` is null or points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_waitset_create(os: *mut Os, set: *mut *mut Set) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, to) = unsafe { (enter(os)?, place(set, "set")?) };
        let thread = std::thread::current().id();
        let memory = os.runtime.memory().clone();
        to.write(Box::into_raw(Box::new(Set { magic: MAGIC, thread, set: os.runtime.wait_set(), memory })));
        Ok(0)
    })
}

/// Adds a token, which nobody else may wait for meanwhile.
///
/// # Safety
/// `set` is null or a handle of `tp_waitset_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_waitset_add(set: *mut Set, token: u64) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe { open(set)? }.set.add(Token::from_raw(token))?;
        Ok(0)
    })
}

/// Takes a token out; it can then be waited for elsewhere.
///
/// # Safety
/// `set` is null or a handle of `tp_waitset_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_waitset_remove(set: *mut Set, token: u64) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe { open(set)? }.set.remove(Token::from_raw(token))?;
        Ok(0)
    })
}

/// Waits for the next result; its token leaves the set. -EOPNOTSUPP if the set is empty.
///
/// # Safety
/// `set` is null or a handle of `tp_waitset_create`; `out` is null or points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_waitset_wait(set: *mut Set, out: *mut CResult, timeout_ns: u64) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (set, to) = unsafe { (open(set)?, place(out, "result")?) };
        let completion = set.set.wait(limit(timeout_ns))?;
        to.write(result(completion, &set.memory));
        Ok(0)
    })
}

/// Destroys a wait set; tokens in it stay as if they had never been added.
///
/// # Safety
/// `set` is null or a handle of `tp_waitset_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_waitset_destroy(set: *mut Set) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe { open(set)? };
        // SAFETY: the magic number says that it is one, made by Box::into_raw and not freed.
        let mut set = unsafe { Box::from_raw(set) };
        // SAFETY: the box is ours; volatile, so that the mark survives the box.
        unsafe { (&raw mut set.magic).write_volatile(0) };
        Ok(0)
    })
}
