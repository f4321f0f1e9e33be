//! What a connection does when its timers run out.

use super::congestion::Controller;
use super::recovery::Phase;
use super::{Cx, Retransmit, State, Tcb, bit};
use crate::config::Sink;
use crate::error::Error;
use crate::time::Nanos;
use crate::wire::tcp::flag;

/// RFC 8899 section 5.1.2: the packet size every path is assumed to take, by family (payload with 60 bytes of headers
/// below it).
const MSS_BASE: u16 = 1200 - 60;
/// Timeouts of one full segment that make a black hole out of a path.
const BLACK_HOLE: u8 = 3;

impl Tcb {
    /// Puts the connection's earliest deadline into the wheel, unless the wheel fires before it anyway.
    #[inline]
    pub(super) fn arm<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let next = self.retransmit_at.min(self.ack_at).min(self.pace_at).min(self.state_at);
        if next < self.wheel_at {
            self.wheel_at = next;
            cx.wheel.at_or_before(cx.id.index, next);
        }
    }

    /// The wheel fired: does what is due and arms what is left.
    pub(super) fn on_timer<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.wheel_at = Nanos::NEVER;
        if self.ack_at <= cx.now {
            self.ack_at = Nanos::NEVER;
            self.send_ack(cx);
        }
        if self.retransmit_at <= cx.now {
            self.on_retransmit(cx);
        }
        if self.state_at <= cx.now {
            self.on_state_timer(cx);
        }
        if self.pace_at <= cx.now {
            self.pace_at = Nanos::NEVER;
        }
        if self.state != State::Closed {
            self.output(cx);
        }
        self.arm(cx);
    }

    fn on_retransmit<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.retransmit_at = Nanos::NEVER;
        match std::mem::replace(&mut self.retransmit, Retransmit::Off) {
            Retransmit::Off => {}
            Retransmit::Timeout if !self.state.synchronised() => self.on_syn_timeout(cx),
            Retransmit::Timeout => self.on_timeout(cx),
            Retransmit::Probe => self.on_probe(cx),
            Retransmit::Reorder => self.on_reorder(cx),
            Retransmit::Persist => self.on_persist(cx),
        }
    }

    /// Whether the peer has been silent for longer than the program or the limit of attempts allows; then it ends.
    fn is_given_up<S: Sink>(&mut self, cx: &mut Cx<'_, S>, limit: u8) -> bool {
        let since = self
            .last_in
            .max(self.sent.front().map_or(Nanos::ZERO, |s| if self.attempts <= 1 { s.at } else { Nanos::ZERO }));
        let patience = self.control.as_ref().map_or(Nanos::ZERO, |c| c.user_timeout);
        // RFC 5482: the program's own limit replaces the count of attempts.
        let over = if patience != Nanos::ZERO { cx.now.since(since) >= patience } else { self.attempts > limit };
        if over {
            cx.ip.stats.timed_out += 1;
            self.end(cx, Some(Error::TimedOut));
        }
        over
    }

    fn back_off(&mut self, cx_now: Nanos, most: Nanos) {
        // RFC 6298 section 5.5.
        self.rto = Nanos(self.rto.0 * 2).min(most);
        self.retransmit = Retransmit::Timeout;
        self.retransmit_at = cx_now + self.rto;
    }

    fn on_syn_timeout<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.attempts += 1;
        if self.is_given_up(cx, cx.config.syn_retries) {
            return;
        }
        cx.ip.stats.retransmits += 1;
        self.send_syn(cx);
        self.back_off(cx.now, cx.config.rto.1);
    }

    fn on_timeout<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.sent.is_empty() {
            return;
        }
        self.attempts = self.attempts.saturating_add(1);
        if self.is_given_up(cx, cx.config.retries) {
            return;
        }
        cx.ip.stats.timeouts += 1;
        self.clear(bit::PROBED | bit::PROBE_OLD);
        // The path may have changed under us: ask for the neighbour anew.
        self.neighbour = None;
        if self.attempts >= BLACK_HOLE && self.mss > MSS_BASE && self.sent.iter().any(|s| s.len > u32::from(MSS_BASE)) {
            let header = if self.flow.remote.is_ipv4() { 40 } else { 60 };
            cx.ip.narrow_path(self.flow.remote, MSS_BASE + header, cx.now);
            self.refresh_mss(cx);
        }
        self.lose_all(cx);
        self.back_off(cx.now, cx.config.rto.1);
        self.pace_next = Nanos::ZERO;
        self.pace_at = Nanos::NEVER;
    }

    /// RFC 8985 section 7.3.
    fn on_probe<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.sent.is_empty() {
            return;
        }
        cx.ip.stats.probes += 1;
        let new = self.send_probe_of_new(cx);
        self.clear(bit::PROBE_OLD);
        if !new {
            let last = self.sent.len() - 1;
            let mss = u32::from(self.mss).max(1);
            // Only the last segment's worth of what may be a longer run.
            let len = self.sent[last].len;
            if len > mss {
                self.split_sent(last, (len - 1) / mss * mss);
            }
            let last = self.sent.len() - 1;
            self.losses();
            self.resend(cx, last);
            self.set(bit::PROBE_OLD);
        }
        self.set(bit::PROBED);
        self.probe_end = self.nxt;
        self.retransmit = Retransmit::Timeout;
        self.retransmit_at = cx.now + self.rto;
    }

    /// RFC 8985 section 7.4: what the probe covered was acknowledged. If only the probe can have repaired a loss, the
    /// loss counts.
    pub(super) fn end_probe<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let repaired = self.has(bit::PROBE_OLD);
        self.clear(bit::PROBED | bit::PROBE_OLD);
        let open = self.recovery.as_ref().is_none_or(|r| r.phase == Phase::Open);
        if repaired && open {
            let flight = self.nxt.since(self.una).max(u32::from(self.mss));
            let window = self.congestion.window();
            self.congestion.on_congestion(cx.now, flight.max(window), u32::from(self.mss), false);
        }
    }

    fn on_reorder<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.retransmit = Retransmit::Timeout;
        self.retransmit_at = cx.now + self.rto;
        if self.detect(cx) {
            self.enter_if_open(cx);
        }
    }

    fn on_persist<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.unsent_len == 0 || !self.sent.is_empty() {
            return;
        }
        self.attempts = self.attempts.saturating_add(1);
        if self.is_given_up(cx, cx.config.retries) {
            return;
        }
        if self.send_despite_silly_window(cx) {
            return;
        }
        // A segment before the window must be answered with an acknowledgement (RFC 9293 section 3.10.7.4).
        let seq = crate::wire::tcp::Seq(self.nxt.0.wrapping_sub(1));
        self.emit(cx, seq, flag::ACK, 0, &[], 0);
        let shift = u32::from(self.attempts.min(10));
        self.retransmit = Retransmit::Persist;
        self.retransmit_at = cx.now + Nanos(self.rto.0 << shift).min(cx.config.rto.1);
    }

    fn on_state_timer<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.state_at = Nanos::NEVER;
        match self.state {
            State::TimeWait => self.end(cx, None),
            State::FinWait2 if self.has(bit::ORPHAN) => self.end(cx, Some(Error::TimedOut)),
            _ => self.on_keepalive(cx),
        }
    }

    /// RFC 9293 section 3.8.4.
    fn on_keepalive<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(keep) = self.control.as_ref().and_then(|c| c.keepalive) else { return };
        let quiet = cx.now.since(self.last_in);
        if !self.sent.is_empty() || self.unsent_len > 0 || quiet < keep.idle {
            let next = if quiet < keep.idle { self.last_in + keep.idle } else { cx.now + keep.idle };
            self.state_at = next;
            return;
        }
        let Some(control) = &mut self.control else { return };
        let patience = control.user_timeout;
        let given_up = if patience != Nanos::ZERO {
            quiet >= patience && control.keep_sent > 0
        } else {
            control.keep_sent >= keep.count
        };
        if given_up {
            cx.ip.stats.timed_out += 1;
            self.send_reset_now(cx);
            self.end(cx, Some(Error::TimedOut));
            return;
        }
        control.keep_sent += 1;
        let seq = crate::wire::tcp::Seq(self.nxt.0.wrapping_sub(1));
        self.emit(cx, seq, flag::ACK, 0, &[], 0);
        self.state_at = cx.now + keep.interval;
    }

    /// Enters TIME-WAIT (RFC 9293 section 3.6): the program has nothing more to wait for.
    pub(super) fn enter_time_wait<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        self.state = State::TimeWait;
        self.release_send();
        self.retransmit = Retransmit::Off;
        self.retransmit_at = Nanos::NEVER;
        self.pace_at = Nanos::NEVER;
        self.state_at = cx.now + cx.config.time_wait;
        self.control = None;
        self.signal(cx.events, cx.id, crate::event::Ready::CLOSED);
    }
}
