//! One buffer and the views of it.

use crate::Error;
use crate::arena::Arena;
use crate::memory::{RemoteQueue, Shared};
use std::alloc::Layout;
use std::cell::Cell;
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// Names a CBUF system-wide: generation 36 bits, page index 28.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CbufId(pub u64);

/// Names an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArenaId(pub u32);

/// Who is told when the last reference to lent memory is dropped.
pub trait ForeignOwner {
    /// The bytes lent as `token` are no longer used by this process.
    fn release(&self, token: u64);
}

/// Where the bytes of a block come from and go back to.
pub(crate) enum Origin {
    Heap(Layout),
    Frame(Rc<Arena>),
    Foreign(Rc<dyn ForeignOwner>, u64),
}

/// What stands for one allocation: its bytes, its count, whom it goes back to.
pub(crate) struct Block {
    references: Cell<u32>,
    data: NonNull<u8>,
    size: usize,
    origin: Origin,
    owner: Rc<Shared>,
}

impl Block {
    fn leak(data: NonNull<u8>, size: usize, origin: Origin, owner: &Rc<Shared>) -> NonNull<Block> {
        let block = Box::new(Block { references: Cell::new(1), data, size, origin, owner: owner.clone() });
        NonNull::from(Box::leak(block))
    }

    /// Drops one reference; the last one returns the memory.
    ///
    /// # Safety
    /// The caller owns one reference and is on the owning thread.
    pub(crate) unsafe fn release(block: NonNull<Block>) {
        // SAFETY: the caller's reference keeps the block alive until here.
        let b = unsafe { block.as_ref() };
        let left = b.references.get() - 1;
        b.references.set(left);
        if left > 0 {
            return;
        }
        // SAFETY: that was the last reference: nobody else can reach the block, and both parts were allocated with
        // just these layouts.
        unsafe {
            let b = Box::from_raw(block.as_ptr());
            b.owner.buffers.set(b.owner.buffers.get() - 1);
            match &b.origin {
                Origin::Foreign(owner, token) => return owner.release(*token),
                Origin::Frame(arena) => arena.give(b.data, b.size),
                Origin::Heap(layout) => std::alloc::dealloc(b.data.as_ptr(), *layout),
            }
            b.owner.bytes.set(b.owner.bytes.get() - b.size);
        }
    }
}

/// A shared, immutable view of bytes. Cloning adds a reference; slicing costs no more. It stays on its thread;
/// [`Buf::into_remote`] sends it to another.
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
    /// None: static memory.
    block: Option<NonNull<Block>>,
}

/// The sole owner of a buffer, who may write it.
pub struct BufMut {
    ptr: NonNull<u8>,
    len: usize,
    block: NonNull<Block>,
}

/// A buffer on its way to or at another thread. Dropped there, it goes back to the thread it came from.
pub struct RemoteBuf {
    ptr: NonNull<u8>,
    len: usize,
    block: Option<NonNull<Block>>,
    queue: RemoteQueue,
}

// SAFETY: the holder can only read the bytes, and the count is touched only by the owning thread.
unsafe impl Send for RemoteBuf {}

impl BufMut {
    pub(crate) fn allocate(owner: &Rc<Shared>, len: usize, align: usize) -> Result<BufMut, Error> {
        let fail = || Error::OutOfMemory { requested: len, limit: owner.limit };
        let layout = Layout::from_size_align(len.max(1), align).map_err(|_| fail())?;
        if owner.bytes.get().saturating_add(layout.size()) > owner.limit {
            return Err(fail());
        }
        // SAFETY: the layout's size is not zero.
        let data = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or_else(fail)?;
        owner.bytes.set(owner.bytes.get() + layout.size());
        owner.buffers.set(owner.buffers.get() + 1);
        let block = Block::leak(data, layout.size(), Origin::Heap(layout), owner);
        Ok(BufMut { ptr: data, len, block })
    }

    pub(crate) fn allocate_frame(owner: &Rc<Shared>, arena: &Rc<Arena>, len: usize) -> Option<BufMut> {
        let data = arena.take(len)?;
        let size = Arena::run_len(len);
        owner.bytes.set(owner.bytes.get() + size);
        owner.buffers.set(owner.buffers.get() + 1);
        let block = Block::leak(data, size, Origin::Frame(arena.clone()), owner);
        Some(BufMut { ptr: data, len, block })
    }

    /// Bytes there is room for.
    pub fn capacity(&self) -> usize {
        // SAFETY: the reference held keeps the block alive.
        let block = unsafe { self.block.as_ref() };
        block.size - (self.ptr.as_ptr() as usize - block.data.as_ptr() as usize)
    }

    /// Shortens to at most `n` bytes.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }

    /// Sets the length; bytes that come into view are initialised memory.
    ///
    /// # Panics
    /// If `n` exceeds the capacity.
    pub fn set_len(&mut self, n: usize) {
        assert!(n <= self.capacity(), "{n} bytes do not fit a buffer of {}", self.capacity());
        self.len = n;
    }

    /// Gives up the right to write.
    pub fn freeze(self) -> Buf {
        let buf = Buf { ptr: self.ptr, len: self.len, block: Some(self.block) };
        std::mem::forget(self);
        buf
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: ptr and len lie within the block, whose bytes are initialised, and the reference keeps it alive.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for Deref, and a BufMut is the only reference there is.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for BufMut {
    fn drop(&mut self) {
        // SAFETY: it owns one reference and is not Send.
        unsafe { Block::release(self.block) };
    }
}

impl Buf {
    pub(crate) fn foreign(
        memory: &Rc<Shared>,
        ptr: NonNull<u8>,
        len: usize,
        owner: Rc<dyn ForeignOwner>,
        token: u64,
    ) -> Buf {
        memory.buffers.set(memory.buffers.get() + 1);
        Buf { ptr, len, block: Some(Block::leak(ptr, len, Origin::Foreign(owner, token), memory)) }
    }

    /// Whether the bytes belong to another process: they are never writable here.
    fn is_foreign(&self) -> bool {
        // SAFETY: the reference held keeps the block alive.
        self.block.is_some_and(|b| matches!(unsafe { b.as_ref() }.origin, Origin::Foreign(..)))
    }

    /// A view of static bytes; no count at all.
    pub const fn from_static(bytes: &'static [u8]) -> Buf {
        // SAFETY: a slice's pointer is never null.
        let ptr = unsafe { NonNull::new_unchecked(bytes.as_ptr().cast_mut()) };
        Buf { ptr, len: bytes.len(), block: None }
    }

    /// Bytes in view.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in view.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A view of a part, by reference.
    ///
    /// # Panics
    /// If the range lies outside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Buf {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n + 1,
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len,
        };
        assert!(start <= end && end <= self.len, "{start}..{end} of a buffer of {} bytes", self.len);
        let mut part = self.clone();
        // SAFETY: start <= len, so the pointer stays within or one past the block.
        part.ptr = unsafe { self.ptr.add(start) };
        part.len = end - start;
        part
    }

    /// Splits the first `n` bytes off.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, n: usize) -> Buf {
        let head = self.slice(..n);
        self.trim_front(n);
        head
    }

    /// Splits off what follows the first `n` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_off(&mut self, n: usize) -> Buf {
        let tail = self.slice(n..);
        self.len = n;
        tail
    }

    /// Drops the first `n` bytes from view.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn trim_front(&mut self, n: usize) {
        assert!(n <= self.len, "{n} bytes of {}", self.len);
        // SAFETY: n <= len.
        self.ptr = unsafe { self.ptr.add(n) };
        self.len -= n;
    }

    /// Drops the last `n` bytes from view.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn trim_back(&mut self, n: usize) {
        assert!(n <= self.len, "{n} bytes of {}", self.len);
        self.len -= n;
    }

    /// Whether this is the only reference.
    pub fn is_unique(&self) -> bool {
        // SAFETY: the reference held keeps the block alive.
        self.block.is_some_and(|b| unsafe { b.as_ref() }.references.get() == 1)
    }

    /// The right to write, for the only reference.
    ///
    /// # Errors
    /// The buffer itself, if somebody else refers to it.
    pub fn try_into_mut(self) -> Result<BufMut, Buf> {
        match self.block {
            Some(block) if self.is_unique() && !self.is_foreign() => {
                let owned = BufMut { ptr: self.ptr, len: self.len, block };
                std::mem::forget(self);
                Ok(owned)
            }
            _ => Err(self),
        }
    }

    /// The id of the CBUF that holds the bytes, if one does.
    pub fn id(&self) -> Option<CbufId> {
        None
    }

    /// Where in which frame arena the bytes lie, if in one: arena, offset, length.
    pub fn frame_location(&self) -> Option<(ArenaId, u64, u32)> {
        // SAFETY: the reference held keeps the block alive.
        let Origin::Frame(arena) = &unsafe { self.block?.as_ref() }.origin else { return None };
        let offset = self.ptr.as_ptr() as u64 - arena.info.base.as_ptr() as u64;
        Some((arena.info.id, offset, self.len as u32))
    }

    /// Makes it fit to be sent to another thread.
    pub fn into_remote(self) -> RemoteBuf {
        let queue = match self.block {
            // SAFETY: the reference held keeps the block alive.
            Some(block) => unsafe { block.as_ref() }.owner.remote.clone(),
            None => Arc::default(),
        };
        let remote = RemoteBuf { ptr: self.ptr, len: self.len, block: self.block, queue };
        std::mem::forget(self);
        remote
    }
}

impl RemoteBuf {
    pub(crate) fn take_parts(&mut self) -> Option<(NonNull<Block>, RemoteQueue)> {
        self.block.take().map(|block| (block, self.queue.clone()))
    }
}

impl Deref for RemoteBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as for Buf: the reference it carries keeps the bytes alive.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl Clone for Buf {
    fn clone(&self) -> Buf {
        if let Some(block) = self.block {
            // SAFETY: the reference held keeps the block alive.
            let references = unsafe { &block.as_ref().references };
            references.set(references.get().checked_add(1).expect("fewer than 2^32 references"));
        }
        Buf { ptr: self.ptr, len: self.len, block: self.block }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(block) = self.block {
            // SAFETY: it owns one reference and is not Send.
            unsafe { Block::release(block) };
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: ptr and len lie within the block or static bytes, initialised and immutable while shared.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} of {} bytes)", self.len, self.capacity())
    }
}
