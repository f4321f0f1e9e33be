//! Provided buffers: our own heap buffers, offered to the kernel through a ring so that a receive takes one only when
//! something has come (an idle connection holds none).

use super::super::receive::COPY_MAX;
use crate::error::{Error, Result};
use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use towpath_cbuf::{Buf, BufMut, Memory};

/// A group of provided buffers of one size.
pub(super) struct Group {
    id: u16,
    ring: RingMemory,
    entries: u16,
    tail: u16,
    size: usize,
    /// The buffers the kernel may write, by their id; none while memory for a new one could not be had.
    offered: Vec<Option<BufMut>>,
    /// Ids without a buffer.
    missing: Vec<u16>,
}

/// The page-aligned memory of a buffer ring, shared with the kernel.
struct RingMemory {
    base: NonNull<BufRingEntry>,
    len: usize,
}

impl RingMemory {
    fn new(entries: u16) -> Result<RingMemory> {
        let len = usize::from(entries) * size_of::<BufRingEntry>();
        // SAFETY: a new private anonymous mapping; nothing else is touched.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        match NonNull::new(base.cast::<BufRingEntry>()) {
            Some(entries) if base != libc::MAP_FAILED => Ok(RingMemory { base: entries, len }),
            _ => Err(Error::OutOfMemory { requested: len }),
        }
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and unmapped once; the ring that knew it is gone (see `Uring`'s field order).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Group {
    /// Registers `entries` (a power of two) buffers of `size` bytes as group `id`.
    pub fn new(ring: &IoUring, id: u16, entries: u16, size: usize, memory: &Memory) -> Result<Group> {
        assert!(entries.is_power_of_two());
        let shared = RingMemory::new(entries)?;
        // SAFETY: the memory is page-aligned, long enough for `entries`, and outlives the ring.
        unsafe { ring.submitter().register_buf_ring_with_flags(shared.base.as_ptr() as u64, entries, id, 0) }
            .map_err(|e| Error::os("io_uring_register", e.raw_os_error().unwrap_or(libc::EINVAL)))?;
        let offered = (0..entries).map(|_| None).collect();
        let mut group = Group { id, ring: shared, entries, tail: 0, size, offered, missing: (0..entries).collect() };
        group.refill(memory);
        if group.missing.len() == usize::from(entries) {
            return Err(Error::OutOfMemory { requested: size });
        }
        Ok(group)
    }

    pub fn id(&self) -> u16 {
        self.id
    }

    /// Offers buffers under every id that lacks one, as far as memory goes.
    pub fn refill(&mut self, memory: &Memory) {
        while let Some(&id) = self.missing.last() {
            let Ok(buffer) = memory.alloc(self.size) else { return };
            self.missing.pop();
            self.offer(id, buffer);
        }
    }

    fn offer(&mut self, id: u16, mut buffer: BufMut) {
        let at = usize::from(self.tail & (self.entries - 1));
        // SAFETY: `at` is below `entries`, so the entry lies in the mapping; entries at and behind the tail are ours.
        let entry = unsafe { &mut *self.ring.base.as_ptr().add(at) };
        entry.set_addr(buffer.as_mut_ptr() as u64);
        entry.set_len(buffer.len() as u32);
        entry.set_bid(id);
        self.offered[usize::from(id)] = Some(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry of the mapping, aligned for u16; the kernel only reads it.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.ring.base.as_ptr()).cast_mut()) };
        tail.store(self.tail, Ordering::Release); // SYNC entry-filled -> the kernel's load of the tail
    }

    /// Takes `len` bytes at `offset` of the buffer the kernel filled; a small part is copied out and the buffer offered
    /// again, a large one goes out as it is and a new buffer takes its place.
    pub fn take(&mut self, id: u16, offset: usize, len: usize, memory: &Memory) -> Result<Buf> {
        let Some(mut buffer) = self.offered.get_mut(usize::from(id)).and_then(Option::take) else {
            return Err(Error::os("pop", libc::EIO));
        };
        let end = (offset + len).min(buffer.len());
        if len <= COPY_MAX || len * 4 < self.size {
            let copy = memory.copy_from(&buffer[offset.min(end)..end]);
            self.offer(id, buffer);
            return Ok(copy?);
        }
        self.missing.push(id);
        self.refill(memory);
        buffer.truncate(end);
        let mut data = buffer.freeze();
        data.trim_front(offset);
        Ok(data)
    }

    /// The bytes of a filled buffer.
    pub fn bytes(&self, id: u16) -> &[u8] {
        self.offered.get(usize::from(id)).and_then(Option::as_deref).unwrap_or(&[])
    }

    /// Offers a filled buffer again; what is in it is not wanted.
    pub fn discard(&mut self, id: u16) {
        if let Some(buffer) = self.offered.get_mut(usize::from(id)).and_then(Option::take) {
            self.offer(id, buffer);
        }
    }
}
