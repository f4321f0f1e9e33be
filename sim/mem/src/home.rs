//! The shared cache and its directory, home of every line. Inclusive of all L1s; one transaction a line at a time:
//! a request to a busy line waits for the requester's acknowledgement of the one before. Write-backs and answers are
//! always taken, so every transaction ends whatever the requests behind it do.

use crate::array::Array;
use crate::config::Config;
use crate::mutation::Mutation;
use crate::packet::{Kind, Line, NIL, Packet, State, Vc};
use crate::prefetch::{Guess, Proposals, Seen};
use crate::queue::Tick;
use crate::system::{Event, System};
use std::collections::VecDeque;

const NOBODY: u8 = u8::MAX;
const QUIET: u16 = u16::MAX;
const TXNS: usize = 128;
const PREFETCH_QUEUE: usize = 32;

#[derive(Clone, Copy)]
pub(crate) struct Meta {
    pub(crate) sharers: u64,
    pub(crate) owner: u8,
    dirty: bool,
    busy: u16,
}

const IDLE: Meta = Meta { sharers: 0, owner: NOBODY, dirty: false, busy: QUIET };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Free,
    /// Snoops of the requested line are out.
    Collect,
    /// A miss: waits for memory and for its way.
    Fill,
    /// A cache-block operation waits for a write buffer.
    NeedsBuffer,
    /// A cache-block operation waits for memory to take the line.
    Written,
    /// The grant is out.
    Granted,
}

#[derive(Clone, Copy)]
pub(crate) struct Txn {
    phase: Phase,
    pub(crate) line: u64,
    slot: u32,
    index: u32,
    acks: u8,
    miss: bool,
    data_ready: bool,
    way_ready: bool,
    wants_buffer: bool,
    waiters: u32,
    waiters_tail: u32,
    pub(crate) data: Line,
}

#[derive(Clone, Copy)]
pub(crate) struct HomeBuffer {
    pub(crate) valid: bool,
    pub(crate) line: u64,
    pub(crate) order: u64,
    txn: u16,
    pub(crate) data: Line,
}

/// Counters of the shared cache.
#[derive(Clone, Copy, Default, Debug)]
pub struct HomeStats {
    /// Requests that found their line.
    pub hits: u64,
    /// Requests that went to memory.
    pub misses: u64,
    /// Requests that waited for a busy line.
    pub conflicts: u64,
    /// Requests that waited for a free MSHR, way or buffer.
    pub stalls: u64,
    /// Snoops sent.
    pub snoops: u64,
    /// Lines recalled from L1s to make room.
    pub recalls: u64,
    /// Dirty lines written to memory.
    pub write_backs: u64,
    /// Prefetches sent.
    pub prefetches: u64,
    /// Prefetched lines used.
    pub prefetch_hits: u64,
}

pub(crate) struct Home {
    pub(crate) array: Array,
    pub(crate) meta: Vec<Meta>,
    pub(crate) txns: Vec<Txn>,
    free: Vec<u16>,
    misses: Vec<u16>,
    mshrs: usize,
    pub(crate) buffers: Vec<HomeBuffer>,
    order: u64,
    stalled: VecDeque<u32>,
    retry_armed: bool,
    guess: Guess,
    pending: VecDeque<u64>,
    next_slot: Tick,
    hit: Tick,
    response: Tick,
    period: Tick,
    pub(crate) stats: HomeStats,
}

impl Home {
    pub(crate) fn new(c: &Config) -> Home {
        let array = Array::new(&c.l2);
        let lines = array.len();
        let txn = Txn {
            phase: Phase::Free,
            line: 0,
            slot: NIL,
            index: 0,
            acks: 0,
            miss: false,
            data_ready: false,
            way_ready: false,
            wants_buffer: false,
            waiters: NIL,
            waiters_tail: NIL,
            data: [0; 64],
        };
        let buffer = HomeBuffer { valid: false, line: 0, order: 0, txn: QUIET, data: [0; 64] };
        Home {
            array,
            meta: vec![IDLE; lines],
            txns: vec![txn; TXNS],
            free: (0..TXNS as u16).rev().collect(),
            misses: Vec::with_capacity(64),
            mshrs: c.l2.mshrs as usize,
            buffers: vec![buffer; c.l2.write_buffers as usize],
            order: 0,
            stalled: VecDeque::with_capacity(64),
            retry_armed: false,
            guess: Guess::new(c.l2.prefetch),
            pending: VecDeque::with_capacity(PREFETCH_QUEUE),
            next_slot: 0,
            hit: Tick::from(c.l2.hit_cycles) * c.period,
            response: Tick::from(c.l2.response_cycles) * c.period,
            period: c.period,
            stats: HomeStats::default(),
        }
    }

    fn buffer_of(&self, line: u64) -> bool {
        self.buffers.iter().any(|b| b.valid && b.line == line)
    }

    fn miss_of(&self, line: u64) -> Option<u16> {
        self.misses.iter().copied().find(|&t| self.txns[t as usize].line == line)
    }

    /// The newest bytes the home holds of a line that is not in its array.
    pub(crate) fn outgoing(&self, line: u64) -> Option<&Line> {
        self.buffers.iter().filter(|b| b.valid && b.line == line).max_by_key(|b| b.order).map(|b| &b.data)
    }

    pub(crate) fn idle(&self) -> bool {
        self.free.len() == TXNS && self.stalled.is_empty() && self.buffers.iter().all(|b| !b.valid)
    }

    /// The lines this machine forgets when it stops: those dirty against memory.
    pub(crate) fn dirty(&self, index: usize) -> bool {
        self.meta[index].dirty
    }

    pub(crate) fn forget(&mut self, index: usize) {
        self.array.drop_line(index);
        self.meta[index] = IDLE;
    }
}

impl System {
    /// A request or write-back has crossed; it enters the pipeline of the tags.
    pub(crate) fn home_arrive(&mut self, slot: u32) {
        let start = self.now.max(self.home.next_slot);
        self.home.next_slot = start + self.home.period;
        self.events.push(start + self.home.hit, Event::Home(slot));
    }

    pub(crate) fn home_step(&mut self, slot: u32) {
        if self.packets[slot].kind == Kind::Put {
            self.home_put(slot);
            return;
        }
        self.train(slot);
        if !self.start(slot, false) {
            self.home.stats.stalls += 1;
            self.home.stalled.push_back(slot);
        }
        self.issue_home_prefetches();
    }

    fn train(&mut self, slot: u32) {
        let p = &self.packets[slot];
        if p.prefetch || !matches!(p.kind, Kind::GetS | Kind::GetM) {
            return;
        }
        let found = self.home.array.find(p.line);
        let miss = found.is_none_or(|i| self.home.array.was_prefetched(i));
        let mut out = Proposals::default();
        self.home.guess.observe(Seen { pc: p.pc, addr: p.line, miss }, &mut out);
        for &line in out.lines() {
            if self.home.pending.len() == PREFETCH_QUEUE {
                self.home.pending.pop_front();
            }
            if !self.home.pending.contains(&line) {
                self.home.pending.push_back(line);
            }
        }
    }

    fn issue_home_prefetches(&mut self) {
        // A quarter of the MSHRs stays for requests.
        while self.home.misses.len() < self.home.mshrs * 3 / 4 && self.home.stalled.is_empty() {
            let Some(line) = self.home.pending.pop_front() else { return };
            let home = &self.home;
            let held = home.array.find(line).is_some() || home.miss_of(line).is_some() || home.buffer_of(line);
            if held || !self.memory.holds(line, 64) {
                continue;
            }
            if self.start_miss(NIL, line) {
                self.home.stats.prefetches += 1;
            }
        }
    }

    /// Starts a request or queues it behind its busy line; false if it must be tried again.
    fn start(&mut self, slot: u32, again: bool) -> bool {
        let line = self.packets[slot].line;
        if let Some(t) = self.home.miss_of(line) {
            self.wait_behind(t, slot);
            return true;
        }
        if let Some(index) = self.home.array.find(line) {
            let busy = self.home.meta[index].busy;
            if busy != QUIET {
                self.wait_behind(busy, slot);
                return true;
            }
            return self.start_hit(slot, index);
        }
        if self.home.buffer_of(line) && !self.mutation.is(Mutation::HomeReadPassesWriteBack) {
            return false;
        }
        let kind = self.packets[slot].kind;
        if matches!(kind, Kind::Clean | Kind::Flush) {
            self.cover(Vc::Request, kind, State::I);
            self.answer_cbo(slot);
            return true;
        }
        if !again && !self.home.stalled.is_empty() {
            return false;
        }
        self.start_miss(slot, line)
    }

    fn wait_behind(&mut self, t: u16, slot: u32) {
        self.home.stats.conflicts += 1;
        self.packets[slot].next = NIL;
        let txn = &mut self.home.txns[t as usize];
        if txn.waiters == NIL {
            txn.waiters = slot;
        } else {
            self.packets[txn.waiters_tail].next = slot;
        }
        txn.waiters_tail = slot;
    }

    fn open_txn(&mut self, phase: Phase, line: u64, slot: u32, index: usize) -> Option<u16> {
        let t = self.home.free.pop()?;
        let txn = &mut self.home.txns[t as usize];
        *txn = Txn {
            phase,
            line,
            slot,
            index: index as u32,
            acks: 0,
            miss: false,
            data_ready: false,
            way_ready: false,
            wants_buffer: false,
            waiters: NIL,
            waiters_tail: NIL,
            ..*txn
        };
        self.home.meta[index].busy = t;
        Some(t)
    }

    fn start_hit(&mut self, slot: u32, index: usize) -> bool {
        let p = self.packets[slot];
        let Some(t) = self.open_txn(Phase::Collect, p.line, slot, index) else { return false };
        self.home.stats.hits += 1;
        if self.home.array.touch(index) {
            self.home.stats.prefetch_hits += 1;
        }
        let me = 1u64 << p.src;
        let meta = &mut self.home.meta[index];
        // An exclusive copy nobody wrote is dropped in silence; its owner's request says so.
        if meta.owner == p.src && matches!(p.kind, Kind::GetS | Kind::GetM) {
            meta.owner = NOBODY;
        }
        let owner = if meta.owner == NOBODY { 0 } else { 1u64 << meta.owner };
        let (kind, mut targets) = match p.kind {
            Kind::GetS | Kind::Clean => (Kind::SnoopShare, owner),
            Kind::GetM => (Kind::SnoopInvalidate, (meta.sharers | owner) & !me),
            _ => (Kind::SnoopInvalidate, meta.sharers | owner),
        };
        let held = if owner != 0 {
            State::M
        } else if meta.sharers != 0 {
            State::S
        } else {
            State::E
        };
        self.cover(Vc::Request, p.kind, held);
        if self.mutation.is(Mutation::HomeForgetsSharer) && targets.count_ones() > 1 {
            let forgotten = 1 << targets.trailing_zeros();
            targets &= !forgotten;
            self.home.meta[index].sharers &= !forgotten;
        }
        self.snoop(t, p.line, kind, targets);
        if targets == 0 || self.mutation.is(Mutation::HomeGrantsEarly) {
            self.collected(t, 0);
        }
        true
    }

    fn snoop(&mut self, t: u16, line: u64, kind: Kind, targets: u64) {
        self.home.txns[t as usize].acks = targets.count_ones() as u8;
        let mut rest = targets;
        while rest != 0 {
            let port = rest.trailing_zeros() as u8;
            rest &= rest - 1;
            self.home.stats.snoops += 1;
            let mut packet = Packet::new(kind, line, self.home_port, port);
            packet.txn = t;
            self.send_inner_at(self.now, packet);
        }
    }

    pub(crate) fn home_snoop_ack(&mut self, p: &Packet) {
        let index = self.home.array.find(p.line);
        if let Some(index) = index {
            let meta = &mut self.home.meta[index];
            if meta.owner == p.src {
                meta.owner = NOBODY;
            }
            meta.sharers &= !(1 << p.src);
            if p.keeps {
                meta.sharers |= 1 << p.src;
            }
            if p.has_data {
                meta.dirty = true;
                *self.home.array.data_mut(index) = p.data;
            }
        }
        let t = p.txn;
        let txn = &mut self.home.txns[t as usize];
        if txn.acks == 0 {
            assert!(self.mutation.is(Mutation::HomeGrantsEarly), "a snoop answer nobody waits for");
            return;
        }
        txn.acks -= 1;
        if txn.acks > 0 {
            return;
        }
        match txn.phase {
            Phase::Collect => self.collected(t, self.home.response),
            Phase::Fill => self.evict_victim(t),
            phase => assert!(self.mutation.is(Mutation::HomeGrantsEarly), "a snoop answer in phase {phase:?}"),
        }
    }

    /// All copies that had to go are gone: grant, or write the line to memory.
    fn collected(&mut self, t: u16, delay: Tick) {
        let txn = self.home.txns[t as usize];
        let kind = self.packets[txn.slot].kind;
        match kind {
            Kind::GetS | Kind::GetM => self.grant(t, delay),
            _ => self.write_clean(t),
        }
    }

    fn grant(&mut self, t: u16, delay: Tick) {
        let txn = self.home.txns[t as usize];
        let p = self.packets[txn.slot];
        let meta = &mut self.home.meta[txn.index as usize];
        let me = 1u64 << p.src;
        let mut with_data = true;
        let state = if p.kind == Kind::GetM {
            let trusting = self.mutation.is(Mutation::HomeGrantsWithoutData);
            with_data = !(p.keeps && (trusting || meta.sharers & me != 0));
            meta.sharers = 0;
            meta.owner = p.src;
            State::M
        } else if meta.sharers & !me == 0 && meta.owner == NOBODY && self.exclusive_ports >> p.src & 1 == 1
            || self.mutation.is(Mutation::HomeAlwaysGrantsExclusive)
        {
            meta.sharers = 0;
            meta.owner = p.src;
            State::E
        } else {
            meta.sharers |= me;
            State::S
        };
        let mut packet = Packet::new(Kind::Grant, p.line, self.home_port, p.src);
        packet.slot = p.slot;
        packet.txn = t;
        packet.grant = state;
        if with_data {
            packet = packet.with_data(self.home.array.data(txn.index as usize));
        }
        self.home.txns[t as usize].phase = Phase::Granted;
        self.finish_request(t);
        self.send_inner_at(self.now + delay, packet);
    }

    /// The request's packet and its credit go back.
    fn finish_request(&mut self, t: u16) {
        let slot = std::mem::replace(&mut self.home.txns[t as usize].slot, NIL);
        self.packets.remove(slot);
        self.release_inner(self.home_port as usize, Vc::Request);
    }

    pub(crate) fn home_grant_ack(&mut self, p: &Packet) {
        self.end(p.txn);
    }

    fn end(&mut self, t: u16) {
        let txn = self.home.txns[t as usize];
        self.home.meta[txn.index as usize].busy = QUIET;
        if txn.miss {
            self.home.misses.retain(|&m| m != t);
        }
        self.home.txns[t as usize].phase = Phase::Free;
        self.home.free.push(t);
        let mut waiter = txn.waiters;
        while waiter != NIL {
            let next = self.packets[waiter].next;
            if !self.start(waiter, false) {
                self.home.stalled.push_back(waiter);
            }
            waiter = next;
        }
        self.arm_retry();
        self.issue_home_prefetches();
    }

    fn arm_retry(&mut self) {
        if !self.home.stalled.is_empty() && !self.home.retry_armed {
            self.home.retry_armed = true;
            self.events.push(self.now + self.home.period, Event::HomeRetry);
        }
    }

    pub(crate) fn home_retry(&mut self) {
        self.home.retry_armed = false;
        for _ in 0..self.home.stalled.len() {
            let Some(slot) = self.home.stalled.pop_front() else { break };
            if !self.start(slot, true) {
                self.home.stalled.push_back(slot);
            }
        }
    }

    /// Asks memory and makes room; `slot` is `NIL` for a prefetch. False if there is no MSHR or no way.
    fn start_miss(&mut self, slot: u32, line: u64) -> bool {
        if self.home.misses.len() >= self.home.mshrs || self.home.free.is_empty() {
            return false;
        }
        let Home { array, meta, .. } = &mut self.home;
        let Some(index) = array.place(line, |i| meta[i].busy == QUIET) else { return false };
        let Some(t) = self.open_txn(Phase::Fill, line, slot, index) else { return false };
        self.home.txns[t as usize].miss = true;
        self.home.misses.push(t);
        if slot != NIL {
            self.home.stats.misses += 1;
        }
        let channel = self.map.locate(line).channel;
        let mut packet = Packet::new(Kind::MemRead, line, 0, 1 + channel as u8);
        packet.txn = t;
        self.send_outer_at(self.now, packet);
        let Some(victim) = self.home.array.line_at(index) else {
            self.home.txns[t as usize].way_ready = true;
            return true;
        };
        let meta = self.home.meta[index];
        let holders = meta.sharers | if meta.owner == NOBODY { 0 } else { 1 << meta.owner };
        self.cover(Vc::WriteBack, Kind::MemWrite, if meta.dirty { State::M } else { State::S });
        if holders == 0 || self.mutation.is(Mutation::HomeSkipsRecall) {
            self.evict_victim(t);
        } else {
            self.home.stats.recalls += 1;
            self.cover(Vc::Snoop, Kind::MemRead, if meta.owner == NOBODY { State::S } else { State::M });
            self.snoop(t, victim, Kind::SnoopInvalidate, holders);
        }
        true
    }

    /// The victim is in no L1 any more: its way is free once its bytes have a buffer.
    fn evict_victim(&mut self, t: u16) {
        let index = self.home.txns[t as usize].index as usize;
        let victim = self.home.array.line_at(index).expect("the victim is held until here");
        if self.home.meta[index].dirty && !self.mutation.is(Mutation::HomeDropsDirtyVictim) {
            let data = *self.home.array.data(index);
            if !self.write_memory(victim, &data, QUIET) {
                self.home.txns[t as usize].wants_buffer = true;
                return;
            }
        }
        self.home.array.drop_line(index);
        self.home.meta[index] = Meta { busy: t, ..IDLE };
        // Requests for the victim that waited here find it gone when this transaction ends.
        self.home.txns[t as usize].way_ready = true;
        self.home.txns[t as usize].wants_buffer = false;
        self.fill(t);
    }

    fn write_memory(&mut self, line: u64, data: &Line, txn: u16) -> bool {
        let Some(b) = self.home.buffers.iter().position(|b| !b.valid) else { return false };
        self.home.order += 1;
        self.home.buffers[b] = HomeBuffer { valid: true, line, order: self.home.order, txn, data: *data };
        self.home.stats.write_backs += 1;
        let channel = self.map.locate(line).channel;
        let mut packet = Packet::new(Kind::MemWrite, line, 0, 1 + channel as u8).with_data(data);
        packet.slot = b as u16;
        self.send_outer_at(self.now, packet);
        true
    }

    pub(crate) fn home_mem_data(&mut self, p: &Packet) {
        let txn = &mut self.home.txns[p.txn as usize];
        assert!(txn.phase == Phase::Fill && txn.line == p.line, "memory answered a question nobody asked");
        txn.data = p.data;
        txn.data_ready = true;
        self.fill(p.txn);
    }

    fn fill(&mut self, t: u16) {
        let txn = self.home.txns[t as usize];
        if !txn.data_ready || !txn.way_ready {
            return;
        }
        let index = txn.index as usize;
        self.home.array.fill(index, txn.line, State::S, &txn.data, txn.slot == NIL);
        self.home.meta[index] = Meta { busy: t, ..IDLE };
        if txn.slot == NIL {
            self.cover(Vc::Response, Kind::MemData, State::I);
            self.end(t);
        } else {
            self.cover(Vc::Response, Kind::MemData, State::S);
            self.grant(t, self.home.response);
        }
    }

    /// Cleans the line of a cache-block operation.
    fn write_clean(&mut self, t: u16) {
        let txn = self.home.txns[t as usize];
        let index = txn.index as usize;
        let flush = self.packets[txn.slot].kind == Kind::Flush;
        if self.home.meta[index].dirty {
            let data = *self.home.array.data(index);
            if !self.write_memory(txn.line, &data, t) {
                self.home.txns[t as usize].phase = Phase::NeedsBuffer;
                return;
            }
            self.home.meta[index].dirty = false;
            self.home.txns[t as usize].phase = Phase::Written;
        }
        if flush {
            self.home.array.drop_line(index);
            self.home.meta[index] = Meta { busy: t, ..IDLE };
        }
        if self.home.txns[t as usize].phase != Phase::Written {
            self.finish_cbo(t);
        }
    }

    fn finish_cbo(&mut self, t: u16) {
        let slot = std::mem::replace(&mut self.home.txns[t as usize].slot, NIL);
        self.answer_cbo(slot);
        self.end(t);
    }

    fn answer_cbo(&mut self, slot: u32) {
        let p = self.packets[slot];
        self.packets.remove(slot);
        self.release_inner(self.home_port as usize, Vc::Request);
        let mut done = Packet::new(Kind::CboDone, p.line, self.home_port, p.src);
        done.slot = p.slot;
        self.send_inner_at(self.now, done);
    }

    pub(crate) fn home_mem_ack(&mut self, p: &Packet) {
        let b = p.slot as usize;
        self.home.buffers[b].valid = false;
        let t = self.home.buffers[b].txn;
        if t != QUIET {
            self.finish_cbo(t);
        }
        for t in 0..TXNS as u16 {
            let txn = &self.home.txns[t as usize];
            if txn.phase == Phase::NeedsBuffer {
                self.write_clean(t);
            } else if txn.phase == Phase::Fill && txn.wants_buffer {
                self.evict_victim(t);
            }
        }
        self.arm_retry();
    }

    fn home_put(&mut self, slot: u32) {
        let p = self.packets[slot];
        self.packets.remove(slot);
        self.release_inner(self.home_port as usize, Vc::WriteBack);
        let index = self.home.array.find(p.line);
        let current = index.is_some_and(|i| self.home.meta[i].owner == p.src);
        self.cover(Vc::Response, Kind::PutAck, if current { State::M } else { State::I });
        if let Some(index) = index
            && (current || self.mutation.is(Mutation::HomeTakesStalePut))
        {
            *self.home.array.data_mut(index) = p.data;
            self.home.meta[index].dirty = true;
            self.home.meta[index].owner = NOBODY;
        }
        let mut ack = Packet::new(Kind::PutAck, p.line, self.home_port, p.src);
        ack.slot = p.slot;
        self.send_inner_at(self.now, ack);
    }
}
