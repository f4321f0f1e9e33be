//! Taking a segment, in the order of RFC 9293 section 3.10.7 with the checks of RFC 5961 and RFC 7323.

use super::recovery::Phase;
use super::{Cx, State, Tcb, bit};
use crate::chain::Chain;
use crate::config::Sink;
use crate::error::Error;
use crate::event::Ready;
use crate::time::Nanos;
use crate::wire::tcp::{Seq, Tcp, flag};

/// RFC 7323 section 5.5: a timestamp this old may have wrapped.
const ECHO_LIFETIME: Nanos = Nanos::secs(24 * 24 * 3600);
/// RFC 5961 section 7: challenges, and answers to segments that carry nothing acceptable, are this far apart.
const CHALLENGE_GAP: Nanos = Nanos::millis(500);

/// What the layer has to do about a segment that the connection did not deal with alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// All done.
    Taken,
    /// Answer with a reset, as for a connection that does not exist.
    Reset,
    /// A SYN may open the pair of ports anew (RFC 9293 section 3.10.7.4, RFC 6191).
    Reopen,
    /// The connection just became established; its listener wants to know.
    Established,
}

impl Tcb {
    /// Takes a segment whose addresses and ports are this connection's. `ce` says that it met congestion.
    #[inline]
    pub(super) fn on_segment<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp, payload: Chain, ce: bool) -> Verdict {
        if self.state == State::Established
            && seg.flags & !flag::PSH == flag::ACK
            && seg.seq == self.rx.nxt
            && !ce
            && !self.rx.has_gaps()
            && self.is_plain(seg)
        {
            self.on_expected(cx, seg, payload);
            return Verdict::Taken;
        }
        self.on_any(cx, seg, payload, ce)
    }

    /// Whether options and acknowledgement of an in-order segment need no thought.
    #[inline]
    fn is_plain(&self, seg: &Tcp) -> bool {
        let timely = match seg.options.timestamps {
            Some((value, _)) => self.has(bit::TIMESTAMPS) && (value.wrapping_sub(self.rx.echo) as i32) >= 0,
            None => !self.has(bit::TIMESTAMPS),
        };
        timely && self.una.at_or_before(seg.ack) && seg.ack.at_or_before(self.nxt)
    }

    /// The next segment of an established connection: the path nearly all take.
    #[inline]
    fn on_expected<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp, payload: Chain) {
        let len = payload.len();
        if len > 0 && (len as u32 > self.rx.window() || self.rx.overrun()) {
            self.on_any(cx, seg, payload, false);
            return;
        }
        self.heard(cx);
        if let Some((value, _)) = seg.options.timestamps
            && self.rx.acked == self.rx.nxt
        {
            (self.rx.echo, self.rx.echo_at) = (value, cx.now);
        }
        self.take_ack(cx, seg, len > 0);
        if len > 0 {
            self.rx.append(payload, cx.ip);
            self.after_data(cx);
            self.signal(cx.events, cx.id, Ready::READABLE);
        }
        self.settle(cx);
    }

    /// Sends what the segment allowed or asked for, and sets the timers.
    #[inline]
    fn settle<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.state != State::Closed {
            self.output(cx);
            if self.has(bit::ACK_NOW) {
                self.send_ack(cx);
            }
        }
        self.arm(cx);
    }

    #[inline]
    fn heard<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.last_in = cx.now;
        if let Some(control) = &mut self.control {
            control.keep_sent = 0;
        }
    }

    /// Whether to acknowledge at once: every second full segment (RFC 5681 section 4.2), the first ones, and whatever
    /// else asked for it; otherwise soon.
    #[inline]
    fn after_data<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.quick > 0 {
            self.quick -= 1;
            self.set(bit::ACK_NOW);
        } else if self.rx.nxt.since(self.rx.acked) >= 2 * u32::from(self.mss) {
            self.set(bit::ACK_NOW);
        } else if self.ack_at == Nanos::NEVER {
            self.ack_at = cx.now + cx.config.delayed_ack;
        }
    }

    fn on_any<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp, payload: Chain, ce: bool) -> Verdict {
        let verdict = match self.state {
            State::Closed => Verdict::Reset,
            State::SynSent => self.on_syn_sent(cx, seg),
            _ => self.on_synchronised(cx, seg, payload, ce),
        };
        if verdict != Verdict::Reset {
            self.settle(cx);
        }
        verdict
    }

    /// RFC 9293 section 3.10.7.3.
    fn on_syn_sent<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp) -> Verdict {
        let acks = seg.has(flag::ACK);
        if acks && (seg.ack.at_or_before(self.iss) || self.nxt.before(seg.ack)) {
            return if seg.has(flag::RST) { Verdict::Taken } else { Verdict::Reset };
        }
        if seg.has(flag::RST) {
            if acks {
                cx.ip.stats.resets_in += 1;
                self.end(cx, Some(Error::Refused));
            }
            return Verdict::Taken;
        }
        if !seg.has(flag::SYN) {
            return Verdict::Taken;
        }
        self.heard(cx);
        self.take_syn(seg, cx.now, cx.config, acks);
        if !acks {
            // Both opened at once (RFC 9293 section 3.5, figure 8).
            self.state = State::SynReceived;
            self.send_syn(cx);
            return Verdict::Taken;
        }
        if self.attempts == 0 {
            self.measure(cx.now.since(self.last_out_of_syn(cx)), cx.config.rto);
        }
        self.establish(cx, seg);
        self.set(bit::ACK_NOW);
        Verdict::Established
    }

    /// When the first SYN was sent: the timer that runs for it says so.
    fn last_out_of_syn<S: Sink>(&self, cx: &Cx<'_, S>) -> Nanos {
        self.retransmit_at.since(cx.config.rto_initial).min(cx.now)
    }

    /// RFC 9293 section 3.10.7.4.
    fn on_synchronised<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp, mut payload: Chain, ce: bool) -> Verdict {
        let syn = u32::from(seg.has(flag::SYN));
        let mut len = payload.len() as u32 + syn + u32::from(seg.has(flag::FIN));
        if self.state == State::TimeWait && self.may_reopen(seg) {
            return Verdict::Reopen;
        }
        if self.state == State::SynReceived && syn == 1 && seg.seq == self.rx.irs && !seg.has(flag::ACK) {
            // Our answer was lost.
            cx.ip.stats.retransmits += 1;
            self.send_syn(cx);
            return Verdict::Taken;
        }
        if self.state == State::SynReceived
            && seg.flags & (flag::SYN | flag::ACK) == flag::SYN | flag::ACK
            && seg.seq == self.rx.irs
        {
            // The other half of a simultaneous opening; its SYN is known already.
            let rest = Tcp { seq: seg.seq.add(1), flags: seg.flags & !flag::SYN, ..*seg };
            return self.take_first_ack(cx, &rest).unwrap_or(Verdict::Established);
        }
        if !self.is_timely(seg, cx.now) {
            cx.ip.stats.paws += 1;
            self.set(bit::ACK_NOW);
            return Verdict::Taken;
        }
        if !self.is_acceptable(seg.seq, len) {
            self.refuse(cx, seg, len);
            return Verdict::Taken;
        }
        if seg.has(flag::RST) {
            return self.on_reset(cx, seg);
        }
        if syn == 1 {
            // RFC 5961 section 4.2: in whatever state, ask whether it is meant.
            self.challenge(cx);
            return Verdict::Taken;
        }
        if !seg.has(flag::ACK) {
            return Verdict::Taken;
        }
        let mut verdict = Verdict::Taken;
        if self.state == State::SynReceived {
            if let Some(other) = self.take_first_ack(cx, seg) {
                return other;
            }
            verdict = Verdict::Established;
        }
        self.heard(cx);
        if let Some((value, _)) = seg.options.timestamps
            && seg.seq.at_or_before(self.rx.acked)
            && (value.wrapping_sub(self.rx.echo) as i32) >= 0
        {
            // RFC 7323 section 4.3.
            (self.rx.echo, self.rx.echo_at) = (value, cx.now);
        }
        if self.nxt.before(seg.ack) {
            // It acknowledges what was never sent.
            self.set(bit::ACK_NOW);
            return verdict;
        }
        if seg.ack.before(self.una) {
            let oldest = Seq(self.una.0.wrapping_sub(self.window_max.max(1 << 16)));
            if seg.ack.before(oldest) {
                // RFC 5961 section 5.2.
                self.challenge(cx);
                return verdict;
            }
        } else {
            self.take_ack(cx, seg, len > 0);
            self.take_fin_ack(cx);
        }
        if self.state == State::Closed {
            return verdict;
        }
        if self.has(bit::ECN) {
            self.take_marks(seg, ce);
        }
        let mut seg = *seg;
        self.trim(&mut seg, &mut payload, &mut len);
        if !payload.as_slice().is_empty() {
            self.take_data(cx, &seg, payload);
        }
        if self.state != State::Closed && seg.has(flag::FIN) {
            self.take_fin(cx, &seg, len);
        }
        verdict
    }

    /// PAWS (RFC 7323 section 5.3): whether the segment is no older than what was seen.
    fn is_timely(&self, seg: &Tcp, now: Nanos) -> bool {
        if !self.has(bit::TIMESTAMPS) || seg.has(flag::RST) {
            return true;
        }
        match seg.options.timestamps {
            // RFC 7323 section 3.2: one without is not of this connection.
            None => self.state == State::SynReceived,
            Some((value, _)) => {
                (value.wrapping_sub(self.rx.echo) as i32) >= 0 || now.since(self.rx.echo_at) > ECHO_LIFETIME
            }
        }
    }

    /// RFC 9293 section 3.4: whether any of the segment lies in the window.
    fn is_acceptable(&self, seq: Seq, len: u32) -> bool {
        let (nxt, edge) = (self.rx.nxt, self.rx.acceptable_edge().max(self.rx.nxt));
        let last = seq.add(len.saturating_sub(1));
        let within = |x: Seq| nxt.at_or_before(x) && x.before(edge);
        if len == 0 {
            return seq == nxt || within(seq);
        }
        // A segment at the left edge is taken even when the window is shut, for its acknowledgement.
        within(seq) || within(last) || seq == nxt || (seq.before(nxt) && edge.before(last))
    }

    /// Answers an unacceptable segment, so that a peer that is only out of step gets into step.
    fn refuse<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp, len: u32) {
        if seg.has(flag::RST) {
            return;
        }
        let end = seg.seq.add(len);
        if len > 0 && end.at_or_before(self.rx.nxt) {
            // A duplicate: report it (RFC 2883), and in TIME-WAIT wait anew.
            if self.has(bit::SACK) && self.state < State::TimeWait && !seg.has(flag::SYN) {
                self.rx.note_duplicate(seg.seq, end);
            }
            if self.state == State::TimeWait {
                self.state_at = cx.now + cx.config.time_wait;
            }
            self.set(bit::ACK_NOW);
        } else if len > 0 || seg.seq == Seq(self.rx.nxt.0.wrapping_sub(1)) {
            // Beyond the window, or a keepalive question.
            self.heard(cx);
            self.set(bit::ACK_NOW);
        } else {
            self.challenge(cx);
        }
    }

    /// RFC 5961 section 3.2.
    fn on_reset<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp) -> Verdict {
        if seg.seq != self.rx.nxt {
            self.challenge(cx);
            return Verdict::Taken;
        }
        cx.ip.stats.resets_in += 1;
        let error = match self.state {
            State::SynReceived => Some(Error::Refused),
            State::TimeWait | State::Closing | State::LastAck => None,
            _ => Some(Error::Reset),
        };
        self.end(cx, error);
        Verdict::Taken
    }

    /// Asks the peer whether it meant that (RFC 5961), not too often.
    fn challenge<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.challenged != Nanos::ZERO && cx.now.since(self.challenged) < CHALLENGE_GAP {
            return;
        }
        self.challenged = cx.now.max(Nanos(1));
        cx.ip.stats.challenges += 1;
        self.set(bit::ACK_NOW);
    }

    /// The acknowledgement of our SYN. `None` when it is good.
    fn take_first_ack<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp) -> Option<Verdict> {
        if seg.ack.at_or_before(self.iss) || self.nxt.before(seg.ack) {
            return Some(Verdict::Reset);
        }
        self.heard(cx);
        if self.attempts == 0 && self.retransmit_at != Nanos::NEVER {
            let rtt = cx.now.since(self.last_out_of_syn(cx));
            self.measure(rtt, cx.config.rto);
        }
        self.establish(cx, seg);
        None
    }

    fn may_reopen(&self, seg: &Tcp) -> bool {
        if seg.flags & (flag::SYN | flag::ACK | flag::RST) != flag::SYN {
            return false;
        }
        let newer = match seg.options.timestamps {
            Some((value, _)) => self.has(bit::TIMESTAMPS) && (value.wrapping_sub(self.rx.echo) as i32) > 0,
            None => false,
        };
        newer || self.rx.nxt.before(seg.seq)
    }

    /// RFC 3168 section 6.1.3.
    fn take_marks(&mut self, seg: &Tcp, ce: bool) {
        if seg.has(flag::CWR) {
            self.clear(bit::ECN_ECHO);
        }
        if ce {
            if !self.has(bit::ECN_ECHO) {
                self.set(bit::ACK_NOW);
            }
            self.set(bit::ECN_ECHO);
        }
    }

    /// Cuts off what lies outside the window.
    fn trim(&mut self, seg: &mut Tcp, payload: &mut Chain, len: &mut u32) {
        let (nxt, edge) = (self.rx.nxt, self.rx.acceptable_edge().max(self.rx.nxt));
        if seg.seq.before(nxt) {
            let old = nxt.since(seg.seq).min(*len);
            if self.has(bit::SACK) && old > 0 {
                self.rx.note_duplicate(seg.seq, seg.seq.add(old));
                self.set(bit::ACK_NOW);
            }
            let bytes = (old as usize).min(payload.len());
            if bytes == payload.len() {
                *payload = Chain::Empty;
            } else {
                payload.trim_front(bytes);
            }
            seg.seq = seg.seq.add(old);
            *len -= old;
        }
        let room = edge.since(seg.seq) as usize;
        if payload.len() > room {
            payload.truncate(room);
            seg.flags &= !flag::FIN;
            *len = room as u32;
            self.set(bit::ACK_NOW);
        }
    }

    fn take_data<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp, payload: Chain) {
        if !self.state.may_receive() {
            return;
        }
        if self.has(bit::ORPHAN) {
            // RFC 9293 section 3.10.7.4 (RFC 1122 section 4.2.2.13): nobody will ever read it.
            self.send_reset_now(cx);
            self.end(cx, Some(Error::Aborted));
            return;
        }
        if self.rx.overrun() {
            cx.ip.stats.dropped += 1;
            self.set(bit::ACK_NOW);
            return;
        }
        if seg.seq != self.rx.nxt {
            // Early: the peer must hear at once (RFC 5681 section 4.2).
            self.rx.keep_early(seg.seq, payload, cx.ip);
            self.set(bit::ACK_NOW);
            return;
        }
        let gaps = self.rx.has_gaps();
        self.rx.append(payload, cx.ip);
        if gaps {
            self.rx.close_gaps(cx.ip);
            self.set(bit::ACK_NOW);
        }
        self.after_data(cx);
        self.signal(cx.events, cx.id, Ready::READABLE);
        if self.rx.take_fin() {
            self.on_end_of_stream(cx);
        }
    }

    fn take_fin<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp, len: u32) {
        if !self.state.may_receive() || len == 0 {
            return;
        }
        self.rx.note_fin(seg.seq.add(len - 1));
        self.set(bit::ACK_NOW);
        if self.rx.take_fin() {
            self.on_end_of_stream(cx);
        }
    }

    /// The peer has finished.
    fn on_end_of_stream<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.set(bit::FIN_RECEIVED | bit::ACK_NOW);
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(cx),
            _ => {}
        }
        self.signal(cx.events, cx.id, Ready::READABLE);
    }

    /// Enters recovery if something is lost and that was not known.
    pub(super) fn enter_if_open<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let pipe = self.pipe();
        if self.recovery.as_ref().is_some_and(|r| r.phase == Phase::Open) {
            self.enter(cx, pipe);
        }
    }
}
