//! Boards: readable TOML files that say what a machine consists of. Unknown keys are errors, so that a misspelt
//! parameter never silently keeps its default.

use crate::error::Error;
use serde::Deserialize;
use std::path::Path;

/// One machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
    /// What a person calls it.
    pub name: String,
    /// The processors.
    #[serde(default)]
    pub harts: Harts,
    /// Physical memory.
    #[serde(default)]
    pub memory: Memory,
    /// How Linux programs are run directly.
    #[serde(default)]
    pub program: Program,
    /// What timing cores and their memory are made of: a preset and what differs from it (see
    /// [`configuration`](crate::configuration)).
    #[serde(default)]
    pub timing: Option<toml::Table>,
}

/// The processors of a board.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Harts {
    /// How many.
    pub count: usize,
    /// Clock frequency in MHz.
    pub frequency_mhz: u64,
    /// Ticks of `time` a second.
    pub timebase_hz: u64,
    /// Which model runs by default.
    pub core: CoreKind,
}

/// The models of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoreKind {
    /// One instruction a cycle, no caches.
    Functional,
    /// Five stages in order, with caches and DRAM.
    InOrder,
    /// Out of order, with caches and DRAM.
    OutOfOrder,
}

/// Physical memory of a board.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// How much: a number with `KiB`, `MiB` or `GiB`.
    pub size: String,
    /// The first physical address.
    pub base: u64,
}

/// How Linux programs are run directly.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Program {
    /// Which frames a program gets: placement decides channels, banks and cache sets.
    pub frames: Placement,
    /// Seed of the frame allocator and of what `getrandom` returns.
    pub seed: u64,
    /// Use 2 MiB pages for large anonymous mappings.
    pub huge_pages: bool,
    /// Size of the main thread's stack: a number with `KiB`, `MiB` or `GiB`.
    pub stack: String,
    /// Time slice of a thread when more are ready than there are harts, in simulated microseconds.
    pub slice_us: u64,
}

/// Policies of the frame allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Ascending addresses.
    Contiguous,
    /// A permutation given by the seed, as on a machine that has run for long.
    Scattered,
}

impl Default for Harts {
    fn default() -> Harts {
        Harts { count: 1, frequency_mhz: 1000, timebase_hz: 10_000_000, core: CoreKind::Functional }
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { size: "512 MiB".into(), base: 0x8000_0000 }
    }
}

impl Default for Program {
    fn default() -> Program {
        Program { frames: Placement::Contiguous, seed: 1, huge_pages: false, stack: "8 MiB".into(), slice_us: 1000 }
    }
}

/// Bytes in a size such as `512 MiB`.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_at(text.trim().find(|c: char| !c.is_ascii_digit())?);
    let shift = match unit.trim() {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl Board {
    /// Reads and checks a board file.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be read, [`Error::Board`] if it is not well-formed or makes no sense.
    pub fn read(path: &Path) -> Result<Board, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::File { path: path.to_path_buf(), error })?;
        Board::parse(&path.display().to_string(), &text)
    }

    /// Checks the text of a board; `name` is used in errors.
    ///
    /// # Errors
    /// [`Error::Board`] if it is not well-formed or makes no sense.
    pub fn parse(name: &str, text: &str) -> Result<Board, Error> {
        let wrong = |why: String| Error::Board { board: name.to_string(), why };
        let board: Board = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        board.check().map_err(wrong)?;
        Ok(board)
    }

    fn check(&self) -> Result<(), String> {
        let (harts, memory) = (&self.harts, &self.memory);
        if !(1..=64).contains(&harts.count) {
            return Err(format!("harts.count is {}; it must be 1 to 64", harts.count));
        }
        if !(1..=20_000).contains(&harts.frequency_mhz) {
            return Err(format!("harts.frequency_mhz is {}; it must be 1 to 20000", harts.frequency_mhz));
        }
        if harts.timebase_hz == 0 || harts.timebase_hz > harts.frequency_mhz * 1_000_000 {
            return Err(format!("harts.timebase_hz is {}; it must be 1 up to the frequency", harts.timebase_hz));
        }
        let size = parse_size(&memory.size)
            .ok_or_else(|| format!("memory.size is {:?}; write a number with KiB, MiB or GiB", memory.size))?;
        if !(4 << 20..=256 << 30).contains(&size) || !size.is_multiple_of(2 << 20) {
            return Err(format!("memory.size is {}; it must be 4 MiB to 256 GiB, a multiple of 2 MiB", memory.size));
        }
        if !memory.base.is_multiple_of(2 << 20) || memory.base.checked_add(size).is_none_or(|end| end > 1 << 55) {
            return Err(format!("memory.base is {:#x}; it must be a multiple of 2 MiB below 2^55", memory.base));
        }
        let stack = parse_size(&self.program.stack)
            .ok_or_else(|| format!("program.stack is {:?}; write a number with KiB, MiB or GiB", self.program.stack))?;
        if !(64 << 10..=1 << 30).contains(&stack) || !stack.is_multiple_of(4096) {
            return Err(format!("program.stack is {}; it must be 64 KiB to 1 GiB, whole pages", self.program.stack));
        }
        if self.program.slice_us == 0 {
            return Err("program.slice_us is 0; a thread needs some time".into());
        }
        Ok(())
    }

    /// Bytes of physical memory.
    pub fn memory_size(&self) -> u64 {
        parse_size(&self.memory.size).unwrap_or(0)
    }

    /// Bytes of the main thread's stack.
    pub fn stack_size(&self) -> u64 {
        parse_size(&self.program.stack).unwrap_or(0)
    }
}
