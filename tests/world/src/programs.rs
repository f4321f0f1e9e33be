//! Programs that check what they carry: every byte of a stream is determined by its place.

use crate::{HostApi, Program};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use towpath_cbuf::{Buf, Sga};
use towpath_inet::{Error, Event, ListenerId, Nanos, Options, TcpId};

/// Period of the pattern: prime, so that no packet size hides a shift.
const PERIOD: usize = 65_521;

/// One period of the pattern and a megabyte more, so that any run of up to that length is one slice.
fn pattern() -> &'static [u8] {
    static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    BYTES.get_or_init(|| {
        let byte = |i: usize| ((i % PERIOD) as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0];
        (0..PERIOD + (1 << 20)).map(byte).collect()
    })
}

/// The bytes of every stream at `offset`, as a reference; `len` at most a megabyte.
pub fn piece(offset: u64, len: usize) -> Buf {
    let at = (offset % PERIOD as u64) as usize;
    Buf::from_static(&pattern()[at..at + len])
}

/// Whether `bytes` are those at `offset`.
pub fn matches(offset: u64, bytes: &[u8]) -> bool {
    let mut at = offset;
    bytes.chunks(1 << 20).all(|chunk| {
        let from = (at % PERIOD as u64) as usize;
        at += chunk.len() as u64;
        &pattern()[from..from + chunk.len()] == chunk
    })
}

/// What a program reports while it runs.
#[derive(Default, Clone, Debug)]
pub struct Report {
    /// Bytes received and found right.
    pub received: u64,
    /// Streams that came to their end.
    pub ended: usize,
    /// Connections that were established.
    pub connected: usize,
    /// Errors of connections.
    pub errors: Vec<Error>,
    /// Bytes pushed.
    pub pushed: u64,
    /// When the last byte came.
    pub last: Nanos,
    /// When everything pushed was acknowledged, the end included.
    pub drained: Option<Nanos>,
    /// A wrong byte was received.
    pub wrong: bool,
}

/// A report shared with the test.
pub type Shared = Rc<RefCell<Report>>;

/// Accepts connections, checks what comes, and closes when the peer has finished.
pub struct Receiver {
    /// Where it listens.
    pub local: SocketAddr,
    /// Connections waiting at most.
    pub backlog: u32,
    /// Sends everything back.
    pub echo: bool,
    listener: Option<ListenerId>,
    streams: BTreeMap<TcpId, u64>,
    report: Shared,
}

impl Receiver {
    /// Listens on `port` of every address.
    pub fn new(port: u16) -> (Receiver, Shared) {
        let report = Shared::default();
        let local = SocketAddr::new([0, 0, 0, 0].into(), port);
        let listener = None;
        let made =
            Receiver { local, backlog: 128, echo: false, listener, streams: BTreeMap::new(), report: report.clone() };
        (made, report)
    }

    fn drain(&mut self, host: &mut HostApi<'_>, id: TcpId) {
        loop {
            let Some(offset) = self.streams.get_mut(&id) else { return };
            let mut report = self.report.borrow_mut();
            match host.stack.tcp_pop(id, 1 << 20, host.now, host.wire) {
                Ok(None) => return,
                Ok(Some(sga)) if sga.is_empty() => {
                    report.ended += 1;
                    self.streams.remove(&id);
                    let _ = host.stack.tcp_close(id, host.now, host.wire);
                    return;
                }
                Ok(Some(sga)) => {
                    for bytes in sga.segments() {
                        report.wrong |= !matches(*offset, bytes);
                        *offset += bytes.len() as u64;
                        report.received += bytes.len() as u64;
                    }
                    report.last = host.now;
                    if self.echo {
                        let _ = host.stack.tcp_push(id, sga, host.now, host.wire);
                    }
                }
                Err(error) => {
                    report.errors.push(error);
                    self.streams.remove(&id);
                    let _ = host.stack.tcp_close(id, host.now, host.wire);
                    return;
                }
            }
        }
    }
}

impl Program for Receiver {
    fn start(&mut self, host: &mut HostApi<'_>) {
        self.listener = Some(host.stack.tcp_listen(self.local, self.backlog).expect("the port is free"));
    }

    fn event(&mut self, host: &mut HostApi<'_>, event: Event) {
        match event {
            Event::Accept(id) if Some(id) == self.listener => {
                while let Ok(Some((id, _))) = host.stack.tcp_accept(id) {
                    self.report.borrow_mut().connected += 1;
                    self.streams.insert(id, 0);
                    self.drain(host, id);
                }
            }
            Event::Tcp(id, _) => self.drain(host, id),
            _ => {}
        }
    }
}

/// Connects, pushes so many bytes in pushes of a given size, and closes; checks what comes back.
pub struct Sender {
    remote: SocketAddr,
    total: u64,
    push: usize,
    /// Pushes without waiting for completions.
    pub all_at_once: bool,
    /// Settings made when connected.
    pub options: Vec<Options>,
    /// When it starts.
    pub start_at: Nanos,
    id: Option<TcpId>,
    started: bool,
    closed: bool,
    back: u64,
    /// Bytes it expects back before it closes.
    pub expect_back: bool,
    report: Shared,
}

impl Sender {
    /// Sends `total` bytes to `remote` in pushes of `push` bytes.
    pub fn new(remote: &str, total: u64, push: usize) -> (Sender, Shared) {
        let report = Shared::default();
        let made = Sender {
            remote: remote.parse().expect("an address and a port"),
            total,
            push: push.min(1 << 20),
            all_at_once: false,
            options: Vec::new(),
            start_at: Nanos::ZERO,
            id: None,
            started: false,
            closed: false,
            back: 0,
            expect_back: false,
            report: report.clone(),
        };
        (made, report)
    }

    fn connect(&mut self, host: &mut HostApi<'_>) {
        self.started = true;
        match host.stack.tcp_connect(self.remote, None, host.now, host.wire) {
            Ok(id) => self.id = Some(id),
            Err(error) => self.report.borrow_mut().errors.push(error),
        }
    }

    fn fill(&mut self, host: &mut HostApi<'_>, id: TcpId) {
        let mut report = self.report.borrow_mut();
        while report.pushed < self.total {
            if host.stack.tcp_released(id).is_ok_and(|r| r < report.pushed) && !self.all_at_once {
                return;
            }
            let n = self.push.min((self.total - report.pushed) as usize);
            let bytes = Sga::from(piece(report.pushed, n));
            if let Err(error) = host.stack.tcp_push(id, bytes, host.now, host.wire) {
                report.errors.push(error);
                return;
            }
            report.pushed += n as u64;
        }
        if !self.closed && !self.expect_back {
            self.closed = true;
            let _ = host.stack.tcp_shutdown(id, host.now, host.wire);
        }
    }

    fn drain(&mut self, host: &mut HostApi<'_>, id: TcpId) {
        loop {
            let popped = host.stack.tcp_pop(id, 1 << 20, host.now, host.wire);
            let mut report = self.report.borrow_mut();
            match popped {
                Ok(None) => return,
                Ok(Some(sga)) if sga.is_empty() => {
                    report.ended += 1;
                    self.id = None;
                    drop(report);
                    let _ = host.stack.tcp_close(id, host.now, host.wire);
                    return;
                }
                Ok(Some(sga)) => {
                    for bytes in sga.segments() {
                        report.wrong |= !matches(self.back, bytes);
                        self.back += bytes.len() as u64;
                        report.received += bytes.len() as u64;
                    }
                    report.last = host.now;
                    if self.expect_back && self.back == self.total {
                        self.closed = true;
                        drop(report);
                        let _ = host.stack.tcp_shutdown(id, host.now, host.wire);
                    }
                }
                Err(error) => {
                    report.errors.push(error);
                    self.id = None;
                    drop(report);
                    let _ = host.stack.tcp_close(id, host.now, host.wire);
                    return;
                }
            }
        }
    }
}

impl Program for Sender {
    fn event(&mut self, host: &mut HostApi<'_>, event: Event) {
        let Event::Tcp(id, ready) = event else { return };
        if self.id != Some(id) {
            return;
        }
        if ready.connected() {
            self.report.borrow_mut().connected += 1;
            for option in self.options.clone() {
                let _ = host.stack.tcp_set(id, option, host.now, host.wire);
            }
            self.fill(host, id);
        }
        if ready.released() {
            self.fill(host, id);
        }
        if ready.drained() {
            self.report.borrow_mut().drained = Some(host.now);
        }
        if ready.readable() || ready.closed() {
            self.drain(host, id);
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        (!self.started).then_some(self.start_at)
    }

    fn wake(&mut self, host: &mut HostApi<'_>) {
        self.connect(host);
    }
}
