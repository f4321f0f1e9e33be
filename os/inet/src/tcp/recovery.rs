//! Finding out what was lost and sending it again: selective acknowledgements (RFC 2018, RFC 6675), RACK and tail loss
//! probes (RFC 8985), duplicate acknowledgements for peers without them (RFC 5681, RFC 6582), proportional rate
//! reduction (RFC 9937), and undoing it all when timestamps show that nothing was lost (RFC 3522, RFC 4015).
//!
//! Marks of segments are found by binary search; segments are judged in the order they were sent by walking two
//! queues, so an acknowledgement costs what it changes and not what is in flight.

use super::ack::Covered;
use super::congestion::Controller;
use super::{Cx, Retransmit, Tcb, bit, mark};
use crate::config::Sink;
use crate::time::Nanos;
use crate::wire::tcp::{Seq, Tcp};
use std::collections::VecDeque;

/// RFC 5681 section 3.2.
const DUPLICATES: u32 = 3;

/// How a connection stands towards loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nothing is known to be lost; perhaps something came out of order.
    Open,
    /// Acknowledgements revealed a loss (RFC 6675).
    Recover,
    /// The timer expired (RFC 5681 section 3.1).
    Loss,
}

/// Kept only while something is out of order or lost, or reordering was seen.
pub(super) struct Recovery {
    pub(super) phase: Phase,
    /// Recovery ends when this is acknowledged.
    pub(super) high: Seq,
    sacked: u32,
    /// Bytes marked lost and not yet sent again.
    pub(super) lost: u32,
    /// Bytes that duplicate acknowledgements say have left the network, without selective ones.
    left: u32,
    duplicates: u32,
    /// Starts of the segments marked lost, in the order to send them.
    queue: VecDeque<Seq>,
    /// Segments sent again, in the order of sending.
    resent: VecDeque<(Seq, Nanos)>,
    /// The first segment never sent again that was not judged yet.
    scan: Seq,
    /// The highest sequence number acknowledged selectively.
    fack: Seq,
    pub(super) rack_rtt: Nanos,
    reordering: bool,
    /// RFC 8985 section 6.2, step 4: the window of reordering in quarters of the least round trip.
    quarters: u8,
    /// Recoveries until the window shrinks back.
    persist: u8,
    duplicate_round: Seq,
    prr_delivered: u32,
    pub(super) prr_out: u32,
    prr_start: u32,
    /// The timestamp clock at the first resending, while an undoing is possible.
    undo: Option<u32>,
}

impl Recovery {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Recovery>() + self.queue.capacity() * 4 + self.resent.capacity() * 16
    }

    /// Bytes between `una` and `nxt` that are not in the network.
    pub(super) fn absent(&self) -> u32 {
        self.sacked + self.lost + self.left
    }

    /// `n` bytes with these marks were acknowledged.
    pub(super) fn forget(&mut self, marks: u8, n: u32) {
        if marks & mark::SACKED != 0 {
            self.sacked -= n;
        }
        if marks & mark::LOST != 0 {
            self.lost -= n;
        }
    }
}

impl Tcb {
    /// The record of losses, made when first needed.
    pub(super) fn losses(&mut self) -> &mut Recovery {
        let (una, rtt) = (self.una, self.srtt);
        self.recovery.get_or_insert_with(|| {
            Box::new(Recovery {
                phase: Phase::Open,
                high: una,
                sacked: 0,
                lost: 0,
                left: 0,
                duplicates: 0,
                queue: VecDeque::new(),
                resent: VecDeque::new(),
                scan: una,
                fack: una,
                rack_rtt: rtt,
                reordering: false,
                quarters: 1,
                persist: 0,
                duplicate_round: una,
                prr_delivered: 0,
                prr_out: 0,
                prr_start: 0,
                undo: None,
            })
        })
    }

    /// The part of acknowledging that is not the simple case: `newly` bytes were covered.
    #[cold]
    pub(super) fn take_losses<S: Sink>(
        &mut self,
        cx: &mut Cx<'_, S>,
        seg: &Tcp,
        newly: u32,
        covered: &mut Covered,
        (data, window_moved): (bool, bool),
        pipe_before: u32,
    ) {
        self.losses();
        let mut doubled = false;
        let sack = self.has(bit::SACK);
        if sack {
            let (delivered, duplicate) = self.take_sack(seg, cx.now);
            covered.delivered += delivered;
            doubled = duplicate;
            if duplicate {
                self.on_duplicate(seg.ack);
            }
        } else {
            covered.delivered += self.count_duplicate(newly, data || window_moved);
        }
        if newly > 0 && self.try_undo(cx, seg) {
            self.leave_if_calm();
            return;
        }
        let lost_before = self.losses().lost;
        let fresh = if sack { self.detect(cx) } else { self.detect_without_sack(newly) };
        let mss = u32::from(self.mss);
        if fresh && self.losses().phase == Phase::Open {
            self.enter(cx, pipe_before);
        }
        let una = self.una;
        let r = self.losses();
        if r.phase != Phase::Open && r.high.at_or_before(una) {
            self.leave(cx);
        } else if r.phase == Phase::Recover {
            let safe = newly > 0 && r.lost <= lost_before;
            self.reduce_proportionally(covered.delivered, safe, mss, fresh && !sack);
        }
        if self.has(bit::PROBED) && newly == 0 && !data && !window_moved && doubled {
            // RFC 8985 section 7.4.2: the probe arrived beside the original; nothing was lost.
            self.clear(bit::PROBED | bit::PROBE_OLD);
        }
        self.leave_if_calm();
    }

    fn take_sack(&mut self, seg: &Tcp, now: Nanos) -> (u32, bool) {
        let blocks = seg.options.sacks();
        let mut delivered = 0;
        let mut duplicate = false;
        for (i, &(left, right)) in blocks.iter().enumerate() {
            if !left.before(right) {
                continue;
            }
            // RFC 2883: a first block below the acknowledgement, or inside the second, reports a duplicate.
            let inside = blocks.get(1).is_some_and(|&(l, r)| l.at_or_before(left) && right.at_or_before(r));
            if i == 0 && (right.at_or_before(seg.ack) || inside) {
                duplicate = true;
                continue;
            }
            if right.at_or_before(self.una) || !right.at_or_before(self.nxt) || left.before(self.una) {
                continue;
            }
            delivered += self.mark_sacked(left, right, now);
        }
        (delivered, duplicate)
    }

    fn mark_sacked(&mut self, left: Seq, right: Seq, now: Nanos) -> u32 {
        let mss = u32::from(self.mss).max(1);
        let mut delivered = 0;
        let mut i = self.sent.partition_point(|s| s.end().at_or_before(left));
        while let Some(s) = self.sent.get(i) {
            if right.at_or_before(s.seq) {
                break;
            }
            if s.has(mark::SACKED) {
                i += 1;
                continue;
            }
            // Only whole segments count: a peer cannot make us cut them to crumbs.
            if s.seq.before(left) {
                let skip = left.since(s.seq).div_ceil(mss) * mss;
                if skip >= s.len {
                    i += 1;
                    continue;
                }
                self.split_sent(i, skip);
                i += 1;
                continue;
            }
            if right.before(s.end()) {
                let keep = right.since(s.seq) / mss * mss;
                if keep == 0 {
                    break;
                }
                self.split_sent(i, keep);
            }
            let s = &mut self.sent[i];
            let (at, end, len, marks) = (s.at, s.end(), s.len, s.marks);
            s.marks = (marks | mark::SACKED) & !mark::LOST;
            let r = self.losses();
            if marks & mark::LOST != 0 {
                r.lost -= len;
            }
            r.sacked += len;
            delivered += len;
            if end.before(r.fack) && marks & mark::RESENT == 0 {
                // RFC 8985 section 6.2, step 3.
                r.reordering = true;
            }
            r.fack = r.fack.max(end);
            self.advance_rack(at, end, marks, now);
            i += 1;
        }
        delivered
    }

    /// A resending was needless: wait longer for reordering (RFC 8985 section 6.2, step 4).
    fn on_duplicate(&mut self, ack: Seq) {
        let nxt = self.nxt;
        let r = self.losses();
        if r.duplicate_round.at_or_before(ack) {
            r.duplicate_round = nxt;
            r.quarters = r.quarters.saturating_add(1).min(64);
            r.persist = 16;
        }
        r.reordering = true;
    }

    /// RFC 8985 section 6.2, steps 4 and 5. Says whether something is newly lost; sets the reordering timer.
    pub(super) fn detect<S: Sink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        let (rack_at, rack_end, rtt_min, srtt) = (self.rack_at, self.rack_end, self.rtt_min, self.srtt);
        let mss = u32::from(self.mss);
        let nxt = self.nxt;
        let Some(r) = &mut self.recovery else { return false };
        let window = if !r.reordering && (r.phase != Phase::Open || r.sacked >= DUPLICATES * mss) {
            Nanos::ZERO
        } else {
            Nanos(rtt_min.0 / 4 * u64::from(r.quarters)).min(srtt)
        };
        let patience = r.rack_rtt + window;
        let older = |at: Nanos, end: Seq| at < rack_at || (at == rack_at && end.before(rack_end));
        let (mut fresh, mut wait) = (false, Nanos::NEVER);
        let scan = r.scan;
        let mut i = self.sent.partition_point(|s| s.seq.before(scan));
        while let Some(s) = self.sent.get_mut(i) {
            if !s.has(mark::SACKED | mark::LOST | mark::RESENT) {
                if !older(s.at, s.end()) {
                    break;
                }
                if s.at + patience > cx.now {
                    wait = s.at + patience;
                    break;
                }
                s.marks |= mark::LOST;
                r.lost += s.len;
                r.queue.push_back(s.seq);
                fresh = true;
            }
            i += 1;
        }
        r.scan = self.sent.get(i).map_or(nxt, |s| s.seq);
        while let Some(&(seq, at)) = r.resent.front() {
            let found = self.sent.binary_search_by(|s| (s.seq.since(self.una)).cmp(&seq.since(self.una)));
            let live = found.ok().filter(|&i| {
                let s = &self.sent[i];
                s.at == at && s.has(mark::RESENT) && !s.has(mark::SACKED | mark::LOST)
            });
            if let Some(i) = live {
                let s = &mut self.sent[i];
                if !older(s.at, s.end()) {
                    break;
                }
                if at + patience > cx.now {
                    wait = wait.min(at + patience);
                    break;
                }
                s.marks |= mark::LOST;
                r.lost += s.len;
                r.queue.push_back(s.seq);
                fresh = true;
            }
            r.resent.pop_front();
        }
        if wait != Nanos::NEVER && !fresh {
            self.retransmit = Retransmit::Reorder;
            self.retransmit_at = wait;
        } else if self.retransmit == Retransmit::Reorder {
            self.retransmit = Retransmit::Timeout;
            self.retransmit_at = cx.now + self.rto;
        }
        fresh
    }

    /// A duplicate acknowledgement says that one segment has left the network; returns its bytes.
    fn count_duplicate(&mut self, newly: u32, other: bool) -> u32 {
        let mss = u32::from(self.mss);
        let flight = self.nxt.since(self.una);
        let r = self.losses();
        if newly > 0 {
            r.left = r.left.saturating_sub(newly.saturating_sub(mss));
            if r.phase == Phase::Open {
                (r.duplicates, r.left) = (0, 0);
            }
            r.left = r.left.min(flight);
            return 0;
        }
        if other || flight == 0 {
            return 0;
        }
        r.duplicates += 1;
        let room = flight.saturating_sub(r.left + r.lost + mss);
        let n = mss.min(room);
        r.left += n;
        n
    }

    fn detect_without_sack(&mut self, newly: u32) -> bool {
        let Some(r) = &mut self.recovery else { return false };
        let partial = newly > 0 && r.phase == Phase::Recover && self.una.before(r.high);
        if !(partial || (r.phase == Phase::Open && r.duplicates >= DUPLICATES)) {
            return false;
        }
        // RFC 6582 section 3.2: the first unacknowledged segment is the lost one.
        let Some(front) = self.sent.front_mut() else { return false };
        if front.has(mark::LOST) {
            return false;
        }
        front.marks |= mark::LOST;
        r.lost += front.len;
        r.queue.push_front(front.seq);
        true
    }

    pub(super) fn enter<S: Sink>(&mut self, cx: &mut Cx<'_, S>, pipe: u32) {
        let flight = self.nxt.since(self.una);
        let clock = self.has(bit::TIMESTAMPS).then(|| self.clock(cx.now));
        let high = self.nxt;
        let mss = u32::from(self.mss);
        cx.ip.stats.recoveries += 1;
        self.congestion.on_congestion(cx.now, flight, mss, false);
        if self.has(bit::ECN) {
            self.set(bit::ECN_CWR);
        }
        self.mark_end = high;
        let r = self.losses();
        r.phase = Phase::Recover;
        r.high = high;
        (r.prr_delivered, r.prr_out, r.prr_start) = (0, 0, pipe.max(mss));
        r.undo = clock;
    }

    /// RFC 9937 section 6.
    fn reduce_proportionally(&mut self, delivered: u32, safe: bool, mss: u32, partial: bool) {
        let pipe = self.pipe();
        let threshold = self.congestion.threshold();
        let Some(r) = &mut self.recovery else { return };
        r.prr_delivered += delivered;
        let mut room = if pipe > threshold {
            let share = u64::from(r.prr_delivered) * u64::from(threshold);
            (share.div_ceil(u64::from(r.prr_start)) as u32).saturating_sub(r.prr_out)
        } else {
            let mut limit = r.prr_delivered.saturating_sub(r.prr_out).max(delivered);
            if safe {
                limit += mss;
            }
            limit.min(threshold - pipe)
        };
        if r.prr_out == 0 || partial {
            // The first resending goes at once, and so does that of a hole which a partial acknowledgement revealed
            // (RFC 6582 section 3.2).
            room = room.max(mss);
        }
        self.congestion.set_window(pipe + room);
    }

    fn leave<S: Sink>(&mut self, _cx: &mut Cx<'_, S>) {
        let threshold = self.congestion.threshold();
        let Some(r) = &mut self.recovery else { return };
        let loss = r.phase == Phase::Loss;
        r.phase = Phase::Open;
        (r.duplicates, r.left, r.undo) = (0, 0, None);
        r.persist = r.persist.saturating_sub(1);
        if r.persist == 0 {
            r.quarters = 1;
        }
        if !loss {
            self.congestion.set_window(threshold);
        }
    }

    /// RFC 4015: an acknowledgement that answers the first sending, not the second, shows there was no loss.
    fn try_undo<S: Sink>(&mut self, cx: &mut Cx<'_, S>, seg: &Tcp) -> bool {
        let Some(r) = &mut self.recovery else { return false };
        let (Some(clock), Some((_, echo))) = (r.undo, seg.options.timestamps) else { return false };
        if r.phase == Phase::Open || echo == 0 {
            return false;
        }
        r.undo = None;
        if (echo.wrapping_sub(clock) as i32) >= 0 {
            return false;
        }
        for s in &mut self.sent {
            s.marks &= !mark::LOST;
        }
        (r.lost, r.left, r.duplicates, r.phase) = (0, 0, 0, Phase::Open);
        r.queue.clear();
        self.congestion.undo();
        cx.ip.stats.undone += 1;
        true
    }

    /// Drops the record when nothing is out of order any more.
    fn leave_if_calm(&mut self) {
        let calm = self.recovery.as_ref().is_some_and(|r| {
            r.phase == Phase::Open && r.absent() == 0 && r.duplicates == 0 && !r.reordering && r.persist == 0
        });
        if calm {
            self.recovery = None;
        } else if let Some(r) = &mut self.recovery
            && r.absent() == 0
            && r.phase == Phase::Open
        {
            r.resent.clear();
            r.queue.clear();
            r.scan = self.una.max(r.scan);
        }
    }

    /// The timer expired: everything not acknowledged selectively is taken for lost (RFC 5681, RFC 8985 section 6.3).
    pub(super) fn lose_all<S: Sink>(&mut self, cx: &mut Cx<'_, S>) {
        let clock = self.has(bit::TIMESTAMPS).then(|| self.clock(cx.now));
        let (high, mss) = (self.nxt, u32::from(self.mss));
        let flight = self.nxt.since(self.una);
        self.losses();
        let Some(r) = &mut self.recovery else { return };
        // RFC 2018 section 8: a first segment that was acknowledged selectively and still is not cumulatively: the
        // peer took it back.
        let reneged = self.sent.front().is_some_and(|s| s.has(mark::SACKED));
        (r.lost, r.left, r.duplicates) = (0, 0, 0);
        r.queue.clear();
        r.resent.clear();
        for s in &mut self.sent {
            if reneged {
                s.marks &= !mark::SACKED;
            }
            if s.has(mark::SACKED) {
                continue;
            }
            s.marks = (s.marks | mark::LOST) & !mark::RESENT;
            r.lost += s.len;
            r.queue.push_back(s.seq);
        }
        if reneged {
            r.sacked = 0;
        }
        r.scan = high;
        let first = r.phase != Phase::Loss || r.high.at_or_before(self.una);
        if first {
            r.undo = clock;
        }
        r.phase = Phase::Loss;
        r.high = high;
        if first {
            self.congestion.on_timeout(cx.now, flight, mss);
        } else {
            // RFC 5681 section 3.1: another timeout of the same data keeps the threshold.
            self.congestion.set_window(mss);
        }
        self.mark_end = high;
    }

    /// Marks segments longer than the path now takes, to be cut and sent again; that is not congestion.
    pub(super) fn lose_longer_than(&mut self, mss: u32) {
        if !self.sent.iter().any(|s| s.len > mss && !s.has(mark::SACKED | mark::LOST)) {
            return;
        }
        self.losses();
        let Some(r) = &mut self.recovery else { return };
        for s in self.sent.iter_mut().filter(|s| s.len > mss && !s.has(mark::SACKED | mark::LOST)) {
            s.marks |= mark::LOST;
            r.lost += s.len;
            r.queue.push_back(s.seq);
        }
    }

    /// The index of the next segment to send again.
    pub(super) fn next_lost(&mut self) -> Option<usize> {
        loop {
            let r = self.recovery.as_mut()?;
            let seq = *r.queue.front()?;
            if seq.before(self.una) {
                // Perhaps acknowledged in part since: what is left of it starts the queue of the sent.
                if self.sent.front().is_some_and(|s| s.has(mark::LOST)) {
                    return Some(0);
                }
            } else {
                let found = self.sent.binary_search_by(|s| s.seq.since(self.una).cmp(&seq.since(self.una)));
                if let Ok(i) = found
                    && self.sent[i].has(mark::LOST)
                {
                    return Some(i);
                }
            }
            r.queue.pop_front();
        }
    }

    /// The segment at `index` is being sent again.
    pub(super) fn note_resent(&mut self, index: usize, now: Nanos) {
        let s = &mut self.sent[index];
        let was_lost = s.has(mark::LOST);
        s.marks = (s.marks | mark::RESENT) & !mark::LOST;
        s.at = now;
        let (seq, len, end) = (s.seq, s.len, s.end());
        let rest_lost = self.sent.get(index + 1).filter(|n| n.seq == end && n.has(mark::LOST)).map(|n| n.seq);
        let r = self.losses();
        if was_lost {
            r.lost -= len;
            r.queue.pop_front();
            // A segment cut in two: its second half waits next.
            if let Some(rest) = rest_lost
                && r.queue.front() != Some(&rest)
            {
                r.queue.push_front(rest);
            }
        }
        r.resent.push_back((seq, now));
        r.prr_out += len;
    }
}
