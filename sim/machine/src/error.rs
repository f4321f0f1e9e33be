//! What can go wrong with a board, a program or a run, each with what was tried and what to do.

use std::fmt;
use std::path::PathBuf;

/// An error of the simulated machine. Guest programs' own errors (a failed `open`) are not among them.
#[derive(Debug)]
pub enum Error {
    /// A file of the host could not be read or written.
    File {
        /// Which file.
        path: PathBuf,
        /// The host's reason.
        error: std::io::Error,
    },
    /// The board file is not well-formed or makes no sense.
    Board {
        /// Which board.
        board: String,
        /// What is wrong and what would be right.
        why: String,
    },
    /// The program is not a riscv64 ELF executable that can be loaded.
    Program {
        /// Which program.
        program: String,
        /// What is wrong.
        why: String,
    },
    /// Simulated physical memory is used up.
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Bytes of memory the board has.
        size: u64,
    },
    /// The program made a system call that the simulator does not provide.
    UnknownCall {
        /// Its number.
        number: u64,
        /// Its name, or "unknown".
        name: &'static str,
        /// Where it was made.
        pc: u64,
    },
    /// Every thread waits for another and no time-out is pending.
    Deadlock {
        /// What each waits for.
        threads: String,
    },
    /// A bare-metal hart trapped where nothing handles it.
    Stuck {
        /// The hart.
        hart: usize,
        /// What happened.
        why: String,
    },
    /// A checkpoint cannot be restored.
    Checkpoint(String),
    /// The debugger's connection failed.
    Debugger(String),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File { path, error } => write!(out, "{}: {error}", path.display()),
            Error::Board { board, why } => write!(out, "board {board}: {why}"),
            Error::Program { program, why } => write!(out, "{program}: {why}"),
            Error::OutOfMemory { what, size } => write!(
                out,
                "simulated memory is used up: no frame left for {what} ({} MiB in all); raise memory.size in the board",
                size >> 20
            ),
            Error::UnknownCall { number, name, pc } => write!(
                out,
                "the program made system call {name} (number {number}) at {pc:#x}, which the simulator does not provide"
            ),
            Error::Deadlock { threads } => write!(out, "every thread waits and nothing can wake one: {threads}"),
            Error::Stuck { hart, why } => write!(out, "hart {hart} cannot go on: {why}"),
            Error::Checkpoint(why) => write!(out, "checkpoint: {why}"),
            Error::Debugger(why) => write!(out, "debugger: {why}"),
        }
    }
}

impl std::error::Error for Error {}
