//! `struct sockaddr` to and from addresses.

use crate::failure::{Failure, Outcome, guard, place, text};
use std::ffi::{OsStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use towpath_libos::{Address, UnixAddress};

/// Reads an address of C's.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
pub unsafe fn read(addr: *const libc::sockaddr, len: libc::socklen_t) -> Outcome<Address> {
    if addr.is_null() {
        return Err(Failure::invalid("the address is NULL"));
    }
    let len = (len as usize).min(size_of::<libc::sockaddr_storage>());
    // SAFETY: the caller vouches for len bytes.
    let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), len) };
    let short = || Failure::invalid("the address is too short for its family");
    let family: [u8; 2] = *bytes.first_chunk().ok_or_else(short)?;
    match c_int::from(u16::from_ne_bytes(family)) {
        libc::AF_INET => {
            let b: &[u8; 8] = bytes.first_chunk().ok_or_else(short)?;
            let ip = Ipv4Addr::new(b[4], b[5], b[6], b[7]);
            Ok(Address::Inet(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be_bytes([b[2], b[3]])))))
        }
        libc::AF_INET6 => {
            let b: &[u8; 28] = bytes.first_chunk().ok_or_else(short)?;
            let ip: [u8; 16] = *b[8..].first_chunk().ok_or_else(short)?;
            let scope: [u8; 4] = *b[24..].first_chunk().ok_or_else(short)?;
            let port = u16::from_be_bytes([b[2], b[3]]);
            let v6 = SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, u32::from_ne_bytes(scope));
            Ok(Address::Inet(SocketAddr::V6(v6)))
        }
        libc::AF_UNIX => Ok(Address::Unix(unix(&bytes[2..]))),
        other => Err(Failure::new(libc::EAFNOSUPPORT, format!("address family {other} is not served"))),
    }
}

fn unix(path: &[u8]) -> UnixAddress {
    match path {
        [] => UnixAddress::Unnamed,
        [0, name @ ..] => UnixAddress::Abstract(name.into()),
        path => {
            let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
            UnixAddress::Path(OsStr::from_bytes(&path[..end]).into())
        }
    }
}

/// The address as C wants it, and its length.
pub fn write(address: &Address) -> (libc::sockaddr_storage, libc::socklen_t) {
    let mut bytes = [0u8; size_of::<libc::sockaddr_storage>()];
    let len = match address {
        Address::Inet(SocketAddr::V4(v4)) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        Address::Inet(SocketAddr::V6(v6)) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&v6.port().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            size_of::<libc::sockaddr_in6>()
        }
        Address::Unix(unix) => {
            bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
            let (start, name, end) = match unix {
                UnixAddress::Unnamed => (2, &[][..], 0),
                UnixAddress::Abstract(name) => (3, &name[..], 0),
                UnixAddress::Path(path) => (2, path.as_os_str().as_bytes(), 1),
            };
            // A path takes 107 bytes and its zero; longer ones were refused when the socket was bound.
            let name = &name[..name.len().min(size_of::<libc::sockaddr_un>() - 3)];
            bytes[start..start + name.len()].copy_from_slice(name);
            start + name.len() + end
        }
    };
    // SAFETY: both are plain bytes of the same size.
    let storage =
        unsafe { std::mem::transmute::<[u8; size_of::<libc::sockaddr_storage>()], libc::sockaddr_storage>(bytes) };
    (storage, len as libc::socklen_t)
}

/// Copies an address out as `getsockname` does: cut to the room there is, `len` set to its whole length.
///
/// # Safety
/// `len` is null or points to the room at `addr`, which is writable for that many bytes.
pub unsafe fn copy_out(address: &Address, addr: *mut libc::sockaddr, len: *mut libc::socklen_t) -> Outcome<()> {
    if addr.is_null() || len.is_null() {
        return Err(Failure::invalid("the place for the address or its length is NULL"));
    }
    let (storage, needed) = write(address);
    // SAFETY: the caller's contract; the source has the size of a sockaddr_storage, which is at least `needed`.
    unsafe {
        let room = (*len).min(needed) as usize;
        std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), addr.cast::<u8>(), room);
        *len = needed;
    }
    Ok(())
}

/// Reads an address as people write it: "HOST:PORT", "[IPV6]:PORT", "unix:/PATH", "unix:@NAME".
///
/// # Safety
/// `text_` is null or a C string; `addr` and `len` are null or point to places for the address and its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_address(
    text_: *const c_char,
    addr: *mut libc::sockaddr_storage,
    len: *mut libc::socklen_t,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (address, addr, len): (_, &mut MaybeUninit<_>, &mut MaybeUninit<_>) =
            unsafe { (text(text_, "the address")?, place(addr, "addr")?, place(len, "len")?) };
        let (storage, needed) = write(&address.parse::<Address>()?);
        addr.write(storage);
        len.write(needed);
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_through_c_and_back_is_the_same() {
        for text in ["127.0.0.1:80", "[::1]:65535", "[fe80::1%3]:9", "unix:/tmp/x.sock", "unix:@abstract"] {
            let address: Address = text.parse().expect("an address");
            let (storage, len) = write(&address);
            // SAFETY: the storage has at least len bytes.
            let back = unsafe { read((&raw const storage).cast(), len) };
            assert_eq!(back.ok(), Some(address), "{text}");
        }
    }

    #[test]
    fn address_cut_short_is_an_error_never_a_read_beyond() {
        let (storage, len) = write(&"[::1]:7".parse().expect("an address"));
        for short in 0..len {
            // SAFETY: the storage has at least that many bytes.
            let cut = unsafe { read((&raw const storage).cast(), short) };
            assert_eq!(cut.err().map(|f| f.errno), Some(libc::EINVAL), "{short} bytes");
        }
    }
}
