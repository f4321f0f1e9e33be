//! The private caches: hits answered in the call, misses through MSHRs whose targets are performed in order when the
//! line arrives, dirty victims through write buffers that answer snoops until the home has taken them.

use crate::array::Array;
use crate::config::CacheConfig;
use crate::mutation::Mutation;
use crate::packet::{Kind, Line, Packet, State, Vc};
use crate::prefetch::{Guess, Proposals, Seen};
use crate::queue::Tick;
use crate::system::{Access, AmoOp, Completion, Event, Op, Request, System};
use std::collections::VecDeque;

pub(crate) const TARGETS: usize = 16;
const PREFETCH_QUEUE: usize = 32;

#[derive(Clone, Copy)]
pub(crate) struct Target {
    token: u64,
    op: Op,
    addr: u64,
    size: u8,
    data: u128,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Free,
    /// The line's own write-back must be acknowledged first.
    WaitPut,
    Sent,
    /// The grant is here, the victim's write buffer is not.
    Granted,
}

#[derive(Clone, Copy)]
pub(crate) struct Mshr {
    pub(crate) phase: Phase,
    pub(crate) line: u64,
    exclusive: bool,
    prefetch: bool,
    /// A shared copy evicted while its upgrade was under way rests in `data`.
    stash: bool,
    pc: u64,
    grant: State,
    txn: u16,
    pub(crate) data: Line,
    targets: [Target; TARGETS],
    count: u8,
}

#[derive(Clone, Copy)]
pub(crate) struct WriteBuffer {
    pub(crate) valid: bool,
    pub(crate) line: u64,
    pub(crate) data: Line,
}

#[derive(Clone, Copy)]
pub(crate) struct Reservation {
    pub(crate) line: u64,
    until: Tick,
}

/// Counters of one L1.
#[derive(Clone, Copy, Default, Debug)]
pub struct L1Stats {
    /// Accesses answered by the arrays.
    pub hits: u64,
    /// Accesses that opened an MSHR.
    pub misses: u64,
    /// Accesses that joined one.
    pub merged: u64,
    /// Accesses turned away for want of an MSHR or a target.
    pub refused: u64,
    /// Prefetches sent.
    pub prefetches: u64,
    /// Prefetched lines used.
    pub prefetch_hits: u64,
    /// Dirty lines written back.
    pub write_backs: u64,
    /// Snoops answered.
    pub snoops: u64,
}

pub(crate) struct L1 {
    pub(crate) array: Array,
    pub(crate) mshrs: Vec<Mshr>,
    pub(crate) used: u32,
    pub(crate) wbs: Vec<WriteBuffer>,
    guess: Guess,
    pending: VecDeque<u64>,
    pub(crate) reservation: Option<Reservation>,
    hit: Tick,
    response: Tick,
    pub(crate) stats: L1Stats,
}

impl L1 {
    pub(crate) fn new(c: &CacheConfig, period: Tick) -> L1 {
        let free = Mshr {
            phase: Phase::Free,
            line: 0,
            exclusive: false,
            prefetch: false,
            stash: false,
            pc: 0,
            grant: State::I,
            txn: 0,
            data: [0; 64],
            targets: [Target { token: 0, op: Op::Load, addr: 0, size: 0, data: 0 }; TARGETS],
            count: 0,
        };
        L1 {
            array: Array::new(c),
            mshrs: vec![free; c.mshrs as usize],
            used: 0,
            wbs: vec![WriteBuffer { valid: false, line: 0, data: [0; 64] }; c.write_buffers as usize],
            guess: Guess::new(c.prefetch),
            pending: VecDeque::with_capacity(PREFETCH_QUEUE),
            reservation: None,
            hit: Tick::from(c.hit_cycles) * period,
            response: Tick::from(c.response_cycles) * period,
            stats: L1Stats::default(),
        }
    }

    fn mshr_of(&self, line: u64) -> Option<usize> {
        if self.used == 0 {
            return None;
        }
        self.mshrs.iter().position(|m| m.phase != Phase::Free && m.line == line)
    }

    fn free_mshr(&self) -> Option<usize> {
        self.mshrs.iter().position(|m| m.phase == Phase::Free)
    }

    pub(crate) fn wb_of(&self, line: u64) -> Option<usize> {
        self.wbs.iter().position(|w| w.valid && w.line == line)
    }

    pub(crate) fn idle(&self) -> bool {
        self.used == 0 && self.wbs.iter().all(|w| !w.valid)
    }
}

fn read(line: &Line, addr: u64, size: u8) -> u128 {
    let at = (addr & 63) as usize;
    let bytes = &line[at..at + size as usize];
    match *bytes {
        [a] => u128::from(a),
        [a, b] => u128::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u128::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u128::from(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
        _ => {
            let mut out = [0; 16];
            out[..bytes.len()].copy_from_slice(bytes);
            u128::from_le_bytes(out)
        }
    }
}

impl System {
    /// Performs an access of at most 16 bytes inside one line, or starts it. A hit is answered here; a miss is
    /// [`Access::Pending`] and completes later under the request's token; [`Access::Refused`] asks for a retry once
    /// [`System::take_wakes`] names the port.
    #[inline]
    pub fn access(&mut self, r: &Request) -> Access {
        let line = r.addr & !63;
        let l1 = &mut self.l1[r.port as usize];
        if r.op == Op::Load
            && let Some(index) = l1.array.find(line)
        {
            debug_assert!((r.addr & 63) + u64::from(r.size) <= 64, "an access crosses a line");
            let value = read(l1.array.data(index), r.addr, r.size);
            let first = l1.array.touch(index);
            l1.stats.hits += 1;
            let ready = self.now + l1.hit;
            if let Some(oracle) = &mut self.oracle {
                oracle.bound(self.now, r.port, r.addr, r.size, value);
            }
            if first {
                self.observe(r, true);
            }
            return Access::Done { value, ready };
        }
        self.access_slow(r, line)
    }

    fn access_slow(&mut self, r: &Request, line: u64) -> Access {
        if !self.memory.holds(line, 64) || (r.addr & 63) + u64::from(r.size) > 64 || r.size > 16 {
            return Access::Fault;
        }
        let port = r.port as usize;
        let needs = r.op.needs_exclusive();
        if let Some(index) = self.l1[port].array.find(line) {
            let state = self.l1[port].array.state(index);
            if !r.op.is_cbo() && (!needs || state >= State::E) {
                let first = self.l1[port].array.touch(index);
                let value = self.perform(port, index, r.op, r.addr, r.size, r.data);
                self.l1[port].stats.hits += 1;
                if first {
                    self.observe(r, true);
                }
                return Access::Done { value, ready: self.now + self.l1[port].hit };
            }
        }
        // A store-conditional without its reservation fails at once; with it, the line is here unless it was lost.
        if r.op == Op::StoreConditional && self.l1[port].reservation.is_none_or(|v| v.line != line) {
            return Access::Done { value: 1, ready: self.now + self.l1[port].hit };
        }
        let target = Target { token: r.token, op: r.op, addr: r.addr, size: r.size, data: r.data };
        if let Some(m) = self.l1[port].mshr_of(line) {
            let l1 = &mut self.l1[port];
            let mshr = &mut l1.mshrs[m];
            if mshr.count as usize == TARGETS || r.op.is_cbo() || (mshr.count > 0 && mshr.targets[0].op.is_cbo()) {
                l1.stats.refused += 1;
                return Access::Refused;
            }
            if r.op.is_prefetch() {
                return Access::Done { value: 0, ready: self.now };
            }
            mshr.targets[mshr.count as usize] = target;
            mshr.count += 1;
            l1.stats.merged += 1;
            if std::mem::replace(&mut l1.mshrs[m].prefetch, false) {
                self.l1[port].stats.prefetch_hits += 1;
                self.observe(r, true);
            }
            return Access::Pending;
        }
        let Some(m) = self.l1[port].free_mshr() else {
            self.l1[port].stats.refused += 1;
            return Access::Refused;
        };
        self.l1[port].stats.misses += 1;
        self.open(port, m, line, needs, r.op.is_prefetch(), r.pc);
        if !r.op.is_prefetch() {
            let mshr = &mut self.l1[port].mshrs[m];
            mshr.targets[0] = target;
            mshr.count = 1;
        }
        self.request(port, m);
        if !r.op.is_cbo() {
            self.observe(r, true);
        }
        if r.op.is_prefetch() { Access::Done { value: 0, ready: self.now } } else { Access::Pending }
    }

    fn open(&mut self, port: usize, m: usize, line: u64, exclusive: bool, prefetch: bool, pc: u64) {
        let l1 = &mut self.l1[port];
        l1.used += 1;
        let mshr = &mut l1.mshrs[m];
        *mshr = Mshr { phase: Phase::Sent, line, exclusive, prefetch, stash: false, pc, count: 0, ..*mshr };
    }

    /// Sends the MSHR's request, or waits for the line's own write-back.
    fn request(&mut self, port: usize, m: usize) {
        let l1 = &mut self.l1[port];
        let mshr = &l1.mshrs[m];
        if l1.wb_of(mshr.line).is_some() && !self.mutation.is(Mutation::RequestOvertakesPut) {
            l1.mshrs[m].phase = Phase::WaitPut;
            return;
        }
        let kind = match mshr.targets[0].op {
            Op::Clean if mshr.count > 0 => Kind::Clean,
            Op::Flush if mshr.count > 0 => Kind::Flush,
            _ if mshr.exclusive => Kind::GetM,
            _ => Kind::GetS,
        };
        let mut packet = Packet::new(kind, mshr.line, port as u8, self.home_port);
        packet.slot = m as u16;
        packet.pc = mshr.pc;
        packet.prefetch = mshr.prefetch;
        packet.keeps = l1.array.find(mshr.line).is_some() || mshr.stash;
        l1.mshrs[m].phase = Phase::Sent;
        self.cover(Vc::Request, kind, State::I);
        let at = self.now + self.l1[port].hit;
        self.send_inner_at(at, packet);
    }

    fn observe(&mut self, r: &Request, miss: bool) {
        let port = r.port as usize;
        let mut out = Proposals::default();
        self.l1[port].guess.observe(Seen { pc: r.pc, addr: r.addr, miss }, &mut out);
        for &line in out.lines() {
            let l1 = &mut self.l1[port];
            if l1.pending.len() == PREFETCH_QUEUE {
                l1.pending.pop_front();
            }
            if !l1.pending.contains(&line) {
                l1.pending.push_back(line);
            }
        }
        self.issue_prefetches(port);
    }

    /// Sends queued prefetches while an MSHR stays free for the program.
    fn issue_prefetches(&mut self, port: usize) {
        while (self.l1[port].used as usize) + 1 < self.l1[port].mshrs.len() {
            let Some(line) = self.l1[port].pending.pop_front() else { return };
            let l1 = &mut self.l1[port];
            let held = l1.array.find(line).is_some() || l1.mshr_of(line).is_some() || l1.wb_of(line).is_some();
            if held || !self.memory.holds(line, 64) {
                continue;
            }
            let Some(m) = l1.free_mshr() else { return };
            l1.stats.prefetches += 1;
            self.open(port, m, line, false, true, 0);
            self.request(port, m);
        }
    }

    /// Does `op` on a held line; the value is the load's, the old one of an AMO, or 1 for a failed conditional store.
    fn perform(&mut self, port: usize, index: usize, op: Op, addr: u64, size: u8, data: u128) -> u128 {
        let at = (addr & 63) as usize;
        let l1 = &mut self.l1[port];
        let old = read(l1.array.data(index), addr, size);
        let line = addr & !63;
        let reads = matches!(op, Op::Load | Op::LoadReserved | Op::Amo(_));
        if reads && let Some(oracle) = &mut self.oracle {
            oracle.bound(self.now, port as u8, addr, size, old);
        }
        let new = match op {
            Op::Store => data,
            Op::Amo(amo) => amo.apply(old as u64, data as u64, size).into(),
            Op::StoreConditional => {
                let held = l1.reservation.take().is_some_and(|v| v.line == line);
                if !held {
                    return 1;
                }
                if let Some(oracle) = &mut self.oracle {
                    oracle.paired(self.now, port as u8, addr);
                }
                data
            }
            Op::Zero => {
                let whole = l1.array.data_mut(index);
                *whole = [0; 64];
                l1.array.set_state(index, State::M);
                if let Some(oracle) = &mut self.oracle {
                    oracle.stored(port as u8, line, &[0; 64]);
                }
                return 0;
            }
            Op::LoadReserved => {
                let until = self.now + Tick::from(self.config.reservation_cycles) * self.config.period;
                l1.reservation = Some(Reservation { line, until });
                if let Some(oracle) = &mut self.oracle {
                    oracle.reserve(port as u8, addr);
                }
                return old;
            }
            Op::Load | Op::PrefetchRead | Op::PrefetchWrite | Op::Clean | Op::Flush => return old,
        };
        let bytes = new.to_le_bytes();
        l1.array.data_mut(index)[at..at + size as usize].copy_from_slice(&bytes[..size as usize]);
        l1.array.set_state(index, State::M);
        if let Some(oracle) = &mut self.oracle {
            oracle.stored(port as u8, addr, &bytes[..size as usize]);
        }
        if matches!(op, Op::Amo(_)) { old } else { 0 }
    }

    /// A response from the home.
    pub(crate) fn l1_response(&mut self, p: Packet) {
        let port = p.dst as usize;
        match p.kind {
            Kind::Grant => {
                let l1 = &mut self.l1[port];
                let m = p.slot as usize;
                assert!(l1.mshrs[m].phase == Phase::Sent && l1.mshrs[m].line == p.line, "a grant nobody asked for");
                if p.has_data {
                    l1.mshrs[m].data = p.data;
                } else if let Some(index) = l1.array.find(p.line) {
                    l1.mshrs[m].data = *l1.array.data(index);
                } else {
                    assert!(l1.mshrs[m].stash, "a grant without data found no copy");
                }
                l1.mshrs[m].phase = Phase::Granted;
                l1.mshrs[m].grant = p.grant;
                l1.mshrs[m].txn = p.txn;
                self.cover(Vc::Response, Kind::Grant, p.grant);
                self.install(port, m);
            }
            Kind::PutAck => {
                self.l1[port].wbs[p.slot as usize].valid = false;
                if let Some(m) = self.l1[port].mshrs.iter().position(|m| m.phase == Phase::WaitPut && m.line == p.line)
                {
                    self.request(port, m);
                }
                for m in 0..self.l1[port].mshrs.len() {
                    if self.l1[port].mshrs[m].phase == Phase::Granted {
                        self.install(port, m);
                    }
                }
            }
            Kind::CboDone => {
                let mshr = self.l1[port].mshrs[p.slot as usize];
                for target in &mshr.targets[..mshr.count as usize] {
                    self.complete(port, target.token, 0);
                }
                self.close(port, p.slot as usize);
            }
            other => unreachable!("an L1 got {other:?} as a response"),
        }
    }

    fn complete(&mut self, port: usize, token: u64, value: u128) {
        let ready = self.now + self.l1[port].response;
        self.completions[port].push(Completion { token, value, ready });
        self.wakes |= 1 << port;
    }

    fn close(&mut self, port: usize, m: usize) {
        self.l1[port].mshrs[m].phase = Phase::Free;
        self.l1[port].used -= 1;
        self.wakes |= 1 << port;
        self.issue_prefetches(port);
    }

    /// Puts a granted line into the array, making room first; waits if the write buffers are full.
    fn install(&mut self, port: usize, m: usize) {
        let mshr = self.l1[port].mshrs[m];
        let l1 = &mut self.l1[port];
        let index = match l1.array.find(mshr.line) {
            Some(index) => index,
            None => {
                let index = l1.array.place(mshr.line, |_| true).expect("every way is allowed");
                if l1.array.line_at(index).is_some() && !self.evict(port, index) {
                    return;
                }
                index
            }
        };
        let l1 = &mut self.l1[port];
        l1.array.fill(index, mshr.line, mshr.grant, &mshr.data, mshr.prefetch);
        l1.mshrs[m].stash = false;
        let mut ack = Packet::new(Kind::GrantAck, mshr.line, port as u8, self.home_port);
        ack.txn = mshr.txn;
        self.send_inner_at(self.now, ack);
        let mut done = 0;
        for target in &mshr.targets[..mshr.count as usize] {
            if target.op.needs_exclusive() && self.l1[port].array.state(index) < State::E {
                break;
            }
            done += 1;
            if self.mutation.is(Mutation::LostTarget) && done == 3 {
                continue;
            }
            let value = self.perform(port, index, target.op, target.addr, target.size, target.data);
            self.complete(port, target.token, value);
        }
        if done == mshr.count as usize {
            self.close(port, m);
            return;
        }
        // Stores joined a shared fill: ask again, for the whole line's ownership.
        let again = &mut self.l1[port].mshrs[m];
        again.targets.copy_within(done..mshr.count as usize, 0);
        again.count -= done as u8;
        again.exclusive = true;
        self.request(port, m);
    }

    fn evict(&mut self, port: usize, index: usize) -> bool {
        let l1 = &mut self.l1[port];
        let line = l1.array.line_at(index).expect("a victim is held");
        let state = l1.array.state(index);
        if state == State::M && !self.mutation.is(Mutation::DropDirtyVictim) {
            let Some(w) = l1.wbs.iter().position(|w| !w.valid) else { return false };
            l1.wbs[w] = WriteBuffer { valid: true, line, data: *l1.array.data(index) };
            l1.stats.write_backs += 1;
            let mut put = Packet::new(Kind::Put, line, port as u8, self.home_port).with_data(l1.array.data(index));
            put.slot = w as u16;
            self.send_inner_at(self.now, put);
        } else if let Some(m) = l1.mshr_of(line) {
            l1.mshrs[m].data = *l1.array.data(index);
            l1.mshrs[m].stash = true;
        }
        self.cover(Vc::WriteBack, Kind::Put, state);
        self.lost(port, line);
        self.l1[port].array.drop_line(index);
        true
    }

    /// The line can no longer be watched: reservations end, and a core that asked hears of it.
    fn lost(&mut self, port: usize, line: u64) {
        let l1 = &mut self.l1[port];
        if l1.reservation.is_some_and(|v| v.line == line) && !self.mutation.is(Mutation::ReservationKept) {
            l1.reservation = None;
        }
        if self.notices_wanted >> port & 1 == 1 {
            self.notices[port].push(line);
            self.wakes |= 1 << port;
        }
    }

    /// Ends the port's reservation (a trap, a context switch, `MCLAZY`).
    pub fn clear_reservation(&mut self, port: u8) {
        self.l1[port as usize].reservation = None;
    }

    /// A snoop from the home; put off while a fresh reservation holds its line.
    pub(crate) fn l1_snoop(&mut self, slot: u32) {
        let p = self.packets[slot];
        let port = p.dst as usize;
        if let Some(v) = self.l1[port].reservation
            && v.line == p.line
            && v.until > self.now
            && self.l1[port].array.find(p.line).is_some()
        {
            self.events.push(v.until, Event::Snoop(slot));
            return;
        }
        self.packets.remove(slot);
        self.release_inner(port, Vc::Snoop);
        self.l1[port].stats.snoops += 1;
        let mut ack = Packet::new(Kind::SnoopAck, p.line, p.dst, self.home_port);
        ack.txn = p.txn;
        let found = self.l1[port].array.find(p.line);
        let state = found.map_or(State::I, |i| self.l1[port].array.state(i));
        if let Some(index) = found {
            if state == State::M && !self.mutation.is(Mutation::SnoopForgetsData) {
                ack = ack.with_data(self.l1[port].array.data(index));
            }
            if p.kind == Kind::SnoopShare {
                self.l1[port].array.set_state(index, State::S);
                ack.keeps = true;
            } else if !self.mutation.is(Mutation::SnoopIgnored) {
                self.lost(port, p.line);
                self.l1[port].array.drop_line(index);
            }
        } else if let Some(w) = self.l1[port].wb_of(p.line) {
            ack = ack.with_data(&self.l1[port].wbs[w].data);
        } else if let Some(m) = self.l1[port].mshr_of(p.line)
            && p.kind == Kind::SnoopInvalidate
        {
            self.l1[port].mshrs[m].stash = false;
        }
        self.cover(Vc::Snoop, p.kind, state);
        let at = self.now + self.l1[port].hit;
        self.send_inner_at(at, ack);
    }
}

impl AmoOp {
    /// What the memory holds afterwards, for 4 or 8 bytes.
    pub fn apply(self, old: u64, operand: u64, size: u8) -> u64 {
        let narrow = size == 4;
        let sign = |v: u64| if narrow { i64::from(v as u32 as i32) } else { v as i64 };
        let zero = |v: u64| if narrow { u64::from(v as u32) } else { v };
        match self {
            AmoOp::Swap => operand,
            AmoOp::Add => old.wrapping_add(operand),
            AmoOp::And => old & operand,
            AmoOp::Or => old | operand,
            AmoOp::Xor => old ^ operand,
            AmoOp::Min => sign(old).min(sign(operand)) as u64,
            AmoOp::Max => sign(old).max(sign(operand)) as u64,
            AmoOp::MinU => zero(old).min(zero(operand)),
            AmoOp::MaxU => zero(old).max(zero(operand)),
        }
    }
}
