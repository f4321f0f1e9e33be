//! `towpath sim`: run riscv64 programs on the simulated machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use towpath_machine::{Board, Console, Machine, Options, Outcome, Statistics};

/// Instructions between two progress lines.
const PROGRESS_EVERY: u64 = 200_000_000;

/// Arguments of `towpath sim`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Run a riscv64 Linux program, or a bare-metal image with --bare
    Run(Box<Run>),
    /// Compare the simulated instructions with QEMU on random programs
    Verify(crate::sim_verify::Args),
}

/// Arguments of `towpath sim run`.
#[derive(clap::Args)]
pub struct Run {
    /// The machine, a file such as sim/boards/functional.toml
    board: PathBuf,
    /// The program: a riscv64 ELF file
    program: PathBuf,
    /// Arguments of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// The model of the cores; the board's own if not given
    #[arg(long, value_enum)]
    core: Option<Core>,
    /// Write statistics as JSON to this file
    #[arg(long)]
    stats: Option<PathBuf>,
    /// Write statistics as text to this file; `-` is standard error
    #[arg(long)]
    stats_text: Option<PathBuf>,
    /// The folder that holds the riscv64 dynamic loader and libraries
    #[arg(long, default_value = "/usr/riscv64-linux-gnu")]
    sysroot: PathBuf,
    /// Set a variable of the program's environment, NAME=VALUE
    #[arg(long = "env", value_name = "NAME=VALUE")]
    environment: Vec<String>,
    /// Load the program as a bare-metal image that starts in M-mode
    #[arg(long)]
    bare: bool,
    /// Stop after this many instructions
    #[arg(long)]
    max_instructions: Option<u64>,
    /// Print each system call
    #[arg(long)]
    trace_calls: bool,
    /// Print simulated time and speed now and then
    #[arg(long)]
    progress: bool,
}

/// Models of a core.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Core {
    /// One instruction a cycle, no caches
    Functional,
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<ExitCode, String> {
    match args.command {
        Command::Run(run) => start(&run),
        Command::Verify(args) => crate::sim_verify::run(&args),
    }
}

fn start(args: &Run) -> Result<ExitCode, String> {
    let board = Board::read(&args.board).map_err(|e| e.to_string())?;
    let Core::Functional = args.core.unwrap_or(Core::Functional);
    let mut machine = load(args, &board)?;
    let outcome = advance(args, &mut machine)?;
    if args.bare {
        let (output, _) = machine.output();
        print!("{}", String::from_utf8_lossy(output));
    }
    write_statistics(args, &machine.statistics())?;
    match outcome {
        Outcome::Exited(status) => Ok(ExitCode::from(status as u8)),
        Outcome::Budget => Err(format!(
            "stopped after {} instructions; the program had not ended (--max-instructions)",
            machine.instructions()
        )),
    }
}

fn load(args: &Run, board: &Board) -> Result<Machine, String> {
    if args.bare {
        let data = std::fs::read(&args.program).map_err(|e| format!("{}: {e}", args.program.display()))?;
        return Machine::bare(board, &args.program.display().to_string(), &data).map_err(|e| e.to_string());
    }
    if let Some(wrong) = args.environment.iter().find(|e| !e.contains('=')) {
        return Err(format!("--env {wrong}: write NAME=VALUE"));
    }
    let options = Options { sysroot: Some(args.sysroot.clone()), trace: args.trace_calls };
    Machine::with_program(board, &args.program, &args.arguments, &args.environment, options, Console::host())
        .map_err(|e| e.to_string())
}

fn advance(args: &Run, machine: &mut Machine) -> Result<Outcome, String> {
    let limit = args.max_instructions.unwrap_or(u64::MAX);
    let begin = Instant::now();
    loop {
        let step = PROGRESS_EVERY.min(limit - machine.instructions());
        let outcome = machine.run(step).map_err(|e| e.to_string())?;
        if outcome != Outcome::Budget || machine.instructions() >= limit {
            return Ok(outcome);
        }
        if args.progress {
            let seconds = begin.elapsed().as_secs_f64();
            let millions = machine.instructions() as f64 / 1e6;
            eprintln!("{millions:.0} M instructions, {} cycles, {:.1} M/s", machine.cycles(), millions / seconds);
        }
    }
}

fn write_statistics(args: &Run, statistics: &Statistics) -> Result<(), String> {
    if let Some(path) = &args.stats {
        std::fs::write(path, statistics.json()).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    match &args.stats_text {
        Some(path) if path.as_os_str() == "-" => eprint!("{}", statistics.text()),
        Some(path) => std::fs::write(path, statistics.text()).map_err(|e| format!("{}: {e}", path.display()))?,
        None => {}
    }
    Ok(())
}
