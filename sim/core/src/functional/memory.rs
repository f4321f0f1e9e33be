//! A hart's view of memory in the functional core: translation through the software cache, then plain bytes.

use super::tlb::{Kind, Tlb};
use crate::ram::{Devices, Ram};
use towpath_isa::{Access, CacheOp, Hart, Memory, PAGE_SIZE, PhysicalMemory, Translation, Trap, translate};

/// Bytes of a cache block, for Zicbom and Zicboz.
const CACHE_BLOCK: u64 = 64;

impl PhysicalMemory for Ram {
    fn read_pte(&mut self, pa: u64) -> Option<u64> {
        self.load(pa, 8)
    }

    fn write_pte(&mut self, pa: u64, pte: u64) {
        // The entry was read from there, so memory is there.
        let _ = self.store(pa, 8, pte);
    }
}

pub(crate) struct View<'a, D> {
    pub(crate) tlb: &'a mut Tlb,
    pub(crate) ram: &'a mut Ram,
    pub(crate) devices: &'a mut D,
    /// Set by `fence.i`.
    pub(crate) code_changed: bool,
    /// Set by a store to a device.
    pub(crate) device_stored: bool,
}

#[inline(always)]
fn read<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut word = [0; 8];
    word[..N].copy_from_slice(bytes.get(at..at.wrapping_add(N))?);
    Some(u64::from_le_bytes(word))
}

#[inline(always)]
fn write<const N: usize>(bytes: &mut [u8], at: usize, value: u64) -> Option<()> {
    bytes.get_mut(at..at.wrapping_add(N))?.copy_from_slice(&value.to_le_bytes()[..N]);
    Some(())
}

impl<D: Devices> View<'_, D> {
    /// Loads `N` bytes: one comparison and a copy when the page is cached.
    #[inline(always)]
    pub(crate) fn load_fast<const N: usize>(&mut self, hart: &Hart, va: u64) -> Result<u64, Trap> {
        if let Some(at) = self.tlb.lookup(va, N as u64, Kind::Load)
            && let Some(value) = read::<N>(self.ram.bytes(), at)
        {
            return Ok(value);
        }
        self.load_slow(hart, va, N as u64)
    }

    /// Stores `N` bytes: one comparison and a copy when the page is cached.
    #[inline(always)]
    pub(crate) fn store_fast<const N: usize>(&mut self, hart: &Hart, va: u64, value: u64) -> Result<(), Trap> {
        if let Some(at) = self.tlb.lookup(va, N as u64, Kind::Store)
            && write::<N>(self.ram.bytes_mut(), at, value).is_some()
        {
            return Ok(());
        }
        self.store_slow(hart, va, N as u64, value)
    }

    /// Translates and, where memory is, remembers the page.
    fn resolve(&mut self, hart: &Hart, va: u64, size: u64, access: Access) -> Result<Translation, Trap> {
        let found = translate(hart, va, size, access, self.ram)?;
        let kind = match access {
            Access::Load => Kind::Load,
            Access::Store => Kind::Store,
            Access::Fetch => Kind::Fetch,
        };
        let page = found.pa & !(PAGE_SIZE - 1);
        // A page that PMP splits is not remembered: each access asks again.
        let whole = towpath_isa::pmp_allows(hart, page, PAGE_SIZE, access, towpath_isa::data_mode(hart));
        if whole && let Some(index) = self.ram.index(page, PAGE_SIZE) {
            self.tlb.insert(va & !(PAGE_SIZE - 1), kind, index, found.page > PAGE_SIZE);
        }
        Ok(found)
    }

    /// Where to fetch from at `va`.
    pub(crate) fn fetch_address(&mut self, hart: &Hart, va: u64) -> Result<u64, Trap> {
        if let Some(at) = self.tlb.lookup(va, 2, Kind::Fetch) {
            return Ok(self.ram.base() + at as u64);
        }
        let found = self.resolve(hart, va, 2, Access::Fetch)?;
        if self.ram.index(found.pa, 2).is_none() {
            return Err(Access::Fetch.access_fault(va));
        }
        Ok(found.pa)
    }

    #[cold]
    #[inline(never)]
    fn load_slow(&mut self, hart: &Hart, va: u64, size: u64) -> Result<u64, Trap> {
        if (va & (PAGE_SIZE - 1)) + size > PAGE_SIZE {
            let mut value = 0;
            for i in 0..size {
                value |= self.load_slow(hart, va.wrapping_add(i), 1)? << (8 * i);
            }
            return Ok(value);
        }
        let found = self.resolve(hart, va, size, Access::Load)?;
        if let Some(value) = self.ram.load(found.pa, size) {
            return Ok(value);
        }
        self.devices.load(hart.csrs.hart_id, found.pa, size).ok_or_else(|| Access::Load.access_fault(va))
    }

    #[cold]
    #[inline(never)]
    fn store_slow(&mut self, hart: &Hart, va: u64, size: u64, value: u64) -> Result<(), Trap> {
        if (va & (PAGE_SIZE - 1)) + size > PAGE_SIZE {
            // Both pages must be writable before a byte changes.
            self.resolve(hart, va, 1, Access::Store)?;
            self.resolve(hart, (va.wrapping_add(size - 1)) & !(PAGE_SIZE - 1), 1, Access::Store)?;
            for i in 0..size {
                self.store_slow(hart, va.wrapping_add(i), 1, value >> (8 * i))?;
            }
            return Ok(());
        }
        let found = self.resolve(hart, va, size, Access::Store)?;
        if self.ram.store(found.pa, size, value).is_some() {
            return Ok(());
        }
        self.device_stored = true;
        self.devices.store(hart.csrs.hart_id, found.pa, size, value).ok_or_else(|| Access::Store.access_fault(va))
    }
}

impl<D: Devices> Memory for View<'_, D> {
    fn load(&mut self, hart: &Hart, va: u64, size: u64) -> Result<u64, Trap> {
        match size {
            1 => self.load_fast::<1>(hart, va),
            2 => self.load_fast::<2>(hart, va),
            4 => self.load_fast::<4>(hart, va),
            _ => self.load_fast::<8>(hart, va),
        }
    }

    fn store(&mut self, hart: &Hart, va: u64, size: u64, value: u64) -> Result<(), Trap> {
        match size {
            1 => self.store_fast::<1>(hart, va, value),
            2 => self.store_fast::<2>(hart, va, value),
            4 => self.store_fast::<4>(hart, va, value),
            _ => self.store_fast::<8>(hart, va, value),
        }
    }

    fn update(&mut self, hart: &Hart, va: u64, size: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Trap> {
        // The right to store includes the right to load: a writable page is readable.
        let found = self.resolve(hart, va, size, Access::Store)?;
        let fault = || Access::Store.access_fault(va);
        let old = self.ram.load(found.pa, size).ok_or_else(fault)?;
        self.ram.store(found.pa, size, change(old)).ok_or_else(fault)?;
        Ok(old)
    }

    fn load_reserved(&mut self, hart: &Hart, va: u64, size: u64) -> Result<(u64, u64), Trap> {
        let found = self.resolve(hart, va, size, Access::Load)?;
        let value = self.ram.load(found.pa, size).ok_or_else(|| Access::Load.access_fault(va))?;
        Ok((value, found.pa))
    }

    fn store_conditional(&mut self, hart: &Hart, va: u64, size: u64, value: u64) -> Result<bool, Trap> {
        let found = self.resolve(hart, va, size, Access::Store)?;
        if hart.reservation != Some(found.pa) {
            return Ok(false);
        }
        self.ram.store(found.pa, size, value).ok_or_else(|| Access::Store.access_fault(va))?;
        Ok(true)
    }

    fn cache_op(&mut self, hart: &Hart, op: CacheOp, va: u64) -> Result<(), Trap> {
        let block = va & !(CACHE_BLOCK - 1);
        if op == CacheOp::Zero {
            for i in 0..CACHE_BLOCK / 8 {
                self.store(hart, block + 8 * i, 8, 0).map_err(|trap| Trap { value: va, ..trap })?;
            }
            return Ok(());
        }
        // Management of a block needs only the right to load it; there is no cache to manage.
        match translate(hart, va, 1, Access::Load, self.ram) {
            Ok(_) => Ok(()),
            Err(_) => translate(hart, va, 1, Access::Store, self.ram).map(|_| ()),
        }
    }

    fn lazy_copy(&mut self, hart: &Hart, dest: u64, src: u64, len: u64) -> Result<(), Trap> {
        // Every page of both sides is checked first, so a fault leaves nothing half done.
        for (start, access) in [(src, Access::Load), (dest, Access::Store)] {
            let end = start.wrapping_add(len);
            let mut at = start;
            while at < end {
                self.resolve(hart, at, 1, access)?;
                at = (at | (PAGE_SIZE - 1)).wrapping_add(1);
            }
        }
        // As if through a buffer, so that overlapping ranges are defined.
        let mut bytes = Vec::with_capacity(len as usize);
        for i in 0..len {
            bytes.push(self.load(hart, src.wrapping_add(i), 1)?);
        }
        for (i, byte) in bytes.into_iter().enumerate() {
            self.store(hart, dest.wrapping_add(i as u64), 1, byte)?;
        }
        Ok(())
    }

    fn lazy_free(&mut self, hart: &Hart, va: u64, _len: u64) -> Result<(), Trap> {
        // Freed contents are undefined; keeping them is one of the values allowed.
        self.resolve(hart, va, 1, Access::Store).map(|_| ())
    }

    fn fence(&mut self, _: &Hart, _: u32) {}

    fn fence_i(&mut self, _: &Hart) {
        self.code_changed = true;
    }

    fn sfence(&mut self, _: &Hart, va: Option<u64>, _: Option<u16>) {
        match va {
            Some(va) => self.tlb.flush_page(va),
            None => self.tlb.flush(),
        }
    }

    fn context_changed(&mut self, hart: &Hart) {
        self.tlb.select(hart);
    }
}
