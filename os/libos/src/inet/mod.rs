//! The library OS `inet` (the paper's Catnip, Demikernel section 6.3): our own stack on a packet device, run to
//! completion. A pass takes a burst of frames from the device, lets the stack digest them, completes what waited for
//! them, and hands the device what the stack has made; an operation that can finish does so in its call. Files, UNIX
//! sockets and in-memory queues beside it are the kernel's, and so is sleeping: the device's descriptor stands in the
//! same set.

pub(crate) mod config;
mod sink;
pub(crate) mod socket;

use crate::core::{Body, Counters, Ops, Patience, Pending, Queues, Request, Started};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::tokens::Outcome;
use crate::waiting::Unparker;
use crate::{Address, Backend, Domain, Kind, Opt, Qd};
use config::{NetConfig, NetDevice};
use sink::Outbox;
use socket::{NetSocket, Place, refused};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use towpath_cbuf::{Memory, Sga};
use towpath_coro::Clock;
use towpath_device::{AnyDevice, PacketDevice, RxChecksum, RxPacket};
use towpath_inet::{Event, ListenerId, Nanos, Options, Ready, Received, Stack, TcpId, UdpId};

/// Frames taken from the device at once.
const BURST: usize = 64;
/// Most bytes one pop brings.
const POP_MAX: usize = 256 << 10;
/// Passes between looks at the kernel's queues, which cost a system call.
const KERNEL_EVERY: u32 = 64;
/// Passes between looks at how many frames are free.
const PRESSURE_EVERY: u32 = 64;
/// How long the end of a runtime goes on sending what was pushed before.
const LINGER: Duration = Duration::from_millis(500);

/// A hash for the stack's own handles: they are small numbers that no stranger chooses.
#[derive(Default)]
struct HandleHash(u64);

impl Hasher for HandleHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, word: u32) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type ByHandle<K> = HashMap<K, Qd, BuildHasherDefault<HandleHash>>;

/// Which queue stands behind each of the stack's handles.
#[derive(Default)]
struct Owners {
    tcp: ByHandle<TcpId>,
    listeners: ByHandle<ListenerId>,
    udp: ByHandle<UdpId>,
}

/// See the module.
pub(crate) struct Inet {
    pub kernel: Kernel,
    device: AnyDevice,
    stack: Stack,
    out: Outbox,
    clock: Clock,
    owners: Owners,
    received: Vec<RxPacket>,
    kind: NetDevice,
    frames_total: usize,
    passes: u32,
    /// When a connection was last closed here: its data may still be on its way.
    last_close: Nanos,
    /// The device failed: why. Nothing goes through it any more.
    dead: Option<Box<str>>,
}

impl Inet {
    /// Opens the device and starts the stack; `unpark` ends a sleep.
    pub fn new(kind: NetDevice, net: &NetConfig, memory: &Memory, unpark: Arc<Unparker>) -> Result<Inet> {
        let mut kernel = Kernel::new(Backend::Syscalls, 1, unpark, memory)?;
        let device = net.open(kind, memory)?;
        let config = net.stack(&device)?;
        kernel.watch_device(device.wait_fd())?;
        let clock = Clock::new();
        let now = Nanos(clock.now().0);
        Ok(Inet {
            kernel,
            stack: Stack::new(&config, memory.clone(), now),
            out: Outbox::new(memory, kind == NetDevice::Xdp),
            device,
            clock,
            owners: Owners::default(),
            received: Vec::with_capacity(BURST),
            kind,
            frames_total: memory.frame_arenas().iter().map(|arena| arena.len / 4096).sum(),
            passes: 0,
            last_close: now,
            dead: None,
        })
    }

    /// The name a person knows it by.
    pub fn name(&self) -> &'static str {
        self.kind.libos()
    }

    /// The stack's and the device's counters.
    pub fn stats(&self) -> (towpath_inet::Stats, towpath_device::Stats) {
        (self.stack.stats(), self.device.stats())
    }

    fn now(&self) -> Nanos {
        Nanos(self.clock.now().0)
    }

    /// Hands the device what the stack has made.
    #[inline]
    fn flush(&mut self) {
        if !self.out.frames.is_empty()
            && let Err(error) = self.device.transmit(&mut self.out.frames)
        {
            self.die(&error);
        }
    }

    fn die(&mut self, error: &towpath_device::Error) {
        self.out.frames.clear();
        self.dead.get_or_insert_with(|| error.to_string().into());
    }

    fn alive(&self) -> Result<()> {
        match &self.dead {
            None => Ok(()),
            Some(why) => Err(Error::Device { device: self.kind.libos().into(), why: why.clone() }),
        }
    }

    /// Binds a socket.
    pub fn bind(&mut self, qd: Qd, socket: &mut NetSocket, address: &Address) -> Result<()> {
        let inet = socket.inet("bind", address)?;
        if socket.place != Place::Fresh || socket.bound.is_some() {
            return Err(Error::os_on("bind", libc::EINVAL, address));
        }
        if socket.kind == Kind::Datagram {
            self.open_udp(qd, socket, inet)?;
        } else {
            socket.bound = Some(inet);
        }
        Ok(())
    }

    fn open_udp(&mut self, qd: Qd, socket: &mut NetSocket, local: SocketAddr) -> Result<UdpId> {
        let id = self.stack.udp_bind(local).map_err(|e| refused("bind", e))?;
        self.owners.udp.insert(id, qd);
        socket.place = Place::Udp(id);
        let port = self.stack.udp_local(id).map_or(local.port(), |(_, port)| port);
        socket.bound = Some(SocketAddr::new(local.ip(), port));
        Ok(id)
    }

    /// The datagram socket, bound to a port of the stack's choice if it was not bound.
    fn udp(&mut self, qd: Qd, socket: &mut NetSocket) -> Result<UdpId> {
        match socket.place {
            Place::Udp(id) => Ok(id),
            _ => self.open_udp(qd, socket, socket.any()),
        }
    }

    /// Makes a socket listen; port 0 lets us choose.
    pub fn listen(&mut self, qd: Qd, socket: &mut NetSocket, backlog: u32) -> Result<()> {
        if socket.kind != Kind::Stream || socket.place != Place::Fresh {
            return Err(Error::Unsupported { operation: "listen", why: "only an unconnected stream socket listens" });
        }
        let wanted = socket.bound.unwrap_or(socket.any());
        let ports = if wanted.port() == 0 { 49_152..=65_535 } else { wanted.port()..=wanted.port() };
        let mut last = towpath_inet::Error::NoPortLeft;
        for port in ports {
            let local = SocketAddr::new(wanted.ip(), port);
            match self.stack.tcp_listen(local, backlog) {
                Ok(id) => {
                    self.owners.listeners.insert(id, qd);
                    socket.place = Place::Listener(id);
                    socket.bound = Some(local);
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(Error::os_on("listen", refused("listen", last).errno(), wanted))
    }

    /// Ends sending; the stack always receives.
    pub fn shutdown(&mut self, socket: &mut NetSocket, how: std::net::Shutdown) -> Result<()> {
        let Some(id) = socket.tcp() else { return Err(Error::os("shutdown", libc::ENOTCONN)) };
        if how == std::net::Shutdown::Read {
            return Ok(());
        }
        let now = self.now();
        let result = self.stack.tcp_shutdown(id, now, &mut self.out).map_err(|e| refused("shutdown", e));
        self.flush();
        result
    }

    /// The address of this end.
    pub fn local_address(&self, socket: &NetSocket) -> Result<Address> {
        if let Some(info) = socket.tcp().and_then(|id| self.stack.tcp_info(id).ok()) {
            return Ok(Address::Inet(SocketAddr::new(info.flow.local, info.flow.local_port)));
        }
        Ok(Address::Inet(socket.bound.unwrap_or(socket.any())))
    }

    /// The address of the other end.
    pub fn peer_address(&self, socket: &NetSocket) -> Result<Address> {
        let connected = socket.tcp().and_then(|id| self.stack.tcp_info(id).ok());
        let flow = connected.map(|info| SocketAddr::new(info.flow.remote, info.flow.remote_port));
        flow.or(socket.peer).map(Address::Inet).ok_or(Error::os("getpeername", libc::ENOTCONN))
    }

    /// Sets an option.
    pub fn set_option(&mut self, socket: &mut NetSocket, option: Opt) -> Result<()> {
        let limit = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let option = match option {
            Opt::Linger(time) => {
                socket.linger = time;
                return Ok(());
            }
            // Nothing to share: one stack has one listener an address.
            Opt::ReusePort(_) => return Ok(()),
            Opt::NoDelay(yes) => Options::NoDelay(yes),
            Opt::KeepAlive(idle) => Options::KeepAlive(idle.map(|idle| {
                let idle = Nanos(u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX));
                towpath_inet::KeepAlive { idle, interval: Nanos(idle.0 / 3), count: 3 }
            })),
            Opt::ReceiveBuffer(bytes) => Options::ReceiveBuffer(limit(bytes)),
            Opt::SendBuffer(bytes) => Options::SendBuffer(limit(bytes)),
        };
        let Some(id) = socket.tcp() else { return Ok(()) };
        let now = self.now();
        let result = self.stack.tcp_set(id, option, now, &mut self.out).map_err(|e| refused("set_option", e));
        self.flush();
        result
    }

    /// Starts an operation on a socket of the stack.
    pub fn start(
        &mut self,
        qd: Qd,
        queues: &mut Queues,
        ops: &mut Ops,
        counters: &mut Counters,
        request: Request<'_>,
    ) -> Result<Started> {
        self.alive()?;
        let Body::Net(socket) = queues.get(qd)? else { return Err(Error::BadQueue(qd)) };
        let started = match request {
            Request::Pop => self.pop(qd, socket, ops),
            Request::Push { sga, to, durable: false } => self.push(qd, socket, ops, sga, to),
            Request::Connect(to) => self.connect(qd, socket, ops, to),
            Request::Accept => {
                let Place::Listener(id) = socket.place else {
                    return Err(Error::Unsupported { operation: "accept", why: "the socket does not listen" });
                };
                if let Some(outcome) = socket.returned.pop_front() {
                    return Ok(Started::Done(outcome));
                }
                let domain = socket.domain;
                if socket.pops.is_empty()
                    && let Some((new, peer)) = self.stack.tcp_accept(id).map_err(|e| refused("accept", e))?
                {
                    let outcome = self.accepted(queues, domain, new, peer)?;
                    counters.accepted += 1;
                    return Ok(Started::Done(outcome));
                }
                wait(ops, qd, &mut socket.pops, Pending::Accept)
            }
            _ => Err(Error::Unsupported { operation: "sync", why: "only a file can be synced" }),
        };
        self.flush();
        started
    }

    fn accepted(&mut self, queues: &mut Queues, domain: Domain, id: TcpId, peer: SocketAddr) -> Result<Outcome> {
        let mut socket = NetSocket::new(domain, Kind::Stream);
        socket.place = Place::Connected(id);
        let now = self.now();
        // A push is a whole message: it does not wait for company.
        let _ = self.stack.tcp_set(id, Options::NoDelay(true), now, &mut self.out);
        let qd = queues.insert(Body::Net(Box::new(socket)))?;
        self.owners.tcp.insert(id, qd);
        Ok(Outcome::Accepted { qd, peer: Address::Inet(peer) })
    }

    #[inline]
    fn pop(&mut self, qd: Qd, socket: &mut NetSocket, ops: &mut Ops) -> Result<Started> {
        if let Some(outcome) = socket.returned.pop_front() {
            return Ok(Started::Done(outcome));
        }
        if socket.pops.is_empty() {
            let outcome = match socket.place {
                Place::Connected(id) => self.take_stream(id)?,
                Place::Connecting(..) => None,
                Place::Fresh if socket.kind == Kind::Stream => return Err(Error::os("pop", libc::ENOTCONN)),
                Place::Listener(_) => {
                    return Err(Error::Unsupported { operation: "pop", why: "a listening socket only accepts" });
                }
                Place::Fresh | Place::Udp(_) => {
                    let id = self.udp(qd, socket)?;
                    self.take_datagram(id)?
                }
            };
            if let Some(outcome) = outcome {
                return Ok(Started::Done(outcome));
            }
        }
        wait(ops, qd, &mut socket.pops, Pending::Pop)
    }

    #[inline]
    fn take_stream(&mut self, id: TcpId) -> Result<Option<Outcome>> {
        let now = self.now();
        let popped = self.stack.tcp_pop(id, POP_MAX, now, &mut self.out).map_err(|e| refused("pop", e))?;
        Ok(popped.map(|sga| Outcome::Popped { sga, from: None }))
    }

    #[inline]
    fn take_datagram(&mut self, id: UdpId) -> Result<Option<Outcome>> {
        let datagram = self.stack.udp_receive(id).map_err(|e| refused("pop", e))?;
        Ok(datagram.map(|d| Outcome::Popped { sga: d.payload, from: Some(Address::Inet(d.from)) }))
    }

    #[inline]
    fn push(
        &mut self,
        qd: Qd,
        socket: &mut NetSocket,
        ops: &mut Ops,
        sga: Sga,
        to: Option<&Address>,
    ) -> Result<Started> {
        let now = self.now();
        if socket.kind == Kind::Datagram {
            let to = to.map(|to| socket.inet("push_to", to)).transpose()?;
            let id = self.udp(qd, socket)?;
            if to.is_none() && socket.peer.is_none() {
                return Err(Error::os("push", libc::EDESTADDRREQ));
            }
            self.stack.udp_send(id, &sga, to, now, &mut self.out).map_err(|e| refused("push", e))?;
            return Ok(Started::Done(Outcome::Pushed));
        }
        if to.is_some() {
            return Err(Error::Unsupported { operation: "push_to", why: "only a datagram socket takes an address" });
        }
        let id = socket.tcp().ok_or(Error::os("push", libc::ENOTCONN))?;
        let released = self.stack.tcp_push(id, sga, now, &mut self.out).map_err(|e| refused("push", e))?;
        if released.now && socket.pushes.is_empty() {
            return Ok(Started::Done(Outcome::Pushed));
        }
        wait(ops, qd, &mut socket.pushes, Pending::Net(released.offset))
    }

    fn connect(&mut self, qd: Qd, socket: &mut NetSocket, ops: &mut Ops, to: &Address) -> Result<Started> {
        let remote = socket.inet("connect", to)?;
        let fail = |e| Error::os_on("connect", refused("connect", e).errno(), to);
        if socket.kind == Kind::Datagram {
            let id = self.udp(qd, socket)?;
            self.stack.udp_connect(id, Some(remote)).map_err(fail)?;
            socket.peer = Some(remote);
            return Ok(Started::Done(Outcome::Connected));
        }
        if socket.place != Place::Fresh {
            return Err(Error::os_on("connect", libc::EISCONN, to));
        }
        let now = self.now();
        let id = self.stack.tcp_connect(remote, socket.bound, now, &mut self.out).map_err(fail)?;
        let _ = self.stack.tcp_set(id, Options::NoDelay(true), now, &mut self.out);
        self.owners.tcp.insert(id, qd);
        let index = ops.begin(qd, Pending::Net(0))?;
        socket.place = Place::Connecting(id, index);
        Ok(Started::Pending(index))
    }

    /// Closes a socket; what is pending on it is cancelled, what was pushed is still sent.
    pub fn close(&mut self, mut socket: NetSocket, ops: &mut Ops) {
        let now = self.now();
        match socket.place {
            Place::Fresh => {}
            Place::Listener(id) => {
                self.owners.listeners.remove(&id);
                let _ = self.stack.tcp_close_listener(id, now, &mut self.out);
            }
            Place::Connecting(id, index) => {
                ops.complete(index, Err(Error::Canceled));
                self.owners.tcp.remove(&id);
                let _ = self.stack.tcp_abort(id, now, &mut self.out);
            }
            Place::Connected(id) => {
                self.owners.tcp.remove(&id);
                self.last_close = now;
                let _ = match socket.linger {
                    Some(Duration::ZERO) => self.stack.tcp_abort(id, now, &mut self.out),
                    _ => self.stack.tcp_close(id, now, &mut self.out),
                };
            }
            Place::Udp(id) => {
                self.owners.udp.remove(&id);
                let _ = self.stack.udp_close(id);
            }
        }
        ops.complete_all(&mut socket.pops, &Error::Canceled);
        ops.complete_all(&mut socket.pushes, &Error::Canceled);
        self.flush();
    }

    /// One pass, and if nothing happened and there is patience for it, a sleep and another pass.
    pub fn poll(
        &mut self,
        queues: &mut Queues,
        ops: &mut Ops,
        memory: &Memory,
        patience: Patience,
        counters: &mut Counters,
    ) -> usize {
        self.passes = self.passes.wrapping_add(1);
        let mut done = self.pass(queues, ops, memory, counters);
        let limit = match patience {
            Patience::Sleep(limit) if done == 0 && self.out.frames.is_empty() => limit,
            Patience::Look { .. } if !self.passes.is_multiple_of(KERNEL_EVERY) => return done,
            _ => return done + self.kernel.poll(queues, ops, memory, Patience::Look { hot: false }, counters),
        };
        let ready = !self.device.prepare_sleep();
        let patience = if ready { Patience::Look { hot: false } } else { Patience::Sleep(self.until(limit)) };
        done += self.kernel.poll(queues, ops, memory, patience, counters);
        self.device.wake();
        done + self.pass(queues, ops, memory, counters)
    }

    /// How long a sleep may last: to the stack's or the device's next deadline.
    fn until(&self, limit: Option<Duration>) -> Option<Duration> {
        let now = self.now();
        let stack = self.stack.poll_at().map(|at| at.0.saturating_sub(now.0));
        let device = self.device.next_deadline_ns().map(|at| at.saturating_sub(now.0));
        let ours = stack.into_iter().chain(device).min().map(Duration::from_nanos);
        limit.into_iter().chain(ours).min()
    }

    #[inline]
    fn pass(&mut self, queues: &mut Queues, ops: &mut Ops, memory: &Memory, counters: &mut Counters) -> usize {
        if self.dead.is_some() {
            return self.fail_all(queues, ops);
        }
        let now = self.now();
        self.device.tick(now.0);
        if let Err(error) = self.device.receive(&mut self.received, BURST) {
            self.die(&error);
        }
        let got = self.received.len();
        for packet in self.received.drain(..) {
            let received = Received { checksum_ok: packet.checksum != RxChecksum::Unknown };
            self.stack.ingest_sga(packet.frame, received, now, &mut self.out);
        }
        if self.stack.poll_at().is_some_and(|at| at <= now) || self.stack.is_blocked() {
            self.stack.poll(now, &mut self.out);
        }
        let mut done = got;
        while let Some(event) = self.stack.next_event() {
            done += 1;
            match event {
                Event::Tcp(id, ready) => self.progress_tcp(id, ready, queues, ops),
                Event::Accept(id) => self.progress_accepts(id, queues, ops, counters),
                Event::Udp(id) => self.progress_datagrams(id, queues, ops),
            }
        }
        self.flush();
        if got > 0 && self.passes.is_multiple_of(PRESSURE_EVERY) {
            let used = memory.stats().frames_in_use as usize;
            self.stack.set_free_frames(self.frames_total.saturating_sub(used), self.frames_total);
        }
        done
    }

    fn progress_tcp(&mut self, id: TcpId, ready: Ready, queues: &mut Queues, ops: &mut Ops) {
        let Some(&qd) = self.owners.tcp.get(&id) else { return };
        let Some(socket) = queues.net(qd) else { return };
        if let Place::Connecting(_, index) = socket.place
            && (ready.connected() || ready.closed())
        {
            socket.place = Place::Connected(id);
            let failed = self.stack.tcp_error(id).ok().flatten();
            ops.complete(index, failed.map_or(Ok(Outcome::Connected), |e| Err(refused("connect", e))));
        }
        if ready.readable() || ready.closed() {
            while !socket.pops.is_empty() {
                let Some(outcome) = self.take_stream(id).transpose() else { break };
                if let Some(index) = ops.pop_first(&mut socket.pops) {
                    ops.complete(index, outcome);
                }
            }
        }
        if ready.released() || ready.drained() || ready.closed() {
            let failed = self.stack.tcp_error(id).ok().flatten();
            let released = self.stack.tcp_released(id).unwrap_or(u64::MAX);
            while let Some(index) = socket.pushes.first() {
                let whole = matches!(ops.pending(index), Some(Pending::Net(end)) if *end <= released);
                if !whole && failed.is_none() {
                    break;
                }
                ops.pop_first(&mut socket.pushes);
                let outcome = match failed {
                    Some(error) if !whole => Err(refused("push", error)),
                    _ => Ok(Outcome::Pushed),
                };
                ops.complete(index, outcome);
            }
        }
    }

    fn progress_accepts(&mut self, id: ListenerId, queues: &mut Queues, ops: &mut Ops, counters: &mut Counters) {
        let Some(&qd) = self.owners.listeners.get(&id) else { return };
        while let Some(socket) = queues.net(qd)
            && !socket.pops.is_empty()
        {
            let domain = socket.domain;
            let Ok(Some((new, peer))) = self.stack.tcp_accept(id) else { return };
            let outcome = self.accepted(queues, domain, new, peer);
            if outcome.is_err() {
                let now = self.now();
                let _ = self.stack.tcp_abort(new, now, &mut self.out);
            }
            counters.accepted += 1;
            if let Some(socket) = queues.net(qd)
                && let Some(index) = ops.pop_first(&mut socket.pops)
            {
                ops.complete(index, outcome);
            }
        }
    }

    fn progress_datagrams(&mut self, id: UdpId, queues: &mut Queues, ops: &mut Ops) {
        let Some(&qd) = self.owners.udp.get(&id) else { return };
        let Some(socket) = queues.net(qd) else { return };
        while !socket.pops.is_empty() {
            let Some(outcome) = self.take_datagram(id).transpose() else { return };
            if let Some(index) = ops.pop_first(&mut socket.pops) {
                ops.complete(index, outcome);
            }
        }
    }

    /// The device is gone: everything that waits for it fails.
    fn fail_all(&mut self, queues: &mut Queues, ops: &mut Ops) -> usize {
        let Err(error) = self.alive() else { return 0 };
        let mut failed = 0;
        for qd in queues.open() {
            let Some(socket) = queues.net(qd) else { continue };
            failed += usize::from(!socket.pops.is_empty()) + usize::from(!socket.pushes.is_empty());
            if let Place::Connecting(id, index) = socket.place {
                socket.place = Place::Connected(id);
                ops.complete(index, Err(error.clone()));
                failed += 1;
            }
            ops.complete_all(&mut socket.pops, &error);
            ops.complete_all(&mut socket.pushes, &error);
        }
        failed
    }
}

/// A slot for an operation that waits, at the end of its queue's list.
#[inline]
fn wait(ops: &mut Ops, qd: Qd, list: &mut crate::tokens::OpList, pending: Pending) -> Result<Started> {
    let index = ops.begin(qd, pending)?;
    ops.append(list, index);
    Ok(Started::Pending(index))
}

impl Drop for Inet {
    fn drop(&mut self) {
        // What was pushed before a close is still sent, for as long as a person would not notice.
        let until = Nanos(self.last_close.0.saturating_add(LINGER.as_nanos() as u64));
        while self.dead.is_none() && self.stack.tcp_census().0 > 0 && self.now() < until {
            let now = self.now();
            self.device.tick(now.0);
            if self.device.receive(&mut self.received, BURST).is_err() {
                return;
            }
            let idle = self.received.is_empty();
            for packet in self.received.drain(..) {
                let received = Received { checksum_ok: packet.checksum != RxChecksum::Unknown };
                self.stack.ingest_sga(packet.frame, received, now, &mut self.out);
            }
            self.stack.poll(now, &mut self.out);
            while self.stack.next_event().is_some() {}
            self.flush();
            if idle {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}
