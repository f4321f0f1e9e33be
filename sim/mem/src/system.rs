//! The one structure that owns every part of the memory, and the loop that runs its events. Parts name each other by
//! index; nothing is shared, nothing is allocated per packet, and every call is static.

use crate::backing::Backing;
use crate::config::Config;
use crate::dram::{Channel, Command, Issued, Map};
use crate::home::Home;
use crate::l1::L1;
use crate::mutation::Mutation;
use crate::oracle::{Oracle, Violation};
use crate::packet::{Kind, Packet, Slab, State, Vc};
use crate::queue::{Calendar, Tick};
use crate::xbar::Xbar;

/// Atomic read-modify-write operations (RISC-V "A").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are the instructions'")]
pub enum AmoOp {
    Swap,
    Add,
    And,
    Or,
    Xor,
    Min,
    Max,
    MinU,
    MaxU,
}

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Reads.
    Load,
    /// Writes; globally visible when it completes.
    Store,
    /// Reads and reserves the line.
    LoadReserved,
    /// Writes if the reservation holds; the value is 0 for success, 1 for failure.
    StoreConditional,
    /// Reads and writes in one step; the value is what was there.
    Amo(AmoOp),
    /// Zeroes the line (`cbo.zero`).
    Zero,
    /// Writes the line to memory if dirty anywhere (`cbo.clean`).
    Clean,
    /// The same, and drops it from every cache (`cbo.flush`).
    Flush,
    /// Fetches the line for reading, if an MSHR is free.
    PrefetchRead,
    /// Fetches the line for writing, if an MSHR is free.
    PrefetchWrite,
}

impl Op {
    pub(crate) fn needs_exclusive(self) -> bool {
        matches!(self, Op::Store | Op::LoadReserved | Op::StoreConditional | Op::Amo(_) | Op::Zero | Op::PrefetchWrite)
    }

    pub(crate) fn is_cbo(self) -> bool {
        matches!(self, Op::Clean | Op::Flush)
    }

    pub(crate) fn is_prefetch(self) -> bool {
        matches!(self, Op::PrefetchRead | Op::PrefetchWrite)
    }
}

/// One access of up to 16 bytes within a line.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Which L1: [`System::data_port`], [`System::fetch_port`] or [`System::agent_port`].
    pub port: u8,
    /// What to do.
    pub op: Op,
    /// Physical byte address.
    pub addr: u64,
    /// Bytes.
    pub size: u8,
    /// What a store writes, or an AMO's operand; little-endian.
    pub data: u128,
    /// Program counter, for the prefetchers; 0 for none.
    pub pc: u64,
    /// Returned with the completion.
    pub token: u64,
}

/// The immediate outcome of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Done: the value, usable at the tick.
    Done {
        /// What was read, zero-extended.
        value: u128,
        /// When a dependent may use it.
        ready: Tick,
    },
    /// A [`Completion`] with the request's token will come.
    Pending,
    /// No MSHR or no room in it: try again once the port is woken.
    Refused,
    /// No memory there, or the access crosses a line.
    Fault,
}

/// A miss that ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's.
    pub token: u64,
    /// What was read, zero-extended.
    pub value: u128,
    /// When a dependent may use it.
    pub ready: Tick,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    PumpInner(u8),
    PumpOuter(u8),
    Inner(u32),
    Outer(u32),
    SendInner(u32),
    SendOuter(u32),
    Home(u32),
    HomeRetry,
    Snoop(u32),
    Dram(u8),
}

/// How often each (message, state) pair was met: rows are kinds of messages, columns I, S, E, M.
pub type Coverage = [[u64; 4]; 16];

/// Caches, interconnect and DRAM of one machine.
pub struct System {
    pub(crate) config: Config,
    pub(crate) now: Tick,
    pub(crate) events: Calendar<Event>,
    pub(crate) packets: Slab,
    pub(crate) l1: Vec<L1>,
    pub(crate) home: Home,
    pub(crate) home_port: u8,
    /// Ports that can own lines: every L1 but the instruction caches.
    pub(crate) exclusive_ports: u64,
    inner: Xbar,
    outer: Xbar,
    pub(crate) channels: Vec<Channel>,
    armed: Vec<Tick>,
    pub(crate) map: Map,
    pub(crate) memory: Backing,
    pub(crate) oracle: Option<Oracle>,
    pub(crate) completions: Vec<Vec<Completion>>,
    pub(crate) notices: Vec<Vec<u64>>,
    pub(crate) notices_wanted: u64,
    pub(crate) wakes: u64,
    pub(crate) mutation: Mutation,
    coverage: Coverage,
    lost_credits: u32,
    /// Events processed.
    pub events_run: u64,
}

impl System {
    /// A cold machine; the error says what in `config` makes no sense. `check` adds the oracle.
    pub fn new(config: &Config, check: bool) -> Result<System, String> {
        System::with_mutation(config, check, Mutation::None)
    }

    /// A machine with a planted error, for testing the testers.
    pub fn with_mutation(config: &Config, check: bool, mutation: Mutation) -> Result<System, String> {
        config.check()?;
        let ports = (config.cores * 2 + config.agents) as usize;
        let map = Map::new(&config.dram, config.base);
        let mut outer = config.outer;
        // A credit of the outer crossbar is a place in a controller's queue.
        outer.credits[Vc::Request as usize] = config.dram.read_queue as u16;
        outer.credits[Vc::WriteBack as usize] = config.dram.write_queue as u16;
        let agent = crate::config::CacheConfig {
            size: 4 * 4 * 64,
            ways: 4,
            prefetch: crate::config::Prefetch::None,
            ..config.l1d
        };
        let l1 = (0..ports)
            .map(|p| {
                let c = if p >= config.cores as usize * 2 {
                    &agent
                } else if p % 2 == 0 {
                    &config.l1d
                } else {
                    &config.l1i
                };
                L1::new(c, config.period)
            })
            .collect();
        let fetch_ports = (0..config.cores).fold(0u64, |mask, c| mask | 2 << (2 * c));
        let mut system = System {
            config: *config,
            now: 0,
            events: Calendar::new(),
            packets: Slab::new(),
            l1,
            home: Home::new(config),
            home_port: ports as u8,
            exclusive_ports: !fetch_ports,
            inner: Xbar::new(config.inner, ports + 1),
            outer: Xbar::new(outer, 1 + config.dram.channels as usize),
            channels: (0..config.dram.channels).map(|_| Channel::new(&config.dram, map, mutation)).collect(),
            armed: vec![Tick::MAX; config.dram.channels as usize],
            map,
            memory: Backing::new(config.base, config.size),
            oracle: check.then(|| Oracle::new(config.base, config.size, ports)),
            completions: (0..ports).map(|_| Vec::with_capacity(64)).collect(),
            notices: (0..ports).map(|_| Vec::with_capacity(64)).collect(),
            notices_wanted: 0,
            wakes: 0,
            mutation,
            coverage: Coverage::default(),
            lost_credits: 0,
            events_run: 0,
        };
        for ch in 0..config.dram.channels as usize {
            system.arm_dram(ch, 0);
        }
        Ok(system)
    }

    /// The data cache of a core.
    pub fn data_port(&self, core: u32) -> u8 {
        (core * 2) as u8
    }

    /// The instruction cache of a core.
    pub fn fetch_port(&self, core: u32) -> u8 {
        (core * 2 + 1) as u8
    }

    /// The buffer of a coherent agent.
    pub fn agent_port(&self, agent: u32) -> u8 {
        (self.config.cores * 2 + agent) as u8
    }

    /// What this machine was built from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The present.
    pub fn now(&self) -> Tick {
        self.now
    }

    /// The tick of the next event, refreshes included.
    #[inline]
    pub fn next_event(&self) -> Option<Tick> {
        self.events.next_tick()
    }

    /// Ports with completions, notices or freed resources since the last call, one bit each.
    #[inline]
    pub fn take_wakes(&mut self) -> u64 {
        std::mem::take(&mut self.wakes)
    }

    /// Moves the port's completions to the end of `out`.
    pub fn take_completions(&mut self, port: u8, out: &mut Vec<Completion>) {
        out.append(&mut self.completions[port as usize]);
    }

    /// From now on, the port hears of every line its cache loses.
    pub fn want_notices(&mut self, port: u8) {
        self.notices_wanted |= 1 << port;
    }

    /// Moves the lines the port's cache lost to the end of `out`.
    pub fn take_notices(&mut self, port: u8, out: &mut Vec<u64>) {
        out.append(&mut self.notices[port as usize]);
    }

    /// Loads that bound another value than the oracle's; empty without an oracle.
    pub fn violations(&self) -> &[Violation] {
        self.oracle.as_ref().map_or(&[], |o| &o.violations)
    }

    /// Loads the oracle has checked.
    pub fn checked(&self) -> u64 {
        self.oracle.as_ref().map_or(0, |o| o.checked)
    }

    /// Transitions met so far.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Keeps every DRAM command from now on.
    pub fn trace_dram(&mut self) {
        for channel in &mut self.channels {
            channel.trace = Some(Vec::new());
        }
    }

    /// The commands of a channel since [`System::trace_dram`].
    pub fn dram_trace(&self, channel: usize) -> &[Command] {
        self.channels[channel].trace.as_deref().unwrap_or(&[])
    }

    /// Inverts one bit of a line held in an L1's data array; false if it is not held there. For experiments.
    pub fn flip_bit(&mut self, port: u8, addr: u64, bit: u8) -> bool {
        let array = &mut self.l1[port as usize].array;
        let Some(index) = array.find(addr & !63) else { return false };
        array.data_mut(index)[(addr & 63) as usize] ^= 1 << (bit % 8);
        true
    }

    /// The state of a line in an L1.
    pub fn state(&self, port: u8, addr: u64) -> State {
        let array = &self.l1[port as usize].array;
        array.find(addr & !63).map_or(State::I, |i| array.state(i))
    }

    #[inline]
    pub(crate) fn cover(&mut self, _vc: Vc, kind: Kind, state: State) {
        self.coverage[kind as usize][state as usize] += 1;
    }

    /// Runs every event up to and including `until`, which becomes the present.
    pub fn run_until(&mut self, until: Tick) {
        while let Some((tick, event)) = self.events.pop_until(until) {
            self.now = tick;
            self.events_run += 1;
            self.dispatch(event);
        }
        self.now = self.now.max(until);
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::PumpInner(port) => {
                let (sent, again) = self.inner.pump(self.now, port as usize, &self.packets);
                if let Some((slot, arrival)) = sent {
                    self.events.push(arrival, Event::Inner(slot));
                }
                if let Some(at) = again {
                    self.events.push(at, Event::PumpInner(port));
                }
            }
            Event::PumpOuter(port) => {
                let (sent, again) = self.outer.pump(self.now, port as usize, &self.packets);
                if let Some((slot, arrival)) = sent {
                    self.events.push(arrival, Event::Outer(slot));
                }
                if let Some(at) = again {
                    self.events.push(at, Event::PumpOuter(port));
                }
            }
            Event::Inner(slot) => self.deliver_inner(slot),
            Event::Outer(slot) => self.deliver_outer(slot),
            Event::SendInner(slot) => self.send_inner(slot),
            Event::SendOuter(slot) => self.send_outer(slot),
            Event::Home(slot) => self.home_step(slot),
            Event::HomeRetry => self.home_retry(),
            Event::Snoop(slot) => self.l1_snoop(slot),
            Event::Dram(ch) => self.dram_step(ch as usize),
        }
    }

    fn deliver_inner(&mut self, slot: u32) {
        let p = self.packets[slot];
        match p.kind.vc() {
            Vc::Snoop => self.l1_snoop(slot),
            Vc::Request | Vc::WriteBack => self.home_arrive(slot),
            Vc::Response => {
                self.packets.remove(slot);
                self.release_inner(p.dst as usize, Vc::Response);
                match p.kind {
                    Kind::SnoopAck => self.home_snoop_ack(&p),
                    Kind::GrantAck => self.home_grant_ack(&p),
                    _ => self.l1_response(p),
                }
            }
        }
    }

    fn deliver_outer(&mut self, slot: u32) {
        let p = self.packets[slot];
        match p.kind {
            Kind::MemData | Kind::MemAck => {
                self.packets.remove(slot);
                self.release_outer(0, Vc::Response);
                if p.kind == Kind::MemData { self.home_mem_data(&p) } else { self.home_mem_ack(&p) }
            }
            Kind::MemRead => self.controller_read(slot),
            _ => self.controller_write(slot),
        }
    }

    fn clock(&self, tick: Tick) -> u64 {
        tick.div_ceil(self.config.dram.timing.tck)
    }

    fn controller_read(&mut self, slot: u32) {
        let p = self.packets[slot];
        let ch = p.dst as usize - 1;
        let queued = self.channels[ch].queued_write(p.line);
        if let Some(write) = queued
            && !self.mutation.is(Mutation::DramSkipsForward)
        {
            self.channels[ch].stats.forwarded += 1;
            let data = self.packets[write].data;
            self.cover(Vc::Request, Kind::MemRead, State::M);
            self.answer_read(slot, data, self.now + self.config.dram.frontend);
            return;
        }
        let at = self.clock(self.now + self.config.dram.frontend);
        self.channels[ch].push_read(p.line, slot, at);
        self.arm_dram(ch, at);
    }

    fn answer_read(&mut self, slot: u32, data: [u8; 64], at: Tick) {
        let p = self.packets[slot];
        self.packets.remove(slot);
        self.release_outer(p.dst as usize, Vc::Request);
        let mut answer = Packet::new(Kind::MemData, p.line, p.dst, 0).with_data(&data);
        answer.txn = p.txn;
        self.send_outer_at(at, answer);
    }

    fn controller_write(&mut self, slot: u32) {
        let p = self.packets[slot];
        let ch = p.dst as usize - 1;
        let mut ack = Packet::new(Kind::MemAck, p.line, p.dst, 0);
        ack.slot = p.slot;
        if let Some(write) = self.channels[ch].queued_write(p.line) {
            if !self.mutation.is(Mutation::DramDropsCoalesced) {
                self.packets[write].data = p.data;
            }
            self.channels[ch].stats.coalesced += 1;
            self.cover(Vc::WriteBack, Kind::MemWrite, State::E);
            self.packets.remove(slot);
            self.release_outer(p.dst as usize, Vc::WriteBack);
        } else {
            let at = self.clock(self.now + self.config.dram.frontend);
            self.channels[ch].push_write(p.line, slot, at);
            self.arm_dram(ch, at);
        }
        self.send_outer_at(self.now, ack);
    }

    /// Makes sure the channel steps at the clock or before.
    fn arm_dram(&mut self, ch: usize, clock: u64) {
        let Some(tick) = clock.checked_mul(self.config.dram.timing.tck) else { return };
        let tick = tick.max(self.now.next_multiple_of(self.config.dram.timing.tck));
        if tick < self.armed[ch] {
            self.armed[ch] = tick;
            self.events.push(tick, Event::Dram(ch as u8));
        }
    }

    fn dram_step(&mut self, ch: usize) {
        if self.now != self.armed[ch] {
            return; // an earlier step took its place
        }
        self.armed[ch] = Tick::MAX;
        let tck = self.config.dram.timing.tck;
        let (issued, next) = self.channels[ch].step(self.now / tck);
        match issued {
            Issued::Nothing | Issued::Row => {}
            Issued::Read(slot, end) => {
                let data = self.memory.line(self.packets[slot].line);
                self.answer_read(slot, data, end * tck + self.config.dram.backend);
            }
            Issued::Write(slot) => {
                let p = self.packets[slot];
                self.memory.write(p.line, &p.data);
                self.packets.remove(slot);
                self.release_outer(p.dst as usize, Vc::WriteBack);
            }
        }
        self.arm_dram(ch, next);
    }

    pub(crate) fn send_inner_at(&mut self, at: Tick, packet: Packet) {
        let slot = self.packets.insert(packet);
        if at > self.now {
            self.events.push(at, Event::SendInner(slot));
        } else {
            self.send_inner(slot);
        }
    }

    fn send_inner(&mut self, slot: u32) {
        let port = self.packets[slot].dst;
        if let Some(at) = self.inner.send(self.now, slot, &mut self.packets[slot]) {
            self.events.push(at, Event::PumpInner(port));
        }
    }

    pub(crate) fn send_outer_at(&mut self, at: Tick, packet: Packet) {
        let slot = self.packets.insert(packet);
        if at > self.now {
            self.events.push(at, Event::SendOuter(slot));
        } else {
            self.send_outer(slot);
        }
    }

    fn send_outer(&mut self, slot: u32) {
        let port = self.packets[slot].dst;
        if let Some(at) = self.outer.send(self.now, slot, &mut self.packets[slot]) {
            self.events.push(at, Event::PumpOuter(port));
        }
    }

    pub(crate) fn release_inner(&mut self, port: usize, vc: Vc) {
        if self.mutation.is(Mutation::CreditLost) && vc == Vc::Request {
            self.lost_credits += 1;
            if self.lost_credits.is_multiple_of(16) {
                return;
            }
        }
        if let Some(at) = self.inner.release(self.now, port, vc) {
            self.events.push(at, Event::PumpInner(port as u8));
        }
    }

    fn release_outer(&mut self, port: usize, vc: Vc) {
        if let Some(at) = self.outer.release(self.now, port, vc) {
            self.events.push(at, Event::PumpOuter(port as u8));
        }
    }

    /// Nothing is in flight but writes that rest in the controllers.
    pub fn idle(&self) -> bool {
        let resting: usize = self.channels.iter().map(|c| c.writes.len()).sum();
        self.packets.live() == resting && self.l1.iter().all(L1::idle) && self.home.idle()
    }

    /// Runs until nothing is in flight; an error if that takes more than 10 ms of simulated time.
    pub fn drain(&mut self) -> Result<(), String> {
        let limit = self.now + 10_000_000_000;
        while !self.idle() {
            let next = self.next_event().filter(|&t| t < limit);
            let Some(next) = next else {
                return Err(format!(
                    "memory is stuck at {} ps with {} packets in flight",
                    self.now,
                    self.packets.live()
                ));
            };
            self.run_until(next);
        }
        Ok(())
    }

    /// Stops the machine: drains it, writes every dirty line to DRAM and empties all caches, in no simulated time
    /// beyond the draining. Afterwards a functional core may work on [`System::backing`] alone.
    pub fn flush_all(&mut self) -> Result<(), String> {
        for channel in &mut self.channels {
            channel.flush = true;
        }
        let now = self.clock(self.now);
        for ch in 0..self.channels.len() {
            self.arm_dram(ch, now);
        }
        self.drain()?;
        while !self.channels.iter().all(Channel::idle) {
            let next = self.next_event().ok_or("the controllers are stuck")?;
            self.run_until(next);
        }
        for index in 0..self.home.array.len() {
            if let Some(line) = self.home.array.line_at(index) {
                if self.home.dirty(index) {
                    self.memory.write(line, self.home.array.data(index));
                }
                self.home.forget(index);
            }
        }
        for l1 in &mut self.l1 {
            for index in 0..l1.array.len() {
                if let Some(line) = l1.array.line_at(index) {
                    if l1.array.state(index) == State::M {
                        self.memory.write(line, l1.array.data(index));
                    }
                    l1.array.drop_line(index);
                }
            }
        }
        for channel in &mut self.channels {
            channel.flush = false;
        }
        Ok(())
    }

    /// The DRAM's bytes; complete only after [`System::flush_all`].
    pub fn backing(&self) -> &Backing {
        &self.memory
    }

    /// Whether the crossbars hold nothing and have all their credits back.
    pub fn credits_home(&self) -> bool {
        let writes_rest = self.channels.iter().any(|c| !c.writes.is_empty());
        self.inner.idle() && (writes_rest || self.outer.idle())
    }

    pub(crate) fn crossbars(&self) -> (&Xbar, &Xbar) {
        (&self.inner, &self.outer)
    }
}
