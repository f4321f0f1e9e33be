//! Sockets among simulated processes: streams and datagrams in the Unix and the internet families, all on loopback.
//! A stream is two pipes.

use super::errno::{EADDRINUSE, EAFNOSUPPORT, EAGAIN, ECONNREFUSED, EDESTADDRREQ, EINVAL, EISCONN, ENOTCONN, ENOTSOCK};
use super::file_calls::Vectors;
use super::files::{End, Handle, Kind, O_CLOEXEC, O_NONBLOCK, Open};
use super::{Cpu, Kernel, Stop, Sys, Wait};
use std::collections::VecDeque;
use std::rc::Rc;

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const STREAM: u8 = 1;
const DATAGRAM: u8 = 2;
const DATAGRAMS_MAX: usize = 256;

/// One socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) id: u64,
    family: u16,
    kind: u8,
    local: Vec<u8>,
    peer: Vec<u8>,
    /// Connections not yet accepted, while listening.
    backlog: Option<VecDeque<(End, End, Vec<u8>)>>,
    receive: Option<End>,
    transmit: Option<End>,
    datagrams: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl Socket {
    /// What can be waited for, what is readable now and what writable, and whether the peer is gone.
    pub(crate) fn state(&self) -> (Vec<u64>, bool, bool, bool) {
        let mut ids = vec![self.id];
        let (mut readable, mut writable, mut gone) = (!self.datagrams.is_empty(), self.kind == DATAGRAM, false);
        readable |= self.backlog.as_ref().is_some_and(|b| !b.is_empty());
        if let Some(end) = &self.receive {
            let pipe = end.pipe.borrow();
            ids.push(pipe.id);
            gone = pipe.writers == 0;
            readable |= gone || !pipe.bytes.is_empty();
        }
        if let Some(end) = &self.transmit {
            let pipe = end.pipe.borrow();
            ids.push(pipe.id);
            writable |= pipe.readers == 0 || pipe.bytes.len() < super::files::PIPE_CAPACITY;
        }
        (ids, readable, writable, gone)
    }

    pub(crate) fn readable_bytes(&self) -> u32 {
        let stream = self.receive.as_ref().map_or(0, |end| end.pipe.borrow().bytes.len());
        self.datagrams.front().map_or(stream, |(bytes, _)| bytes.len()) as u32
    }
}

impl Kernel {
    pub(crate) fn socket(&mut self, family: u64, kind: u64, _protocol: u64, cpu: &mut Cpu<'_>) -> Sys {
        let family = family as u16;
        if !matches!(family, AF_UNIX | AF_INET | AF_INET6) {
            return Err(Stop::Errno(EAFNOSUPPORT));
        }
        let handle = self.new_socket(family, kind)?;
        self.install(cpu, handle, kind as u32 & O_CLOEXEC != 0, 0)
    }

    fn new_socket(&mut self, family: u16, kind: u64) -> Result<Handle, Stop> {
        let id = self.object();
        let form = match kind & 15 {
            1 | 5 => STREAM,
            2 => DATAGRAM,
            _ => return Err(Stop::Errno(EINVAL)),
        };
        let socket = Socket {
            id,
            family,
            kind: form,
            local: Vec::new(),
            peer: Vec::new(),
            backlog: None,
            receive: None,
            transmit: None,
            datagrams: VecDeque::new(),
        };
        Ok(Open::new(Kind::Socket(Box::new(socket)), 2 | kind as u32 & O_NONBLOCK))
    }

    /// Two pipes: the ends of one side, then of the other.
    fn stream_pair(&mut self) -> ((End, End), (End, End)) {
        let (read_a, write_b) = End::pair(self.object());
        let (read_b, write_a) = End::pair(self.object());
        ((read_a, write_a), (read_b, write_b))
    }

    pub(crate) fn socketpair(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        if a[0] as u16 != AF_UNIX {
            return Err(Stop::Errno(EAFNOSUPPORT));
        }
        let ends = self.stream_pair();
        let mut bytes = Vec::new();
        for (receive, transmit) in [ends.0, ends.1] {
            let handle = self.new_socket(AF_UNIX, a[1] & !15 | u64::from(STREAM))?;
            with(&handle, |s| (s.receive, s.transmit) = (Some(receive), Some(transmit)))?;
            let fd = self.install(cpu, handle, a[1] as u32 & O_CLOEXEC != 0, 0)?;
            bytes.extend_from_slice(&(fd as u32).to_le_bytes());
        }
        self.write_user(cpu, a[3], &bytes)?;
        Ok(0)
    }

    fn read_address(&mut self, cpu: &mut Cpu<'_>, at: u64, len: u64) -> Result<Vec<u8>, Stop> {
        if !(2..=128).contains(&len) {
            return Err(Stop::Errno(EINVAL));
        }
        let mut bytes = vec![0; len as usize];
        self.read_user(cpu, at, &mut bytes)?;
        Ok(bytes)
    }

    /// What addresses are compared by: the port, or the path.
    fn key(family: u16, kind: u8, address: &[u8]) -> (u16, u8, Vec<u8>) {
        let name = if family == AF_UNIX {
            let path = address.get(2..).unwrap_or_default();
            // An abstract name begins with a zero byte and runs to its end.
            let end = if path.first() == Some(&0) {
                path.len()
            } else {
                path.iter().position(|&b| b == 0).unwrap_or(path.len())
            };
            path[..end].to_vec()
        } else {
            address.get(2..4).unwrap_or_default().to_vec()
        };
        (if family == AF_INET6 { AF_INET } else { family }, kind, name)
    }

    fn find(&self, key: &(u16, u8, Vec<u8>)) -> Option<Handle> {
        self.registry.bound.get(key).and_then(std::rc::Weak::upgrade)
    }

    pub(crate) fn bind(&mut self, cpu: &mut Cpu<'_>, fd: u64, at: u64, len: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let address = self.read_address(cpu, at, len)?;
        self.bind_to(&handle, address)
    }

    fn bind_to(&mut self, handle: &Handle, mut address: Vec<u8>) -> Sys {
        let (family, kind) = with(handle, |s| (s.family, s.kind))?;
        if family != AF_UNIX && address.get(2..4) == Some(&[0, 0]) {
            loop {
                self.registry.next_port = self.registry.next_port.wrapping_add(1) % 28_000;
                let port = 32_768 + self.registry.next_port;
                address[2..4].copy_from_slice(&port.to_be_bytes());
                if self.find(&Kernel::key(family, kind, &address)).is_none() {
                    break;
                }
            }
        }
        let key = Kernel::key(family, kind, &address);
        if self.find(&key).is_some() {
            return Err(Stop::Errno(EADDRINUSE));
        }
        self.registry.bound.insert(key, Rc::downgrade(handle));
        with(handle, |s| s.local = address)?;
        Ok(0)
    }

    pub(crate) fn listen(&mut self, cpu: &mut Cpu<'_>, fd: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        with(&handle, |s| {
            if s.backlog.is_none() {
                s.backlog = Some(VecDeque::new());
            }
        })?;
        Ok(0)
    }

    pub(crate) fn connect(&mut self, cpu: &mut Cpu<'_>, fd: u64, at: u64, len: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let address = self.read_address(cpu, at, len)?;
        let (family, kind, connected, unbound) =
            with(&handle, |s| (s.family, s.kind, s.transmit.is_some(), s.local.is_empty()))?;
        if kind == DATAGRAM {
            with(&handle, |s| s.peer = address)?;
            return Ok(0);
        }
        if connected {
            return Err(Stop::Errno(EISCONN));
        }
        let listener = self.find(&Kernel::key(family, kind, &address)).ok_or(Stop::Errno(ECONNREFUSED))?;
        if with(&listener, |s| s.backlog.is_none())? {
            return Err(Stop::Errno(ECONNREFUSED));
        }
        if unbound && family != AF_UNIX {
            let mut local = address.clone();
            local[2..4].copy_from_slice(&[0, 0]);
            self.bind_to(&handle, local)?;
        }
        let (ours, theirs) = self.stream_pair();
        let local = with(&handle, |s| {
            (s.receive, s.transmit) = (Some(ours.0), Some(ours.1));
            s.peer = address;
            s.local.clone()
        })?;
        let id = with(&listener, |s| {
            if let Some(backlog) = &mut s.backlog {
                backlog.push_back((theirs.0, theirs.1, local));
            }
            s.id
        })?;
        self.wake(id);
        Ok(0)
    }

    pub(crate) fn accept(&mut self, cpu: &mut Cpu<'_>, fd: u64, at: u64, len: u64, flags: u32) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let nonblocking = handle.borrow().nonblocking();
        let (next, id, family, local) = with(&handle, |s| {
            let next = s.backlog.as_mut().map(VecDeque::pop_front);
            (next, s.id, s.family, s.local.clone())
        })?;
        match next {
            None => Err(Stop::Errno(EINVAL)),
            Some(None) if nonblocking => Err(Stop::Errno(EAGAIN)),
            Some(None) => Err(Stop::Block(Wait::Objects(vec![id]))),
            Some(Some((receive, transmit, peer))) => {
                let accepted = self.new_socket(family, u64::from(STREAM) | u64::from(flags & O_NONBLOCK))?;
                with(&accepted, |s| {
                    (s.receive, s.transmit) = (Some(receive), Some(transmit));
                    (s.local, s.peer) = (local, peer.clone());
                })?;
                self.write_address(cpu, at, len, &peer, family)?;
                self.install(cpu, accepted, flags & O_CLOEXEC != 0, 0)
            }
        }
    }

    fn write_address(
        &mut self,
        cpu: &mut Cpu<'_>,
        at: u64,
        len_at: u64,
        address: &[u8],
        family: u16,
    ) -> Result<(), Stop> {
        if at == 0 || len_at == 0 {
            return Ok(());
        }
        let unnamed = family.to_le_bytes();
        let address = if address.is_empty() { &unnamed[..] } else { address };
        let room = self.read_u32(cpu, len_at)? as usize;
        self.write_user(cpu, at, &address[..address.len().min(room)])?;
        self.write_user(cpu, len_at, &(address.len() as u32).to_le_bytes())
    }

    pub(crate) fn socket_name(&mut self, cpu: &mut Cpu<'_>, fd: u64, at: u64, len: u64, peer: bool) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let (address, family) = with(&handle, |s| (if peer { s.peer.clone() } else { s.local.clone() }, s.family))?;
        if peer && address.is_empty() && family != AF_UNIX {
            return Err(Stop::Errno(ENOTCONN));
        }
        self.write_address(cpu, at, len, &address, family)?;
        Ok(0)
    }

    /// Sends on a connected stream, or a datagram to `to` or the connected peer.
    pub(crate) fn send(&mut self, cpu: &mut Cpu<'_>, handle: &Handle, bytes: &[u8], to: Option<Vec<u8>>) -> Sys {
        let nonblocking = handle.borrow().nonblocking();
        let (kind, family, peer, local, pipe) = with(handle, |s| {
            let pipe = s.transmit.as_ref().map(|end| end.pipe.clone());
            (s.kind, s.family, s.peer.clone(), s.local.clone(), pipe)
        })?;
        if kind == STREAM {
            return match pipe {
                Some(pipe) => self.write_pipe(cpu, &pipe, bytes, nonblocking),
                None => Err(Stop::Errno(ENOTCONN)),
            };
        }
        let to = to.unwrap_or(peer);
        if to.is_empty() {
            return Err(Stop::Errno(EDESTADDRREQ));
        }
        let target = self.find(&Kernel::key(family, kind, &to)).ok_or(Stop::Errno(ECONNREFUSED))?;
        let from = if local.is_empty() && family != AF_UNIX {
            let mut any = to.clone();
            any[2..4].copy_from_slice(&[0, 0]);
            self.bind_to(handle, any)?;
            with(handle, |s| s.local.clone())?
        } else {
            local
        };
        let id = with(&target, |s| {
            // As a network does, a full queue drops.
            if s.datagrams.len() < DATAGRAMS_MAX {
                s.datagrams.push_back((bytes.to_vec(), from));
            }
            s.id
        })?;
        self.wake(id);
        Ok(bytes.len() as u64)
    }

    /// Receives bytes and the sender's address.
    pub(crate) fn receive(
        &mut self,
        cpu: &mut Cpu<'_>,
        handle: &Handle,
        len: usize,
        peek: bool,
    ) -> Result<(Vec<u8>, Vec<u8>), Stop> {
        let nonblocking = handle.borrow().nonblocking();
        let (kind, id, peer, pipe) =
            with(handle, |s| (s.kind, s.id, s.peer.clone(), s.receive.as_ref().map(|end| end.pipe.clone())))?;
        let _ = cpu;
        if kind == STREAM {
            let pipe = pipe.ok_or(Stop::Errno(ENOTCONN))?;
            if peek && !pipe.borrow().bytes.is_empty() {
                return Ok((pipe.borrow().bytes.iter().copied().take(len).collect(), peer));
            }
            return Ok((self.read_pipe(&pipe, len, nonblocking)?, peer));
        }
        let next = with(handle, |s| if peek { s.datagrams.front().cloned() } else { s.datagrams.pop_front() })?;
        match next {
            Some((mut bytes, from)) => {
                bytes.truncate(len);
                Ok((bytes, from))
            }
            None if nonblocking => Err(Stop::Errno(EAGAIN)),
            None => Err(Stop::Block(Wait::Objects(vec![id]))),
        }
    }

    pub(crate) fn sendto(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let handle = self.handle(cpu, a[0])?;
        let to = if a[4] == 0 { None } else { Some(self.read_address(cpu, a[4], a[5])?) };
        let (pieces, _) = self.pieces(cpu, Vectors::One(a[1], a[2]))?;
        let bytes = self.gather(cpu, &pieces)?;
        self.send(cpu, &handle, &bytes, to)
    }

    pub(crate) fn recvfrom(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        const PEEK: u64 = 2;
        const DONTWAIT: u64 = 0x40;
        let handle = self.handle(cpu, a[0])?;
        let (pieces, total) = self.pieces(cpu, Vectors::One(a[1], a[2]))?;
        let result = self.receive(cpu, &handle, total as usize, a[3] & PEEK != 0);
        let (bytes, from) = match result {
            Err(Stop::Block(_)) if a[3] & DONTWAIT != 0 => return Err(Stop::Errno(EAGAIN)),
            other => other?,
        };
        self.scatter(cpu, &pieces, &bytes)?;
        let family = with(&handle, |s| s.family)?;
        self.write_address(cpu, a[4], a[5], &from, family)?;
        Ok(bytes.len() as u64)
    }

    /// `sendmsg` without control data.
    pub(crate) fn sendmsg(&mut self, cpu: &mut Cpu<'_>, fd: u64, header: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let (name, len) = (self.read_u64(cpu, header)?, self.read_u32(cpu, header + 8)?);
        let to = if name == 0 { None } else { Some(self.read_address(cpu, name, u64::from(len))?) };
        let (at, count) = (self.read_u64(cpu, header + 16)?, self.read_u64(cpu, header + 24)?);
        let (pieces, _) = self.pieces(cpu, Vectors::Many(at, count))?;
        let bytes = self.gather(cpu, &pieces)?;
        self.send(cpu, &handle, &bytes, to)
    }

    /// `recvmsg` without control data.
    pub(crate) fn recvmsg(&mut self, cpu: &mut Cpu<'_>, fd: u64, header: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let name = self.read_u64(cpu, header)?;
        let (at, count) = (self.read_u64(cpu, header + 16)?, self.read_u64(cpu, header + 24)?);
        let (pieces, total) = self.pieces(cpu, Vectors::Many(at, count))?;
        let (bytes, from) = self.receive(cpu, &handle, total as usize, false)?;
        self.scatter(cpu, &pieces, &bytes)?;
        let family = with(&handle, |s| s.family)?;
        self.write_address(cpu, name, header + 8, &from, family)?;
        self.write_user(cpu, header + 40, &[0; 8])?;
        self.write_user(cpu, header + 48, &[0; 4])?;
        Ok(bytes.len() as u64)
    }

    /// Options change nothing on loopback.
    pub(crate) fn setsockopt(&mut self, cpu: &Cpu<'_>, fd: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        with(&handle, |_| 0)
    }

    pub(crate) fn getsockopt(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let handle = self.handle(cpu, a[0])?;
        let (kind, listening) = with(&handle, |s| (s.kind, s.backlog.is_some()))?;
        // SO_TYPE, SO_ACCEPTCONN, buffer sizes; all else, SO_ERROR among it, is 0.
        let value: u32 = match (a[1], a[2]) {
            (1, 3) => u32::from(kind),
            (1, 30) => u32::from(listening),
            (1, 7 | 8) => super::files::PIPE_CAPACITY as u32,
            _ => 0,
        };
        self.write_user(cpu, a[3], &value.to_le_bytes())?;
        self.write_user(cpu, a[4], &4u32.to_le_bytes())?;
        Ok(0)
    }

    pub(crate) fn shutdown(&mut self, cpu: &mut Cpu<'_>, fd: u64, how: u64) -> Sys {
        let handle = self.handle(cpu, fd)?;
        let dropped = with(&handle, |s| {
            if s.transmit.is_none() && s.receive.is_none() {
                return None;
            }
            let receive = if how != 1 { s.receive.take() } else { None };
            let transmit = if how != 0 { s.transmit.take() } else { None };
            Some((receive, transmit))
        })?;
        if dropped.is_none() {
            return Err(Stop::Errno(ENOTCONN));
        }
        drop(dropped);
        self.wake_all();
        Ok(0)
    }
}

fn with<R>(handle: &Handle, work: impl FnOnce(&mut Socket) -> R) -> Result<R, Stop> {
    match &mut handle.borrow_mut().kind {
        Kind::Socket(socket) => Ok(work(socket)),
        _ => Err(Stop::Errno(ENOTSOCK)),
    }
}
