//! Frames: CBUFs of whole pages in arenas that devices and other processes can be shown. This module is one core's
//! view: a magazine for each power-of-two size, in front of the [`Domain`]'s shared lists.

mod buddy;
mod domain;
pub mod meta;
mod share;

pub(crate) use buddy::ORDERS;
pub use domain::{Domain, DomainConfig, FrameArena};
pub use share::{ArenaExport, ArenaView, ImportedArena};

use crate::error::Error;
use crate::id::{CbufId, GENERATION};
use meta::{Meta, ORDER_SINGLE, REFS_SATURATED, state};
use std::cell::{Cell, UnsafeCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Slots of a magazine.
const SLOTS: usize = 256;

/// Free CBUFs of one size, by their entries.
#[repr(C)]
struct Magazine {
    n: Cell<u32>,
    /// Zero while the pool has no domain, so that every `give` takes the slow path.
    cap: Cell<u32>,
    slots: [Cell<*mut Meta>; SLOTS],
}

/// One core's free frames.
#[repr(C)]
pub(crate) struct FramePool {
    base: Cell<*mut u8>,
    table: Cell<*mut Meta>,
    mags: [Magazine; ORDERS],
    domain: UnsafeCell<Option<Arc<Domain>>>,
    /// CBUFs handed to this core by the domain and not given back, in use or in a magazine; in pages.
    pages: Cell<u64>,
}

/// A fresh CBUF.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub ptr: *mut u8,
    pub meta: *mut Meta,
}

/// Base-two logarithm of the pages for `len` bytes.
#[inline(always)]
pub(crate) fn order(len: usize) -> usize {
    let pages = len.div_ceil(crate::sys::PAGE).max(1);
    pages.next_power_of_two().trailing_zeros() as usize
}

impl FramePool {
    /// Makes the magazines take frames.
    pub(crate) fn open(&self) {
        for (order, m) in self.mags.iter().enumerate() {
            m.cap.set((SLOTS as u32 >> order).max(4));
        }
    }

    /// Sets the domain frames come from. The pool has none, or none of its frames is out.
    pub(crate) fn join(&self, domain: Arc<Domain>) {
        // SAFETY: the pool is the calling thread's, and no reference into the cell is alive.
        unsafe { *self.domain.get() = Some(domain) };
    }

    /// Forgets the domain; nothing of it is out.
    pub(crate) fn leave(&self) {
        self.base.set(std::ptr::null_mut());
        self.table.set(std::ptr::null_mut());
        // SAFETY: as in `join`.
        drop(unsafe { (*self.domain.get()).take() });
    }

    /// Gives the magazines' frames back to the domain; what is freed later goes there at once.
    pub(crate) fn close(&self) {
        for order in 0..ORDERS {
            self.shed(order, 0);
            self.mags[order].cap.set(0);
        }
    }

    pub(crate) fn domain(&self) -> Option<&Arc<Domain>> {
        // SAFETY: changed only by `join` and `leave`, when nobody holds such a reference.
        unsafe { (*self.domain.get()).as_ref() }
    }

    /// Pages in use on this core: taken from the domain and not in a magazine.
    pub(crate) fn pages_in_use(&self) -> u64 {
        let idle: u64 = self.mags.iter().enumerate().map(|(o, m)| u64::from(m.n.get()) << o).sum();
        self.pages.get() - idle
    }

    #[inline(always)]
    fn meta(&self, page: u32) -> *mut Meta {
        self.table.get().wrapping_add(page as usize)
    }

    #[inline(always)]
    fn page_of(&self, meta: *mut Meta) -> u32 {
        ((meta.addr() - self.table.get().addr()) / size_of::<Meta>()) as u32
    }

    /// Takes a CBUF of `2^order` pages with one reference; `order < ORDERS`.
    #[inline(always)]
    pub(crate) fn take(&self, order: usize) -> Result<Frame, Error> {
        debug_assert!(order < ORDERS);
        // SAFETY: below ORDERS, as the caller promises.
        let m = unsafe { self.mags.get_unchecked(order) };
        let mut n = m.n.get();
        if n == 0 {
            n = self.refill(order)?;
        }
        n -= 1;
        m.n.set(n);
        // SAFETY: `n < SLOTS`; the magazine holds entries of free CBUFs of this domain.
        unsafe {
            let meta = m.slots.get_unchecked(n as usize).get();
            (*meta).word.store(state::IN_USE | 1, Ordering::Relaxed);
            // 64 bytes of table for 4096 of frames.
            let offset = (meta.addr() - self.table.get().addr()) * (crate::sys::PAGE / size_of::<Meta>());
            Ok(Frame { ptr: self.base.get().add(offset), meta })
        }
    }

    /// Takes a CBUF larger than the largest power of two: an arena of its own.
    pub(crate) fn take_single(&self, len: usize) -> Result<Frame, Error> {
        let domain = self.domain().ok_or(Error::Config("the memory has no frame domain"))?;
        let page = domain.take_single(len)?;
        let (base, table) = domain.range()?;
        self.base.set(base);
        self.table.set(table);
        let meta = self.meta(page);
        // SAFETY: the domain handed the entry to this core.
        unsafe { (*meta).word.store(state::IN_USE | 1, Ordering::Relaxed) };
        Ok(Frame { ptr: base.wrapping_add(page as usize * crate::sys::PAGE), meta })
    }

    #[cold]
    #[inline(never)]
    fn refill(&self, order: usize) -> Result<u32, Error> {
        let domain = self.domain().ok_or(Error::Config("the memory has no frame domain"))?;
        let m = &self.mags[order];
        let mut batch = [0u32; SLOTS];
        let want = (m.cap.get() as usize / 2).max(1);
        let got = domain.take(order, &mut batch[..want])?;
        let (base, table) = domain.range()?;
        self.base.set(base);
        self.table.set(table);
        // The lowest address is handed out first.
        for (slot, &page) in m.slots.iter().zip(batch[..got].iter().rev()) {
            slot.set(self.meta(page));
        }
        self.pages.set(self.pages.get() + ((got as u64) << order));
        m.n.set(got as u32);
        Ok(got as u32)
    }

    /// One more reference.
    #[inline(always)]
    pub(crate) fn retain(&self, meta: *mut Meta) {
        // SAFETY: the caller holds a reference, so the entry is that of a live CBUF.
        let word = unsafe { &(*meta).word };
        let now = word.load(Ordering::Relaxed);
        if now & !state::MASK != REFS_SATURATED {
            word.store(now + 1, Ordering::Relaxed);
        }
    }

    /// One reference less; with the last the CBUF is free under its next name.
    #[inline(always)]
    pub(crate) fn release(&self, order: usize, meta: *mut Meta) {
        // SAFETY: the caller gives up a reference, so the entry is that of a live CBUF.
        let entry = unsafe { &*meta };
        if entry.word.load(Ordering::Relaxed) == state::IN_USE | 1
            && order < ORDERS
            && entry.flags.load(Ordering::Relaxed) == 0
            && let Some(next) = entry.id.load(Ordering::Relaxed).checked_add(GENERATION)
        {
            let m = &self.mags[order];
            let n = m.n.get();
            entry.id.store(next, Ordering::Relaxed);
            entry.word.store(state::FREE, Ordering::Relaxed);
            if n < m.cap.get() {
                // SAFETY: `n < cap <= SLOTS`.
                unsafe { m.slots.get_unchecked(n as usize).set(meta) };
                m.n.set(n + 1);
            } else {
                self.give_slow(order, self.page_of(meta));
            }
            return;
        }
        self.release_slow(order, entry);
    }

    #[cold]
    #[inline(never)]
    fn release_slow(&self, order: usize, entry: &Meta) {
        let now = entry.word.load(Ordering::Relaxed);
        let refs = now & !state::MASK;
        assert!(refs > 0, "a buffer refers to a CBUF that nobody holds");
        if refs == REFS_SATURATED {
            return; // counted no more; never reused
        }
        if refs > 1 {
            entry.word.store(now - 1, Ordering::Relaxed);
            return;
        }
        let page = self.page_of(std::ptr::from_ref(entry).cast_mut());
        let Some(next) = entry.id.load(Ordering::Relaxed).checked_add(GENERATION) else {
            // No name is left for another buffer at this page.
            entry.word.store(state::RETIRED, Ordering::Relaxed);
            return;
        };
        entry.id.store(next, Ordering::Relaxed);
        entry.word.store(state::FREE, Ordering::Relaxed);
        if order == ORDER_SINGLE as usize {
            if let Some(domain) = self.domain() {
                domain.give_single(page);
            }
        } else {
            // A CBUF that the manager wants goes to the domain's lists, which the manager collects from.
            self.give_slow(order, page);
        }
    }

    #[cold]
    #[inline(never)]
    fn give_slow(&self, order: usize, page: u32) {
        self.shed(order, self.mags[order].cap.get() / 2);
        if let Some(domain) = self.domain() {
            domain.give(order, &[page]);
        }
        self.pages.set(self.pages.get() - (1 << order));
    }

    /// Gives all but the newest `keep` frames of a magazine to the domain.
    fn shed(&self, order: usize, keep: u32) {
        let m = &self.mags[order];
        let n = m.n.get();
        if n <= keep {
            return;
        }
        let out = (n - keep) as usize;
        let mut batch = [0u32; SLOTS];
        for (to, slot) in batch.iter_mut().zip(&m.slots[..n as usize]) {
            *to = self.page_of(slot.get());
        }
        if let Some(domain) = self.domain() {
            domain.give(order, &batch[..out]);
        }
        for i in out..n as usize {
            m.slots[i - out].set(m.slots[i].get());
        }
        self.pages.set(self.pages.get() - ((out as u64) << order));
        m.n.set(keep);
    }

    /// Gives all free frames to the domain, for other cores or for the system.
    pub(crate) fn trim(&self) {
        for order in 0..ORDERS {
            self.shed(order, 0);
        }
    }

    /// The name of a live CBUF.
    pub(crate) fn id(&self, meta: *mut Meta) -> CbufId {
        // SAFETY: the caller holds a reference.
        CbufId::from_raw(unsafe { (*meta).id.load(Ordering::Relaxed) })
    }

    /// Arena and byte offset of an address inside a live CBUF.
    pub(crate) fn place(&self, ptr: *const u8) -> Option<(crate::id::ArenaId, u64)> {
        let offset = ptr.addr().checked_sub(self.base.get().addr())?;
        self.domain()?.place(offset)
    }
}
