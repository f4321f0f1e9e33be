//! What devices ask of the frame pool beyond buffers: where its arenas are.

use crate::Error;
use std::os::fd::RawFd;
use towpath_cbuf::{ArenaId, Buf, BufMut, FrameArena, Memory, Sga};

/// Copies a scatter-gather array into one frame.
pub(crate) fn gather(memory: &Memory, frame: &Sga) -> Result<Buf, Error> {
    let mut buf = memory.alloc_frame(frame.len())?;
    frame.copy_to_slice(&mut buf);
    Ok(buf.freeze())
}

/// The arena that frames of a page come from.
pub(crate) fn first_arena(memory: &Memory) -> Result<FrameArena, Error> {
    // An arena may come into being with its first frame.
    let probe = memory.alloc_frame(1)?.freeze();
    let (id, ..) = probe.frame_location().ok_or_else(no_arena)?;
    memory.frame_arenas().into_iter().find(|arena| arena.id == id).ok_or_else(no_arena)
}

fn no_arena() -> Error {
    Error::Unsupported("this memory has no frame arenas".into())
}

/// The memory file of one of our arenas.
pub(crate) fn arena_file(memory: &Memory, id: ArenaId) -> Option<RawFd> {
    memory.frame_arenas().into_iter().find(|arena| arena.id == id).map(|arena| arena.fd)
}

/// A frame of one page of the arena at `base`, and its offset there; `None` when the arena has no more.
pub(crate) fn page_of(memory: &Memory, arena: &FrameArena) -> Option<(BufMut, u64)> {
    let buf = memory.alloc_frame(4096).ok()?;
    let offset = (buf.as_ptr() as usize).checked_sub(arena.base.as_ptr() as usize)?;
    (offset < arena.len).then_some((buf, offset as u64))
}
