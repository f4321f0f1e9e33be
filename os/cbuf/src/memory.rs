//! This core's memory: where buffers come from.

use crate::arena::{Arena, FrameArena};
use crate::buf::{Block, Buf, BufMut, ForeignOwner, RemoteBuf};
use crate::{Error, counters};
use std::cell::{Cell, OnceCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// How a [`Memory`] is set up.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Most bytes of buffers at once.
    pub limit: usize,
    /// Bytes of the frame arena, reserved at the first frame and used page by page.
    pub frame_bytes: usize,
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig { limit: 1 << 34, frame_bytes: 64 << 20 }
    }
}

/// What a [`Memory`] holds at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in buffers that somebody holds.
    pub bytes_in_use: usize,
    /// Buffers that somebody holds.
    pub buffers_in_use: usize,
}

/// Where other threads leave blocks they freed.
pub(crate) type RemoteQueue = Arc<Mutex<Vec<RemoteFree>>>;

pub(crate) struct Shared {
    pub(crate) limit: usize,
    pub(crate) frame_bytes: usize,
    pub(crate) arena: OnceCell<Option<Rc<Arena>>>,
    pub(crate) bytes: Cell<usize>,
    pub(crate) buffers: Cell<usize>,
    pub(crate) remote: RemoteQueue,
}

/// A block whose last reference another thread dropped.
pub(crate) struct RemoteFree(pub(crate) std::ptr::NonNull<Block>);
// SAFETY: the block is handed over whole: the thread that pushes it never touches it again.
unsafe impl Send for RemoteFree {}

/// A cheap handle to this core's memory.
#[derive(Clone)]
pub struct Memory {
    pub(crate) shared: Rc<Shared>,
}

impl Memory {
    /// Memory for this core.
    ///
    /// # Errors
    /// None at present; a limit that cannot be kept will be one.
    pub fn new(config: MemoryConfig) -> Result<Memory, Error> {
        Ok(Memory {
            shared: Rc::new(Shared {
                limit: config.limit,
                frame_bytes: config.frame_bytes,
                arena: OnceCell::new(),
                bytes: Cell::new(0),
                buffers: Cell::new(0),
                remote: Arc::default(),
            }),
        })
    }

    /// A buffer of `len` zeroed bytes with one owner.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] above the limit.
    pub fn alloc(&self, len: usize) -> Result<BufMut, Error> {
        if !self.shared.remote.lock().unwrap_or_else(|e| e.into_inner()).is_empty() {
            self.drain_remote();
        }
        BufMut::allocate(&self.shared, len, 16)
    }

    /// A buffer of whole pages, fit for a device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] above the limit.
    pub fn alloc_frame(&self, len: usize) -> Result<BufMut, Error> {
        if !self.shared.remote.lock().unwrap_or_else(|e| e.into_inner()).is_empty() {
            self.drain_remote();
        }
        self.arena()
            .and_then(|arena| BufMut::allocate_frame(&self.shared, arena, len))
            .ok_or(Error::OutOfMemory { requested: len, limit: self.shared.frame_bytes })
    }

    fn arena(&self) -> Option<&Rc<Arena>> {
        self.shared.arena.get_or_init(|| Arena::new(self.shared.frame_bytes).map(Rc::new)).as_ref()
    }

    /// The frame arenas, for devices to register and to share.
    pub fn frame_arenas(&self) -> Vec<FrameArena> {
        self.arena().map(|arena| arena.info).into_iter().collect()
    }

    /// A buffer over memory lent by another process; `owner` is told when the last reference is dropped.
    ///
    /// # Safety
    /// The bytes stay mapped and readable for as long as `owner` lives.
    pub unsafe fn foreign(&self, ptr: NonNull<u8>, len: usize, owner: Rc<dyn ForeignOwner>, token: u64) -> Buf {
        Buf::foreign(&self.shared, ptr, len, owner, token)
    }

    /// A buffer holding a copy of `bytes` (counted).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] above the limit.
    pub fn copy_from(&self, bytes: &[u8]) -> Result<Buf, Error> {
        let mut buf = self.alloc(bytes.len())?;
        buf.copy_from_slice(bytes);
        counters::count_copy(bytes.len());
        Ok(buf.freeze())
    }

    /// Takes back what other threads freed.
    pub fn drain_remote(&self) {
        let list = std::mem::take(&mut *self.shared.remote.lock().unwrap_or_else(|e| e.into_inner()));
        for RemoteFree(block) in list {
            // SAFETY: the sender gave up its only reference and this is the owning thread.
            unsafe { Block::release(block) };
        }
    }

    /// What is in use now.
    pub fn stats(&self) -> MemoryStats {
        MemoryStats { bytes_in_use: self.shared.bytes.get(), buffers_in_use: self.shared.buffers.get() }
    }
}

impl Drop for RemoteBuf {
    fn drop(&mut self) {
        if let Some((block, queue)) = self.take_parts() {
            queue.lock().unwrap_or_else(|e| e.into_inner()).push(RemoteFree(block));
        }
    }
}
