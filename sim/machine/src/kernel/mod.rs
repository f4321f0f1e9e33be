//! The Linux system-call layer: what a kernel would do for user programs, as a trap handler of the simulated machine.
//! Page tables and user memory are real and reached through the coherent port; the layer's own work takes no
//! simulated time. Everything is deterministic: time is simulated, randomness is seeded, threads are scheduled in
//! order.

mod calls;
mod errno;
mod exec;
mod file_calls;
mod files;
mod futex;
mod memory_calls;
mod names;
mod net;
mod poll;
mod process;
mod signal;
mod time;

use crate::agent::Agent;
use crate::board::Board;
use crate::error::Error;
use crate::frames::{Frames, Rng};
use crate::space::{Fault, Pool, Space};
use errno::EFAULT;
pub use files::{Console, Input};
use files::{FdTable, Registry};
pub use names::name as call_name;
use signal::{Action, SIGNALS};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use towpath_isa::{Access, Cause, Hart, Mode, Trap};

/// Why a call does not return a value now.
pub(crate) enum Stop {
    /// A Linux error number.
    Errno(u16),
    /// The thread waits; the call is made again when it is woken.
    Block(Wait),
    /// The call does not return here: registers were replaced, or the thread is gone.
    NoReturn,
    /// The run ends.
    Fatal(Error),
}

/// What a call comes to.
pub(crate) type Sys = Result<u64, Stop>;

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        match fault {
            Fault::Fatal(error) => Stop::Fatal(error),
            _ => Stop::Errno(EFAULT),
        }
    }
}

/// What a thread waits for; any wait may have a deadline beside it.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// A wake of this futex.
    Futex { key: u64, bits: u32 },
    /// A change of any of these objects.
    Objects(Vec<u64>),
}

#[derive(Clone, Debug)]
pub(crate) enum State {
    Ready,
    Running,
    Blocked(Wait),
}

/// User registers of a thread that is not on a hart.
#[derive(Clone)]
pub(crate) struct Context {
    x: [u64; 32],
    f: [u64; 32],
    pc: u64,
    fflags: u8,
    frm: u8,
    v: towpath_isa::vector::VectorState,
}

impl Context {
    fn new() -> Context {
        Context::save(&Hart::new(0))
    }

    fn save(hart: &Hart) -> Context {
        Context { x: hart.x, f: hart.f, pc: hart.pc, fflags: hart.csrs.fflags, frm: hart.csrs.frm, v: hart.v.clone() }
    }

    fn restore(&self, hart: &mut Hart) {
        (hart.x, hart.f, hart.pc) = (self.x, self.f, self.pc);
        (hart.csrs.fflags, hart.csrs.frm) = (self.fflags, self.frm);
        hart.v = self.v.clone();
        hart.reservation = None;
    }
}

/// A thread.
pub(crate) struct Task {
    pub(crate) pid: u32,
    pub(crate) context: Context,
    pub(crate) state: State,
    /// When its wait ends at the latest, in ns of simulated time.
    pub(crate) deadline: Option<u64>,
    /// A call is to be made again when it next runs.
    pub(crate) restart: bool,
    /// A futex wake reached it.
    pub(crate) woken: bool,
    pub(crate) blocked_signals: u64,
    pub(crate) saved_mask: Option<u64>,
    pub(crate) pending: u64,
    pub(crate) alternate_stack: (u64, u64),
    pub(crate) clear_tid: u64,
    pub(crate) name: String,
}

/// A process: what its threads share.
pub(crate) struct Process {
    pub(crate) parent: u32,
    pub(crate) space: Rc<RefCell<Space>>,
    pub(crate) fds: FdTable,
    pub(crate) cwd: String,
    pub(crate) program: PathBuf,
    pub(crate) actions: Rc<RefCell<[Action; SIGNALS]>>,
    pub(crate) pending: u64,
    /// Exit status as `wait4` reports it.
    pub(crate) exited: Option<u32>,
    pub(crate) threads: u32,
    pub(crate) umask: u32,
    /// `setitimer`: next expiry and interval, ns.
    pub(crate) alarm: Option<(u64, u64)>,
    pub(crate) group: u32,
}

/// What a hart runs and through what the kernel reaches it.
pub(crate) struct Cpu<'a> {
    pub(crate) hart: &'a mut Hart,
    pub(crate) memory: &'a mut dyn Agent,
    pub(crate) tid: u32,
    pub(crate) pid: u32,
}

/// Options of a run that are not the board's.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Files are looked up here first, then on the host: where the dynamic loader and its libraries are.
    pub sysroot: Option<PathBuf>,
    /// Print each system call to standard error.
    pub trace: bool,
}

/// Counters of the layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelStats {
    /// System calls made.
    pub calls: u64,
    /// Page faults that brought a page in or copied one.
    pub faults: u64,
    /// Times a hart changed threads.
    pub switches: u64,
    /// Signals delivered to handlers.
    pub signals: u64,
}

/// The simulated Linux.
pub struct Kernel {
    pub(crate) frames: Frames,
    pub(crate) tasks: BTreeMap<u32, Task>,
    pub(crate) processes: BTreeMap<u32, Process>,
    ready: VecDeque<u32>,
    /// The thread on each hart.
    running: Vec<Option<u32>>,
    slice_end: Vec<u64>,
    pub(crate) next_id: u32,
    pub(crate) next_object: u64,
    /// Simulated time, ns.
    pub(crate) now: u64,
    pub(crate) rng: Rng,
    pub(crate) registry: Registry,
    /// Where the standard streams go.
    pub console: Console,
    pub(crate) options: Options,
    pub(crate) stack_size: u64,
    pub(crate) huge_pages: bool,
    slice: u64,
    /// Counters.
    pub stats: KernelStats,
    /// Exit status of the first process, when it has ended.
    pub exit: Option<i32>,
    /// The cores' translation caches must forget.
    pub tables_changed: bool,
    /// Code may have been written: the cores' decoded blocks must be looked at again.
    pub code_changed: bool,
}

impl Kernel {
    /// A kernel for a board with no process yet.
    pub fn new(board: &Board, options: Options, console: Console) -> Kernel {
        let frames = Frames::new(board.memory.base, board.memory_size(), board.program.frames, board.program.seed);
        Kernel {
            frames,
            tasks: BTreeMap::new(),
            processes: BTreeMap::new(),
            ready: VecDeque::new(),
            running: vec![None; board.harts.count],
            slice_end: vec![0; board.harts.count],
            next_id: 1,
            next_object: 1 << 32,
            now: 0,
            rng: Rng(board.program.seed ^ 0x746f_7770_6174_6821),
            registry: Registry::default(),
            console,
            options,
            stack_size: board.stack_size(),
            huge_pages: board.program.huge_pages,
            slice: board.program.slice_us * 1000,
            stats: KernelStats::default(),
            exit: None,
            tables_changed: false,
            code_changed: false,
        }
    }

    /// Works on a process' address space.
    pub(crate) fn with_space<R>(
        &mut self,
        memory: &mut dyn Agent,
        pid: u32,
        work: impl FnOnce(&mut Space, &mut Pool<'_>) -> R,
    ) -> R {
        let space = self.processes[&pid].space.clone();
        let mut pool = Pool { agent: memory, frames: &mut self.frames, tables_changed: false, code_changed: false };
        let result = work(&mut space.borrow_mut(), &mut pool);
        let (tables, code) = (pool.tables_changed, pool.code_changed);
        self.tables_changed |= tables;
        self.code_changed |= code;
        result
    }

    pub(crate) fn read_user(&mut self, cpu: &mut Cpu<'_>, va: u64, into: &mut [u8]) -> Result<(), Stop> {
        Ok(self.with_space(cpu.memory, cpu.pid, |space, pool| space.read(pool, va, into))?)
    }

    pub(crate) fn write_user(&mut self, cpu: &mut Cpu<'_>, va: u64, from: &[u8]) -> Result<(), Stop> {
        Ok(self.with_space(cpu.memory, cpu.pid, |space, pool| space.write(pool, va, from))?)
    }

    pub(crate) fn read_u64(&mut self, cpu: &mut Cpu<'_>, va: u64) -> Result<u64, Stop> {
        let mut bytes = [0; 8];
        self.read_user(cpu, va, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn read_u32(&mut self, cpu: &mut Cpu<'_>, va: u64) -> Result<u32, Stop> {
        let mut bytes = [0; 4];
        self.read_user(cpu, va, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// A C string of at most 4096 bytes.
    pub(crate) fn read_string(&mut self, cpu: &mut Cpu<'_>, va: u64) -> Result<Vec<u8>, Stop> {
        let mut text = Vec::new();
        while text.len() < 4096 {
            let mut byte = [0];
            self.read_user(cpu, va.wrapping_add(text.len() as u64), &mut byte)?;
            if byte[0] == 0 {
                return Ok(text);
            }
            text.push(byte[0]);
        }
        Err(Stop::Errno(errno::ENAMETOOLONG))
    }

    /// A fresh name for something threads can wait for.
    pub(crate) fn object(&mut self) -> u64 {
        self.next_object += 1;
        self.next_object
    }

    /// Makes a blocked thread ready.
    pub(crate) fn make_ready(&mut self, tid: u32) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.state = State::Ready;
            self.ready.push_back(tid);
        }
    }

    /// Everyone who waits for this object tries again.
    pub(crate) fn wake(&mut self, object: u64) {
        self.wake_where(|wait| matches!(wait, Wait::Objects(ids) if ids.contains(&object)));
    }

    /// Everyone who waits for any object tries again: descriptors were closed.
    pub(crate) fn wake_all(&mut self) {
        self.wake_where(|wait| matches!(wait, Wait::Objects(_)));
    }

    fn wake_where(&mut self, matches: impl Fn(&Wait) -> bool) {
        let woken: Vec<u32> = self
            .tasks
            .iter()
            .filter(|(_, task)| matches!(&task.state, State::Blocked(wait) if matches(wait)))
            .map(|(&tid, _)| tid)
            .collect();
        for tid in woken {
            self.make_ready(tid);
        }
    }

    /// Handles an exception of the thread on hart `slot`.
    ///
    /// # Errors
    /// What ends the run.
    pub fn trap(&mut self, slot: usize, hart: &mut Hart, memory: &mut dyn Agent, trap: Trap) -> Result<(), Error> {
        let Some(tid) = self.running[slot] else { return Ok(()) };
        let mut cpu = Cpu { pid: self.tasks[&tid].pid, hart, memory, tid };
        let access = match trap.cause {
            Cause::EcallUser => {
                self.stats.calls += 1;
                self.call(slot, &mut cpu)?;
                return self.before_user(slot, &mut cpu);
            }
            Cause::LoadPage | Cause::LoadAccess => Some(Access::Load),
            Cause::StorePage | Cause::StoreAccess => Some(Access::Store),
            Cause::FetchPage | Cause::FetchAccess => Some(Access::Fetch),
            _ => None,
        };
        let (signal, code) = match access {
            Some(access) => {
                match self.with_space(cpu.memory, cpu.pid, |space, pool| space.touch(pool, trap.value, access)) {
                    Ok(_) => {
                        self.stats.faults += 1;
                        return Ok(());
                    }
                    Err(Fault::Fatal(error)) => return Err(error),
                    Err(Fault::Unmapped) => (signal::SIGSEGV, 1),
                    Err(Fault::Denied) => (signal::SIGSEGV, 2),
                    Err(Fault::BeyondFile) => (signal::SIGBUS, 2),
                }
            }
            None => match trap.cause {
                Cause::Breakpoint => (signal::SIGTRAP, 1),
                Cause::LoadMisaligned | Cause::StoreMisaligned => (signal::SIGBUS, 1),
                _ => (signal::SIGILL, 1),
            },
        };
        self.force_signal(slot, &mut cpu, signal, code, trap.value)
    }

    /// Carries out the call in the registers; afterwards the thread runs on, waits, or is gone.
    fn call(&mut self, slot: usize, cpu: &mut Cpu<'_>) -> Result<(), Error> {
        let number = cpu.hart.x[17];
        let arguments: [u64; 6] = std::array::from_fn(|i| cpu.hart.x[10 + i]);
        let outcome = self.dispatch(cpu, number, arguments);
        if self.options.trace {
            trace(cpu.tid, number, &arguments, &outcome);
        }
        match outcome {
            Ok(value) => self.complete(cpu, value),
            Err(Stop::Errno(number)) => self.complete(cpu, u64::from(number).wrapping_neg()),
            Err(Stop::Block(wait)) => {
                if let Some(task) = self.tasks.get_mut(&cpu.tid) {
                    task.context = Context::save(cpu.hart);
                    task.state = State::Blocked(wait);
                    task.restart = true;
                }
                self.running[slot] = None;
            }
            Err(Stop::NoReturn) => {
                if !self.tasks.contains_key(&cpu.tid) {
                    self.running[slot] = None;
                }
            }
            Err(Stop::Fatal(error)) => return Err(error),
        }
        Ok(())
    }

    fn complete(&mut self, cpu: &mut Cpu<'_>, value: u64) {
        cpu.hart.x[10] = value;
        cpu.hart.pc = cpu.hart.pc.wrapping_add(4);
        if let Some(task) = self.tasks.get_mut(&cpu.tid) {
            (task.deadline, task.restart, task.woken) = (None, false, false);
        }
    }

    /// Gives hart `slot` a thread if it has none; says whether it has one now.
    ///
    /// # Errors
    /// What ends the run.
    pub fn schedule(&mut self, slot: usize, hart: &mut Hart, memory: &mut dyn Agent) -> Result<bool, Error> {
        self.expire(memory);
        while self.running[slot].is_none() {
            let Some(tid) = self.ready.pop_front() else { return Ok(false) };
            let Some(task) = self.tasks.get_mut(&tid) else { continue };
            if !matches!(task.state, State::Ready) {
                continue;
            }
            task.state = State::Running;
            task.context.restore(hart);
            let (pid, restart) = (task.pid, task.restart);
            self.running[slot] = Some(tid);
            self.slice_end[slot] = self.now + self.slice;
            self.stats.switches += 1;
            hart.mode = Mode::User;
            hart.csrs.satp = self.processes[&pid].space.borrow().satp();
            let mut cpu = Cpu { hart, memory, tid, pid };
            if restart {
                self.call(slot, &mut cpu)?;
            }
            if self.running[slot].is_some() {
                self.before_user(slot, &mut cpu)?;
            }
        }
        Ok(true)
    }

    /// Takes the thread off hart `slot` if its slice is over and another waits.
    pub fn preempt(&mut self, slot: usize, hart: &Hart) {
        let Some(tid) = self.running[slot] else { return };
        if self.now < self.slice_end[slot] || self.ready.is_empty() {
            return;
        }
        self.yield_hart(slot, tid, hart);
    }

    /// Takes the thread off hart `slot` if another is ready: it asked for that, or pauses in a spin loop.
    pub fn give_way(&mut self, slot: usize, hart: &Hart) {
        if let (Some(tid), false) = (self.running[slot], self.ready.is_empty()) {
            self.yield_hart(slot, tid, hart);
        }
    }

    fn yield_hart(&mut self, slot: usize, tid: u32, hart: &Hart) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.context = Context::save(hart);
        }
        self.running[slot] = None;
        self.make_ready(tid);
    }

    /// Whether any thread could run now on a hart that has none.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When the next time-out or alarm is due, in ns.
    pub fn next_event(&self) -> Option<u64> {
        let waits = self.tasks.values().filter_map(|t| match t.state {
            State::Blocked(_) => t.deadline,
            _ => None,
        });
        waits.chain(self.processes.values().filter_map(|p| p.alarm.map(|(at, _)| at))).min()
    }

    /// Ends waits whose time has come, and raises alarms.
    fn expire(&mut self, memory: &mut dyn Agent) {
        let now = self.now;
        let due: Vec<u32> = self
            .tasks
            .iter()
            .filter(|(_, t)| matches!(t.state, State::Blocked(_)) && t.deadline.is_some_and(|d| d <= now))
            .map(|(&tid, _)| tid)
            .collect();
        for tid in due {
            self.make_ready(tid);
        }
        let alarms: Vec<u32> =
            self.processes.iter().filter(|(_, p)| p.alarm.is_some_and(|(at, _)| at <= now)).map(|(&p, _)| p).collect();
        for pid in alarms {
            if let Some(process) = self.processes.get_mut(&pid) {
                process.alarm = process.alarm.and_then(|(at, every)| (every > 0).then_some((at + every, every)));
            }
            self.send_signal(memory, pid, None, signal::SIGALRM);
        }
    }

    /// Advances simulated time to `now` ns.
    pub fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// What every thread waits for, for the report of a deadlock.
    pub fn describe_waits(&self) -> String {
        let mut text = Vec::new();
        for (tid, task) in &self.tasks {
            if let State::Blocked(wait) = &task.state {
                let what = match wait {
                    Wait::Futex { key, .. } => format!("futex at physical {key:#x}"),
                    Wait::Objects(_) => call_name(task.context.x[17]).to_string(),
                };
                text.push(format!("thread {tid} in {what} at {:#x}", task.context.pc));
            }
        }
        text.join(", ")
    }
}

fn trace(tid: u32, number: u64, arguments: &[u64; 6], outcome: &Sys) {
    let result = match outcome {
        Ok(value) => format!("{value:#x}"),
        Err(Stop::Errno(number)) => format!("-{number}"),
        Err(Stop::Block(_)) => "waits".into(),
        Err(Stop::NoReturn) => "does not return".into(),
        Err(Stop::Fatal(error)) => error.to_string(),
    };
    eprintln!("[{tid}] {}({:x?}) = {result}", call_name(number), arguments);
}
