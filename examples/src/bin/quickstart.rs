//! An annotated function, and a call of the limiter without an annotation.
//!
//! ```sh
//! cargo run -p examples --bin quickstart                                      # decides in this process
//! REDIS_URL=redis://127.0.0.1/ cargo run -p examples --bin quickstart         # decides in Redis
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::process::ExitCode;
use std::time::Duration;

use examples::Failure;
use limiter_core::{Policy, Rejection, token_limiter};

/// Three greetings at once for each user, and one more every second. Further calls run `busy`.
#[token_limiter(name = "greet", capacity = 3, rate = 1, key = "user:{user}", fallback = busy, pass_rejection)]
async fn greet(user: &str) -> String {
    format!("hello, {user}")
}

fn busy(rejection: Rejection) -> String {
    match rejection.retry_after() {
        Some(wait) => format!("denied, the next is admitted in {wait:.1?}"),
        None => format!("denied: {rejection}"),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    examples::ended(run().await)
}

async fn run() -> Result<(), Failure> {
    let store = examples::store();
    let limits = examples::limiter(&store, "quickstart").await?;
    limiter_core::annotations::install(limits.clone())?;
    limiter_core::annotations::verify_annotations()?;
    if store == examples::MEMORY {
        println!("Decided in this process. Set REDIS_URL, and every replica shares the limits.");
    } else {
        println!("Decided in Redis: start a second one now, and they share the limits.");
    }

    println!("\n#[token_limiter(capacity = 3, rate = 1, key = \"user:{{user}}\")]");
    for call in 1..=5 {
        println!("  ann, call {call}: {}", greet("ann").await);
    }
    println!("  bob, call 1: {}", greet("bob").await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    println!("  ann, a second later: {}", greet("ann").await);

    println!("\nBy hand: limits.check(&policy, &key), at most 2 in any minute");
    let search = Policy::sliding_window("search").limit(2).window("1m").build()?;
    for call in 1..=3 {
        let decision = limits.check(&search, "ann").await?;
        match decision.retry_after() {
            None => println!("  search {call}: allowed, {} left", decision.remaining()),
            Some(wait) => println!("  search {call}: denied, the next is admitted in {wait:.1?}"),
        }
    }
    Ok(())
}
