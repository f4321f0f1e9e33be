//! Which function answers which system call.

use super::errno::{EINVAL, ENOSYS, EPERM, ESRCH};
use super::{Cpu, Kernel, Stop, Sys, names};
use crate::error::Error;

impl Kernel {
    /// Carries out system call `number`; what is not provided ends the run with an error that names it.
    pub(crate) fn dispatch(&mut self, cpu: &mut Cpu<'_>, number: u64, a: [u64; 6]) -> Sys {
        if let Some(outcome) = self.dispatch_files(cpu, number, a) {
            return outcome;
        }
        if let Some(outcome) = self.dispatch_processes(cpu, number, a) {
            return outcome;
        }
        match number {
            98 => self.futex(cpu, a),
            101 => self.nanosleep(cpu, a[0], a[1], None),
            115 => self.clock_nanosleep(cpu, a),
            113 => self.clock_gettime(cpu, a[0], a[1]),
            114 => self.clock_getres(cpu, a[1]),
            169 => self.gettimeofday(cpu, a[0]),
            103 => self.setitimer(cpu, a),
            102 => self.getitimer(cpu, a[1]),
            153 => self.times(cpu, a[0]),
            214 => self.brk(cpu, a[0]),
            215 => self.munmap(cpu, a[0], a[1]),
            216 => self.mremap(cpu, a),
            222 => self.mmap(cpu, a),
            226 => self.mprotect(cpu, a[0], a[1], a[2]),
            227 => self.msync(cpu, a[0], a[1]),
            233 => self.madvise(cpu, a[0], a[1], a[2]),
            // Memory is never paged out; locking it changes nothing.
            228..=231 => Ok(0),
            198 => self.socket(a[0], a[1], a[2], cpu),
            199 => self.socketpair(cpu, a),
            200 => self.bind(cpu, a[0], a[1], a[2]),
            201 => self.listen(cpu, a[0]),
            202 => self.accept(cpu, a[0], a[1], a[2], 0),
            242 => self.accept(cpu, a[0], a[1], a[2], a[3] as u32),
            203 => self.connect(cpu, a[0], a[1], a[2]),
            204 => self.socket_name(cpu, a[0], a[1], a[2], false),
            205 => self.socket_name(cpu, a[0], a[1], a[2], true),
            206 => self.sendto(cpu, a),
            207 => self.recvfrom(cpu, a),
            208 => self.setsockopt(cpu, a[0]),
            209 => self.getsockopt(cpu, a),
            210 => self.shutdown(cpu, a[0], a[1]),
            211 => self.sendmsg(cpu, a[0], a[1]),
            212 => self.recvmsg(cpu, a[0], a[1]),
            19 => self.eventfd(cpu, a[0], a[1]),
            20 => self.epoll_create(cpu, a[0]),
            21 => self.epoll_ctl(cpu, a),
            22 => self.epoll_pwait(cpu, a),
            72 => self.pselect(cpu, a),
            73 => self.ppoll(cpu, a),
            85 => self.timerfd_create(cpu, a[1]),
            86 => self.timerfd_settime(cpu, a),
            278 => self.getrandom(cpu, a[0], a[1]),
            283 => membarrier(a[0]),
            259 => {
                self.code_changed = true;
                Ok(0)
            }
            // Newer interfaces that C libraries try first and do without.
            258 | 293 | 425 | 435 | 436 | 439 | 441 => Err(Stop::Errno(ENOSYS)),
            _ => Err(Stop::Fatal(Error::UnknownCall { number, name: names::name(number), pc: cpu.hart.pc })),
        }
    }

    fn dispatch_processes(&mut self, cpu: &mut Cpu<'_>, number: u64, a: [u64; 6]) -> Option<Sys> {
        Some(match number {
            93 => self.exit_thread(cpu, a[0] as u32),
            94 => self.exit_process(cpu, (a[0] as u32 & 255) << 8),
            96 => {
                self.set_clear_tid(cpu, a[0]);
                Ok(u64::from(cpu.tid))
            }
            // The robust list is only read when a thread dies holding a lock.
            99 => Ok(0),
            220 => self.clone_task(cpu, a),
            221 => self.execve(cpu, a[0], a[1], a[2]),
            260 => self.wait4(cpu, a),
            95 => self.waitid(cpu, a),
            172 => Ok(u64::from(cpu.pid)),
            173 => Ok(u64::from(self.processes[&cpu.pid].parent)),
            178 => Ok(u64::from(cpu.tid)),
            174..=177 => Ok(0),
            146 | 144 | 147 | 149 | 143 | 145 | 151 | 152 | 159 => Ok(0),
            148 | 150 => self.write_zeros(cpu, &[a[0], a[1], a[2]], 4),
            158 => Ok(0),
            154 => self.setpgid(cpu, a[0], a[1]),
            155 | 156 => Ok(u64::from(self.processes[&cpu.pid].group)),
            157 => Ok(u64::from(cpu.pid)),
            124 => {
                self.stats.switches += 1;
                self.sched_yield(cpu)
            }
            122 => Ok(0),
            123 => self.sched_getaffinity(cpu, a[1], a[2]),
            118 | 119 | 140 | 141 | 120 => Ok(0),
            121 => self.write_zeros(cpu, &[a[1]], 4),
            160 => self.uname(cpu, a[0]),
            163 => self.write_rlimit(cpu, a[0], a[1]),
            164 => Ok(0),
            261 => {
                if a[3] != 0 {
                    self.write_rlimit(cpu, a[1], a[3])
                } else {
                    Ok(0)
                }
            }
            165 => self.getrusage(cpu, a[1]),
            166 => self.umask(cpu, a[0] as u32),
            167 => self.prctl(cpu, a[0], a[1]),
            168 => self.getcpu(cpu, a[0], a[1]),
            179 => self.sysinfo(cpu, a[0]),
            116 | 161 | 162 => Err(Stop::Errno(EPERM)),
            129 => self.kill(cpu, a[0] as i64, a[1]),
            130 => self.tgkill(cpu, a[0] as u32, a[1]),
            131 => self.tgkill(cpu, a[1] as u32, a[2]),
            132 => self.sigaltstack(cpu, a[0], a[1]),
            133 => self.sigsuspend(cpu, a[0]),
            134 => self.sigaction(cpu, a[0], a[1], a[2]),
            135 => self.sigprocmask(cpu, a[0], a[1], a[2]),
            136 => self.sigpending(cpu, a[0]),
            137 => self.sigtimedwait(cpu, a),
            139 => self.sigreturn(cpu),
            90 => Err(Stop::Errno(ESRCH)),
            _ => return None,
        })
    }

    /// Zeros into each place that is not null.
    fn write_zeros(&mut self, cpu: &mut Cpu<'_>, places: &[u64], size: usize) -> Sys {
        for &place in places.iter().filter(|&&p| p != 0) {
            self.write_user(cpu, place, &vec![0; size])?;
        }
        Ok(0)
    }

    fn getrandom(&mut self, cpu: &mut Cpu<'_>, at: u64, len: u64) -> Sys {
        let len = len.min(1 << 20) as usize;
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.rng.word().to_le_bytes());
        }
        self.write_user(cpu, at, &bytes[..len])?;
        Ok(len as u64)
    }

    fn uname(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        let mut bytes = vec![0; 6 * 65];
        for (i, text) in ["Linux", "towpath", "6.1.0-towpath", "#1 SMP", "riscv64", "(none)"].into_iter().enumerate() {
            bytes[65 * i..65 * i + text.len()].copy_from_slice(text.as_bytes());
        }
        self.write_user(cpu, at, &bytes)?;
        Ok(0)
    }

    fn write_rlimit(&mut self, cpu: &mut Cpu<'_>, which: u64, at: u64) -> Sys {
        let limit = match which {
            3 => self.stack_size,
            7 => super::files::FD_MAX as u64,
            _ => u64::MAX,
        };
        let mut bytes = limit.to_le_bytes().to_vec();
        bytes.extend_from_slice(&limit.to_le_bytes());
        self.write_user(cpu, at, &bytes)?;
        Ok(0)
    }

    fn getrusage(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        let mut bytes = vec![0; 144];
        bytes[..8].copy_from_slice(&(self.now / 1_000_000_000).to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.now / 1000 % 1_000_000).to_le_bytes());
        self.write_user(cpu, at, &bytes)?;
        Ok(0)
    }

    fn sysinfo(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        let mut bytes = vec![0; 112];
        let (total, used) = (self.frames.size(), self.frames.used() * crate::frames::FRAME);
        bytes[..8].copy_from_slice(&(self.now / 1_000_000_000).to_le_bytes());
        bytes[32..40].copy_from_slice(&total.to_le_bytes());
        bytes[40..48].copy_from_slice(&(total - used).to_le_bytes());
        bytes[80..82].copy_from_slice(&(self.processes.len() as u16).to_le_bytes());
        bytes[104..108].copy_from_slice(&1u32.to_le_bytes());
        self.write_user(cpu, at, &bytes)?;
        Ok(0)
    }

    fn prctl(&mut self, cpu: &mut Cpu<'_>, what: u64, at: u64) -> Sys {
        match what {
            // PR_SET_NAME, PR_GET_NAME.
            15 => {
                let name = self.read_string(cpu, at)?;
                let name = String::from_utf8_lossy(&name[..name.len().min(15)]).into_owned();
                if let Some(task) = self.tasks.get_mut(&cpu.tid) {
                    task.name = name;
                }
                Ok(0)
            }
            16 => {
                let mut bytes = self.tasks[&cpu.tid].name.clone().into_bytes();
                bytes.resize(16, 0);
                self.write_user(cpu, at, &bytes)?;
                Ok(0)
            }
            // PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_VMA: no effect here.
            1 | 4 | 38 | 0x5356_4d41 => Ok(0),
            3 => Ok(1),
            _ => Err(Stop::Errno(EINVAL)),
        }
    }

    fn getcpu(&mut self, cpu: &mut Cpu<'_>, at: u64, node: u64) -> Sys {
        let id = cpu.hart.csrs.hart_id as u32;
        if at != 0 {
            self.write_user(cpu, at, &id.to_le_bytes())?;
        }
        self.write_zeros(cpu, &[node], 4)
    }

    fn sched_getaffinity(&mut self, cpu: &mut Cpu<'_>, len: u64, at: u64) -> Sys {
        let harts = self.harts();
        if len < 8 {
            return Err(Stop::Errno(EINVAL));
        }
        let mask = if harts >= 64 { u64::MAX } else { (1 << harts) - 1 };
        self.write_user(cpu, at, &mask.to_le_bytes())?;
        Ok(8)
    }
}

/// `membarrier`: stores of simulated harts are visible at once between quanta, so every barrier is one.
fn membarrier(command: u64) -> Sys {
    // MEMBARRIER_CMD_QUERY answers with the commands provided.
    Ok(if command == 0 { 0x1f } else { 0 })
}
