//! Simulated time: clocks, sleeping, interval timers.

use super::errno::{EFAULT, EINVAL};
use super::{Cpu, Kernel, Stop, Sys, Wait};

/// Seconds since 1970 at which every run begins: 2024-01-01 00:00 UTC.
const EPOCH: u64 = 1_704_067_200;
const NS: u64 = 1_000_000_000;

impl Kernel {
    pub(crate) fn read_timespec(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Result<u64, Stop> {
        let (seconds, ns) = (self.read_u64(cpu, at)?, self.read_u64(cpu, at + 8)?);
        if seconds as i64 <= -1 || ns >= NS {
            return Err(Stop::Errno(EINVAL));
        }
        Ok(seconds.saturating_mul(NS).saturating_add(ns))
    }

    fn write_pair(&mut self, cpu: &mut Cpu<'_>, at: u64, first: u64, second: u64) -> Result<(), Stop> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        self.write_user(cpu, at, &bytes)
    }

    /// A point of either clock in simulated ns: what lies beyond the epoch is of the real-time clock.
    pub(crate) fn absolute(&self, time: u64) -> u64 {
        time.checked_sub(EPOCH * NS).unwrap_or(time)
    }

    pub(crate) fn set_deadline(&mut self, cpu: &Cpu<'_>, deadline: u64) {
        if let Some(task) = self.tasks.get_mut(&cpu.tid) {
            task.deadline = Some(deadline);
        }
    }

    /// Sets the deadline of a call on its first try; says whether it has passed.
    pub(crate) fn deadline_passed(&mut self, cpu: &Cpu<'_>, timeout: Option<u64>) -> bool {
        let now = self.now;
        let Some(task) = self.tasks.get_mut(&cpu.tid) else { return true };
        if let (false, Some(timeout)) = (task.restart, timeout) {
            task.deadline = Some(now.saturating_add(timeout));
        }
        task.deadline.is_some_and(|d| d <= now)
    }

    fn clock(&self, which: u64) -> u64 {
        // Real-time clocks begin at the epoch, all others at 0.
        if matches!(which, 0 | 5 | 8 | 11) { self.now + EPOCH * NS } else { self.now }
    }

    pub(crate) fn clock_gettime(&mut self, cpu: &mut Cpu<'_>, which: u64, at: u64) -> Sys {
        if which > 11 && (which as i32) >= 0 {
            return Err(Stop::Errno(EINVAL));
        }
        let time = self.clock(which);
        self.write_pair(cpu, at, time / NS, time % NS)?;
        Ok(0)
    }

    pub(crate) fn clock_getres(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        if at != 0 {
            self.write_pair(cpu, at, 0, 1)?;
        }
        Ok(0)
    }

    pub(crate) fn gettimeofday(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        let time = self.clock(0);
        if at != 0 {
            self.write_pair(cpu, at, time / NS, time % NS / 1000)?;
        }
        Ok(0)
    }

    pub(crate) fn times(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        let ticks = self.now / (NS / 100);
        if at != 0 {
            self.write_pair(cpu, at, ticks, 0)?;
            self.write_pair(cpu, at + 16, 0, 0)?;
        }
        Ok(ticks)
    }

    /// Sleeps for the time at `at`, or until `until`.
    pub(crate) fn nanosleep(&mut self, cpu: &mut Cpu<'_>, at: u64, _remaining: u64, until: Option<u64>) -> Sys {
        if at == 0 {
            return Err(Stop::Errno(EFAULT));
        }
        let timeout = match until {
            Some(until) => until.saturating_sub(self.now),
            None => self.read_timespec(cpu, at)?,
        };
        if self.deadline_passed(cpu, Some(timeout)) {
            return Ok(0);
        }
        Err(Stop::Block(Wait::Objects(Vec::new())))
    }

    pub(crate) fn clock_nanosleep(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        const ABSOLUTE: u64 = 1;
        let until = if a[1] & ABSOLUTE != 0 {
            let time = self.read_timespec(cpu, a[2])?;
            Some(self.absolute(time))
        } else {
            None
        };
        self.nanosleep(cpu, a[2], a[3], until)
    }

    /// `setitimer` of the real-time timer; the others count time this machine does not tell apart.
    pub(crate) fn setitimer(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        if a[0] != 0 {
            return Err(Stop::Errno(EINVAL));
        }
        if a[2] != 0 {
            self.getitimer(cpu, a[2])?;
        }
        let mut words = [0; 4];
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.read_u64(cpu, a[1] + 8 * i as u64)?;
        }
        let ns = |seconds: u64, us: u64| seconds.saturating_mul(NS).saturating_add(us.saturating_mul(1000));
        let (every, first) = (ns(words[0], words[1]), ns(words[2], words[3]));
        let now = self.now;
        if let Some(process) = self.processes.get_mut(&cpu.pid) {
            process.alarm = (first > 0).then_some((now.saturating_add(first), every));
        }
        Ok(0)
    }

    pub(crate) fn getitimer(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        let (left, every) =
            self.processes[&cpu.pid].alarm.map_or((0, 0), |(when, every)| (when.saturating_sub(self.now), every));
        self.write_pair(cpu, at, every / NS, every % NS / 1000)?;
        self.write_pair(cpu, at + 16, left / NS, left % NS / 1000)?;
        Ok(0)
    }
}
