//! [`Memory`]: one core's heap and frames.

use crate::buf::{self, Buf, BufMut, Kind, Raw, check_len};
use crate::error::{Error, Result};
use crate::frame::{self, Domain, DomainConfig, FrameArena, ORDERS};
use crate::heap::pool::{Misuse, PROGRAM, Pool, REF};
use crate::heap::{class, huge, space};
use crate::{counters, sys};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// How a [`Memory`] is set up.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Bytes of heap (superblocks and mappings) this core may hold at most.
    pub limit: usize,
    /// Bytes of a frame arena, made at the first frame, with memory under it as it is used; rounded up to a power of
    /// two.
    pub frame_bytes: usize,
    /// Frame arenas at most. Devices know those that existed when they started, so one is usual.
    pub frame_arenas: usize,
    /// The domain whose frames this core shares with others; then the two fields above do not count.
    pub domain: Option<Arc<Domain>>,
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        let frames = DomainConfig::default();
        MemoryConfig { limit: usize::MAX, frame_bytes: frames.arena_bytes, frame_arenas: frames.arenas, domain: None }
    }
}

impl MemoryConfig {
    fn frames(&self) -> Result<DomainConfig> {
        let too_large = Error::Config("a frame arena of that size does not fit the address space");
        let arena_bytes = self.frame_bytes.max(sys::PAGE).checked_next_power_of_two().ok_or(too_large)?;
        let shared = arena_bytes.saturating_mul(self.frame_arenas);
        let limit_bytes = shared.saturating_add(DomainConfig::default().limit_bytes);
        Ok(DomainConfig { arena_bytes, arenas: self.frame_arenas, limit_bytes })
    }
}

/// Who is told when the last reference to lent memory is dropped.
pub trait ForeignOwner {
    /// The bytes lent as `token` are no longer used by this process.
    fn release(&self, token: u64);
}

/// Lent memory, as the owner of a buffer.
struct Lent {
    ptr: NonNull<u8>,
    len: usize,
    owner: Rc<dyn ForeignOwner>,
    token: u64,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the caller of `Memory::foreign` promised that the bytes stay while `owner` lives.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.owner.release(self.token);
    }
}

/// Figures of one memory; bytes unless named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Superblocks and mappings held from the system.
    pub heap_held: usize,
    /// The limit on them.
    pub heap_limit: usize,
    /// Frames in use by buffers of this core.
    pub frames_in_use: u64,
    /// Frame arenas mapped by the whole domain.
    pub frames_mapped: usize,
    /// Frames no core of the domain has taken.
    pub frames_free: usize,
    /// Buffers alive on this core (views, not objects).
    pub buffers_in_use: usize,
    /// Buffers that are with other threads.
    pub buffers_abroad: usize,
    /// Objects and buffers other threads freed so far.
    pub remote_frees: u64,
}

/// One core's heap and frames: a cheap handle, not to be sent to other threads. Buffers may outlive it.
#[derive(Clone)]
pub struct Memory {
    pool: &'static Pool,
    _handle: Rc<Handle>,
}

struct Handle(&'static Pool);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.retire();
    }
}

impl Memory {
    /// Sets a core's memory up. It takes nothing but address space until the first allocation.
    pub fn new(config: MemoryConfig) -> Result<Memory> {
        let domain = match config.domain {
            Some(ref domain) => domain.clone(),
            None => Domain::new(config.frames()?)?,
        };
        let space = space::get().ok_or(Error::OutOfMemory { requested: 0, limit: usize::MAX })?;
        let pool = space.take_pool().ok_or(Error::TooManyPools)?;
        pool.adopt(config.limit);
        pool.frames.join(domain);
        Ok(Memory { pool, _handle: Rc::new(Handle(pool)) })
    }

    fn exhausted(&self, requested: usize) -> Error {
        Error::OutOfMemory { requested, limit: self.pool.limit_bytes() }
    }

    /// A heap buffer of `len` bytes, of undefined but initialised contents.
    #[inline(always)]
    pub fn alloc(&self, len: usize) -> Result<BufMut> {
        // Zero wraps and goes the long way.
        if len.wrapping_sub(1) < class::LARGEST {
            let class = class::of(len);
            if let Some(taken) = self.pool.take(class, REF) {
                self.pool.count_buffer();
                return Ok(BufMut::from_raw(Raw {
                    // SAFETY: objects lie in a mapping, which is not at null.
                    ptr: unsafe { NonNull::new_unchecked(taken.ptr) },
                    handle: taken.state.cast(),
                    len: len as u32,
                    pool: self.pool.index as u16,
                    class: class as u8,
                    kind: Kind::Heap,
                }));
            }
        }
        self.alloc_slow(len)
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, len: usize) -> Result<BufMut> {
        if len == 0 {
            return Ok(BufMut::new());
        }
        check_len(len)?;
        let bytes = huge::mapped(len).ok_or(Error::TooLarge { requested: len })?;
        if !self.pool.reserve_huge(bytes) {
            return Err(self.exhausted(len));
        }
        let base = huge::alloc(len, sys::PAGE, false);
        let Some(ptr) = NonNull::new(base) else {
            self.pool.huge.set(self.pool.huge.get() - bytes);
            return Err(self.exhausted(len));
        };
        self.pool.count_buffer();
        let pool = self.pool.index as u16;
        Ok(BufMut::from_raw(Raw { ptr, handle: base, len: len as u32, pool, class: 0, kind: Kind::Huge }))
    }

    /// A CBUF of `len` bytes: whole pages in a frame arena, of undefined but initialised contents.
    #[inline(always)]
    pub fn alloc_frame(&self, len: usize) -> Result<BufMut> {
        let order = frame::order(len);
        let (frame, class) = if order < ORDERS {
            match self.pool.frames.take(order) {
                Ok(frame) => (frame, order as u8),
                Err(e) => return self.alloc_single(len, e),
            }
        } else {
            return self.alloc_single(len, Error::TooLarge { requested: len });
        };
        Ok(self.frame(frame, class, len))
    }

    #[inline(always)]
    fn frame(&self, frame: frame::Frame, class: u8, len: usize) -> BufMut {
        self.pool.count_buffer();
        BufMut::from_raw(Raw {
            // SAFETY: frames lie in a mapping, which is not at null.
            ptr: unsafe { NonNull::new_unchecked(frame.ptr) },
            handle: frame.meta.cast(),
            len: len as u32,
            pool: self.pool.index as u16,
            class,
            kind: Kind::Frame,
        })
    }

    /// The long way: a buffer that no shared arena can hold gets one of its own.
    #[cold]
    #[inline(never)]
    fn alloc_single(&self, len: usize, refused: Error) -> Result<BufMut> {
        check_len(len)?;
        if len <= self.domain().largest_shared() {
            return Err(refused);
        }
        let frame = self.pool.frames.take_single(len)?;
        Ok(self.frame(frame, frame::meta::ORDER_SINGLE, len))
    }

    /// A heap buffer with a copy of `bytes`, counted.
    pub fn copy_from(&self, bytes: &[u8]) -> Result<Buf> {
        let mut buf = self.alloc(bytes.len())?;
        buf.copy_from_slice(bytes);
        counters::count_copy(bytes.len());
        Ok(buf.freeze())
    }

    /// A buffer over bytes that somebody else keeps; `owner` is dropped with the last view of them, on this thread.
    /// Of more than 4 GB only the first are in view.
    pub fn buf_from_owner<O: AsRef<[u8]> + Send + 'static>(&self, owner: O) -> Buf {
        buf::own(owner, true, self.pool.index as u16)
    }

    /// As [`Memory::buf_from_owner`], for an owner that must stay on this thread; `into_remote` copies its bytes.
    pub fn buf_from_local_owner<O: AsRef<[u8]> + 'static>(&self, owner: O) -> Buf {
        buf::own(owner, false, self.pool.index as u16)
    }

    /// A buffer over memory lent by another process or a device; `owner` is told when the last reference is dropped,
    /// on this thread.
    ///
    /// # Safety
    /// The bytes stay mapped and readable, and do not change, until `owner` is told; `len` is below 4 GB.
    pub unsafe fn foreign(&self, ptr: NonNull<u8>, len: usize, owner: Rc<dyn ForeignOwner>, token: u64) -> Buf {
        self.buf_from_local_owner(Lent { ptr, len, owner, token })
    }

    /// An object of `len` bytes that belongs to the program until [`Memory::free`]: the C interface's `malloc`.
    pub fn malloc(&self, len: usize) -> Result<NonNull<u8>> {
        let ptr = if len <= class::LARGEST {
            self.pool.take(class::of(len.max(1)), PROGRAM).map_or(std::ptr::null_mut(), |t| t.ptr)
        } else {
            huge::alloc(len, sys::PAGE, true)
        };
        NonNull::new(ptr).ok_or_else(|| self.exhausted(len))
    }

    /// The program gives up an object of [`Memory::malloc`]. If buffers still refer to it ([`Memory::hold`]), its
    /// memory is reused only after the last of them. A pointer that cannot be freed is an error and changes nothing.
    ///
    /// # Safety
    /// The program does not use the object any more.
    pub unsafe fn free(&self, ptr: NonNull<u8>) -> Result<()> {
        crate::global::free(Some(self.pool), ptr.as_ptr()).map_err(Error::Misuse)
    }

    /// A buffer over `len` bytes at `ptr`, inside a live object of the program's: from now on the library OS refers
    /// to the object too, and a `free` waits for it.
    ///
    /// # Safety
    /// The object is live, the bytes are initialised, and the program does not change them while the buffer lives.
    pub unsafe fn hold(&self, ptr: NonNull<u8>, len: usize) -> Result<Buf> {
        check_len(len)?;
        let space = space::get().ok_or(Error::Misuse(Misuse::Foreign))?;
        let Some(place) = space.locate(ptr.as_ptr()) else {
            return Err(Error::Misuse(Misuse::Foreign));
        };
        let desc = space.desc(place.class, place.index >> class::objects_log2(place.class));
        let owner = desc.owner.load(std::sync::atomic::Ordering::Relaxed);
        if owner == 0 {
            return Err(Error::Misuse(Misuse::Stale));
        }
        // SAFETY: an owner's pool exists for ever.
        let pool = unsafe { &*space::pool(owner - 1) };
        if pool.thread.get() != sys::thread_id() {
            return Err(Error::Misuse(Misuse::Foreign));
        }
        let state = pool.state_of(place);
        // SAFETY: inside the class's table of states.
        if unsafe { (*state).load(std::sync::atomic::Ordering::Relaxed) } & PROGRAM == 0 {
            return Err(Error::Misuse(Misuse::Stale));
        }
        let room = pool.start_of(place.class, state).addr() + class::size(place.class) - ptr.as_ptr().addr();
        if len > room {
            return Err(Error::OutOfRange { offset: 0, len: len as u64, size: room as u64 });
        }
        pool.retain(state);
        pool.count_buffer();
        let raw = Raw {
            ptr,
            handle: state.cast(),
            len: len as u32,
            pool: pool.index as u16,
            class: place.class as u8,
            kind: Kind::Heap,
        };
        Ok(BufMut::from_raw(raw).freeze())
    }

    /// Figures of this memory.
    pub fn stats(&self) -> MemoryStats {
        let (frames_mapped, frames_free) = self.domain().usage();
        MemoryStats {
            heap_held: self.pool.held_bytes(),
            heap_limit: self.pool.limit_bytes(),
            frames_in_use: self.pool.frames.pages_in_use() * sys::PAGE as u64,
            frames_mapped,
            frames_free,
            buffers_in_use: self.pool.buffers(),
            buffers_abroad: self.pool.abroad.get(),
            remote_frees: self.pool.remote_frees(),
        }
    }

    /// The frame arenas, to register with a device or to share: one is made if there is none, and none is there when
    /// memory ran out. From now on they are sealed and their pages stay in memory.
    pub fn frame_arenas(&self) -> Vec<FrameArena> {
        self.domain().arenas().unwrap_or_default()
    }

    /// The domain of this core's frames, for other cores to join ([`MemoryConfig::domain`]).
    pub fn domain(&self) -> &Arc<Domain> {
        self.pool.frames.domain().expect("a memory joins a domain when it is made")
    }

    /// Takes in what other threads dropped. The allocator does so by itself when it runs short; a core that is about
    /// to sleep calls it so that nothing stays behind.
    pub fn drain_remote(&self) {
        self.pool.drain();
    }

    /// Gives a part of the free memory back to the system, as an idle core should now and then.
    pub fn maintain(&self) {
        self.pool.drain();
        self.pool.decay();
    }

    /// Gives all free memory back: heap to the system, frames to the domain, the domain's unshared ones to the system.
    pub fn trim(&self) {
        self.pool.trim();
        self.pool.frames.trim();
        self.domain().trim();
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("pool", &self.pool.index).finish_non_exhaustive()
    }
}
