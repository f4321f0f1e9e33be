//! Files: reads and writes at a cursor, and waiting for the disk.
//!
//! With plain system calls a read or write runs where it is called (it moves bytes between the page cache and us, and
//! rarely waits for the disk), but a sync may take milliseconds, so it runs on a thread of its own while the others
//! are served. Syncs of one file that wait for that thread together are done by one system call: a group commit.

use crate::Qd;
use crate::core::{Ops, Pending, Started};
use crate::error::{Error, Result};
use crate::sys;
use crate::tokens::{OpList, Outcome, Token};
use crate::waiting::Unparker;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use towpath_cbuf::{Memory, Sga};

/// Bytes a pop of a file asks for.
pub(crate) const READ: usize = 64 << 10;

/// How a file is opened; the names are `open(2)`'s flags.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    create: bool,
    truncate: bool,
    exclusive: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing is allowed yet; files that are created get mode 0644 less the umask.
    pub const fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            create: false,
            truncate: false,
            exclusive: false,
            mode: 0o644,
        }
    }

    /// Allow pops.
    pub const fn read(mut self, yes: bool) -> OpenOptions {
        self.read = yes;
        self
    }

    /// Allow pushes.
    pub const fn write(mut self, yes: bool) -> OpenOptions {
        self.write = yes;
        self
    }

    /// Allow pushes, and put each at the end of the file (O_APPEND).
    pub const fn append(mut self, yes: bool) -> OpenOptions {
        self.append = yes;
        self
    }

    /// Create the file if it is missing.
    pub const fn create(mut self, yes: bool) -> OpenOptions {
        self.create = yes;
        self
    }

    /// Empty the file.
    pub const fn truncate(mut self, yes: bool) -> OpenOptions {
        self.truncate = yes;
        self
    }

    /// Fail if the file exists.
    pub const fn create_new(mut self, yes: bool) -> OpenOptions {
        self.exclusive = yes;
        self.create = yes;
        self
    }

    /// The permissions of a file that is created.
    pub const fn mode(mut self, mode: u32) -> OpenOptions {
        self.mode = mode;
        self
    }

    fn open(&self, path: &Path) -> std::io::Result<OwnedFd> {
        use std::os::unix::fs::OpenOptionsExt;
        std::fs::OpenOptions::new()
            .read(self.read)
            .write(self.write)
            .append(self.append)
            .create(self.create && !self.exclusive)
            .create_new(self.exclusive)
            .truncate(self.truncate)
            .mode(self.mode)
            .open(path)
            .map(OwnedFd::from)
    }
}

/// An open file.
pub(crate) struct File {
    pub fd: Arc<OwnedFd>,
    pub cursor: u64,
    /// Pushes ignore the cursor.
    pub append: bool,
    /// Operations under way, oldest first.
    pub pending: OpList,
    /// Some of them are with the kernel.
    pub busy: bool,
}

/// What waits.
pub(crate) enum FileOp {
    /// A sync of its own.
    Sync,
    /// What is left of a push; `durable`: with a sync behind it.
    Write { sga: Sga, durable: bool },
    /// A read at the cursor.
    Read,
}

/// Where a seek starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The start of the file.
    Start,
    /// The cursor.
    Current,
    /// The end of the file.
    End,
}

impl File {
    pub fn open(path: &Path, options: OpenOptions) -> Result<File> {
        let fd = options
            .open(path)
            .map_err(|e| Error::os_on("open", e.raw_os_error().unwrap_or(libc::EINVAL), path.display()))?;
        Ok(File { fd: Arc::new(fd), cursor: 0, append: options.append, pending: OpList::EMPTY, busy: false })
    }

    /// The file's length in bytes.
    pub fn size(&self) -> Result<u64> {
        sys::file_size(self.fd.as_raw_fd()).map_err(|errno| Error::os("fstat", errno))
    }

    pub fn seek(&mut self, offset: i64, whence: Whence) -> Result<u64> {
        let base = match whence {
            Whence::Start => 0,
            Whence::Current => self.cursor,
            Whence::End => self.size()?,
        };
        let to = base.checked_add_signed(offset).filter(|&to| to <= i64::MAX as u64);
        self.cursor = to.ok_or(Error::os("lseek", libc::EINVAL))?;
        Ok(self.cursor)
    }

    pub fn truncate(&mut self, len: u64) -> Result<()> {
        sys::truncate(self.fd.as_raw_fd(), len).map_err(|errno| Error::os("truncate", errno))
    }

    /// Reads at the cursor and moves it.
    pub fn read(&mut self, memory: &Memory) -> Result<Sga> {
        let mut buffer = memory.alloc(READ)?;
        let n = sys::read_at(self.fd.as_raw_fd(), &mut buffer, self.cursor).map_err(|e| Error::os("pop", e))?;
        self.cursor += n as u64;
        if n * 4 < READ {
            return if n == 0 { Ok(Sga::new()) } else { Ok(Sga::from(memory.copy_from(&buffer[..n])?)) };
        }
        buffer.truncate(n);
        Ok(Sga::from(buffer.freeze()))
    }

    /// Writes all of `sga` at the cursor, or at the end, and moves the cursor behind it.
    pub fn write(&mut self, mut sga: Sga) -> Result<()> {
        let mut at = self.cursor;
        while !sga.is_empty() {
            let iov: Vec<libc::iovec> = sga
                .segments()
                .iter()
                .take(sys::IOV_MAX)
                .map(|s| libc::iovec { iov_base: s.as_ptr().cast_mut().cast(), iov_len: s.len() })
                .collect();
            // SAFETY: each element describes a segment of `sga`, which outlives the call.
            let n = unsafe { sys::write_at(self.fd.as_raw_fd(), &iov, (!self.append).then_some(at)) }
                .map_err(|e| Error::os("push", e))?;
            if n == 0 {
                return Err(Error::os("push", libc::EIO));
            }
            sga.trim_front(n);
            at += n as u64;
        }
        self.cursor = if self.append { self.size()? } else { at };
        Ok(())
    }
}

/// The thread that waits for disks.
pub(crate) struct Syncer {
    unpark: Arc<Unparker>,
    jobs: Option<mpsc::Sender<(Token, Arc<OwnedFd>)>>,
    thread: Option<JoinHandle<()>>,
    finished: Arc<Finished>,
    outstanding: usize,
}

/// What the thread has done and nobody has seen yet.
#[derive(Default)]
struct Finished {
    count: AtomicUsize,
    results: Mutex<Vec<(Token, sys::Errno)>>,
}

impl Syncer {
    pub fn new(unpark: Arc<Unparker>) -> Syncer {
        Syncer { unpark, jobs: None, thread: None, finished: Arc::default(), outstanding: 0 }
    }

    /// Syncs `file` and completes a slot: here and now if nobody else waits for this runtime, else on the thread.
    pub fn sync(&mut self, qd: Qd, file: &mut File, ops: &mut Ops, op: FileOp, alone: bool) -> Result<Started> {
        if alone && file.pending.is_empty() {
            sys::sync_data(file.fd.as_raw_fd()).map_err(|errno| Error::os("sync", errno))?;
            return Ok(Started::Done(if matches!(op, FileOp::Write { .. }) {
                Outcome::Pushed
            } else {
                Outcome::Synced
            }));
        }
        let jobs = self.start()?;
        let index = ops.begin(qd, Pending::File(op))?;
        ops.append(&mut file.pending, index);
        if jobs.send((ops.token(index), file.fd.clone())).is_err() {
            ops.unlink(&mut file.pending, index);
            ops.complete(index, Err(Error::os("sync", libc::EAGAIN)));
        } else {
            self.outstanding += 1;
        }
        Ok(Started::Pending(index))
    }

    fn start(&mut self) -> Result<mpsc::Sender<(Token, Arc<OwnedFd>)>> {
        if let Some(jobs) = &self.jobs {
            return Ok(jobs.clone());
        }
        let (sender, receiver) = mpsc::channel();
        let (finished, unpark) = (self.finished.clone(), self.unpark.clone());
        let thread = std::thread::Builder::new()
            .name("towpath-sync".into())
            .spawn(move || serve(&receiver, &finished, &unpark))
            .map_err(|e| Error::os("start a thread", e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        self.thread = Some(thread);
        self.jobs = Some(sender.clone());
        Ok(sender)
    }

    /// Completes what the thread has finished; `unlink` takes the slot out of its queue.
    #[inline]
    pub fn collect(&mut self, ops: &mut Ops, mut unlink: impl FnMut(&mut Ops, u32)) -> usize {
        if self.outstanding == 0 || self.finished.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let Ok(mut held) = self.finished.results.lock() else { return 0 };
        let results = std::mem::take(&mut *held);
        self.finished.count.store(0, Ordering::Release);
        drop(held);
        let done = results.len();
        self.outstanding -= done;
        for (token, errno) in results {
            // A slot whose file was closed meanwhile has completed with Canceled, and its token is stale.
            let Ok(index) = ops.lookup(token) else { continue };
            let Some(Pending::File(op)) = ops.pending(index) else { continue };
            let outcome = if matches!(op, FileOp::Write { .. }) { Outcome::Pushed } else { Outcome::Synced };
            unlink(ops, index);
            let result = if errno == 0 { Ok(outcome) } else { Err(Error::os("sync", errno)) };
            ops.complete(index, result);
        }
        done
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to do about it here.
            let _ = thread.join();
        }
    }
}

/// The thread: takes every job that waits, syncs each file once, reports.
fn serve(jobs: &mpsc::Receiver<(Token, Arc<OwnedFd>)>, finished: &Finished, unpark: &Unparker) {
    while let Ok(first) = jobs.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(jobs.try_iter()).collect();
        let mut results = HashMap::new();
        let mut done = Vec::with_capacity(batch.len());
        for (token, fd) in &batch {
            let raw = fd.as_raw_fd();
            let errno = *results.entry(raw).or_insert_with(|| sys::sync_data(raw).err().unwrap_or(0));
            done.push((*token, errno));
        }
        if let Ok(mut results) = finished.results.lock() {
            results.append(&mut done);
            finished.count.store(results.len(), Ordering::Release);
        }
        unpark.raise();
    }
}
