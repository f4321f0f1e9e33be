//! Starting operations and taking their results.

use crate::address;
use crate::failure::{Failure, Outcome, guard, place};
use crate::queues::descriptor;
use crate::runtime::{Os, enter};
use crate::sga::CSga;
use std::ffi::c_int;
use std::time::Duration;
use towpath_cbuf::{Memory, Sga};
use towpath_libos::{Completion, Outcome as Done, Token};

/// `struct tp_result`.
#[repr(C)]
pub struct CResult {
    token: u64,
    qd: c_int,
    op: c_int,
    error: c_int,
    accepted_qd: c_int,
    sga: CSga,
    addr: libc::sockaddr_storage,
    addr_len: libc::socklen_t,
}

/// `enum tp_op`.
const FAILED: c_int = 0;
const PUSH: c_int = 1;
const POP: c_int = 2;
const ACCEPT: c_int = 3;
const CONNECT: c_int = 4;
const SYNC: c_int = 5;

/// Nanoseconds as C gives them; none without limit.
pub fn limit(timeout_ns: u64) -> Option<Duration> {
    (timeout_ns != u64::MAX).then(|| Duration::from_nanos(timeout_ns))
}

/// A completion as C wants it. Only handing out more segments than an array holds can fail, for want of memory; the
/// operation then failed with -ENOMEM.
pub fn result(completion: Completion, memory: &Memory) -> CResult {
    // SAFETY: a sockaddr_storage of zeroes is valid: family AF_UNSPEC.
    let addr = unsafe { std::mem::zeroed() };
    let mut out = CResult {
        token: completion.token.raw(),
        qd: completion.qd.raw(),
        op: FAILED,
        error: 0,
        accepted_qd: -1,
        sga: CSga::EMPTY,
        addr,
        addr_len: 0,
    };
    match completion.outcome {
        Ok(Done::Pushed) => out.op = PUSH,
        Ok(Done::Connected) => out.op = CONNECT,
        Ok(Done::Synced) => out.op = SYNC,
        Ok(Done::Accepted { qd, peer }) => {
            (out.op, out.accepted_qd) = (ACCEPT, qd.raw());
            (out.addr, out.addr_len) = address::write(&peer);
        }
        Ok(Done::Popped { sga, from }) => match CSga::hand_out(sga, memory) {
            Ok(sga) => {
                (out.op, out.sga) = (POP, sga);
                if let Some(from) = &from {
                    (out.addr, out.addr_len) = address::write(from);
                }
            }
            Err(failure) => out.error = -crate::failure::remember(failure),
        },
        Err(error) => out.error = -crate::failure::remember(Failure::from(error)),
    }
    out
}

/// Starts an operation and writes its token.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `token` is null or points to a place for it.
unsafe fn start(os: *mut Os, token: *mut u64, begin: impl FnOnce(&Os) -> Outcome<Token>) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, to) = unsafe { (enter(os)?, place(token, "token")?) };
        to.write(begin(os)?.raw());
        Ok(0)
    })
}

/// Starts accepting a connection.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `token` is null or points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_accept(os: *mut Os, qd: c_int, token: *mut u64) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { start(os, token, |os| Ok(os.runtime.accept(descriptor(qd)?)?)) }
}

/// Starts connecting.
///
/// # Safety
/// As `tp_accept`; `addr` is null or points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_connect(
    os: *mut Os,
    qd: c_int,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
    token: *mut u64,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        start(os, token, |os| {
            let to = address::read(addr, len)?;
            Ok(os.runtime.connect(descriptor(qd)?, &to)?)
        })
    }
}

/// Starts a pop.
///
/// # Safety
/// As `tp_accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_pop(os: *mut Os, qd: c_int, token: *mut u64) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { start(os, token, |os| Ok(os.runtime.pop(descriptor(qd)?)?)) }
}

/// Starts waiting for the disk to hold what was pushed to a file.
///
/// # Safety
/// As `tp_accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_sync(os: *mut Os, qd: c_int, token: *mut u64) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { start(os, token, |os| Ok(os.runtime.sync(descriptor(qd)?)?)) }
}

/// # Safety
/// `sga` is null or points to an array, as [`CSga::take_up`] wants it.
unsafe fn data(os: &Os, sga: *const CSga) -> Outcome<Sga> {
    // SAFETY: the caller's contract.
    unsafe {
        let sga = sga.as_ref().ok_or_else(|| Failure::invalid("sga is NULL"))?;
        sga.take_up(os.runtime.memory())
    }
}

/// Starts a push: all of it to a stream, one datagram, one message, or bytes at the cursor of a file.
///
/// # Safety
/// As `tp_accept`; `sga` is null or points to an array whose bytes are not written until the push completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_push(os: *mut Os, qd: c_int, sga: *const CSga, token: *mut u64) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { start(os, token, |os| Ok(os.runtime.push(descriptor(qd)?, data(os, sga)?)?)) }
}

/// Starts a push of one datagram to an address.
///
/// # Safety
/// As `tp_push`; `addr` is null or points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_pushto(
    os: *mut Os,
    qd: c_int,
    sga: *const CSga,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
    token: *mut u64,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        start(os, token, |os| {
            let to = address::read(addr, len)?;
            Ok(os.runtime.push_to(descriptor(qd)?, data(os, sga)?, &to)?)
        })
    }
}

/// Starts a push to a file that completes when the data is on the disk.
///
/// # Safety
/// As `tp_push`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_push_sync(os: *mut Os, qd: c_int, sga: *const CSga, token: *mut u64) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { start(os, token, |os| Ok(os.runtime.push_sync(descriptor(qd)?, data(os, sga)?)?)) }
}

/// Waits for one operation and takes its result. -ETIMEDOUT leaves it pending.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `out` is null or points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_wait(os: *mut Os, token: u64, out: *mut CResult, timeout_ns: u64) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, to) = unsafe { (enter(os)?, place(out, "result")?) };
        let completion = os.runtime.wait(Token::from_raw(token), limit(timeout_ns))?;
        to.write(result(completion, os.runtime.memory()));
        Ok(0)
    })
}

/// # Safety
/// `tokens` is null or points to `count` of them.
unsafe fn tokens<'a>(tokens: *const u64, count: usize) -> Outcome<&'a [u64]> {
    if tokens.is_null() || count == 0 || count > isize::MAX as usize / size_of::<CResult>() {
        return Err(Failure::invalid("there are no tokens to wait for"));
    }
    // SAFETY: not null, and the caller vouches for the count.
    Ok(unsafe { std::slice::from_raw_parts(tokens, count) })
}

/// Waits for the first of several operations, takes its result and says which it was.
///
/// # Safety
/// As `tp_wait`; `tokens_` is null or points to `count` tokens; `index` is null or points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_wait_any(
    os: *mut Os,
    tokens_: *const u64,
    count: usize,
    index: *mut usize,
    out: *mut CResult,
    timeout_ns: u64,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, list, to) = unsafe { (enter(os)?, tokens(tokens_, count)?, place(out, "result")?) };
        let list: Vec<Token> = list.iter().map(|&raw| Token::from_raw(raw)).collect();
        let (at, completion) = os.runtime.wait_any(&list, limit(timeout_ns))?;
        to.write(result(completion, os.runtime.memory()));
        // SAFETY: as above; whoever does not care which it was passes NULL.
        if let Some(index) = unsafe { index.as_mut() } {
            *index = at;
        }
        Ok(0)
    })
}

/// Waits for every one of several operations; results come in the order of the tokens. -ETIMEDOUT takes none.
///
/// # Safety
/// As `tp_wait_any`; `out` is null or points to places for `count` results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_wait_all(
    os: *mut Os,
    tokens_: *const u64,
    count: usize,
    out: *mut CResult,
    timeout_ns: u64,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, list) = unsafe { (enter(os)?, tokens(tokens_, count)?) };
        if out.is_null() {
            return Err(Failure::invalid("results is NULL"));
        }
        let list: Vec<Token> = list.iter().map(|&raw| Token::from_raw(raw)).collect();
        for (i, completion) in os.runtime.wait_all(&list, limit(timeout_ns))?.into_iter().enumerate() {
            // SAFETY: there are `count` places, and as many completions as tokens.
            unsafe { out.add(i).write(result(completion, os.runtime.memory())) };
        }
        Ok(0)
    })
}
