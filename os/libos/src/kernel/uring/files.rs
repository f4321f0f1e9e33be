//! Files on io_uring. The operations of a file run in the order they were issued; writes that wait together go out as
//! one, and when one of them must be on the disk a sync is linked behind the write, so that a group commit is one
//! submission.

use super::{Flight, Uring, kind};
use crate::Qd;
use crate::core::{Body, Ops, Pending, Queues, Started};
use crate::error::{Error, Result};
use crate::kernel::file::{File, FileOp, READ};
use crate::sys;
use crate::tokens::{Outcome, Token};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use std::os::fd::AsRawFd;
use towpath_cbuf::{BufMut, Memory, Sga};

/// A file's request and the memory the kernel may touch for it.
pub(super) struct FileFlight {
    qd: Qd,
    stage: Stage,
    /// The operations it serves.
    tokens: Vec<Token>,
}

enum Stage {
    Read(BufMut),
    Write {
        sga: Sga,
        /// What the kernel reads the segments' places from.
        _iov: Vec<libc::iovec>,
        sync: bool,
    },
    Sync,
}

impl Uring {
    /// Starts an operation of a file, or queues it behind those before it.
    pub fn file(&mut self, qd: Qd, file: &mut File, ops: &mut Ops, op: FileOp, memory: &Memory) -> Result<Started> {
        let index = ops.begin(qd, Pending::File(op))?;
        ops.append(&mut file.pending, index);
        self.file_next(qd, file, ops, memory);
        Ok(Started::Pending(index))
    }

    /// Submits the next operations of a file unless some are under way.
    fn file_next(&mut self, qd: Qd, file: &mut File, ops: &mut Ops, memory: &Memory) {
        while !file.busy {
            let Some(index) = file.pending.first() else { return };
            if !matches!(ops.pending(index), Some(Pending::File(FileOp::Read))) {
                return self.file_write(qd, file, ops);
            }
            match memory.alloc(READ) {
                Ok(buffer) => return self.file_read(qd, file, ops.token(index), buffer),
                Err(error) => {
                    ops.pop_first(&mut file.pending);
                    ops.complete(index, Err(error.into()));
                }
            }
        }
    }

    fn file_read(&mut self, qd: Qd, file: &mut File, token: Token, mut buffer: BufMut) {
        let (pointer, len) = (buffer.as_mut_ptr(), buffer.len() as u32);
        let entry = opcode::Read::new(Fd(file.fd.as_raw_fd()), pointer, len).offset(file.cursor).build();
        file.busy = true;
        let flight = FileFlight { qd, stage: Stage::Read(buffer), tokens: vec![token] };
        let at = self.fly(Flight::File(flight));
        self.submit(entry.user_data(kind::FLIGHT | at as u64));
    }

    /// Gathers the writes and syncs at the head of the file's operations.
    fn file_write(&mut self, qd: Qd, file: &mut File, ops: &mut Ops) {
        let (mut tokens, mut gathered, mut sync) = (Vec::new(), Sga::new(), false);
        let mut waiting = file.pending;
        let mut all = Vec::new();
        while let Some(index) = waiting.first() {
            all.push(index);
            waiting = ops.after(waiting, index);
        }
        for index in all {
            match ops.pending(index) {
                Some(Pending::File(FileOp::Write { sga, durable })) => {
                    gathered.append(sga);
                    sync |= *durable;
                }
                Some(Pending::File(FileOp::Sync)) => sync = true,
                _ => break,
            }
            tokens.push(ops.token(index));
        }
        file.busy = true;
        self.file_submit(qd, file, tokens, gathered, sync);
    }

    fn file_submit(&mut self, qd: Qd, file: &File, tokens: Vec<Token>, sga: Sga, sync: bool) {
        let fd = Fd(file.fd.as_raw_fd());
        if !sga.is_empty() {
            let iov: Vec<libc::iovec> = sga
                .segments()
                .iter()
                .take(sys::IOV_MAX)
                .map(|s| libc::iovec { iov_base: s.as_ptr().cast_mut().cast(), iov_len: s.len() })
                .collect();
            // The kernel takes -1 for the file's own place, which with O_APPEND is its end.
            let place = if file.append { u64::MAX } else { file.cursor };
            let mut entry = opcode::Writev::new(fd, iov.as_ptr(), iov.len() as u32).offset(place).build();
            if sync {
                entry = entry.flags(squeue::Flags::IO_LINK);
            }
            let stage = Stage::Write { sga, _iov: iov, sync };
            let at = self.fly(Flight::File(FileFlight { qd, stage, tokens: tokens.clone() }));
            self.make_room(2);
            self.submit(entry.user_data(kind::FLIGHT | at as u64));
        }
        if sync {
            let entry = opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build();
            let at = self.fly(Flight::File(FileFlight { qd, stage: Stage::Sync, tokens }));
            self.submit(entry.user_data(kind::FLIGHT | at as u64));
        }
    }

    /// A request of a file is done.
    pub(super) fn file_landed(
        &mut self,
        flight: FileFlight,
        result: i32,
        queues: &mut Queues,
        ops: &mut Ops,
        memory: &Memory,
    ) {
        let FileFlight { qd, stage, tokens } = flight;
        let Ok(Body::File(file)) = queues.get(qd) else { return };
        let again = result == -libc::EINTR || result == -libc::EAGAIN;
        let outcome = match stage {
            Stage::Read(buffer) if again => return self.file_read(qd, file, tokens[0], buffer),
            Stage::Read(buffer) => read(file, buffer, result, memory),
            Stage::Write { mut sga, sync, .. } if again || result > 0 => {
                let n = (result.max(0) as usize).min(sga.len());
                file.cursor += n as u64;
                sga.trim_front(n);
                if !sga.is_empty() {
                    // Cut short; the sync that was linked behind it has been canceled.
                    return self.file_submit(qd, file, tokens, sga, sync);
                }
                if sync {
                    return;
                }
                Ok(None)
            }
            Stage::Write { .. } => Err(Error::os("push", if result == 0 { libc::EIO } else { -result })),
            // The write before it says what to do.
            Stage::Sync if result == -libc::ECANCELED => return,
            Stage::Sync if again => return self.file_submit(qd, file, tokens, Sga::new(), true),
            Stage::Sync if result < 0 => Err(Error::os("sync", -result)),
            Stage::Sync => Ok(None),
        };
        file.busy = false;
        let mut read = None;
        let outcome = outcome.map(|data| read = data);
        for token in tokens {
            let Ok(index) = ops.lookup(token) else { continue };
            let done = match ops.pending(index) {
                Some(Pending::File(FileOp::Read)) => {
                    Outcome::Popped { sga: read.take().unwrap_or_default(), from: None }
                }
                Some(Pending::File(FileOp::Sync)) => Outcome::Synced,
                Some(Pending::File(_)) => Outcome::Pushed,
                _ => continue,
            };
            ops.unlink(&mut file.pending, index);
            ops.complete(index, outcome.clone().map(|()| done));
        }
        self.file_next(qd, file, ops, memory);
    }
}

/// What a read brought; moves the cursor.
fn read(file: &mut File, mut buffer: BufMut, result: i32, memory: &Memory) -> Result<Option<Sga>> {
    if result < 0 {
        return Err(Error::os("pop", -result));
    }
    let n = (result as usize).min(buffer.len());
    file.cursor += n as u64;
    if n == 0 {
        return Ok(Some(Sga::new()));
    }
    if n * 4 < READ {
        return Ok(Some(Sga::from(memory.copy_from(&buffer[..n])?)));
    }
    buffer.truncate(n);
    Ok(Some(Sga::from(buffer.freeze())))
}
