//! The four rings an AF_XDP socket shares with the kernel (Documentation/networking/af_xdp.rst): fill and transmit,
//! which we produce, receive and completion, which we consume. The kernel's counters are trusted no further than the
//! ring is long.

use crate::sys::Mapping;
use crate::{Error, link, sys};
use std::mem::{size_of, zeroed};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

const RX_RING: i32 = 2;
const TX_RING: i32 = 3;
const FILL_RING: i32 = 5;
const COMPLETION_RING: i32 = 6;
const MMAP_OFFSETS: i32 = 1;
const NEED_WAKEUP: u32 = 1;

/// A receive or transmit descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Desc {
    /// Offset of the bytes in the UMEM.
    pub(crate) addr: u64,
    pub(crate) len: u32,
    /// [`CONTINUES`] or 0.
    pub(crate) options: u32,
}

/// The packet continues in the next descriptor.
pub(crate) const CONTINUES: u32 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
struct Offsets {
    producer: u64,
    consumer: u64,
    desc: u64,
    flags: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct AllOffsets {
    rx: Offsets,
    tx: Offsets,
    fill: Offsets,
    completion: Offsets,
}

/// One ring of `T`; our own counter is cached, the kernel's is read when the cache says full or empty.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    ours: u32,
    theirs: u32,
    _mapping: Mapping,
}

impl<T: Copy> Ring<T> {
    fn map(socket: RawFd, page: u64, offsets: Offsets, size: u32) -> Result<Ring<T>, Error> {
        assert!(size.is_power_of_two());
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let mapping = Mapping::new(socket, page, len, true, "mapping a ring of the XDP socket")?;
        // The last entry proves that all lie inside.
        mapping.at::<T>(offsets.desc as usize + (size as usize - 1) * size_of::<T>());
        Ok(Ring {
            producer: mapping.at(offsets.producer as usize),
            consumer: mapping.at(offsets.consumer as usize),
            flags: mapping.at(offsets.flags as usize),
            entries: mapping.at(offsets.desc as usize),
            size,
            ours: 0,
            theirs: 0,
            _mapping: mapping,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: points into the mapping, which lives as long as self; the kernel writes it atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for the producer.
        unsafe { self.consumer.as_ref() }
    }

    fn entry(&self, at: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index below size, and `map` proved all entries inside the mapping.
        unsafe { self.entries.add((at & (self.size - 1)) as usize) }
    }

    /// Whether the kernel asks to be told of new entries by a system call.
    pub(crate) fn needs_wakeup(&self) -> bool {
        // SAFETY: as for the producer.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// A ring we fill.
#[derive(Debug)]
pub(crate) struct Producer<T>(Ring<T>);

impl<T: Copy> Producer<T> {
    /// Free entries; looks at the kernel's counter if fewer than `wanted` are known.
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        let ring = &mut self.0;
        let mut used = ring.ours.wrapping_sub(ring.theirs);
        if ring.size - used < wanted {
            let theirs = ring.consumer().load(Ordering::Acquire); // SYNC entry-free <- kernel consumed
            // A counter that overtook ours is nonsense: keep the old one.
            if ring.ours.wrapping_sub(theirs) <= ring.size {
                ring.theirs = theirs;
            }
            used = ring.ours.wrapping_sub(ring.theirs);
        }
        ring.size - used
    }

    /// Writes one entry; visible to the kernel after [`publish`](Self::publish). The caller has seen `free() > 0`.
    pub(crate) fn push(&mut self, value: T) {
        let ring = &mut self.0;
        debug_assert!(ring.ours.wrapping_sub(ring.theirs) < ring.size);
        // SAFETY: the entry is inside the mapping and the kernel does not touch it until published.
        unsafe { ring.entry(ring.ours).write(value) };
        ring.ours = ring.ours.wrapping_add(1);
    }

    /// Shows all pushed entries to the kernel.
    pub(crate) fn publish(&mut self) {
        self.0.producer().store(self.0.ours, Ordering::Release); // SYNC entry-filled -> kernel
    }

    /// See [`Ring::needs_wakeup`].
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}

/// A ring the kernel fills.
#[derive(Debug)]
pub(crate) struct Consumer<T>(Ring<T>);

impl<T: Copy> Consumer<T> {
    /// Takes the next entry, if there is one.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let ring = &mut self.0;
        if ring.ours == ring.theirs {
            let theirs = ring.producer().load(Ordering::Acquire); // SYNC entry-filled <- kernel
            if theirs.wrapping_sub(ring.ours) > ring.size {
                return None;
            }
            ring.theirs = theirs;
            if ring.ours == theirs {
                return None;
            }
        }
        // SAFETY: the entry is inside the mapping, and the kernel published it and waits for our counter.
        let value = unsafe { ring.entry(ring.ours).read() };
        ring.ours = ring.ours.wrapping_add(1);
        Some(value)
    }

    /// Whether an entry waits.
    pub(crate) fn has_entry(&self) -> bool {
        self.0.ours != self.0.producer().load(Ordering::Acquire)
    }

    /// Gives all popped entries back to the kernel.
    pub(crate) fn release(&mut self) {
        self.0.consumer().store(self.0.ours, Ordering::Release); // SYNC entry-free -> kernel
    }
}

/// All rings of one socket.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) fill: Producer<u64>,
    pub(crate) tx: Producer<Desc>,
    pub(crate) rx: Consumer<Desc>,
    pub(crate) completion: Consumer<u64>,
}

impl Rings {
    /// Sets the sizes of the rings of `socket`, whose UMEM is registered, and maps them.
    pub(crate) fn new(socket: RawFd, size: u32) -> Result<Rings, Error> {
        for (option, what) in [(FILL_RING, "fill"), (COMPLETION_RING, "completion"), (RX_RING, "rx"), (TX_RING, "tx")] {
            link::set_option(socket, libc::SOL_XDP, option, &size, &format!("sizing the {what} ring"))?;
        }
        // SAFETY: plain numbers, written by the call.
        let mut offsets: AllOffsets = unsafe { zeroed() };
        let mut len = size_of::<AllOffsets>() as u32;
        // SAFETY: pointer and length describe a local that outlives the call.
        let rc = unsafe { libc::getsockopt(socket, libc::SOL_XDP, MMAP_OFFSETS, (&raw mut offsets).cast(), &mut len) };
        sys::check(rc.into(), "asking for the ring offsets")?;
        if len as usize != size_of::<AllOffsets>() {
            return Err(Error::Unsupported(
                "this kernel's AF_XDP has no wake-up flags (Linux 5.4 or newer needed)".into(),
            ));
        }
        Ok(Rings {
            fill: Producer(Ring::map(socket, libc::XDP_UMEM_PGOFF_FILL_RING, offsets.fill, size)?),
            tx: Producer(Ring::map(socket, libc::XDP_PGOFF_TX_RING as u64, offsets.tx, size)?),
            rx: Consumer(Ring::map(socket, libc::XDP_PGOFF_RX_RING as u64, offsets.rx, size)?),
            completion: Consumer(Ring::map(socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING, offsets.completion, size)?),
        })
    }
}
