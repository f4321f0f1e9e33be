//! What an acknowledgement does: gives buffers back, measures the round trip, moves the windows.

use super::congestion::{Acked, Controller};
use super::recovery::Phase;
use super::{Cx, Retransmit, Sent, State, Tcb, bit, mark};
use crate::config::Sink;
use crate::event::Ready;
use crate::time::Nanos;
use crate::wire::tcp::{Seq, Tcp, flag};

/// RFC 6298: the clock's granularity in the timeout's variance term.
const GRANULARITY: Nanos = Nanos::millis(1);

/// What the cumulative part of an acknowledgement covered.
#[derive(Default)]
pub(super) struct Covered {
    /// Bytes that had not been acknowledged selectively before.
    pub(super) delivered: u32,
    /// A sample of the round-trip time.
    pub(super) rtt: Option<Nanos>,
}

impl Tcb {
    /// Bytes thought to be in the network (RFC 6675 section 4).
    #[inline]
    pub(super) fn pipe(&self) -> u32 {
        let flight = self.nxt.since(self.una);
        match &self.recovery {
            None => flight,
            Some(r) => flight.saturating_sub(r.absent()),
        }
    }

    /// Takes an acceptable acknowledgement: `una <= ack <= nxt` was checked. `data` says that the segment had some.
    #[inline]
    pub(super) fn take_ack<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp, data: bool) {
        let newly = seg.ack.since(self.una);
        let window_moved = self.take_window(seg);
        let pipe_before = self.pipe();
        let mut covered = Covered::default();
        if newly > 0 {
            covered = self.cover(seg.ack, cx.now);
            self.una = seg.ack;
            self.attempts = 0;
        }
        let simple = self.recovery.is_none() && seg.options.sack_count == 0;
        if !simple || (newly == 0 && !data && !window_moved && !self.sent.is_empty()) {
            self.take_losses(cx, seg, newly, &mut covered, (data, window_moved), pipe_before);
        }
        if newly == 0 {
            if self.retransmit == Retransmit::Persist {
                self.attempts = 0;
            }
            return;
        }
        if covered.rtt.is_none() && self.has(bit::TIMESTAMPS) {
            covered.rtt = self.echoed_rtt(seg, cx.now);
        }
        if let Some(rtt) = covered.rtt {
            self.measure(rtt, cx.config.rto);
        }
        let round = self.round_end.at_or_before(self.una);
        if round {
            self.round_end = self.nxt;
            if self.has(bit::NARROW) {
                self.refresh_mss(cx);
            }
        }
        if self.has(bit::ECN) && seg.has(flag::ECE) {
            self.on_mark(cx);
        }
        let open = self.recovery.as_ref().is_none_or(|r| r.phase != Phase::Recover);
        if open {
            let acked = Acked {
                now: cx.now,
                bytes: covered.delivered,
                srtt: self.srtt,
                rtt: covered.rtt,
                // RFC 7661: in slow start a window half used is still being tried out.
                window_limited: self.has(bit::WINDOW_LIMITED)
                    || (self.congestion.window() < self.congestion.threshold()
                        && self.congestion.window() < 2 * pipe_before),
                mss: u32::from(self.mss),
                round,
            };
            self.congestion.on_ack(&acked);
        }
        self.after_progress(cx);
    }

    /// RFC 9293 section 3.10.7.4: the window is that of the newest segment. Says whether it changed.
    #[inline]
    pub(super) fn take_window(&mut self, seg: &Tcp) -> bool {
        if !(self.wl1.before(seg.seq) || (self.wl1 == seg.seq && self.wl2.at_or_before(seg.ack))) {
            return false;
        }
        let shift = if seg.has(flag::SYN) { 0 } else { self.scale_out };
        let window = u32::from(seg.window) << shift;
        let changed = window != self.window;
        (self.wl1, self.wl2, self.window) = (seg.seq, seg.ack, window);
        self.window_max = self.window_max.max(window);
        changed
    }

    /// Gives back what lies before `ack`.
    #[inline]
    fn cover(&mut self, ack: Seq, now: Nanos) -> Covered {
        let mut covered = Covered::default();
        while let Some(front) = self.sent.front_mut() {
            if ack.at_or_before(front.seq) {
                break;
            }
            let whole = front.end().at_or_before(ack);
            let n = if whole { front.len } else { ack.since(front.seq) };
            let (at, marks, end) = (front.at, front.marks, front.seq.add(n));
            if whole {
                self.sent.pop_front();
            } else {
                let bytes = (n as usize).min(front.payload.len());
                front.payload.trim_front(bytes);
                front.seq = front.seq.add(n);
                front.len -= n;
            }
            if let Some(r) = &mut self.recovery {
                r.forget(marks, n);
            }
            if marks & mark::SACKED == 0 {
                covered.delivered += n;
                self.advance_rack(at, end, marks, now);
                if marks & mark::RESENT == 0 {
                    covered.rtt = Some(now.since(at));
                }
            }
        }
        covered
    }

    /// RFC 8985 section 6.2, step 2: the latest sent segment that was delivered.
    #[inline]
    pub(super) fn advance_rack(&mut self, at: Nanos, end: Seq, marks: u8, now: Nanos) {
        if marks & mark::RESENT != 0 && now.since(at) < self.rtt_min {
            // Too early to be an answer to the second sending.
            return;
        }
        if at > self.rack_at || (at == self.rack_at && self.rack_end.before(end)) {
            (self.rack_at, self.rack_end) = (at, end);
            if let Some(r) = &mut self.recovery {
                r.rack_rtt = now.since(at);
            }
        }
    }

    /// A sample from the echoed timestamp, for when everything acknowledged had been sent twice (RFC 7323 section 4).
    fn echoed_rtt(&self, seg: &Tcp, now: Nanos) -> Option<Nanos> {
        let (_, echo) = seg.options.timestamps?;
        let ms = self.clock(now).wrapping_sub(echo);
        (echo != 0 && ms < 1 << 24).then_some(Nanos::millis(u64::from(ms.max(1))))
    }

    /// RFC 6298 section 2.
    #[inline]
    pub(super) fn measure(&mut self, rtt: Nanos, (least, most): (Nanos, Nanos)) {
        let rtt = Nanos(rtt.0.max(1));
        if self.srtt == Nanos::ZERO {
            self.srtt = rtt;
            self.rttvar = Nanos(rtt.0 / 2);
            self.rtt_min = rtt;
        } else {
            let off = self.srtt.0.abs_diff(rtt.0);
            self.rttvar = Nanos((self.rttvar.0 * 3 + off) / 4);
            self.srtt = Nanos((self.srtt.0 * 7 + rtt.0) / 8);
            // A minimum that forgets slowly, so that a longer path is believed in the end.
            self.rtt_min =
                if rtt <= self.rtt_min { rtt } else { Nanos(self.rtt_min.0 + (rtt.0 - self.rtt_min.0) / 256) };
        }
        let margin = Nanos(GRANULARITY.0.max(self.rttvar.0 * 4));
        self.rto = (self.srtt + margin).max(least).min(most);
    }

    /// Congestion was marked: once a round trip the window is reduced (RFC 3168 section 6.1.2).
    fn on_mark<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let recovering = self.recovery.as_ref().is_some_and(|r| r.phase != Phase::Open);
        if recovering || !self.mark_end.at_or_before(self.una) {
            return;
        }
        self.mark_end = self.nxt;
        let flight = self.nxt.since(self.una).max(u32::from(self.mss));
        self.congestion.on_congestion(cx.now, flight, u32::from(self.mss), true);
        self.set(bit::ECN_CWR);
    }

    /// Data left the queue: timers, waiting pushes, the end.
    #[inline]
    fn after_progress<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.has(bit::PROBED) && self.probe_end.at_or_before(self.una) {
            self.end_probe(cx);
        }
        // RFC 6298 section 5.3: restart on new acknowledgements, stop when nothing is left.
        self.restart_retransmit(cx);
        if self.has(bit::PUSH_WAITS) {
            self.check_released(cx);
        }
        if self.sent.is_empty() && self.unsent_len == 0 {
            self.signal_drained(cx);
        }
    }

    #[inline]
    fn signal_drained<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        // Only who closed waits for this; a program that keeps sending is spared the event.
        if self.has(bit::FIN_SENT) {
            self.signal(cx.events, cx.id, Ready::DRAINED);
        }
    }

    /// Pushes whose last byte now lies within what the connection takes responsibility for are complete.
    pub(super) fn check_released<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        // The budget follows the congestion window, so that a fast path is kept busy (RFC 9293 leaves it open).
        let want = self.congestion.window().saturating_mul(2);
        self.send_limit = self.send_limit.max(want.min(cx.config.send_buffer.1));
        self.signal(cx.events, cx.id, Ready::RELEASED);
        if self.outstanding() <= self.send_limit as usize {
            self.clear(bit::PUSH_WAITS);
        }
    }

    /// Bytes queued and in flight.
    pub(super) fn outstanding(&self) -> usize {
        self.unsent_len + self.nxt.since(self.una) as usize
    }

    /// RFC 9293 section 3.10.7.4, what an acknowledgement of our FIN changes. Says whether the connection is over.
    pub(super) fn take_fin_ack<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        if !self.has(bit::FIN_SENT) || self.una != self.nxt {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.has(bit::ORPHAN) {
                    self.state_at = cx.now + cx.config.fin_wait;
                }
            }
            State::Closing => self.enter_time_wait(cx),
            State::LastAck => self.end(cx, None),
            _ => {}
        }
    }

    /// Splits the segment at `index` after `n` sequence numbers.
    pub(super) fn split_sent(&mut self, index: usize, n: u32) {
        let first = &mut self.sent[index];
        if n == 0 || n >= first.len {
            return;
        }
        let front = first.payload.split_to((n as usize).min(first.payload.len()));
        let back = Sent {
            seq: first.seq.add(n),
            len: first.len - n,
            at: first.at,
            payload: std::mem::replace(&mut first.payload, front),
            marks: first.marks,
        };
        first.len = n;
        first.marks &= !mark::FIN;
        self.sent.insert(index + 1, back);
    }
}
