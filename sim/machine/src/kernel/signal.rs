//! Signals: dispositions, masks, delivery to handlers with the frame that riscv64 Linux builds.

use super::errno::{EINTR, EINVAL, ESRCH};
use super::exec::TRAMPOLINE;
use super::{Cpu, Kernel, State, Stop, Sys, Wait};
use crate::agent::Agent;
use crate::error::Error;

/// Signals are 1 to 64; index 0 is unused.
pub(crate) const SIGNALS: usize = 65;
pub(crate) const SIGILL: u32 = 4;
pub(crate) const SIGTRAP: u32 = 5;
pub(crate) const SIGBUS: u32 = 7;
const SIGKILL: u32 = 9;
pub(crate) const SIGSEGV: u32 = 11;
pub(crate) const SIGPIPE: u32 = 13;
pub(crate) const SIGALRM: u32 = 14;
pub(crate) const SIGCHLD: u32 = 17;
const SIGSTOP: u32 = 19;
const SIG_IGN: u64 = 1;
const SA_SIGINFO: u64 = 4;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
/// Ignored unless a handler is set: SIGCHLD, SIGCONT, SIGURG, SIGWINCH.
const IGNORED: u64 = 1 << 16 | 1 << 17 | 1 << 22 | 1 << 27;
/// siginfo (128), then ucontext: flags, link, stack (24), mask (128), registers (256), floating point (528).
const FRAME_SIZE: usize = 128 + 8 + 8 + 24 + 128 + 8 + 256 + 528;
const UCONTEXT: usize = 128;
const STACK_AT: usize = UCONTEXT + 16;
const MASK_AT: usize = UCONTEXT + 40;
/// The register block is aligned to 16 bytes within the ucontext.
const REGISTERS_AT: usize = UCONTEXT + 176;

/// The disposition of one signal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Action {
    handler: u64,
    flags: u64,
    mask: u64,
}

impl Action {
    /// Handlers do not survive `execve`, ignoring does.
    pub(crate) fn after_exec(self) -> Action {
        if self.handler == SIG_IGN { self } else { Action::default() }
    }
}

fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| b.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b)))
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

impl Kernel {
    /// Makes a signal pending for a process or one of its threads, and wakes whoever can take it.
    pub(crate) fn send_signal(&mut self, memory: &mut dyn Agent, pid: u32, tid: Option<u32>, signal: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if process.exited.is_some() {
            return;
        }
        let action = process.actions.borrow()[signal as usize];
        if action.handler == SIG_IGN || (action.handler == 0 && IGNORED & bit(signal) != 0) {
            return;
        }
        match tid {
            Some(tid) => {
                if let Some(task) = self.tasks.get_mut(&tid) {
                    task.pending |= bit(signal);
                }
            }
            None => process.pending |= bit(signal),
        }
        let target = self.tasks.iter().find(|&(&t, task)| {
            task.pid == pid && tid.is_none_or(|wanted| wanted == t) && task.blocked_signals & bit(signal) == 0
        });
        let Some(target) = target.map(|(&t, _)| t) else { return };
        self.interrupt(target, action.flags & SA_RESTART != 0);
        let _ = memory;
    }

    /// Ends the wait of a thread: with EINTR, or so that the call is made again after the handler.
    fn interrupt(&mut self, tid: u32, restart: bool) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if !matches!(task.state, State::Blocked(_)) {
            return;
        }
        // Sleeping and polling are never restarted by themselves (signal(7)).
        let never = matches!(task.context.x[17], 22 | 72 | 73 | 101 | 115 | 133 | 137);
        if never || !restart {
            task.context.x[10] = u64::from(EINTR).wrapping_neg();
            task.context.pc += 4;
        }
        (task.restart, task.deadline, task.woken) = (false, None, false);
        self.make_ready(tid);
    }

    /// A signal raised by the thread's own instruction: a blocked or ignored one ends the process.
    pub(crate) fn force_signal(
        &mut self,
        slot: usize,
        cpu: &mut Cpu<'_>,
        signal: u32,
        code: u32,
        address: u64,
    ) -> Result<(), Error> {
        let action = self.processes[&cpu.pid].actions.borrow()[signal as usize];
        let blocked = self.tasks[&cpu.tid].blocked_signals & bit(signal) != 0;
        if blocked || action.handler <= SIG_IGN {
            let text = format!(
                "towpath: process {} ended by signal {signal}: pc {:#x}, address {address:#x}\n",
                cpu.pid, cpu.hart.pc
            );
            self.console.write(true, text.as_bytes());
            return self.die(slot, cpu, signal);
        }
        self.deliver(slot, cpu, signal, action, code, address)
    }

    fn die(&mut self, slot: usize, cpu: &mut Cpu<'_>, signal: u32) -> Result<(), Error> {
        self.running_none(slot);
        match self.end_process(cpu.memory, cpu.pid, signal) {
            Err(Stop::Fatal(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn running_none(&mut self, slot: usize) {
        self.running[slot] = None;
    }

    /// Takes pending signals before the thread on hart `slot` goes on in user mode.
    pub(crate) fn before_user(&mut self, slot: usize, cpu: &mut Cpu<'_>) -> Result<(), Error> {
        while self.running[slot] == Some(cpu.tid) {
            let (Some(task), Some(process)) = (self.tasks.get_mut(&cpu.tid), self.processes.get_mut(&cpu.pid)) else {
                return Ok(());
            };
            let ready = (task.pending | process.pending) & !task.blocked_signals;
            if ready == 0 {
                if let Some(mask) = task.saved_mask.take() {
                    task.blocked_signals = mask;
                    continue;
                }
                return Ok(());
            }
            let signal = ready.trailing_zeros() + 1;
            if task.pending & bit(signal) != 0 {
                task.pending &= !bit(signal);
            } else {
                process.pending &= !bit(signal);
            }
            let action = process.actions.borrow()[signal as usize];
            match action.handler {
                0 if IGNORED & bit(signal) != 0 => {}
                0 => return self.die(slot, cpu, signal),
                SIG_IGN => {}
                _ => self.deliver(slot, cpu, signal, action, 0, 0)?,
            }
        }
        Ok(())
    }

    /// Builds the frame and enters the handler.
    fn deliver(
        &mut self,
        slot: usize,
        cpu: &mut Cpu<'_>,
        signal: u32,
        action: Action,
        code: u32,
        address: u64,
    ) -> Result<(), Error> {
        self.stats.signals += 1;
        let (mask, (alternate, size)) = {
            let task = &self.tasks[&cpu.tid];
            (task.saved_mask.unwrap_or(task.blocked_signals), task.alternate_stack)
        };
        let sp = cpu.hart.x[2];
        let on_alternate = sp > alternate && sp <= alternate.wrapping_add(size);
        let top = if action.flags & SA_ONSTACK != 0 && size != 0 && !on_alternate { alternate + size } else { sp };
        let at = top.wrapping_sub(FRAME_SIZE as u64) & !15;
        let mut frame = vec![0; FRAME_SIZE];
        frame[..4].copy_from_slice(&signal.to_le_bytes());
        frame[8..12].copy_from_slice(&code.to_le_bytes());
        put(&mut frame, 16, address);
        put(&mut frame, STACK_AT, alternate);
        put(&mut frame, STACK_AT + 16, size);
        put(&mut frame, MASK_AT, mask);
        put(&mut frame, REGISTERS_AT, cpu.hart.pc);
        for i in 1..32 {
            put(&mut frame, REGISTERS_AT + 8 * i, cpu.hart.x[i]);
            put(&mut frame, REGISTERS_AT + 256 + 8 * i, cpu.hart.f[i]);
        }
        put(&mut frame, REGISTERS_AT + 256, cpu.hart.f[0]);
        let fcsr = u64::from(cpu.hart.csrs.frm) << 5 | u64::from(cpu.hart.csrs.fflags);
        put(&mut frame, REGISTERS_AT + 512, fcsr);
        if let Err(stop) = self.write_user(cpu, at, &frame) {
            return match stop {
                Stop::Fatal(error) => Err(error),
                _ => self.die(slot, cpu, SIGSEGV),
            };
        }
        let hart = &mut *cpu.hart;
        (hart.x[1], hart.x[2], hart.x[10]) = (TRAMPOLINE, at, u64::from(signal));
        (hart.x[11], hart.x[12]) = (at, at + UCONTEXT as u64);
        if action.flags & SA_SIGINFO == 0 {
            hart.x[11] = at;
        }
        hart.pc = action.handler;
        if let Some(task) = self.tasks.get_mut(&cpu.tid) {
            task.saved_mask = None;
            task.blocked_signals |= action.mask | if action.flags & SA_NODEFER == 0 { bit(signal) } else { 0 };
        }
        if action.flags & SA_RESETHAND != 0 {
            self.processes[&cpu.pid].actions.borrow_mut()[signal as usize] = Action::default();
        }
        Ok(())
    }

    /// `rt_sigreturn`: everything back from the frame at the stack pointer.
    pub(crate) fn sigreturn(&mut self, cpu: &mut Cpu<'_>) -> Sys {
        let mut frame = vec![0; FRAME_SIZE];
        self.read_user(cpu, cpu.hart.x[2], &mut frame)?;
        cpu.hart.pc = word(&frame, REGISTERS_AT);
        for i in 1..32 {
            cpu.hart.x[i] = word(&frame, REGISTERS_AT + 8 * i);
        }
        for i in 0..32 {
            cpu.hart.f[i] = word(&frame, REGISTERS_AT + 256 + 8 * i);
        }
        let fcsr = word(&frame, REGISTERS_AT + 512);
        (cpu.hart.csrs.fflags, cpu.hart.csrs.frm) = (fcsr as u8 & 31, (fcsr >> 5) as u8 & 7);
        if let Some(task) = self.tasks.get_mut(&cpu.tid) {
            task.blocked_signals = word(&frame, MASK_AT);
            task.restart = false;
        }
        Err(Stop::NoReturn)
    }

    pub(crate) fn sigaction(&mut self, cpu: &mut Cpu<'_>, signal: u64, new: u64, old: u64) -> Sys {
        if signal == 0 || signal >= SIGNALS as u64 {
            return Err(Stop::Errno(EINVAL));
        }
        let action = self.processes[&cpu.pid].actions.borrow()[signal as usize];
        let mut replacement = None;
        if new != 0 {
            if matches!(signal as u32, SIGKILL | SIGSTOP) {
                return Err(Stop::Errno(EINVAL));
            }
            replacement = Some(Action {
                handler: self.read_u64(cpu, new)?,
                flags: self.read_u64(cpu, new + 8)?,
                mask: self.read_u64(cpu, new + 16)?,
            });
        }
        if old != 0 {
            let mut bytes = [0; 24];
            put(&mut bytes, 0, action.handler);
            put(&mut bytes, 8, action.flags);
            put(&mut bytes, 16, action.mask);
            self.write_user(cpu, old, &bytes)?;
        }
        if let Some(replacement) = replacement {
            self.processes[&cpu.pid].actions.borrow_mut()[signal as usize] = replacement;
        }
        Ok(0)
    }

    pub(crate) fn sigprocmask(&mut self, cpu: &mut Cpu<'_>, how: u64, set: u64, old: u64) -> Sys {
        let mask = self.tasks[&cpu.tid].blocked_signals;
        if set != 0 {
            let set = self.read_u64(cpu, set)?;
            let new = match how {
                0 => mask | set,
                1 => mask & !set,
                2 => set,
                _ => return Err(Stop::Errno(EINVAL)),
            };
            if let Some(task) = self.tasks.get_mut(&cpu.tid) {
                task.blocked_signals = new & !(bit(SIGKILL) | bit(SIGSTOP));
            }
        }
        if old != 0 {
            self.write_user(cpu, old, &mask.to_le_bytes())?;
        }
        Ok(0)
    }

    pub(crate) fn sigpending(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        let pending = self.tasks[&cpu.tid].pending | self.processes[&cpu.pid].pending;
        self.write_user(cpu, at, &pending.to_le_bytes())?;
        Ok(0)
    }

    /// `rt_sigsuspend`: waits under another mask.
    pub(crate) fn sigsuspend(&mut self, cpu: &mut Cpu<'_>, at: u64) -> Sys {
        let mask = self.read_u64(cpu, at)?;
        let pending = self.processes[&cpu.pid].pending;
        let Some(task) = self.tasks.get_mut(&cpu.tid) else { return Err(Stop::NoReturn) };
        if task.saved_mask.is_none() {
            task.saved_mask = Some(task.blocked_signals);
            task.blocked_signals = mask;
        }
        if (task.pending | pending) & !mask != 0 {
            return Err(Stop::Errno(EINTR));
        }
        Err(Stop::Block(Wait::Objects(Vec::new())))
    }

    /// `rt_sigtimedwait`: takes a pending signal of the set without its handler.
    pub(crate) fn sigtimedwait(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let set = self.read_u64(cpu, a[0])?;
        let ready = (self.tasks[&cpu.tid].pending | self.processes[&cpu.pid].pending) & set;
        if ready != 0 {
            let signal = ready.trailing_zeros() + 1;
            if let Some(task) = self.tasks.get_mut(&cpu.tid) {
                task.pending &= !bit(signal);
            }
            if let Some(process) = self.processes.get_mut(&cpu.pid) {
                process.pending &= !bit(signal);
            }
            if a[1] != 0 {
                let mut info = [0; 128];
                info[..4].copy_from_slice(&signal.to_le_bytes());
                self.write_user(cpu, a[1], &info)?;
            }
            return Ok(u64::from(signal));
        }
        let timeout = if a[2] != 0 { Some(self.read_timespec(cpu, a[2])?) } else { None };
        if self.deadline_passed(cpu, timeout) {
            return Err(Stop::Errno(super::errno::EAGAIN));
        }
        Err(Stop::Block(Wait::Objects(Vec::new())))
    }

    pub(crate) fn sigaltstack(&mut self, cpu: &mut Cpu<'_>, new: u64, old: u64) -> Sys {
        let (stack, size) = self.tasks[&cpu.tid].alternate_stack;
        if old != 0 {
            let mut bytes = [0; 24];
            put(&mut bytes, 0, stack);
            put(&mut bytes, 8, if size == 0 { 2 } else { 0 });
            put(&mut bytes, 16, size);
            self.write_user(cpu, old, &bytes)?;
        }
        if new != 0 {
            let (stack, flags, size) =
                (self.read_u64(cpu, new)?, self.read_u32(cpu, new + 8)?, self.read_u64(cpu, new + 16)?);
            if let Some(task) = self.tasks.get_mut(&cpu.tid) {
                task.alternate_stack = if flags & 2 != 0 { (0, 0) } else { (stack, size) };
            }
        }
        Ok(0)
    }

    pub(crate) fn kill(&mut self, cpu: &mut Cpu<'_>, pid: i64, signal: u64) -> Sys {
        if signal >= SIGNALS as u64 {
            return Err(Stop::Errno(EINVAL));
        }
        let own_group = self.processes[&cpu.pid].group;
        let pid = pid as i32;
        let targets: Vec<u32> = self
            .processes
            .iter()
            .filter(|&(&p, process)| match pid {
                -1 => p != cpu.pid,
                0 => process.group == own_group,
                n if n > 0 => p == n as u32,
                n => process.group == n.unsigned_abs(),
            })
            .map(|(&p, _)| p)
            .collect();
        if targets.is_empty() {
            return Err(Stop::Errno(ESRCH));
        }
        for target in targets {
            if signal != 0 {
                self.send_signal(cpu.memory, target, None, signal as u32);
            }
        }
        Ok(0)
    }

    pub(crate) fn tgkill(&mut self, cpu: &mut Cpu<'_>, tid: u32, signal: u64) -> Sys {
        if signal >= SIGNALS as u64 {
            return Err(Stop::Errno(EINVAL));
        }
        let pid = self.tasks.get(&tid).map(|t| t.pid).ok_or(Stop::Errno(ESRCH))?;
        if signal != 0 {
            self.send_signal(cpu.memory, pid, Some(tid), signal as u32);
        }
        Ok(0)
    }
}

/// A broken pipe: the signal, then the error.
pub(crate) fn broken_pipe(kernel: &mut Kernel, cpu: &mut Cpu<'_>) -> Stop {
    kernel.send_signal(cpu.memory, cpu.pid, Some(cpu.tid), SIGPIPE);
    Stop::Errno(super::errno::EPIPE)
}
