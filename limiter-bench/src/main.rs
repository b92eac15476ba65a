//! How fast decisions are, beside others' on the same machine.
//!
//! `cargo xtask bench` builds it with optimisations and runs it. Contenders take turns in one
//! process, on one server that the benchmark starts; each turn is a fresh start with a warm-up.
//! What is told are medians over the turns, and medians of the ratios within a round of turns.
//! Nothing here is a gate: it prints.

mod contender;
mod exact;
mod keys;
mod latency;
mod machine;
mod memory;
mod options;
mod report;
mod sample;
mod stage;
mod targets;
mod usage;
mod workload;

use std::process::ExitCode;

use options::Options;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // The same program is what it measures in processes of their own.
    match args.split_first() {
        Some((role, rest)) if role == exact::ROLE => exact::child(rest),
        Some((role, rest)) if role == memory::ROLE => memory::child(rest),
        _ => match Options::parse(&args).and_then(|options| options.run()) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("{message}\n{}", options::USAGE);
                return ExitCode::FAILURE;
            }
        },
    }
    ExitCode::SUCCESS
}
