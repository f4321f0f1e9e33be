//! Loading programs: segments, the dynamic loader, the stack a C library expects, and `execve`.

use super::errno::{ENOENT, ENOEXEC};
use super::files::{Descriptor, Kind, Open};
use super::signal::{Action, SIGNALS};
use super::{Context, Cpu, Kernel, Process, State, Stop, Sys, Task};
use crate::agent::Agent;
use crate::elf::{Image, Segment};
use crate::error::Error;
use crate::frames::FRAME;
use crate::space::{Area, Backing, Fault, Protection, Space};
use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use towpath_isa::{Hart, Mode};

/// Where position-independent programs go.
const PROGRAM_BASE: u64 = 0x2a_aaaa_a000;
/// One past the main thread's stack.
const STACK_TOP: u64 = 0x3f_ffff_e000;
/// The page that returns from signal handlers.
pub(crate) const TRAMPOLINE: u64 = 0x3f_ffff_e000;
/// `li a7, 139; ecall`: `rt_sigreturn`.
const TRAMPOLINE_CODE: [u32; 2] = [0x08b0_0893, 0x0000_0073];
/// Room for arguments and environment.
const ARGUMENTS_MAX: usize = 1 << 20;
/// AT_HWCAP: the single-letter extensions I, M, A, F, D, C, V.
const HWCAP: u64 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 8 | 1 << 12 | 1 << 21;

/// A program read from the host.
pub(crate) struct Loaded {
    image: Image,
    file: Rc<File>,
}

fn round_up(value: u64) -> u64 {
    (value + FRAME - 1) & !(FRAME - 1)
}

impl Kernel {
    /// Reads and checks an executable.
    pub(crate) fn open_image(&self, path: &Path) -> Result<Loaded, Error> {
        let wrap = |error| Error::File { path: path.to_path_buf(), error };
        let data = std::fs::read(path).map_err(wrap)?;
        let image = Image::parse(&path.display().to_string(), &data)?;
        Ok(Loaded { image, file: Rc::new(File::open(path).map_err(wrap)?) })
    }

    /// Starts the first process.
    ///
    /// # Errors
    /// If the program cannot be loaded.
    pub fn start(
        &mut self,
        memory: &mut dyn Agent,
        program: &Path,
        arguments: &[String],
        environment: &[String],
    ) -> Result<(), Error> {
        let mut streams = Vec::new();
        for (kind, flags) in [(Kind::Input, 0), (Kind::Output { error: false }, 1), (Kind::Output { error: true }, 1)] {
            streams.push(Some(Descriptor { handle: Open::new(kind, flags), close_on_exec: false }));
        }
        let cwd = std::env::current_dir().map_or("/".into(), |p| p.to_string_lossy().into_owned());
        let pid = self.next_id;
        self.next_id += 1;
        let space = self.fresh_space(memory)?;
        self.processes.insert(
            pid,
            Process {
                parent: 0,
                space,
                fds: Rc::new(RefCell::new(streams)),
                cwd,
                program: program.to_path_buf(),
                actions: Rc::new(RefCell::new([Action::default(); SIGNALS])),
                pending: 0,
                exited: None,
                threads: 1,
                umask: 0o022,
                alarm: None,
                group: pid,
            },
        );
        let mut hart = Hart::new(0);
        let arguments: Vec<Vec<u8>> = std::iter::once(program.display().to_string())
            .chain(arguments.iter().cloned())
            .map(String::into_bytes)
            .collect();
        let environment: Vec<Vec<u8>> = environment.iter().map(|e| e.clone().into_bytes()).collect();
        let loaded = self.open_image(program)?;
        self.populate(memory, pid, &mut hart, &loaded, program, &arguments, &environment)?;
        let name = program.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        let mut task = new_task(pid, name);
        task.context = Context::save(&hart);
        self.tasks.insert(pid, task);
        self.make_ready(pid);
        Ok(())
    }

    pub(crate) fn fresh_space(&mut self, memory: &mut dyn Agent) -> Result<Rc<RefCell<Space>>, Error> {
        let mut pool =
            crate::space::Pool { agent: memory, frames: &mut self.frames, tables_changed: false, code_changed: false };
        match Space::new(&mut pool) {
            Ok(space) => Ok(Rc::new(RefCell::new(space))),
            Err(fault) => Err(self.fatal(fault)),
        }
    }

    /// The error of a fault that cannot be the program's.
    fn fatal(&self, fault: Fault) -> Error {
        match fault {
            Fault::Fatal(error) => error,
            _ => Error::OutOfMemory { what: "the program's image", size: self.frames.size() },
        }
    }

    /// Fills the (empty) space of `pid` with a program and sets the registers to its start.
    #[allow(clippy::too_many_arguments, reason = "the arguments of execve, and where they go")]
    fn populate(
        &mut self,
        memory: &mut dyn Agent,
        pid: u32,
        hart: &mut Hart,
        loaded: &Loaded,
        path: &Path,
        arguments: &[Vec<u8>],
        environment: &[Vec<u8>],
    ) -> Result<(), Error> {
        let interpreter = match &loaded.image.interpreter {
            None => None,
            Some(name) => Some(self.open_image(&self.host_path(name)).map_err(|error| match error {
                Error::File { path: missing, error } => Error::Program {
                    program: path.display().to_string(),
                    why: format!(
                        "its dynamic loader {} cannot be read ({error}); name the folder that holds the riscv64 \
                         libraries with --sysroot",
                        missing.display()
                    ),
                },
                other => other,
            })?),
        };
        let bias = if loaded.image.relocatable { PROGRAM_BASE } else { 0 };
        let program = path.display().to_string();
        self.map_image(memory, pid, loaded, bias, &program)?;
        let mut entry = loaded.image.entry.wrapping_add(bias);
        let mut base = 0;
        if let Some(interpreter) = &interpreter {
            let size = round_up(interpreter.image.end());
            base = self.processes[&pid].space.borrow().find_free(size, 1 << 16).unwrap_or(0);
            self.map_image(memory, pid, interpreter, base, &program)?;
            entry = interpreter.image.entry.wrapping_add(base);
        }
        let heap = round_up(loaded.image.end() + bias);
        let top = self.build_stack(memory, pid, loaded, bias, base, path, arguments, environment)?;
        let space = self.processes[&pid].space.clone();
        (space.borrow_mut().heap_start, space.borrow_mut().heap_end) = (heap, heap);
        Context::new().restore(hart);
        (hart.mode, hart.pc, hart.x[2]) = (Mode::User, entry, top);
        self.code_changed = true;
        self.tables_changed = true;
        Ok(())
    }

    fn map_image(
        &mut self,
        memory: &mut dyn Agent,
        pid: u32,
        loaded: &Loaded,
        bias: u64,
        program: &str,
    ) -> Result<(), Error> {
        let wrong = |why: String| Error::Program { program: program.to_string(), why };
        for s in &loaded.image.segments {
            let (start, end) = (s.address.wrapping_add(bias), (s.address + s.size).wrapping_add(bias));
            if start < FRAME || end > STACK_TOP - self.stack_size || start >= end {
                return Err(wrong(format!("the segment at {:#x} lies outside user memory", s.address)));
            }
            let result = self.with_space(memory, pid, |space, pool| {
                add_segment(space, s, bias, &loaded.file);
                zero_tail(space, pool, s, bias)
            });
            if let Err(fault) = result {
                return Err(match fault {
                    Fault::Fatal(error) => error,
                    _ => wrong(format!("the segment at {:#x} overlaps another page", s.address)),
                });
            }
        }
        Ok(())
    }

    /// Arguments, environment and auxiliary vector, as the psABI lays them out; returns the stack pointer.
    #[allow(clippy::too_many_arguments, reason = "everything the stack's contents depend on")]
    fn build_stack(
        &mut self,
        memory: &mut dyn Agent,
        pid: u32,
        loaded: &Loaded,
        bias: u64,
        interpreter_base: u64,
        path: &Path,
        arguments: &[Vec<u8>],
        environment: &[Vec<u8>],
    ) -> Result<u64, Error> {
        let size = self.stack_size;
        let space = self.processes[&pid].space.clone();
        let (rw, rx) = (
            Protection { read: true, write: true, execute: false },
            Protection { read: true, write: false, execute: true },
        );
        let area = |end, protection| Area { end, protection, backing: Backing::Anonymous, large: false };
        space.borrow_mut().add(STACK_TOP - size, area(STACK_TOP, rw));
        space.borrow_mut().add(TRAMPOLINE, area(TRAMPOLINE + FRAME, rw));
        let mut strings: Vec<u8> = Vec::new();
        let mut place = |bytes: &[u8]| {
            let at = strings.len() as u64;
            strings.extend_from_slice(bytes);
            strings.push(0);
            at
        };
        let arguments: Vec<u64> = arguments.iter().map(|a| place(a)).collect();
        let environment: Vec<u64> = environment.iter().map(|e| place(e)).collect();
        let name = place(path.as_os_str().as_encoded_bytes());
        let random = strings.len() as u64;
        for _ in 0..2 {
            strings.extend_from_slice(&self.rng.word().to_le_bytes());
        }
        if strings.len() > ARGUMENTS_MAX || strings.len() as u64 > size / 4 {
            let why = format!("{} bytes of arguments and environment do not fit the stack", strings.len());
            return Err(Error::Program { program: path.display().to_string(), why });
        }
        let text = (STACK_TOP - strings.len() as u64) & !15;
        let image = &loaded.image;
        let auxiliary: [(u64, u64); 16] = [
            (3, image.headers.wrapping_add(bias)),
            (4, 56),
            (5, image.header_count),
            (6, FRAME),
            (7, interpreter_base),
            (8, 0),
            (9, image.entry.wrapping_add(bias)),
            (11, 0),
            (12, 0),
            (13, 0),
            (14, 0),
            (16, HWCAP),
            (17, 100),
            (23, 0),
            (25, text + random),
            (31, text + name),
        ];
        let mut words = vec![arguments.len() as u64];
        words.extend(arguments.iter().map(|at| text + at));
        words.push(0);
        words.extend(environment.iter().map(|at| text + at));
        words.push(0);
        words.extend(auxiliary.iter().flat_map(|&(key, value)| [key, value]));
        words.extend([0, 0]);
        let top = (text - 8 * words.len() as u64) & !15;
        let block: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let code: Vec<u8> = TRAMPOLINE_CODE.iter().flat_map(|w| w.to_le_bytes()).collect();
        let result = self.with_space(memory, pid, |space, pool| {
            space.write(pool, text, &strings)?;
            space.write(pool, top, &block)?;
            space.write(pool, TRAMPOLINE, &code)?;
            space.protect(pool, TRAMPOLINE, TRAMPOLINE + FRAME, rx).map(|_| ())
        });
        result.map_err(|fault| self.fatal(fault))?;
        Ok(top)
    }

    fn string_list(&mut self, cpu: &mut Cpu<'_>, mut at: u64) -> Result<Vec<Vec<u8>>, Stop> {
        let mut list = Vec::new();
        while at != 0 {
            let pointer = self.read_u64(cpu, at)?;
            if pointer == 0 {
                break;
            }
            list.push(self.read_string(cpu, pointer)?);
            at += 8;
        }
        Ok(list)
    }

    /// `execve`.
    pub(crate) fn execve(&mut self, cpu: &mut Cpu<'_>, path: u64, argv: u64, envp: u64) -> Sys {
        let path = self.read_string(cpu, path)?;
        let mut arguments = self.string_list(cpu, argv)?;
        let environment = self.string_list(cpu, envp)?;
        let mut host = self.resolve(cpu.pid, None, &path)?;
        // An interpreted file names its interpreter in its first line.
        let start = std::fs::read(&host).map_err(|_| Stop::Errno(ENOENT))?;
        if start.starts_with(b"#!") {
            let line = start[2..].split(|&b| b == b'\n').next().unwrap_or_default();
            let words: Vec<Vec<u8>> =
                line.split(|&b| b == b' ').filter(|w| !w.is_empty()).map(<[u8]>::to_vec).collect();
            let Some(interpreter) = words.first().cloned() else { return Err(Stop::Errno(ENOEXEC)) };
            let rest = arguments.split_off(arguments.len().min(1));
            arguments = words.into_iter().chain(std::iter::once(path.clone())).chain(rest).collect();
            host = self.resolve(cpu.pid, None, &interpreter)?;
        }
        let loaded = match self.open_image(&host) {
            Ok(loaded) => loaded,
            Err(Error::File { error, .. }) => return Err(Stop::Errno(super::errno::from_host(&error))),
            Err(_) => return Err(Stop::Errno(ENOEXEC)),
        };
        self.end_other_threads(cpu.pid, cpu.tid);
        self.leave_space(cpu.memory, cpu.pid)?;
        let space = self.fresh_space(cpu.memory).map_err(Stop::Fatal)?;
        if let Some(process) = self.processes.get_mut(&cpu.pid) {
            process.space = space;
            process.program = host.clone();
            let own = process.fds.borrow().iter().map(|d| d.clone().filter(|d| !d.close_on_exec)).collect();
            process.fds = Rc::new(RefCell::new(own));
            let kept = process.actions.borrow().map(Action::after_exec);
            process.actions = Rc::new(RefCell::new(kept));
        }
        self.populate(cpu.memory, cpu.pid, cpu.hart, &loaded, &host, &arguments, &environment).map_err(Stop::Fatal)?;
        cpu.hart.csrs.satp = self.processes[&cpu.pid].space.borrow().satp();
        if let Some(task) = self.tasks.get_mut(&cpu.tid) {
            (task.clear_tid, task.alternate_stack) = (0, (0, 0));
            task.name = host.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        }
        self.wake(super::process::released(cpu.pid));
        self.wake_all();
        Err(Stop::NoReturn)
    }

    /// A path of the simulated system on the host: below the sysroot if it is there.
    pub(crate) fn host_path(&self, path: &str) -> PathBuf {
        if let (Some(root), true) = (&self.options.sysroot, path.starts_with('/')) {
            let inside = root.join(path.trim_start_matches('/'));
            if inside.exists() {
                return inside;
            }
        }
        PathBuf::from(path)
    }
}

pub(crate) fn new_task(pid: u32, name: String) -> Task {
    Task {
        pid,
        context: Context::new(),
        state: State::Ready,
        deadline: None,
        restart: false,
        woken: false,
        blocked_signals: 0,
        saved_mask: None,
        pending: 0,
        alternate_stack: (0, 0),
        clear_tid: 0,
        name,
    }
}

fn add_segment(space: &mut Space, s: &Segment, bias: u64, file: &Rc<File>) {
    let start = (s.address + bias) & !(FRAME - 1);
    let end = round_up(s.address + bias + s.size);
    let filled = round_up(s.address + bias + s.data.len() as u64).min(end);
    let protection = Protection { read: s.read, write: s.write, execute: s.execute };
    let offset = s.data.start as u64 - ((s.address + bias) - start).min(s.data.start as u64);
    let (start, offset) =
        if space.overlaps(start, start + FRAME) { (start + FRAME, offset + FRAME) } else { (start, offset) };
    if filled > start && !s.data.is_empty() {
        let backing = Backing::File(file.clone(), offset);
        space.add(start, Area { end: filled, protection, backing, large: false });
    }
    let zeros = if s.data.is_empty() { start } else { filled.max(start) };
    if end > zeros {
        space.add(zeros, Area { end, protection, backing: Backing::Anonymous, large: false });
    }
}

/// Clears the bytes after the data in its last page.
fn zero_tail(space: &mut Space, pool: &mut crate::space::Pool<'_>, s: &Segment, bias: u64) -> Result<(), Fault> {
    let from = s.address + bias + s.data.len() as u64;
    // To the end of the page, beyond the segment: dynamic loaders allocate there.
    let to = round_up(from);
    if s.write && !s.data.is_empty() && to > from {
        space.write(pool, from, &vec![0; (to - from) as usize])?;
    }
    Ok(())
}
