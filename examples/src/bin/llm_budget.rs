//! Tokens of a language model: each tenant has a budget by its tier. A request first takes its
//! estimate, and is charged the actual number of tokens when the answer has been streamed.
//!
//! ```sh
//! cargo run -p examples --bin llm_budget
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::process::ExitCode;
use std::time::Duration;

use examples::Failure;
use limiter_core::{ConfigError, Limiter, ManualClock, Policy, Rejection};

#[derive(Clone, Copy, Debug)]
enum Tier {
    Free,
    Pro,
}

#[derive(Debug)]
struct Tenant {
    name: &'static str,
    tier: Tier,
}

/// The tokens of each tier.
struct Budgets {
    free: Policy,
    pro: Policy,
}

impl Budgets {
    fn new() -> Result<Self, ConfigError> {
        let tokens = |name: &str| Policy::token_bucket(format!("tokens:{name}"));
        Ok(Self {
            free: tokens("free").capacity(2_000).rate("1_000/min").build()?,
            pro: tokens("pro").capacity(40_000).rate("20_000/min").build()?,
        })
    }

    fn of(&self, tenant: &Tenant) -> &Policy {
        match tenant.tier {
            Tier::Free => &self.free,
            Tier::Pro => &self.pro,
        }
    }
}

struct Prompt {
    text: &'static str,
    /// Maximum number of tokens of the answer.
    max_tokens: u64,
}

impl Prompt {
    /// Upper bound of the cost: the tokens of the prompt, four characters each, and the longest
    /// answer.
    fn estimate(&self) -> u64 {
        let own = self.text.len().div_ceil(4);
        self.max_tokens + u64::try_from(own).unwrap_or(u64::MAX)
    }
}

/// Simulates a streaming model: each part of the answer reports its number of tokens.
struct Answer(Vec<u64>);

impl Answer {
    async fn next(&mut self) -> Option<u64> {
        tokio::task::yield_now().await;
        self.0.pop()
    }
}

/// Streams the answer to a prompt and returns its number of tokens. A client that disconnects
/// during the stream leaves the reservation at its estimate.
async fn complete(
    limits: &Limiter,
    budgets: &Budgets,
    tenant: &Tenant,
    prompt: &Prompt,
    mut answer: Answer,
) -> Result<u64, Rejection> {
    let estimate = prompt.estimate();
    let reservation = limits
        .reserve(budgets.of(tenant), tenant.name)
        .cost(estimate)
        .await?;
    let mut used = estimate - prompt.max_tokens;
    while let Some(tokens) = answer.next().await {
        used += tokens;
    }
    reservation.settle(used).await?;
    Ok(used)
}

#[tokio::main]
async fn main() -> ExitCode {
    examples::ended(run().await)
}

async fn run() -> Result<(), Failure> {
    // A clock that the example advances, so that a minute takes no time. `examples::limiter` uses
    // the system's clock, or Redis.
    let clock = ManualClock::new();
    let limits = Limiter::in_process().clock(&clock).build();
    let budgets = Budgets::new()?;
    let [ann, acme] = [("ann", Tier::Free), ("acme", Tier::Pro)].map(|(name, tier)| Tenant { name, tier });
    let prompt = Prompt {
        text: "Write a limerick about a leaky bucket.",
        max_tokens: 1_500,
    };
    let left = async |tenant: &Tenant| {
        let peek = limits.peek(budgets.of(tenant), tenant.name).await?;
        Ok::<u64, Rejection>(peek.remaining())
    };

    println!(
        "{ann:?} has {} tokens, {acme:?} has {}",
        left(&ann).await?,
        left(&acme).await?
    );
    let used = complete(&limits, &budgets, &ann, &prompt, Answer(vec![60, 30])).await?;
    println!(
        "ann was answered: {} tokens reserved, {used} used, {} left",
        prompt.estimate(),
        left(&ann).await?
    );
    assert_eq!((used, left(&ann).await?), (100, 1_900));

    // A model that exceeds its bound: the actual usage is charged, even beyond the remaining
    // budget.
    let used = complete(&limits, &budgets, &ann, &prompt, Answer(vec![2_000, 390])).await?;
    println!("ann was answered: {used} used, {} left", left(&ann).await?);
    assert_eq!((used, left(&ann).await?), (2_400, 0));

    let refused = complete(&limits, &budgets, &ann, &prompt, Answer(vec![])).await;
    let Err(rejection @ Rejection::Limited(_)) = refused else {
        return Err("ann owes 500 tokens, and was answered".into());
    };
    let wait = rejection.retry_after().unwrap_or_default();
    println!(
        "ann owes 500 tokens, and may ask for {} again after {wait:?}",
        prompt.estimate()
    );
    // 500 + 1,510 tokens, at 1,000 a minute.
    assert_eq!(wait, Duration::from_micros(120_600_000));

    // Other tenants do not notice.
    let used = complete(&limits, &budgets, &acme, &prompt, Answer(vec![900])).await?;
    println!("acme was answered: {used} used, {} left", left(&acme).await?);
    assert_eq!(left(&acme).await?, 40_000 - 910);

    clock.advance(wait);
    let used = complete(&limits, &budgets, &ann, &prompt, Answer(vec![40])).await?;
    println!("ann was answered: {used} used, {} left", left(&ann).await?);
    assert_eq!(left(&ann).await?, 1_510 - 50);

    // A cancelled request is not settled: it stays charged at its estimate.
    let reservation = limits.reserve(budgets.of(&ann), ann.name).cost(1_000).await?;
    drop(reservation);
    println!("ann hung up: {} left", left(&ann).await?);
    assert_eq!(left(&ann).await?, 460);

    let too_long = Prompt {
        text: "All of it, please.",
        max_tokens: 10_000,
    };
    match complete(&limits, &budgets, &ann, &too_long, Answer(vec![])).await {
        Err(never @ Rejection::NeverFits { .. }) => println!("ann asked for too much: {never}"),
        other => return Err(format!("more than the tier has was answered: {other:?}").into()),
    }
    Ok(())
}
