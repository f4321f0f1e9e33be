//! The system calls, each as a safe function that returns the kernel's error number. Nothing here knows of queues.

use crate::address::{Address, Domain, UnixAddress};
use std::mem::{MaybeUninit, offset_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A positive error number.
pub type Errno = i32;

/// The error number of the call that just failed on this thread.
pub fn errno() -> Errno {
    // SAFETY: __errno_location always returns this thread's valid errno.
    unsafe { *libc::__errno_location() }
}

fn check(rc: libc::c_int) -> Result<libc::c_int, Errno> {
    if rc < 0 { Err(errno()) } else { Ok(rc) }
}

fn check_len(rc: libc::ssize_t) -> Result<usize, Errno> {
    if rc < 0 { Err(errno()) } else { Ok(rc as usize) }
}

/// Whether an error only says "not now".
pub fn would_block(errno: Errno) -> bool {
    errno == libc::EAGAIN || errno == libc::EWOULDBLOCK
}

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
pub struct RawAddress {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddress {
    /// Room for the kernel to write any address into.
    pub fn empty() -> RawAddress {
        // SAFETY: sockaddr_storage is plain data for which all zeroes is valid (family AF_UNSPEC).
        let storage = unsafe { MaybeUninit::zeroed().assume_init() };
        RawAddress { storage, len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    /// The kernel's form of `address`; `EINVAL` for a UNIX name that is too long.
    pub fn new(address: &Address) -> Result<RawAddress, Errno> {
        let mut raw = RawAddress::empty();
        match address {
            Address::Inet(SocketAddr::V4(v4)) => raw.put(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            Address::Inet(SocketAddr::V6(v6)) => raw.put(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
            Address::Unix(name) => raw.put_unix(name)?,
        }
        Ok(raw)
    }

    fn put<T: Copy>(&mut self, value: T) {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        // SAFETY: the storage is at least as large and as aligned as every sockaddr type, checked above.
        unsafe { (&raw mut self.storage).cast::<T>().write(value) };
        self.len = size_of::<T>() as libc::socklen_t;
    }

    fn put_unix(&mut self, name: &UnixAddress) -> Result<(), Errno> {
        let (lead, bytes): (usize, &[u8]) = match name {
            UnixAddress::Path(path) => (0, path.as_os_str().as_bytes()),
            UnixAddress::Abstract(name) => (1, name),
            UnixAddress::Unnamed => (0, &[]),
        };
        let mut raw = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
        // A path keeps room for its terminating zero; an abstract name for its leading one.
        if bytes.len() + 1 > raw.sun_path.len() || (lead == 0 && bytes.contains(&0)) {
            return Err(libc::EINVAL);
        }
        for (to, from) in raw.sun_path[lead..].iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        self.put(raw);
        let terminator = usize::from(lead == 0 && !bytes.is_empty());
        self.len = (offset_of!(libc::sockaddr_un, sun_path) + lead + bytes.len() + terminator) as libc::socklen_t;
        Ok(())
    }

    /// The address the kernel wrote; none for families this library does not speak.
    pub fn address(&self) -> Option<Address> {
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says a sockaddr_in was written; any bytes are a valid one.
                let v4 = unsafe { *(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(Address::Inet(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)))))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says a sockaddr_in6 was written; any bytes are a valid one.
                let v6 = unsafe { *(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(Address::Inet(SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id))))
            }
            libc::AF_UNIX => Some(Address::Unix(self.unix())),
            _ => None,
        }
    }

    fn unix(&self) -> UnixAddress {
        // SAFETY: the family says a sockaddr_un was written; any bytes are a valid one.
        let raw = unsafe { *(&raw const self.storage).cast::<libc::sockaddr_un>() };
        let start = offset_of!(libc::sockaddr_un, sun_path);
        let len = (self.len as usize).saturating_sub(start).min(raw.sun_path.len());
        let bytes: Vec<u8> = raw.sun_path[..len].iter().map(|&c| c as u8).collect();
        match bytes.first() {
            None => UnixAddress::Unnamed,
            Some(0) => UnixAddress::Abstract(bytes[1..].into()),
            Some(_) => {
                let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
                UnixAddress::Path(std::ffi::OsString::from_vec(bytes[..end].to_vec()).into())
            }
        }
    }

    /// An address as the kernel wrote it somewhere else.
    pub fn from_bytes(bytes: &[u8]) -> RawAddress {
        let mut raw = RawAddress::empty();
        let len = bytes.len().min(size_of::<libc::sockaddr_storage>());
        // SAFETY: `len` bytes fit the storage, for which any bytes are valid; the source is a slice of its own.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut raw.storage).cast::<u8>(), len) };
        raw.len = len as libc::socklen_t;
        raw
    }

    /// The pointer and length a system call takes.
    pub fn as_parts(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.len)
    }
}

fn family(domain: Domain) -> libc::c_int {
    match domain {
        Domain::V4 => libc::AF_INET,
        Domain::V6 => libc::AF_INET6,
        Domain::Unix => libc::AF_UNIX,
    }
}

/// A non-blocking socket that children do not inherit.
pub fn socket(domain: Domain, stream: bool) -> Result<OwnedFd, Errno> {
    let kind = if stream { libc::SOCK_STREAM } else { libc::SOCK_DGRAM };
    // SAFETY: no pointers; the descriptor returned is ours alone.
    let fd = check(unsafe { libc::socket(family(domain), kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn bind(fd: RawFd, address: &RawAddress) -> Result<(), Errno> {
    let (pointer, len) = address.as_parts();
    // SAFETY: pointer and length describe `address`, which outlives the call.
    check(unsafe { libc::bind(fd, pointer, len) }).map(drop)
}

pub fn listen(fd: RawFd, backlog: i32) -> Result<(), Errno> {
    // SAFETY: no pointers.
    check(unsafe { libc::listen(fd, backlog) }).map(drop)
}

pub fn connect(fd: RawFd, address: &RawAddress) -> Result<(), Errno> {
    let (pointer, len) = address.as_parts();
    // SAFETY: pointer and length describe `address`, which outlives the call.
    check(unsafe { libc::connect(fd, pointer, len) }).map(drop)
}

/// Takes one waiting connection and its peer's address.
pub fn accept(fd: RawFd) -> Result<(OwnedFd, RawAddress), Errno> {
    let mut peer = RawAddress::empty();
    // SAFETY: the pointers describe `peer`, which outlives the call; its length is what it has room for.
    let new = check(unsafe {
        libc::accept4(fd, (&raw mut peer.storage).cast(), &mut peer.len, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
    })?;
    // SAFETY: the kernel just made this descriptor for us alone.
    Ok((unsafe { OwnedFd::from_raw_fd(new) }, peer))
}

/// A system call of six arguments, issued here. The C library's wrappers for these calls are cancellation points, which
/// costs a program of several threads two atomic operations a call; nothing here is ever cancelled that way.
///
/// # Safety
/// As for the system call `number`.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[inline(always)]
unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the kernel's convention for x86-64: number in rax, arguments in rdi, rsi, rdx, r10, r8, r9; it changes
    // rcx and r11 besides the result. What the call itself may touch is the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if result < 0 { Err(-result as Errno) } else { Ok(result as usize) }
}

/// As above, through the C library.
///
/// # Safety
/// As for the system call `number`.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise.
    check_len(unsafe { libc::syscall(number, a, b, c, d, e, f) } as libc::ssize_t)
}

/// Receives into `into` without blocking.
#[inline]
pub fn recv(fd: RawFd, into: &mut [u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT as usize;
    // SAFETY: the pointer and length describe `into`; no address is asked for.
    unsafe { call(libc::SYS_recvfrom, [fd as usize, into.as_mut_ptr() as usize, into.len(), flags, 0, 0]) }
}

/// Receives one datagram and its source without blocking; `MSG_TRUNC` makes the length its true one.
#[inline]
pub fn recv_from(fd: RawFd, into: &mut [u8], from: &mut RawAddress) -> Result<usize, Errno> {
    from.len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let flags = (libc::MSG_DONTWAIT | libc::MSG_TRUNC) as usize;
    let (storage, len) = (&raw mut from.storage as usize, &raw mut from.len as usize);
    // SAFETY: the pointers describe `into` and `from`, which outlive the call.
    unsafe { call(libc::SYS_recvfrom, [fd as usize, into.as_mut_ptr() as usize, into.len(), flags, storage, len]) }
}

const SEND_FLAGS: usize = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;

/// Sends `bytes` without blocking or raising SIGPIPE.
#[inline]
pub fn send(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the pointer and length describe `bytes`; there is no address.
    unsafe { call(libc::SYS_sendto, [fd as usize, bytes.as_ptr() as usize, bytes.len(), SEND_FLAGS, 0, 0]) }
}

/// Sends one datagram to `to`.
#[inline]
pub fn send_to(fd: RawFd, bytes: &[u8], to: &RawAddress) -> Result<usize, Errno> {
    let (pointer, len) = to.as_parts();
    let arguments = [fd as usize, bytes.as_ptr() as usize, bytes.len(), SEND_FLAGS, pointer as usize, len as usize];
    // SAFETY: the pointers describe `bytes` and `to`, which outlive the call.
    unsafe { call(libc::SYS_sendto, arguments) }
}

/// Most segments one call takes (Linux' UIO_MAXIOV).
pub const IOV_MAX: usize = 1024;

/// The header of a message of several segments.
pub fn message(iov: &[libc::iovec], to: Option<&RawAddress>) -> libc::msghdr {
    // SAFETY: msghdr is plain data for which all zeroes is valid: no name, no control data.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = iov.as_ptr().cast_mut();
    header.msg_iovlen = iov.len() as _;
    if let Some(to) = to {
        let (pointer, len) = to.as_parts();
        header.msg_name = pointer.cast_mut().cast();
        header.msg_namelen = len;
    }
    header
}

/// Sends several segments as one message.
///
/// # Safety
/// Every element of `iov` describes memory that is readable for the length of the call.
pub unsafe fn send_message(fd: RawFd, iov: &[libc::iovec], to: Option<&RawAddress>) -> Result<usize, Errno> {
    let header = message(iov, to);
    // SAFETY: the header describes `iov` and `to`, which outlive the call; the segments are the caller's promise.
    check_len(unsafe { libc::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

pub fn shutdown(fd: RawFd, how: std::net::Shutdown) -> Result<(), Errno> {
    let how = match how {
        std::net::Shutdown::Read => libc::SHUT_RD,
        std::net::Shutdown::Write => libc::SHUT_WR,
        std::net::Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: no pointers.
    check(unsafe { libc::shutdown(fd, how) }).map(drop)
}

pub fn local_address(fd: RawFd) -> Result<RawAddress, Errno> {
    let mut raw = RawAddress::empty();
    // SAFETY: the pointers describe `raw`, which outlives the call.
    check(unsafe { libc::getsockname(fd, (&raw mut raw.storage).cast(), &mut raw.len) })?;
    Ok(raw)
}

pub fn peer_address(fd: RawFd) -> Result<RawAddress, Errno> {
    let mut raw = RawAddress::empty();
    // SAFETY: the pointers describe `raw`, which outlives the call.
    check(unsafe { libc::getpeername(fd, (&raw mut raw.storage).cast(), &mut raw.len) })?;
    Ok(raw)
}

/// Sets a socket option of a plain type.
pub fn set_option<T: Copy>(fd: RawFd, level: i32, name: i32, value: T) -> Result<(), Errno> {
    // SAFETY: the pointer and size describe `value`, plain data that outlives the call.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<T>() as libc::socklen_t) })
        .map(drop)
}

/// An epoll instance.
pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> Result<Epoll, Errno> {
        // SAFETY: no pointers; the descriptor returned is ours alone.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: as above.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches `fd`; what is ready now is reported too.
    pub fn add(&self, fd: RawFd, events: u32, data: u64) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: the event outlives the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }).map(drop)
    }

    pub fn remove(&self, fd: RawFd) {
        // SAFETY: DEL takes no event. A descriptor that was never added is refused, which changes nothing.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Waits up to `timeout` (none: for ever) and returns how many of `events` were filled; an interruption by a
    /// signal fills none.
    pub fn wait(&self, events: &mut [libc::epoll_event], timeout: Option<std::time::Duration>) -> usize {
        let limit = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs().min(i64::MAX as u64) as libc::time_t,
            tv_nsec: t.subsec_nanos() as libc::c_long,
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the pointers describe `events` and the time limit, which outlive the call; no signal mask.
        let waited = unsafe {
            let count = events.len().min(i32::MAX as usize);
            let fd = self.0.as_raw_fd() as usize;
            call(libc::SYS_epoll_pwait2, [fd, events.as_mut_ptr() as usize, count, limit as usize, 0, 0])
        };
        match waited {
            Err(libc::ENOSYS) => self.wait_coarse(events, timeout),
            other => other.unwrap_or(0),
        }
    }

    /// For kernels before 5.11: the limit in whole milliseconds.
    fn wait_coarse(&self, events: &mut [libc::epoll_event], timeout: Option<std::time::Duration>) -> usize {
        let millis = timeout.map_or(-1, |t| t.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32);
        let count = events.len().min(i32::MAX as usize) as i32;
        // SAFETY: the pointer and count describe `events`.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), count, millis) };
        n.max(0) as usize
    }
}

/// A counter that other threads and signal handlers raise to end a sleep.
pub fn eventfd() -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers; the descriptor returned is ours alone.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Raises an eventfd. Async-signal-safe.
pub fn eventfd_raise(fd: RawFd) {
    let one: u64 = 1;
    // SAFETY: the pointer and length describe `one`. A full counter is refused, and is raised already.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

/// Lowers an eventfd to zero.
pub fn eventfd_lower(fd: RawFd) {
    let mut count: u64 = 0;
    // SAFETY: the pointer and length describe `count`.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

/// How often this thread was taken off its core against its will.
pub fn involuntary_switches() -> i64 {
    // SAFETY: rusage is plain data for which all zeroes is valid.
    let mut usage: libc::rusage = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the pointer describes `usage`, which outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nivcsw
}

/// A file's length.
pub fn file_size(fd: RawFd) -> Result<u64, Errno> {
    // SAFETY: stat is plain data for which all zeroes is valid.
    let mut stat: libc::stat = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the pointer describes `stat`, which outlives the call.
    check(unsafe { libc::fstat(fd, &mut stat) })?;
    Ok(stat.st_size as u64)
}

pub fn truncate(fd: RawFd, len: u64) -> Result<(), Errno> {
    let len = libc::off_t::try_from(len).map_err(|_| libc::EFBIG)?;
    // SAFETY: no pointers.
    check(unsafe { libc::ftruncate(fd, len) }).map(drop)
}

/// Reads into `into` from `at`, again when a signal interrupts.
pub fn read_at(fd: RawFd, into: &mut [u8], at: u64) -> Result<usize, Errno> {
    loop {
        // SAFETY: the pointer and length describe `into`.
        let n = check_len(unsafe { libc::pread(fd, into.as_mut_ptr().cast(), into.len(), at as libc::off_t) });
        if n != Err(libc::EINTR) {
            return n;
        }
    }
}

/// Writes segments at a place, or at the descriptor's own place (the end, with O_APPEND); again when a signal
/// interrupts.
///
/// # Safety
/// Every element of `iov` describes memory that is readable for the length of the call.
pub unsafe fn write_at(fd: RawFd, iov: &[libc::iovec], at: Option<u64>) -> Result<usize, Errno> {
    loop {
        // SAFETY: the segments are the caller's promise.
        let n = check_len(unsafe {
            match at {
                Some(at) => libc::pwritev(fd, iov.as_ptr(), iov.len() as libc::c_int, at as libc::off_t),
                None => libc::writev(fd, iov.as_ptr(), iov.len() as libc::c_int),
            }
        });
        if n != Err(libc::EINTR) {
            return n;
        }
    }
}

/// Waits until the file's data, and what is needed to find it, is on the disk.
pub fn sync_data(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: no pointers.
    check(unsafe { libc::fdatasync(fd) }).map(drop)
}
