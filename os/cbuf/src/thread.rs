//! Which pool the calling thread allocates raw objects from.
//!
//! The pool's address lies in a thread-local word that is reached by one instruction from the thread pointer and
//! whose first use allocates nothing, which the standard library's thread-locals do not promise in a shared library.

use crate::heap::pool::Pool;
use crate::heap::space;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod word {
    use super::Pool;
    use std::arch::{asm, global_asm};

    global_asm!(
        ".section .tbss,\"awT\",@nobits",
        ".globl towpath_cbuf_thread_pool",
        ".hidden towpath_cbuf_thread_pool",
        ".type towpath_cbuf_thread_pool, @object",
        ".size towpath_cbuf_thread_pool, 8",
        ".p2align 3",
        "towpath_cbuf_thread_pool:",
        ".zero 8",
        ".text",
    );

    #[inline(always)]
    pub(super) fn get() -> *const Pool {
        let pool: *const Pool;
        // SAFETY: reads the thread's own word, by the initial-exec model.
        unsafe {
            asm!(
                "mov {p}, qword ptr [rip + towpath_cbuf_thread_pool@GOTTPOFF]",
                "mov {p}, qword ptr fs:[{p}]",
                p = out(reg) pool,
                options(nostack, preserves_flags, readonly)
            );
        }
        pool
    }

    pub(super) fn set(pool: *const Pool) {
        // SAFETY: writes the thread's own word.
        unsafe {
            asm!(
                "mov {t}, qword ptr [rip + towpath_cbuf_thread_pool@GOTTPOFF]",
                "mov qword ptr fs:[{t}], {p}",
                t = out(reg) _,
                p = in(reg) pool,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod word {
    use super::Pool;
    use std::cell::Cell;

    thread_local!(static POOL: Cell<*const Pool> = const { Cell::new(std::ptr::null()) });

    pub(super) fn get() -> *const Pool {
        POOL.get()
    }

    pub(super) fn set(pool: *const Pool) {
        POOL.set(pool);
    }
}

/// The calling thread's pool, if it has one.
#[inline(always)]
pub(crate) fn existing() -> Option<&'static Pool> {
    // SAFETY: null, or a pool, which is never unmapped.
    unsafe { word::get().as_ref() }
}

/// The calling thread's pool, made at first use; `None` when all pools are taken.
#[inline(always)]
pub(crate) fn pool() -> Option<&'static Pool> {
    match existing() {
        Some(pool) => Some(pool),
        None => make(),
    }
}

#[cold]
#[inline(never)]
fn make() -> Option<&'static Pool> {
    let pool = space::get()?.take_pool()?;
    pool.adopt(usize::MAX);
    // Before anything that may allocate itself.
    word::set(pool);
    at_exit::arm(pool);
    Some(pool)
}

/// A thread that ends gives its pool back.
#[cfg(not(miri))]
mod at_exit {
    use super::{Pool, word};
    use crate::heap::space::Lock;
    use std::cell::Cell;

    struct Key {
        lock: Lock,
        key: Cell<Option<libc::pthread_key_t>>,
    }

    // SAFETY: `key` is read and written under `lock`.
    unsafe impl Sync for Key {}

    static KEY: Key = Key { lock: Lock::new(), key: Cell::new(None) };

    unsafe extern "C" fn ended(pool: *mut libc::c_void) {
        // What the thread frees from here on goes the way of other threads' frees.
        word::set(std::ptr::null());
        // SAFETY: the value `arm` set: a pool, of the thread that ends.
        let pool: &'static Pool = unsafe { &*pool.cast_const().cast() };
        pool.retire();
    }

    pub(super) fn arm(pool: &'static Pool) {
        let key = {
            let _guard = KEY.lock.guard();
            let mut key = KEY.key.get();
            if key.is_none() {
                let mut made = 0;
                // SAFETY: `made` outlives the call, and `ended` is what the key's values are for.
                if unsafe { libc::pthread_key_create(&mut made, Some(ended)) } == 0 {
                    key = Some(made);
                    KEY.key.set(key);
                }
            }
            key
        };
        // Without a key the pool stays with the dead thread: its free memory is lost, nothing else.
        if let Some(key) = key {
            // SAFETY: a key of this process; the value is not null.
            unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(pool).cast()) };
        }
    }
}

#[cfg(miri)]
mod at_exit {
    use super::{Pool, word};

    struct Exit(&'static Pool);

    impl Drop for Exit {
        fn drop(&mut self) {
            word::set(std::ptr::null());
            self.0.retire();
        }
    }

    thread_local!(static EXIT: std::cell::RefCell<Option<Exit>> = const { std::cell::RefCell::new(None) });

    pub(super) fn arm(pool: &'static Pool) {
        EXIT.with(|e| *e.borrow_mut() = Some(Exit(pool)));
    }
}
