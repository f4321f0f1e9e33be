//! What a runtime owns besides its scheduler: the table of queues, the completion slots, and the library OS chosen at
//! start. Every operation of every queue enters through [`Core::start`], which finds the queue and goes straight to
//! its kind; the choice of library OS is a match, never a virtual call.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::inet::Inet;
use crate::inet::socket::NetSocket;
use crate::kernel::file::{File, OpenOptions};
use crate::kernel::socket::{Kind, Socket};
use crate::kernel::{Kernel, PushState, socket};
use crate::memory_queue::MemoryQueue;
use crate::tokens::{Completion, OpList, Outcome, Slots, Token};
use crate::{Address, Domain};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use towpath_cbuf::{Memory, Sga};

/// Names an open queue; closing it makes the name stale, and a later queue gets another (until 2048 queues have
/// stood in the same place).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qd(u32);

const QD_INDEX_BITS: u32 = 20;
const QD_INDEX_MASK: u32 = (1 << QD_INDEX_BITS) - 1;
/// Generations fill a descriptor up to 31 bits, so that C sees a non-negative `int`.
const QD_GENERATION_MASK: u32 = (1 << (31 - QD_INDEX_BITS)) - 1;

impl Qd {
    /// The descriptor as a non-negative number, as the C interface hands it out.
    pub fn raw(self) -> i32 {
        self.0 as i32
    }

    /// A descriptor from its number; one that was never issued is found out when it is used.
    pub fn from_raw(raw: i32) -> Qd {
        Qd(raw as u32)
    }

    fn index(self) -> usize {
        (self.0 & QD_INDEX_MASK) as usize
    }
}

impl fmt::Display for Qd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Qd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qd({})", self.0)
    }
}

/// An operation as the caller asks for it.
pub(crate) enum Request<'a> {
    Pop,
    Accept,
    Connect(&'a Address),
    Push { sga: Sga, to: Option<&'a Address>, durable: bool },
    Sync,
}

/// How an operation went at first.
pub(crate) enum Started {
    Done(Outcome),
    /// It waits in this completion slot.
    Pending(u32),
}

/// What is kept for an operation that waits.
pub(crate) enum Pending {
    Pop,
    Accept,
    Connect(Box<crate::sys::RawAddress>),
    Push(PushState),
    File(crate::kernel::file::FileOp),
    /// A push of the stack, complete when this many bytes of its connection are released; or a connect.
    Net(u64),
}

pub(crate) type Ops = Slots<Pending>;

/// What stands behind a queue descriptor.
pub(crate) enum Body {
    Socket(Box<Socket>),
    File(Box<File>),
    Memory(MemoryQueue),
    Net(Box<NetSocket>),
}

/// One place in the table of queues.
struct Entry {
    generation: u32,
    body: Option<Body>,
}

/// The table of queues.
pub(crate) struct Queues {
    entries: Vec<Entry>,
    free: Vec<u32>,
    limit: usize,
}

impl Queues {
    fn new(limit: usize) -> Queues {
        Queues { entries: Vec::new(), free: Vec::new(), limit: limit.min(1 << QD_INDEX_BITS) }
    }

    /// Open queues.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Opens a queue.
    pub fn insert(&mut self, body: Body) -> Result<Qd> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() < self.limit => {
                self.entries.push(Entry { generation: 0, body: None });
                (self.entries.len() - 1) as u32
            }
            None => return Err(Error::Exhausted { what: "queues", limit: self.limit }),
        };
        let entry = &mut self.entries[index as usize];
        entry.body = Some(body);
        Ok(Qd(entry.generation << QD_INDEX_BITS | index))
    }

    /// The open queue a descriptor names.
    #[inline]
    pub fn get(&mut self, qd: Qd) -> Result<&mut Body> {
        match self.entries.get_mut(qd.index()) {
            Some(Entry { generation, body: Some(body) }) if *generation == qd.0 >> QD_INDEX_BITS => Ok(body),
            _ => Err(Error::BadQueue(qd)),
        }
    }

    /// The open socket a descriptor names; none if it is closed or something else.
    #[inline]
    pub fn socket(&mut self, qd: Qd) -> Option<&mut Socket> {
        match self.get(qd) {
            Ok(Body::Socket(socket)) => Some(socket),
            _ => None,
        }
    }

    /// The open socket of the stack a descriptor names.
    #[inline]
    pub fn net(&mut self, qd: Qd) -> Option<&mut NetSocket> {
        match self.get(qd) {
            Ok(Body::Net(socket)) => Some(socket),
            _ => None,
        }
    }

    /// Takes a queue out of the table; its descriptor is stale from now on.
    pub fn remove(&mut self, qd: Qd) -> Result<Body> {
        self.get(qd)?;
        let entry = &mut self.entries[qd.index()];
        entry.generation = (entry.generation + 1) & QD_GENERATION_MASK;
        self.free.push(qd.index() as u32);
        entry.body.take().ok_or(Error::BadQueue(qd))
    }

    /// Every open queue.
    pub fn open(&self) -> Vec<Qd> {
        let named = |(index, entry): (usize, &Entry)| {
            entry.body.as_ref().map(|_| Qd(entry.generation << QD_INDEX_BITS | index as u32))
        };
        self.entries.iter().enumerate().filter_map(named).collect()
    }
}

/// The library operating systems.
pub(crate) enum Os {
    Kernel(Box<Kernel>),
    /// Our own stack on a device, and the kernel for all but its sockets.
    Inet(Box<Inet>),
}

impl Os {
    #[inline]
    fn kernel(&mut self) -> &mut Kernel {
        match self {
            Os::Kernel(kernel) => kernel,
            Os::Inet(inet) => &mut inet.kernel,
        }
    }
}

/// How long a pass over the devices may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Look once and return; `hot`: look where the last data came from, whatever that costs the processor.
    Look { hot: bool },
    /// Sleep until something happens, at most this long if a limit is given.
    Sleep(Option<Duration>),
}

/// See the module.
pub(crate) struct Core {
    pub ops: Ops,
    pub queues: Queues,
    pub os: Os,
    pub memory: Memory,
    pub push_bytes_max: usize,
    pub counters: Counters,
}

/// What a runtime has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Pushes started.
    pub pushes: u64,
    /// Pops started.
    pub pops: u64,
    /// Pushes and pops that finished without waiting.
    pub immediate: u64,
    /// Connections accepted.
    pub accepted: u64,
}

impl Core {
    pub fn new(config: &Config, memory: Memory, os: Os) -> Core {
        Core {
            ops: Slots::new(config.operations_max),
            queues: Queues::new(config.queues_max),
            os,
            memory,
            push_bytes_max: config.push_bytes_max,
            counters: Counters::default(),
        }
    }

    /// Starts an operation; most finish here.
    pub fn start(&mut self, qd: Qd, request: Request<'_>) -> Result<Started> {
        let Core { ops, queues, os, memory, counters, .. } = self;
        match &request {
            Request::Pop => counters.pops += 1,
            Request::Push { .. } => counters.pushes += 1,
            _ => {}
        }
        let body = queues.get(qd)?;
        if let (Os::Inet(inet), Body::Net(_)) = (&mut *os, &*body) {
            let started = inet.start(qd, queues, ops, counters, request)?;
            counters.immediate += u64::from(matches!(started, Started::Done(_)));
            return Ok(started);
        }
        let kernel = os.kernel();
        let started = match (queues.get(qd)?, request) {
            (Body::Socket(socket), Request::Pop) => kernel.pop(qd, socket, ops, memory)?,
            (Body::Socket(socket), Request::Push { sga, to, durable: false }) => {
                kernel.push(qd, socket, ops, sga, to, self.push_bytes_max)?
            }
            (Body::Socket(socket), Request::Connect(to)) => kernel.connect(qd, socket, ops, to)?,
            (Body::Socket(socket), Request::Accept) => match kernel.accept(qd, socket, ops)? {
                socket::Accepting::Pending(index) => Started::Pending(index),
                socket::Accepting::Now(new, peer) => {
                    let qd = queues.insert(Body::Socket(Box::new(new)))?;
                    counters.accepted += 1;
                    Started::Done(Outcome::Accepted { qd, peer })
                }
            },
            (Body::Memory(queue), Request::Pop) => queue.pop(qd, ops)?,
            (Body::Memory(queue), Request::Push { sga, to: None, durable: false }) => queue.push(qd, ops, sga)?,
            (Body::File(file), Request::Pop) => kernel.file_pop(qd, file, ops, memory)?,
            (Body::File(file), Request::Push { sga, to: None, durable }) => {
                kernel.file_push(qd, file, ops, sga, durable, memory)?
            }
            (Body::File(file), Request::Sync) => kernel.file_sync(qd, file, ops, memory)?,
            (_, request) => return Err(unsupported(&request)),
        };
        if let Started::Done(Outcome::Popped { .. } | Outcome::Pushed) = &started {
            counters.immediate += 1;
        }
        Ok(started)
    }

    /// Starts an operation in token style: one that finished at once still gets a slot.
    pub fn start_token(&mut self, qd: Qd, request: Request<'_>) -> Result<Token> {
        self.queues.get(qd)?;
        match self.start(qd, request) {
            Ok(Started::Pending(index)) => Ok(self.ops.token(index)),
            Ok(Started::Done(outcome)) => self.ops.finished(qd, Ok(outcome)),
            // What the caller did wrong is told at once; what the world did comes with the completion.
            Err(error @ Error::Os { .. }) => self.ops.finished(qd, Err(error)),
            Err(error) => Err(error),
        }
    }

    /// A new socket.
    pub fn socket(&mut self, domain: Domain, kind: Kind) -> Result<Qd> {
        if matches!(self.os, Os::Inet(_)) && domain != Domain::Unix {
            return self.queues.insert(Body::Net(Box::new(NetSocket::new(domain, kind))));
        }
        let socket = Socket::open(domain, kind)?;
        self.queues.insert(Body::Socket(Box::new(socket)))
    }

    /// A new in-memory queue.
    pub fn memory_queue(&mut self) -> Result<Qd> {
        self.queues.insert(Body::Memory(MemoryQueue::new()))
    }

    /// Opens a file.
    pub fn open_file(&mut self, path: &std::path::Path, options: OpenOptions) -> Result<Qd> {
        let file = File::open(path, options)?;
        self.queues.insert(Body::File(Box::new(file)))
    }

    /// Closes a queue; what is pending on it completes with [`Error::Canceled`].
    pub fn close(&mut self, qd: Qd) -> Result<()> {
        let body = self.queues.remove(qd)?;
        let kernel = self.os.kernel();
        match body {
            Body::Socket(socket) => kernel.close_socket(qd, *socket, &mut self.ops),
            Body::File(file) => kernel.close_file(*file, &mut self.ops),
            Body::Memory(mut queue) => queue.close(&mut self.ops),
            Body::Net(socket) => {
                if let Os::Inet(inet) = &mut self.os {
                    inet.close(*socket, &mut self.ops);
                }
            }
        }
        Ok(())
    }

    /// The future that waited for `token` was dropped. Data that has arrived goes back to its queue; a pop is
    /// withdrawn; a push goes on, because half a message must not stay on the wire.
    pub fn abandon(&mut self, token: Token) {
        match self.ops.abandon(token) {
            Some(Ok(completion)) => self.give_back(completion),
            Some(Err(index)) => self.withdraw(index),
            None => {}
        }
    }

    fn give_back(&mut self, completion: Completion) {
        let Completion { qd, outcome: Ok(outcome), .. } = completion else { return };
        if !matches!(outcome, Outcome::Popped { .. } | Outcome::Accepted { .. }) {
            return;
        }
        match self.queues.get(qd) {
            Ok(Body::Socket(socket)) => match self.ops.pop_first(&mut socket.pops) {
                Some(index) => self.ops.complete(index, Ok(outcome)),
                None => socket.returned.push_front(outcome),
            },
            Ok(Body::Net(socket)) => match self.ops.pop_first(&mut socket.pops) {
                Some(index) => self.ops.complete(index, Ok(outcome)),
                None => socket.returned.push_front(outcome),
            },
            Ok(Body::Memory(queue)) => queue.give_back(&mut self.ops, outcome),
            _ => {
                if let Outcome::Accepted { qd, .. } = outcome {
                    // Its listener is closed: nobody can ask for it any more.
                    let _ = self.close(qd);
                }
            }
        }
    }

    fn withdraw(&mut self, index: u32) {
        let qd = self.ops.queue_of(index);
        let list: Option<&mut OpList> = match self.queues.get(qd) {
            Ok(Body::Socket(socket)) => Some(&mut socket.pops),
            Ok(Body::Net(socket)) => Some(&mut socket.pops),
            Ok(Body::Memory(queue)) => Some(&mut queue.pops),
            _ => None,
        };
        if let Some(list) = list
            && self.ops.unlink(list, index)
        {
            self.ops.complete(index, Err(Error::Canceled));
        }
    }

    /// One pass over the library OS; returns how many operations it completed or events it saw.
    pub fn poll(&mut self, patience: Patience) -> usize {
        let Core { queues, ops, memory, counters, os, .. } = self;
        match os {
            Os::Kernel(kernel) => kernel.poll(queues, ops, memory, patience, counters),
            Os::Inet(inet) => inet.poll(queues, ops, memory, patience, counters),
        }
    }

    /// Does something to a socket of the stack; `None` if the queue is not one.
    pub fn net<T>(&mut self, qd: Qd, act: impl FnOnce(&mut Inet, &mut NetSocket) -> T) -> Option<T> {
        match (self.queues.get(qd), &mut self.os) {
            (Ok(Body::Net(socket)), Os::Inet(inet)) => Some(act(inet, socket)),
            _ => None,
        }
    }
}

fn unsupported(request: &Request<'_>) -> Error {
    let (operation, why) = match request {
        Request::Pop => ("pop", "this queue cannot be popped"),
        Request::Accept => ("accept", "only a listening stream socket accepts"),
        Request::Connect(_) => ("connect", "only a socket connects"),
        Request::Push { durable: true, .. } => ("push_sync", "only a file can be pushed to durably"),
        Request::Push { .. } => ("push_to", "only a datagram socket takes an address"),
        Request::Sync => ("sync", "only a file can be synced"),
    };
    Error::Unsupported { operation, why }
}

/// Completions taken back from dropped futures, oldest first.
pub(crate) type Returned = VecDeque<Outcome>;
