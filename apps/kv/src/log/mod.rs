//! The append-only log: every change as the request that makes it, in the protocol's own form, as Redis writes it.
//!
//! [`Log`] gathers what is to be written and knows what is written and what is durable; [`writer`] does
//! the writing; [`load`] reads a log back. Times are absolute in the log and what expired is deleted in it, so reading it back
//! needs no clock.

pub mod load;
pub mod writer;

use crate::number::IntText;
use crate::resp::{Args, Gather, Payload, RETAIN_MIN};
use crate::store::Value;
use std::task::Waker;
use towpath_cbuf::{Memory, Sga};

/// A piece of a request to log.
pub enum Part<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// Argument number so-and-so.
    Arg(&'a Args<'a>, usize),
    /// A stored value.
    Value(&'a Value),
    /// An integer's text.
    Int(i64),
}

/// Whether changes belong to a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transaction {
    None,
    /// `EXEC` runs; nothing was changed yet.
    Armed,
    /// `MULTI` has been logged.
    Open,
}

/// Why the log cannot be written, as the error replies say it.
pub type Failure = String;

/// The log of one server.
pub struct Log {
    pending: Gather,
    db: Option<usize>,
    transaction: Transaction,
    /// Bytes ever added.
    appended: u64,
    /// Of these, handed to the system.
    pub written: u64,
    /// Of these, durable.
    pub synced: u64,
    /// The last write failed; it is tried again, and until it succeeds changes are refused.
    pub failure: Option<Failure>,
    /// Changes are missing from the file, or it ends with half a request.
    pub holed: bool,
    /// Size of the file, in bytes.
    pub file_size: u64,
    /// Its size after the last rewrite or at start.
    pub base_size: u64,
    /// A rewrite was asked for.
    pub rewrite_wanted: bool,
    /// A rewrite is in progress.
    pub rewriting: bool,
    /// The last rewrite succeeded.
    pub rewrite_ok: bool,
    /// Times the log was made durable.
    pub syncs: u64,
    /// The writer has ended.
    pub finished: bool,
    waiting: Vec<Waker>,
    writer: Option<Waker>,
}

impl Log {
    /// A log whose file has `file_size` bytes.
    pub fn new(memory: Memory, file_size: u64) -> Log {
        Log {
            pending: Gather::new(memory),
            db: None,
            transaction: Transaction::None,
            appended: 0,
            written: 0,
            synced: 0,
            failure: None,
            holed: false,
            file_size,
            base_size: file_size,
            rewrite_wanted: false,
            rewriting: false,
            rewrite_ok: true,
            syncs: 0,
            finished: false,
            waiting: Vec::new(),
            writer: None,
        }
    }

    /// Adds a change made in database `db`.
    pub fn record(&mut self, db: usize, parts: &[Part<'_>]) {
        let before = self.pending.len();
        if self.transaction == Transaction::Armed {
            self.transaction = Transaction::Open;
            request(&mut self.pending, &[Part::Bytes(b"MULTI")]);
        }
        if self.db != Some(db) {
            self.db = Some(db);
            request(&mut self.pending, &[Part::Bytes(b"SELECT"), Part::Int(db as i64)]);
        }
        request(&mut self.pending, parts);
        self.grown(before);
    }

    /// Adds a request as the client sent it.
    pub fn record_args(&mut self, db: usize, args: &Args<'_>) {
        let parts: smallvec::SmallVec<[Part<'_>; 8]> = (0..args.len()).map(|i| Part::Arg(args, i)).collect();
        self.record(db, &parts);
    }

    /// The changes until [`Log::commit`] are all there after a reload, or none is.
    pub fn begin(&mut self) {
        self.transaction = Transaction::Armed;
    }

    /// Ends what [`Log::begin`] began.
    pub fn commit(&mut self) {
        let before = self.pending.len();
        if std::mem::replace(&mut self.transaction, Transaction::None) == Transaction::Open {
            request(&mut self.pending, &[Part::Bytes(b"EXEC")]);
        }
        self.grown(before);
    }

    fn grown(&mut self, before: usize) {
        self.appended += (self.pending.len() - before) as u64;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    /// Where the log ends once everything added is written.
    pub fn end(&self) -> u64 {
        self.appended
    }

    /// Bytes that wait to be written.
    pub fn waiting_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Takes what waits to be written; `None` if memory for it ran out.
    pub fn take(&mut self) -> Option<Sga> {
        self.pending.take()
    }

    /// The next change is written with the number of its database: a new file begins.
    pub fn forget_database(&mut self) {
        self.db = None;
    }

    /// Wakes everyone who waits for progress.
    pub fn progress(&mut self) {
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
    }

    /// Wakes `waker` at the next progress.
    pub fn wait(&mut self, waker: &Waker) {
        self.waiting.push(waker.clone());
    }

    /// Wakes `waker` at the next change.
    pub fn wait_for_work(&mut self, waker: &Waker) {
        self.writer = Some(waker.clone());
    }

    /// Wakes the writer now.
    pub fn wake_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }
}

/// Writes one request; long arguments and values by reference.
pub fn request(out: &mut Gather, parts: &[Part<'_>]) {
    head(out, b'*', parts.len());
    for part in parts {
        match part {
            Part::Bytes(bytes) => bulk(out, bytes),
            Part::Int(n) => bulk(out, IntText::new(*n).as_bytes()),
            Part::Arg(args, i) => argument(out, args, *i),
            Part::Value(Value::Large(large)) => {
                head(out, b'$', large.len());
                for part in large.parts() {
                    out.reference(part.clone());
                }
                out.bytes(b"\r\n");
            }
            Part::Value(value) => bulk(out, &value.bytes()),
        }
    }
}

fn argument(out: &mut Gather, args: &Args<'_>, i: usize) {
    match args.payload(i) {
        Payload::Within(buf, start, len) if len >= RETAIN_MIN => {
            head(out, b'$', len);
            out.reference(buf.slice(start..start + len));
            out.bytes(b"\r\n");
        }
        Payload::Within(buf, start, len) => bulk(out, &buf[start..start + len]),
        Payload::Bytes(bytes) => bulk(out, bytes),
        Payload::Buffers(sga) => {
            head(out, b'$', sga.len());
            for part in sga.segments() {
                out.reference(part.clone());
            }
            out.bytes(b"\r\n");
        }
    }
}

fn bulk(out: &mut Gather, bytes: &[u8]) {
    head(out, b'$', bytes.len());
    out.bytes(bytes);
    out.bytes(b"\r\n");
}

fn head(out: &mut Gather, mark: u8, n: usize) {
    out.byte(mark);
    out.bytes(IntText::new(n as i64).as_bytes());
    out.bytes(b"\r\n");
}
