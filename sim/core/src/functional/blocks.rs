//! Decoded blocks: straight runs of uops within a page, found by physical address, and the cache that leads from a
//! virtual address to one without translating.

use crate::ram::Ram;
use towpath_isa::{Class, Op, PAGE_SIZE, Uop, decode};

/// Uops in a block at most: bounds how far a run overshoots its budget's check.
const BLOCK_MAX: usize = 64;
/// Uops kept before everything is decoded anew.
const ARENA_MAX: usize = 1 << 20;
const SLOTS: usize = 1 << 14;
const JUMPS: usize = 1 << 12;

/// A run of uops in the arena.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

#[derive(Clone, Copy)]
struct Slot {
    pa: u64,
    block: Block,
    generation: u32,
}

#[derive(Clone, Copy)]
struct Jump {
    va: u64,
    block: Block,
    epoch: u32,
}

pub(crate) struct Blocks {
    pub(crate) arena: Vec<Uop>,
    slots: Vec<Slot>,
    jumps: Box<[Jump; JUMPS]>,
    generation: u32,
    /// Goes up when the arena is emptied, so that the jump cache forgets.
    pub(crate) epoch: u32,
}

const NO_BLOCK: Block = Block { start: 0, len: 0 };

impl Blocks {
    pub(crate) fn new() -> Blocks {
        Blocks {
            arena: Vec::new(),
            slots: vec![Slot { pa: u64::MAX, block: NO_BLOCK, generation: 0 }; SLOTS],
            jumps: Box::new([Jump { va: u64::MAX, block: NO_BLOCK, epoch: 0 }; JUMPS]),
            generation: 1,
            epoch: 1,
        }
    }

    /// Blocks decoded before must be compared with memory before they run again (`fence.i`).
    pub(crate) fn distrust(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.epoch = self.epoch.wrapping_add(1);
    }

    #[inline(always)]
    pub(crate) fn jump(&self, va: u64, epoch: u32) -> Option<Block> {
        let jump = &self.jumps[(va >> 1) as usize % JUMPS];
        (jump.va == va && jump.epoch == epoch).then_some(jump.block)
    }

    pub(crate) fn remember(&mut self, va: u64, epoch: u32, block: Block) {
        self.jumps[(va >> 1) as usize % JUMPS] = Jump { va, block, epoch };
    }

    /// The block at `pa`, decoded if it is new or has changed. `None`: its first instruction crosses the page's end.
    pub(crate) fn find(&mut self, pa: u64, ram: &Ram) -> Option<Block> {
        let at = (pa >> 1 ^ pa >> 15) as usize % SLOTS;
        let slot = self.slots[at];
        if slot.pa == pa {
            if slot.generation == self.generation {
                return Some(slot.block);
            }
            if self.unchanged(&slot, ram) {
                self.slots[at].generation = self.generation;
                return Some(slot.block);
            }
        }
        if self.arena.len() > ARENA_MAX {
            self.arena.clear();
            self.slots.fill(Slot { pa: u64::MAX, block: NO_BLOCK, generation: 0 });
            self.epoch = self.epoch.wrapping_add(1);
        }
        let block = self.build(pa, ram)?;
        self.slots[at] = Slot { pa, block, generation: self.generation };
        Some(block)
    }

    fn unchanged(&self, slot: &Slot, ram: &Ram) -> bool {
        let mut pa = slot.pa;
        self.arena[slot.block.start as usize..][..slot.block.len as usize].iter().all(|uop| {
            let same = ram.load(pa, u64::from(uop.len)) == Some(u64::from(uop.raw));
            pa += u64::from(uop.len);
            same
        })
    }

    fn build(&mut self, start: u64, ram: &Ram) -> Option<Block> {
        let end = (start | (PAGE_SIZE - 1)) + 1;
        let first = self.arena.len();
        let mut pa = start;
        while pa < end && self.arena.len() - first < BLOCK_MAX {
            let size = if end - pa >= 4 { 4 } else { 2 };
            let Some(bits) = ram.load(pa, size) else { break };
            if size == 2 && bits & 3 == 3 {
                break;
            }
            let uop = decode(bits as u32);
            pa += u64::from(uop.len);
            self.arena.push(without_effect(uop));
            if uop.ends_block() {
                break;
            }
        }
        let len = self.arena.len() - first;
        (len > 0).then_some(Block { start: first as u32, len: len as u32 })
    }
}

/// An operation that only writes `x0` becomes `nop`; then executing one needs no care for `x0`.
fn without_effect(uop: Uop) -> Uop {
    let pure = matches!(uop.class(), Class::Alu | Class::Mul | Class::Div);
    if pure && uop.rd == 0 { Uop { op: Op::Nop, ..uop } } else { uop }
}
