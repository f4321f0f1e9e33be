//! Memory: `brk`, `mmap` and their kin.

use super::errno::{EBADF, EEXIST, EINVAL, ENOMEM};
use super::files::Kind;
use super::{Cpu, Kernel, Stop, Sys};
use crate::elf::USER_END;
use crate::frames::{FRAME, LARGE};
use crate::space::{Area, Backing, Protection, Shared};

const MAP_SHARED: u64 = 1;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_HUGETLB: u64 = 0x40000;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

fn pages(len: u64) -> Result<u64, Stop> {
    let len = len.checked_add(FRAME - 1).ok_or(Stop::Errno(ENOMEM))? & !(FRAME - 1);
    if len == 0 { Err(Stop::Errno(EINVAL)) } else { Ok(len) }
}

fn range(start: u64, len: u64) -> Result<(u64, u64), Stop> {
    let end = start.checked_add(pages(len)?).filter(|&end| end <= USER_END).ok_or(Stop::Errno(ENOMEM))?;
    if start.is_multiple_of(FRAME) { Ok((start, end)) } else { Err(Stop::Errno(EINVAL)) }
}

impl Kernel {
    pub(crate) fn brk(&mut self, cpu: &mut Cpu<'_>, to: u64) -> Sys {
        let huge = self.huge_pages;
        let result = self.with_space(cpu.memory, cpu.pid, |space, pool| {
            let (start, now) = (space.heap_start, space.heap_end);
            if to < start || to > start + (64 << 30) {
                return Ok(now);
            }
            let (old, new) = ((now + FRAME - 1) & !(FRAME - 1), (to + FRAME - 1) & !(FRAME - 1));
            if new > old {
                if space.overlaps(old, new) {
                    return Ok(now);
                }
                let protection = Protection { read: true, write: true, execute: false };
                // The heap is one area, so that large pages can span calls.
                let first = space.area(start).map_or(old, |(first, _)| first);
                space.areas.remove(&first);
                space.add(first, Area { end: new, protection, backing: Backing::Anonymous, large: huge });
            } else if new < old {
                space.unmap(pool, new, old)?;
            }
            space.heap_end = to;
            Ok(to)
        });
        result.map_err(|fault: crate::space::Fault| Stop::from(fault))
    }

    pub(crate) fn mmap(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let [hint, len, protection, flags, fd, offset] = a;
        let len = pages(len)?;
        let fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0;
        if offset % FRAME != 0 || (fixed && hint % FRAME != 0) {
            return Err(Stop::Errno(EINVAL));
        }
        let shared = flags & MAP_SHARED != 0;
        let backing = if flags & MAP_ANONYMOUS != 0 {
            if shared { Backing::Shared(Shared::new(None), 0) } else { Backing::Anonymous }
        } else {
            let handle = self.handle(cpu, fd)?;
            let open = handle.borrow();
            let Kind::File(file) = &open.kind else { return Err(Stop::Errno(EBADF)) };
            if shared {
                Backing::Shared(Shared::new(Some(file.clone())), offset)
            } else {
                Backing::File(file.clone(), offset)
            }
        };
        let anonymous = matches!(backing, Backing::Anonymous);
        let large = anonymous && (flags & MAP_HUGETLB != 0 || (self.huge_pages && len >= LARGE));
        let protection = Protection::from_bits(protection);
        self.with_space(cpu.memory, cpu.pid, |space, pool| {
            let free_hint = hint % FRAME == 0
                && hint >= 0x10000
                && hint.checked_add(len).is_some_and(|end| end <= USER_END && !space.overlaps(hint, end));
            let start = if fixed {
                let (start, end) = range(hint, len)?;
                if flags & MAP_FIXED_NOREPLACE != 0 && space.overlaps(start, end) {
                    return Err(Stop::Errno(EEXIST));
                }
                space.unmap(pool, start, end)?;
                start
            } else if free_hint {
                hint
            } else {
                let align = if large { LARGE } else { FRAME };
                space.find_free(len, align).ok_or(Stop::Errno(ENOMEM))?
            };
            space.add(start, Area { end: start + len, protection, backing, large });
            Ok(start)
        })
    }

    pub(crate) fn munmap(&mut self, cpu: &mut Cpu<'_>, start: u64, len: u64) -> Sys {
        let (start, end) = range(start, len)?;
        self.with_space(cpu.memory, cpu.pid, |space, pool| space.unmap(pool, start, end))?;
        Ok(0)
    }

    pub(crate) fn mprotect(&mut self, cpu: &mut Cpu<'_>, start: u64, len: u64, to: u64) -> Sys {
        if len == 0 {
            return Ok(0);
        }
        let (start, end) = range(start, len)?;
        let to = Protection::from_bits(to);
        let whole = self.with_space(cpu.memory, cpu.pid, |space, pool| space.protect(pool, start, end, to))?;
        if whole { Ok(0) } else { Err(Stop::Errno(ENOMEM)) }
    }

    pub(crate) fn msync(&mut self, cpu: &mut Cpu<'_>, start: u64, len: u64) -> Sys {
        let (start, end) = range(start, len)?;
        self.with_space(cpu.memory, cpu.pid, |space, pool| {
            let areas: Vec<(u64, Area)> = space.areas.range(..end).map(|(&s, a)| (s, a.clone())).collect();
            for (first, area) in areas.into_iter().filter(|(_, area)| area.end > start) {
                space.sync(pool, first, &area);
            }
        });
        Ok(0)
    }

    pub(crate) fn madvise(&mut self, cpu: &mut Cpu<'_>, start: u64, len: u64, advice: u64) -> Sys {
        const DONTNEED: u64 = 4;
        const HUGEPAGE: u64 = 14;
        if len == 0 {
            return Ok(0);
        }
        let (start, end) = range(start, len)?;
        self.with_space(cpu.memory, cpu.pid, |space, pool| {
            match advice {
                DONTNEED => space.drop_pages(pool, start, end)?,
                HUGEPAGE => {
                    for (_, area) in space.areas.range_mut(start..end) {
                        area.large = matches!(area.backing, Backing::Anonymous);
                    }
                }
                _ => {}
            }
            Ok(0)
        })
    }

    /// `mremap`: in place if there is room, else the pages' contents move.
    pub(crate) fn mremap(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        const MAYMOVE: u64 = 1;
        let (start, old_end) = range(a[0], a[1])?;
        let (old, new) = (old_end - start, pages(a[2])?);
        if a[3] & !MAYMOVE != 0 {
            return Err(Stop::Errno(EINVAL));
        }
        self.with_space(cpu.memory, cpu.pid, |space, pool| {
            let (first, area) =
                space.area(start).map(|(s, a)| (s, a.clone())).ok_or(Stop::Errno(super::errno::EFAULT))?;
            if new <= old {
                if new < old {
                    space.unmap(pool, start + new, start + old)?;
                }
                return Ok(start);
            }
            if area.end == start + old && !space.overlaps(area.end, start + new) {
                space.areas.remove(&first);
                space.add(first, Area { end: start + new, ..area });
                return Ok(start);
            }
            if a[3] & MAYMOVE == 0 || !matches!(area.backing, Backing::Anonymous) {
                return Err(Stop::Errno(ENOMEM));
            }
            let to = space.find_free(new, FRAME).ok_or(Stop::Errno(ENOMEM))?;
            space.add(to, Area { end: to + new, ..area });
            let mut page = [0; FRAME as usize];
            for at in (0..old).step_by(FRAME as usize) {
                space.read(pool, start + at, &mut page)?;
                space.write(pool, to + at, &page)?;
            }
            space.unmap(pool, start, start + old)?;
            Ok(to)
        })
    }
}
