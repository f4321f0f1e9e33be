//! Threads and processes: `clone`, exit, waiting for children.

use super::errno::{EAGAIN, ECHILD, EINVAL, ESRCH};
use super::{Context, Cpu, Kernel, Process, State, Stop, Sys, Wait, exec, signal};
use crate::agent::Agent;
use std::cell::RefCell;
use std::rc::Rc;

const CLONE_VM: u64 = 0x100;
const CLONE_FILES: u64 = 0x400;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x10000;
const CLONE_SETTLS: u64 = 0x80000;
const CLONE_PARENT_SETTID: u64 = 0x10_0000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;
/// Threads of all processes together.
const TASKS_MAX: usize = 4096;

/// What a parent waits for: a change of any child of `pid`.
fn children(pid: u32) -> u64 {
    1 << 40 | u64::from(pid)
}

/// What a `vfork` parent waits for: the child's exec or exit.
pub(crate) fn released(pid: u32) -> u64 {
    1 << 41 | u64::from(pid)
}

impl Kernel {
    pub(crate) fn harts(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn set_clear_tid(&mut self, cpu: &Cpu<'_>, at: u64) {
        if let Some(task) = self.tasks.get_mut(&cpu.tid) {
            task.clear_tid = at;
        }
    }

    /// `clone`: a thread, or a process.
    pub(crate) fn clone_task(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        let [flags, stack, parent_tid, tls, child_tid, _] = a;
        // A vfork parent comes here again when it is released.
        if let Some(task) = self.tasks.get_mut(&cpu.tid)
            && task.restart
        {
            task.restart = false;
            return Ok(task.context.x[31]);
        }
        if self.tasks.len() >= TASKS_MAX {
            return Err(Stop::Errno(EAGAIN));
        }
        if flags & CLONE_THREAD != 0 && flags & (CLONE_VM | CLONE_SIGHAND) != CLONE_VM | CLONE_SIGHAND {
            return Err(Stop::Errno(EINVAL));
        }
        let tid = self.next_id;
        self.next_id += 1;
        let pid = if flags & CLONE_THREAD != 0 {
            if let Some(process) = self.processes.get_mut(&cpu.pid) {
                process.threads += 1;
            }
            cpu.pid
        } else {
            self.fork_process(cpu, tid, flags)?;
            tid
        };
        let parent = &self.tasks[&cpu.tid];
        let mut task = exec::new_task(pid, parent.name.clone());
        task.blocked_signals = parent.blocked_signals;
        task.context = Context::save(cpu.hart);
        task.context.pc += 4;
        task.context.x[10] = 0;
        if stack != 0 {
            task.context.x[2] = stack;
        }
        if flags & CLONE_SETTLS != 0 {
            task.context.x[4] = tls;
        }
        if flags & CLONE_CHILD_CLEARTID != 0 {
            task.clear_tid = child_tid;
        }
        self.tasks.insert(tid, task);
        if flags & CLONE_PARENT_SETTID != 0 {
            self.write_user(cpu, parent_tid, &tid.to_le_bytes())?;
        }
        if flags & CLONE_CHILD_SETTID != 0 {
            let bytes = tid.to_le_bytes();
            self.with_space(cpu.memory, pid, |space, pool| space.write(pool, child_tid, &bytes))?;
        }
        self.make_ready(tid);
        if flags & CLONE_VFORK != 0 {
            // The child's number is kept in a register the call may clobber nothing of: its copy in the context.
            cpu.hart.x[31] = u64::from(tid);
            return Err(Stop::Block(Wait::Objects(vec![released(tid)])));
        }
        Ok(u64::from(tid))
    }

    fn fork_process(&mut self, cpu: &mut Cpu<'_>, pid: u32, flags: u64) -> Result<(), Stop> {
        let space = if flags & CLONE_VM != 0 {
            self.processes[&cpu.pid].space.clone()
        } else {
            let copy = self.with_space(cpu.memory, cpu.pid, |space, pool| space.duplicate(pool))?;
            Rc::new(RefCell::new(copy))
        };
        let parent = &self.processes[&cpu.pid];
        let fds = if flags & CLONE_FILES != 0 {
            parent.fds.clone()
        } else {
            Rc::new(RefCell::new(parent.fds.borrow().clone()))
        };
        let actions = if flags & CLONE_SIGHAND != 0 {
            parent.actions.clone()
        } else {
            Rc::new(RefCell::new(*parent.actions.borrow()))
        };
        let child = Process {
            parent: cpu.pid,
            space,
            fds,
            cwd: parent.cwd.clone(),
            program: parent.program.clone(),
            actions,
            pending: 0,
            exited: None,
            threads: 1,
            umask: parent.umask,
            alarm: None,
            group: parent.group,
        };
        self.processes.insert(pid, child);
        Ok(())
    }

    /// `exit`: of one thread.
    pub(crate) fn exit_thread(&mut self, cpu: &mut Cpu<'_>, code: u32) -> Sys {
        if self.processes[&cpu.pid].threads == 1 {
            return self.exit_process(cpu, (code & 255) << 8);
        }
        self.forget_task(cpu.memory, cpu.tid);
        if let Some(process) = self.processes.get_mut(&cpu.pid) {
            process.threads -= 1;
        }
        Err(Stop::NoReturn)
    }

    /// `exit_group`, and death by signal: `status` as `wait4` reports it.
    pub(crate) fn exit_process(&mut self, cpu: &mut Cpu<'_>, status: u32) -> Sys {
        self.end_process(cpu.memory, cpu.pid, status)?;
        Err(Stop::NoReturn)
    }

    /// Removes a thread, clearing and waking the word it promised to clear.
    fn forget_task(&mut self, memory: &mut dyn Agent, tid: u32) {
        let Some(task) = self.tasks.remove(&tid) else { return };
        if task.clear_tid != 0 {
            let at = task.clear_tid;
            let key = self.with_space(memory, task.pid, |space, pool| {
                space.write(pool, at, &[0; 4]).and_then(|()| space.touch(pool, at, towpath_isa::Access::Load))
            });
            if let Ok(key) = key {
                self.wake_futex(key, i32::MAX as u32, u32::MAX);
            }
        }
        for slot in &mut self.running {
            if *slot == Some(tid) {
                *slot = None;
            }
        }
    }

    /// Ends every thread of `pid` but `keep`.
    pub(crate) fn end_other_threads(&mut self, pid: u32, keep: u32) {
        let others: Vec<u32> =
            self.tasks.iter().filter(|&(&t, task)| task.pid == pid && t != keep).map(|(&t, _)| t).collect();
        for tid in others {
            self.tasks.remove(&tid);
            for slot in &mut self.running {
                if *slot == Some(tid) {
                    *slot = None;
                }
            }
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads = 1;
        }
    }

    /// Gives up the address space unless another process shares it.
    pub(crate) fn leave_space(&mut self, memory: &mut dyn Agent, pid: u32) -> Result<(), Stop> {
        if Rc::strong_count(&self.processes[&pid].space) == 1 {
            self.with_space(memory, pid, |space, pool| space.destroy(pool))?;
        }
        self.tables_changed = true;
        Ok(())
    }

    pub(crate) fn end_process(&mut self, memory: &mut dyn Agent, pid: u32, status: u32) -> Result<(), Stop> {
        let threads: Vec<u32> = self.tasks.iter().filter(|(_, t)| t.pid == pid).map(|(&t, _)| t).collect();
        let shared = Rc::strong_count(&self.processes[&pid].space) > 1;
        for tid in threads {
            if !shared && let Some(task) = self.tasks.get_mut(&tid) {
                // Nobody is left to see the word cleared.
                task.clear_tid = 0;
            }
            self.forget_task(memory, tid);
        }
        self.leave_space(memory, pid)?;
        let Some(process) = self.processes.get_mut(&pid) else { return Ok(()) };
        process.exited = Some(status);
        process.alarm = None;
        process.fds = Rc::new(RefCell::new(Vec::new()));
        // A place-holder that owns nothing: the table's frames are gone.
        let parent = process.parent;
        for other in self.processes.values_mut().filter(|p| p.parent == pid) {
            other.parent = 0;
        }
        if parent == 0 && self.exit.is_none() && pid == self.first_process() {
            self.exit = Some(if status & 127 != 0 { 128 + (status & 127) as i32 } else { (status >> 8) as i32 });
        }
        if parent == 0 {
            self.processes.remove(&pid);
        } else {
            self.send_signal(memory, parent, None, signal::SIGCHLD);
            self.wake(children(parent));
        }
        self.wake(released(pid));
        self.wake_all();
        Ok(())
    }

    fn first_process(&self) -> u32 {
        1
    }

    /// The child a wait selects, if any is a child at all, and whether it has ended.
    fn select_child(&self, parent: u32, which: i64) -> Option<Option<u32>> {
        let group = self.processes[&parent].group;
        let fits = |pid: u32, process: &Process| {
            process.parent == parent
                && match which {
                    -1 => true,
                    0 => process.group == group,
                    w if w > 0 => i64::from(pid) == w,
                    w => i64::from(process.group) == -w,
                }
        };
        let mut any = false;
        for (&pid, process) in &self.processes {
            if fits(pid, process) {
                any = true;
                if process.exited.is_some() {
                    return Some(Some(pid));
                }
            }
        }
        any.then_some(None)
    }

    /// `wait4`.
    pub(crate) fn wait4(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        const WNOHANG: u64 = 1;
        match self.select_child(cpu.pid, a[0] as i32 as i64) {
            None => Err(Stop::Errno(ECHILD)),
            Some(None) if a[2] & WNOHANG != 0 => Ok(0),
            Some(None) => Err(Stop::Block(Wait::Objects(vec![children(cpu.pid)]))),
            Some(Some(child)) => {
                let status = self.processes[&child].exited.unwrap_or(0);
                if a[1] != 0 {
                    self.write_user(cpu, a[1], &status.to_le_bytes())?;
                }
                if a[3] != 0 {
                    self.write_user(cpu, a[3], &[0; 144])?;
                }
                self.processes.remove(&child);
                Ok(u64::from(child))
            }
        }
    }

    /// `waitid`.
    pub(crate) fn waitid(&mut self, cpu: &mut Cpu<'_>, a: [u64; 6]) -> Sys {
        const WNOHANG: u64 = 1;
        const WNOWAIT: u64 = 0x100_0000;
        let which = match a[0] {
            0 => -1,
            1 => a[1] as i64,
            2 => -(a[1] as i64),
            _ => return Err(Stop::Errno(EINVAL)),
        };
        match self.select_child(cpu.pid, which) {
            None => Err(Stop::Errno(ECHILD)),
            Some(None) if a[3] & WNOHANG != 0 => {
                if a[2] != 0 {
                    self.write_user(cpu, a[2], &[0; 128])?;
                }
                Ok(0)
            }
            Some(None) => Err(Stop::Block(Wait::Objects(vec![children(cpu.pid)]))),
            Some(Some(child)) => {
                let status = self.processes[&child].exited.unwrap_or(0);
                let (code, value) = if status & 127 == 0 { (1u32, status >> 8) } else { (2, status & 127) };
                let mut info = [0; 128];
                for (at, word) in [(0, signal::SIGCHLD), (8, code), (16, child), (20, 0), (24, value)] {
                    info[at..at + 4].copy_from_slice(&word.to_le_bytes());
                }
                if a[2] != 0 {
                    self.write_user(cpu, a[2], &info)?;
                }
                if a[3] & WNOWAIT == 0 {
                    self.processes.remove(&child);
                }
                Ok(0)
            }
        }
    }

    pub(crate) fn setpgid(&mut self, cpu: &Cpu<'_>, pid: u64, group: u64) -> Sys {
        let pid = if pid == 0 { cpu.pid } else { pid as u32 };
        let process = self.processes.get_mut(&pid).ok_or(Stop::Errno(ESRCH))?;
        process.group = if group == 0 { pid } else { group as u32 };
        Ok(0)
    }

    pub(crate) fn umask(&mut self, cpu: &Cpu<'_>, mask: u32) -> Sys {
        let process = self.processes.get_mut(&cpu.pid).ok_or(Stop::Errno(ESRCH))?;
        Ok(u64::from(std::mem::replace(&mut process.umask, mask & 0o777)))
    }

    /// `sched_yield`: to the end of the queue.
    pub(crate) fn sched_yield(&mut self, cpu: &mut Cpu<'_>) -> Sys {
        if self.ready.is_empty() {
            return Ok(0);
        }
        cpu.hart.x[10] = 0;
        cpu.hart.pc += 4;
        if let Some(task) = self.tasks.get_mut(&cpu.tid) {
            task.context = Context::save(cpu.hart);
            task.state = State::Ready;
            task.restart = false;
        }
        for slot in &mut self.running {
            if *slot == Some(cpu.tid) {
                *slot = None;
            }
        }
        self.make_ready(cpu.tid);
        Err(Stop::NoReturn)
    }
}
