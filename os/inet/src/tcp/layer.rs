//! All connections of a stack: finding the one a segment belongs to, opening and closing, timers, listeners.

use super::control::{Options, Released, TcpInfo, scale_for};
use super::input::Verdict;
use super::listen::{self, Listener};
use super::output;
use super::{Cx, State, Tcb, TcpId, bit};
use crate::chain::Chain;
use crate::config::{Sink, TcpConfig};
use crate::demux::{Flow, Table};
use crate::error::Error;
use crate::event::{Events, ListenerId, Queued, Ready};
use crate::ip::{Ip, Out, pair_words};
use crate::random::Key;
use crate::time::Nanos;
use crate::wheel::Wheel;
use crate::wire::protocol;
use crate::wire::tcp::{Options as Wire, Seq, Tcp as Segment, flag};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use towpath_cbuf::Sga;

/// How old a connection in TIME-WAIT must be before its ports may be used to connect again (RFC 6191 section 2).
const REUSE_AGE: Nanos = Nanos::secs(1);

/// What a call brings along.
pub(crate) struct Env<'a, S> {
    pub(crate) now: Nanos,
    pub(crate) ip: &'a mut Ip,
    pub(crate) sink: &'a mut S,
    pub(crate) events: &'a mut Events,
}

struct Slot {
    generation: u32,
    tcb: Option<Box<Tcb>>,
}

struct Place {
    generation: u32,
    listener: Option<Listener>,
}

pub(crate) struct Tcp {
    slots: Vec<Slot>,
    free: Vec<u32>,
    table: Table,
    wheel: Wheel,
    listeners: Vec<Place>,
    ports: BTreeMap<u16, Vec<u32>>,
    key: Key,
    config: TcpConfig,
    blocked: Vec<TcpId>,
    fired: Vec<u32>,
    port_step: u32,
}

impl Tcp {
    pub(crate) fn new(config: &TcpConfig, seed: [u64; 4], now: Nanos) -> Tcp {
        Tcp {
            slots: Vec::new(),
            free: Vec::new(),
            table: Table::new((seed[0].rotate_left(21) ^ seed[2], seed[1].rotate_left(43) ^ seed[3])),
            wheel: Wheel::new(now),
            listeners: Vec::new(),
            ports: BTreeMap::new(),
            key: Key(seed[0], seed[1]),
            config: config.clone(),
            blocked: Vec::new(),
            fired: Vec::new(),
            port_step: seed[2] as u32,
        }
    }

    /// Lets `f` do something with a connection that exists.
    #[inline]
    fn with<S: Sink, R>(
        &mut self,
        env: &mut Env<'_, S>,
        index: u32,
        f: impl FnOnce(&mut Tcb, &mut Cx<'_, S>) -> R,
    ) -> Option<R> {
        let slot = self.slots.get_mut(index as usize)?;
        let id = TcpId { index, generation: slot.generation };
        let tcb = slot.tcb.as_mut()?;
        let mut cx = Cx {
            now: env.now,
            ip: env.ip,
            sink: env.sink,
            config: &self.config,
            wheel: &mut self.wheel,
            events: env.events,
            blocked: &mut self.blocked,
            id,
        };
        let result = f(tcb, &mut cx);
        if tcb.state == State::Closed {
            self.bury(env, index);
        }
        Some(result)
    }

    fn get(&self, id: TcpId) -> Result<&Tcb, Error> {
        let slot = self.slots.get(id.index as usize).filter(|s| s.generation == id.generation);
        slot.and_then(|s| s.tcb.as_deref()).filter(|t| !t.has(bit::ORPHAN)).ok_or(Error::NoSuchSocket)
    }

    #[inline]
    fn call<S: Sink, R>(
        &mut self,
        env: &mut Env<'_, S>,
        id: TcpId,
        f: impl FnOnce(&mut Tcb, &mut Cx<'_, S>) -> R,
    ) -> Result<R, Error> {
        self.get(id)?;
        self.with(env, id.index, f).ok_or(Error::NoSuchSocket)
    }

    #[inline]
    fn find(&self, flow: &Flow) -> Option<u32> {
        let hash = self.table.hash(flow);
        self.table.find(hash, |i| self.slots[i as usize].tcb.as_ref().is_some_and(|t| t.flow == *flow))
    }

    /// Takes a connection that is over out of the table, and frees it once nobody holds it.
    #[cold]
    fn bury<S: Sink>(&mut self, env: &mut Env<'_, S>, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(tcb) = &mut slot.tcb else { return };
        let id = TcpId { index, generation: slot.generation };
        if tcb.has(bit::LISTED) {
            tcb.clear(bit::LISTED);
            let hash = self.table.hash(&tcb.flow);
            self.table.remove(hash, index);
            self.wheel.remove(index);
        }
        if tcb.has(bit::EMBRYO) {
            let place = self.listeners.get_mut(tcb.listener as usize).and_then(|p| p.listener.as_mut());
            if let Some(listener) = place {
                let waiting = listener.ready.len();
                listener.ready.retain(|other| *other != id);
                if listener.ready.len() == waiting {
                    listener.half_open = listener.half_open.saturating_sub(1);
                }
            }
            tcb.set(bit::ORPHAN);
        }
        let _ = &env.now;
        if tcb.has(bit::ORPHAN) {
            slot.tcb = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
        }
    }

    fn add<S: Sink>(&mut self, env: &mut Env<'_, S>, flow: Flow, iss: Seq) -> Result<u32, Error> {
        let live = self.slots.len() - self.free.len();
        if live >= self.config.connections_max as usize {
            return Err(Error::TooManyConnections);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: 0, tcb: None });
                self.slots.len() as u32 - 1
            }
        };
        let id = TcpId { index, generation: self.slots[index as usize].generation };
        let clock = self.key.hash(&pair_words(flow.local, flow.remote, 1)) as u32;
        let mut cx = Cx {
            now: env.now,
            ip: env.ip,
            sink: env.sink,
            config: &self.config,
            wheel: &mut self.wheel,
            events: env.events,
            blocked: &mut self.blocked,
            id,
        };
        let mut tcb = Box::new(Tcb::new(&mut cx, flow, (iss, clock)));
        tcb.set(bit::LISTED);
        self.slots[index as usize].tcb = Some(tcb);
        let hash = self.table.hash(&flow);
        self.table.insert(hash, index);
        Ok(index)
    }

    /// RFC 6528: a clock of 4 us plus a keyed hash of the flow.
    fn first_seq(&self, flow: &Flow, now: Nanos) -> Seq {
        Seq((self.key.hash(&flow.words()) as u32).wrapping_add((now.0 / 4_000) as u32))
    }

    // Segments in.

    #[inline]
    pub(crate) fn ingest<S: Sink>(
        &mut self,
        env: &mut Env<'_, S>,
        (local, remote): (IpAddr, IpAddr),
        seg: &Segment,
        payload: Chain,
        ce: bool,
    ) {
        let flow = Flow { local, remote, local_port: seg.dst_port, remote_port: seg.src_port };
        let len = payload.len() as u32;
        let Some(index) = self.find(&flow) else {
            return self.on_stranger(env, &flow, seg, payload, ce);
        };
        match self.with(env, index, |tcb, cx| tcb.on_segment(cx, seg, payload, ce)) {
            Some(Verdict::Taken) | None => {}
            Some(other) => self.follow_up(env, index, &flow, seg, len, other),
        }
    }

    #[cold]
    fn follow_up<S: Sink>(
        &mut self,
        env: &mut Env<'_, S>,
        index: u32,
        flow: &Flow,
        seg: &Segment,
        len: u32,
        verdict: Verdict,
    ) {
        match verdict {
            Verdict::Taken => {}
            Verdict::Reset => self.send_reset(env, flow, seg, len),
            Verdict::Established => self.on_established(env, index),
            Verdict::Reopen => {
                if self.listener_for(flow).is_none() {
                    return;
                }
                let after = self.slots[index as usize].tcb.as_ref().map(|t| t.nxt);
                self.with(env, index, |tcb, cx| tcb.end(cx, None));
                let iss = self.first_seq(flow, env.now);
                // RFC 9293 section 3.10.7.4: the new numbers begin beyond the old ones.
                let iss = after.map_or(iss, |old| if old.before(iss) { iss } else { old.add(1 << 17) });
                self.on_syn(env, flow, seg, iss);
            }
        }
    }

    /// A connection became established: if it came from a listener, the program may accept it.
    fn on_established<S: Sink>(&mut self, env: &mut Env<'_, S>, index: u32) {
        let slot = &self.slots[index as usize];
        let Some(tcb) = slot.tcb.as_ref().filter(|t| t.has(bit::EMBRYO)) else { return };
        let id = TcpId { index, generation: slot.generation };
        let at = tcb.listener;
        let Some(place) = self.listeners.get_mut(at as usize) else { return };
        let Some(listener) = &mut place.listener else { return };
        listener.half_open = listener.half_open.saturating_sub(1);
        listener.ready.push_back(id);
        env.events.push_back(Queued::Accept(ListenerId { index: at, generation: place.generation }));
    }

    fn listener_for(&self, flow: &Flow) -> Option<u32> {
        let all = self.ports.get(&flow.local_port)?;
        let takes = |i: &&u32| self.listeners[**i as usize].listener.as_ref().is_some_and(|l| l.takes(flow.local));
        let exact =
            |i: &&u32| self.listeners[**i as usize].listener.as_ref().is_some_and(|l| l.address == Some(flow.local));
        all.iter().find(exact).or_else(|| all.iter().find(takes)).copied()
    }

    /// A segment of no connection: a SYN for a listener, a returning cookie, or a mistake.
    #[cold]
    fn on_stranger<S: Sink>(&mut self, env: &mut Env<'_, S>, flow: &Flow, seg: &Segment, payload: Chain, ce: bool) {
        let len = payload.len() as u32;
        if seg.has(flag::RST) {
            return;
        }
        let kind = seg.flags & (flag::SYN | flag::ACK);
        if let Some(at) = self.listener_for(flow) {
            if kind == flag::SYN {
                let iss = self.first_seq(flow, env.now);
                return self.on_syn(env, flow, seg, iss);
            }
            let listener = self.listeners[at as usize].listener.as_ref();
            if kind == flag::ACK
                && listener.is_some_and(|l| l.expects_cookies(env.now) && !l.is_full())
                && let Some(back) = listen::taste(&self.key, flow, seg, env.now)
            {
                return self.on_cookie(env, flow, seg, payload, (at, back, ce));
            }
        }
        self.send_reset(env, flow, seg, len);
    }

    fn on_syn<S: Sink>(&mut self, env: &mut Env<'_, S>, flow: &Flow, seg: &Segment, iss: Seq) {
        let Some(at) = self.listener_for(flow) else { return };
        // RFC 9293 section 3.9.2.3: never from or to groups; a SYN with FIN is nobody's.
        if flow.remote.is_multicast() || flow.remote.is_unspecified() || seg.has(flag::FIN) {
            return;
        }
        let Some(listener) = &mut self.listeners[at as usize].listener else { return };
        if listener.is_full() {
            env.ip.stats.overflows += 1;
            return;
        }
        if listener.half_open >= listener.backlog {
            listener.cookies_at = Some(env.now);
            return self.send_cookie(env, flow, seg);
        }
        listener.half_open += 1;
        let Ok(index) = self.add(env, *flow, iss) else {
            if let Some(listener) = &mut self.listeners[at as usize].listener {
                listener.half_open -= 1;
            }
            env.ip.stats.overflows += 1;
            return;
        };
        self.with(env, index, |tcb, cx| {
            tcb.listener = at;
            tcb.set(bit::EMBRYO);
            tcb.accept_syn(cx, seg);
        });
    }

    fn send_cookie<S: Sink>(&mut self, env: &mut Env<'_, S>, flow: &Flow, seg: &Segment) {
        let config = &self.config;
        let iss = listen::bake(&self.key, flow, seg, env.now);
        let clock =
            (self.key.hash(&pair_words(flow.local, flow.remote, 1)) as u32).wrapping_add(env.now.as_millis() as u32);
        let mut options =
            Wire { mss: Some(super::control::own_mss(env.ip.mtu, flow.remote.is_ipv4())), ..Wire::default() };
        if let (Some((value, _)), true) = (seg.options.timestamps, config.timestamps) {
            options.timestamps = Some((listen::stamp(clock, seg, config.scaling, config.sack, false), value));
            options.scale = (config.scaling && seg.options.scale.is_some()).then(|| scale_for(config));
            options.sack_permitted = config.sack && seg.options.sack_permitted;
        }
        let window = (config.receive_buffer.0 / 2).min(0xffff) as u16;
        let header = Segment {
            src_port: flow.local_port,
            dst_port: flow.remote_port,
            seq: iss,
            ack: seg.seq.add(1),
            flags: flag::SYN | flag::ACK,
            window,
            options,
        };
        env.ip.stats.cookies_sent += 1;
        let out = out(flow);
        output::send(env.ip, (env.now, env.sink), &out, &header, (&[], 0), None, None);
    }

    /// Opens the connection a cookie remembers, and hands it the segment that brought the cookie.
    fn on_cookie<S: Sink>(
        &mut self,
        env: &mut Env<'_, S>,
        flow: &Flow,
        seg: &Segment,
        payload: Chain,
        (at, back, ce): (u32, listen::Remembered, bool),
    ) {
        let iss = Seq(seg.ack.0.wrapping_sub(1));
        let Ok(index) = self.add(env, *flow, iss) else { return };
        env.ip.stats.cookies_taken += 1;
        if let Some(listener) = &mut self.listeners[at as usize].listener {
            listener.half_open += 1;
        }
        let syn = Segment {
            seq: Seq(seg.seq.0.wrapping_sub(1)),
            flags: flag::SYN,
            options: back.options,
            window: seg.window,
            ..*seg
        };
        let verdict = self.with(env, index, |tcb, cx| {
            tcb.listener = at;
            tcb.set(bit::EMBRYO);
            tcb.recall_syn(cx, &syn);
            tcb.on_segment(cx, seg, payload, ce)
        });
        if let Some(verdict) = verdict {
            self.follow_up(env, index, flow, seg, 0, verdict);
        }
    }

    /// RFC 9293 section 3.10.7.1.
    fn send_reset<S: Sink>(&mut self, env: &mut Env<'_, S>, flow: &Flow, seg: &Segment, len: u32) {
        if seg.has(flag::RST) || !env.ip.is_own(flow.local) || !env.ip.may_send_error(env.now) {
            return;
        }
        let len = len + u32::from(seg.has(flag::SYN)) + u32::from(seg.has(flag::FIN));
        let (seq, ack, flags) = if seg.has(flag::ACK) {
            (seg.ack, Seq(0), flag::RST)
        } else {
            (Seq(0), seg.seq.add(len), flag::RST | flag::ACK)
        };
        let (src_port, dst_port) = (flow.local_port, flow.remote_port);
        let header = Segment { src_port, dst_port, seq, ack, flags, window: 0, options: Wire::default() };
        env.ip.stats.resets_out += 1;
        output::send(env.ip, (env.now, env.sink), &out(flow), &header, (&[], 0), None, None);
    }

    /// An ICMP error about a segment of ours: `seq` is the sequence number it quotes (RFC 5927 section 4).
    pub(crate) fn on_icmp<S: Sink>(&mut self, env: &mut Env<'_, S>, flow: &Flow, seq: Seq, what: IcmpError) {
        let Some(index) = self.find(flow) else { return };
        let valid =
            self.slots[index as usize].tcb.as_ref().is_some_and(|t| t.una.at_or_before(seq) && seq.before(t.nxt));
        if !valid {
            return;
        }
        if let IcmpError::TooBig(mtu) = what {
            // RFC 8201 section 4: nothing below the least MTU is believed, nothing that does not shrink the path.
            let least = if flow.remote.is_ipv4() { 552 } else { 1280 };
            let mtu = mtu.max(least);
            if u32::from(env.ip.path_mtu(flow.remote, env.now)) > mtu {
                env.ip.narrow_path(flow.remote, mtu as u16, env.now);
            }
        }
        self.with(env, index, |tcb, cx| tcb.on_icmp(cx, what));
    }

    // Calls.

    pub(crate) fn listen(&mut self, address: Option<IpAddr>, port: u16, backlog: u32) -> Result<ListenerId, Error> {
        let taken = self.ports.get(&port).is_some_and(|all| {
            all.iter().any(|i| self.listeners[*i as usize].listener.as_ref().is_some_and(|l| l.address == address))
        });
        if taken || port == 0 {
            return Err(Error::AddressInUse);
        }
        let listener = Listener {
            address,
            port,
            backlog: backlog.max(1),
            half_open: 0,
            ready: Default::default(),
            cookies_at: None,
        };
        let index = match self.listeners.iter().position(|p| p.listener.is_none()) {
            Some(index) => index,
            None => {
                self.listeners.push(Place { generation: 0, listener: None });
                self.listeners.len() - 1
            }
        };
        self.listeners[index].listener = Some(listener);
        self.ports.entry(port).or_default().push(index as u32);
        Ok(ListenerId { index: index as u32, generation: self.listeners[index].generation })
    }

    fn place(&mut self, id: ListenerId) -> Result<&mut Place, Error> {
        self.listeners
            .get_mut(id.index as usize)
            .filter(|p| p.generation == id.generation && p.listener.is_some())
            .ok_or(Error::NoSuchSocket)
    }

    pub(crate) fn accept(&mut self, events: &mut Events, id: ListenerId) -> Result<Option<(TcpId, SocketAddr)>, Error> {
        let Some(listener) = &mut self.place(id)?.listener else { return Err(Error::NoSuchSocket) };
        let Some(next) = listener.ready.pop_front() else { return Ok(None) };
        let Some(tcb) = self.slots.get_mut(next.index as usize).and_then(|s| s.tcb.as_mut()) else {
            return Ok(None);
        };
        tcb.clear(bit::EMBRYO);
        tcb.listener = u32::MAX;
        if tcb.rx.len() > 0 || tcb.has(bit::FIN_RECEIVED) {
            tcb.signal(events, next, Ready::READABLE);
        }
        Ok(Some((next, SocketAddr::new(tcb.flow.remote, tcb.flow.remote_port))))
    }

    pub(crate) fn close_listener<S: Sink>(&mut self, env: &mut Env<'_, S>, id: ListenerId) -> Result<(), Error> {
        let place = self.place(id)?;
        let listener = place.listener.take();
        place.generation = place.generation.wrapping_add(1);
        if let Some(listener) = listener
            && let Some(all) = self.ports.get_mut(&listener.port)
        {
            all.retain(|i| *i != id.index);
            if all.is_empty() {
                self.ports.remove(&listener.port);
            }
        }
        for index in 0..self.slots.len() as u32 {
            let embryo =
                self.slots[index as usize].tcb.as_ref().is_some_and(|t| t.has(bit::EMBRYO) && t.listener == id.index);
            if embryo {
                self.with(env, index, |tcb, cx| tcb.abort(cx));
            }
        }
        Ok(())
    }

    pub(crate) fn connect<S: Sink>(
        &mut self,
        env: &mut Env<'_, S>,
        remote: SocketAddr,
        local: (Option<IpAddr>, u16),
    ) -> Result<TcpId, Error> {
        if env.ip.hop(remote.ip()).is_none() || remote.ip().is_multicast() || remote.port() == 0 {
            return Err(Error::NoRoute);
        }
        let address = match local.0 {
            Some(address) if !env.ip.is_own(address) => return Err(Error::AddressNotAvailable),
            Some(address) => address,
            None => env.ip.source_for(remote.ip()).ok_or(Error::NoRoute)?,
        };
        if address.is_ipv4() != remote.is_ipv4() {
            return Err(Error::NoRoute);
        }
        let flow = Flow { local: address, remote: remote.ip(), local_port: local.1, remote_port: remote.port() };
        let flow = if local.1 == 0 { self.choose_port(flow)? } else { flow };
        let mut iss = self.first_seq(&flow, env.now);
        if let Some(old) = self.find(&flow) {
            iss = self.reuse(env, old).ok_or(Error::AddressInUse)?;
        }
        let index = self.add(env, flow, iss)?;
        self.with(env, index, |tcb, cx| tcb.open(cx));
        Ok(TcpId { index, generation: self.slots[index as usize].generation })
    }

    /// Ends a connection in TIME-WAIT whose timestamps make reuse safe (RFC 6191); the first number to use after it.
    fn reuse<S: Sink>(&mut self, env: &mut Env<'_, S>, index: u32) -> Option<Seq> {
        let tcb = self.slots[index as usize].tcb.as_ref()?;
        let quiet = env.now.since(tcb.last_in) >= REUSE_AGE;
        if tcb.state != State::TimeWait || !tcb.has(bit::TIMESTAMPS) || !quiet {
            return None;
        }
        let after = tcb.nxt.add((1 << 16) + 2);
        self.with(env, index, |tcb, cx| tcb.end(cx, None));
        Some(after)
    }

    /// RFC 6056 section 3.3.3: a start from a keyed hash of the peer, then one after the other.
    fn choose_port(&mut self, mut flow: Flow) -> Result<Flow, Error> {
        let (low, high) = self.config.ports;
        let n = u32::from(high.max(low) - low) + 1;
        let offset = self.key.hash(&pair_words(flow.local, flow.remote, flow.remote_port)) as u32;
        for _ in 0..n {
            let at = offset.wrapping_add(self.port_step) % n;
            self.port_step = self.port_step.wrapping_add(1);
            flow.local_port = low + at as u16;
            if self.find(&flow).is_none() && !self.ports.contains_key(&flow.local_port) {
                return Ok(flow);
            }
        }
        Err(Error::NoPortLeft)
    }

    #[inline]
    pub(crate) fn push<S: Sink>(&mut self, env: &mut Env<'_, S>, id: TcpId, sga: Sga) -> Result<Released, Error> {
        self.call(env, id, |tcb, cx| tcb.push(cx, Chain::from_sga(sga)))?
    }

    pub(crate) fn released(&self, id: TcpId) -> Result<u64, Error> {
        self.get(id).map(Tcb::released)
    }

    #[inline]
    pub(crate) fn pop<S: Sink>(&mut self, env: &mut Env<'_, S>, id: TcpId, max: usize) -> Result<Option<Sga>, Error> {
        let tcb = self.get(id)?;
        if tcb.rx.len() == 0 {
            return match (tcb.has(bit::FIN_RECEIVED), tcb.error, tcb.state) {
                (true, _, _) => Ok(Some(Sga::new())),
                (_, Some(error), _) => Err(error),
                (_, _, State::Closed | State::TimeWait) => Err(Error::NotConnected),
                _ => Ok(None),
            };
        }
        self.call(env, id, |tcb, cx| {
            let sga = tcb.pop(cx, max);
            tcb.arm(cx);
            Some(sga)
        })
    }

    pub(crate) fn finish<S: Sink>(&mut self, env: &mut Env<'_, S>, id: TcpId) -> Result<(), Error> {
        self.call(env, id, |tcb, cx| tcb.finish(cx))
    }

    pub(crate) fn close<S: Sink>(&mut self, env: &mut Env<'_, S>, id: TcpId) -> Result<(), Error> {
        self.call(env, id, |tcb, cx| tcb.close(cx))
    }

    pub(crate) fn abort<S: Sink>(&mut self, env: &mut Env<'_, S>, id: TcpId) -> Result<(), Error> {
        self.call(env, id, |tcb, cx| {
            tcb.abort(cx);
            tcb.set(bit::ORPHAN);
        })
    }

    pub(crate) fn set_option<S: Sink>(
        &mut self,
        env: &mut Env<'_, S>,
        id: TcpId,
        option: Options,
    ) -> Result<(), Error> {
        self.call(env, id, |tcb, cx| tcb.set_option(cx, option))
    }

    pub(crate) fn info(&self, id: TcpId) -> Result<TcpInfo, Error> {
        self.get(id).map(Tcb::info)
    }

    pub(crate) fn error(&self, id: TcpId) -> Result<Option<Error>, Error> {
        self.get(id).map(|t| t.error)
    }

    #[inline]
    pub(crate) fn take_ready(&mut self, id: TcpId) -> Option<Ready> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        let tcb = slot.tcb.as_mut().filter(|t| !t.has(bit::ORPHAN))?;
        Some(tcb.take_ready())
    }

    pub(crate) fn has_ready(&self, id: ListenerId) -> bool {
        let place = self.listeners.get(id.index as usize).filter(|p| p.generation == id.generation);
        place.and_then(|p| p.listener.as_ref()).is_some_and(|l| !l.ready.is_empty())
    }

    // Time.

    pub(crate) fn poll_at(&self) -> Option<Nanos> {
        self.wheel.next()
    }

    pub(crate) fn poll<S: Sink>(&mut self, env: &mut Env<'_, S>) {
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.expire(env.now, &mut fired);
        for index in fired.drain(..) {
            self.with(env, index, |tcb, cx| tcb.on_timer(cx));
        }
        self.fired = fired;
        if !self.blocked.is_empty() && env.sink.has_room() {
            for id in std::mem::take(&mut self.blocked) {
                if self.slots[id.index as usize].generation != id.generation {
                    continue;
                }
                self.with(env, id.index, |tcb, cx| {
                    tcb.clear(bit::BLOCKED);
                    tcb.output(cx);
                    tcb.arm(cx);
                });
            }
        }
    }

    pub(crate) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Connections of every state, and bytes of their state.
    pub(crate) fn census(&self) -> (usize, usize) {
        let state: usize = self.slots.iter().filter_map(|s| s.tcb.as_ref()).map(|t| t.bytes()).sum();
        let table = self.table.bytes() + self.slots.capacity() * size_of::<Slot>();
        (self.slots.len() - self.free.len(), state + table + self.slots.len() * Wheel::BYTES_EACH)
    }
}

/// An ICMP error as far as TCP cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IcmpError {
    TooBig(u32),
    /// Hard while connecting, soft later (RFC 5461).
    Refused,
    Soft,
}

fn out(flow: &Flow) -> Out {
    Out { src: flow.local, dst: flow.remote, protocol: protocol::TCP, tos: 0, ttl: 64, df: true }
}
