//! The driver of plain non-blocking system calls. An operation is tried first; what cannot finish waits.
//!
//! Two ways to look for progress. While few sockets wait and somebody spins, each is simply tried again (*hot*: the
//! paper's Catnap, one system call between a packet's arrival and its program). Otherwise epoll says which are ready,
//! edge-triggered, so that a socket is registered once; a socket that waits is registered only when epoll is needed,
//! for a registered one taxes its sender.

use super::receive::{Class, Spares};
use super::socket::{Accepting, Kind, Role, Socket};
use super::{PushState, begin_push};
use crate::core::{Body, Counters, Ops, Patience, Pending, Queues, Started};
use crate::error::{Error, Result};
use crate::sys::{self, Epoll, Errno, RawAddress};
use crate::tokens::Outcome;
use crate::waiting::Unparker;
use crate::{Address, Qd};
use std::sync::Arc;
use std::time::Duration;
use towpath_cbuf::{Memory, Sga};

/// Up to this many waiting sockets trying each beats asking epoll (about one system call each, against one for the
/// question and one for the answer).
const HOT_MAX: usize = 4;
/// How often a hot pass tries all of them before timers and other threads get a look in: about two microseconds.
const HOT_TRIES: usize = 8;
/// In hot passes listeners are tried this seldom: a connection may wait some microseconds, a message should not.
const LISTENERS_EVERY: u32 = 8;
/// How long a sleep lasts while a UNIX connect waits for room in the listener's queue, which no event announces.
const RETRY: Duration = Duration::from_millis(1);
/// Events taken from epoll at once.
const EVENTS: usize = 256;
/// The event of the unparker; no descriptor has this number.
const UNPARK: u64 = u64::MAX;
/// The event of a device of another library OS; nor this one.
const DEVICE: u64 = u64::MAX - 1;
/// Segments gathered for one send without allocating.
const SEGMENTS: usize = 64;

/// What this driver knows of a socket.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// Epoll watches it, so what is false below becomes true by an event.
    registered: bool,
    /// Epoll watches for room to send, too.
    writes: bool,
    /// There may be something to receive.
    readable: bool,
    /// There may be room to send.
    writable: bool,
    /// The peer has closed or failed: always try, for no further edge will come.
    hangup: bool,
    /// It stands in the list of waiting sockets.
    listed: bool,
    class: Class,
}

impl Default for Readiness {
    fn default() -> Readiness {
        Readiness {
            registered: false,
            writes: false,
            readable: true,
            writable: true,
            hangup: false,
            listed: false,
            class: Class::MIDDLE,
        }
    }
}

/// See the module.
pub(crate) struct Syscalls {
    epoll: Epoll,
    events: Box<[libc::epoll_event; EVENTS]>,
    /// Sockets with operations that wait; one that has none left is taken out when it is next looked at.
    waiting: Vec<Qd>,
    /// Listeners with accepts that wait.
    listeners: Vec<Qd>,
    /// Sockets in either list that epoll does not watch yet.
    unwatched: Vec<Qd>,
    /// UNIX connects refused for lack of room.
    retries: Vec<Qd>,
    spares: Spares,
    unpark: Arc<Unparker>,
    passes: u32,
    sweep: usize,
}

/// What a try brought.
enum Tried<T> {
    Done(T),
    NotNow,
}

fn tried<T>(result: std::result::Result<T, Errno>, operation: &'static str) -> Result<Tried<T>> {
    match result {
        Ok(value) => Ok(Tried::Done(value)),
        Err(errno) if sys::would_block(errno) || errno == libc::EINTR => Ok(Tried::NotNow),
        Err(errno) => Err(Error::os(operation, errno)),
    }
}

impl Syscalls {
    pub fn new(unpark: Arc<Unparker>) -> Result<Syscalls> {
        let epoll = Epoll::new().map_err(|e| Error::os("epoll_create1", e))?;
        epoll
            .add(unpark.fd(), (libc::EPOLLIN | libc::EPOLLET) as u32, UNPARK)
            .map_err(|e| Error::os("epoll_ctl", e))?;
        Ok(Syscalls {
            epoll,
            events: Box::new([libc::epoll_event { events: 0, u64: 0 }; EVENTS]),
            waiting: Vec::new(),
            listeners: Vec::new(),
            unwatched: Vec::new(),
            retries: Vec::new(),
            spares: Spares::new(),
            unpark,
            passes: 0,
            sweep: 0,
        })
    }

    /// Ends every sleep while `fd` is readable.
    pub fn watch_device(&mut self, fd: std::os::fd::RawFd) -> Result<()> {
        self.epoll.add(fd, libc::EPOLLIN as u32, DEVICE).map_err(|e| Error::os("epoll_ctl", e))
    }

    /// Whether no socket has an operation that waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.listeners.is_empty()
    }

    #[inline]
    pub fn pop(&mut self, qd: Qd, socket: &mut Socket, ops: &mut Ops, memory: &Memory) -> Result<Started> {
        if socket.pops.is_empty()
            && socket.ready.readable
            && let Tried::Done(outcome) = self.receive(socket, memory)?
        {
            return Ok(Started::Done(outcome));
        }
        let index = ops.begin(qd, Pending::Pop)?;
        ops.append(&mut socket.pops, index);
        self.list(qd, socket);
        Ok(Started::Pending(index))
    }

    /// One receive. After less than was offered there is nothing more, and an edge will tell of what comes next.
    #[inline]
    fn receive(&mut self, socket: &mut Socket, memory: &Memory) -> Result<Tried<Outcome>> {
        if socket.kind == Kind::Datagram {
            return self.receive_datagram(socket, memory);
        }
        if socket.ended {
            return Ok(Tried::Done(Outcome::Popped { sga: Sga::new(), from: None }));
        }
        if socket.failed != 0 {
            return Err(Error::os("pop", socket.failed));
        }
        let offer = self.spares.offer(socket.ready.class, memory)?;
        let size = offer.len();
        let n = match tried(sys::recv(socket.raw(), offer), "pop") {
            Ok(Tried::Done(n)) => n,
            Ok(Tried::NotNow) => {
                socket.ready.readable = !socket.ready.registered || socket.ready.hangup;
                return Ok(Tried::NotNow);
            }
            Err(error) => {
                socket.failed = error.errno();
                return Err(error);
            }
        };
        if n == 0 {
            socket.ended = true;
            return Ok(Tried::Done(Outcome::Popped { sga: Sga::new(), from: None }));
        }
        if n < size && socket.ready.registered && !socket.ready.hangup {
            socket.ready.readable = false;
        }
        let sga = self.spares.deliver(&mut socket.ready.class, n, false, memory)?;
        Ok(Tried::Done(Outcome::Popped { sga, from: None }))
    }

    fn receive_datagram(&mut self, socket: &mut Socket, memory: &Memory) -> Result<Tried<Outcome>> {
        let mut from = RawAddress::empty();
        let mut class = Class::LARGEST;
        let offer = self.spares.offer(class, memory)?;
        match tried(sys::recv_from(socket.raw(), offer, &mut from), "pop")? {
            Tried::NotNow => {
                socket.ready.readable = !socket.ready.registered;
                Ok(Tried::NotNow)
            }
            Tried::Done(n) => {
                let n = n.min(offer.len());
                let sga = self.spares.deliver(&mut class, n, true, memory)?;
                Ok(Tried::Done(Outcome::Popped { sga, from: from.address() }))
            }
        }
    }

    #[inline]
    pub fn push(
        &mut self,
        qd: Qd,
        socket: &mut Socket,
        ops: &mut Ops,
        mut sga: Sga,
        to: Option<RawAddress>,
    ) -> Result<Started> {
        if socket.pushes.is_empty()
            && socket.ready.writable
            && let Tried::Done(()) = send(socket, &mut sga, to.as_ref())?
        {
            return Ok(Started::Done(Outcome::Pushed));
        }
        let index = begin_push(qd, socket, ops, sga, to.map(Box::new))?;
        self.list(qd, socket);
        self.watch_writes(qd, socket)?;
        Ok(Started::Pending(index))
    }

    pub fn accept(&mut self, qd: Qd, socket: &mut Socket, ops: &mut Ops) -> Result<Accepting> {
        if socket.pops.is_empty()
            && socket.ready.readable
            && let Tried::Done((new, peer)) = take_connection(socket)?
        {
            return Ok(Accepting::Now(new, peer));
        }
        let index = ops.begin(qd, Pending::Accept)?;
        ops.append(&mut socket.pops, index);
        if !socket.ready.listed {
            socket.ready.listed = true;
            self.listeners.push(qd);
            if !socket.ready.registered {
                self.unwatched.push(qd);
            }
        }
        Ok(Accepting::Pending(index))
    }

    pub fn connect(
        &mut self,
        qd: Qd,
        socket: &mut Socket,
        ops: &mut Ops,
        to: &Address,
        raw: RawAddress,
    ) -> Result<Started> {
        match sys::connect(socket.raw(), &raw) {
            Ok(()) => {
                socket.role = Role::Connected;
                return Ok(Started::Done(Outcome::Connected));
            }
            Err(libc::EINPROGRESS) => {}
            Err(errno) if sys::would_block(errno) => self.retries.push(qd),
            Err(errno) => return Err(Error::os_on("connect", errno, to)),
        }
        socket.role = Role::Connecting;
        let index = ops.begin(qd, Pending::Connect(Box::new(raw)))?;
        ops.append(&mut socket.pushes, index);
        self.list(qd, socket);
        self.watch_writes(qd, socket)?;
        Ok(Started::Pending(index))
    }

    /// Puts a socket on the list of those that wait.
    #[inline]
    fn list(&mut self, qd: Qd, socket: &mut Socket) {
        if !socket.ready.listed {
            socket.ready.listed = true;
            self.waiting.push(qd);
            if !socket.ready.registered {
                self.unwatched.push(qd);
            }
        }
    }

    /// From the first push that waits on, epoll tells of room, too.
    fn watch_writes(&mut self, qd: Qd, socket: &mut Socket) -> Result<()> {
        if socket.ready.writes {
            return Ok(());
        }
        socket.ready.writes = true;
        if socket.ready.registered {
            // Taken out and put in again, it reports what is ready now.
            self.epoll.remove(socket.raw());
            socket.ready.registered = false;
            self.watch(qd, socket)?;
        }
        Ok(())
    }

    fn watch(&self, qd: Qd, socket: &mut Socket) -> Result<()> {
        let writes = if socket.ready.writes { libc::EPOLLOUT } else { 0 };
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET | writes) as u32;
        self.epoll.add(socket.raw(), events, qd.raw() as u64).map_err(|errno| Error::os("epoll_ctl", errno))?;
        // Adding it reports what is ready already.
        socket.ready.registered = true;
        Ok(())
    }

    /// Has epoll watch every socket that waits. One that cannot be watched fails its operations.
    fn watch_all(&mut self, queues: &mut Queues, ops: &mut Ops) {
        while let Some(qd) = self.unwatched.pop() {
            let Some(socket) = queues.socket(qd) else { continue };
            if socket.ready.registered {
                continue;
            }
            if let Err(error) = self.watch(qd, socket) {
                ops.complete_all(&mut socket.pops, &error);
                ops.complete_all(&mut socket.pushes, &error);
            }
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
        self.passes = self.passes.wrapping_add(1);
        let mut done = self.retry_connects(queues, ops);
        match patience {
            Patience::Look { hot: true } if self.waiting.len() <= HOT_MAX => {
                for _ in 0..HOT_TRIES {
                    done += self.try_all(queues, ops, memory);
                    if done > 0 || self.waiting.is_empty() {
                        break;
                    }
                }
                if self.passes.is_multiple_of(LISTENERS_EVERY) {
                    done += self.try_listeners(queues, ops, counters);
                }
                done
            }
            Patience::Look { .. } => {
                self.sweep_one(queues);
                done + self.ask(queues, ops, memory, Some(Duration::ZERO), counters)
            }
            Patience::Sleep(limit) => {
                let limit = match limit {
                    _ if done > 0 => Some(Duration::ZERO),
                    limit if self.retries.is_empty() => limit,
                    limit => Some(limit.map_or(RETRY, |l| l.min(RETRY))),
                };
                done + self.ask(queues, ops, memory, limit, counters)
            }
        }
    }

    /// Tries every waiting socket.
    fn try_all(&mut self, queues: &mut Queues, ops: &mut Ops, memory: &Memory) -> usize {
        let mut done = 0;
        let mut at = 0;
        while let Some(&qd) = self.waiting.get(at) {
            match queues.socket(qd) {
                // One socket alone stays listed, so that a ping-pong neither lists nor unlists.
                Some(socket) if socket.pops.is_empty() && socket.pushes.is_empty() && self.waiting.len() > 1 => {
                    socket.ready.listed = false;
                    self.waiting.swap_remove(at);
                }
                Some(socket) => {
                    done += self.progress_pops(socket, ops, memory);
                    done += progress_pushes(socket, ops);
                    at += 1;
                }
                None => {
                    self.waiting.swap_remove(at);
                }
            }
        }
        done
    }

    /// Looks at one listed socket and takes it out if nothing waits on it, so that the list follows the truth.
    fn sweep_one(&mut self, queues: &mut Queues) {
        if self.waiting.is_empty() {
            return;
        }
        let at = self.sweep % self.waiting.len();
        self.sweep = self.sweep.wrapping_add(1);
        let idle = match queues.socket(self.waiting[at]) {
            Some(socket) => {
                let idle = socket.pops.is_empty() && socket.pushes.is_empty();
                socket.ready.listed = !idle;
                idle
            }
            None => true,
        };
        if idle {
            self.waiting.swap_remove(at);
        }
    }

    fn try_listeners(&mut self, queues: &mut Queues, ops: &mut Ops, counters: &mut Counters) -> usize {
        let mut done = 0;
        let mut at = 0;
        while let Some(&qd) = self.listeners.get(at) {
            if queues.socket(qd).is_some() {
                done += progress_accepts(qd, queues, ops, counters);
                at += 1;
            } else {
                self.listeners.swap_remove(at);
            }
        }
        done
    }

    /// Asks epoll what is ready, waiting up to `limit`, and serves it.
    fn ask(
        &mut self,
        queues: &mut Queues,
        ops: &mut Ops,
        memory: &Memory,
        limit: Option<Duration>,
        counters: &mut Counters,
    ) -> usize {
        self.watch_all(queues, ops);
        let n = self.epoll.wait(&mut self.events[..], limit);
        for at in 0..n {
            let libc::epoll_event { events, u64: data } = self.events[at];
            if data == UNPARK {
                self.unpark.lower();
                continue;
            }
            if data == DEVICE {
                continue;
            }
            let qd = Qd::from_raw(data as i32);
            let Some(socket) = queues.socket(qd) else { continue };
            let over = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
            socket.ready.hangup |= events & over != 0;
            if events & (libc::EPOLLIN as u32 | over) != 0 {
                socket.ready.readable = true;
                if socket.role == Role::Listening {
                    progress_accepts(qd, queues, ops, counters);
                    continue;
                }
                self.progress_pops(socket, ops, memory);
            }
            if events & (libc::EPOLLOUT as u32 | over) != 0 {
                socket.ready.writable = true;
                progress_pushes(socket, ops);
            }
        }
        n
    }

    /// Serves the pops of a socket, oldest first, while there is something for them.
    #[inline]
    fn progress_pops(&mut self, socket: &mut Socket, ops: &mut Ops, memory: &Memory) -> usize {
        let mut done = 0;
        while !socket.pops.is_empty() && socket.role != Role::Connecting {
            // In a hot pass a registered socket is tried whatever epoll said last, but only once.
            if done > 0 && !socket.ready.readable {
                break;
            }
            let outcome = match self.receive(socket, memory) {
                Ok(Tried::NotNow) => break,
                Ok(Tried::Done(outcome)) => Ok(outcome),
                Err(error) => Err(error),
            };
            if let Some(index) = ops.pop_first(&mut socket.pops) {
                ops.complete(index, outcome);
                done += 1;
            }
        }
        done
    }

    fn retry_connects(&mut self, queues: &mut Queues, ops: &mut Ops) -> usize {
        if self.retries.is_empty() {
            return 0;
        }
        let mut done = 0;
        self.retries.retain(|&qd| {
            let Some(socket) = queues.socket(qd) else { return false };
            done += progress_connect(socket, ops);
            socket.role == Role::Connecting
        });
        done
    }
}

/// Takes one connection off a listener.
fn take_connection(socket: &mut Socket) -> Result<Tried<(Socket, Address)>> {
    loop {
        match sys::accept(socket.raw()) {
            Ok((fd, peer)) => {
                let peer = peer.address().unwrap_or(Address::Unix(crate::UnixAddress::Unnamed));
                return Ok(Tried::Done((socket.accepted(fd), peer)));
            }
            // The connection was reset before it was taken: the next one, please.
            Err(libc::ECONNABORTED | libc::EPROTO) => {}
            Err(errno) => {
                if sys::would_block(errno) {
                    socket.ready.readable = !socket.ready.registered;
                }
                return tried(Err(errno), "accept");
            }
        }
    }
}

/// Serves the accepts of a listener, oldest first.
fn progress_accepts(qd: Qd, queues: &mut Queues, ops: &mut Ops, counters: &mut Counters) -> usize {
    let mut done = 0;
    loop {
        let Some(socket) = queues.socket(qd) else { return done };
        if socket.pops.is_empty() {
            return done;
        }
        let outcome = match take_connection(socket) {
            Ok(Tried::NotNow) => return done,
            Ok(Tried::Done((new, peer))) => {
                counters.accepted += 1;
                queues.insert(Body::Socket(Box::new(new))).map(|qd| Outcome::Accepted { qd, peer })
            }
            Err(error) => Err(error),
        };
        let Some(socket) = queues.socket(qd) else { return done };
        if let Some(index) = ops.pop_first(&mut socket.pops) {
            ops.complete(index, outcome);
            done += 1;
        }
    }
}

/// Hands bytes to the kernel; what it did not take stays in `sga`.
#[inline]
fn send(socket: &mut Socket, sga: &mut Sga, to: Option<&RawAddress>) -> Result<Tried<()>> {
    if socket.failed != 0 {
        return Err(Error::os("push", if socket.failed == libc::ECONNRESET { libc::EPIPE } else { socket.failed }));
    }
    loop {
        let segments = sga.segments();
        let result = match (segments, to) {
            ([], _) if socket.is_stream() => return Ok(Tried::Done(())),
            ([], None) => sys::send(socket.raw(), &[]),
            ([], Some(to)) => sys::send_to(socket.raw(), &[], to),
            ([one], None) => sys::send(socket.raw(), one),
            ([one], Some(to)) => sys::send_to(socket.raw(), one, to),
            (many, to) => send_many(socket, many, to),
        };
        let n = match tried(result, "push")? {
            Tried::Done(n) => n,
            Tried::NotNow => {
                socket.ready.writable = !socket.ready.registered || socket.ready.hangup;
                return Ok(Tried::NotNow);
            }
        };
        if n == sga.len() || !socket.is_stream() {
            return Ok(Tried::Done(()));
        }
        sga.trim_front(n);
    }
}

/// Sends several segments by one call.
fn send_many(
    socket: &Socket,
    segments: &[towpath_cbuf::Buf],
    to: Option<&RawAddress>,
) -> std::result::Result<usize, Errno> {
    let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let describe = |segment: &towpath_cbuf::Buf| libc::iovec {
        iov_base: segment.as_ptr().cast_mut().cast(),
        iov_len: segment.len(),
    };
    if segments.len() <= SEGMENTS {
        let mut iov = [empty; SEGMENTS];
        for (to, from) in iov.iter_mut().zip(segments) {
            *to = describe(from);
        }
        // SAFETY: each element describes a segment, which the caller keeps for the length of the call.
        return unsafe { sys::send_message(socket.raw(), &iov[..segments.len()], to) };
    }
    if !socket.is_stream() && segments.len() > sys::IOV_MAX {
        return Err(libc::EMSGSIZE);
    }
    let iov: Vec<libc::iovec> = segments.iter().take(sys::IOV_MAX).map(describe).collect();
    // SAFETY: as above.
    unsafe { sys::send_message(socket.raw(), &iov, to) }
}

/// Serves the pushes of a socket, oldest first and in order, while the kernel takes them.
#[inline]
fn progress_pushes(socket: &mut Socket, ops: &mut Ops) -> usize {
    if socket.pushes.is_empty() {
        return 0;
    }
    let mut done = 0;
    if socket.role == Role::Connecting {
        done += progress_connect(socket, ops);
        if socket.role == Role::Connecting {
            return done;
        }
    }
    while let Some(index) = socket.pushes.first() {
        let Some(Pending::Push(PushState { sga, to })) = ops.pending(index) else { break };
        let before = sga.len();
        let result = send(socket, sga, to.as_deref());
        let left = match result {
            Ok(Tried::NotNow) => sga.len(),
            _ => 0,
        };
        socket.push_bytes -= before - left;
        let outcome = match result {
            Ok(Tried::NotNow) => break,
            Ok(Tried::Done(())) => Ok(Outcome::Pushed),
            Err(error) => Err(error),
        };
        ops.pop_first(&mut socket.pushes);
        ops.complete(index, outcome);
        done += 1;
    }
    done
}

/// Looks whether a connect that is under way stands or failed: asking again says so (connect(2), EALREADY).
fn progress_connect(socket: &mut Socket, ops: &mut Ops) -> usize {
    let Some(index) = socket.pushes.first() else { return 0 };
    let Some(Pending::Connect(to)) = ops.pending(index) else { return 0 };
    let outcome = match sys::connect(socket.raw(), to) {
        Ok(()) | Err(libc::EISCONN) => Ok(Outcome::Connected),
        Err(errno) if errno == libc::EALREADY || errno == libc::EINPROGRESS || sys::would_block(errno) => return 0,
        Err(errno) => Err(match to.address() {
            Some(address) => Error::os_on("connect", errno, address),
            None => Error::os("connect", errno),
        }),
    };
    socket.role = if outcome.is_ok() { Role::Connected } else { Role::Fresh };
    ops.pop_first(&mut socket.pushes);
    if let Err(error) = &outcome {
        let error = error.clone();
        ops.complete_all(&mut socket.pushes, &error);
        ops.complete_all(&mut socket.pops, &error);
        socket.push_bytes = 0;
    }
    ops.complete(index, outcome);
    1
}
