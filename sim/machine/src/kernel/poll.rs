//! Waiting for many descriptors: `ppoll`, `pselect6`, epoll; eventfd and timerfd.

use super::errno::{EEXIST, EINVAL, ENOENT};
use super::files::{Handle, Kind, O_CLOEXEC, O_NONBLOCK, Open, PIPE_CAPACITY};
use super::{Cpu, Kernel, Stop, Sys, Wait};
use std::collections::BTreeMap;

const IN: u32 = 1;
const OUT: u32 = 4;
const ERR: u32 = 8;
const HUP: u32 = 16;
const NVAL: u32 = 32;
const NS: u64 = 1_000_000_000;

/// How often a timer has expired since it was last asked; it starts its next interval.
pub(crate) fn timer_expirations(kind: &mut Kind, now: u64) -> u64 {
    let Kind::Timer { at, every, .. } = kind else { return 0 };
    match *at {
        Some(when) if when <= now => {
            let count = (now - when).checked_div(*every).map_or(1, |n| n + 1);
            *at = (*every > 0).then(|| when + count * *every);
            count
        }
        _ => 0,
    }
}

/// A timer's object and next expiry.
pub(crate) fn timer_next(kind: &Kind) -> (u64, Option<u64>) {
    match kind {
        Kind::Timer { id, at, .. } => (*id, *at),
        _ => (0, None),
    }
}

impl Kernel {
    pub(crate) fn readable_bytes(&self, kind: &Kind) -> u32 {
        match kind {
            Kind::PipeRead(end) => end.pipe.borrow().bytes.len() as u32,
            Kind::Socket(socket) => socket.readable_bytes(),
            _ => 0,
        }
    }

    /// What is possible now on an open file, the objects whose change can alter that, and when time alone does.
    fn readiness(&self, cpu: &Cpu<'_>, handle: &Handle, depth: u32) -> (u32, Vec<u64>, Option<u64>) {
        let open = handle.borrow();
        match &open.kind {
            Kind::PipeRead(end) => {
                let pipe = end.pipe.borrow();
                let hung = if pipe.writers == 0 { HUP } else { 0 };
                (if pipe.bytes.is_empty() { 0 } else { IN } | hung, vec![pipe.id], None)
            }
            Kind::PipeWrite(end) => {
                let pipe = end.pipe.borrow();
                let broken = if pipe.readers == 0 { ERR } else { 0 };
                (if pipe.bytes.len() <= PIPE_CAPACITY - 4096 { OUT } else { 0 } | broken, vec![pipe.id], None)
            }
            Kind::Socket(socket) => {
                let (ids, readable, writable, gone) = socket.state();
                let events =
                    if readable { IN } else { 0 } | if writable { OUT } else { 0 } | if gone { HUP } else { 0 };
                (events, ids, None)
            }
            Kind::Event { id, count, .. } => (OUT | if *count > 0 { IN } else { 0 }, vec![*id], None),
            Kind::Timer { id, at, .. } => (if at.is_some_and(|at| at <= self.now) { IN } else { 0 }, vec![*id], *at),
            Kind::Epoll { id, watched } if depth < 3 => {
                let (mut ids, mut ready, mut next) = (vec![*id], 0, None);
                for (&fd, &(events, _)) in watched {
                    if let Ok(inner) = self.handle(cpu, fd as u64) {
                        let (now, inner_ids, at) = self.readiness(cpu, &inner, depth + 1);
                        ids.extend(inner_ids);
                        next = earliest(next, at);
                        if now & (events | ERR | HUP) != 0 {
                            ready = IN;
                        }
                    }
                }
                (ready, ids, next)
            }
            _ => (IN | OUT, Vec::new(), None),
        }
    }

    /// Waits for a change of `ids`, until the deadline of the call or `next`.
    fn wait_for(&mut self, cpu: &Cpu<'_>, ids: Vec<u64>, next: Option<u64>) -> Stop {
        if let Some(task) = self.tasks.get_mut(&cpu.tid) {
            task.deadline = earliest(task.deadline, next);
        }
        Stop::Block(Wait::Objects(ids))
    }

    fn poll_timeout(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Result<Option<u64>, Stop> {
        if at == 0 { Ok(None) } else { self.read_timespec(cpu, at).map(Some) }
    }

    pub(crate) fn ppoll(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        if a[1] > super::files::FD_MAX as u64 {
            return Err(Stop::Errno(EINVAL));
        }
        let timeout = self.poll_timeout(cpu, a[2])?;
        let (mut count, mut ids, mut next) = (0, Vec::new(), None);
        for i in 0..a[1] {
            let entry = self.read_u64(cpu, a[0] + 8 * i)?;
            let (fd, wanted) = (entry as i32, (entry >> 32) as u32 & 0xffff);
            let mut result = 0;
            if fd >= 0 {
                match self.handle(cpu, fd as u64) {
                    Ok(handle) => {
                        let (ready, objects, at) = self.readiness(cpu, &handle, 0);
                        ids.extend(objects);
                        next = earliest(next, at);
                        result = ready & (wanted | ERR | HUP);
                    }
                    Err(_) => result = NVAL,
                }
            }
            count += u64::from(result != 0);
            self.write_user(cpu, a[0] + 8 * i + 6, &(result as u16).to_le_bytes())?;
        }
        if count > 0 || self.deadline_over(cpu, timeout) {
            return Ok(count);
        }
        Err(self.wait_for(cpu, ids, next))
    }

    /// Like `deadline_passed`, but keeps the call's own deadline apart from wake-ups for timers.
    fn deadline_over(&mut self, cpu: &Cpu<'_>, timeout: Option<u64>) -> bool {
        match timeout {
            Some(0) => true,
            Some(_) => self.deadline_passed(cpu, timeout),
            None => false,
        }
    }

    pub(crate) fn pselect(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let count = a[0] as usize;
        if count > 1024 {
            return Err(Stop::Errno(EINVAL));
        }
        let words = count.div_ceil(64);
        let timeout = self.poll_timeout(cpu, a[4])?;
        let mut sets = [const { Vec::new() }; 3];
        for (set, &at) in sets.iter_mut().zip(&a[1..4]) {
            for i in 0..words {
                set.push(if at == 0 { 0 } else { self.read_u64(cpu, at + 8 * i as u64)? });
            }
        }
        let (mut total, mut ids, mut next) = (0, Vec::new(), None);
        let mut results = [vec![0u64; words], vec![0u64; words], vec![0u64; words]];
        for fd in 0..count {
            let wanted: Vec<bool> = sets.iter().map(|s| s[fd / 64] >> (fd % 64) & 1 == 1).collect();
            if !wanted.contains(&true) {
                continue;
            }
            let handle = self.handle(cpu, fd as u64)?;
            let (ready, objects, at) = self.readiness(cpu, &handle, 0);
            ids.extend(objects);
            next = earliest(next, at);
            for (i, mask) in [IN | HUP | ERR, OUT | ERR, 0].into_iter().enumerate() {
                if wanted[i] && ready & mask != 0 {
                    results[i][fd / 64] |= 1 << (fd % 64);
                    total += 1;
                }
            }
        }
        if total == 0 && !self.deadline_over(cpu, timeout) {
            return Err(self.wait_for(cpu, ids, next));
        }
        for (set, &at) in results.iter().zip(&a[1..4]).filter(|(_, at)| **at != 0) {
            for (i, word) in set.iter().enumerate() {
                self.write_user(cpu, at + 8 * i as u64, &word.to_le_bytes())?;
            }
        }
        Ok(total)
    }

    pub(crate) fn epoll_create(&mut self, cpu: &mut Cpu<'_>, flags: u64) -> Sys {
        let id = self.object();
        self.install(cpu, Open::new(Kind::Epoll { id, watched: BTreeMap::new() }, 2), flags as u32 & O_CLOEXEC != 0, 0)
    }

    pub(crate) fn epoll_ctl(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let (epoll, fd) = (self.handle(cpu, a[0])?, a[2] as i32);
        self.handle(cpu, a[2])?;
        let entry = if a[1] == 2 { (0, 0) } else { (self.read_u32(cpu, a[3])?, self.read_u64(cpu, a[3] + 8)?) };
        let id = {
            let mut open = epoll.borrow_mut();
            let Kind::Epoll { id, watched } = &mut open.kind else { return Err(Stop::Errno(EINVAL)) };
            match a[1] {
                1 if watched.contains_key(&fd) => return Err(Stop::Errno(EEXIST)),
                2 | 3 if !watched.contains_key(&fd) => return Err(Stop::Errno(ENOENT)),
                2 => {
                    watched.remove(&fd);
                }
                1 | 3 => {
                    watched.insert(fd, entry);
                }
                _ => return Err(Stop::Errno(EINVAL)),
            }
            *id
        };
        self.wake(id);
        Ok(0)
    }

    /// Level-triggered; an edge-triggered watch is reported as often, which programs must allow for.
    pub(crate) fn epoll_pwait(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        const ONESHOT: u32 = 1 << 30;
        let epoll = self.handle(cpu, a[0])?;
        let watched = match &epoll.borrow().kind {
            Kind::Epoll { watched, .. } => watched.clone(),
            _ => return Err(Stop::Errno(EINVAL)),
        };
        let timeout = (a[3] as i32 >= 0).then(|| (a[3] as u32 as u64).saturating_mul(1_000_000));
        let (mut found, mut next) = (Vec::new(), None);
        for (&fd, &(events, data)) in &watched {
            let Ok(handle) = self.handle(cpu, fd as u64) else { continue };
            let (ready, _, at) = self.readiness(cpu, &handle, 1);
            next = earliest(next, at);
            let ready = ready & (events | ERR | HUP);
            if ready != 0 && events & !(ONESHOT | 1 << 31) != 0 && found.len() < a[2] as usize {
                found.push((fd, ready, data, events & ONESHOT != 0));
            }
        }
        if found.is_empty() && !self.deadline_over(cpu, timeout) {
            let (_, ids, _) = self.readiness(cpu, &epoll, 0);
            return Err(self.wait_for(cpu, ids, next));
        }
        for (i, &(fd, ready, data, once)) in found.iter().enumerate() {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ready.to_le_bytes());
            bytes[8..].copy_from_slice(&data.to_le_bytes());
            self.write_user(cpu, a[1] + 16 * i as u64, &bytes)?;
            if let (true, Kind::Epoll { watched, .. }) = (once, &mut epoll.borrow_mut().kind)
                && let Some(entry) = watched.get_mut(&fd)
            {
                entry.0 &= ONESHOT;
            }
        }
        Ok(found.len() as u64)
    }

    pub(crate) fn eventfd(&mut self, cpu: &mut Cpu<'_>, count: u64, flags: u64) -> Sys {
        let kind = Kind::Event { id: self.object(), count: u64::from(count as u32), semaphore: flags & 1 == 1 };
        self.install(cpu, Open::new(kind, 2 | flags as u32 & O_NONBLOCK), flags as u32 & O_CLOEXEC != 0, 0)
    }

    pub(crate) fn timerfd_create(&mut self, cpu: &mut Cpu<'_>, flags: u64) -> Sys {
        let kind = Kind::Timer { id: self.object(), at: None, every: 0 };
        self.install(cpu, Open::new(kind, flags as u32 & O_NONBLOCK), flags as u32 & O_CLOEXEC != 0, 0)
    }

    pub(crate) fn timerfd_settime(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let handle = self.handle(cpu, a[0])?;
        let (interval, first) = (self.read_timespec(cpu, a[2])?, self.read_timespec(cpu, a[2] + 16)?);
        let when = if a[1] & 1 == 1 { self.absolute(first) } else { self.now.saturating_add(first) };
        let (old, id) = {
            let mut open = handle.borrow_mut();
            let Kind::Timer { id, at, every } = &mut open.kind else { return Err(Stop::Errno(EINVAL)) };
            let old = (at.map_or(0, |at| at.saturating_sub(self.now)), *every);
            (*at, *every) = ((first > 0).then_some(when), interval);
            (old, *id)
        };
        if a[3] != 0 {
            for (i, value) in [old.1 / NS, old.1 % NS, old.0 / NS, old.0 % NS].into_iter().enumerate() {
                self.write_user(cpu, a[3] + 8 * i as u64, &value.to_le_bytes())?;
            }
        }
        self.wake(id);
        Ok(0)
    }
}

fn earliest(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
