//! Calls of annotated functions, and the same checks written by hand.

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group};
use limiter_core::{Key, Limiter, Policy, Rejection, token_limiter};
use limiter_instructions::DECISIONS;

use crate::setup::{self, ample, ready};

const USER: &str = "user-0000000";

#[token_limiter(name = "no-key", capacity = 100_000_000, rate = "1/30s")]
async fn without_key(user: &str) -> Result<usize, Rejection> {
    Ok(user.len())
}

#[token_limiter(
    name = "formatted",
    capacity = 100_000_000,
    rate = "1/30s",
    key = "user:{user}"
)]
async fn with_formatted_key(user: &str) -> Result<usize, Rejection> {
    Ok(user.len())
}

#[token_limiter(name = "borrowed", capacity = 100_000_000, rate = "1/30s", key = "{user}")]
async fn with_borrowed_key(user: &str) -> Result<usize, Rejection> {
    Ok(user.len())
}

#[derive(Debug)]
pub(crate) struct ByHand {
    limiter: Limiter,
    policy: Policy,
}

impl ByHand {
    fn new() -> Self {
        Self {
            limiter: setup::in_process(),
            policy: ample("by-hand"),
        }
    }

    async fn without_key(&self, user: &str) -> Result<usize, Rejection> {
        self.limiter.check(&self.policy, "").await?.require()?;
        Ok(user.len())
    }

    async fn with_formatted_key(&self, user: &str) -> Result<usize, Rejection> {
        let key = format!("user:{user}");
        self.limiter.check(&self.policy, key).await?.require()?;
        Ok(user.len())
    }

    /// Builds the same key as the attribute.
    async fn with_escaped_key(&self, user: &str) -> Result<usize, Rejection> {
        let key = Key::from("user:").part(user);
        self.limiter.check(&self.policy, key).await?.require()?;
        Ok(user.len())
    }

    async fn with_borrowed_key(&self, user: &str) -> Result<usize, Rejection> {
        self.limiter.check(&self.policy, user).await?.require()?;
        Ok(user.len())
    }
}

/// Installs the limiter of the annotated functions, and makes two calls.
fn install(call: impl Fn()) {
    limiter_core::annotations::install(setup::in_process())
        .expect("each function is measured in its own process");
    call();
    call();
}

fn prepare(call: impl Fn(&ByHand)) -> ByHand {
    let by_hand = ByHand::new();
    call(&by_hand);
    call(&by_hand);
    by_hand
}

#[inline]
fn call(future: impl Future<Output = Result<usize, Rejection>>) {
    assert!(black_box(ready(future)).is_ok());
}

#[inline]
fn repeat(call: impl Fn(&str)) {
    (0..DECISIONS).for_each(|_| call(black_box(USER)));
}

#[library_benchmark]
#[bench::warm(install(|| call(without_key(USER))))]
fn no_key((): ()) {
    repeat(|user| call(without_key(user)));
}

#[library_benchmark]
#[bench::warm(prepare(|limits| call(limits.without_key(USER))))]
fn no_key_by_hand(limits: ByHand) -> ByHand {
    repeat(|user| call(limits.without_key(user)));
    limits
}

#[library_benchmark]
#[bench::warm(install(|| call(with_formatted_key(USER))))]
fn formatted_key((): ()) {
    repeat(|user| call(with_formatted_key(user)));
}

#[library_benchmark]
#[bench::warm(prepare(|limits| call(limits.with_formatted_key(USER))))]
fn formatted_key_by_hand(limits: ByHand) -> ByHand {
    repeat(|user| call(limits.with_formatted_key(user)));
    limits
}

#[library_benchmark]
#[bench::warm(prepare(|limits| call(limits.with_escaped_key(USER))))]
fn escaped_key_by_hand(limits: ByHand) -> ByHand {
    repeat(|user| call(limits.with_escaped_key(user)));
    limits
}

#[library_benchmark]
#[bench::warm(install(|| call(with_borrowed_key(USER))))]
fn borrowed_key((): ()) {
    repeat(|user| call(with_borrowed_key(user)));
}

#[library_benchmark]
#[bench::warm(prepare(|limits| call(limits.with_borrowed_key(USER))))]
fn borrowed_key_by_hand(limits: ByHand) -> ByHand {
    repeat(|user| call(limits.with_borrowed_key(user)));
    limits
}

library_benchmark_group!(
    name = annotated,
    benchmarks = [
        no_key,
        no_key_by_hand,
        formatted_key,
        formatted_key_by_hand,
        escaped_key_by_hand,
        borrowed_key,
        borrowed_key_by_hand
    ]
);
