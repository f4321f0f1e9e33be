//! The system calls under the allocator, and a stand-in for interpreters that have none. Everything else in the crate
//! is written against these few functions.

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

#[cfg(not(miri))]
mod real {
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// A memory file.
    pub(crate) type MemoryFile = OwnedFd;

    /// Reserves `len` bytes of address space that no access is allowed to yet; null if the system refuses.
    pub(crate) fn reserve(len: usize) -> *mut u8 {
        map(len, libc::PROT_NONE)
    }

    /// Maps `len` zeroed private bytes; null if the system refuses.
    pub(crate) fn map_private(len: usize) -> *mut u8 {
        map(len, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn map(len: usize, prot: i32) -> *mut u8 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if p == libc::MAP_FAILED { std::ptr::null_mut() } else { p.cast() }
    }

    /// Makes a part of a reservation readable and writable; false if memory ran out.
    ///
    /// # Safety
    /// `[p, p + len)` are whole pages of a reservation of this crate.
    pub(crate) unsafe fn commit(p: *mut u8, len: usize) -> bool {
        // SAFETY: the caller owns the pages.
        unsafe { libc::mprotect(p.cast(), len, libc::PROT_READ | libc::PROT_WRITE) == 0 }
    }

    /// Asks for huge pages under a range; advice only.
    ///
    /// # Safety
    /// As for [`commit`].
    pub(crate) unsafe fn advise_huge(p: *mut u8, len: usize) {
        // SAFETY: the caller owns the pages; advice changes no contents.
        unsafe { libc::madvise(p.cast(), len, libc::MADV_HUGEPAGE) };
    }

    /// Gives the memory under private pages back to the system; they read as zero afterwards.
    ///
    /// # Safety
    /// As for [`commit`], and nobody needs the contents.
    pub(crate) unsafe fn discard(p: *mut u8, len: usize) {
        // SAFETY: the caller owns the pages and gives up what they hold. A `free` must not change errno.
        unsafe {
            let errno = *libc::__errno_location();
            libc::madvise(p.cast(), len, libc::MADV_DONTNEED);
            *libc::__errno_location() = errno;
        }
    }

    /// Unmaps.
    ///
    /// # Safety
    /// `[p, p + len)` is a mapping of this crate that nobody uses any more.
    pub(crate) unsafe fn unmap(p: *mut u8, len: usize) {
        // SAFETY: forwarded. A `free` must not change errno.
        unsafe {
            let errno = *libc::__errno_location();
            libc::munmap(p.cast(), len);
            *libc::__errno_location() = errno;
        }
    }

    /// Moves or resizes a private mapping; null if the system refuses, which leaves the old one as it was.
    ///
    /// # Safety
    /// `[p, p + old)` is a whole mapping of this crate; on success its old address is dead.
    pub(crate) unsafe fn remap(p: *mut u8, old: usize, new: usize) -> *mut u8 {
        // SAFETY: forwarded.
        let moved = unsafe { libc::mremap(p.cast(), old, new, libc::MREMAP_MAYMOVE) };
        if moved == libc::MAP_FAILED { std::ptr::null_mut() } else { moved.cast() }
    }

    /// A memory file of `len` bytes, whose length may be sealed later.
    pub(crate) fn memory_file(name: &std::ffi::CStr, len: usize) -> io::Result<MemoryFile> {
        // SAFETY: `name` is a C string that outlives the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system calls on our own descriptor. 0400 keeps other users from opening it anew for writing.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), len as i64) < 0 || libc::fchmod(fd.as_raw_fd(), 0o400) < 0 } {
            return Err(io::Error::last_os_error());
        }
        Ok(fd)
    }

    /// Maps a memory file into a reservation, shared, kept from children.
    ///
    /// # Safety
    /// `[at, at + len)` are whole pages of a reservation of this crate that nobody uses.
    pub(crate) unsafe fn map_file(at: *mut u8, len: usize, file: &MemoryFile, writable: bool) -> io::Result<()> {
        let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: MAP_FIXED replaces only pages the caller owns.
        let p = unsafe { libc::mmap(at.cast(), len, prot, flags, file.as_raw_fd(), 0) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on the mapping just made: a forked child must not share frames with its parent.
        unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTFORK) };
        Ok(())
    }

    /// Turns mapped pages of a reservation back into bare reservation.
    ///
    /// # Safety
    /// As for [`map_file`].
    pub(crate) unsafe fn unmap_to_reservation(at: *mut u8, len: usize) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: MAP_FIXED replaces only pages the caller owns.
        unsafe { libc::mmap(at.cast(), len, libc::PROT_NONE, flags, -1, 0) };
    }

    /// Makes the kernel find memory for a range of a memory file now, so that running out is an error here and not a
    /// signal at the first touch.
    pub(crate) fn populate_file(file: &MemoryFile, offset: usize, len: usize) -> io::Result<()> {
        // SAFETY: a plain system call on a descriptor.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as i64, len as i64) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Gives the memory under a range of a memory file back to the system; false if the file refuses (sealed).
    pub(crate) fn punch_file(file: &MemoryFile, offset: usize, len: usize) -> bool {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a plain system call on a descriptor.
        unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) == 0 }
    }

    const SEALS: i32 = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;

    /// Seals a memory file against growing, shrinking and new writable mappings.
    pub(crate) fn seal(file: &MemoryFile) -> io::Result<()> {
        // SAFETY: a plain system call on a descriptor.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Whether a descriptor is a memory file sealed by [`seal`].
    pub(crate) fn is_sealed(file: &OwnedFd) -> io::Result<bool> {
        // SAFETY: a plain system call on a descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(seals & SEALS == SEALS)
    }

    /// The length of a file.
    pub(crate) fn file_len(file: &OwnedFd) -> io::Result<u64> {
        // SAFETY: a zeroed stat is valid and outlives the call.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(file.as_raw_fd(), &mut stat) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(stat.st_size as u64)
        }
    }

    /// Opens a memory file anew, for reading only.
    pub(crate) fn reopen_read_only(file: &MemoryFile) -> io::Result<OwnedFd> {
        std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map(OwnedFd::from)
    }

    /// Maps a whole file read-only, kept from children.
    pub(crate) fn map_read_only(file: &OwnedFd, len: usize) -> io::Result<*const u8> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on the mapping just made.
        unsafe { libc::madvise(p, len, libc::MADV_DONTFORK) };
        Ok(p.cast_const().cast())
    }

    /// Lets another runnable thread go first.
    pub(crate) fn yield_thread() {
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    }

    /// Milliseconds of the coarse monotonic clock; only intervals of tens of milliseconds are asked of it.
    pub(crate) fn coarse_millis() -> u64 {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` outlives the call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut t) };
        t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
    }

    /// A number that names the calling thread while it lives.
    pub(crate) fn thread_id() -> u64 {
        // SAFETY: no arguments.
        unsafe { libc::pthread_self() as u64 }
    }
}

#[cfg(not(miri))]
pub(crate) use real::*;

/// The stand-in: memory from `std::alloc`, nothing is ever given back to the system, no memory files.
#[cfg(miri)]
mod stand_in {
    use super::PAGE;
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), PAGE).expect("a page-aligned layout")
    }
    pub(crate) fn reserve(len: usize) -> *mut u8 {
        // SAFETY: the layout's size is not zero.
        unsafe { alloc_zeroed(layout(len)) }
    }
    pub(crate) fn map_private(len: usize) -> *mut u8 {
        reserve(len)
    }
    pub(crate) unsafe fn commit(_: *mut u8, _: usize) -> bool {
        true
    }
    pub(crate) unsafe fn advise_huge(_: *mut u8, _: usize) {}
    pub(crate) unsafe fn discard(p: *mut u8, len: usize) {
        // SAFETY: the caller gives up what the pages hold.
        unsafe { p.write_bytes(0, len) };
    }
    pub(crate) unsafe fn unmap(p: *mut u8, len: usize) {
        // SAFETY: made by `reserve` with this length.
        unsafe { dealloc(p, layout(len)) };
    }
    pub(crate) unsafe fn remap(_: *mut u8, _: usize, _: usize) -> *mut u8 {
        std::ptr::null_mut()
    }
    pub(crate) struct MemoryFile;
    pub(crate) fn memory_file(_: &std::ffi::CStr, _: usize) -> std::io::Result<MemoryFile> {
        Ok(MemoryFile)
    }
    pub(crate) unsafe fn map_file(_: *mut u8, _: usize, _: &MemoryFile, _: bool) -> std::io::Result<()> {
        Ok(())
    }
    pub(crate) unsafe fn unmap_to_reservation(at: *mut u8, len: usize) {
        // SAFETY: forwarded.
        unsafe { discard(at, len) };
    }
    pub(crate) fn populate_file(_: &MemoryFile, _: usize, _: usize) -> std::io::Result<()> {
        Ok(())
    }
    pub(crate) fn seal(_: &MemoryFile) -> std::io::Result<()> {
        Ok(())
    }
    pub(crate) fn punch_file(_: &MemoryFile, _: usize, _: usize) -> bool {
        false
    }
    pub(crate) fn yield_thread() {
        std::thread::yield_now();
    }
    pub(crate) fn coarse_millis() -> u64 {
        0
    }
    pub(crate) fn thread_id() -> u64 {
        thread_local!(static MARK: u8 = const { 0 });
        MARK.with(|m| std::ptr::from_ref(m).addr() as u64)
    }
}

#[cfg(miri)]
pub(crate) use stand_in::*;
