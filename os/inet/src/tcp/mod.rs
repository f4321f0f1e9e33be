//! TCP (RFC 9293 and what has been added to it): `input` takes segments, `ack` what they acknowledge and `recovery`
//! what they reveal as lost, `receive` holds what the program will pop, `output` decides what to send, `timer` what to
//! do when nothing comes, `layer` finds the connection and answers calls, `listen` opens new ones.

mod ack;
pub mod congestion;
mod control;
mod input;
mod layer;
mod listen;
mod output;
mod receive;
mod recovery;
mod timer;

use crate::chain::Chain;
use crate::config::{Sink, TcpConfig};
use crate::demux::Flow;
use crate::error::Error;
use crate::event::{Events, Queued, Ready};
use crate::ip::Ip;
use crate::time::Nanos;
use crate::wheel::Wheel;
use crate::wire::ethernet::Mac;
use crate::wire::tcp::Seq;
use congestion::Congestion;
pub(crate) use control::Control;
pub use control::{KeepAlive, Options, Released, TcpInfo};
pub(crate) use layer::{Env, IcmpError, Tcp};
use receive::Receive;
pub(crate) use receive::is_wasteful;
use recovery::Recovery;
use std::collections::VecDeque;
use towpath_cbuf::Buf;

/// Names a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TcpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The states of RFC 9293 section 3.3.2 that a connection can be in (LISTEN belongs to listeners).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the names are the RFC's")]
pub enum State {
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

impl State {
    /// Whether data may still be queued for sending.
    fn may_push(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived | State::Established | State::CloseWait)
    }

    /// Whether data and the FIN may go out, or be retransmitted.
    fn may_send(self) -> bool {
        matches!(self, State::Established | State::CloseWait | State::FinWait1 | State::Closing | State::LastAck)
    }

    /// Whether the peer may still send data.
    fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    fn synchronised(self) -> bool {
        self >= State::Established
    }
}

/// Facts about a connection, one bit each.
mod bit {
    /// Timestamps were agreed on.
    pub const TIMESTAMPS: u32 = 1;
    /// Selective acknowledgements were agreed on.
    pub const SACK: u32 = 1 << 1;
    /// ECN was agreed on.
    pub const ECN: u32 = 1 << 2;
    /// The peer's packets were marked: echo it until it says that it heard.
    pub const ECN_ECHO: u32 = 1 << 3;
    /// The window was reduced: say so on the next new data.
    pub const ECN_CWR: u32 = 1 << 4;
    /// An acknowledgement is due at once.
    pub const ACK_NOW: u32 = 1 << 5;
    /// The program wants no delay for small segments.
    pub const NO_DELAY: u32 = 1 << 6;
    /// The program holds back partial segments.
    pub const CORK: u32 = 1 << 7;
    /// The program has closed: after the data comes the FIN.
    pub const FIN_QUEUED: u32 = 1 << 8;
    /// The FIN has been sent.
    pub const FIN_SENT: u32 = 1 << 9;
    /// The peer's FIN has been received in order.
    pub const FIN_RECEIVED: u32 = 1 << 10;
    /// The program's handle is gone.
    pub const ORPHAN: u32 = 1 << 11;
    /// Opened by a listener and not yet given to the program.
    pub const EMBRYO: u32 = 1 << 12;
    /// In the ready queue.
    pub const QUEUED: u32 = 1 << 13;
    /// The last sending stopped at the congestion window.
    pub const WINDOW_LIMITED: u32 = 1 << 14;
    /// Waits for room in the device.
    pub const BLOCKED: u32 = 1 << 15;
    /// A push waits to be taken responsibility for.
    pub const PUSH_WAITS: u32 = 1 << 16;
    /// The segment size is below what the interface allows, because the path is narrow.
    pub const NARROW: u32 = 1 << 17;
    /// Window scaling was agreed on.
    pub const SCALED: u32 = 1 << 19;
    /// A tail loss probe is out.
    pub const PROBED: u32 = 1 << 21;
    /// That probe sent old data again.
    pub const PROBE_OLD: u32 = 1 << 22;
    /// In the lookup table.
    pub const LISTED: u32 = 1 << 24;
}

/// What the retransmission timer is set for; the kinds exclude each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Retransmit {
    Off,
    /// RFC 6298.
    Timeout,
    /// RFC 8985 section 7.
    Probe,
    /// RFC 8985 section 6.2: reordering must settle.
    Reorder,
    /// RFC 9293 section 3.8.6.1: the window is shut.
    Persist,
}

/// Segments in flight carry marks.
mod mark {
    pub const FIN: u8 = 1;
    pub const SACKED: u8 = 2;
    pub const LOST: u8 = 4;
    pub const RESENT: u8 = 8;
}

/// A segment that was sent and is not acknowledged, with its bytes.
struct Sent {
    seq: Seq,
    /// Sequence numbers it covers: its bytes, and one for a FIN.
    len: u32,
    at: Nanos,
    payload: Chain,
    marks: u8,
}

impl Sent {
    fn end(&self) -> Seq {
        self.seq.add(self.len)
    }

    fn has(&self, marks: u8) -> bool {
        self.marks & marks != 0
    }
}

/// One connection (RFC 9293's transmission control block).
pub(crate) struct Tcb {
    pub(crate) flow: Flow,
    pub(crate) state: State,
    retransmit: Retransmit,
    bits: u32,
    ready: u8,
    /// Consecutive timeouts, probes of a shut window, or keepalive probes without an answer.
    attempts: u8,
    scale_out: u8,
    scale_in: u8,
    /// Segments that will be acknowledged without delay.
    quick: u8,
    neighbour: Option<Mac>,
    neighbour_epoch: u32,

    una: Seq,
    nxt: Seq,
    iss: Seq,
    wl1: Seq,
    wl2: Seq,
    window: u32,
    window_max: u32,
    /// Payload bytes of a full segment.
    mss: u16,
    /// What the peer's SYN allowed.
    mss_peer: u16,
    echo_offset: u32,
    /// End of the round trip being counted.
    round_end: Seq,
    /// End of what the tail loss probe covers.
    probe_end: Seq,
    /// Where congestion marks may next reduce the window.
    mark_end: Seq,

    srtt: Nanos,
    rttvar: Nanos,
    rtt_min: Nanos,
    rto: Nanos,
    rack_at: Nanos,
    rack_end: Seq,

    congestion: Congestion,
    sent: VecDeque<Sent>,
    unsent: VecDeque<Buf>,
    unsent_len: usize,
    send_limit: u32,
    /// Bytes the program ever pushed.
    pushed: u64,
    recovery: Option<Box<Recovery>>,
    control: Option<Box<Control>>,

    rx: Receive,

    retransmit_at: Nanos,
    ack_at: Nanos,
    /// When the next paced segment may go; the timer for it runs while something waits.
    pace_next: Nanos,
    pace_at: Nanos,
    state_at: Nanos,
    wheel_at: Nanos,
    last_in: Nanos,
    last_out: Nanos,
    challenged: Nanos,
    pub(crate) error: Option<Error>,
    /// The listener it came from, until it is accepted.
    pub(crate) listener: u32,
}

/// Everything a connection needs from outside while it does one thing.
pub(crate) struct Cx<'a, S> {
    pub(crate) now: Nanos,
    pub(crate) ip: &'a mut Ip,
    pub(crate) sink: &'a mut S,
    pub(crate) config: &'a TcpConfig,
    pub(crate) wheel: &'a mut Wheel,
    pub(crate) events: &'a mut Events,
    pub(crate) blocked: &'a mut Vec<TcpId>,
    pub(crate) id: TcpId,
}

impl Tcb {
    #[inline]
    fn has(&self, bits: u32) -> bool {
        self.bits & bits == bits
    }

    #[inline]
    fn set(&mut self, bits: u32) {
        self.bits |= bits;
    }

    #[inline]
    fn clear(&mut self, bits: u32) {
        self.bits &= !bits;
    }

    /// Tells the program, unless it has left or not yet come.
    #[inline]
    pub(crate) fn signal(&mut self, events: &mut Events, id: TcpId, ready: u8) {
        if self.bits & (bit::ORPHAN | bit::EMBRYO) != 0 {
            return;
        }
        self.ready |= ready;
        if self.bits & bit::QUEUED == 0 {
            self.bits |= bit::QUEUED;
            events.push_back(Queued::Tcp(id));
        }
    }

    /// Takes what the program is to be told.
    pub(crate) fn take_ready(&mut self) -> Ready {
        self.bits &= !bit::QUEUED;
        Ready(std::mem::take(&mut self.ready))
    }

    /// The clock of timestamps: milliseconds, from a secret start per connection (RFC 7323 section 5.4).
    #[inline]
    fn clock(&self, now: Nanos) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.echo_offset)
    }

    /// Ends the connection at once. The program learns why.
    fn end<S: Sink>(&mut self, cx: &mut Cx<'_, S>, error: Option<Error>) {
        self.state = State::Closed;
        self.error = self.error.or(error);
        self.retransmit = Retransmit::Off;
        for timer in [&mut self.retransmit_at, &mut self.ack_at, &mut self.pace_at, &mut self.state_at] {
            *timer = Nanos::NEVER;
        }
        self.release_send();
        self.rx.drop_gaps();
        self.clear(bit::ACK_NOW);
        self.signal(cx.events, cx.id, Ready::CLOSED | Ready::READABLE);
    }

    /// Gives every buffer that waited for acknowledgement back.
    fn release_send(&mut self) {
        self.sent = VecDeque::new();
        self.unsent = VecDeque::new();
        self.unsent_len = 0;
        self.recovery = None;
    }

    /// Bytes the connection holds, buffers not counted.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Tcb>()
            + self.sent.capacity() * size_of::<Sent>()
            + self.unsent.capacity() * size_of::<Buf>()
            + self.rx.bytes()
            + self.recovery.as_ref().map_or(0, |r| r.bytes())
            + self.control.as_ref().map_or(0, |_| size_of::<Control>())
    }
}

/// The size is a promise: 100,000 idle connections in 100 MB.
const _: () = assert!(size_of::<Tcb>() <= 640);
