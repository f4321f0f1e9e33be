//! The library OS `kernel` (the paper's Catnap, Demikernel section 6.1): sockets and files of the Linux kernel, driven
//! either by plain non-blocking system calls or by io_uring.

mod calibrate;
pub(crate) mod file;
pub(crate) mod receive;
pub(crate) mod socket;
pub(crate) mod syscalls;
pub(crate) mod uring;

use crate::core::{Body, Counters, Ops, Patience, Pending, Queues, Started};
use crate::error::{Error, Result};
use crate::sys::RawAddress;
use crate::tokens::Outcome;
use crate::waiting::Unparker;
use crate::{Address, Backend, Qd};
use file::{File, FileOp, Syncer};
use socket::{Accepting, Kind, Role, Socket};
use std::sync::Arc;
use syscalls::Syscalls;
use towpath_cbuf::{Memory, Sga};
use uring::Uring;

/// What is left of a push that could not finish at once.
pub(crate) struct PushState {
    /// The bytes not yet handed to the kernel, and with them the references that keep their memory.
    pub sga: Sga,
    /// Where a datagram goes.
    pub to: Option<Box<RawAddress>>,
}

impl PushState {
    pub fn new(sga: Sga, to: Option<Box<RawAddress>>) -> PushState {
        PushState { sga, to }
    }
}

/// How operations make progress.
pub(crate) enum Driver {
    Syscalls(Box<Syscalls>),
    Uring(Box<Uring>),
}

/// See the module.
pub(crate) struct Kernel {
    driver: Driver,
    syncer: Syncer,
}

impl Kernel {
    /// Opens the driver of a backend; `unpark` ends a sleep when it becomes readable.
    ///
    /// # Errors
    /// For [`Backend::Uring`] why the kernel refuses it; [`Backend::Auto`] then says so in a line and takes the other.
    pub fn new(backend: Backend, expected: usize, unpark: Arc<Unparker>, memory: &Memory) -> Result<Kernel> {
        let driver = match calibrate::choose(backend, expected) {
            Backend::Uring => Driver::Uring(Box::new(Uring::new(unpark.clone(), memory)?)),
            _ => Driver::Syscalls(Box::new(Syscalls::new(unpark.clone())?)),
        };
        Ok(Kernel { driver, syncer: Syncer::new(unpark) })
    }

    /// Ends every sleep while `fd` is readable.
    pub fn watch_device(&mut self, fd: std::os::fd::RawFd) -> Result<()> {
        match &mut self.driver {
            Driver::Syscalls(driver) => driver.watch_device(fd),
            Driver::Uring(_) => Err(Error::Unsupported {
                operation: "sleep on a device",
                why: "only kernel@syscalls serves beside a device",
            }),
        }
    }

    /// The name a person knows the driver by.
    pub fn name(&self) -> &'static str {
        match &self.driver {
            Driver::Syscalls(_) => "kernel@syscalls",
            Driver::Uring(_) => "kernel@uring",
        }
    }

    #[inline]
    pub fn pop(&mut self, qd: Qd, socket: &mut Socket, ops: &mut Ops, memory: &Memory) -> Result<Started> {
        if let Some(outcome) = socket.returned.pop_front() {
            return Ok(Started::Done(outcome));
        }
        if socket.is_stream() && socket.role != Role::Connected {
            return Err(not_connected("pop", socket.role));
        }
        match &mut self.driver {
            Driver::Syscalls(driver) => driver.pop(qd, socket, ops, memory),
            Driver::Uring(driver) => driver.pop(qd, socket, ops, memory),
        }
    }

    #[inline]
    pub fn push(
        &mut self,
        qd: Qd,
        socket: &mut Socket,
        ops: &mut Ops,
        sga: Sga,
        to: Option<&Address>,
        bytes_max: usize,
    ) -> Result<Started> {
        if socket.is_stream() {
            if to.is_some() {
                return Err(Error::Unsupported {
                    operation: "push_to",
                    why: "only a datagram socket takes an address",
                });
            }
            if !matches!(socket.role, Role::Connected | Role::Connecting) {
                return Err(not_connected("push", socket.role));
            }
        }
        let to = match to {
            None => None,
            Some(address) => {
                socket.check_domain("push_to", address)?;
                Some(RawAddress::new(address).map_err(|e| Error::os_on("push_to", e, address))?)
            }
        };
        if socket.push_bytes > bytes_max {
            return Err(Error::Full { limit: bytes_max, unit: "bytes" });
        }
        match &mut self.driver {
            Driver::Syscalls(driver) => driver.push(qd, socket, ops, sga, to),
            Driver::Uring(driver) => driver.push(qd, socket, ops, sga, to),
        }
    }

    pub fn accept(&mut self, qd: Qd, socket: &mut Socket, ops: &mut Ops) -> Result<Accepting> {
        if socket.role != Role::Listening {
            return Err(Error::Unsupported { operation: "accept", why: "the socket does not listen" });
        }
        match &mut self.driver {
            Driver::Syscalls(driver) => driver.accept(qd, socket, ops),
            Driver::Uring(driver) => driver.accept(qd, socket, ops),
        }
    }

    pub fn connect(&mut self, qd: Qd, socket: &mut Socket, ops: &mut Ops, to: &Address) -> Result<Started> {
        socket.check_domain("connect", to)?;
        match socket.role {
            Role::Fresh => {}
            Role::Connected if socket.kind == Kind::Datagram => {}
            Role::Connected | Role::Connecting => return Err(Error::os_on("connect", libc::EISCONN, to)),
            Role::Listening => {
                return Err(Error::Unsupported { operation: "connect", why: "the socket listens" });
            }
        }
        let raw = RawAddress::new(to).map_err(|e| Error::os_on("connect", e, to))?;
        match &mut self.driver {
            Driver::Syscalls(driver) => driver.connect(qd, socket, ops, to, raw),
            Driver::Uring(driver) => driver.connect(qd, socket, ops, raw),
        }
    }

    pub fn close_socket(&mut self, qd: Qd, mut socket: Socket, ops: &mut Ops) {
        if let Driver::Uring(driver) = &mut self.driver {
            driver.close(qd, &socket);
        }
        ops.complete_all(&mut socket.pops, &Error::Canceled);
        ops.complete_all(&mut socket.pushes, &Error::Canceled);
    }

    pub fn file_pop(&mut self, qd: Qd, file: &mut File, ops: &mut Ops, memory: &Memory) -> Result<Started> {
        if let Driver::Uring(driver) = &mut self.driver {
            return driver.file(qd, file, ops, FileOp::Read, memory);
        }
        let sga = file.read(memory)?;
        Ok(Started::Done(Outcome::Popped { sga, from: None }))
    }

    pub fn file_push(
        &mut self,
        qd: Qd,
        file: &mut File,
        ops: &mut Ops,
        sga: Sga,
        durable: bool,
        memory: &Memory,
    ) -> Result<Started> {
        let alone = match &mut self.driver {
            Driver::Uring(driver) => return driver.file(qd, file, ops, FileOp::Write { sga, durable }, memory),
            Driver::Syscalls(driver) => driver.is_idle(),
        };
        file.write(sga)?;
        if !durable {
            return Ok(Started::Done(Outcome::Pushed));
        }
        self.syncer.sync(qd, file, ops, FileOp::Write { sga: Sga::new(), durable }, alone)
    }

    pub fn file_sync(&mut self, qd: Qd, file: &mut File, ops: &mut Ops, memory: &Memory) -> Result<Started> {
        match &mut self.driver {
            Driver::Uring(driver) => driver.file(qd, file, ops, FileOp::Sync, memory),
            Driver::Syscalls(driver) => self.syncer.sync(qd, file, ops, FileOp::Sync, driver.is_idle()),
        }
    }

    pub fn close_file(&mut self, mut file: File, ops: &mut Ops) {
        ops.complete_all(&mut file.pending, &Error::Canceled);
    }

    pub fn poll(
        &mut self,
        queues: &mut Queues,
        ops: &mut Ops,
        memory: &Memory,
        patience: Patience,
        counters: &mut Counters,
    ) -> usize {
        let synced = self.syncer.collect(ops, |ops, index| {
            if let Ok(Body::File(file)) = queues.get(ops.queue_of(index)) {
                ops.unlink(&mut file.pending, index);
            }
        });
        let patience = if synced > 0 { Patience::Look { hot: false } } else { patience };
        synced
            + match &mut self.driver {
                Driver::Syscalls(driver) => driver.poll(queues, ops, memory, patience, counters),
                Driver::Uring(driver) => driver.poll(queues, ops, memory, patience, counters),
            }
    }
}

fn not_connected(operation: &'static str, role: Role) -> Error {
    match role {
        Role::Listening => Error::Unsupported { operation, why: "a listening socket only accepts" },
        _ => Error::os(operation, libc::ENOTCONN),
    }
}

/// A slot for a push that waits, counted against the queue's limit.
pub(crate) fn begin_push(
    qd: Qd,
    socket: &mut Socket,
    ops: &mut Ops,
    sga: Sga,
    to: Option<Box<RawAddress>>,
) -> Result<u32> {
    socket.push_bytes += sga.len();
    let index = ops.begin(qd, Pending::Push(PushState::new(sga, to)))?;
    ops.append(&mut socket.pushes, index);
    Ok(index)
}
