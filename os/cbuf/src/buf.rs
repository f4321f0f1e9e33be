//! Buffers: [`Buf`], a shared view of bytes that nobody changes, and [`BufMut`], the sole owner's. Both are a pointer,
//! a length and the way to the count of references; where the bytes lie (heap, frame, static, a foreign owner) shows
//! only in where the last drop puts them.
//!
//! Buffers belong to the thread that made them and count without atomics. [`RemoteBuf`] carries one to another thread;
//! its drop returns the buffer through the owner's remote-free queue.

use crate::error::Error;
use crate::frame::meta::ORDER_SINGLE;
use crate::heap::pool::{Life, Pool, REF, Taken};
use crate::heap::{class, huge, space};
use crate::id::{ArenaId, CbufId};
use crate::memory::Memory;
use crate::sys::PAGE;
use std::cell::Cell;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where the bytes lie.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// For ever there.
    Static,
    /// A heap object; `handle` is its state byte.
    Heap,
    /// A mapping of its own; `handle` is its base.
    Huge,
    /// A CBUF; `handle` is its entry, `class` its order.
    Frame,
    /// Somebody else's bytes; `handle` is an [`Owned`].
    Owner,
}

/// What both kinds of buffer are made of. Not a reference by itself: whoever makes one counts.
#[derive(Clone, Copy)]
pub(crate) struct Raw {
    pub ptr: NonNull<u8>,
    pub handle: *mut u8,
    pub len: u32,
    pub pool: u16,
    pub class: u8,
    pub kind: Kind,
}

const _: () = assert!(size_of::<Option<Raw>>() == 24);

/// Bytes of a foreign owner, with their count.
pub(crate) struct Owned {
    refs: Cell<usize>,
    /// The owner may be dropped on another thread.
    send: bool,
    drop: unsafe fn(*mut Owned),
}

#[repr(C)]
struct OwnedBy<O> {
    head: Owned,
    owner: O,
}

impl Raw {
    const EMPTY: Raw =
        Raw { ptr: NonNull::dangling(), handle: std::ptr::null_mut(), len: 0, pool: 0, class: 0, kind: Kind::Static };

    #[inline(always)]
    fn pool(&self) -> &Pool {
        // SAFETY: a buffer that is not static names the pool it came from, and pools are never unmapped.
        unsafe { &*space::pool(u32::from(self.pool)) }
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the reference this value stands for keeps `len` initialised bytes at `ptr` alive.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len as usize) }
    }

    fn owned(&self) -> *mut Owned {
        self.handle.cast()
    }

    fn retain(&self) {
        match self.kind {
            Kind::Static => return,
            Kind::Heap => self.pool().retain(self.handle.cast()),
            Kind::Frame => self.pool().frames.retain(self.handle.cast()),
            Kind::Huge => assert!(huge::retain(self.handle), "a buffer refers to a mapping that is gone"),
            Kind::Owner => {
                // SAFETY: the reference at hand keeps it alive; buffers of it are all on this thread.
                let refs = unsafe { &(*self.owned()).refs };
                refs.set(refs.get() + 1);
            }
        }
        self.pool().count_buffer();
    }

    /// Gives the reference up.
    #[inline(always)]
    fn release(&self) {
        if self.kind == Kind::Static {
            return;
        }
        let pool = self.pool();
        pool.uncount_buffer();
        self.release_uncounted(pool);
        if pool.buffers() == 0 && pool.life.load(Ordering::Relaxed) != Life::Live as u32 {
            pool.settle();
        }
    }

    #[inline(always)]
    fn release_uncounted(&self, pool: &Pool) {
        match self.kind {
            Kind::Heap => pool.release(self.class as usize, self.handle.cast::<AtomicU8>()),
            Kind::Frame => pool.frames.release(self.class as usize, self.handle.cast()),
            _ => self.release_other(pool),
        }
    }

    #[cold]
    #[inline(never)]
    fn release_other(&self, pool: &Pool) {
        match self.kind {
            Kind::Huge => {
                if let Some(len) = huge::release(self.handle) {
                    pool.huge.set(pool.huge.get() - len);
                }
            }
            Kind::Owner => {
                let owned = self.owned();
                // SAFETY: the last reference drops the owner; no buffer refers to it any more.
                unsafe {
                    let refs = (*owned).refs.get() - 1;
                    (*owned).refs.set(refs);
                    if refs == 0 {
                        ((*owned).drop)(owned);
                    }
                }
            }
            Kind::Static | Kind::Heap | Kind::Frame => {}
        }
    }

    fn references(&self) -> u64 {
        match self.kind {
            Kind::Static => u64::MAX,
            Kind::Heap => {
                // SAFETY: the reference at hand keeps the object and its state byte.
                let state = unsafe { (*self.handle.cast::<AtomicU8>()).load(Ordering::Relaxed) };
                // A program that has not freed the object may still read it.
                self.pool().references(self.handle.cast()) + u64::from(state % REF)
            }
            Kind::Huge => huge::find(self.handle).map_or(u64::MAX, |h| u64::from(h.refs) + u64::from(h.program)),
            // SAFETY: the reference at hand keeps the entry.
            Kind::Frame => u64::from(unsafe { (*self.handle.cast::<crate::frame::meta::Meta>()).refs() }),
            Kind::Owner => u64::MAX,
        }
    }

    /// Bytes from `ptr` to the end of the memory behind it.
    fn capacity(&self) -> usize {
        let at = self.ptr.as_ptr().addr();
        match self.kind {
            Kind::Heap => {
                let start = self.pool().start_of(self.class as usize, self.handle.cast()).addr();
                start + class::size(self.class as usize) - at
            }
            Kind::Huge => huge::find(self.handle).map_or(self.len as usize, |h| h.base.addr() + h.len - at),
            Kind::Frame if self.class != ORDER_SINGLE => {
                let size = PAGE << self.class;
                // Frames of a size lie at multiples of it from the start of their arena.
                let offset = self.pool().frames.place(self.ptr.as_ptr()).map_or(0, |(_, o)| o as usize);
                size - offset % size
            }
            _ => self.len as usize,
        }
    }

    fn skip(&mut self, n: usize) {
        assert!(n <= self.len as usize, "a buffer of {} bytes has no byte {n}", self.len);
        // SAFETY: within the bytes, or one past them.
        self.ptr = unsafe { self.ptr.add(n) };
        self.len -= n as u32;
    }
}

/// A shared view of bytes that nobody changes. Cloning it, slicing it and splitting it copy nothing; each view is one
/// more reference, and the memory is free when the last is dropped. Positions outside the view panic, as for slices.
pub struct Buf(Raw);

/// The sole owner's view of bytes, which it may change. The bytes are always initialised memory; those of a fresh one
/// are whatever was there before.
pub struct BufMut(Raw);

/// A buffer on its way to, or with, another thread. It can be read anywhere; dropping it queues the reference for the
/// thread it came from.
pub struct RemoteBuf(NonNull<RemoteNode>);

/// What a travelling buffer is kept in.
pub(crate) struct RemoteNode {
    raw: Raw,
    next: *mut RemoteNode,
    state: *mut AtomicU8,
}

const NODE_CLASS: usize = class::of(size_of::<RemoteNode>());

impl Buf {
    /// An empty buffer.
    pub const fn new() -> Buf {
        Buf(Raw::EMPTY)
    }

    /// A view of bytes that live for ever.
    ///
    /// # Panics
    /// If there are 4 GB of them or more.
    pub const fn from_static(bytes: &'static [u8]) -> Buf {
        assert!(bytes.len() <= u32::MAX as usize, "a buffer holds less than 4 GB");
        // SAFETY: references are not null; a static buffer is never written through this pointer.
        let ptr = unsafe { NonNull::new_unchecked(bytes.as_ptr().cast_mut()) };
        Buf(Raw { ptr, len: bytes.len() as u32, ..Raw::EMPTY })
    }

    /// Bytes of the view.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// The view has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// A view of a part, by reference.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Buf {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n + 1,
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len(),
        };
        assert!(start <= end && end <= self.len(), "{start}..{end} is not inside {} bytes", self.len());
        let mut part = self.clone();
        part.0.skip(start);
        part.0.len = (end - start) as u32;
        part
    }

    /// Cuts the first `n` bytes off and returns them.
    pub fn split_to(&mut self, n: usize) -> Buf {
        let front = self.slice(..n);
        self.0.skip(n);
        front
    }

    /// Cuts everything from byte `n` on off and returns it.
    pub fn split_off(&mut self, n: usize) -> Buf {
        let back = self.slice(n..);
        self.0.len = n as u32;
        back
    }

    /// Drops the first `n` bytes.
    #[inline]
    pub fn trim_front(&mut self, n: usize) {
        self.0.skip(n);
    }

    /// Drops the last `n` bytes.
    #[inline]
    pub fn trim_back(&mut self, n: usize) {
        assert!(n <= self.len(), "a buffer of {} bytes cannot lose {n}", self.len());
        self.0.len -= n as u32;
    }

    /// No other view refers to the memory: not another buffer, not the program's own pointer.
    pub fn is_unique(&self) -> bool {
        self.0.references() == 1
    }

    /// The sole owner's view, if this is the only reference to memory that may be written.
    pub fn try_into_mut(self) -> Result<BufMut, Buf> {
        if self.is_unique() {
            let raw = self.0;
            std::mem::forget(self);
            Ok(BufMut(raw))
        } else {
            Err(self)
        }
    }

    /// The name of the CBUF, if the bytes lie in a frame.
    pub fn id(&self) -> Option<CbufId> {
        (self.0.kind == Kind::Frame).then(|| self.0.pool().frames.id(self.0.handle.cast()))
    }

    /// Arena, offset in it, and length of the bytes, if they lie in a frame.
    pub fn frame_location(&self) -> Option<(ArenaId, u64, u32)> {
        frame_location(&self.0)
    }

    /// Bytes of memory this view keeps from being reused: the whole object, frame or mapping behind it.
    pub fn footprint(&self) -> usize {
        match self.0.kind {
            Kind::Heap => class::size(self.0.class as usize),
            Kind::Frame if self.0.class != ORDER_SINGLE => PAGE << self.0.class,
            Kind::Static => 0,
            _ => self.len(),
        }
    }

    /// Readies the reference for another thread. Bytes of an owner that must stay on its thread are copied, counted.
    ///
    /// # Panics
    /// If there is no memory for a node of a few words.
    pub fn into_remote(self) -> RemoteBuf {
        // SAFETY: an owner buffer's handle is its `Owned`, kept by the reference.
        if self.0.kind == Kind::Owner && !unsafe { (*self.0.owned()).send } {
            crate::counters::count_copy(self.len());
            let copy: Box<[u8]> = Box::from(&*self);
            return own(copy, true, self.0.pool).into_remote();
        }
        let raw = self.0;
        std::mem::forget(self);
        let pool = raw.pool();
        if raw.kind == Kind::Static {
            // No pool stands behind it; its node is a box of its own.
            let node = Box::new(RemoteNode { raw, next: std::ptr::null_mut(), state: std::ptr::null_mut() });
            return RemoteBuf(NonNull::from(Box::leak(node)));
        }
        let Some(taken) = pool.take(NODE_CLASS, REF) else {
            std::alloc::handle_alloc_error(std::alloc::Layout::new::<RemoteNode>())
        };
        pool.abroad.set(pool.abroad.get() + 1);
        let node: *mut RemoteNode = taken.ptr.cast();
        // SAFETY: a fresh object of a class that fits a node, aligned to 16 bytes.
        unsafe {
            node.write(RemoteNode { raw, next: std::ptr::null_mut(), state: taken.state });
        }
        pool.uncount_buffer();
        if pool.buffers() == 0 && pool.life.load(Ordering::Relaxed) != Life::Live as u32 {
            pool.settle();
        }
        // SAFETY: objects are not at null.
        RemoteBuf(unsafe { NonNull::new_unchecked(node) })
    }
}

fn frame_location(raw: &Raw) -> Option<(ArenaId, u64, u32)> {
    if raw.kind != Kind::Frame {
        return None;
    }
    let (arena, offset) = raw.pool().frames.place(raw.ptr.as_ptr())?;
    Some((arena, offset, raw.len))
}

/// A buffer over the bytes of `owner`, counted in pool `pool`.
pub(crate) fn own<O: AsRef<[u8]> + 'static>(owner: O, send: bool, pool: u16) -> Buf {
    unsafe fn drop_owned<O>(owned: *mut Owned) {
        // SAFETY: made by `own` below from a box of exactly this type; the head comes first in it.
        drop(unsafe { Box::from_raw(owned.cast::<OwnedBy<O>>()) });
    }
    let head = Owned { refs: Cell::new(1), send, drop: drop_owned::<O> };
    let boxed = Box::into_raw(Box::new(OwnedBy { head, owner }));
    // SAFETY: just boxed. The owner stays where it is, and is only ever shared, until the last buffer is dropped.
    let bytes = unsafe { (*boxed).owner.as_ref() };
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let ptr = NonNull::from(bytes).cast();
    let raw = Raw { ptr, handle: boxed.cast(), len, pool, class: 0, kind: Kind::Owner };
    raw.pool().count_buffer();
    Buf(raw)
}

/// Takes in what other threads dropped.
#[cold]
#[inline(never)]
pub(crate) fn drain_nodes(pool: &Pool) {
    let mut node = pool.remote_nodes.take();
    while !node.is_null() {
        // SAFETY: nodes on the list were pushed by their last user; each is an object of this pool.
        unsafe {
            let RemoteNode { raw, next, state } = node.read();
            (*state).store(0, Ordering::Relaxed);
            pool.give(NODE_CLASS, Taken { ptr: node.cast(), state });
            pool.abroad.set(pool.abroad.get() - 1);
            raw.release_uncounted(pool);
            node = next;
        }
        pool.count_remote(1);
    }
}

impl Default for Buf {
    fn default() -> Buf {
        Buf::new()
    }
}

impl Clone for Buf {
    #[inline]
    fn clone(&self) -> Buf {
        self.0.retain();
        Buf(self.0)
    }
}

impl Drop for Buf {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Buf {
    fn eq(&self, other: &Buf) -> bool {
        **self == **other
    }
}

impl Eq for Buf {}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

impl BufMut {
    #[inline(always)]
    pub(crate) fn from_raw(raw: Raw) -> BufMut {
        BufMut(raw)
    }

    /// An empty buffer.
    pub const fn new() -> BufMut {
        BufMut(Raw::EMPTY)
    }

    /// Bytes of the view.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// The view has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// How long [`BufMut::set_len`] can make it: the bytes to the end of the memory behind it.
    pub fn capacity(&self) -> usize {
        self.0.capacity().min(u32::MAX as usize)
    }

    /// Shortens the view to `n` bytes; nothing happens if it is shorter already.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        self.0.len = self.0.len.min(n.min(u32::MAX as usize) as u32);
    }

    /// Makes the view `n` bytes long. Bytes that come into view are initialised, with old contents.
    ///
    /// # Panics
    /// If that is more than [`BufMut::capacity`].
    pub fn set_len(&mut self, n: usize) {
        assert!(n <= self.0.len as usize || n <= self.capacity(), "{n} bytes are more than the buffer's capacity");
        self.0.len = n as u32;
    }

    /// Drops the first `n` bytes.
    pub fn trim_front(&mut self, n: usize) {
        self.0.skip(n);
    }

    /// The name of the CBUF, if the bytes lie in a frame.
    pub fn id(&self) -> Option<CbufId> {
        (self.0.kind == Kind::Frame).then(|| self.0.pool().frames.id(self.0.handle.cast()))
    }

    /// Arena, offset in it, and length of the bytes, if they lie in a frame.
    pub fn frame_location(&self) -> Option<(ArenaId, u64, u32)> {
        frame_location(&self.0)
    }

    /// Ends the writing.
    #[inline(always)]
    pub fn freeze(self) -> Buf {
        let raw = self.0;
        std::mem::forget(self);
        Buf(raw)
    }
}

impl Default for BufMut {
    fn default() -> BufMut {
        BufMut::new()
    }
}

impl Drop for BufMut {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Deref for BufMut {
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for BufMut {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and a `BufMut` is the only reference to its memory (an empty one has no bytes).
        unsafe { std::slice::from_raw_parts_mut(self.0.ptr.as_ptr(), self.0.len as usize) }
    }
}

impl From<BufMut> for Buf {
    fn from(buf: BufMut) -> Buf {
        buf.freeze()
    }
}

impl std::fmt::Debug for BufMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufMut({} bytes)", self.len())
    }
}

// SAFETY: a remote buffer only reads bytes that nobody changes, and its drop pushes on a lock-free queue; the
// reference itself is given up by the owner's thread. Owners that must not be dropped elsewhere never get here.
unsafe impl Send for RemoteBuf {}
// SAFETY: as above.
unsafe impl Sync for RemoteBuf {}

impl RemoteBuf {
    fn node(&self) -> &RemoteNode {
        // SAFETY: the node is this value's until its drop.
        unsafe { self.0.as_ref() }
    }

    /// Makes the bytes a buffer of the calling thread, by reference.
    pub fn adopt(self, memory: &Memory) -> Buf {
        memory.buf_from_owner(self)
    }
}

impl Deref for RemoteBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.node().raw.bytes()
    }
}

impl AsRef<[u8]> for RemoteBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for RemoteBuf {
    fn drop(&mut self) {
        let node = self.0.as_ptr();
        let raw = self.node().raw;
        if raw.kind == Kind::Static {
            // SAFETY: the node of a static buffer is a box, made by `into_remote`.
            drop(unsafe { Box::from_raw(node) });
            return;
        }
        let pool = space::pool(u32::from(raw.pool));
        // SAFETY: pools are never unmapped; the list and `life` are for every thread. The node is this value's until
        // it is pushed, and is not touched after.
        unsafe {
            (*pool).remote_nodes.push(node, |head| (*node).next = head);
            // The push and this load are ordered with the store and the drain in `settle`.
            std::sync::atomic::fence(Ordering::SeqCst);
            if (*pool).life.load(Ordering::SeqCst) == Life::Orphan as u32 {
                (*pool).reap();
            }
        }
    }
}

impl std::fmt::Debug for RemoteBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteBuf({} bytes)", self.len())
    }
}

impl From<&'static str> for Buf {
    fn from(text: &'static str) -> Buf {
        Buf::from_static(text.as_bytes())
    }
}

/// The error of a request for more bytes than a buffer can name.
pub(crate) fn check_len(len: usize) -> Result<(), Error> {
    if u32::try_from(len).is_err() { Err(Error::TooLarge { requested: len }) } else { Ok(()) }
}
