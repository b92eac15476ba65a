//! Customers of two tiers, each with a policy of its own, of which one is changed while customers are being served.
//!
//! ```sh
//! cargo run -p examples --bin tiers
//! REDIS_URL=redis://127.0.0.1/ cargo run -p examples --bin tiers    # a change is the next call's, on every replica that has it
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks")]

use std::fmt;
use std::process::ExitCode;
use std::sync::{PoisonError, RwLock};

use examples::Failure;
use limiter_core::{ConfigError, Limiter, Policy, Rejection};

#[derive(Clone, Copy, Debug)]
enum Tier {
    Free,
    Pro,
}

struct Customer {
    name: &'static str,
    tier: Tier,
}

/// The policy of each tier. A policy travels with each call, so whoever replaces it has changed it.
struct Tiers {
    free: RwLock<Policy>,
    pro: RwLock<Policy>,
}

impl Tiers {
    fn new() -> Result<Self, ConfigError> {
        Ok(Self {
            free: RwLock::new(free(3)?),
            pro: RwLock::new(Policy::token_bucket("pro").capacity(6).rate("6/min").build()?),
        })
    }

    fn place(&self, tier: Tier) -> &RwLock<Policy> {
        match tier {
            Tier::Free => &self.free,
            Tier::Pro => &self.pro,
        }
    }

    fn policy(&self, tier: Tier) -> Policy {
        self.place(tier)
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Under the same name, so that what was used still counts.
    fn change(&self, tier: Tier, policy: Policy) {
        *self.place(tier).write().unwrap_or_else(PoisonError::into_inner) = policy;
    }
}

fn free(a_minute: u64) -> Result<Policy, ConfigError> {
    Policy::sliding_window("free")
        .limit(a_minute)
        .window("1m")
        .build()
}

impl fmt::Display for Customer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.name, self.tier)
    }
}

/// How many of these calls are admitted.
async fn calls(
    limits: &Limiter,
    tiers: &Tiers,
    customer: &Customer,
    count: usize,
) -> Result<usize, Rejection> {
    let mut admitted = 0;
    for _ in 0..count {
        let policy = tiers.policy(customer.tier);
        admitted += usize::from(limits.check(&policy, customer.name).await?.is_allowed());
    }
    println!("  {customer}: {admitted} of {count} calls admitted");
    Ok(admitted)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", examples::describe(&failure));
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let limits = examples::limiter(&examples::store(), "tiers").await?;
    let tiers = Tiers::new()?;
    let [ann, bob] = [("ann", Tier::Free), ("bob", Tier::Pro)].map(|(name, tier)| Customer { name, tier });
    // Whatever an earlier run has left in Redis.
    for customer in [&ann, &bob] {
        limits.reset(&tiers.policy(customer.tier), customer.name).await?;
    }

    println!("{}", tiers.policy(Tier::Free));
    println!("{}", tiers.policy(Tier::Pro));
    assert_eq!(calls(&limits, &tiers, &ann, 8).await?, 3);
    assert_eq!(calls(&limits, &tiers, &bob, 8).await?, 6);

    tiers.change(Tier::Free, free(5)?);
    println!(
        "\nFrom now on {}: the three that she used still count",
        tiers.policy(Tier::Free)
    );
    assert_eq!(calls(&limits, &tiers, &ann, 8).await?, 2);

    tiers.change(Tier::Free, free(2)?);
    println!("\nBack, and further: {}", tiers.policy(Tier::Free));
    assert_eq!(calls(&limits, &tiers, &ann, 8).await?, 0);

    let upgraded = Customer {
        tier: Tier::Pro,
        ..ann
    };
    println!("\nShe pays, and has a limit of the other tier");
    assert_eq!(calls(&limits, &tiers, &upgraded, 8).await?, 6);
    Ok(())
}
