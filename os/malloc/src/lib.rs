//! A drop-in malloc: `LD_PRELOAD=libtowpath_malloc.so program`. The program's objects then live in Towpath's heap,
//! with a pool for every thread; nothing is allocated by anyone else, and thread-local state takes no allocation.
//!
//! Freeing a wrong pointer (twice, never allocated, inside an object) is reported on standard error and otherwise
//! ignored; with `TOWPATH_MALLOC_ABORT` in the environment the program is stopped there, for its core dump.

use libc::{c_char, c_int, c_void, size_t};
use towpath_cbuf::{Misuse, global};

const PAGE: usize = 4096;

fn set_errno(value: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = value };
}

#[inline(always)]
fn or_no_memory(ptr: *mut u8) -> *mut c_void {
    if ptr.is_null() { no_memory() } else { ptr.cast() }
}

#[cold]
#[inline(never)]
fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    std::ptr::null_mut()
}

/// One line to standard error without allocating, then on with the program, or not.
#[cold]
#[inline(never)]
fn report(what: &str, ptr: *const c_void, misuse: Misuse) {
    let mut line = [0u8; 160];
    let mut n = 0;
    let mut put = |text: &[u8]| {
        let room = line.len() - n;
        let take = text.len().min(room);
        line[n..n + take].copy_from_slice(&text[..take]);
        n += take;
    };
    put(b"towpath malloc: ");
    put(what.as_bytes());
    put(b"(0x");
    for shift in (0..16).rev() {
        put(&[b"0123456789abcdef"[ptr.addr() >> (shift * 4) & 15]]);
    }
    put(b"): ");
    put(match misuse {
        Misuse::DoubleFree => b"double free, ignored\n",
        Misuse::Foreign => b"pointer of another allocator, ignored\n",
        Misuse::Interior => b"pointer inside an object, ignored\n",
        Misuse::Stale => b"pointer to memory given back long ago, ignored\n",
    });
    const NAME: &[u8] = b"TOWPATH_MALLOC_ABORT\0";
    // SAFETY: `line` has `n` bytes, the name is a C string.
    unsafe {
        libc::write(2, line.as_ptr().cast(), n);
        if !libc::getenv(NAME.as_ptr().cast::<c_char>()).is_null() {
            libc::abort();
        }
    }
}

/// C11 7.24.3.6.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(len: size_t) -> *mut c_void {
    or_no_memory(global::alloc(len))
}

/// C11 7.24.3.5.
///
/// # Safety
/// `ptr` is null or an object the program does not use any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(ptr: *mut c_void) {
    if ptr.is_null() {
        return;
    }
    // SAFETY: forwarded.
    if let Err(misuse) = unsafe { global::dealloc(ptr.cast()) } {
        report("free", ptr, misuse);
    }
}

/// C11 7.24.3.2.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: size_t, len: size_t) -> *mut c_void {
    match count.checked_mul(len) {
        Some(bytes) => or_no_memory(global::alloc_zeroed(bytes)),
        None => or_no_memory(std::ptr::null_mut()),
    }
}

/// C11 7.24.3.7; `realloc(p, 0)` frees, as the C library of Linux does.
///
/// # Safety
/// `ptr` is null or an object; unless null is returned the program uses only the result afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(ptr: *mut c_void, len: size_t) -> *mut c_void {
    if ptr.is_null() {
        return malloc(len);
    }
    if len == 0 {
        // SAFETY: forwarded.
        unsafe { free(ptr) };
        return std::ptr::null_mut();
    }
    // SAFETY: forwarded.
    match unsafe { global::realloc(ptr.cast(), len) } {
        Ok(fresh) => or_no_memory(fresh),
        Err(misuse) => {
            report("realloc", ptr, misuse);
            or_no_memory(std::ptr::null_mut())
        }
    }
}

/// reallocarray(3).
///
/// # Safety
/// As for [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(ptr: *mut c_void, count: size_t, len: size_t) -> *mut c_void {
    match count.checked_mul(len) {
        // SAFETY: forwarded.
        Some(bytes) => unsafe { realloc(ptr, bytes) },
        None => or_no_memory(std::ptr::null_mut()),
    }
}

/// posix_memalign(3): 0, EINVAL or ENOMEM, as a result and not in errno.
///
/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: size_t, len: size_t) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let ptr = global::alloc_aligned(len, align);
    if ptr.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: forwarded.
    unsafe { out.write(ptr.cast()) };
    0
}

/// memalign(3).
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: size_t, len: size_t) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    }
    or_no_memory(global::alloc_aligned(len, align))
}

/// C11 7.24.3.1, without demanding that `len` is a multiple of `align`.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: size_t, len: size_t) -> *mut c_void {
    memalign(align, len)
}

/// valloc(3): at a page.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(len: size_t) -> *mut c_void {
    memalign(PAGE, len)
}

/// pvalloc(3): whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(len: size_t) -> *mut c_void {
    match len.max(1).checked_next_multiple_of(PAGE) {
        Some(bytes) => memalign(PAGE, bytes),
        None => or_no_memory(std::ptr::null_mut()),
    }
}

/// malloc_usable_size(3); 0 for a pointer that is no live object.
///
/// # Safety
/// `ptr` is null or an object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(ptr: *mut c_void) -> size_t {
    if ptr.is_null() {
        return 0;
    }
    global::usable(ptr.cast_const().cast()).unwrap_or_else(|misuse| {
        report("malloc_usable_size", ptr, misuse);
        0
    })
}

unsafe extern "C" fn before_fork() {
    // SAFETY: the C library calls this in the forking thread, and one of the two below after.
    unsafe { global::lock_for_fork() };
}

unsafe extern "C" fn after_fork() {
    // SAFETY: as above.
    unsafe { global::unlock_after_fork() };
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: unsafe extern "C" fn(),
        parent: unsafe extern "C" fn(),
        child: unsafe extern "C" fn(),
    ) -> c_int;
}

extern "C" fn start() {
    // SAFETY: the handlers stay loaded as long as the program runs: a preloaded library is never unloaded.
    unsafe { pthread_atfork(before_fork, after_fork, after_fork) };
}

/// Runs [`start`] when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
