//! `towpath sim models`: what shows that the memory models and the timing cores are right: formulas, random tester,
//! DRAM rules, litmus tests, and planted errors that must be caught.

use std::process::ExitCode;
use towpath_core::timing::{CoreConfig, StoreOrder, litmus::litmus};
use towpath_mem::{Config, Mutation, validate, verify};

/// Arguments of `towpath sim models`.
#[derive(clap::Args)]
pub struct Args {
    /// Seeds of each random test
    #[arg(long, default_value_t = 4)]
    seeds: u64,
    /// Operations of each random run of the memory
    #[arg(long, default_value_t = 100_000)]
    operations: u64,
    /// Runs of each litmus test
    #[arg(long, default_value_t = 200)]
    litmus: u64,
    /// Leave out the planted errors
    #[arg(long)]
    no_mutations: bool,
}

/// Runs everything and prints a line each; the exit code says whether all is well.
pub fn run(args: &Args) -> Result<ExitCode, String> {
    let mut wrong = formulas();
    wrong += random(args);
    wrong += dram(args);
    wrong += litmus_tests(args)?;
    if !args.no_mutations {
        wrong += mutations();
    }
    println!("{}", if wrong == 0 { "all is well".to_string() } else { format!("{wrong} things are wrong") });
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn formulas() -> u32 {
    let mut wrong = 0;
    for m in validate::latencies().into_iter().chain(validate::bandwidths()).chain(validate::caches()) {
        wrong += u32::from(!m.agrees());
        let verdict = if m.agrees() { "ok   " } else { "WRONG" };
        println!(
            "{verdict} {:<46} {:8.2} (formula {:.2} +- {:.2}) {}",
            m.name, m.value, m.expected, m.tolerance, m.unit
        );
    }
    wrong
}

fn random(args: &Args) -> u32 {
    let (mut wrong, mut operations, mut checked, mut commands) = (0, 0, 0, 0);
    let mut met: Vec<(&str, u64)> = Vec::new();
    for seed in 0..args.seeds {
        for cores in [2, 8] {
            let outcome = verify::random_test(&verify::small(cores), seed, args.operations, Mutation::None);
            for error in &outcome.errors {
                println!("WRONG random tester, {cores} cores, seed {seed}: {error}");
                wrong += 1;
            }
            operations += outcome.operations;
            checked += outcome.checked;
            commands += outcome.commands;
            let report = verify::coverage_report(&outcome.coverage);
            if met.is_empty() {
                met = report;
            } else {
                met.iter_mut().zip(report).for_each(|(sum, (_, n))| sum.1 += n);
            }
        }
    }
    let covered = met.iter().filter(|(_, n)| *n > 0).count();
    println!(
        "ok    random tester: {operations} operations, {checked} loads checked, {commands} DRAM commands checked, \
         {covered} of {} transitions met",
        met.len()
    );
    for (name, n) in &met {
        println!("        {n:>9} {name}");
    }
    wrong
}

fn dram(args: &Args) -> u32 {
    let mut wrong = 0;
    for (name, config) in [("table1", Config::table1().dram), ("rocket", Config::rocket().dram)] {
        let mut commands = 0;
        for seed in 0..args.seeds {
            let outcome = verify::dram_test(&config, seed, args.operations, Mutation::None);
            commands += outcome.commands;
            for error in &outcome.errors {
                println!("WRONG DRAM of {name}, seed {seed}: {error}");
                wrong += 1;
            }
        }
        println!("ok    DRAM of {name}: {commands} commands broke no rule");
    }
    wrong
}

fn litmus_tests(args: &Args) -> Result<u32, String> {
    let mut wrong = 0;
    for (name, core) in [("in-order", CoreConfig::rocket()), ("out-of-order", CoreConfig::table1())] {
        for store_order in [StoreOrder::OneInFlight, StoreOrder::Ztso, StoreOrder::Rvwmo] {
            for shown in litmus(&CoreConfig { store_order, ..core }, args.litmus, 1)? {
                let bad = shown.seen > 0 && !shown.allowed;
                wrong += u32::from(bad);
                println!(
                    "{} litmus {:<12} {name}, {store_order:?}: {} of {} runs, {}",
                    if bad { "WRONG" } else { "ok   " },
                    shown.name,
                    shown.seen,
                    shown.runs,
                    if shown.allowed { "allowed" } else { "forbidden" }
                );
            }
        }
    }
    Ok(wrong)
}

fn mutations() -> u32 {
    // Some planted errors end in an assertion of the models; its message is what catches them.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut wrong = 0;
    for &mutation in Mutation::ALL {
        match verify::catches(mutation, 12) {
            Some(how) => {
                println!("ok    caught: {} ({})", mutation.describe(), how.chars().take(70).collect::<String>())
            }
            None => {
                println!("WRONG not caught: {}", mutation.describe());
                wrong += 1;
            }
        }
    }
    std::panic::set_hook(hook);
    wrong
}
