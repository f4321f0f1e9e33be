//! Errors as C wants them: a negative errno, and a text for the last one of this thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed.
pub struct Failure {
    pub errno: c_int,
    text: String,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(errno: c_int, text: impl Into<String>) -> Failure {
        Failure { errno, text: text.into() }
    }

    pub fn invalid(text: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, text)
    }
}

impl From<towpath_libos::Error> for Failure {
    fn from(error: towpath_libos::Error) -> Failure {
        Failure::new(error.errno(), error.to_string())
    }
}

impl From<towpath_cbuf::Error> for Failure {
    fn from(error: towpath_cbuf::Error) -> Failure {
        let errno = match &error {
            towpath_cbuf::Error::OutOfMemory { .. } => libc::ENOMEM,
            towpath_cbuf::Error::TooLarge { .. } => libc::EMSGSIZE,
            _ => libc::EINVAL,
        };
        Failure::new(errno, error.to_string())
    }
}

thread_local! {
    /// The last failure of this thread: its errno and its text.
    static LAST: RefCell<(c_int, CString)> = RefCell::new((0, CString::default()));
}

/// Runs `body` and gives C what it came to; a panic is a fault of ours, told as `-EIO`.
pub fn guard<T: From<i32>>(body: impl FnOnce() -> Outcome<T>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(libc::EIO, "a fault inside libtowpath; what it printed says where"),
    };
    T::from(-remember(failure))
}

/// Keeps the text for `tp_strerror`; returns the errno.
pub fn remember(failure: Failure) -> c_int {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = (failure.errno, text));
    failure.errno
}

/// The text of an error: what the last call of this thread that failed with it tried, else what the number means.
/// Valid until the next call of this thread that fails, or the next of this function.
#[unsafe(no_mangle)]
pub extern "C" fn tp_strerror(error: c_int) -> *const c_char {
    let errno = error.saturating_abs();
    LAST.with(|last| {
        let mut last = last.borrow_mut();
        if last.0 != errno || errno == 0 {
            let text = if errno == 0 { "no error".to_string() } else { plain(errno) };
            *last = (errno, CString::new(text).unwrap_or_default());
        }
        last.1.as_ptr()
    })
}

fn plain(errno: c_int) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_string()
}

/// A C string as text.
///
/// # Safety
/// `text` is null or a NUL-terminated string that outlives the result.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map_err(|_| Failure::invalid(format!("{what} is no UTF-8 text")))
}

/// A place where C wants something written.
///
/// # Safety
/// `place` is null or points to a `T` that nobody else uses meanwhile.
pub unsafe fn place<'a, T>(place: *mut T, what: &str) -> Outcome<&'a mut std::mem::MaybeUninit<T>> {
    if !place.is_aligned() {
        return Err(Failure::invalid(format!("{what} is not aligned")));
    }
    // SAFETY: the caller vouches for the pointer; nothing is assumed of what lies there.
    unsafe { place.cast::<std::mem::MaybeUninit<T>>().as_mut() }
        .ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}
