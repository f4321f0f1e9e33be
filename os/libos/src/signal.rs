//! SIGTERM and SIGINT as something a server awaits. The handler only counts and raises the eventfds of the runtimes
//! that asked; a second signal ends the process as it would have without us.

use crate::sys::eventfd_raise;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Runtimes of one process that can await a signal at once.
const LISTENERS: usize = 256;

static RECEIVED: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);
static WAKE: [AtomicI32; LISTENERS] = [const { AtomicI32::new(-1) }; LISTENERS];

/// How many signals have come so far.
#[inline]
pub(crate) fn received() -> u32 {
    RECEIVED.load(Ordering::Relaxed)
}

/// The last signal's number.
pub(crate) fn last() -> i32 {
    LAST.load(Ordering::Relaxed)
}

extern "C" fn on_signal(number: libc::c_int) {
    // SAFETY: __errno_location always returns this thread's valid errno; it is put back as it was.
    let errno = unsafe { *libc::__errno_location() };
    LAST.store(number, Ordering::Relaxed);
    RECEIVED.fetch_add(1, Ordering::Relaxed);
    for slot in &WAKE {
        let fd = slot.load(Ordering::Relaxed);
        if fd >= 0 {
            eventfd_raise(fd);
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Installs the handlers, once a process. SA_RESETHAND gives the second signal its default effect.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for number in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: sigaction is plain data for which all zeroes is valid; the handler is async-signal-safe (it
            // only touches atomics and calls write(2)).
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
                action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
                libc::sigaction(number, &action, std::ptr::null_mut());
            }
        }
    });
}

/// Registers an eventfd to be raised by signals until it is dropped. None if too many are registered.
pub(crate) struct Registration(usize);

impl Registration {
    pub fn new(fd: RawFd) -> Option<Registration> {
        let free = |slot: &AtomicI32| slot.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        WAKE.iter().position(free).map(Registration)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        WAKE[self.0].store(-1, Ordering::Release);
    }
}
