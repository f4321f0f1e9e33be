//! Futexes, keyed by physical address so that processes sharing a page share them.

use super::errno::{EAGAIN, EINVAL, ETIMEDOUT};
use super::{Cpu, Kernel, State, Stop, Sys, Wait};
use towpath_isa::Access;

const PRIVATE_AND_CLOCK: u64 = 128 | 256;

impl Kernel {
    pub(crate) fn futex(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let [at, operation, value, timeout, at2, value3] = a;
        match operation & !PRIVATE_AND_CLOCK {
            0 => self.futex_wait(cpu, at, value as u32, timeout, u32::MAX, true),
            9 => self.futex_wait(cpu, at, value as u32, timeout, value3 as u32, false),
            1 => {
                let key = self.futex_key(cpu, at)?;
                Ok(u64::from(self.wake_futex(key, value as u32, u32::MAX)))
            }
            10 => {
                let key = self.futex_key(cpu, at)?;
                Ok(u64::from(self.wake_futex(key, value as u32, value3 as u32)))
            }
            // Requeue, with and without comparison.
            3 | 4 => {
                if operation & !PRIVATE_AND_CLOCK == 4 && self.read_u32(cpu, at)? != value3 as u32 {
                    return Err(Stop::Errno(EAGAIN));
                }
                let (from, to) = (self.futex_key(cpu, at)?, self.futex_key(cpu, at2)?);
                let woken = self.wake_futex(from, value as u32, u32::MAX);
                Ok(u64::from(woken + self.requeue(from, to, timeout as u32)))
            }
            5 => self.wake_op(cpu, a),
            _ => Err(Stop::Errno(super::errno::ENOSYS)),
        }
    }

    fn futex_key(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Result<u64, Stop> {
        if !at.is_multiple_of(4) {
            return Err(Stop::Errno(EINVAL));
        }
        // A page shared since a fork must be one's own before it gives a key.
        let writable = self.with_space(cpu.memory, cpu.pid, |space, pool| space.touch(pool, at, Access::Store));
        match writable {
            Ok(pa) => Ok(pa),
            Err(_) => Ok(self.with_space(cpu.memory, cpu.pid, |space, pool| space.touch(pool, at, Access::Load))?),
        }
    }

    fn futex_wait(
        &mut self,
        cpu: &mut Cpu<'_>,
        at: u64,
        expected: u32,
        timeout: u64,
        bits: u32,
        relative: bool,
    ) -> Sys {
        if bits == 0 {
            return Err(Stop::Errno(EINVAL));
        }
        let key = self.futex_key(cpu, at)?;
        let (restart, woken, deadline) = {
            let task = &self.tasks[&cpu.tid];
            (task.restart, task.woken, task.deadline)
        };
        if restart {
            if woken {
                return Ok(0);
            }
            if deadline.is_some_and(|d| d <= self.now) {
                return Err(Stop::Errno(ETIMEDOUT));
            }
        } else {
            if self.read_u32(cpu, at)? != expected {
                return Err(Stop::Errno(EAGAIN));
            }
            if timeout != 0 {
                let time = self.read_timespec(cpu, timeout)?;
                let deadline = if relative { self.now.saturating_add(time) } else { self.absolute(time) };
                self.set_deadline(cpu, deadline);
            }
        }
        Err(Stop::Block(Wait::Futex { key, bits }))
    }

    /// Wakes up to `count` waiters of a futex, oldest first.
    pub(crate) fn wake_futex(&mut self, key: u64, count: u32, bits: u32) -> u32 {
        let mut woken = 0;
        while woken < count {
            let next = self.tasks.iter().find(|(_, task)| {
                matches!(task.state, State::Blocked(Wait::Futex { key: k, bits: b }) if k == key && b & bits != 0)
            });
            let Some(tid) = next.map(|(&tid, _)| tid) else { break };
            if let Some(task) = self.tasks.get_mut(&tid) {
                task.woken = true;
            }
            self.make_ready(tid);
            woken += 1;
        }
        woken
    }

    fn requeue(&mut self, from: u64, to: u64, count: u32) -> u32 {
        let mut moved = 0;
        for task in self.tasks.values_mut() {
            if moved < count
                && let State::Blocked(Wait::Futex { key, .. }) = &mut task.state
                && *key == from
            {
                *key = to;
                moved += 1;
            }
        }
        moved
    }

    /// FUTEX_WAKE_OP.
    fn wake_op(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let [at, _, value, value2, at2, encoded] = a;
        let (key, key2) = (self.futex_key(cpu, at)?, self.futex_key(cpu, at2)?);
        let old = self.read_u32(cpu, at2)?;
        let encoded = encoded as u32;
        let field = |shift: u32| (encoded >> shift << 20) as i32 >> 20;
        let (mut operand, compare) = (field(12) as u32, field(0) as u32);
        if encoded >> 31 == 1 {
            operand = 1 << (operand & 31);
        }
        let new = match encoded >> 28 & 7 {
            0 => operand,
            1 => old.wrapping_add(operand),
            2 => old | operand,
            3 => old & !operand,
            4 => old ^ operand,
            _ => return Err(Stop::Errno(EINVAL)),
        };
        self.write_user(cpu, at2, &new.to_le_bytes())?;
        let (o, c) = (old as i32, compare as i32);
        let holds = match encoded >> 24 & 15 {
            0 => o == c,
            1 => o != c,
            2 => o < c,
            3 => o <= c,
            4 => o > c,
            5 => o >= c,
            _ => return Err(Stop::Errno(EINVAL)),
        };
        let mut woken = self.wake_futex(key, value as u32, u32::MAX);
        if holds {
            woken += self.wake_futex(key2, value2 as u32, u32::MAX);
        }
        Ok(u64::from(woken))
    }
}
