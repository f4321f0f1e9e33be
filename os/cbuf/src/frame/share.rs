//! Frame arenas between processes: the producer keeps its writable mapping and seals the memory file, so that nobody
//! can ever make another writable mapping, grow it or cut it short under a reader; others map it read-only.

use crate::error::Result;
use crate::id::ArenaId;
#[cfg(not(miri))]
use crate::{
    Memory,
    error::Error,
    sys::{self, PAGE},
};
use std::sync::Arc;

/// A sealed arena, ready to be sent to another process (its descriptor by `SCM_RIGHTS`).
#[derive(Debug)]
pub struct ArenaExport {
    /// Its name in the producer's domain.
    pub id: ArenaId,
    /// Its length in bytes.
    pub len: u64,
    /// A read-only descriptor.
    #[cfg(not(miri))]
    pub fd: std::os::fd::OwnedFd,
}

/// Another process's arena, mapped read-only. Cloning makes another handle to one mapping.
#[derive(Clone, Debug)]
pub struct ImportedArena(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    base: *const u8,
    len: usize,
}

// SAFETY: a read-only mapping that lives until the last handle is gone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A range of an imported arena.
#[derive(Clone, Debug)]
pub struct ArenaView {
    arena: ImportedArena,
    offset: usize,
    len: usize,
}

#[cfg(not(miri))]
impl Memory {
    /// Seals an arena against growing, shrinking and new writable mappings, and opens it read-only for others. Once
    /// sealed, an arena's memory goes back to the system only when every process has unmapped it.
    pub fn export_arena(&self, id: ArenaId) -> Result<ArenaExport> {
        self.domain().with_arena(id, |arena| {
            arena.seal()?;
            let fd = sys::reopen_read_only(&arena.file).map_err(Error::system("open a frame arena read-only"))?;
            Ok(ArenaExport { id, len: (arena.pages as usize * PAGE) as u64, fd })
        })
    }
}

#[cfg(not(miri))]
impl ImportedArena {
    /// Maps another process's arena read-only. Refuses one that is not sealed (its producer could cut it short, which
    /// would kill every reader by a signal) or whose length is not `len`.
    pub fn import(fd: std::os::fd::OwnedFd, len: u64) -> Result<ImportedArena> {
        if !sys::is_sealed(&fd).map_err(Error::system("read the seals of an arena"))? {
            return Err(Error::BadArena("it is not sealed against growing, shrinking and writing"));
        }
        let size = sys::file_len(&fd).map_err(Error::system("read the length of an arena"))?;
        if size != len || len == 0 || !len.is_multiple_of(PAGE as u64) {
            return Err(Error::BadArena("its length is not the one announced"));
        }
        let base = sys::map_read_only(&fd, len as usize).map_err(Error::system("map an arena"))?;
        Ok(ImportedArena(Arc::new(Mapping { base, len: len as usize })))
    }
}

impl ImportedArena {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.0.len as u64
    }

    /// It has no bytes; never the case.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// A range of it; an error unless it lies inside.
    ///
    /// # Safety
    /// While the view lives, the producer must not change the bytes: it handed them over, and its protocol returns
    /// them only after the view is dropped. Bytes of a producer that is not trusted to keep to that must be copied
    /// out with [`ImportedArena::copy_out`] before they are believed.
    pub unsafe fn view(&self, offset: u64, len: u64) -> Result<ArenaView> {
        self.check(offset, len)?;
        Ok(ArenaView { arena: self.clone(), offset: offset as usize, len: len as usize })
    }

    /// Copies a range out, counted; an error unless it lies inside.
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.check(offset, to.len() as u64)?;
        // SAFETY: the range was checked, and the destination is exclusively borrowed. A producer that writes
        // meanwhile changes what is copied, nothing else: the bytes are read once.
        unsafe { std::ptr::copy_nonoverlapping(self.0.base.add(offset as usize), to.as_mut_ptr(), to.len()) };
        crate::counters::count_copy(to.len());
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let size = self.len();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(crate::Error::OutOfRange { offset, len, size });
        }
        Ok(())
    }
}

impl AsRef<[u8]> for ArenaView {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: checked when the view was made; the mapping lives as long as the handle inside, and the maker of
        // the view promised that the bytes do not change.
        unsafe { std::slice::from_raw_parts(self.arena.0.base.add(self.offset), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the last handle is gone.
        unsafe { crate::sys::unmap(self.base.cast_mut(), self.len) };
    }
}
