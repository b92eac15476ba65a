//! Compares the speed of rate limiters on the same machine.
//!
//! `cargo xtask bench` builds it with optimisations and runs it. Contenders take turns in one
//! process, on one server that the benchmark starts; each turn begins with empty state and a warm-
//! up. The figures are medians over the turns, and medians of the ratios within a round of turns.
//! The benchmark only prints: it fails no build.

mod contender;
mod environment;
mod exact;
mod keys;
mod latency;
mod machine;
mod memory;
mod options;
mod report;
mod sample;
mod scaling;
mod series;
mod targets;
mod usage;
mod workload;

use std::process::ExitCode;

use options::Options;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Measurements in separate processes run the same program.
    match args.split_first() {
        Some((role, rest)) if role == exact::ROLE => exact::child(rest),
        Some((role, rest)) if role == memory::ROLE => memory::child(rest),
        Some((role, rest)) if role == scaling::ROLE => scaling::child(rest),
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
