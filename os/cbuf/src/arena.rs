//! A frame arena: memory of fixed size, shared with devices and other processes whole, given out in runs of pages.

use crate::buf::ArenaId;
use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a page, the smallest run.
const PAGE: usize = 4096;
/// Largest run, as a power of two of pages.
const ORDERS: usize = 16;

/// What a device must know to use an arena.
#[derive(Clone, Copy, Debug)]
pub struct FrameArena {
    /// Its name.
    pub id: ArenaId,
    /// First byte, page aligned.
    pub base: NonNull<u8>,
    /// Length in bytes, whole pages.
    pub len: usize,
    /// The sealed memory file: others can map it read-only and nobody can shrink it.
    pub fd: RawFd,
}

/// The arena itself, unmapped with its last buffer.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) info: FrameArena,
    _file: OwnedFd,
    free: RefCell<[Vec<u32>; ORDERS]>,
    fresh: Cell<u32>,
}

impl Arena {
    /// Maps and seals `len` bytes; `None` if the kernel refuses.
    pub(crate) fn new(len: usize) -> Option<Arena> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let len = len.next_multiple_of(PAGE);
        // SAFETY: plain system calls; the mapping is new and at an address of the kernel's choice.
        unsafe {
            let fd = libc::memfd_create(c"towpath-frames".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            if fd < 0 {
                return None;
            }
            let file = OwnedFd::from_raw_fd(fd);
            if libc::ftruncate(fd, len as i64) != 0 {
                return None;
            }
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0);
            if base == libc::MAP_FAILED {
                return None;
            }
            libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE);
            let base = NonNull::new(base.cast::<u8>())?;
            let id = ArenaId(NEXT.fetch_add(1, Ordering::Relaxed));
            Some(Arena {
                info: FrameArena { id, base, len, fd: file.as_raw_fd() },
                _file: file,
                free: RefCell::default(),
                fresh: Cell::new(0),
            })
        }
    }

    fn order(len: usize) -> usize {
        len.div_ceil(PAGE).max(1).next_power_of_two().trailing_zeros() as usize
    }

    /// Bytes that a run for `len` bytes has.
    pub(crate) fn run_len(len: usize) -> usize {
        PAGE << Arena::order(len)
    }

    /// First byte of a run of whole pages with room for `len`; `None` when the arena is used up.
    pub(crate) fn take(&self, len: usize) -> Option<NonNull<u8>> {
        let order = Arena::order(len);
        let page = match self.free.borrow_mut().get_mut(order)?.pop() {
            Some(page) => page,
            None => {
                let page = self.fresh.get();
                let end = page as usize + (1 << order);
                if end * PAGE > self.info.len {
                    return None;
                }
                self.fresh.set(end as u32);
                page
            }
        };
        // SAFETY: every page given out lies inside the mapping.
        Some(unsafe { self.info.base.add(page as usize * PAGE) })
    }

    /// Takes a run back.
    pub(crate) fn give(&self, data: NonNull<u8>, len: usize) {
        let page = (data.as_ptr() as usize - self.info.base.as_ptr() as usize) / PAGE;
        self.free.borrow_mut()[Arena::order(len)].push(page as u32);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping this value owns, and no buffer refers to it any more.
        unsafe { libc::munmap(self.info.base.as_ptr().cast(), self.info.len) };
    }
}
