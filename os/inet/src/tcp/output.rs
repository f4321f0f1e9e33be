//! Deciding what to send, and sending it: lost segments first, then new data as far as the peer's window, the
//! congestion window, pacing, Nagle (RFC 9293 section 3.7.4) and the device allow.

use super::congestion::Controller;
use super::recovery::Phase;
use super::{Cx, Retransmit, Sent, State, Tcb, bit, mark};
use crate::chain::Chain;
use crate::config::{Finish, Sink};
use crate::ip::{HEADER_MAX, Out};
use crate::time::Nanos;
use crate::wire::tcp::{LEN_MAX, Options, Seq, Tcp, flag};
use crate::wire::{protocol, pseudo};
use towpath_cbuf::Buf;

/// Pieces of one packet: more are copied together. What devices take at least.
const PIECES_MAX: usize = 15;
/// In flight below this many segments nothing is paced: such bursts every path takes (RFC 6928).
const PACE_FROM: u32 = 10;
/// Unused pacing time that may be caught up on at once: timers are seldom finer.
const PACE_CREDIT: Nanos = Nanos::millis(1);
/// RFC 8985 section 7.2: what a peer may delay the acknowledgement of a single segment by.
const PEER_DELAY: Nanos = Nanos::millis(40);
const PROBE_MIN: Nanos = Nanos::millis(2);

impl Tcb {
    /// Sends what may be sent.
    #[inline]
    pub(super) fn output<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if !self.state.may_send() {
            return;
        }
        let lost = self.recovery.as_ref().is_some_and(|r| r.lost > 0);
        if lost && !self.send_lost(cx) {
            return;
        }
        if self.unsent_len > 0 || self.bits & (bit::FIN_QUEUED | bit::FIN_SENT) == bit::FIN_QUEUED {
            self.send_new(cx);
        }
    }

    /// Whether the device and pacing let another segment go; arranges to be called again if not.
    #[inline]
    fn may_go<S: Sink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        if !cx.sink.has_room() {
            if !self.has(bit::BLOCKED) {
                self.set(bit::BLOCKED);
                cx.blocked.push(cx.id);
            }
            return false;
        }
        if self.pace_next > cx.now && cx.config.pacing && self.pipe() >= PACE_FROM * u32::from(self.mss) {
            self.pace_at = self.pace_next;
            return false;
        }
        true
    }

    fn pace(&mut self, n: u32, now: Nanos) {
        if self.srtt == Nanos::ZERO || self.nxt.since(self.una) < PACE_FROM * u32::from(self.mss) {
            return;
        }
        let rate = self.congestion.pacing_rate(self.srtt).max(1);
        let span = Nanos((u128::from(n) * 1_000_000_000 / u128::from(rate)) as u64);
        self.pace_next = self.pace_next.max(now.since(PACE_CREDIT)) + span;
    }

    /// Sends what was lost; says whether all of it went.
    #[cold]
    fn send_lost<S: Sink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        while let Some(i) = self.next_lost() {
            let mss = u32::from(self.mss).max(1);
            let pipe = self.pipe();
            if pipe > 0 && pipe + mss.min(self.sent[i].len) > self.congestion.window() {
                self.set(bit::WINDOW_LIMITED);
                return false;
            }
            if !self.may_go(cx) {
                return false;
            }
            self.resend(cx, i);
        }
        true
    }

    /// Sends the segment at `index` again, cut to what a segment may be now.
    pub(super) fn resend<S: Sink>(&mut self, cx: &mut Cx<'_, S>, index: usize) {
        let mss = u32::from(self.mss).max(1);
        let s = &self.sent[index];
        if s.payload.len() > mss as usize {
            self.split_sent(index, mss);
        }
        self.note_resent(index, cx.now);
        cx.ip.stats.retransmits += 1;
        let s = &mut self.sent[index];
        let (seq, fin, len) = (s.seq, s.has(mark::FIN), s.len);
        let payload = std::mem::take(&mut s.payload);
        self.emit_data(cx, seq, &payload, fin, true);
        self.sent[index].payload = payload;
        self.pace(len, cx.now);
        if self.retransmit == Retransmit::Off {
            self.retransmit = Retransmit::Timeout;
            self.retransmit_at = cx.now + self.rto;
        }
    }

    #[inline]
    fn send_new<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.clear(bit::WINDOW_LIMITED);
        loop {
            if self.has(bit::FIN_SENT) {
                return;
            }
            let n = self.allowance(cx);
            let fin = self.has(bit::FIN_QUEUED) && n == self.unsent_len;
            if n == 0 && !(fin && self.unsent_len == 0) {
                self.arm_persist(cx);
                return;
            }
            if !self.may_go(cx) {
                return;
            }
            self.send_segment(cx, n, fin);
            if self.unsent_len == 0 && (fin || !self.has(bit::FIN_QUEUED)) {
                return;
            }
        }
    }

    /// How many bytes of new data the next segment may carry: 0 if it has to wait.
    #[inline]
    fn allowance<S: Sink>(&mut self, cx: &mut Cx<'_, S>) -> usize {
        let mss = u32::from(self.mss);
        let pipe = self.pipe();
        let edge = self.una.add(self.window);
        let usable = if self.nxt.before(edge) { edge.since(self.nxt) } else { 0 };
        let window = self.congestion.window();
        let room = window.saturating_sub(pipe);
        let most = match cx.ip.offload.segment_bytes {
            0 => mss,
            // Cut by the device: whole segments, and not so many that a window becomes one burst.
            bytes => (bytes.min(window / 4) / mss * mss).max(mss),
        };
        let n = (self.unsent_len as u64).min(u64::from(most.min(usable))) as u32;
        if n == 0 {
            return 0;
        }
        if room < n {
            self.set(bit::WINDOW_LIMITED);
            let whole = room / mss * mss;
            if whole > 0 {
                return whole as usize;
            }
            if pipe > 0 {
                return 0;
            }
        }
        if n >= mss {
            return if n as usize == self.unsent_len { n } else { n / mss * mss } as usize;
        }
        let idle = self.nxt == self.una;
        let whole = n as usize == self.unsent_len;
        let last = whole && self.has(bit::FIN_QUEUED);
        let go = if whole {
            last || (!self.has(bit::CORK) && (idle || self.has(bit::NO_DELAY)))
        } else {
            // RFC 1122 section 4.2.3.4: half the largest window the peer ever had is worth sending.
            n >= self.window_max / 2
        };
        if go { n as usize } else { 0 }
    }

    /// Takes `n` bytes off the queue and sends them as one segment.
    #[inline]
    fn send_segment<S: Sink>(&mut self, cx: &mut Cx<'_, S>, n: usize, fin: bool) {
        let payload = self.take_unsent(cx, n);
        let seq = self.nxt;
        let len = payload.len() as u32 + u32::from(fin);
        if self.una == self.nxt {
            // RFC 5681 section 4.1: after an idle timeout the old window is no longer known to fit.
            if cx.now.since(self.last_out) > self.rto && self.last_out != Nanos::ZERO && self.recovery.is_none() {
                let initial = initial_window(u32::from(self.mss), cx.config.initial_window);
                if self.congestion.window() > initial {
                    self.congestion.set_window(initial);
                }
            }
            self.round_end = seq;
        }
        self.nxt = seq.add(len);
        if fin {
            self.set(bit::FIN_SENT);
            self.state = match self.state {
                State::CloseWait => State::LastAck,
                State::Established => State::FinWait1,
                other => other,
            };
        }
        self.emit_data(cx, seq, &payload, fin, false);
        let marks = if fin { mark::FIN } else { 0 };
        self.sent.push_back(Sent { seq, len, at: cx.now, payload, marks });
        self.pace(len, cx.now);
        if let Some(r) = &mut self.recovery
            && r.phase == Phase::Recover
        {
            r.prr_out += len;
        }
        if matches!(self.retransmit, Retransmit::Off | Retransmit::Probe | Retransmit::Persist) {
            self.arm_retransmit(cx.now);
        }
    }

    fn take_unsent<S: Sink>(&mut self, cx: &mut Cx<'_, S>, n: usize) -> Chain {
        let mut chain = Chain::Empty;
        let mut need = n;
        while need > 0 {
            let Some(front) = self.unsent.front_mut() else { break };
            if front.len() > need {
                chain.push(front.split_to(need));
                break;
            }
            need -= front.len();
            if let Some(buf) = self.unsent.pop_front() {
                chain.push(buf);
            }
        }
        self.unsent_len -= n;
        if chain.as_slice().len() > PIECES_MAX
            && let Some(whole) = chain.gather(&cx.ip.memory)
        {
            cx.ip.stats.gathered += whole.len() as u64;
            chain = Chain::One(whole);
        }
        chain
    }

    /// Sends data at `seq`.
    #[inline]
    fn emit_data<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seq: Seq, payload: &Chain, fin: bool, again: bool) {
        let mut flags = flag::ACK;
        let len = payload.len();
        if fin {
            flags |= flag::FIN;
        }
        if len > 0 && (self.unsent_len == 0 || again) {
            flags |= flag::PSH;
        }
        let mut tos = 0;
        if self.has(bit::ECN) && !again && len > 0 {
            // RFC 3168 section 6.1.5: only what is sent for the first time is marked capable.
            tos = 2;
            if self.has(bit::ECN_CWR) {
                self.clear(bit::ECN_CWR);
                flags |= flag::CWR;
            }
        }
        // Speaking for itself: the program answers, so acknowledgements will ride on its answers.
        self.quick = 0;
        self.last_out = cx.now;
        self.emit(cx, seq, flags, tos, payload.as_slice(), len);
    }

    /// Sends an acknowledgement without data.
    pub(super) fn send_ack<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.emit(cx, self.nxt, flag::ACK, 0, &[], 0);
    }

    /// Sends one segment of a synchronised connection.
    #[inline]
    pub(super) fn emit<S: Sink>(
        &mut self,
        cx: &mut Cx<'_, S>,
        seq: Seq,
        flags: u8,
        tos: u8,
        payload: &[Buf],
        len: usize,
    ) {
        let mut options = Options::default();
        if self.has(bit::TIMESTAMPS) {
            options.timestamps = Some((self.clock(cx.now), self.rx.echo));
        }
        if self.rx.has_gaps() && self.has(bit::SACK) {
            self.rx.fill_sack(&mut options);
        }
        let mut flags = flags;
        if self.has(bit::ECN_ECHO) {
            flags |= flag::ECE;
        }
        let window = self.rx.offer(self.scale_in, u32::from(self.mss));
        let header = Tcp {
            src_port: self.flow.local_port,
            dst_port: self.flow.remote_port,
            seq,
            ack: self.rx.nxt,
            flags,
            window,
            options,
        };
        self.rx.acked = self.rx.nxt;
        self.ack_at = Nanos::NEVER;
        self.clear(bit::ACK_NOW);
        self.transmit(cx, &header, tos, payload, len);
    }

    /// Puts a segment on its way.
    #[inline]
    pub(super) fn transmit<S: Sink>(&mut self, cx: &mut Cx<'_, S>, header: &Tcp, tos: u8, payload: &[Buf], len: usize) {
        if self.neighbour_epoch != cx.ip.neighbours.epoch || self.neighbour.is_none() {
            self.neighbour_epoch = cx.ip.neighbours.epoch;
            self.neighbour = cx.ip.resolve(self.flow.remote, cx.now);
        }
        let segment = (len > usize::from(self.mss)).then_some(self.mss);
        let out = Out { src: self.flow.local, dst: self.flow.remote, protocol: protocol::TCP, tos, ttl: 64, df: true };
        send(cx.ip, (cx.now, cx.sink), &out, header, (payload, len), segment, self.neighbour);
    }

    /// RFC 6298 section 5.1 and RFC 8985 section 7.2: what to wait for after sending.
    #[inline]
    pub(super) fn arm_retransmit(&mut self, now: Nanos) {
        let calm = self.recovery.as_ref().is_none_or(|r| r.phase == Phase::Open && r.absent() == 0);
        let probe = self.bits & (bit::SACK | bit::PROBED) == bit::SACK && calm && self.srtt != Nanos::ZERO;
        if probe {
            let mut span = Nanos(self.srtt.0 * 2).max(PROBE_MIN);
            if self.sent.len() == 1 {
                span += PEER_DELAY;
            }
            if span < self.rto {
                self.retransmit = Retransmit::Probe;
                self.retransmit_at = now + span;
                return;
            }
        }
        self.retransmit = Retransmit::Timeout;
        self.retransmit_at = now + self.rto;
    }

    /// After new data was acknowledged.
    #[inline]
    pub(super) fn restart_retransmit<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.sent.is_empty() {
            self.retransmit = Retransmit::Off;
            self.retransmit_at = Nanos::NEVER;
        } else if self.retransmit != Retransmit::Reorder {
            self.arm_retransmit(cx.now);
        }
    }

    /// RFC 9293 section 3.8.6.1: data waits, nothing is in flight, and the window lets nothing go: probe it.
    fn arm_persist<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let shut = self.window < u32::from(self.mss) && (self.window as usize) < self.unsent_len;
        if self.unsent_len > 0 && self.sent.is_empty() && shut && self.retransmit != Retransmit::Persist {
            self.retransmit = Retransmit::Persist;
            self.attempts = 0;
            self.retransmit_at = cx.now + self.rto;
        }
    }

    /// Sends whatever the window lets, however little: an answer to a window too small for too long.
    pub(super) fn send_despite_silly_window<S: Sink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        let n = (self.window.min(u32::from(self.mss)) as usize).min(self.unsent_len);
        if n == 0 {
            return false;
        }
        let fin = self.has(bit::FIN_QUEUED) && n == self.unsent_len;
        self.send_segment(cx, n, fin);
        true
    }

    /// Sends one segment of new data for a tail loss probe, if there is any to send.
    pub(super) fn send_probe_of_new<S: Sink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        let edge = self.una.add(self.window);
        let usable = if self.nxt.before(edge) { edge.since(self.nxt) as usize } else { 0 };
        let n = self.unsent_len.min(usize::from(self.mss)).min(usable);
        if n == 0 || !self.state.may_send() || self.has(bit::FIN_SENT) {
            return false;
        }
        let fin = self.has(bit::FIN_QUEUED) && n == self.unsent_len;
        self.send_segment(cx, n, fin);
        true
    }
}

/// RFC 6928, by the number of segments configured.
pub(super) fn initial_window(mss: u32, segments: u32) -> u32 {
    mss * segments.max(1)
}

/// Builds and sends a segment, its checksum finished here or by the device.
#[inline]
pub(super) fn send<S: Sink>(
    ip: &mut crate::ip::Ip,
    (now, sink): (Nanos, &mut S),
    out: &Out,
    header: &Tcp,
    (payload, len): (&[Buf], usize),
    segment: Option<u16>,
    neighbour: Option<crate::wire::ethernet::Mac>,
) {
    let mut bytes = [0u8; HEADER_MAX];
    let room = ip.headroom(out.dst);
    let n = header.write(&mut bytes[room..room + LEN_MAX]);
    let mut sum = pseudo(out.src, out.dst, protocol::TCP, (n + len) as u32);
    let mut finish = Finish { checksum: None, segment };
    let field = if ip.offload.checksum && (neighbour.is_some() || !ip.is_own(out.dst)) {
        finish.checksum = Some((0, 16));
        sum.partial()
    } else {
        sum.add(&bytes[room..room + n]);
        for piece in payload {
            sum.add(piece);
        }
        sum.finish()
    };
    bytes[room + 16..room + 18].copy_from_slice(&field.to_be_bytes());
    ip.send((now, sink), out, &mut bytes[..room + n], (payload, len), finish, neighbour);
}
