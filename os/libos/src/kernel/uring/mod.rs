//! The io_uring driver. A connection keeps one multishot receive (or accept) armed, which takes a provided buffer when
//! data has come; sends go into the submission ring and are handed over with the next pass, many in one system call.
//!
//! What the kernel may still touch is kept in `flights` until its completion has come, whatever became of the queue or
//! of the future that asked: closing a queue cancels its requests but never frees their memory early.

mod buffers;
mod files;

use super::begin_push;
use super::socket::{Accepting, Kind, Role, Socket};
use crate::core::{Body, Counters, Ops, Patience, Pending, Queues, Started};
use crate::error::{Error, Result};
use crate::sys::{self, Errno, RawAddress};
use crate::tokens::{Outcome, Token};
use crate::waiting::Unparker;
use crate::{Address, Qd};
use buffers::Group;
use io_uring::types::{CancelBuilder, Fd, RecvMsgOut, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_cbuf::{Memory, Sga};

/// Submissions between two system calls, and completions between two looks: bursts beyond are handed over in between,
/// or kept by the kernel (IORING_FEAT_NODROP).
const SUBMISSIONS: u32 = 512;
const COMPLETIONS: u32 = 4096;
/// Buffers offered to streams: 4 MB a runtime.
const STREAM_BUFFERS: u16 = 256;
const STREAM_SIZE: usize = 16 << 10;
/// Buffers offered to datagram sockets, each holding the largest datagram behind its header and address.
const DATAGRAM_BUFFERS: u16 = 32;
const DATAGRAM_SIZE: usize = 68 << 10;
/// Received bytes a queue may hold that nobody has popped before its receive is taken back.
const INBOX_MAX: usize = 1 << 20;
/// From here on a send is tried without copying; a path that copies anyway (loopback) is told by its first completion.
const ZERO_COPY_MIN: usize = 32 << 10;
/// Flags of zero-copy sends and of their notifications, from the kernel's io_uring.h.
const SEND_ZC_REPORT_USAGE: u16 = 8;
const NOTIF_USAGE_ZC_COPIED: i32 = i32::MIN;
/// How long the end of a runtime waits for the kernel to let go of its buffers.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a completion belongs to: the upper four bits of its user data.
mod kind {
    pub const RECEIVE: u64 = 1 << 60;
    pub const ACCEPT: u64 = 2 << 60;
    pub const FLIGHT: u64 = 3 << 60;
    pub const WAKE: u64 = 4 << 60;
    pub const CANCEL: u64 = 5 << 60;
    pub const DATAGRAM: u64 = 6 << 60;
    pub const MASK: u64 = 15 << 60;
}

/// What this driver knows of a socket.
#[derive(Default)]
pub(crate) struct RingState {
    /// A multishot receive or accept is with the kernel.
    armed: bool,
    /// It is being taken back.
    canceling: bool,
    /// It ended for want of buffers and stands in the list of those to arm again.
    starved: bool,
    /// A send is with the kernel; one at a time keeps the order.
    sending: bool,
    /// Zero-copy sends were copied after all: do not ask again.
    copies: bool,
    inbox: VecDeque<Arrived>,
    inbox_bytes: usize,
}

/// What came before anyone asked for it.
enum Arrived {
    Data(Sga, Option<Address>),
    Connection(OwnedFd),
    Failed(Errno),
}

/// A request whose memory the kernel may touch.
enum Flight {
    Send(Box<Message>),
    Connect { qd: Qd, token: Token, to: Box<RawAddress> },
    File(files::FileFlight),
}

/// A message on its way: the segments, and how the kernel is told of them.
struct Message {
    qd: Qd,
    token: Token,
    sga: Sga,
    to: Option<Box<RawAddress>>,
    iov: Vec<libc::iovec>,
    header: libc::msghdr,
    /// What a zero-copy send returned, while its notification is still to come.
    result: Option<i32>,
    /// It was sent without copying.
    zero_copy: bool,
}

/// See the module. Field order: the ring goes before the memory it knows.
pub(crate) struct Uring {
    ring: IoUring,
    streams: ManuallyDrop<Group>,
    datagrams: ManuallyDrop<Option<Group>>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    #[allow(clippy::vec_box, reason = "the kernel knows a message by its address, also while it moves between lists")]
    spare_messages: Vec<Box<Message>>,
    starved: Vec<Qd>,
    /// Requests with the kernel.
    active: usize,
    /// The header that multishot recvmsg is shaped by; it must stay where it is.
    datagram_header: Box<libc::msghdr>,
    unpark: Arc<Unparker>,
    seen: Vec<(u64, i32, u32)>,
}

fn ring_error(operation: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::os(operation, e.raw_os_error().unwrap_or(libc::EIO))
}

impl Uring {
    /// Opens a ring with the best set of flags this kernel takes, and arms what wakes it.
    pub fn new(unpark: Arc<Unparker>, memory: &Memory) -> Result<Uring> {
        let mut best = IoUring::builder();
        best.setup_clamp().setup_cqsize(COMPLETIONS).setup_coop_taskrun().setup_single_issuer().setup_defer_taskrun();
        let mut fair = IoUring::builder();
        fair.setup_clamp().setup_cqsize(COMPLETIONS).setup_coop_taskrun();
        let mut plain = IoUring::builder();
        plain.setup_clamp().setup_cqsize(COMPLETIONS);
        let ring = best
            .build(SUBMISSIONS)
            .or_else(|_| fair.build(SUBMISSIONS))
            .or_else(|_| plain.build(SUBMISSIONS))
            .map_err(ring_error("io_uring_setup"))?;
        let streams = Group::new(&ring, 0, STREAM_BUFFERS, STREAM_SIZE, memory)?;
        let mut header = sys::message(&[], None);
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let mut driver = Uring {
            ring,
            streams: ManuallyDrop::new(streams),
            datagrams: ManuallyDrop::new(None),
            flights: Vec::new(),
            free: Vec::new(),
            spare_messages: Vec::new(),
            starved: Vec::new(),
            active: 0,
            datagram_header: Box::new(header),
            unpark,
            seen: Vec::with_capacity(COMPLETIONS as usize),
        };
        driver.arm_wake();
        driver.enter(0, None);
        Ok(driver)
    }

    fn arm_wake(&mut self) {
        let entry = opcode::PollAdd::new(Fd(self.unpark.fd()), libc::POLLIN as u32).multi(true).build();
        self.submit(entry.user_data(kind::WAKE));
    }

    /// Puts a request into the ring; a full ring is handed over first.
    fn submit(&mut self, entry: squeue::Entry) {
        self.active += 1;
        loop {
            // SAFETY: what the entry points to lives in `flights`, in a group, or in `self`, until its completion.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.enter(0, None);
            // A ring that is full of completions takes no submissions: make room, and serve them in the next pass.
            self.seen.extend(self.ring.completion().map(|c| (c.user_data(), c.result(), c.flags())));
        }
    }

    /// Hands over what was submitted, and waits for `want` completions at most for `limit`. Interruptions and a ring
    /// that is busy completing are no errors: the loop comes again.
    fn enter(&mut self, want: usize, limit: Option<Duration>) {
        let submitter = self.ring.submitter();
        let _ = match limit {
            Some(limit) if want > 0 => {
                let time = Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos());
                submitter.submit_with_args(want, &SubmitArgs::new().timespec(&time))
            }
            _ if want > 0 => submitter.submit_and_wait(want),
            _ => {
                let queued = self.ring.submission().len() as u32;
                // IORING_ENTER_GETEVENTS, so that deferred work runs also when nothing is waited for.
                const GETEVENTS: u32 = 1;
                // SAFETY: no argument is passed.
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, GETEVENTS, None) }
            }
        };
    }

    fn fly(&mut self, flight: Flight) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.flights[at] = Some(flight);
                at
            }
            None => {
                self.flights.push(Some(flight));
                self.flights.len() - 1
            }
        }
    }

    fn land(&mut self, at: usize) {
        self.flights[at] = None;
        self.free.push(at);
    }

    /// Cancels a request by its user data.
    fn cancel(&mut self, user_data: u64) {
        self.submit(opcode::AsyncCancel::new(user_data).build().user_data(kind::CANCEL));
    }

    pub fn pop(&mut self, qd: Qd, socket: &mut Socket, ops: &mut Ops, memory: &Memory) -> Result<Started> {
        if socket.pops.is_empty() {
            match take_data(socket) {
                Some(Ok(outcome)) => return Ok(Started::Done(outcome)),
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        let index = ops.begin(qd, Pending::Pop)?;
        ops.append(&mut socket.pops, index);
        if let Err(error) = self.arm(qd, socket, memory) {
            ops.unlink(&mut socket.pops, index);
            ops.complete(index, Err(Error::Canceled));
            return Err(error);
        }
        Ok(Started::Pending(index))
    }

    /// Sees to it that a receive is with the kernel.
    fn arm(&mut self, qd: Qd, socket: &mut Socket, memory: &Memory) -> Result<()> {
        if socket.ring.armed || socket.ended || socket.failed != 0 {
            return Ok(());
        }
        let entry = match socket.kind {
            Kind::Stream => opcode::RecvMulti::new(Fd(socket.raw()), self.streams.id()).build(),
            Kind::Datagram => {
                if self.datagrams.is_none() {
                    let group = Group::new(&self.ring, 1, DATAGRAM_BUFFERS, DATAGRAM_SIZE, memory)?;
                    *self.datagrams = Some(group);
                }
                opcode::RecvMsgMulti::new(Fd(socket.raw()), &*self.datagram_header, 1).build()
            }
        };
        socket.ring.armed = true;
        self.submit(entry.user_data(receive_kind(socket) | qd.raw() as u64));
        Ok(())
    }

    pub fn accept(&mut self, qd: Qd, socket: &mut Socket, ops: &mut Ops) -> Result<Accepting> {
        if socket.pops.is_empty() {
            match socket.ring.inbox.pop_front() {
                Some(Arrived::Connection(fd)) => {
                    let (new, peer) = connection(socket, fd);
                    return Ok(Accepting::Now(new, peer));
                }
                Some(Arrived::Failed(errno)) => return Err(Error::os("accept", errno)),
                _ => {}
            }
        }
        let index = ops.begin(qd, Pending::Accept)?;
        ops.append(&mut socket.pops, index);
        self.arm_accept(qd, socket);
        Ok(Accepting::Pending(index))
    }

    fn arm_accept(&mut self, qd: Qd, socket: &mut Socket) {
        if socket.ring.armed {
            return;
        }
        socket.ring.armed = true;
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let entry = opcode::AcceptMulti::new(Fd(socket.raw())).flags(flags).build();
        self.submit(entry.user_data(kind::ACCEPT | qd.raw() as u64));
    }

    pub fn connect(&mut self, qd: Qd, socket: &mut Socket, ops: &mut Ops, raw: RawAddress) -> Result<Started> {
        let to = Box::new(raw);
        let index = ops.begin(qd, Pending::Connect(Box::new(raw)))?;
        ops.append(&mut socket.pushes, index);
        socket.role = Role::Connecting;
        let (pointer, len) = to.as_parts();
        let at = self.fly(Flight::Connect { qd, token: ops.token(index), to });
        let entry = opcode::Connect::new(Fd(socket.raw()), pointer, len).build();
        self.submit(entry.user_data(kind::FLIGHT | at as u64));
        Ok(Started::Pending(index))
    }

    pub fn push(
        &mut self,
        qd: Qd,
        socket: &mut Socket,
        ops: &mut Ops,
        sga: Sga,
        to: Option<RawAddress>,
    ) -> Result<Started> {
        if socket.failed != 0 && socket.is_stream() {
            return Err(Error::os("push", if socket.failed == libc::ECONNRESET { libc::EPIPE } else { socket.failed }));
        }
        if sga.is_empty() && socket.is_stream() && socket.pushes.is_empty() {
            return Ok(Started::Done(Outcome::Pushed));
        }
        let index = begin_push(qd, socket, ops, sga, to.map(Box::new))?;
        self.send_next(qd, socket, ops);
        Ok(Started::Pending(index))
    }

    /// Submits the oldest push if none is with the kernel.
    fn send_next(&mut self, qd: Qd, socket: &mut Socket, ops: &mut Ops) {
        if socket.ring.sending || socket.role == Role::Connecting {
            return;
        }
        let Some(index) = socket.pushes.first() else { return };
        let token = ops.token(index);
        let Some(Pending::Push(push)) = ops.pending(index) else { return };
        let (sga, to) = (std::mem::take(&mut push.sga), push.to.take());
        let mut message = self.spare_messages.pop().unwrap_or_else(|| {
            Box::new(Message {
                qd,
                token,
                sga: Sga::new(),
                to: None,
                iov: Vec::new(),
                header: sys::message(&[], None),
                result: None,
                zero_copy: false,
            })
        });
        (message.qd, message.token, message.sga, message.to, message.result) = (qd, token, sga, to, None);
        socket.ring.sending = true;
        self.send(socket, message);
    }

    /// Submits what is left of a message.
    fn send(&mut self, socket: &Socket, mut message: Box<Message>) {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let fd = Fd(socket.raw());
        message.zero_copy = message.to.is_none()
            && message.sga.segments().len() == 1
            && message.sga.len() >= ZERO_COPY_MIN
            && socket.is_stream()
            && !socket.ring.copies;
        let entry = match (message.sga.segments(), &message.to) {
            ([one], None) => {
                let (pointer, len) = (one.as_ptr(), one.len() as u32);
                if message.zero_copy {
                    opcode::SendZc::new(fd, pointer, len).flags(flags).zc_flags(SEND_ZC_REPORT_USAGE).build()
                } else {
                    opcode::Send::new(fd, pointer, len).flags(flags).build()
                }
            }
            (many, _) => {
                message.iov.clear();
                message.iov.extend(many.iter().take(sys::IOV_MAX).map(|segment| libc::iovec {
                    iov_base: segment.as_ptr().cast_mut().cast(),
                    iov_len: segment.len(),
                }));
                message.header = sys::message(&message.iov, message.to.as_deref());
                opcode::SendMsg::new(fd, &message.header).flags(flags as u32).build()
            }
        };
        let at = self.fly(Flight::Send(message));
        self.submit(entry.user_data(kind::FLIGHT | at as u64));
    }

    /// Takes a closed socket's requests back from the kernel, which holds the connection open for them.
    pub fn close(&mut self, qd: Qd, socket: &Socket) {
        let mut any = socket.ring.armed;
        if socket.ring.armed {
            let of = if socket.role == Role::Listening { kind::ACCEPT } else { receive_kind(socket) };
            self.cancel(of | qd.raw() as u64);
        }
        if socket.ring.sending || socket.role == Role::Connecting {
            let of_this = |flight: &Option<Flight>| match flight {
                Some(Flight::Send(message)) => message.qd == qd,
                Some(Flight::Connect { qd: of, .. }) => *of == qd,
                _ => false,
            };
            if let Some(at) = self.flights.iter().position(of_this) {
                self.cancel(kind::FLIGHT | at as u64);
                any = true;
            }
        }
        if any {
            self.enter(0, None);
        }
    }

    pub fn poll(
        &mut self,
        queues: &mut Queues,
        ops: &mut Ops,
        memory: &Memory,
        patience: Patience,
        counters: &mut Counters,
    ) -> usize {
        self.feed_starved(queues, memory);
        match patience {
            Patience::Sleep(limit) if self.seen.is_empty() && self.ring.completion().is_empty() => {
                self.enter(1, limit);
            }
            _ => self.enter(0, None),
        }
        let mut seen = std::mem::take(&mut self.seen);
        seen.extend(self.ring.completion().map(|c| (c.user_data(), c.result(), c.flags())));
        let events = seen.len();
        for (data, result, flags) in seen.drain(..) {
            self.active -= usize::from(!cqueue::more(flags));
            let place = data & !kind::MASK;
            match data & kind::MASK {
                kind::RECEIVE | kind::DATAGRAM => {
                    let qd = Qd::from_raw(place as i32);
                    if queues.socket(qd).is_some() {
                        self.received(qd, result, flags, queues, ops, memory);
                    } else if let Some(id) = cqueue::buffer_select(flags) {
                        // Closed meanwhile: nobody wants what came.
                        self.discard(data & kind::MASK, id);
                    }
                }
                kind::ACCEPT => self.accepted(Qd::from_raw(place as i32), result, flags, queues, ops, counters),
                kind::FLIGHT => self.landed(place as usize, result, flags, queues, ops, memory),
                kind::WAKE => {
                    self.unpark.lower();
                    if !cqueue::more(flags) {
                        self.arm_wake();
                    }
                }
                _ => {}
            }
        }
        // What came while these were served is served in the next pass.
        if self.seen.is_empty() {
            self.seen = seen;
        }
        events
    }

    /// Arms the receives again that ended for want of buffers.
    fn feed_starved(&mut self, queues: &mut Queues, memory: &Memory) {
        if self.starved.is_empty() {
            return;
        }
        self.streams.refill(memory);
        if let Some(group) = &mut *self.datagrams {
            group.refill(memory);
        }
        for qd in std::mem::take(&mut self.starved) {
            if let Some(socket) = queues.socket(qd) {
                socket.ring.starved = false;
                // Arming a socket that was armed before cannot fail: its group is there.
                let _ = self.arm(qd, socket, memory);
            }
        }
    }

    /// A receive brought something, or ended.
    fn received(&mut self, qd: Qd, result: i32, flags: u32, queues: &mut Queues, ops: &mut Ops, memory: &Memory) {
        let buffer = cqueue::buffer_select(flags);
        let Some(socket) = queues.socket(qd) else { return };
        let more = cqueue::more(flags);
        socket.ring.armed = more;
        match (result, buffer) {
            (n, Some(id)) if n >= 0 && socket.kind == Kind::Datagram => self.datagram(socket, id, n as usize, memory),
            (n, Some(id)) if n > 0 => match self.streams.take(id, 0, n as usize, memory) {
                Ok(data) => {
                    socket.ring.inbox_bytes += data.len();
                    socket.ring.inbox.push_back(Arrived::Data(Sga::from(data), None));
                }
                Err(error) => socket.failed = error.errno(),
            },
            (0, id) => {
                if let Some(id) = id {
                    self.streams.discard(id);
                }
                socket.ended = true;
            }
            (_, _) => failed_receive(socket, -result),
        }
        if result == -libc::ENOBUFS && !socket.ring.starved {
            socket.ring.starved = true;
            self.starved.push(qd);
        }
        serve_pops(socket, ops);
        if !more {
            socket.ring.canceling = false;
            if !socket.pops.is_empty() && !socket.ring.starved {
                // As in `feed_starved`.
                let _ = self.arm(qd, socket, memory);
            }
        } else if socket.ring.inbox_bytes > INBOX_MAX && !socket.ring.canceling {
            socket.ring.canceling = true;
            self.cancel(receive_kind(socket) | qd.raw() as u64);
        }
    }

    /// Gives a filled buffer back to the group that receives of `kind` take theirs from.
    fn discard(&mut self, kind: u64, id: u16) {
        match &mut *self.datagrams {
            Some(group) if kind == kind::DATAGRAM => group.discard(id),
            _ => self.streams.discard(id),
        }
    }

    /// Sees to it that `n` requests fit the ring, so that linked ones go over together.
    fn make_room(&mut self, n: usize) {
        let submission = self.ring.submission();
        if submission.capacity() - submission.len() < n {
            drop(submission);
            self.enter(0, None);
        }
    }

    /// Whether this kernel lets this process use io_uring at all: the reason if not.
    pub fn refusal() -> Option<String> {
        IoUring::new(2).err().map(|e| e.to_string())
    }

    fn datagram(&mut self, socket: &mut Socket, id: u16, n: usize, memory: &Memory) {
        let Some(group) = &mut *self.datagrams else { return };
        let bytes = group.bytes(id);
        let parsed = RecvMsgOut::parse(&bytes[..n.min(bytes.len())], &self.datagram_header).map(|out| {
            let payload = out.payload_data();
            let offset = payload.as_ptr().addr() - bytes.as_ptr().addr();
            (offset, payload.len(), RawAddress::from_bytes(out.name_data()).address())
        });
        let Ok((offset, len, from)) = parsed else {
            group.discard(id);
            return;
        };
        match group.take(id, offset, len, memory) {
            Ok(data) => {
                socket.ring.inbox_bytes += data.len();
                socket.ring.inbox.push_back(Arrived::Data(Sga::from(data), from));
            }
            // A datagram for which there is no memory is lost, as in the kernel.
            Err(_) => socket.ring.inbox.push_back(Arrived::Failed(libc::ENOMEM)),
        }
    }

    fn accepted(
        &mut self,
        qd: Qd,
        result: i32,
        flags: u32,
        queues: &mut Queues,
        ops: &mut Ops,
        counters: &mut Counters,
    ) {
        // SAFETY: a completion that is no error hands over a new descriptor that nobody else knows.
        let fd = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let Some(socket) = queues.socket(qd) else { return };
        socket.ring.armed = cqueue::more(flags);
        match fd {
            Some(fd) => socket.ring.inbox.push_back(Arrived::Connection(fd)),
            None if result == -libc::ECANCELED => {}
            None => socket.ring.inbox.push_back(Arrived::Failed(-result)),
        }
        while let Some(socket) = queues.socket(qd)
            && !socket.pops.is_empty()
            && let Some(arrived) = socket.ring.inbox.pop_front()
        {
            let Some(index) = ops.pop_first(&mut socket.pops) else { return };
            let outcome = match arrived {
                Arrived::Connection(fd) => {
                    let (new, peer) = connection(socket, fd);
                    counters.accepted += 1;
                    queues.insert(Body::Socket(Box::new(new))).map(|qd| Outcome::Accepted { qd, peer })
                }
                Arrived::Failed(errno) => Err(Error::os("accept", errno)),
                Arrived::Data(..) => Err(Error::os("accept", libc::EIO)),
            };
            ops.complete(index, outcome);
        }
        if let Some(socket) = queues.socket(qd)
            && !socket.pops.is_empty()
        {
            self.arm_accept(qd, socket);
        }
    }

    /// A request with memory of its own is done, or a part of it is.
    fn landed(&mut self, at: usize, result: i32, flags: u32, queues: &mut Queues, ops: &mut Ops, memory: &Memory) {
        if cqueue::more(flags) {
            // The first half of a zero-copy send: the kernel has the bytes, but still reads them.
            if let Some(Some(Flight::Send(message))) = self.flights.get_mut(at) {
                message.result = Some(result);
            }
            return;
        }
        let Some(flight) = self.flights.get_mut(at).and_then(Option::take) else { return };
        self.land(at);
        match flight {
            Flight::Send(mut message) => {
                let mut result = result;
                if let Some(sent) = message.result.take() {
                    if result & NOTIF_USAGE_ZC_COPIED != 0
                        && let Some(socket) = queues.socket(message.qd)
                    {
                        socket.ring.copies = true;
                    }
                    result = sent;
                }
                self.sent(message, result, queues, ops);
            }
            Flight::Connect { qd, token, to } => self.connected(qd, token, &to, result, queues, ops),
            Flight::File(flight) => self.file_landed(flight, result, queues, ops, memory),
        }
    }

    fn sent(&mut self, mut message: Box<Message>, result: i32, queues: &mut Queues, ops: &mut Ops) {
        let Some(socket) = queues.socket(message.qd) else { return };
        if result == -libc::EOPNOTSUPP && message.zero_copy {
            // This family of sockets cannot send without copying.
            socket.ring.copies = true;
            self.send(socket, message);
            return;
        }
        if (result == -libc::EAGAIN || result == -libc::EINTR)
            || (result >= 0 && socket.is_stream() && {
                let n = (result as usize).min(message.sga.len());
                message.sga.trim_front(n);
                socket.push_bytes = socket.push_bytes.saturating_sub(n);
                !message.sga.is_empty()
            })
        {
            self.send(socket, message);
            return;
        }
        socket.ring.sending = false;
        if !socket.is_stream() || result < 0 {
            socket.push_bytes = socket.push_bytes.saturating_sub(message.sga.len());
        }
        message.sga = Sga::new();
        let (qd, token) = (message.qd, message.token);
        self.spare_messages.push(message);
        if let Ok(index) = ops.lookup(token) {
            ops.unlink(&mut socket.pushes, index);
            let outcome = if result < 0 { Err(Error::os("push", -result)) } else { Ok(Outcome::Pushed) };
            ops.complete(index, outcome);
        }
        self.send_next(qd, socket, ops);
    }

    fn connected(&mut self, qd: Qd, token: Token, to: &RawAddress, result: i32, queues: &mut Queues, ops: &mut Ops) {
        let Some(socket) = queues.socket(qd) else { return };
        let Ok(index) = ops.lookup(token) else { return };
        ops.unlink(&mut socket.pushes, index);
        if result < 0 && result != -libc::EISCONN {
            socket.role = Role::Fresh;
            let error = match to.address() {
                Some(address) => Error::os_on("connect", -result, address),
                None => Error::os("connect", -result),
            };
            ops.complete_all(&mut socket.pushes, &error);
            ops.complete_all(&mut socket.pops, &error);
            socket.push_bytes = 0;
            ops.complete(index, Err(error));
            return;
        }
        socket.role = Role::Connected;
        ops.complete(index, Ok(Outcome::Connected));
        self.send_next(qd, socket, ops);
    }
}

/// Streams and datagrams take their buffers from different groups.
fn receive_kind(socket: &Socket) -> u64 {
    match socket.kind {
        Kind::Stream => kind::RECEIVE,
        Kind::Datagram => kind::DATAGRAM,
    }
}

/// What a failed receive says of its socket.
fn failed_receive(socket: &mut Socket, errno: Errno) {
    match errno {
        libc::ENOBUFS | libc::ECANCELED | libc::EAGAIN | libc::EINTR => {}
        _ if socket.kind == Kind::Datagram => socket.ring.inbox.push_back(Arrived::Failed(errno)),
        _ => socket.failed = errno,
    }
}

/// The queue of a connection that was taken, and who is at its other end.
fn connection(listener: &Socket, fd: OwnedFd) -> (Socket, Address) {
    let new = listener.accepted(fd);
    let peer = new.peer_address().unwrap_or(Address::Unix(crate::UnixAddress::Unnamed));
    (new, peer)
}

/// What a pop would bring now. A stream's parts that have come are joined.
fn take_data(socket: &mut Socket) -> Option<Result<Outcome>> {
    match socket.ring.inbox.pop_front() {
        Some(Arrived::Data(mut sga, from)) => {
            while socket.is_stream()
                && let Some(Arrived::Data(..)) = socket.ring.inbox.front()
                && let Some(Arrived::Data(mut part, _)) = socket.ring.inbox.pop_front()
            {
                sga.append(&mut part);
            }
            socket.ring.inbox_bytes = socket.ring.inbox_bytes.saturating_sub(sga.len());
            Some(Ok(Outcome::Popped { sga, from }))
        }
        Some(Arrived::Failed(errno)) => Some(Err(Error::os("pop", errno))),
        _ if socket.failed != 0 => Some(Err(Error::os("pop", socket.failed))),
        _ if socket.ended => Some(Ok(Outcome::Popped { sga: Sga::new(), from: None })),
        _ => None,
    }
}

/// Serves the pops of a socket, oldest first, while there is something for them.
fn serve_pops(socket: &mut Socket, ops: &mut Ops) {
    while !socket.pops.is_empty()
        && let Some(outcome) = take_data(socket)
    {
        if let Some(index) = ops.pop_first(&mut socket.pops) {
            ops.complete(index, outcome);
        }
    }
}

impl Drop for Uring {
    /// Takes every request back and waits until the kernel has let go of its memory; what it does not let go of in time
    /// is leaked rather than freed under it.
    fn drop(&mut self) {
        let all = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(kind::CANCEL);
        self.submit(all);
        let end = Instant::now() + FAREWELL;
        while self.active > 0 && Instant::now() < end {
            self.enter(1, Some(Duration::from_millis(20)));
            let mut ended = 0;
            for c in self.ring.completion() {
                ended += usize::from(!cqueue::more(c.flags()));
                if c.user_data() & kind::MASK == kind::ACCEPT && c.result() >= 0 {
                    // SAFETY: the completion handed over a new descriptor that nobody else knows.
                    drop(unsafe { OwnedFd::from_raw_fd(c.result()) });
                }
            }
            self.active -= ended;
        }
        if self.active > 0 {
            std::mem::forget(std::mem::take(&mut self.flights));
            return;
        }
        // SAFETY: nothing is with the kernel any more, and neither is used again: this is the destructor.
        unsafe {
            ManuallyDrop::drop(&mut self.streams);
            ManuallyDrop::drop(&mut self.datagrams);
        }
    }
}
