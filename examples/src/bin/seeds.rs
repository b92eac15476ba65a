//! Plays three well-known sequences of calls in real time, on fresh keys, and prints one line for
//! each: its name, and `P` (passed) or `D` (denied) a call.
//!
//! ```sh
//! cargo run -q -p examples --bin seeds
//! cargo run -q -p examples --bin seeds -- --store redis://127.0.0.1/
//! ```
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example prints its results"
)]

use std::env;
use std::process::{self, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use examples::{Failure, MEMORY};
use limiter_core::{ConfigError, Key, Limiter, Policy};

const USAGE: &str = "usage: seeds [--store memory|redis://HOST:PORT/]";

/// Calls in bursts, each after a pause.
struct Scenario {
    name: &'static str,
    policy: Policy,
    bursts: &'static [Burst],
}

struct Burst {
    pause_seconds: u64,
    calls: usize,
}

const fn at_once(calls: usize) -> Burst {
    after(0, calls)
}

const fn after(pause_seconds: u64, calls: usize) -> Burst {
    Burst { pause_seconds, calls }
}

fn scenarios() -> Result<[Scenario; 3], ConfigError> {
    // Longer than a busy machine needs, because a late reply would not decide the call.
    let patience = Duration::from_secs(5);
    Ok([
        Scenario {
            name: "funnel",
            policy: Policy::funnel("funnel")
                .capacity(10)
                .rate(2)
                .deadline(patience)
                .build()?,
            bursts: const { &[at_once(14), after(2, 6)] },
        },
        Scenario {
            name: "window",
            policy: Policy::sliding_window("window")
                .limit(5)
                .window("60s")
                .deadline(patience)
                .build()?,
            bursts: const { &[at_once(20)] },
        },
        Scenario {
            name: "token",
            policy: Policy::token_bucket("token")
                .capacity(5)
                .rate(5)
                .deadline(patience)
                .build()?,
            bursts: const { &[at_once(10), after(1, 10)] },
        },
    ])
}

impl Scenario {
    async fn play(&self, limits: &Limiter, key: &Key<'_>) -> Result<String, Failure> {
        let mut answers = String::new();
        for burst in self.bursts {
            if burst.pause_seconds > 0 {
                tokio::time::sleep(Duration::from_secs(burst.pause_seconds)).await;
            }
            for _ in 0..burst.calls {
                let decision = limits.check(&self.policy, key).await?;
                answers.push(if decision.is_allowed() { 'P' } else { 'D' });
            }
        }
        Ok(answers)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let store = match chosen_store(env::args().skip(1)) {
        Ok(store) => store,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    examples::ended(play_all(&store).await)
}

async fn play_all(store: &str) -> Result<(), Failure> {
    let limits = examples::limiter(store, "seeds").await?;
    // The time and the process id distinguish this run from other runs with the same store.
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let key = Key::from("run:").part(run).text(":").part(process::id());
    for scenario in scenarios()? {
        println!("{}: {}", scenario.name, scenario.play(&limits, &key).await?);
    }
    Ok(())
}

/// Returns the store that the arguments name.
fn chosen_store(mut arguments: impl Iterator<Item = String>) -> Result<String, String> {
    let mut store = None;
    while let Some(argument) = arguments.next() {
        let value = match argument.strip_prefix("--store") {
            Some("") => arguments.next().ok_or("--store needs a value")?,
            Some(value) => value
                .strip_prefix('=')
                .ok_or(format!("unknown argument `{argument}`"))?
                .to_owned(),
            None => return Err(format!("unknown argument `{argument}`")),
        };
        if value != MEMORY && !value.starts_with("redis://") {
            return Err(format!(
                "--store is `{value}`, expected `memory` or a URL that starts with redis://"
            ));
        }
        if store.replace(value).is_some() {
            return Err("--store is given twice".to_owned());
        }
    }
    Ok(store.unwrap_or_else(|| MEMORY.to_owned()))
}
