//! What the program does with a connection: opening, pushing, closing, options, and looking at it.

use super::congestion::{Congestion, Controller};
use super::layer::IcmpError;
use super::output::initial_window;
use super::recovery::Phase;
use super::{Cx, Receive, Retransmit, State, Tcb, bit};
use crate::chain::Chain;
use crate::config::{Sink, TcpConfig};
use crate::demux::Flow;
use crate::error::Error;
use crate::event::Ready;
use crate::time::Nanos;
use crate::wire::tcp::{Options as Wire, Seq, Tcp, flag};
use std::collections::VecDeque;

/// RFC 9293 section 3.7.1: what a peer that states nothing takes.
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;
/// Below this no statement of a peer or a router is believed (CVE-2019-11479).
pub(super) const MSS_MIN: u16 = 88;
/// Segments acknowledged at once when a connection is young, so that the peer's window opens quickly.
const QUICK: u8 = 16;

/// When to ask a silent peer whether it is still there (RFC 9293 section 3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// Silence before the first question.
    pub idle: Nanos,
    /// From one question to the next.
    pub interval: Nanos,
    /// Questions without an answer that end the connection.
    pub count: u8,
}

/// Settings of one connection that a program may change while it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Options {
    /// Send small segments at once, without Nagle's algorithm.
    NoDelay(bool),
    /// Hold back partial segments until this is taken off, or the program closes.
    Cork(bool),
    /// Ask silent peers; `None` turns it off.
    KeepAlive(Option<KeepAlive>),
    /// How long sent data may stay unacknowledged (RFC 5482); `None` is the stack's own limit.
    UserTimeout(Option<Nanos>),
    /// Bytes of frames held for the program at most, before tuning; in force at once, never below what is offered.
    ReceiveBuffer(u32),
    /// Bytes the connection takes responsibility for ahead of acknowledgements.
    SendBuffer(u32),
}

/// How far pushes have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// The push is complete when the connection's released offset reaches this one.
    pub offset: u64,
    /// It is complete already.
    pub now: bool,
}

/// A look at a connection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TcpInfo {
    /// Its addresses and ports.
    pub flow: Flow,
    /// Its state.
    pub state: State,
    /// The smoothed round-trip time; zero before the first sample.
    pub srtt: Nanos,
    /// Its mean deviation.
    pub rttvar: Nanos,
    /// The retransmission timeout.
    pub rto: Nanos,
    /// The congestion window in bytes.
    pub congestion_window: u32,
    /// The slow start threshold in bytes.
    pub threshold: u32,
    /// The window the peer offers, in bytes.
    pub peer_window: u32,
    /// The window offered to the peer, in bytes.
    pub window: u32,
    /// Bytes sent and not acknowledged.
    pub in_flight: u32,
    /// Bytes that wait to be sent.
    pub unsent: usize,
    /// Bytes received that the program has not popped.
    pub unread: usize,
    /// Payload bytes of a full segment.
    pub mss: u16,
    /// Timestamps, selective acknowledgements, window scaling and ECN were agreed on.
    pub agreed: (bool, bool, bool, bool),
    /// Losses are being repaired.
    pub recovering: bool,
    /// Bytes of state, buffers not counted.
    pub bytes: usize,
}

/// Settings few connections have.
pub(crate) struct Control {
    pub(super) keepalive: Option<KeepAlive>,
    pub(super) user_timeout: Nanos,
    /// Questions sent since the peer was last heard.
    pub(super) keep_sent: u8,
}

impl Tcb {
    /// A connection not yet open.
    pub(super) fn new<S: Sink>(cx: &mut Cx<'_, S>, flow: Flow, secrets: (Seq, u32)) -> Tcb {
        let config = cx.config;
        let mut tcb = Tcb {
            flow,
            state: State::Closed,
            retransmit: Retransmit::Off,
            bits: 0,
            ready: 0,
            attempts: 0,
            scale_out: 0,
            scale_in: 0,
            quick: QUICK,
            neighbour: None,
            neighbour_epoch: cx.ip.neighbours.epoch,
            una: secrets.0,
            nxt: secrets.0,
            iss: secrets.0,
            wl1: Seq(0),
            wl2: Seq(0),
            window: 0,
            window_max: 0,
            mss: MSS_DEFAULT_V4,
            mss_peer: if flow.remote.is_ipv4() { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 },
            echo_offset: secrets.1,
            round_end: secrets.0,
            probe_end: secrets.0,
            mark_end: secrets.0,
            srtt: Nanos::ZERO,
            rttvar: Nanos::ZERO,
            rtt_min: Nanos::NEVER,
            rto: config.rto_initial,
            rack_at: Nanos::ZERO,
            rack_end: secrets.0,
            congestion: Congestion::new(config.congestion, 0),
            sent: VecDeque::new(),
            unsent: VecDeque::new(),
            unsent_len: 0,
            send_limit: config.send_buffer.0,
            pushed: 0,
            recovery: None,
            control: None,
            rx: Receive::new(config.receive_buffer.0),
            retransmit_at: Nanos::NEVER,
            ack_at: Nanos::NEVER,
            pace_next: Nanos::ZERO,
            pace_at: Nanos::NEVER,
            state_at: Nanos::NEVER,
            wheel_at: Nanos::NEVER,
            last_in: cx.now,
            last_out: Nanos::ZERO,
            challenged: Nanos::ZERO,
            error: None,
            listener: u32::MAX,
        };
        tcb.refresh_mss(cx);
        tcb
    }

    /// Opens towards the peer.
    pub(super) fn open<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.state = State::SynSent;
        self.nxt = self.iss.add(1);
        self.scale_in = scale_for(cx.config);
        self.send_syn(cx);
        self.retransmit = Retransmit::Timeout;
        self.retransmit_at = cx.now + self.rto;
        self.arm(cx);
    }

    /// A listener got this SYN: answers it.
    pub(super) fn accept_syn<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp) {
        self.take_syn(seg, cx.now, cx.config, false);
        self.state = State::SynReceived;
        self.nxt = self.iss.add(1);
        self.send_syn(cx);
        self.retransmit = Retransmit::Timeout;
        self.retransmit_at = cx.now + self.rto;
        self.arm(cx);
    }

    /// A cookie came back: as if its SYN had been taken and answered.
    pub(super) fn recall_syn<S: Sink>(&mut self, cx: &mut Cx<'_, S>, syn: &Tcp) {
        self.take_syn(syn, cx.now, cx.config, false);
        self.state = State::SynReceived;
        self.nxt = self.iss.add(1);
        self.rx.offer(0, u32::from(self.mss));
    }

    /// A router or the peer's host reports an error; it was checked to be about data in flight.
    pub(super) fn on_icmp<S: Sink>(&mut self, cx: &mut Cx<'_, S>, what: IcmpError) {
        match what {
            IcmpError::TooBig(_) => {
                self.refresh_mss(cx);
                self.output(cx);
            }
            // RFC 5461 section 4.1: before the connection stands an error ends it, afterwards it is only remembered.
            IcmpError::Refused if self.state == State::SynSent => self.end(cx, Some(Error::Refused)),
            IcmpError::Refused | IcmpError::Soft => {}
        }
        self.arm(cx);
    }

    /// Sends the SYN, or the SYN with an acknowledgement.
    pub(super) fn send_syn<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let active = self.state == State::SynSent;
        let config = cx.config;
        let mut options = Wire { mss: Some(own_mss(cx.ip.mtu, self.flow.remote.is_ipv4())), ..Wire::default() };
        if if active { config.timestamps } else { self.has(bit::TIMESTAMPS) } {
            options.timestamps = Some((self.clock(cx.now), self.rx.echo));
        }
        if if active { config.scaling } else { self.has(bit::SCALED) } {
            options.scale = Some(self.scale_in);
        }
        options.sack_permitted = if active { config.sack } else { self.has(bit::SACK) };
        let mut flags = flag::SYN;
        if active {
            // RFC 3168 section 6.1.1.1: a SYN that is lost is sent again without the offer.
            if config.ecn && self.attempts == 0 {
                flags |= flag::ECE | flag::CWR;
            }
        } else {
            flags |= flag::ACK;
            if self.has(bit::ECN) {
                flags |= flag::ECE;
            }
        }
        let window = self.rx.offer(0, u32::from(self.mss));
        let header = Tcp {
            src_port: self.flow.local_port,
            dst_port: self.flow.remote_port,
            seq: self.iss,
            ack: if active { Seq(0) } else { self.rx.nxt },
            flags,
            window,
            options,
        };
        self.rx.acked = self.rx.nxt;
        self.transmit(cx, &header, 0, &[], 0);
    }

    /// Takes what the peer's SYN says.
    pub(super) fn take_syn(&mut self, seg: &Tcp, now: Nanos, config: &TcpConfig, active: bool) {
        self.rx.start(seg.seq);
        if let Some(mss) = seg.options.mss {
            self.mss_peer = mss.max(MSS_MIN);
        }
        if let (Some((value, _)), true) = (seg.options.timestamps, config.timestamps) {
            self.set(bit::TIMESTAMPS);
            (self.rx.echo, self.rx.echo_at) = (value, now);
        }
        match seg.options.scale {
            Some(scale) if config.scaling => {
                self.set(bit::SCALED);
                self.scale_out = scale;
                self.scale_in = scale_for(config);
            }
            _ => self.scale_in = 0,
        }
        if seg.options.sack_permitted && config.sack {
            self.set(bit::SACK);
        }
        let offer = seg.flags & (flag::ECE | flag::CWR);
        if (active && config.ecn && offer == flag::ECE) || (!active && offer == flag::ECE | flag::CWR) {
            self.set(bit::ECN);
        }
        self.wl1 = seg.seq;
        self.wl2 = seg.ack;
        self.window = u32::from(seg.window);
        self.window_max = self.window;
    }

    /// The handshake is complete.
    pub(super) fn establish<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp) {
        self.state = State::Established;
        self.una = seg.ack;
        (self.wl1, self.wl2) = (seg.seq, seg.ack);
        self.window = u32::from(seg.window) << if seg.has(flag::SYN) { 0 } else { self.scale_out };
        self.window_max = self.window_max.max(self.window);
        self.refresh_mss(cx);
        // RFC 5681 section 3.1: one segment if the SYN had to be sent again.
        let segments = if self.attempts > 0 { 1 } else { cx.config.initial_window };
        self.congestion = Congestion::new(cx.config.congestion, initial_window(u32::from(self.mss), segments));
        self.round_end = self.nxt;
        self.probe_end = self.una;
        self.mark_end = self.una;
        self.rack_end = self.una;
        self.attempts = 0;
        self.retransmit = Retransmit::Off;
        self.retransmit_at = Nanos::NEVER;
        if let Some(keep) = self.control.as_ref().and_then(|c| c.keepalive) {
            self.state_at = cx.now + keep.idle;
        }
        cx.ip.stats.connections += 1;
        self.signal(cx.events, cx.id, Ready::CONNECTED);
    }

    /// Works out the payload of a full segment from the path, the peer and the options (RFC 6691).
    pub(super) fn refresh_mss<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let v4 = self.flow.remote.is_ipv4();
        let path = cx.ip.path_mtu(self.flow.remote, cx.now);
        let options = if self.has(bit::TIMESTAMPS) { 12 } else { 0 };
        let room = own_mss(path, v4).min(self.mss_peer);
        let before = self.mss;
        self.mss = room.max(MSS_MIN) - options;
        if path < cx.ip.mtu {
            self.set(bit::NARROW);
        } else {
            self.clear(bit::NARROW);
        }
        if self.mss < before && !self.sent.is_empty() {
            self.lose_longer_than(u32::from(self.mss));
        }
    }

    /// Queues bytes for sending and sends what may be. The bytes belong to the connection from here on.
    #[inline]
    pub(super) fn push<S: Sink>(&mut self, cx: &mut Cx<'_, S>, bytes: Chain) -> Result<Released, Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if !self.state.may_push() || self.has(bit::FIN_QUEUED) {
            return Err(Error::NotConnected);
        }
        let len = bytes.len();
        for buf in bytes {
            self.unsent.push_back(buf);
        }
        self.unsent_len += len;
        self.pushed += len as u64;
        self.output(cx);
        let now = self.outstanding() <= self.send_limit as usize;
        if !now {
            self.set(bit::PUSH_WAITS);
        }
        self.arm(cx);
        Ok(Released { offset: self.pushed, now })
    }

    /// The offset up to which pushes are complete: what is left beyond it exceeds the connection's responsibility.
    pub(super) fn released(&self) -> u64 {
        let beyond = self.outstanding().saturating_sub(self.send_limit as usize);
        self.pushed - (beyond as u64).min(self.pushed)
    }

    /// Finishes sending: the FIN follows the last byte. Says whether there was anything to finish.
    pub(super) fn finish<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        match self.state {
            State::SynSent => self.end(cx, Some(Error::Aborted)),
            State::SynReceived | State::Established | State::CloseWait => {
                self.set(bit::FIN_QUEUED);
                self.clear(bit::CORK);
                self.output(cx);
                self.arm(cx);
            }
            _ => {}
        }
    }

    /// The program lets go. Unread data means that the peer must learn it was not taken (RFC 2525 section 2.17).
    pub(super) fn close<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let unread = self.rx.len() > 0;
        if unread && self.state.synchronised() && self.state != State::TimeWait {
            self.abort(cx);
        } else {
            self.finish(cx);
        }
        self.rx.clear();
        self.set(bit::ORPHAN);
        self.clear(bit::QUEUED);
        if self.state == State::FinWait2 {
            self.state_at = cx.now + cx.config.fin_wait;
            self.arm(cx);
        }
    }

    /// Ends the connection with a reset.
    pub(super) fn abort<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if matches!(
            self.state,
            State::SynReceived | State::Established | State::FinWait1 | State::FinWait2 | State::CloseWait
        ) {
            self.send_reset_now(cx);
        }
        self.end(cx, Some(Error::Aborted));
    }

    pub(super) fn send_reset_now<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        cx.ip.stats.resets_out += 1;
        self.emit(cx, self.nxt, flag::RST | flag::ACK, 0, &[], 0);
    }

    pub(super) fn set_option<S: Sink>(&mut self, cx: &mut Cx<'_, S>, option: Options) {
        match option {
            Options::NoDelay(on) => {
                if on {
                    self.set(bit::NO_DELAY);
                } else {
                    self.clear(bit::NO_DELAY);
                }
                self.output(cx);
            }
            Options::Cork(true) => self.set(bit::CORK),
            Options::Cork(false) => {
                self.clear(bit::CORK);
                self.output(cx);
            }
            Options::KeepAlive(keepalive) => {
                let control = self.control();
                control.keepalive = keepalive;
                control.keep_sent = 0;
                if let (Some(keep), true) = (keepalive, self.state.synchronised()) {
                    self.state_at = self.last_in + keep.idle;
                }
            }
            Options::UserTimeout(span) => self.control().user_timeout = span.unwrap_or(Nanos::ZERO),
            Options::ReceiveBuffer(bytes) => self.rx.limit = bytes.clamp(4096, 1 << 30),
            Options::SendBuffer(bytes) => self.send_limit = bytes.max(4096),
        }
        self.arm(cx);
    }

    fn control(&mut self) -> &mut Control {
        self.control
            .get_or_insert_with(|| Box::new(Control { keepalive: None, user_timeout: Nanos::ZERO, keep_sent: 0 }))
    }

    pub(super) fn info(&self) -> TcpInfo {
        TcpInfo {
            flow: self.flow,
            state: self.state,
            srtt: self.srtt,
            rttvar: self.rttvar,
            rto: self.rto,
            congestion_window: self.congestion.window(),
            threshold: self.congestion.threshold(),
            peer_window: self.window,
            window: self.rx.window(),
            in_flight: self.nxt.since(self.una),
            unsent: self.unsent_len,
            unread: self.rx.len(),
            mss: self.mss,
            agreed: (self.has(bit::TIMESTAMPS), self.has(bit::SACK), self.has(bit::SCALED), self.has(bit::ECN)),
            recovering: self.recovery.as_ref().is_some_and(|r| r.phase != Phase::Open),
            bytes: self.bytes(),
        }
    }
}

/// The segment size to state for packets of `mtu` bytes.
pub(super) fn own_mss(mtu: u16, v4: bool) -> u16 {
    mtu.saturating_sub(if v4 { 40 } else { 60 })
}

/// The shift that lets the largest receive buffer be offered (RFC 7323 section 2).
pub(super) fn scale_for(config: &TcpConfig) -> u8 {
    if !config.scaling {
        return 0;
    }
    let mut scale = 0;
    while scale < 14 && (65_535u64 << scale) < u64::from(config.receive_buffer.1) {
        scale += 1;
    }
    scale
}
