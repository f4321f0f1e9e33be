//! Files: descriptors, reading and writing, paths. Paths below `/proc` and `/sys` do not exist, so that nothing of the
//! host's state reaches a program.

use super::errno::{EAGAIN, EBADF, EFBIG, EINVAL, EISDIR, EMFILE, ENOENT, ENOTDIR, ENOTTY, ERANGE, ESPIPE, from_host};
use super::files::{Descriptor, End, FD_MAX, Handle, Kind, O_APPEND, O_CLOEXEC, O_NONBLOCK, Open, PIPE_CAPACITY};
use super::{Cpu, Kernel, Stop, Sys, Wait, signal};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirEntryExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::rc::Rc;

const AT_FDCWD: u64 = -100i64 as u64;
const O_CREAT: u32 = 0o100;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const O_DIRECTORY: u32 = 0o200_000;
/// Bytes one call moves at most.
const TRANSFER_MAX: u64 = 1 << 24;
const IOV_MAX: u64 = 1024;

fn host(error: &io::Error) -> Stop {
    Stop::Errno(from_host(error))
}

fn done(result: io::Result<()>) -> Sys {
    result.map(|()| 0).map_err(|e| host(&e))
}

impl Kernel {
    /// The open file behind a descriptor.
    pub(crate) fn handle(&self, cpu: &Cpu<'_>, fd: u64) -> Result<Handle, Stop> {
        let fds = self.processes[&cpu.pid].fds.borrow();
        let found = fds.get(fd as u32 as usize).and_then(Option::as_ref);
        found.map(|d| d.handle.clone()).ok_or(Stop::Errno(EBADF))
    }

    /// Puts an open file at the lowest free descriptor from `from` on.
    pub(crate) fn install(&self, cpu: &Cpu<'_>, handle: Handle, close_on_exec: bool, from: usize) -> Sys {
        let mut fds = self.processes[&cpu.pid].fds.borrow_mut();
        let at = (from..fds.len()).find(|&i| fds[i].is_none()).unwrap_or(fds.len().max(from));
        if at >= FD_MAX {
            return Err(Stop::Errno(EMFILE));
        }
        if fds.len() <= at {
            fds.resize(at + 1, None);
        }
        fds[at] = Some(Descriptor { handle, close_on_exec });
        Ok(at as u64)
    }

    pub(crate) fn dispatch_files(&mut self, cpu: &mut Cpu<'_>, number: u64, a: [u64; 6]) -> Option<Sys> {
        Some(match number {
            17 => self.getcwd(cpu, a[0], a[1]),
            23 => self.duplicate(cpu, a[0], 0, false),
            24 => self.dup3(cpu, a[0], a[1], a[2]),
            25 => self.fcntl(cpu, a[0], a[1], a[2]),
            29 => self.ioctl(cpu, a[0], a[1], a[2]),
            32 => Ok(0),
            34 => self.path_call(cpu, a[0], a[1], |p| std::fs::create_dir(p)),
            35 => self.path_call(cpu, a[0], a[1], move |p| {
                if a[2] & 0x200 != 0 { std::fs::remove_dir(p) } else { std::fs::remove_file(p) }
            }),
            36 => self.symlink(cpu, a[0], a[1], a[2]),
            37 => self.rename(cpu, a[0], a[1], a[2], a[3], true),
            38 | 276 => self.rename(cpu, a[0], a[1], a[2], a[3], false),
            43 => {
                self.path_call(cpu, AT_FDCWD, a[0], |p| p.metadata().map(|_| ())).and_then(|_| self.statfs(cpu, a[1]))
            }
            44 => self.handle(cpu, a[0]).and_then(|_| self.statfs(cpu, a[1])),
            45 => self.path_call(cpu, AT_FDCWD, a[0], move |p| OpenOptions::new().write(true).open(p)?.set_len(a[1])),
            46 => self.file(cpu, a[0]).and_then(|f| done(f.set_len(a[1]))),
            48 | 439 => self.path_call(cpu, a[0], a[1], |p| p.metadata().map(|_| ())),
            49 => self.chdir(cpu, a[0]),
            50 => self.fchdir(cpu, a[0]),
            52 => self.file(cpu, a[0]).and_then(|f| done(f.set_permissions(PermissionsExt::from_mode(a[1] as u32)))),
            53 => self.path_call(cpu, a[0], a[1], move |p| {
                std::fs::set_permissions(p, PermissionsExt::from_mode(a[2] as u32))
            }),
            54 | 55 => Ok(0),
            56 => self.openat(cpu, a[0], a[1], a[2] as u32, a[3] as u32),
            57 => self.close(cpu, a[0]),
            59 => self.pipe2(cpu, a[0], a[1] as u32),
            61 => self.getdents(cpu, a[0], a[1], a[2]),
            62 => self.lseek(cpu, a[0], a[1] as i64, a[2]),
            63 => self.read_vector(cpu, a[0], Vectors::One(a[1], a[2]), None),
            64 => self.write_vector(cpu, a[0], Vectors::One(a[1], a[2]), None),
            65 => self.read_vector(cpu, a[0], Vectors::Many(a[1], a[2]), None),
            66 => self.write_vector(cpu, a[0], Vectors::Many(a[1], a[2]), None),
            67 => self.read_vector(cpu, a[0], Vectors::One(a[1], a[2]), Some(a[3])),
            68 => self.write_vector(cpu, a[0], Vectors::One(a[1], a[2]), Some(a[3])),
            69 => self.read_vector(cpu, a[0], Vectors::Many(a[1], a[2]), Some(a[3])),
            70 => self.write_vector(cpu, a[0], Vectors::Many(a[1], a[2]), Some(a[3])),
            71 => self.sendfile(cpu, a),
            78 => self.readlinkat(cpu, a),
            79 => self.fstatat(cpu, a[0], a[1], a[2], a[3]),
            80 => self.fstat(cpu, a[0], a[1]),
            81 => Ok(0),
            82 | 83 => self.handle(cpu, a[0]).map(|_| 0),
            88 => self.path_call(cpu, a[0], a[1], |p| p.metadata().map(|_| ())),
            223 => self.handle(cpu, a[0]).map(|_| 0),
            291 => self.statx(cpu, a),
            436 => self.close_range(cpu, a[0], a[1]),
            _ => return None,
        })
    }

    /// Where a path of the program leads on the host.
    pub(crate) fn resolve(&self, pid: u32, folder: Option<&str>, path: &[u8]) -> Result<PathBuf, Stop> {
        if path.is_empty() {
            return Err(Stop::Errno(ENOENT));
        }
        let text = String::from_utf8_lossy(path);
        let absolute = if text.starts_with('/') {
            text.into_owned()
        } else {
            format!("{}/{text}", folder.unwrap_or(&self.processes[&pid].cwd))
        };
        if absolute == "/proc/self/exe" {
            return Ok(self.processes[&pid].program.clone());
        }
        if ["/proc/", "/sys/"].iter().any(|hidden| absolute.starts_with(hidden)) {
            return Err(Stop::Errno(ENOENT));
        }
        Ok(self.host_path(&absolute))
    }

    fn resolve_at(&mut self, cpu: &mut Cpu<'_>, folder: u64, path: u64) -> Result<PathBuf, Stop> {
        let path = self.read_string(cpu, path)?;
        if folder as i32 == AT_FDCWD as i32 || path.starts_with(b"/") {
            return self.resolve(cpu.pid, None, &path);
        }
        let handle = self.handle(cpu, folder)?;
        let base = handle.borrow().path.clone();
        if base.is_empty() {
            return Err(Stop::Errno(ENOTDIR));
        }
        self.resolve(cpu.pid, Some(&base), &path)
    }

    fn path_call(
        &mut self,
        cpu: &mut Cpu<'_>,
        folder: u64,
        path: u64,
        work: impl FnOnce(&PathBuf) -> io::Result<()>,
    ) -> Sys {
        let path = self.resolve_at(cpu, folder, path)?;
        done(work(&path))
    }

    /// `symlinkat`: the first path is stored as it is.
    fn symlink(&mut self, cpu: &mut Cpu<'_>, target: u64, folder: u64, link: u64) -> Sys {
        let target = self.read_string(cpu, target)?;
        self.path_call(cpu, folder, link, |p| std::os::unix::fs::symlink(String::from_utf8_lossy(&target).as_ref(), p))
    }

    fn rename(&mut self, cpu: &mut Cpu<'_>, from_at: u64, from: u64, to_at: u64, to: u64, link: bool) -> Sys {
        let from = self.resolve_at(cpu, from_at, from)?;
        self.path_call(
            cpu,
            to_at,
            to,
            |to| {
                if link { std::fs::hard_link(&from, to) } else { std::fs::rename(&from, to) }
            },
        )
    }

    fn file(&self, cpu: &Cpu<'_>, fd: u64) -> Result<Rc<File>, Stop> {
        match &self.handle(cpu, fd)?.borrow().kind {
            Kind::File(file) => Ok(file.clone()),
            _ => Err(Stop::Errno(EINVAL)),
        }
    }

    fn openat(&mut self, cpu: &mut Cpu<'_>, folder: u64, path: u64, flags: u32, mode: u32) -> Sys {
        let path = self.resolve_at(cpu, folder, path)?;
        let close_on_exec = flags & O_CLOEXEC != 0;
        if path.as_os_str() == "/dev/urandom" || path.as_os_str() == "/dev/random" {
            return self.install(cpu, Open::new(Kind::Random, flags), close_on_exec, 0);
        }
        let metadata = path.metadata();
        let text = path.to_string_lossy().into_owned();
        if metadata.as_ref().is_ok_and(Metadata::is_dir) {
            if flags & 3 != 0 || flags & O_CREAT != 0 {
                return Err(Stop::Errno(EISDIR));
            }
            let entries = list(&path).map_err(|e| host(&e))?;
            let handle = Open::new(Kind::Directory(entries), flags);
            handle.borrow_mut().path = text;
            return self.install(cpu, handle, close_on_exec, 0);
        }
        if flags & O_DIRECTORY != 0 {
            return Err(Stop::Errno(if metadata.is_ok() { ENOTDIR } else { ENOENT }));
        }
        let writes = flags & 3 != 0;
        let umask = self.processes[&cpu.pid].umask;
        let file = OpenOptions::new()
            .read(flags & 3 != 1)
            .write(writes)
            .create(writes && flags & O_CREAT != 0)
            .create_new(writes && flags & O_CREAT != 0 && flags & O_EXCL != 0)
            .truncate(writes && flags & O_TRUNC != 0)
            .mode(mode & 0o7777 & !umask)
            .open(&path)
            .map_err(|e| host(&e))?;
        let handle = Open::new(Kind::File(Rc::new(file)), flags);
        handle.borrow_mut().path = text;
        self.install(cpu, handle, close_on_exec, 0)
    }

    fn close(&mut self, cpu: &mut Cpu<'_>, fd: u64) -> Sys {
        let closed = {
            let mut fds = self.processes[&cpu.pid].fds.borrow_mut();
            fds.get_mut(fd as u32 as usize).and_then(Option::take).ok_or(Stop::Errno(EBADF))?
        };
        drop(closed);
        self.wake_all();
        Ok(0)
    }

    fn close_range(&mut self, cpu: &mut Cpu<'_>, first: u64, last: u64) -> Sys {
        for slot in self.processes[&cpu.pid]
            .fds
            .borrow_mut()
            .iter_mut()
            .take((last as usize).saturating_add(1))
            .skip(first as usize)
        {
            *slot = None;
        }
        self.wake_all();
        Ok(0)
    }

    fn duplicate(&mut self, cpu: &mut Cpu<'_>, fd: u64, from: usize, close_on_exec: bool) -> Sys {
        let handle = self.handle(cpu, fd)?;
        self.install(cpu, handle, close_on_exec, from)
    }

    fn dup3(&mut self, cpu: &mut Cpu<'_>, old: u64, new: u64, flags: u64) -> Sys {
        let handle = self.handle(cpu, old)?;
        if old == new || new as usize >= FD_MAX {
            return Err(Stop::Errno(if old == new { EINVAL } else { EBADF }));
        }
        {
            let mut fds = self.processes[&cpu.pid].fds.borrow_mut();
            if fds.len() <= new as usize {
                fds.resize(new as usize + 1, None);
            }
            fds[new as usize] = Some(Descriptor { handle, close_on_exec: flags as u32 & O_CLOEXEC != 0 });
        }
        self.wake_all();
        Ok(new)
    }

    fn fcntl(&mut self, cpu: &mut Cpu<'_>, fd: u64, command: u64, value: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        match command {
            0 => self.duplicate(cpu, fd, value as usize, false),
            1030 => self.duplicate(cpu, fd, value as usize, true),
            1 | 2 => {
                let mut fds = self.processes[&cpu.pid].fds.borrow_mut();
                let Some(Some(descriptor)) = fds.get_mut(fd as usize) else { return Err(Stop::Errno(EBADF)) };
                if command == 2 {
                    descriptor.close_on_exec = value & 1 == 1;
                    return Ok(0);
                }
                Ok(u64::from(descriptor.close_on_exec))
            }
            3 => Ok(u64::from(handle.borrow().flags)),
            4 => {
                let settable = O_APPEND | O_NONBLOCK;
                let mut open = handle.borrow_mut();
                open.flags = open.flags & !settable | value as u32 & settable;
                Ok(0)
            }
            // Record locks: one machine, one user.
            5 => {
                self.write_user(cpu, value, &2u16.to_le_bytes())?;
                Ok(0)
            }
            6..=8 => Ok(0),
            1031 | 1032 => Ok(PIPE_CAPACITY as u64),
            _ => Err(Stop::Errno(EINVAL)),
        }
    }

    fn ioctl(&mut self, cpu: &mut Cpu<'_>, fd: u64, request: u64, at: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        const FIONREAD: u64 = 0x541b;
        const FIONBIO: u64 = 0x5421;
        match request {
            FIONREAD => {
                let n = self.readable_bytes(&handle.borrow().kind);
                self.write_user(cpu, at, &n.to_le_bytes())?;
                Ok(0)
            }
            FIONBIO => {
                let on = self.read_u32(cpu, at)? != 0;
                let mut open = handle.borrow_mut();
                open.flags = open.flags & !O_NONBLOCK | if on { O_NONBLOCK } else { 0 };
                Ok(0)
            }
            // No descriptor is a terminal.
            _ => Err(Stop::Errno(ENOTTY)),
        }
    }

    fn pipe2(&mut self, cpu: &mut Cpu<'_>, at: u64, flags: u32) -> Sys {
        let (read, write) = End::pair(self.object());
        let close_on_exec = flags & O_CLOEXEC != 0;
        let first = self.install(cpu, Open::new(Kind::PipeRead(read), flags & O_NONBLOCK), close_on_exec, 0)? as u32;
        let second =
            self.install(cpu, Open::new(Kind::PipeWrite(write), 1 | flags & O_NONBLOCK), close_on_exec, 0)? as u32;
        let mut bytes = first.to_le_bytes().to_vec();
        bytes.extend_from_slice(&second.to_le_bytes());
        self.write_user(cpu, at, &bytes)?;
        Ok(0)
    }

    fn lseek(&mut self, cpu: &mut Cpu<'_>, fd: u64, offset: i64, whence: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let mut open = handle.borrow_mut();
        let end = match &open.kind {
            Kind::File(file) => file.metadata().map_err(|e| host(&e))?.len() as i64,
            Kind::Directory(entries) => entries.len() as i64,
            Kind::Random => 0,
            _ => return Err(Stop::Errno(ESPIPE)),
        };
        let base = match whence {
            0 => 0,
            1 => open.offset as i64,
            2 => end,
            // SEEK_DATA, SEEK_HOLE: no holes but at the end.
            3 | 4 if offset < end => {
                open.offset = if whence == 3 { offset as u64 } else { end as u64 };
                return Ok(open.offset);
            }
            3 | 4 => return Err(Stop::Errno(6)),
            _ => return Err(Stop::Errno(EINVAL)),
        };
        let to = base.checked_add(offset).filter(|&to| to >= 0).ok_or(Stop::Errno(EINVAL))?;
        open.offset = to as u64;
        Ok(to as u64)
    }

    /// The pieces of memory of a call, and their sum.
    pub(crate) fn pieces(&mut self, cpu: &mut Cpu<'_>, vectors: Vectors) -> Result<(Vec<(u64, u64)>, u64), Stop> {
        let mut pieces = Vec::new();
        match vectors {
            Vectors::One(at, len) => pieces.push((at, len)),
            Vectors::Many(_, count) if count > IOV_MAX => return Err(Stop::Errno(EINVAL)),
            Vectors::Many(at, count) => {
                for i in 0..count {
                    pieces.push((self.read_u64(cpu, at + 16 * i)?, self.read_u64(cpu, at + 16 * i + 8)?));
                }
            }
        }
        let mut left = TRANSFER_MAX;
        for (_, len) in &mut pieces {
            *len = (*len).min(left);
            left -= *len;
        }
        Ok((pieces, TRANSFER_MAX - left))
    }

    pub(crate) fn scatter(&mut self, cpu: &mut Cpu<'_>, pieces: &[(u64, u64)], bytes: &[u8]) -> Result<(), Stop> {
        let mut rest = bytes;
        for &(at, len) in pieces {
            let n = (len as usize).min(rest.len());
            self.write_user(cpu, at, &rest[..n])?;
            rest = &rest[n..];
        }
        Ok(())
    }

    pub(crate) fn gather(&mut self, cpu: &mut Cpu<'_>, pieces: &[(u64, u64)]) -> Result<Vec<u8>, Stop> {
        let mut bytes = Vec::new();
        for &(at, len) in pieces {
            let start = bytes.len();
            bytes.resize(start + len as usize, 0);
            self.read_user(cpu, at, &mut bytes[start..])?;
        }
        Ok(bytes)
    }

    fn read_vector(&mut self, cpu: &mut Cpu<'_>, fd: u64, vectors: Vectors, at: Option<u64>) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let (pieces, total) = self.pieces(cpu, vectors)?;
        if handle.borrow().flags & 3 == 1 {
            return Err(Stop::Errno(EBADF));
        }
        let bytes = self.read_bytes(cpu, &handle, total as usize, at)?;
        self.scatter(cpu, &pieces, &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Up to `len` bytes from an open file; waits if there are none yet.
    pub(crate) fn read_bytes(
        &mut self,
        cpu: &mut Cpu<'_>,
        handle: &Handle,
        len: usize,
        at: Option<u64>,
    ) -> Result<Vec<u8>, Stop> {
        let mut open = handle.borrow_mut();
        let nonblocking = open.nonblocking();
        let offset = at.unwrap_or(open.offset);
        let mut bytes = vec![0; len];
        let n = match &mut open.kind {
            Kind::Input => self.console.read(&mut bytes),
            Kind::Output { .. } => return Err(Stop::Errno(EBADF)),
            Kind::File(file) => {
                let n = file.read_at(&mut bytes, offset).map_err(|e| host(&e))?;
                if at.is_none() {
                    open.offset += n as u64;
                }
                n
            }
            Kind::Directory(_) => return Err(Stop::Errno(EISDIR)),
            Kind::Random => {
                for byte in &mut bytes {
                    *byte = self.rng.word() as u8;
                }
                len
            }
            Kind::PipeRead(end) => {
                let pipe = end.pipe.clone();
                drop(open);
                return self.read_pipe(&pipe, len, nonblocking);
            }
            Kind::Socket(_) => {
                drop(open);
                return self.receive(cpu, handle, len, false).map(|(bytes, _)| bytes);
            }
            Kind::Event { id, count, semaphore } => {
                let (id, ready) = (*id, *count > 0 && len >= 8);
                if !ready {
                    return Err(if nonblocking { Stop::Errno(EAGAIN) } else { Stop::Block(Wait::Objects(vec![id])) });
                }
                let value = if *semaphore { 1 } else { *count };
                *count -= value;
                bytes[..8].copy_from_slice(&value.to_le_bytes());
                drop(open);
                self.wake(id);
                8
            }
            Kind::Timer { .. } => {
                let now = self.now;
                let value = super::poll::timer_expirations(&mut open.kind, now);
                if value == 0 || len < 8 {
                    if nonblocking {
                        return Err(Stop::Errno(EAGAIN));
                    }
                    let (id, next) = super::poll::timer_next(&open.kind);
                    drop(open);
                    if let Some(next) = next {
                        self.set_deadline(cpu, next);
                    }
                    return Err(Stop::Block(Wait::Objects(vec![id])));
                }
                bytes[..8].copy_from_slice(&value.to_le_bytes());
                8
            }
            Kind::PipeWrite(_) | Kind::Epoll { .. } => return Err(Stop::Errno(EINVAL)),
        };
        bytes.truncate(n);
        Ok(bytes)
    }

    pub(crate) fn read_pipe(
        &mut self,
        pipe: &Rc<std::cell::RefCell<super::files::Pipe>>,
        len: usize,
        nonblocking: bool,
    ) -> Result<Vec<u8>, Stop> {
        let mut p = pipe.borrow_mut();
        if p.bytes.is_empty() && p.writers > 0 && len > 0 {
            return Err(if nonblocking { Stop::Errno(EAGAIN) } else { Stop::Block(Wait::Objects(vec![p.id])) });
        }
        let n = len.min(p.bytes.len());
        let bytes = p.bytes.drain(..n).collect();
        let id = p.id;
        drop(p);
        self.wake(id);
        Ok(bytes)
    }

    fn write_vector(&mut self, cpu: &mut Cpu<'_>, fd: u64, vectors: Vectors, at: Option<u64>) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let (pieces, _) = self.pieces(cpu, vectors)?;
        let bytes = self.gather(cpu, &pieces)?;
        self.write_bytes(cpu, &handle, &bytes, at)
    }

    /// Writes to an open file; waits if there is no room.
    pub(crate) fn write_bytes(&mut self, cpu: &mut Cpu<'_>, handle: &Handle, bytes: &[u8], at: Option<u64>) -> Sys {
        let mut open = handle.borrow_mut();
        let nonblocking = open.nonblocking();
        let append = open.flags & O_APPEND != 0;
        let offset = at.unwrap_or(open.offset);
        match &mut open.kind {
            Kind::Output { error } => {
                let error = *error;
                self.console.write(error, bytes);
                Ok(bytes.len() as u64)
            }
            Kind::File(file) => {
                let offset = if append { file.metadata().map_err(|e| host(&e))?.len() } else { offset };
                if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
                    return Err(Stop::Errno(EFBIG));
                }
                let n = file.write_at(bytes, offset).map_err(|e| host(&e))?;
                if at.is_none() {
                    open.offset = offset + n as u64;
                }
                Ok(n as u64)
            }
            Kind::PipeWrite(end) => {
                let pipe = end.pipe.clone();
                drop(open);
                self.write_pipe(cpu, &pipe, bytes, nonblocking)
            }
            Kind::Socket(_) => {
                drop(open);
                self.send(cpu, handle, bytes, None)
            }
            Kind::Event { id, count, .. } => {
                let id = *id;
                let value = <[u8; 8]>::try_from(bytes).map(u64::from_le_bytes).map_err(|_| Stop::Errno(EINVAL))?;
                if value > u64::MAX - 1 - *count {
                    return Err(if nonblocking { Stop::Errno(EAGAIN) } else { Stop::Block(Wait::Objects(vec![id])) });
                }
                *count += value;
                drop(open);
                self.wake(id);
                Ok(8)
            }
            Kind::Random => Ok(bytes.len() as u64),
            Kind::Directory(_) => Err(Stop::Errno(EBADF)),
            Kind::Input | Kind::PipeRead(_) => Err(Stop::Errno(EBADF)),
            Kind::Epoll { .. } | Kind::Timer { .. } => Err(Stop::Errno(EINVAL)),
        }
    }

    pub(crate) fn write_pipe(
        &mut self,
        cpu: &mut Cpu<'_>,
        pipe: &Rc<std::cell::RefCell<super::files::Pipe>>,
        bytes: &[u8],
        nonblocking: bool,
    ) -> Sys {
        let mut p = pipe.borrow_mut();
        if p.readers == 0 {
            drop(p);
            return Err(signal::broken_pipe(self, cpu));
        }
        let room = PIPE_CAPACITY - p.bytes.len();
        // Writes of up to 4096 bytes are not split (pipe(7)).
        if room == 0 && !bytes.is_empty() || (bytes.len() <= 4096 && room < bytes.len()) {
            return Err(if nonblocking { Stop::Errno(EAGAIN) } else { Stop::Block(Wait::Objects(vec![p.id])) });
        }
        let n = room.min(bytes.len());
        p.bytes.extend(&bytes[..n]);
        let id = p.id;
        drop(p);
        self.wake(id);
        Ok(n as u64)
    }

    fn sendfile(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let (to, from) = (self.handle(cpu, a[0])?, self.handle(cpu, a[1])?);
        let at = if a[2] == 0 { None } else { Some(self.read_u64(cpu, a[2])?) };
        let start = at.unwrap_or(from.borrow().offset);
        let bytes = self.read_bytes(cpu, &from, a[3].min(65536) as usize, Some(start))?;
        let n = self.write_bytes(cpu, &to, &bytes, None)?;
        match at {
            Some(at) => self.write_user(cpu, a[2], &(at + n).to_le_bytes())?,
            None => from.borrow_mut().offset = start + n,
        }
        Ok(n)
    }

    fn getcwd(&mut self, cpu: &mut Cpu<'_>, at: u64, size: u64) -> Sys {
        let mut bytes = self.processes[&cpu.pid].cwd.clone().into_bytes();
        bytes.push(0);
        if bytes.len() as u64 > size {
            return Err(Stop::Errno(ERANGE));
        }
        self.write_user(cpu, at, &bytes)?;
        Ok(bytes.len() as u64)
    }

    fn enter(&mut self, cpu: &Cpu<'_>, path: PathBuf) -> Sys {
        let path = path.canonicalize().map_err(|e| host(&e))?;
        if !path.is_dir() {
            return Err(Stop::Errno(ENOTDIR));
        }
        if let Some(process) = self.processes.get_mut(&cpu.pid) {
            process.cwd = path.to_string_lossy().into_owned();
        }
        Ok(0)
    }

    fn chdir(&mut self, cpu: &mut Cpu<'_>, path: u64) -> Sys {
        let path = self.resolve_at(cpu, AT_FDCWD, path)?;
        self.enter(cpu, path)
    }

    fn fchdir(&mut self, cpu: &mut Cpu<'_>, fd: u64) -> Sys {
        let path = self.handle(cpu, fd)?.borrow().path.clone();
        self.enter(cpu, PathBuf::from(path))
    }

    fn readlinkat(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let text = self.read_string(cpu, a[1])?;
        let target = if text == b"/proc/self/exe" {
            let program = self.processes[&cpu.pid].program.clone();
            program.canonicalize().unwrap_or(program)
        } else {
            let path = self.resolve_at(cpu, a[0], a[1])?;
            std::fs::read_link(path).map_err(|e| host(&e))?
        };
        let bytes = target.as_os_str().as_encoded_bytes();
        let n = bytes.len().min(a[3] as usize);
        self.write_user(cpu, a[2], &bytes[..n])?;
        Ok(n as u64)
    }

    fn getdents(&mut self, cpu: &mut Cpu<'_>, fd: u64, at: u64, size: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let mut open = handle.borrow_mut();
        let first = open.offset as usize;
        let Kind::Directory(entries) = &open.kind else { return Err(Stop::Errno(ENOTDIR)) };
        let mut bytes = Vec::new();
        let mut next = first;
        for (inode, kind, name) in entries.iter().skip(first) {
            let len = (19 + name.len() + 1 + 7) & !7;
            if bytes.len() + len > size as usize {
                break;
            }
            next += 1;
            let start = bytes.len();
            bytes.extend_from_slice(&inode.to_le_bytes());
            bytes.extend_from_slice(&(next as u64).to_le_bytes());
            bytes.extend_from_slice(&(len as u16).to_le_bytes());
            bytes.push(*kind);
            bytes.extend_from_slice(name);
            bytes.resize(start + len, 0);
        }
        if bytes.is_empty() && first < entries.len() {
            return Err(Stop::Errno(EINVAL));
        }
        open.offset = next as u64;
        drop(open);
        self.write_user(cpu, at, &bytes)?;
        Ok(bytes.len() as u64)
    }

    fn statfs(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        let mut bytes = [0; 120];
        for (i, word) in
            [0x0102_1994u64, 4096, 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 0, 255, 4096].iter().enumerate()
        {
            bytes[8 * i..8 * i + 8].copy_from_slice(&word.to_le_bytes());
        }
        self.write_user(cpu, at, &bytes)?;
        Ok(0)
    }

    fn facts(&self, handle: &Handle) -> Result<Facts, Stop> {
        let open = handle.borrow();
        Ok(match &open.kind {
            Kind::File(file) => Facts::of(&file.metadata().map_err(|e| host(&e))?),
            Kind::Directory(_) => Facts::of(&std::fs::metadata(&open.path).map_err(|e| host(&e))?),
            Kind::Input | Kind::Output { .. } => Facts::made(0o010_600),
            Kind::PipeRead(_) | Kind::PipeWrite(_) => Facts::made(0o010_600),
            Kind::Socket(_) => Facts::made(0o140_777),
            Kind::Random => Facts::made(0o020_666),
            Kind::Event { .. } | Kind::Epoll { .. } | Kind::Timer { .. } => Facts::made(0o600),
        })
    }

    fn fstat(&mut self, cpu: &mut Cpu<'_>, fd: u64, at: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let bytes = self.facts(&handle)?.stat();
        self.write_user(cpu, at, &bytes)?;
        Ok(0)
    }

    fn facts_at(&mut self, cpu: &mut Cpu<'_>, folder: u64, path: u64, flags: u64) -> Result<Facts, Stop> {
        const NOFOLLOW: u64 = 0x100;
        const EMPTY_PATH: u64 = 0x1000;
        if flags & EMPTY_PATH != 0 && self.read_string(cpu, path)?.is_empty() {
            let handle = self.handle(cpu, folder)?;
            return self.facts(&handle);
        }
        let path = self.resolve_at(cpu, folder, path)?;
        let metadata = if flags & NOFOLLOW != 0 { path.symlink_metadata() } else { path.metadata() };
        Ok(Facts::of(&metadata.map_err(|e| host(&e))?))
    }

    fn fstatat(&mut self, cpu: &mut Cpu<'_>, folder: u64, path: u64, at: u64, flags: u64) -> Sys {
        let bytes = self.facts_at(cpu, folder, path, flags)?.stat();
        self.write_user(cpu, at, &bytes)?;
        Ok(0)
    }

    fn statx(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let bytes = self.facts_at(cpu, a[0], a[1], a[2])?.statx();
        self.write_user(cpu, a[4], &bytes)?;
        Ok(0)
    }
}

/// Memory of a call: one piece, or an array of them.
#[derive(Clone, Copy)]
pub(crate) enum Vectors {
    One(u64, u64),
    Many(u64, u64),
}

/// What `stat` tells.
struct Facts {
    device: u64,
    inode: u64,
    mode: u32,
    links: u32,
    owner: (u32, u32),
    special: u64,
    size: u64,
    blocks: u64,
    /// Seconds and ns of access, modification and change.
    times: [(i64, i64); 3],
}

impl Facts {
    fn of(m: &Metadata) -> Facts {
        Facts {
            device: m.dev(),
            inode: m.ino(),
            mode: m.mode(),
            links: m.nlink() as u32,
            owner: (m.uid(), m.gid()),
            special: m.rdev(),
            size: m.size(),
            blocks: m.blocks(),
            times: [(m.atime(), m.atime_nsec()), (m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec())],
        }
    }

    fn made(mode: u32) -> Facts {
        Facts { device: 1, inode: 1, mode, links: 1, owner: (0, 0), special: 0, size: 0, blocks: 0, times: [(0, 0); 3] }
    }

    fn stat(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(128);
        b.extend_from_slice(&self.device.to_le_bytes());
        b.extend_from_slice(&self.inode.to_le_bytes());
        for word in [self.mode, self.links, self.owner.0, self.owner.1] {
            b.extend_from_slice(&word.to_le_bytes());
        }
        for word in [self.special, 0, self.size, 4096, self.blocks] {
            b.extend_from_slice(&word.to_le_bytes());
        }
        for (seconds, ns) in self.times {
            b.extend_from_slice(&seconds.to_le_bytes());
            b.extend_from_slice(&ns.to_le_bytes());
        }
        b.resize(128, 0);
        b
    }

    fn statx(&self) -> Vec<u8> {
        const BASIC: u32 = 0x7ff;
        let mut b = vec![0; 256];
        let mut put = |at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &BASIC.to_le_bytes());
        put(4, &4096u32.to_le_bytes());
        put(16, &self.links.to_le_bytes());
        put(20, &self.owner.0.to_le_bytes());
        put(24, &self.owner.1.to_le_bytes());
        put(28, &(self.mode as u16).to_le_bytes());
        put(32, &self.inode.to_le_bytes());
        put(40, &self.size.to_le_bytes());
        put(48, &self.blocks.to_le_bytes());
        for (at, (seconds, ns)) in [(64, self.times[0]), (96, self.times[2]), (112, self.times[1])] {
            put(at, &seconds.to_le_bytes());
            put(at + 8, &(ns as u32).to_le_bytes());
        }
        b
    }
}

/// The entries of a folder, sorted by name so that a run does not depend on the host's order.
fn list(path: &PathBuf) -> io::Result<Vec<(u64, u8, Vec<u8>)>> {
    let mut entries = vec![(1, 4, b".".to_vec()), (1, 4, b"..".to_vec())];
    let first = entries.len();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let code = if kind.is_dir() {
            4
        } else if kind.is_symlink() {
            10
        } else if kind.is_char_device() {
            2
        } else {
            8
        };
        entries.push((entry.ino(), code, entry.file_name().into_encoded_bytes()));
    }
    entries[first..].sort_by(|a, b| a.2.cmp(&b.2));
    Ok(entries)
}
