//! Linux error numbers, generic numbering.
#![allow(missing_docs, reason = "the names are Linux's")]

pub const EPERM: u16 = 1;
pub const ENOENT: u16 = 2;
pub const ESRCH: u16 = 3;
pub const EINTR: u16 = 4;
pub const EBADF: u16 = 9;
pub const ECHILD: u16 = 10;
pub const EAGAIN: u16 = 11;
pub const ENOMEM: u16 = 12;
pub const EFAULT: u16 = 14;
pub const EEXIST: u16 = 17;
pub const ENOTDIR: u16 = 20;
pub const EISDIR: u16 = 21;
pub const EINVAL: u16 = 22;
pub const EMFILE: u16 = 24;
pub const ENOTTY: u16 = 25;
pub const EFBIG: u16 = 27;
pub const ESPIPE: u16 = 29;
pub const EPIPE: u16 = 32;
pub const ERANGE: u16 = 34;
pub const ENAMETOOLONG: u16 = 36;
pub const ENOSYS: u16 = 38;
pub const ENOEXEC: u16 = 8;
pub const ENOTSOCK: u16 = 88;
pub const EDESTADDRREQ: u16 = 89;
pub const EAFNOSUPPORT: u16 = 97;
pub const EADDRINUSE: u16 = 98;
pub const EISCONN: u16 = 106;
pub const ENOTCONN: u16 = 107;
pub const ETIMEDOUT: u16 = 110;
pub const ECONNREFUSED: u16 = 111;

/// The number of a host error.
pub fn from_host(error: &std::io::Error) -> u16 {
    error.raw_os_error().map_or(5, |number| number as u16)
}
