//! The system calls the devices share, each wrapped once with its bounds checked: mappings, memory files with seals,
//! descriptors passed over a UNIX socket, the barrier of the sleeping protocol, and polling.

use crate::Error;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// Turns a negative return value into the error of `what`.
pub(crate) fn check(rc: i64, what: &str) -> Result<i64, Error> {
    if rc < 0 { Err(Error::last(what)) } else { Ok(rc) }
}

/// Takes ownership of a descriptor a system call just returned.
pub(crate) fn own_fd(rc: i64, what: &str) -> Result<OwnedFd, Error> {
    let fd = check(rc, what)?;
    // SAFETY: the call just returned this descriptor to us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A shared mapping of a file, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, writable or read-only.
    pub(crate) fn new(fd: RawFd, offset: u64, len: usize, writable: bool, what: &str) -> Result<Mapping, Error> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        Mapping::with(fd, offset, len, protection, libc::MAP_SHARED | libc::MAP_POPULATE, what)
    }

    /// Maps `len` bytes of `fd` read-only, without touching its pages: the holes of a large file stay holes.
    pub(crate) fn lazy(fd: RawFd, len: usize, what: &str) -> Result<Mapping, Error> {
        Mapping::with(fd, 0, len, libc::PROT_READ, libc::MAP_SHARED, what)
    }

    fn with(fd: RawFd, offset: u64, len: usize, protection: i32, flags: i32, what: &str) -> Result<Mapping, Error> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset as i64) };
        if base == libc::MAP_FAILED {
            return Err(Error::last(what));
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| Error::last(what))?;
        Ok(Mapping { base, len })
    }

    /// First byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A pointer to a `T` at `offset`.
    ///
    /// # Panics
    /// If the `T` would leave the mapping or be misaligned: offsets come from our own layouts or were checked before.
    pub(crate) fn at<T>(&self, offset: usize) -> NonNull<T> {
        assert!(offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len));
        // SAFETY: the offset was just bounded by the mapping.
        let pointer = unsafe { self.base.add(offset) };
        assert!((pointer.as_ptr() as usize).is_multiple_of(align_of::<T>()));
        pointer.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of a mapping this value owns.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A memory file of `len` zero bytes, not inherited by programs this one starts, and sealable.
pub(crate) fn memory_file(name: &std::ffi::CStr, len: usize) -> Result<OwnedFd, Error> {
    // SAFETY: the name is a C string and the call keeps no reference to it.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    let fd = own_fd(fd.into(), "memfd_create")?;
    // SAFETY: a plain call on a descriptor we own.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len as i64) }.into(), "ftruncate of a memory file")?;
    Ok(fd)
}

/// Forbids shrinking, growing and new writable mappings.
pub(crate) fn seal(fd: RawFd) -> Result<(), Error> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE;
    // SAFETY: a plain call on a descriptor.
    check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }.into(), "sealing shared memory")?;
    Ok(())
}

/// Length of a memory file of another process, once it is proven that the file can no longer shrink: mapping one that
/// can would let its owner kill us with SIGBUS.
pub(crate) fn sealed_len(fd: RawFd) -> Result<u64, Error> {
    // SAFETY: a plain call on a descriptor.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(Error::Protocol("the peer offered memory that it could truncate under us".into()));
    }
    // SAFETY: stat is plain data, written by the call.
    let mut stat: libc::stat = unsafe { zeroed() };
    // SAFETY: the pointer is to a local that outlives the call.
    check(unsafe { libc::fstat(fd, &mut stat) }.into(), "fstat of shared memory")?;
    Ok(stat.st_size as u64)
}

/// Most descriptors one message carries.
pub(crate) const FDS_MAX: usize = 32;

#[repr(C)]
union ControlSpace {
    header: libc::cmsghdr,
    // Room for one SCM_RIGHTS of FDS_MAX descriptors: header 16 bytes, 4 bytes a descriptor.
    bytes: [u8; 16 + 4 * FDS_MAX],
}

/// Sends one message with descriptors; never blocks, never raises SIGPIPE.
pub(crate) fn send_message(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
    assert!(fds.len() <= FDS_MAX);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let mut control = ControlSpace { bytes: [0; 16 + 4 * FDS_MAX] };
    // SAFETY: msghdr is plain data for which zero is valid.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let len = size_of_val(fds);
        message.msg_control = (&raw mut control).cast();
        // SAFETY: pure arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(len as u32) } as _;
        // SAFETY: the control space holds one header and FDS_MAX descriptors, and fds.len() <= FDS_MAX.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(len as u32) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), len);
        }
    }
    // SAFETY: message points to locals that outlive the call.
    let sent = unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one message and its descriptors; `Ok(None)` when none is there and the socket does not block.
pub(crate) fn receive_message(
    socket: RawFd,
    bytes: &mut [u8],
    wait: bool,
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = ControlSpace { bytes: [0; 16 + 4 * FDS_MAX] };
    // SAFETY: msghdr is plain data for which zero is valid.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<ControlSpace>() as _;
    let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: message points to locals and to `bytes`, all of which outlive the call.
    let got = unsafe { libc::recvmsg(socket, &mut message, flags) };
    if got < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control space with whole headers; data is read within their length, and each
    // descriptor was installed for us by this call.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                for i in 0..count {
                    let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(i).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(Some((got as usize, fds)))
}

/// Hints that the cache line at `address` will be read.
#[inline]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and cannot fault, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

const MEMBARRIER_GLOBAL_EXPEDITED: i32 = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

/// Asks to be included in the barriers that other processes issue; false where the kernel has none.
pub(crate) fn register_for_barriers() -> bool {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// A full memory barrier on every running thread of every registered process; false if the kernel refuses.
pub(crate) fn barrier_everywhere() -> bool {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// Waits until `fd` is readable or `timeout_ms` passed (-1: for ever); true if it is readable or broken.
pub fn poll_readable(fd: RawFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, a local that outlives the call.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_with_descriptor_arrives_with_a_working_descriptor() {
        let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let file = memory_file(c"test", 4096).unwrap();
        send_message(a.as_raw_fd(), b"hello", &[file.as_raw_fd()]).unwrap();
        let mut bytes = [0; 16];
        let (len, fds) = receive_message(b.as_raw_fd(), &mut bytes, true).unwrap().unwrap();
        assert_eq!(&bytes[..len], b"hello");
        assert_eq!(fds.len(), 1);
        assert!(Mapping::new(fds[0].as_raw_fd(), 0, 4096, true, "test").is_ok());
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let file = memory_file(c"test", 4096).unwrap();
        assert!(matches!(sealed_len(file.as_raw_fd()), Err(Error::Protocol(_))));
        seal(file.as_raw_fd()).unwrap();
        assert_eq!(sealed_len(file.as_raw_fd()).unwrap(), 4096);
        assert!(Mapping::new(file.as_raw_fd(), 0, 4096, true, "test").is_err(), "a sealed file maps read-only");
    }
}
