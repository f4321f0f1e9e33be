//! Translations held by a core, and the walker that fills them through the data cache. An entry remembers which
//! accesses have been allowed; another kind of access walks again, which is also how A and D bits get set.

use super::unit::{TOKEN_WALK, timed};
use towpath_isa::{Access, Hart, PhysicalMemory, Trap, data_mode, translate};
use towpath_mem::{self as mem, AmoOp, Completion, Op, System, Tick};

const WAYS: usize = 4;
const MSTATUS_SUM_MXR: u64 = 3 << 18;

#[derive(Clone, Copy, Default)]
struct Entry {
    page: u64,
    context: u64,
    frame: u64,
    allowed: u8,
    used: u64,
}

/// Two arrays: one for 4 KB pages, one for larger ones at 2 MB.
pub(crate) struct Tlb {
    small: Vec<[Entry; WAYS]>,
    large: Vec<[Entry; WAYS]>,
    larges: bool,
    clock: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

fn bit(access: Access) -> u8 {
    match access {
        Access::Fetch => 1,
        Access::Load => 2,
        Access::Store => 4,
    }
}

/// What else a translation depends on: mode, `satp`, SUM and MXR.
pub(crate) fn context(hart: &Hart, access: Access) -> u64 {
    let mode = if access == Access::Fetch { hart.mode } else { data_mode(hart) };
    let bits = 1 | (mode as u64) << 1 | hart.csrs.mstatus & MSTATUS_SUM_MXR;
    hart.csrs.satp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ bits
}

impl Tlb {
    pub(crate) fn new(entries: u32) -> Tlb {
        let sets = (entries as usize / WAYS).max(1);
        let empty = [Entry::default(); WAYS];
        Tlb { small: vec![empty; sets], large: vec![empty; sets.min(8)], larges: false, clock: 0, hits: 0, misses: 0 }
    }

    #[inline]
    pub(crate) fn lookup(&mut self, va: u64, context: u64, access: Access) -> Option<u64> {
        self.clock += 1;
        for (array, shift) in [(&mut self.small, 12), (&mut self.large, 21)] {
            if shift == 21 && !self.larges {
                break;
            }
            let page = va >> shift;
            let sets = array.len();
            for e in &mut array[page as usize & (sets - 1)] {
                if e.page == page && e.context == context && e.allowed & bit(access) != 0 {
                    e.used = self.clock;
                    self.hits += 1;
                    return Some(e.frame | va & ((1 << shift) - 1));
                }
            }
        }
        None
    }

    fn insert(&mut self, va: u64, pa: u64, large: bool, context: u64, access: Access) {
        self.misses += 1;
        self.larges |= large;
        let (array, shift) = if large { (&mut self.large, 21) } else { (&mut self.small, 12) };
        let (page, frame) = (va >> shift, pa >> shift << shift);
        let sets = array.len();
        let set = &mut array[page as usize & (sets - 1)];
        if let Some(e) = set.iter_mut().find(|e| e.page == page && e.context == context) {
            e.allowed = if e.frame == frame { e.allowed | bit(access) } else { bit(access) };
            e.frame = frame;
            return;
        }
        let victim = set.iter_mut().min_by_key(|e| e.used).expect("a set has ways");
        *victim = Entry { page, context, frame, allowed: bit(access), used: self.clock };
    }

    pub(crate) fn flush(&mut self) {
        self.small.iter_mut().chain(&mut self.large).for_each(|set| *set = [Entry::default(); WAYS]);
        self.larges = false;
    }
}

/// Where a translation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Xlate {
    /// The physical address, usable at the tick.
    At(u64, Tick),
    /// A walk is under way.
    Wait,
    /// A walk would set A or D, which only the oldest instruction may.
    Oldest,
    Fault(Trap),
}

/// What is to be translated.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    pub(crate) va: u64,
    pub(crate) access: Access,
    /// A and D may be set.
    pub(crate) oldest: bool,
}

/// One walk at a time, entry by entry through the data cache.
#[derive(Default)]
pub(crate) struct Walker {
    va: u64,
    access: Option<Access>,
    context: u64,
    entries: [(u64, Option<u64>); 3],
    count: usize,
    pending: bool,
    wrote: bool,
    ready: Tick,
    pub(crate) walks: u64,
}

struct Fetched<'a> {
    entries: &'a [(u64, Option<u64>)],
    missing: Option<u64>,
    write: Option<(u64, u64)>,
}

impl PhysicalMemory for Fetched<'_> {
    fn read_pte(&mut self, pa: u64) -> Option<u64> {
        match self.entries.iter().find(|(at, _)| *at == pa) {
            Some((_, pte)) => *pte,
            None => {
                self.missing = Some(pa);
                None
            }
        }
    }

    fn write_pte(&mut self, pa: u64, pte: u64) {
        self.write = Some((pa, pte));
    }
}

impl Walker {
    pub(crate) fn complete(&mut self, c: &Completion) {
        self.pending = false;
        self.ready = c.ready;
        if !self.wrote && self.count > 0 {
            self.entries[self.count - 1].1 = Some(c.value as u64);
        }
    }

    /// Translates by the TLB, or moves a walk forward.
    pub(crate) fn translate(&mut self, tlb: &mut Tlb, hart: &Hart, want: Want, port: u8, memory: &mut System) -> Xlate {
        let Want { va, access, oldest } = want;
        let context = context(hart, access);
        if let Some(pa) = tlb.lookup(va, context, access) {
            return Xlate::At(pa, memory.now());
        }
        if self.pending {
            return Xlate::Wait;
        }
        if self.va != va || self.access != Some(access) || self.context != context {
            *self = Walker { va, access: Some(access), context, walks: self.walks + 1, ..Walker::default() };
        }
        loop {
            let mut view = Fetched { entries: &self.entries[..self.count], missing: None, write: None };
            let outcome = translate(hart, va, 1, access, &mut view);
            let (missing, write) = (view.missing, view.write);
            if let Some(pa) = missing.filter(|_| self.count < 3) {
                self.entries[self.count] = (pa, None);
                self.count += 1;
                match memory.access(&timed(port, Op::Load, pa, 8, 0, 0, TOKEN_WALK)) {
                    mem::Access::Done { value, ready } => {
                        self.entries[self.count - 1].1 = Some(value as u64);
                        self.ready = ready;
                    }
                    mem::Access::Pending => {
                        self.pending = true;
                        return Xlate::Wait;
                    }
                    mem::Access::Refused => {
                        self.count -= 1;
                        return Xlate::Wait;
                    }
                    mem::Access::Fault => {}
                }
                continue;
            }
            let found = match outcome {
                Ok(found) => found,
                Err(trap) => {
                    self.access = None;
                    return Xlate::Fault(trap);
                }
            };
            if let Some((pa, pte)) = write.filter(|_| !self.wrote) {
                if !oldest {
                    return Xlate::Oldest;
                }
                let set = timed(port, Op::Amo(AmoOp::Or), pa, 8, u128::from(pte), 0, TOKEN_WALK);
                match memory.access(&set) {
                    mem::Access::Done { .. } => self.wrote = true,
                    mem::Access::Pending => {
                        self.wrote = true;
                        self.pending = true;
                        return Xlate::Wait;
                    }
                    _ => return Xlate::Wait,
                }
            }
            self.access = None;
            tlb.insert(va, found.pa, found.page > 4096 && found.page < 1 << 40, context, access);
            return Xlate::At(found.pa, self.ready.max(memory.now()));
        }
    }

    /// Forgets what it read (after `sfence.vma`).
    pub(crate) fn forget(&mut self) {
        self.access = None;
    }
}
