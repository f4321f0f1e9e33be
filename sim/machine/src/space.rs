//! Address spaces of simulated processes: areas with their backing, and the Sv39 tables in simulated memory that the
//! cores walk. Pages appear on first touch; private pages are shared until written.

use crate::agent::Agent;
use crate::error::Error;
use crate::frames::{FRAME, Frames, LARGE};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use towpath_isa::{Access, PTE_A, PTE_D, PTE_R, PTE_U, PTE_V, PTE_W, PTE_X};

/// Memory and the right to allocate it.
pub struct Pool<'a> {
    /// The coherent port.
    pub agent: &'a mut dyn Agent,
    /// The frame allocator.
    pub frames: &'a mut Frames,
    /// Set when a mapping was removed or weakened: the cores' translation caches must forget.
    pub tables_changed: bool,
    /// Set when bytes that may be code were put into memory.
    pub code_changed: bool,
}

impl Pool<'_> {
    fn frame(&mut self, what: &'static str) -> Result<u64, Fault> {
        let size = self.frames.size();
        self.frames.allocate().ok_or(Fault::Fatal(Error::OutOfMemory { what, size }))
    }
}

/// Permissions of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Protection {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Fetches.
    pub execute: bool,
}

impl Protection {
    /// From the bits of `mmap`: read 1, write 2, execute 4.
    pub fn from_bits(bits: u64) -> Protection {
        Protection { read: bits & 1 != 0, write: bits & 2 != 0, execute: bits & 4 != 0 }
    }

    fn allows(self, access: Access) -> bool {
        match access {
            // On RISC-V writable implies readable, and an executable page is readable to the kernel's copies.
            Access::Load => self.read || self.write || self.execute,
            Access::Store => self.write,
            Access::Fetch => self.execute,
        }
    }

    fn pte(self) -> u64 {
        let readable = self.read || self.write || !self.execute;
        PTE_V
            | PTE_U
            | PTE_A
            | if readable { PTE_R } else { 0 }
            | if self.write { PTE_W | PTE_D } else { 0 }
            | if self.execute { PTE_X } else { 0 }
    }

    fn none(self) -> bool {
        !(self.read || self.write || self.execute)
    }
}

/// Pages that several address spaces see.
#[derive(Debug, Default)]
pub struct Shared {
    pages: BTreeMap<u64, u64>,
    file: Option<Rc<File>>,
}

impl Shared {
    /// Shared memory without a file, or with one that changes are written back to.
    pub fn new(file: Option<Rc<File>>) -> Rc<RefCell<Shared>> {
        Rc::new(RefCell::new(Shared { pages: BTreeMap::new(), file }))
    }
}

/// Where the contents of an area come from.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Zeros.
    Anonymous,
    /// A private copy of a file, from this offset.
    File(Rc<File>, u64),
    /// Shared pages, from this offset.
    Shared(Rc<RefCell<Shared>>, u64),
}

impl Backing {
    fn advanced(&self, by: u64) -> Backing {
        match self {
            Backing::Anonymous => Backing::Anonymous,
            Backing::File(file, at) => Backing::File(file.clone(), at + by),
            Backing::Shared(shared, at) => Backing::Shared(shared.clone(), at + by),
        }
    }
}

/// A range of addresses with one meaning.
#[derive(Clone, Debug)]
pub struct Area {
    /// One past its last address.
    pub end: u64,
    /// What is allowed.
    pub protection: Protection,
    /// Where contents come from.
    pub backing: Backing,
    /// 2 MiB pages may be used.
    pub large: bool,
}

/// Why an address cannot be used.
#[derive(Debug)]
pub enum Fault {
    /// Nothing is mapped there.
    Unmapped,
    /// The mapping does not allow it.
    Denied,
    /// The file ends before the page.
    BeyondFile,
    /// The run cannot go on.
    Fatal(Error),
}

/// One address space.
pub struct Space {
    /// Physical address of the root table.
    pub root: u64,
    /// Areas by their first address.
    pub areas: BTreeMap<u64, Area>,
    /// First address of the heap.
    pub heap_start: u64,
    /// End of the heap.
    pub heap_end: u64,
    tables: Vec<u64>,
}

/// The highest address `mmap` chooses below.
pub const MMAP_TOP: u64 = 0x3f_c000_0000;

impl Space {
    /// An empty space.
    ///
    /// # Errors
    /// If memory is used up.
    pub fn new(pool: &mut Pool<'_>) -> Result<Space, Fault> {
        let root = pool.frame("a page table")?;
        pool.agent.zero(root, FRAME);
        Ok(Space { root, areas: BTreeMap::new(), heap_start: 0, heap_end: 0, tables: vec![root] })
    }

    /// `satp` for this space.
    pub fn satp(&self) -> u64 {
        8 << 60 | self.root >> 12
    }

    /// The area that holds `va`.
    pub fn area(&self, va: u64) -> Option<(u64, &Area)> {
        self.areas.range(..=va).next_back().filter(|(_, area)| va < area.end).map(|(&start, area)| (start, area))
    }

    /// Physical address of the entry that maps `va` and its level (0: 4 KiB, 1: 2 MiB); makes tables if `make`.
    fn entry(&mut self, pool: &mut Pool<'_>, va: u64, make: bool) -> Result<Option<(u64, u32)>, Fault> {
        let mut table = self.root;
        for level in (1..3).rev() {
            let at = table + (va >> (12 + 9 * level) & 511) * 8;
            let pte = pool.agent.read_word(at);
            if pte & PTE_V != 0 && pte & (PTE_R | PTE_X) != 0 {
                return Ok(Some((at, level)));
            }
            if pte & PTE_V == 0 {
                if !make {
                    return Ok(None);
                }
                let next = pool.frame("a page table")?;
                pool.agent.zero(next, FRAME);
                self.tables.push(next);
                pool.agent.write(at, &((next >> 12) << 10 | PTE_V).to_le_bytes());
                table = next;
            } else {
                table = (pte >> 10) << 12;
            }
        }
        Ok(Some((table + (va >> 12 & 511) * 8, 0)))
    }

    /// The leaf entry of `va`: its physical address, value and level.
    fn leaf(&mut self, pool: &mut Pool<'_>, va: u64) -> Option<(u64, u64, u32)> {
        let (at, level) = self.entry(pool, va, false).ok()??;
        let pte = pool.agent.read_word(at);
        (pte & PTE_V != 0).then_some((at, pte, level))
    }

    /// Breaks the 2 MiB page that maps `va`, if one does, into small ones.
    fn split(&mut self, pool: &mut Pool<'_>, va: u64) -> Result<(), Fault> {
        let Some((at, pte, 1)) = self.leaf(pool, va) else { return Ok(()) };
        let table = pool.frame("a page table")?;
        self.tables.push(table);
        for i in 0..512 {
            pool.agent.write(table + 8 * i, &(pte + (i << 10)).to_le_bytes());
        }
        pool.agent.write(at, &((table >> 12) << 10 | PTE_V).to_le_bytes());
        pool.tables_changed = true;
        Ok(())
    }

    /// Adds an area over unmapped addresses.
    pub fn add(&mut self, start: u64, area: Area) {
        debug_assert!(start < area.end && start.is_multiple_of(FRAME) && area.end.is_multiple_of(FRAME));
        self.areas.insert(start, area);
    }

    /// A free range of `len` bytes, high addresses first.
    pub fn find_free(&self, len: u64, align: u64) -> Option<u64> {
        let mut top = MMAP_TOP;
        for (&start, area) in self.areas.range(..MMAP_TOP).rev() {
            let candidate = top.checked_sub(len)? & !(align - 1);
            if candidate >= area.end {
                return Some(candidate);
            }
            top = start;
        }
        top.checked_sub(len).map(|at| at & !(align - 1)).filter(|&at| at >= 0x10000)
    }

    /// Whether any area touches the range.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        self.areas.range(..end).next_back().is_some_and(|(_, area)| area.end > start)
    }

    /// Cuts areas so that one begins at `at`.
    fn cut(&mut self, at: u64) {
        let Some((start, area)) = self.area(at).map(|(s, a)| (s, a.clone())) else { return };
        if start == at {
            return;
        }
        let upper = Area { backing: area.backing.advanced(at - start), ..area.clone() };
        self.areas.insert(start, Area { end: at, ..area });
        self.areas.insert(at, upper);
    }

    fn starts_in(&mut self, start: u64, end: u64) -> Vec<u64> {
        self.cut(start);
        self.cut(end);
        self.areas.range(start..end).map(|(&s, _)| s).collect()
    }

    /// Removes every mapping of the range.
    ///
    /// # Errors
    /// If memory is used up while a large page is broken.
    pub fn unmap(&mut self, pool: &mut Pool<'_>, start: u64, end: u64) -> Result<(), Fault> {
        for first in self.starts_in(start, end) {
            if let Some(area) = self.areas.remove(&first) {
                self.sync(pool, first, &area);
                self.drop_pages(pool, first, area.end)?;
            }
        }
        Ok(())
    }

    /// Gives back the pages of a range; the next touch makes new ones.
    ///
    /// # Errors
    /// If memory is used up while a large page is broken.
    pub fn drop_pages(&mut self, pool: &mut Pool<'_>, start: u64, end: u64) -> Result<(), Fault> {
        let mut va = start;
        while va < end {
            match self.leaf(pool, va) {
                Some((at, pte, 1)) if va.is_multiple_of(LARGE) && end - va >= LARGE => {
                    let pa = (pte >> 10) << 12;
                    for i in 0..LARGE / FRAME {
                        pool.frames.release(pa + i * FRAME);
                    }
                    pool.agent.write(at, &[0; 8]);
                    va += LARGE;
                    continue;
                }
                Some((_, _, 1)) => {
                    self.split(pool, va)?;
                    continue;
                }
                Some((at, pte, _)) => {
                    pool.frames.release((pte >> 10) << 12);
                    pool.agent.write(at, &[0; 8]);
                }
                None => {}
            }
            va += FRAME;
        }
        pool.tables_changed = true;
        Ok(())
    }

    /// Writes shared pages of an area back to their file.
    pub fn sync(&mut self, pool: &mut Pool<'_>, start: u64, area: &Area) {
        let Backing::Shared(shared, offset) = &area.backing else { return };
        let shared = shared.borrow();
        let Some(file) = &shared.file else { return };
        let size = file.metadata().map_or(0, |m| m.len());
        let last = offset + (area.end - start);
        for (&at, &pa) in shared.pages.range(offset & !(FRAME - 1)..last) {
            let mut page = vec![0; size.saturating_sub(at).min(FRAME) as usize];
            pool.agent.read(pa, &mut page);
            // A file opened for reading only cannot take changes, and none could be made.
            let _ = file.write_all_at(&page, at);
        }
    }

    /// Changes permissions of mapped areas; false if part of the range is not mapped.
    ///
    /// # Errors
    /// If memory is used up while a large page is broken.
    pub fn protect(&mut self, pool: &mut Pool<'_>, start: u64, end: u64, to: Protection) -> Result<bool, Fault> {
        let starts = self.starts_in(start, end);
        let mut covered = start;
        for first in starts {
            let Some(area) = self.areas.get_mut(&first) else { continue };
            if first != covered {
                return Ok(false);
            }
            (covered, area.protection) = (area.end, to);
            let private = !matches!(area.backing, Backing::Shared(..));
            let last = area.end;
            self.protect_pages(pool, first, last, to, private)?;
        }
        pool.tables_changed = true;
        pool.code_changed |= to.execute;
        Ok(covered == end)
    }

    fn protect_pages(
        &mut self,
        pool: &mut Pool<'_>,
        start: u64,
        end: u64,
        to: Protection,
        private: bool,
    ) -> Result<(), Fault> {
        for va in (start..end).step_by(FRAME as usize) {
            self.split(pool, va)?;
            if let Some((at, pte, _)) = self.leaf(pool, va) {
                let pa = (pte >> 10) << 12;
                // A page that others see too stays read-only until the copy.
                let shared = private && pool.frames.users(pa) > 1;
                let flags = Protection { write: to.write && !shared, ..to }.pte();
                // Without any permission the entry keeps its frame but not its user bit.
                let flags = if to.none() { PTE_V | PTE_R | PTE_A } else { flags };
                pool.agent.write(at, &((pa >> 12) << 10 | flags).to_le_bytes());
            }
        }
        Ok(())
    }

    /// Makes `va` usable for `access`: brings the page in, or copies it on the first write.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn touch(&mut self, pool: &mut Pool<'_>, va: u64, access: Access) -> Result<u64, Fault> {
        let (start, area) = self.area(va).map(|(s, a)| (s, a.clone())).ok_or(Fault::Unmapped)?;
        if !area.protection.allows(access) {
            return Err(Fault::Denied);
        }
        let page = va & !(FRAME - 1);
        if let Some((at, pte, level)) = self.leaf(pool, va) {
            let size = if level == 1 { LARGE } else { FRAME };
            let pa = ((pte >> 10) << 12) + (va & (size - 1));
            if access != Access::Store || pte & PTE_W != 0 {
                return Ok(pa);
            }
            let frame = pa & !(FRAME - 1);
            let new = if pool.frames.users(frame) == 1 || matches!(area.backing, Backing::Shared(..)) {
                frame
            } else {
                let copy = pool.frame("a copied page")?;
                let mut bytes = [0; FRAME as usize];
                pool.agent.read(frame, &mut bytes);
                pool.agent.write(copy, &bytes);
                pool.frames.release(frame);
                copy
            };
            pool.agent.write(at, &((new >> 12) << 10 | area.protection.pte()).to_le_bytes());
            pool.tables_changed = true;
            pool.code_changed |= area.protection.execute;
            return Ok(new + (va & (FRAME - 1)));
        }
        if area.large
            && let Some(pa) = self.touch_large(pool, va, start, &area)?
        {
            return Ok(pa);
        }
        let frame = fill(pool, page, start, &area)?;
        let Some((at, _)) = self.entry(pool, va, true)? else { return Err(Fault::Unmapped) };
        pool.agent.write(at, &((frame >> 12) << 10 | area.protection.pte()).to_le_bytes());
        pool.code_changed |= area.protection.execute;
        Ok(frame + (va & (FRAME - 1)))
    }

    fn touch_large(&mut self, pool: &mut Pool<'_>, va: u64, start: u64, area: &Area) -> Result<Option<u64>, Fault> {
        let block = va & !(LARGE - 1);
        if block < start || block + LARGE > area.end || !matches!(area.backing, Backing::Anonymous) {
            return Ok(None);
        }
        // Room for the large page only if no small page is there yet.
        let mut table = self.root;
        let top = table + (block >> 30 & 511) * 8;
        let pte = pool.agent.read_word(top);
        if pte & PTE_V != 0 {
            table = (pte >> 10) << 12;
            if pool.agent.read_word(table + (block >> 21 & 511) * 8) & PTE_V != 0 {
                return Ok(None);
            }
        } else {
            table = pool.frame("a page table")?;
            pool.agent.zero(table, FRAME);
            self.tables.push(table);
            pool.agent.write(top, &((table >> 12) << 10 | PTE_V).to_le_bytes());
        }
        let Some(pa) = pool.frames.allocate_large() else { return Ok(None) };
        pool.agent.zero(pa, LARGE);
        let leaf = (pa >> 12) << 10 | area.protection.pte();
        pool.agent.write(table + (block >> 21 & 511) * 8, &leaf.to_le_bytes());
        Ok(Some(pa + (va - block)))
    }

    /// A copy for `fork`: private pages are shared and become read-only on both sides until written.
    ///
    /// # Errors
    /// If memory is used up.
    pub fn duplicate(&mut self, pool: &mut Pool<'_>) -> Result<Space, Fault> {
        let mut copy = Space::new(pool)?;
        (copy.heap_start, copy.heap_end) = (self.heap_start, self.heap_end);
        copy.areas = self.areas.clone();
        let areas: Vec<(u64, Area)> = self.areas.iter().map(|(&s, a)| (s, a.clone())).collect();
        for (start, area) in areas {
            let private = !matches!(area.backing, Backing::Shared(..));
            for va in (start..area.end).step_by(FRAME as usize) {
                self.split(pool, va)?;
                let Some((at, pte, _)) = self.leaf(pool, va) else { continue };
                let pte = if private { pte & !(PTE_W | PTE_D) } else { pte };
                pool.agent.write(at, &pte.to_le_bytes());
                pool.frames.share((pte >> 10) << 12);
                if let Some((at, _)) = copy.entry(pool, va, true)? {
                    pool.agent.write(at, &pte.to_le_bytes());
                }
            }
        }
        pool.tables_changed = true;
        Ok(copy)
    }

    /// Gives everything back.
    ///
    /// # Errors
    /// If memory is used up while a large page is broken.
    pub fn destroy(&mut self, pool: &mut Pool<'_>) -> Result<(), Fault> {
        self.unmap(pool, 0, crate::elf::USER_END)?;
        for table in self.tables.drain(..) {
            pool.frames.release(table);
        }
        Ok(())
    }

    /// Copies bytes in from user memory; page by page, as far as the first fault.
    ///
    /// # Errors
    /// The fault.
    pub fn read(&mut self, pool: &mut Pool<'_>, va: u64, into: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < into.len() {
            let at = va.checked_add(done as u64).ok_or(Fault::Unmapped)?;
            let pa = self.touch(pool, at, Access::Load)?;
            let n = ((FRAME - (at & (FRAME - 1))) as usize).min(into.len() - done);
            pool.agent.read(pa, &mut into[done..done + n]);
            done += n;
        }
        Ok(())
    }

    /// Copies bytes out to user memory; page by page, as far as the first fault.
    ///
    /// # Errors
    /// The fault.
    pub fn write(&mut self, pool: &mut Pool<'_>, va: u64, from: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < from.len() {
            let at = va.checked_add(done as u64).ok_or(Fault::Unmapped)?;
            let pa = self.touch(pool, at, Access::Store)?;
            let n = ((FRAME - (at & (FRAME - 1))) as usize).min(from.len() - done);
            pool.agent.write(pa, &from[done..done + n]);
            done += n;
        }
        Ok(())
    }
}

/// A frame with the contents that `page` of the area starts with.
fn fill(pool: &mut Pool<'_>, page: u64, start: u64, area: &Area) -> Result<u64, Fault> {
    match &area.backing {
        Backing::Anonymous => {
            let frame = pool.frame("a program's page")?;
            pool.agent.zero(frame, FRAME);
            Ok(frame)
        }
        Backing::File(file, offset) => from_file(pool, file, offset + (page - start)),
        Backing::Shared(shared, offset) => {
            let at = offset + (page - start);
            let known = shared.borrow().pages.get(&at).copied();
            let frame = match known {
                Some(frame) => frame,
                None => {
                    let file = shared.borrow().file.clone();
                    let frame = match file {
                        Some(file) => from_file(pool, &file, at)?,
                        None => {
                            let frame = pool.frame("a shared page")?;
                            pool.agent.zero(frame, FRAME);
                            frame
                        }
                    };
                    shared.borrow_mut().pages.insert(at, frame);
                    frame
                }
            };
            // The shared object keeps one use of its own, so the contents outlive every mapping.
            pool.frames.share(frame);
            Ok(frame)
        }
    }
}

fn from_file(pool: &mut Pool<'_>, file: &File, offset: u64) -> Result<u64, Fault> {
    let mut bytes = [0; FRAME as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Fault::BeyondFile),
        }
    }
    if done == 0 {
        return Err(Fault::BeyondFile);
    }
    let frame = pool.frame("a page of a file")?;
    pool.agent.write(frame, &bytes);
    Ok(frame)
}
