//! What both pipelines share: architectural state, translation, fetch, the store buffer, and the tokens by which
//! completions find their way back.

use super::config::CoreConfig;
use super::predict::Predictor;
use super::stores::StoreBuffer;
use super::tlb::{Tlb, Walker, Want, Xlate};
use towpath_isa::{Access, Hart, Trap, Uop, decode};
use towpath_mem::{self as mem, Completion, Op, Request, System, Tick};

pub(crate) const TOKEN_WALK: u64 = 1 << 60;
pub(crate) const TOKEN_FETCH: u64 = 2 << 60;
pub(crate) const TOKEN_STORE: u64 = 3 << 60;
pub(crate) const TOKEN_SLOW: u64 = 4 << 60;
pub(crate) const TOKEN_LOAD: u64 = 5 << 60;
const TOKEN_KIND: u64 = 15 << 60;

pub(crate) fn timed(port: u8, op: Op, addr: u64, size: u8, data: u128, pc: u64, token: u64) -> Request {
    Request { port, op, addr, size, data, pc, token }
}

const BLOCKS: usize = 8;
const BLOCK: u64 = 16;

#[derive(Clone, Copy)]
struct Block {
    va: u64,
    data: u128,
    ready: Tick,
    pending: bool,
    fault: Option<Trap>,
    serial: u64,
}

const NO_BLOCK: u64 = u64::MAX;

/// What fetch has for an address.
pub(crate) enum Fetched {
    Bits(u32),
    /// Not before this tick; `Tick::MAX` while a completion must come first.
    Wait(Tick),
    Fault(Trap),
}

/// Counters both pipelines keep.
#[derive(Clone, Copy, Default, Debug)]
pub struct CoreStats {
    /// Instructions completed.
    pub instructions: u64,
    /// Cycles in which the core did something.
    pub active_cycles: u64,
    /// Branches and jumps completed.
    pub branches: u64,
    /// Of those, mispredicted.
    pub mispredicts: u64,
    /// Loads completed.
    pub loads: u64,
    /// Stores completed.
    pub stores: u64,
    /// Loads answered from the store buffer.
    pub forwarded: u64,
    /// Squashes because a load had read too early.
    pub order_squashes: u64,
    /// Instructions executed or fetched and thrown away.
    pub squashed: u64,
    /// Page-table walks.
    pub walks: u64,
}

pub(crate) struct Unit {
    pub(crate) hart: Hart,
    pub(crate) config: CoreConfig,
    pub(crate) period: Tick,
    pub(crate) data_port: u8,
    pub(crate) fetch_port: u8,
    pub(crate) dtlb: Tlb,
    itlb: Tlb,
    pub(crate) walker: Walker,
    pub(crate) predictor: Predictor,
    pub(crate) stores: StoreBuffer,
    blocks: [Block; BLOCKS],
    serial: u64,
    last: usize,
    memo: Vec<Uop>,
    inbox: Vec<Completion>,
    pub(crate) stats: CoreStats,
    /// Picoseconds of a tick of `time`.
    pub(crate) timebase: Tick,
}

const MEMO: usize = 4096;

impl Unit {
    pub(crate) fn new(core: u32, config: &CoreConfig, memory: &System) -> Unit {
        let none = Block { va: NO_BLOCK, data: 0, ready: 0, pending: false, fault: None, serial: 0 };
        let data_port = memory.data_port(core);
        Unit {
            hart: Hart::new(u64::from(core)),
            config: *config,
            period: memory.config().period,
            data_port,
            fetch_port: memory.fetch_port(core),
            dtlb: Tlb::new(config.tlb),
            itlb: Tlb::new(config.tlb),
            walker: Walker::default(),
            predictor: Predictor::new(config.predictor, config.btb),
            stores: StoreBuffer::new(data_port, config.store_order),
            blocks: [none; BLOCKS],
            serial: 0,
            last: 0,
            memo: vec![decode(0); MEMO],
            inbox: Vec::with_capacity(16),
            stats: CoreStats::default(),
            timebase: 100_000,
        }
    }

    /// Takes completions; those of walks, fetches and stores are handled here, the rest goes to `out`.
    pub(crate) fn collect(&mut self, memory: &mut System, out: &mut Vec<Completion>) {
        let mut inbox = std::mem::take(&mut self.inbox);
        memory.take_completions(self.fetch_port, &mut inbox);
        memory.take_completions(self.data_port, &mut inbox);
        for c in inbox.drain(..) {
            match c.token & TOKEN_KIND {
                TOKEN_WALK => self.walker.complete(&c),
                TOKEN_FETCH => {
                    let serial = c.token & !TOKEN_KIND;
                    if let Some(b) = self.blocks.iter_mut().find(|b| b.pending && b.serial == serial) {
                        (b.data, b.ready, b.pending) = (c.value, c.ready, false);
                    }
                }
                TOKEN_STORE => self.stores.complete(c.token & !TOKEN_KIND),
                _ => out.push(c),
            }
        }
        self.inbox = inbox;
    }

    /// Brings the counters that programs read up to date.
    pub(crate) fn count(&mut self, now: Tick) {
        let csrs = &mut self.hart.csrs;
        (csrs.cycle, csrs.instret, csrs.time) = (now / self.period, self.stats.instructions, now / self.timebase);
    }

    pub(crate) fn translate(&mut self, va: u64, access: Access, oldest: bool, memory: &mut System) -> Xlate {
        let tlb = if access == Access::Fetch { &mut self.itlb } else { &mut self.dtlb };
        self.walker.translate(tlb, &self.hart, Want { va, access, oldest }, self.data_port, memory)
    }

    /// Asks for the block that holds `va` if it is not here; returns its place.
    fn block(&mut self, va: u64, memory: &mut System) -> Result<usize, Fetched> {
        let at = va & !(BLOCK - 1);
        if self.blocks[self.last].va == at {
            return Ok(self.last);
        }
        if let Some(k) = self.blocks.iter().position(|b| b.va == at) {
            self.last = k;
            return Ok(k);
        }
        let (pa, after) = match self.translate(va, Access::Fetch, true, memory) {
            Xlate::At(pa, after) => (pa & !(BLOCK - 1), after),
            Xlate::Wait | Xlate::Oldest => return Err(Fetched::Wait(Tick::MAX)),
            Xlate::Fault(trap) => return Err(Fetched::Fault(trap)),
        };
        self.serial += 1;
        let token = TOKEN_FETCH | self.serial;
        let mut block = Block { va: at, data: 0, ready: after, pending: false, fault: None, serial: self.serial };
        match memory.access(&timed(self.fetch_port, Op::Load, pa, BLOCK as u8, 0, at, token)) {
            mem::Access::Done { value, ready } => (block.data, block.ready) = (value, ready.max(after)),
            mem::Access::Pending => block.pending = true,
            mem::Access::Refused => return Err(Fetched::Wait(Tick::MAX)),
            mem::Access::Fault => block.fault = Some(Access::Fetch.access_fault(va)),
        }
        let k = (0..BLOCKS).min_by_key(|&k| self.blocks[k].serial).expect("blocks exist");
        self.blocks[k] = block;
        self.last = k;
        Ok(k)
    }

    fn parcel(&mut self, va: u64, memory: &mut System) -> Result<u16, Fetched> {
        let k = self.block(va, memory)?;
        let b = &self.blocks[k];
        if b.pending {
            return Err(Fetched::Wait(Tick::MAX));
        }
        if let Some(trap) = b.fault {
            return Err(Fetched::Fault(trap));
        }
        if b.ready > memory.now() {
            return Err(Fetched::Wait(b.ready));
        }
        Ok((b.data >> ((va & (BLOCK - 1)) * 8)) as u16)
    }

    /// The instruction at `va`, two or four bytes.
    #[inline]
    pub(crate) fn fetch(&mut self, va: u64, memory: &mut System) -> Fetched {
        let at = (va & (BLOCK - 1)) as u32;
        let b = &self.blocks[self.last];
        if b.va == va & !(BLOCK - 1) && at <= 12 && !b.pending && b.ready <= memory.now() && b.fault.is_none() {
            return Fetched::Bits((b.data >> (at * 8)) as u32);
        }
        let low = match self.parcel(va, memory) {
            Ok(low) => low,
            Err(wait) => return wait,
        };
        if low & 3 != 3 {
            return Fetched::Bits(u32::from(low));
        }
        match self.parcel(va.wrapping_add(2), memory) {
            Ok(high) => Fetched::Bits(u32::from(high) << 16 | u32::from(low)),
            Err(wait) => wait,
        }
    }

    /// Starts fetching the block of `va` without waiting: the next one, or a wrong path.
    pub(crate) fn fetch_ahead(&mut self, va: u64, memory: &mut System) {
        let at = va & !(BLOCK - 1);
        if self.blocks.iter().all(|b| b.va != at) {
            let last = self.last;
            let _started_or_not = self.block(va, memory);
            self.last = last;
        }
    }

    /// Later fetches see earlier stores and translations.
    pub(crate) fn forget_code(&mut self) {
        self.blocks.iter_mut().for_each(|b| b.va = NO_BLOCK);
    }

    /// Translations may have changed.
    pub(crate) fn forget_translations(&mut self) {
        self.dtlb.flush();
        self.itlb.flush();
        self.walker.forget();
        self.forget_code();
    }

    /// Decoding is a function of the bits, so remembering it is always right.
    #[inline]
    pub(crate) fn decode(&mut self, bits: u32) -> Uop {
        let bits = if bits & 3 == 3 { bits } else { bits & 0xffff };
        let slot = (bits ^ bits >> 12 ^ bits >> 20) as usize % MEMO;
        let known = self.memo[slot];
        if known.raw == bits {
            return known;
        }
        let uop = decode(bits);
        self.memo[slot] = uop;
        uop
    }
}
