//! A protection domain's frames: a reserved range of addresses with arenas mapped into it, the metadata table beside
//! it, and the lists all cores of the domain share. Cores come here for batches, so a mutex is enough.

use super::buddy::{Buddy, ORDERS};
use super::meta::{Meta, ORDER_SINGLE, state};
use crate::error::{Error, Result};
use crate::id::{ArenaId, GENERATION, INDEX_BITS};
use crate::sys::{self, MemoryFile, PAGE};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// How a domain's frames are laid out.
#[derive(Clone, Copy, Debug)]
pub struct DomainConfig {
    /// Bytes of an arena: a power of two, at least a page.
    pub arena_bytes: usize,
    /// Arenas that buffers share, at most. A device that registers arenas at its start wants one.
    pub arenas: usize,
    /// Bytes of all arenas together, those of single large buffers included, at most.
    pub limit_bytes: usize,
}

impl Default for DomainConfig {
    fn default() -> DomainConfig {
        if cfg!(miri) {
            return DomainConfig { arena_bytes: 16 << 12, arenas: 1, limit_bytes: 64 << 12 };
        }
        DomainConfig { arena_bytes: 64 << 20, arenas: 1, limit_bytes: 4 << 30 }
    }
}

/// What a device needs to know of a frame arena.
#[derive(Clone, Copy, Debug)]
pub struct FrameArena {
    /// Its name.
    pub id: ArenaId,
    /// First byte of its mapping in this process, readable and writable, page aligned.
    pub base: NonNull<u8>,
    /// Length in bytes, whole pages.
    pub len: usize,
    /// Its memory file, sealed: nobody can map it writable any more, nor grow or shrink it. The descriptor is the
    /// domain's and stays open as long as a memory of it lives.
    #[cfg(not(miri))]
    pub fd: std::os::fd::RawFd,
}

pub(super) struct Arena {
    pub id: ArenaId,
    pub first: u32,
    pub pages: u32,
    pub file: MemoryFile,
    /// `None`: one CBUF fills it.
    buddy: Option<Buddy>,
    /// Blocks of the largest size that have memory.
    populated: Vec<bool>,
    /// A device or another process knows its pages: they stay.
    pinned: bool,
}

impl Arena {
    /// From now on its memory stays, and nobody can map it writable, grow it or cut it short.
    pub fn seal(&mut self) -> Result<()> {
        if !self.pinned {
            sys::seal(&self.file).map_err(Error::system("seal a frame arena"))?;
            self.pinned = true;
        }
        Ok(())
    }
}

struct Range {
    base: *mut u8,
    table: *mut Meta,
    /// Arena id (upper half, plus one) and its first page (lower half), by slot of `arena_bytes`.
    slots: Vec<AtomicU64>,
    /// Keeps the table's memory file.
    file: MemoryFile,
}

#[derive(Default)]
struct Inner {
    arenas: Vec<Arena>,
    bytes: usize,
}

/// A protection domain's frames; cores share it.
pub struct Domain {
    config: DomainConfig,
    range: std::sync::OnceLock<Range>,
    inner: Mutex<Inner>,
}

// SAFETY: the raw pointers are the domain's own mappings, which live as long as it does; entries of the table are
// atomics, each belonging to the core that took the CBUF, and the rest is behind the mutex.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domain").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Domain {
    /// A domain that maps nothing until its first frame.
    pub fn new(config: DomainConfig) -> Result<Arc<Domain>> {
        if !config.arena_bytes.is_power_of_two() || config.arena_bytes < PAGE {
            return Err(Error::Config("the size of a frame arena must be a power of two of at least 4096 bytes"));
        }
        if config.limit_bytes >= PAGE << (INDEX_BITS - 1) {
            return Err(Error::Config("page indices reach 512 GB of frames"));
        }
        Ok(Arc::new(Domain { config, range: std::sync::OnceLock::new(), inner: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under this lock leaves lists that are whole, if perhaps a block short.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn out_of_memory(&self, requested: usize) -> Error {
        Error::OutOfMemory { requested, limit: self.config.limit_bytes }
    }

    /// Slots of address space: twice the limit, so that arenas of odd sizes still find a gap.
    fn slot_count(&self) -> usize {
        self.config.limit_bytes.div_ceil(self.config.arena_bytes).max(self.config.arenas) * 2
    }

    fn reserve(&self) -> Result<&Range> {
        if let Some(range) = self.range.get() {
            return Ok(range);
        }
        let bytes = self.slot_count() * self.config.arena_bytes;
        let table_bytes = (bytes / PAGE * size_of::<Meta>()).next_multiple_of(PAGE);
        let base = sys::reserve(bytes);
        let table = sys::reserve(table_bytes);
        if base.is_null() || table.is_null() {
            return Err(self.out_of_memory(bytes));
        }
        let file = sys::memory_file(c"towpath-cbuf-table", table_bytes)
            .and_then(|file| {
                // SAFETY: the reservation made just above.
                unsafe { sys::map_file(table, table_bytes, &file, true)? };
                Ok(file)
            })
            .map_err(Error::system("make the table of frames"))?;
        let slots = (0..self.slot_count()).map(|_| AtomicU64::new(0)).collect();
        // Callers hold the lock, so nobody else sets it.
        Ok(self.range.get_or_init(|| Range { base, table: table.cast(), slots, file }))
    }

    /// First byte of the range of frames, and the metadata table.
    pub(super) fn range(&self) -> Result<(*mut u8, *mut Meta)> {
        self.range.get().map(|r| (r.base, r.table)).ok_or(Error::Config("the domain has no frames yet"))
    }

    /// The memory file of the metadata table, for a manager to map; `None` before the first frame.
    #[cfg(not(miri))]
    pub fn table_file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.range.get().map(|r| r.file.as_fd())
    }

    fn new_arena(&self, inner: &mut Inner, pages: u32, single: bool) -> Result<()> {
        let bytes = pages as usize * PAGE;
        if inner.bytes + bytes > self.config.limit_bytes {
            return Err(self.out_of_memory(bytes));
        }
        let range = self.reserve()?;
        let need = bytes.div_ceil(self.config.arena_bytes);
        let slot = range
            .slots
            .windows(need)
            .position(|w| w.iter().all(|s| s.load(Ordering::Relaxed) == 0))
            .ok_or_else(|| self.out_of_memory(bytes))?;
        let first = (slot * self.config.arena_bytes / PAGE) as u32;
        let at = range.base.wrapping_add(slot * self.config.arena_bytes);
        let file = sys::memory_file(c"towpath-frames", bytes)
            .and_then(|file| {
                if single {
                    sys::populate_file(&file, 0, bytes)?;
                }
                // SAFETY: the slots are free, and the reservation is this domain's.
                unsafe { sys::map_file(at, bytes, &file, true)? };
                Ok(file)
            })
            .map_err(Error::system("make a frame arena"))?;
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
        let id = ArenaId(MADE.fetch_add(1, Ordering::Relaxed));
        inner.bytes += bytes;
        for s in &range.slots[slot..slot + need] {
            s.store(u64::from(id.0 + 1) << 32 | u64::from(first), Ordering::Release);
        }
        let buddy = (!single).then(|| Buddy::new(pages));
        let blocks = buddy.as_ref().map_or(0, |b| pages >> b.top());
        let populated = vec![false; blocks as usize];
        inner.arenas.push(Arena { id, first, pages, file, buddy, populated, pinned: false });
        Ok(())
    }

    /// Takes CBUFs of `2^order` pages, at least one; how many.
    pub(super) fn take(&self, order: usize, out: &mut [u32]) -> Result<usize> {
        let arena_pages = (self.config.arena_bytes / PAGE) as u32;
        if 1 << order > arena_pages {
            return Err(Error::Config("the buffer is larger than a frame arena"));
        }
        let mut inner = self.lock();
        let mut got = 0;
        let mut refused = None;
        loop {
            for i in 0..inner.arenas.len() {
                while got < out.len() {
                    match self.carve(&mut inner.arenas[i], order) {
                        Ok(Some(page)) => {
                            out[got] = page;
                            got += 1;
                        }
                        Ok(None) => break,
                        Err(e) => {
                            refused = Some(e);
                            break;
                        }
                    }
                }
            }
            if got > 0 {
                return Ok(got);
            }
            if let Some(e) = refused {
                return Err(e);
            }
            if inner.arenas.iter().filter(|a| a.buddy.is_some()).count() >= self.config.arenas {
                return Err(self.out_of_memory(PAGE << order));
            }
            self.new_arena(&mut inner, arena_pages, false)?;
        }
    }

    /// Takes one block of an arena and describes it in the table.
    fn carve(&self, arena: &mut Arena, order: usize) -> Result<Option<u32>> {
        let Some(buddy) = &mut arena.buddy else { return Ok(None) };
        let Some(at) = buddy.take(order) else { return Ok(None) };
        let block = (at >> buddy.top()) as usize;
        if !arena.populated[block] {
            let bytes = PAGE << buddy.top();
            if sys::populate_file(&arena.file, block * bytes, bytes).is_err() {
                buddy.give(order, at);
                return Err(self.out_of_memory(bytes));
            }
            arena.populated[block] = true;
        }
        let page = arena.first + at;
        self.describe(page, order as u8)?;
        Ok(Some(page))
    }

    /// Writes the entry of a CBUF that is about to be handed out.
    fn describe(&self, page: u32, order: u8) -> Result<()> {
        let (base, table) = self.range()?;
        // SAFETY: the table covers every page of the range, and the block is nobody's but the caller's.
        let entry = unsafe { &*table.add(page as usize) };
        if entry.id.load(Ordering::Relaxed) == 0 {
            entry.id.store(GENERATION | u64::from(page), Ordering::Relaxed);
        }
        entry.address.store((base.addr() + page as usize * PAGE) as u64, Ordering::Relaxed);
        entry.order.store(order, Ordering::Relaxed);
        entry.word.store(state::FREE, Ordering::Relaxed);
        Ok(())
    }

    /// Takes CBUFs back.
    pub(super) fn give(&self, order: usize, pages: &[u32]) {
        let mut inner = self.lock();
        for &page in pages {
            let arena = inner.arenas.iter_mut().find(|a| page >= a.first && page - a.first < a.pages);
            if let Some(Arena { first, buddy: Some(buddy), .. }) = arena {
                buddy.give(order, page - *first);
            }
        }
    }

    /// A CBUF in an arena of its own.
    pub(super) fn take_single(&self, len: usize) -> Result<u32> {
        let mut inner = self.lock();
        let pages = u32::try_from(len.div_ceil(PAGE)).map_err(|_| Error::TooLarge { requested: len })?;
        self.new_arena(&mut inner, pages, true)?;
        let first = inner.arenas.last().expect("just pushed").first;
        self.describe(first, ORDER_SINGLE)?;
        Ok(first)
    }

    /// Takes back a CBUF with an arena of its own: the arena is unmapped, and its name is never given again.
    pub(super) fn give_single(&self, page: u32) {
        let mut inner = self.lock();
        if let Some(i) = inner.arenas.iter().position(|a| a.first == page) {
            self.unmap(&mut inner, i);
        }
    }

    fn unmap(&self, inner: &mut Inner, i: usize) {
        let Some(range) = self.range.get() else { return };
        let arena = inner.arenas.swap_remove(i);
        let bytes = arena.pages as usize * PAGE;
        // SAFETY: none of its CBUFs is in use, and the range is this domain's.
        unsafe { sys::unmap_to_reservation(range.base.wrapping_add(arena.first as usize * PAGE), bytes) };
        inner.bytes -= bytes;
        let slot = arena.first as usize * PAGE / self.config.arena_bytes;
        for s in &range.slots[slot..slot + bytes.div_ceil(self.config.arena_bytes)] {
            s.store(0, Ordering::Release);
        }
    }

    /// Arena and offset of a byte of the range.
    pub(super) fn place(&self, offset: usize) -> Option<(ArenaId, u64)> {
        let entry = self.range.get()?.slots.get(offset / self.config.arena_bytes)?.load(Ordering::Acquire);
        if entry == 0 {
            return None;
        }
        let first = (entry & 0xffff_ffff) as usize * PAGE;
        Some((ArenaId((entry >> 32) as u32 - 1), (offset - first) as u64))
    }

    /// Makes sure an arena exists, and hands all of them out to register with a device or to share. Their pages stay
    /// in memory from now on, and they are sealed.
    pub(crate) fn arenas(&self) -> Result<Vec<FrameArena>> {
        let mut inner = self.lock();
        if inner.arenas.is_empty() {
            self.new_arena(&mut inner, (self.config.arena_bytes / PAGE) as u32, false)?;
        }
        let base = self.reserve()?.base;
        inner
            .arenas
            .iter_mut()
            .map(|a| {
                a.seal()?;
                let at = base.wrapping_add(a.first as usize * PAGE);
                Ok(FrameArena {
                    id: a.id,
                    base: NonNull::new(at).ok_or(Error::NoArena(a.id))?,
                    len: a.pages as usize * PAGE,
                    #[cfg(not(miri))]
                    fd: std::os::fd::AsRawFd::as_raw_fd(&a.file),
                })
            })
            .collect()
    }

    /// Runs `f` on an arena.
    pub(super) fn with_arena<T>(&self, id: ArenaId, f: impl FnOnce(&mut Arena) -> Result<T>) -> Result<T> {
        let mut inner = self.lock();
        let arena = inner.arenas.iter_mut().find(|a| a.id == id).ok_or(Error::NoArena(id))?;
        f(arena)
    }

    /// Gives memory of wholly free blocks back to the system, except where a device or another process knows the
    /// pages; bytes given back.
    pub fn trim(&self) -> usize {
        let mut inner = self.lock();
        let mut back = 0;
        for arena in inner.arenas.iter_mut().filter(|a| !a.pinned) {
            let Some(buddy) = &arena.buddy else { continue };
            let bytes = PAGE << buddy.top();
            for block in buddy.free_top_blocks() {
                let block = block as usize;
                if arena.populated[block] && sys::punch_file(&arena.file, block * bytes, bytes) {
                    arena.populated[block] = false;
                    back += bytes;
                }
            }
        }
        back
    }

    /// Bytes of arenas mapped, and bytes of them that no core has taken.
    pub fn usage(&self) -> (usize, usize) {
        let inner = self.lock();
        let free = inner.arenas.iter().filter_map(|a| a.buddy.as_ref()).map(|b| b.free_pages() as usize * PAGE).sum();
        (inner.bytes, free)
    }

    /// Size of an arena in bytes.
    pub fn arena_bytes(&self) -> usize {
        self.config.arena_bytes
    }

    /// The largest buffer that comes from a shared arena, in bytes.
    pub(crate) fn largest_shared(&self) -> usize {
        self.config.arena_bytes.min(PAGE << (ORDERS - 1))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let Some(range) = self.range.take() else { return };
        let bytes = self.slot_count() * self.config.arena_bytes;
        // SAFETY: pools hold the domain while a frame of it is out, so nobody refers to the mappings any more.
        unsafe {
            sys::unmap(range.base, bytes);
            sys::unmap(range.table.cast(), (bytes / PAGE * size_of::<Meta>()).next_multiple_of(PAGE));
        }
        drop(range.file);
    }
}
