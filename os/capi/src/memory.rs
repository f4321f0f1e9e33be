//! The program's own objects on the runtime's heap.

use crate::failure::{Failure, guard, remember};
use crate::runtime::{Os, enter};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// An object of `len` bytes on the runtime's heap, whose parts may be pushed without a copy; NULL if there is no memory
/// (`tp_strerror(-ENOMEM)` says more).
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_malloc(os: *mut Os, len: usize) -> *mut c_void {
    // SAFETY: the caller's contract.
    let made = unsafe { enter(os) }.and_then(|os| os.runtime.memory().malloc(len).map_err(Failure::from));
    match made {
        Ok(ptr) => ptr.as_ptr().cast(),
        Err(failure) => {
            remember(failure);
            std::ptr::null_mut()
        }
    }
}

/// Gives up an object of `tp_malloc`. While a push of it is under way its memory is not reused. A pointer that cannot be
/// freed (freed before, never allocated, inside an object) is -EINVAL and changes nothing; NULL is fine.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; the program does not use the object any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_free(os: *mut Os, ptr: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let os = unsafe { enter(os)? };
        if let Some(ptr) = NonNull::new(ptr.cast::<u8>()) {
            // SAFETY: the caller's contract; what cannot be freed is found out.
            unsafe { os.runtime.memory().free(ptr)? };
        }
        Ok(0)
    })
}
