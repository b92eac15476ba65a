//! Calls per second and processor time of limiter-server, beside servers that decide nothing and
//! beside other rate limit services.
//!
//! Each contender is a process of its own. All contenders of a protocol receive the same closed
//! load, one after the other, in several rounds; the report has medians, and ratios to the first
//! contender of the protocol in the same round. Processor time is that of the server's process
//! and of the load generator, from `/proc`. The library's row decides in this process. With
//! `--require`, a documented bound that is not met or not measured is an error.

mod bounds;
mod contender;
mod envoy;
mod floor;
mod load;
mod messages;
mod process;
mod protocol;
mod report;
mod wrk;

use std::process::ExitCode;
use std::time::Duration;

use crate::bounds::CheckedBounds;
use crate::contender::{Contender, Programs, contenders};
use crate::load::Load;
use crate::report::Report;

/// The settings of a run, from the environment.
#[derive(Clone, Debug)]
struct Settings {
    rounds: usize,
    load: Load,
    /// The rows to measure, as `protocol: name` or a part of it, separated by `;`. Default: all.
    only: Vec<String>,
}

impl Settings {
    fn from_environment() -> Self {
        Self {
            rounds: number("GATEWAY_ROUNDS", 5),
            load: Load {
                callers: number("GATEWAY_CALLERS", 64),
                connections: number("GATEWAY_CONNECTIONS", 8),
                warm_up: Duration::from_millis(number("GATEWAY_WARM_UP_MS", 500)),
                sample: Duration::from_millis(number("GATEWAY_SAMPLE_MS", 2_000)),
            },
            only: std::env::var("GATEWAY_ONLY")
                .map(|only| only.split(';').map(str::to_owned).collect())
                .unwrap_or_default(),
        }
    }

    fn includes(&self, contender: &Contender<'_>) -> bool {
        let row = format!("{}: {}", contender.protocol.group(), contender.name);
        self.only.is_empty() || self.only.iter().any(|part| row.contains(part))
    }
}

fn number<N: std::str::FromStr>(name: &str, default: N) -> N {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is `{text}`; expected a number")),
        Err(_) => default,
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["floor", kind] => floor::serve(kind),
        [] => run(false),
        ["--require"] => run(true),
        _ => {
            eprintln!("expected no arguments, `--require`, or `floor grpc|http|limitador`");
            ExitCode::FAILURE
        }
    }
}

/// Measures all rows. With `requires_bounds`, a bound that is not met or not measured is an error.
fn run(requires_bounds: bool) -> ExitCode {
    let (settings, programs) = (Settings::from_environment(), Programs::from_environment());
    let mut report = Report::default();
    for round in 1..=settings.rounds {
        for contender in contenders(&programs).iter().filter(|row| settings.includes(row)) {
            let sample = contender.measure(&settings.load);
            eprintln!("round {round}: {}: {sample}", contender.name);
            report.add(contender.protocol, contender.name, sample);
        }
    }
    let bounds = CheckedBounds::of(&report);
    println!("{report}\n{bounds}");
    match requires_bounds && !bounds.are_met() {
        true => {
            eprintln!("a documented bound is not met or was not measured");
            ExitCode::FAILURE
        }
        false => ExitCode::SUCCESS,
    }
}
