//! Open files, pipes, sockets and the console.

use super::net::Socket;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::rc::{Rc, Weak};

/// Where standard input comes from.
#[derive(Debug)]
pub enum Input {
    /// The host's standard input.
    Host,
    /// These bytes, then end of file.
    Bytes(VecDeque<u8>),
}

/// The standard streams of a run.
#[derive(Debug)]
pub struct Console {
    /// Standard input.
    pub input: Input,
    /// What was written, kept instead of passed to the host.
    pub captured: Option<(Vec<u8>, Vec<u8>)>,
}

impl Console {
    /// The host's own streams.
    pub fn host() -> Console {
        Console { input: Input::Host, captured: None }
    }

    /// Output is kept in `captured` (standard output, standard error); input is `input`.
    pub fn captured(input: &[u8]) -> Console {
        Console { input: Input::Bytes(input.iter().copied().collect()), captured: Some((Vec::new(), Vec::new())) }
    }

    /// Writes to standard output, or to standard error.
    pub fn write(&mut self, error: bool, bytes: &[u8]) {
        match &mut self.captured {
            Some((out, err)) => if error { err } else { out }.extend_from_slice(bytes),
            None => {
                // A closed host stream loses output, as it would for a real program that ignores errors.
                let _ = if error {
                    std::io::stderr().write_all(bytes)
                } else {
                    std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush())
                };
            }
        }
    }

    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        match &mut self.input {
            Input::Host => std::io::stdin().read(into).unwrap_or(0),
            Input::Bytes(bytes) => {
                let n = into.len().min(bytes.len());
                for slot in &mut into[..n] {
                    *slot = bytes.pop_front().unwrap_or(0);
                }
                n
            }
        }
    }
}

/// Bytes on their way from writers to readers.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) id: u64,
    pub(crate) bytes: VecDeque<u8>,
    pub(crate) readers: u32,
    pub(crate) writers: u32,
}

/// Bytes a pipe holds.
pub(crate) const PIPE_CAPACITY: usize = 65536;

/// One end of a pipe; the counts follow its life.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) pipe: Rc<RefCell<Pipe>>,
    writes: bool,
}

impl End {
    pub(crate) fn pair(id: u64) -> (End, End) {
        let pipe = Rc::new(RefCell::new(Pipe { id, bytes: VecDeque::new(), readers: 1, writers: 1 }));
        (End { pipe: pipe.clone(), writes: false }, End { pipe, writes: true })
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut pipe = self.pipe.borrow_mut();
        if self.writes {
            pipe.writers -= 1;
        } else {
            pipe.readers -= 1;
        }
    }
}

/// What an open file is.
#[derive(Debug)]
pub(crate) enum Kind {
    Input,
    Output {
        error: bool,
    },
    File(Rc<File>),
    /// Names with inode and type, `.` and `..` among them.
    Directory(Vec<(u64, u8, Vec<u8>)>),
    PipeRead(End),
    PipeWrite(End),
    Socket(Box<Socket>),
    Event {
        id: u64,
        count: u64,
        semaphore: bool,
    },
    /// Watched descriptors: events and data.
    Epoll {
        id: u64,
        watched: BTreeMap<i32, (u32, u64)>,
    },
    /// Next expiry and interval, ns.
    Timer {
        id: u64,
        at: Option<u64>,
        every: u64,
    },
    Random,
}

/// An open file, shared by every descriptor that was duplicated from one.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
    pub(crate) flags: u32,
    /// Path on the host, for directories and files.
    pub(crate) path: String,
}

pub(crate) const O_NONBLOCK: u32 = 0o4000;
pub(crate) const O_APPEND: u32 = 0o2000;
pub(crate) const O_CLOEXEC: u32 = 0o2_000_000;

impl Open {
    pub(crate) fn new(kind: Kind, flags: u32) -> Handle {
        Rc::new(RefCell::new(Open { kind, offset: 0, flags, path: String::new() }))
    }

    pub(crate) fn nonblocking(&self) -> bool {
        self.flags & O_NONBLOCK != 0
    }
}

pub(crate) type Handle = Rc<RefCell<Open>>;

#[derive(Clone, Debug)]
pub(crate) struct Descriptor {
    pub(crate) handle: Handle,
    pub(crate) close_on_exec: bool,
}

/// The descriptors of a process; threads share one table.
pub(crate) type FdTable = Rc<RefCell<Vec<Option<Descriptor>>>>;

/// Descriptors a process may have.
pub(crate) const FD_MAX: usize = 4096;

/// Sockets by the address they are bound to.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) bound: BTreeMap<(u16, u8, Vec<u8>), Weak<RefCell<Open>>>,
    pub(crate) next_port: u16,
}
