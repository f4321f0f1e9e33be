//! Making, naming and ending queues.

use crate::address;
use crate::failure::{Failure, Outcome, guard, text};
use crate::runtime::{Os, enter};
use std::ffi::{c_char, c_int, c_uint};
use std::time::Duration;
use towpath_libos::{Address, Domain, How, Kind, OpenOptions, Opt, Qd, Queue, Whence};

/// A queue descriptor of C's.
pub fn descriptor(qd: c_int) -> Outcome<Qd> {
    if qd < 0 {
        return Err(Failure::new(libc::EBADF, format!("{qd} is no queue")));
    }
    Ok(Qd::from_raw(qd))
}

/// Does something with an open queue, which stays open.
fn with<T>(os: &Os, qd: c_int, act: impl FnOnce(&Queue) -> towpath_libos::Result<T>) -> Outcome<T> {
    let queue = os.runtime.adopt(descriptor(qd)?)?;
    let result = act(&queue);
    // The handle must not close the queue, whatever came of it.
    let _ = queue.into_qd();
    Ok(result?)
}

/// A socket: AF_INET, AF_INET6 or AF_UNIX; SOCK_STREAM or SOCK_DGRAM; protocol 0, or the one the type implies.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_socket(os: *mut Os, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let os = unsafe { enter(os)? };
        let domain = match domain {
            libc::AF_INET => Domain::V4,
            libc::AF_INET6 => Domain::V6,
            libc::AF_UNIX => Domain::Unix,
            _ => return Err(Failure::new(libc::EAFNOSUPPORT, format!("address family {domain} is not served"))),
        };
        let (kind, implied) = match kind {
            libc::SOCK_STREAM => (Kind::Stream, libc::IPPROTO_TCP),
            libc::SOCK_DGRAM => (Kind::Datagram, libc::IPPROTO_UDP),
            _ => return Err(Failure::new(libc::ESOCKTNOSUPPORT, format!("socket type {kind} is not served"))),
        };
        if protocol != 0 && (protocol != implied || domain == Domain::Unix) {
            return Err(Failure::new(libc::EPROTONOSUPPORT, format!("protocol {protocol} is not that type's")));
        }
        Ok(os.runtime.socket(domain, kind)?.into_qd().raw())
    })
}

/// Gives a socket its own address.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `addr` is null or points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_bind(os: *mut Os, qd: c_int, addr: *const libc::sockaddr, len: libc::socklen_t) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, address) = unsafe { (enter(os)?, address::read(addr, len)?) };
        with(os, qd, |queue| queue.bind(&address))?;
        Ok(0)
    })
}

/// Lets a bound stream socket accept connections.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_listen(os: *mut Os, qd: c_int, backlog: c_int) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let os = unsafe { enter(os)? };
        with(os, qd, |queue| queue.listen(backlog.max(0) as u32))?;
        Ok(0)
    })
}

/// Closes a queue; what is pending on it completes with -ECANCELED.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_close(os: *mut Os, qd: c_int) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let os = unsafe { enter(os)? };
        os.runtime.close(descriptor(qd)?)?;
        Ok(0)
    })
}

/// Ends one or both directions of a connection: SHUT_RD, SHUT_WR, SHUT_RDWR.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_shutdown(os: *mut Os, qd: c_int, how: c_int) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let os = unsafe { enter(os)? };
        let how = match how {
            libc::SHUT_RD => How::Read,
            libc::SHUT_WR => How::Write,
            libc::SHUT_RDWR => How::Both,
            _ => return Err(Failure::invalid(format!("{how} is neither SHUT_RD, SHUT_WR nor SHUT_RDWR"))),
        };
        with(os, qd, |queue| queue.shutdown(how))?;
        Ok(0)
    })
}

/// An in-memory queue: what is pushed is popped, by reference.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_queue(os: *mut Os) -> c_int {
    // SAFETY: the caller's contract.
    guard(|| Ok(unsafe { enter(os)? }.runtime.queue()?.into_qd().raw()))
}

/// Writes one of a socket's addresses out.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `len` is null or holds the room at `addr`.
unsafe fn tell(
    os: *mut Os,
    qd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    which: fn(&Queue) -> towpath_libos::Result<Address>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let address = with(unsafe { enter(os)? }, qd, which)?;
        // SAFETY: as above.
        unsafe { address::copy_out(&address, addr, len)? };
        Ok(0)
    })
}

/// A socket's own address, as getsockname(2) gives it.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `len` is null or holds the room at `addr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_getsockname(
    os: *mut Os,
    qd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { tell(os, qd, addr, len, Queue::local_addr) }
}

/// The peer's address, as getpeername(2) gives it.
///
/// # Safety
/// As `tp_getsockname`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_getpeername(
    os: *mut Os,
    qd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { tell(os, qd, addr, len, Queue::peer_addr) }
}

unsafe fn set(os: *mut Os, qd: c_int, option: Opt) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        with(unsafe { enter(os)? }, qd, |queue| queue.set_option(option))?;
        Ok(0)
    })
}

/// Sends small segments at once (on from the start) or gathers them.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_set_nodelay(os: *mut Os, qd: c_int, on: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { set(os, qd, Opt::NoDelay(on != 0)) }
}

/// Probes a peer that was silent for `seconds`; 0 does not.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_set_keepalive(os: *mut Os, qd: c_int, seconds: c_uint) -> c_int {
    let idle = (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)));
    // SAFETY: the caller's contract.
    unsafe { set(os, qd, Opt::KeepAlive(idle)) }
}

/// How long a close goes on sending; 0 resets the connection; negative leaves it to the kernel.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_set_linger(os: *mut Os, qd: c_int, seconds: c_int) -> c_int {
    let linger = u64::try_from(seconds).ok().map(Duration::from_secs);
    // SAFETY: the caller's contract.
    unsafe { set(os, qd, Opt::Linger(linger)) }
}

/// Opens a file: O_RDONLY, O_WRONLY or O_RDWR with O_APPEND, O_CREAT, O_EXCL, O_TRUNC; O_CLOEXEC is always on.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_open(os: *mut Os, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, path) = unsafe { (enter(os)?, text(path, "path")?) };
        Ok(os.runtime.open(path, options(flags, mode)?)?.into_qd().raw())
    })
}

fn options(flags: c_int, mode: libc::mode_t) -> Outcome<OpenOptions> {
    let known = libc::O_ACCMODE
        | libc::O_APPEND
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_CLOEXEC
        | libc::O_LARGEFILE;
    if flags & !known != 0 {
        return Err(Failure::invalid(format!("open flags {:#o} are not served", flags & !known)));
    }
    let access = flags & libc::O_ACCMODE;
    let has = |flag| flags & flag != 0;
    Ok(OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .append(has(libc::O_APPEND))
        .create(has(libc::O_CREAT))
        .create_new(has(libc::O_CREAT) && has(libc::O_EXCL))
        .truncate(has(libc::O_TRUNC))
        .mode(mode))
}

/// Creates a file, or empties it, for writing and reading.
///
/// # Safety
/// As `tp_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_creat(os: *mut Os, path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { tp_open(os, path, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, mode) }
}

/// Moves a file's cursor: SEEK_SET, SEEK_CUR, SEEK_END; its new place.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_lseek(os: *mut Os, qd: c_int, offset: i64, whence: c_int) -> i64 {
    guard(|| {
        // SAFETY: the caller's contract.
        let os = unsafe { enter(os)? };
        let whence = match whence {
            libc::SEEK_SET => Whence::Start,
            libc::SEEK_CUR => Whence::Current,
            libc::SEEK_END => Whence::End,
            _ => return Err(Failure::invalid(format!("{whence} is neither SEEK_SET, SEEK_CUR nor SEEK_END"))),
        };
        let at = with(os, qd, |queue| queue.lseek(offset, whence))?;
        i64::try_from(at).map_err(|_| Failure::new(libc::EOVERFLOW, "the cursor is beyond what fits"))
    })
}

/// Cuts or extends a file.
///
/// # Safety
/// `os` is null or a handle of `tp_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_truncate(os: *mut Os, qd: c_int, len: u64) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        with(unsafe { enter(os)? }, qd, |queue| queue.truncate(len))?;
        Ok(0)
    })
}
