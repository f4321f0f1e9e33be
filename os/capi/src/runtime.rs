//! `struct tp`: starting, stopping, asking.

use crate::failure::{Failure, Outcome, guard, place, text};
use std::ffi::{CString, c_char, c_int};
use std::thread::ThreadId;
use towpath_cbuf::{MemoryConfig, counters};
use towpath_libos::{Config, Runtime};

const MAGIC: u64 = 0x746f_7770_6174_6801;
const STOPPED: u64 = 0x746f_7770_6174_6800;

/// `struct tp`.
pub struct Os {
    magic: u64,
    thread: ThreadId,
    pub runtime: Runtime,
    libos: CString,
}

/// `struct tp_config`.
#[repr(C)]
pub struct CConfig {
    size: usize,
    libos: *const c_char,
    waiting: *const c_char,
    memory_max: u64,
    queues_max: u32,
    operations_max: u32,
}

/// `struct tp_stats`.
#[repr(C)]
pub struct CStats {
    pushes: u64,
    pops: u64,
    immediate: u64,
    accepted: u64,
    queues: u64,
    sleeps: u64,
    copied_bytes: u64,
}

/// The runtime behind a handle.
///
/// # Safety
/// `os` is null, or was made by `tp_start` and its memory is still readable.
pub unsafe fn enter<'a>(os: *mut Os) -> Outcome<&'a Os> {
    if os.is_null() || !os.is_aligned() {
        return Err(Failure::invalid("the runtime is NULL or no runtime"));
    }
    // SAFETY: the caller vouches that it can be read; the magic number tells whether it is one.
    let os = unsafe { &*os };
    match os.magic {
        MAGIC if os.thread == std::thread::current().id() => Ok(os),
        MAGIC => Err(Failure::new(libc::EPERM, "a runtime belongs to the thread that started it")),
        STOPPED => Err(Failure::invalid("the runtime was stopped")),
        _ => Err(Failure::invalid("that is no runtime")),
    }
}

/// Starts a runtime on this thread.
///
/// # Safety
/// `os` points to a place for the handle; `config` is null or points to a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_start(os: *mut *mut Os, config: *const CConfig) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (to, config) = unsafe { (place(os, "os")?, configuration(config)?) };
        let runtime = Runtime::start(config)?;
        let libos = CString::new(runtime.libos()).unwrap_or_default();
        let os = Os { magic: MAGIC, thread: std::thread::current().id(), runtime, libos };
        to.write(Box::into_raw(Box::new(os)));
        Ok(0)
    })
}

/// # Safety
/// `config` is null or points to a configuration whose texts are C strings.
unsafe fn configuration(config: *const CConfig) -> Outcome<Config> {
    let mut out = Config::default();
    // SAFETY: the caller's contract.
    let Some(config) = (unsafe { config.as_ref() }) else { return Ok(out) };
    if config.size != size_of::<CConfig>() {
        return Err(Failure::invalid("tp_config.size is not sizeof(struct tp_config)"));
    }
    if !config.libos.is_null() {
        // SAFETY: as above.
        out.libos = unsafe { text(config.libos, "libos")? }.parse().map_err(Failure::invalid)?;
    }
    if !config.waiting.is_null() {
        // SAFETY: as above.
        out.waiting = unsafe { text(config.waiting, "waiting")? }.parse().map_err(Failure::invalid)?;
    }
    if config.memory_max > 0 {
        let limit = usize::try_from(config.memory_max).unwrap_or(usize::MAX);
        out.memory = MemoryConfig { limit, ..out.memory };
    }
    if config.queues_max > 0 {
        out.queues_max = config.queues_max as usize;
    }
    if config.operations_max > 0 {
        out.operations_max = config.operations_max as usize;
    }
    Ok(out)
}

/// Closes every queue and ends the runtime. Arrays that are still held stay valid until they are freed, but no call takes
/// the handle any more.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_stop(os: *mut Os) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe { enter(os)? }.runtime.shutdown();
        // SAFETY: enter proved that it is a live runtime of this thread, made by Box::into_raw.
        let mut boxed = unsafe { Box::from_raw(os) };
        // SAFETY: the box is ours; volatile, so that the mark survives the box.
        unsafe { (&raw mut boxed.magic).write_volatile(STOPPED) };
        drop(boxed);
        Ok(0)
    })
}

/// The library OS in use, as configurations name it; NULL for no runtime. Valid until `tp_stop`.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_libos(os: *mut Os) -> *const c_char {
    // SAFETY: the caller's contract.
    match unsafe { enter(os) } {
        Ok(os) => os.libos.as_ptr(),
        Err(failure) => {
            crate::failure::remember(failure);
            std::ptr::null()
        }
    }
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn tp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Changes how the runtime waits, from its next wait on.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `waiting` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_set_waiting(os: *mut Os, waiting: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, waiting) = unsafe { (enter(os)?, text(waiting, "waiting")?) };
        os.runtime.set_waiting(waiting.parse().map_err(Failure::invalid)?);
        Ok(0)
    })
}

/// What the runtime has done so far; `copied_bytes` is of the whole process.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `stats` is null or points to a place for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_get_stats(os: *mut Os, stats: *mut CStats) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, to) = unsafe { (enter(os)?, place(stats, "stats")?) };
        let now = os.runtime.stats();
        to.write(CStats {
            pushes: now.operations.pushes,
            pops: now.operations.pops,
            immediate: now.operations.immediate,
            accepted: now.operations.accepted,
            queues: now.queues as u64,
            sleeps: now.sleeps,
            copied_bytes: counters::copied_bytes(),
        });
        Ok(0)
    })
}
