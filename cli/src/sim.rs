//! `towpath sim`: run riscv64 programs on the simulated machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use towpath_machine::{Board, Console, CoreKind, Machine, Options, Outcome, Statistics, Timed};

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
    /// Say what each model times, what it ignores and how it was validated
    Doc,
    /// Verify the memory models and the timing cores: formulas, random tester, DRAM rules, litmus, planted errors
    Models(crate::sim_models::Args),
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
    /// Compare every load of timing cores with an oracle
    #[arg(long)]
    check: bool,
    /// Write a pipeline trace of core 0, which Konata opens, to this file (timing cores)
    #[arg(long)]
    pipeline: Option<PathBuf>,
    /// How many instructions the pipeline trace holds
    #[arg(long, default_value_t = 100_000)]
    pipeline_instructions: u64,
    /// Print simulated time and speed now and then
    #[arg(long)]
    progress: bool,
}

/// Models of a core.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Core {
    /// One instruction a cycle, no caches
    Functional,
    /// Five stages in order, with caches and DRAM
    Inorder,
    /// Out of order, with caches and DRAM
    Ooo,
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<ExitCode, String> {
    match args.command {
        Command::Run(run) => start(&run),
        Command::Verify(args) => crate::sim_verify::run(&args),
        Command::Doc => {
            print!("{}", towpath_machine::doc::text());
            Ok(ExitCode::SUCCESS)
        }
        Command::Models(args) => crate::sim_models::run(&args),
    }
}

fn start(args: &Run) -> Result<ExitCode, String> {
    let board = Board::read(&args.board).map_err(|e| e.to_string())?;
    let kind = match args.core {
        None => board.harts.core,
        Some(Core::Functional) => CoreKind::Functional,
        Some(Core::Inorder) => CoreKind::InOrder,
        Some(Core::Ooo) => CoreKind::OutOfOrder,
    };
    if kind != CoreKind::Functional {
        return start_timed(args, &board, kind);
    }
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

/// Runs a Linux program on timing cores.
fn start_timed(args: &Run, board: &Board, kind: CoreKind) -> Result<ExitCode, String> {
    if args.bare {
        return Err("--bare runs on the functional core only (--core functional)".into());
    }
    let options = Options { sysroot: Some(args.sysroot.clone()), trace: args.trace_calls };
    let program = (args.program.as_path(), &args.arguments[..], &args.environment[..]);
    let mut machine =
        Timed::with_program(board, kind, args.check, program, options, Console::host()).map_err(|e| e.to_string())?;
    if args.pipeline.is_some() {
        machine.trace(args.pipeline_instructions);
    }
    let limit = args.max_instructions.unwrap_or(u64::MAX);
    let begin = Instant::now();
    let outcome = loop {
        let step = (PROGRESS_EVERY / 20).min(limit.saturating_sub(machine.instructions()));
        let outcome = machine.run(step).map_err(|e| e.to_string())?;
        if outcome != Outcome::Budget || machine.instructions() >= limit {
            break outcome;
        }
        if args.progress {
            let millions = machine.instructions() as f64 / 1e6;
            let (ms, speed) = (machine.cluster().now() as f64 / 1e9, millions / begin.elapsed().as_secs_f64());
            eprintln!("{millions:.0} M instructions, {ms:.3} simulated ms, {speed:.1} M/s");
        }
    };
    if let Some(path) = &args.pipeline {
        let text = machine.cluster().trace_text(0).unwrap_or_default();
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    write_statistics(args, &machine.statistics())?;
    match outcome {
        Outcome::Exited(status) => Ok(ExitCode::from(status as u8)),
        Outcome::Budget => Err(format!("stopped after {} instructions (--max-instructions)", machine.instructions())),
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
