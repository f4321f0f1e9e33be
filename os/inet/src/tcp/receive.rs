//! The receiving half: bytes in order for the program, bytes out of order until the gap closes, and the window.
//!
//! Received bytes are slices of the device's frames, and a slice keeps its whole frame. So a slice is charged as its
//! frame, small ones that would wait behind others are copied out, and when the device runs short all are. The window
//! offered is the free part of the budget, scaled by how much of a charge is payload.

use super::{Tcb, bit};
use crate::chain::Chain;
use crate::config::{Sink, TcpConfig};
use crate::ip::Ip;
use crate::time::Nanos;
use crate::wire::tcp::{Options, Seq};
use std::collections::{BTreeMap, VecDeque};
use towpath_cbuf::{Buf, Sga};

/// What a piece is charged beyond its memory: its place in the queue.
const OVERHEAD: u32 = 32;

/// Whether a slice keeps at least twice the memory that a copy would.
#[inline]
pub(crate) fn is_wasteful(buf: &Buf) -> bool {
    buf.footprint() >= 2 * buf.len() + 64
}

/// Bytes that came too early, by their distance from the first byte of the stream.
#[derive(Default)]
struct Gaps {
    pieces: BTreeMap<u64, Buf>,
    /// Runs of them, start to end.
    runs: BTreeMap<u64, u64>,
    /// Starts of the runs that changed last, the latest first (RFC 2018 section 4).
    recent: VecDeque<u64>,
    charged: u32,
    len: u32,
    /// A range received twice, to be reported first (RFC 2883).
    duplicate: Option<(Seq, Seq)>,
}

/// The receiving half of a connection.
pub(super) struct Receive {
    pub(super) nxt: Seq,
    pub(super) irs: Seq,
    /// The right edge of the window offered.
    edge: Seq,
    /// The last acknowledgement sent.
    pub(super) acked: Seq,
    /// The timestamp to echo, and when it was noted.
    pub(super) echo: u32,
    pub(super) echo_at: Nanos,
    /// Bytes taken in order since the stream began.
    taken: u64,
    queue: VecDeque<Buf>,
    len: u32,
    charged: u32,
    pub(super) limit: u32,
    /// Payload in 256ths of what it is charged.
    ratio: u8,
    /// Bytes the program popped in the current measuring round, and when that began.
    popped: u32,
    popped_since: Nanos,
    popped_before: u32,
    gaps: Option<Box<Gaps>>,
    /// Where the peer's FIN lies, if it came early.
    fin_at: Option<Seq>,
}

impl Receive {
    pub(super) fn new(limit: u32) -> Receive {
        Receive {
            nxt: Seq(0),
            irs: Seq(0),
            edge: Seq(0),
            acked: Seq(0),
            echo: 0,
            echo_at: Nanos::ZERO,
            taken: 0,
            queue: VecDeque::new(),
            len: 0,
            charged: 0,
            limit,
            ratio: 128,
            popped: 0,
            popped_since: Nanos::ZERO,
            popped_before: 0,
            gaps: None,
            fin_at: None,
        }
    }

    /// The peer's first sequence number is known.
    pub(super) fn start(&mut self, irs: Seq) {
        self.irs = irs;
        self.nxt = irs.add(1);
        self.acked = self.nxt;
        self.edge = self.nxt;
    }

    #[inline]
    pub(super) fn has_gaps(&self) -> bool {
        self.gaps.is_some()
    }

    pub(super) fn drop_gaps(&mut self) {
        self.gaps = None;
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn clear(&mut self) {
        self.queue = VecDeque::new();
        (self.len, self.charged, self.gaps) = (0, 0, None);
    }

    pub(super) fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Buf>()
            + self.gaps.as_ref().map_or(0, |g| size_of::<Gaps>() + g.pieces.len() * 48 + g.runs.len() * 32)
    }

    /// The window the peer may use now, in bytes.
    #[inline]
    pub(super) fn window(&self) -> u32 {
        if self.edge.before(self.nxt) { 0 } else { self.edge.since(self.nxt) }
    }

    /// The window as far as it was ever offered, for judging whether a segment is acceptable.
    #[inline]
    pub(super) fn acceptable_edge(&self) -> Seq {
        self.edge
    }

    fn free(&self) -> u32 {
        let held = self.charged + self.gaps.as_ref().map_or(0, |g| g.charged.saturating_sub(g.len));
        let free = u64::from(self.limit.saturating_sub(held));
        (free * u64::from(self.ratio) / 256) as u32
    }

    /// The window to offer now: it never shrinks, and grows only by what is worth telling (RFC 9293 section
    /// 3.8.6.2.2). Returns the field for a segment, given the shift.
    #[inline]
    pub(super) fn offer(&mut self, scale: u8, mss: u32) -> u16 {
        let current = self.window();
        let free = self.free();
        let worth = mss.min(self.limit / 2);
        let window =
            if free > current && (free - current >= worth || current == 0 && free >= worth) { free } else { current };
        let field = (window >> scale).min(0xffff) as u16;
        let edge = self.nxt.add(u32::from(field) << scale);
        self.edge = self.edge.max(edge);
        field
    }

    /// Whether the window has grown enough that the peer should hear of it without being asked.
    pub(super) fn should_update(&self, mss: u32) -> bool {
        let (free, current) = (self.free(), self.window());
        let worth = (2 * mss).min(self.limit / 2);
        free > current && free - current >= worth && (current < worth || free - current >= current)
    }

    /// The charge of a slice: all the memory it keeps from being used again.
    #[inline]
    fn charge(buf: &Buf) -> u32 {
        buf.footprint().max(buf.len()) as u32 + OVERHEAD
    }

    /// A slice, or a copy of it when it would keep too much memory from the device.
    #[inline]
    fn keep(buf: Buf, waits: bool, ip: &mut Ip) -> Buf {
        if (ip.pressed || (waits && is_wasteful(&buf)))
            && let Ok(copy) = ip.memory.copy_from(&buf)
        {
            ip.stats.copied_out += copy.len() as u64;
            return copy;
        }
        buf
    }

    /// Takes bytes that continue the stream.
    #[inline]
    pub(super) fn append(&mut self, payload: Chain, ip: &mut Ip) {
        for buf in payload {
            let buf = Receive::keep(buf, !self.queue.is_empty(), ip);
            let (len, charge) = (buf.len() as u32, Receive::charge(&buf));
            self.nxt = self.nxt.add(len);
            self.taken += u64::from(len);
            self.len += len;
            self.charged += charge;
            if len >= 512 {
                // A slow average: one odd frame does not move the window.
                let now = (u64::from(len) * 255 / u64::from(charge.max(1))) as u32;
                self.ratio = ((u32::from(self.ratio) * 7 + now) / 8).max(16) as u8;
            }
            self.queue.push_back(buf);
        }
        if self.charged > self.limit {
            self.collapse(ip);
        }
    }

    /// Copies runs of small pieces together, when they cost more than the connection may hold.
    #[cold]
    fn collapse(&mut self, ip: &mut Ip) {
        let mut packed: VecDeque<Buf> = VecDeque::new();
        let mut run = Chain::Empty;
        let small = 2048;
        let mut charged = 0;
        let close = |run: &mut Chain, packed: &mut VecDeque<Buf>, ip: &mut Ip| {
            let run = std::mem::take(run);
            if run.as_slice().len() > 1
                && let Some(whole) = run.gather(&ip.memory)
            {
                ip.stats.copied_out += whole.len() as u64;
                packed.push_back(whole);
                return;
            }
            packed.extend(run);
        };
        for buf in std::mem::take(&mut self.queue) {
            if buf.len() > small || run.len() + buf.len() > 16 << 10 {
                close(&mut run, &mut packed, ip);
            }
            if buf.len() > small {
                packed.push_back(buf);
            } else {
                run.push(buf);
            }
        }
        close(&mut run, &mut packed, ip);
        for buf in &packed {
            charged += Receive::charge(buf);
        }
        self.queue = packed;
        self.charged = charged;
    }

    /// Whether the connection holds so much that even bytes inside the offered window must be refused: a peer that
    /// fills windows with tiny segments.
    pub(super) fn overrun(&self) -> bool {
        let held = u64::from(self.charged) + self.gaps.as_ref().map_or(0, |g| u64::from(g.charged));
        held > 2 * u64::from(self.limit) + (1 << 16)
    }

    /// Keeps bytes that came early. `seq` lies beyond `nxt`.
    pub(super) fn keep_early(&mut self, seq: Seq, payload: Chain, ip: &mut Ip) {
        let (taken, nxt) = (self.taken, self.nxt);
        let gaps = self.gaps.get_or_insert_with(Default::default);
        let start = taken + u64::from(seq.since(nxt));
        let mut at = start;
        for buf in payload {
            let len = buf.len() as u64;
            gaps.insert(at, buf, ip);
            at += len;
        }
        if let Some((left, right)) = gaps.join(start, at) {
            let seq = |offset: u64| nxt.add((offset - taken) as u32);
            gaps.duplicate = Some((seq(left), seq(right)));
        }
    }

    /// The bytes from `left` to `right` came although they had come before.
    pub(super) fn note_duplicate(&mut self, left: Seq, right: Seq) {
        // Without gaps there is no box to keep it in; one is made, and goes again with the next acknowledgement.
        self.gaps.get_or_insert_with(Default::default).duplicate = Some((left, right));
    }

    /// Notes that the peer's FIN lies at `seq`, which is beyond `nxt`.
    pub(super) fn note_fin(&mut self, seq: Seq) {
        self.fin_at = Some(seq);
    }

    /// Whether the peer's FIN is the next thing in the stream; then it is taken.
    pub(super) fn take_fin(&mut self) -> bool {
        if self.fin_at != Some(self.nxt) {
            return false;
        }
        self.fin_at = None;
        self.nxt = self.nxt.add(1);
        self.gaps = None;
        true
    }

    /// Moves what a closed gap made continuous to the program's queue.
    pub(super) fn close_gaps(&mut self, ip: &mut Ip) {
        let Some(mut gaps) = self.gaps.take() else { return };
        while let Some(entry) = gaps.pieces.first_entry() {
            let start = *entry.key();
            if start > self.taken {
                break;
            }
            let mut buf = entry.remove();
            gaps.charged -= Receive::charge(&buf);
            gaps.len -= buf.len() as u32;
            let skip = self.taken - start;
            if skip < buf.len() as u64 {
                buf.trim_front(skip as usize);
                self.append(Chain::One(buf), ip);
            }
        }
        while let Some(run) = gaps.runs.first_entry() {
            if *run.get() > self.taken {
                break;
            }
            let start = *run.key();
            run.remove();
            gaps.recent.retain(|&r| r != start);
        }
        if !gaps.runs.is_empty() || gaps.duplicate.is_some() {
            self.gaps = Some(gaps);
        }
    }

    /// Writes the selective acknowledgements due: a duplicate first, then the runs that changed last.
    pub(super) fn fill_sack(&mut self, options: &mut Options) {
        let Some(gaps) = &mut self.gaps else { return };
        let mut n = 0;
        if let Some(range) = gaps.duplicate.take() {
            options.sack[0] = range;
            n = 1;
        }
        let room = if options.timestamps.is_some() { 3 } else { 4 };
        for start in &gaps.recent {
            if n == room {
                break;
            }
            let Some(end) = gaps.runs.get(start) else { continue };
            let seq = |offset: u64| self.nxt.add((offset.wrapping_sub(self.taken)) as u32);
            options.sack[n] = (seq(*start), seq(*end));
            n += 1;
        }
        options.sack_count = n as u8;
        if gaps.runs.is_empty() {
            self.gaps = None;
        }
    }

    /// Takes up to `max` bytes for the program.
    #[inline]
    pub(super) fn pop(&mut self, max: usize) -> Sga {
        let mut out = Sga::new();
        let mut room = max;
        while let Some(front) = self.queue.front_mut() {
            if front.len() > room {
                if room > 0 {
                    let before = Receive::charge(front);
                    let piece = front.split_to(room);
                    self.charged = self.charged - before + Receive::charge(front);
                    self.len -= piece.len() as u32;
                    out.push_back(piece);
                }
                break;
            }
            let Some(buf) = self.queue.pop_front() else { break };
            self.charged -= Receive::charge(&buf);
            self.len -= buf.len() as u32;
            room -= buf.len();
            out.push_back(buf);
        }
        out
    }

    /// Grows the budget when the program drains a window's worth a round trip (dynamic right-sizing: the window
    /// should be twice what one round trip brings).
    pub(super) fn tune(&mut self, popped: usize, rtt: Nanos, now: Nanos, config: &TcpConfig) {
        self.popped = self.popped.saturating_add(popped as u32);
        if now.since(self.popped_since) < rtt.max(Nanos::micros(50)) {
            return;
        }
        if self.popped > self.popped_before {
            let need = u64::from(self.popped) * 2 * 256 / u64::from(self.ratio.max(1)) + (64 << 10);
            let max = u64::from(config.receive_buffer.1).max(u64::from(self.limit));
            self.limit = self.limit.max(need.min(max) as u32);
            self.popped_before = self.popped;
        }
        self.popped = 0;
        self.popped_since = now;
    }
}

impl Gaps {
    /// Adds the parts of `buf` not yet there.
    fn insert(&mut self, start: u64, buf: Buf, ip: &mut Ip) {
        let end = start + buf.len() as u64;
        let mut at = start;
        while at < end {
            // Skip what a piece before covers.
            if let Some((s, piece)) = self.pieces.range(..=at).next_back() {
                let covered = s + piece.len() as u64;
                if covered > at {
                    at = covered;
                    continue;
                }
            }
            let stop = self.pieces.range(at..end).next().map_or(end, |(s, _)| *s);
            let piece = buf.slice((at - start) as usize..(stop - start) as usize);
            let piece = Receive::keep(piece, true, ip);
            self.charged += Receive::charge(&piece);
            self.len += piece.len() as u32;
            self.pieces.insert(at, piece);
            at = stop;
        }
    }

    /// Joins the run `start..end` with those it touches; returns what of it had come before, if anything.
    fn join(&mut self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (mut left, mut right) = (start, end);
        let mut duplicate = None;
        let touching: Vec<u64> =
            self.runs.range(..=end).rev().take_while(|(_, e)| **e >= start).map(|(s, _)| *s).collect();
        for s in touching {
            let Some(e) = self.runs.remove(&s) else { continue };
            let (from, to) = (s.max(start), e.min(end));
            if from < to {
                duplicate = Some((from, to));
            }
            left = left.min(s);
            right = right.max(e);
            self.recent.retain(|&r| r != s);
        }
        self.runs.insert(left, right);
        self.recent.push_front(left);
        self.recent.truncate(4);
        duplicate
    }
}

impl Tcb {
    /// Pops up to `max` bytes; tells the peer if that opened the window much.
    #[inline]
    pub(super) fn pop<S: Sink>(&mut self, cx: &mut super::Cx<'_, S>, max: usize) -> Sga {
        let out = self.rx.pop(max);
        let n = out.len();
        let rtt = if self.srtt == Nanos::ZERO { Nanos::millis(100) } else { self.srtt };
        self.rx.tune(n, rtt, cx.now, cx.config);
        if self.state.may_receive() && !self.has(bit::FIN_RECEIVED) && self.rx.should_update(u32::from(self.mss)) {
            self.send_ack(cx);
        }
        out
    }
}
