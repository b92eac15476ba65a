//! Constant needs that fit compile, of every type that an attribute accepts.
#![deny(warnings)]

use std::sync::LazyLock;

use limiter_core::{
    Amount, ConfigError, Limiter, Rejection, concurrency_limiter, funnel_limiter, token_limiter,
    window_limiter,
};

const CAPACITY: u32 = 20;
const NEED: i64 = 20;
const HALF: f64 = 0.5;
const AMOUNT: Amount = Amount::from_thousandths(1_500);
const REFERENCE: &u16 = &7;
const RESULT: Result<Amount, ConfigError> = Ok(Amount::from_thousandths(2_000));
static STATIC: u8 = 3;
const SHIFT: u32 = 2;
static LAZY: LazyLock<u32> = LazyLock::new(|| 4);

#[token_limiter(name = "ints", capacity = CAPACITY, rate = 10, need = NEED)]
async fn ints() -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "floats", capacity = HALF * 3.0, rate = 1, need = HALF)]
async fn floats() -> Result<(), Rejection> {
    Ok(())
}

#[funnel_limiter(name = "amounts", capacity = AMOUNT, rate = 1, need = 1.5)]
async fn amounts() -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "references", capacity = REFERENCE, rate = 1, need = 1 << SHIFT)]
async fn references() -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "results", capacity = RESULT, rate = 1, need = CAPACITY as u64 - 18)]
async fn results() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(name = "statics", limit = STATIC, window = "1m", need = 6 / 2)]
async fn statics() -> Result<(), Rejection> {
    Ok(())
}

// The compiler cannot evaluate these: `verify_annotations` compares them.
#[token_limiter(name = "lazy.quota", capacity = *LAZY, rate = *LAZY, need = 2)]
#[token_limiter(name = "lazy.need", capacity = CAPACITY, rate = 1, need = *LAZY + SHIFT)]
async fn lazy() -> Result<(), Rejection> {
    Ok(())
}

#[concurrency_limiter(name = "held", max = STATIC as usize, lease = "30s", need = 0.5 + 0.5)]
async fn held() -> Result<(), Rejection> {
    Ok(())
}

// The default cost is above this capacity.
#[token_limiter(name = "below", capacity = HALF, rate = 1)]
async fn below() -> Result<(), Rejection> {
    Ok(())
}

struct Service;

impl Service {
    const NEED: u32 = 30;

    // The constants of a type may depend on its generics: such a need is checked at run time.
    #[token_limiter(name = "method", capacity = CAPACITY, rate = 1, need = Self::NEED)]
    async fn method(&self) -> Result<(), Rejection> {
        Ok(())
    }
}

#[tokio::test]
async fn constant_needs_that_fit_are_allowed() {
    let limits = Limiter::in_process().build();
    let calls = async {
        ints().await?;
        floats().await?;
        amounts().await?;
        references().await?;
        results().await?;
        statics().await?;
        lazy().await?;
        held().await
    };
    let called = limiter_core::annotations::with_limiter(limits.clone(), calls).await;
    assert!(called.is_ok(), "{called:?}");
    let called = limiter_core::annotations::with_limiter(limits, Service.method()).await;
    assert!(matches!(called, Err(Rejection::NeverFits { .. })), "{called:?}");
}

#[tokio::test]
async fn constant_quota_below_the_default_cost_is_reported() {
    let called = limiter_core::annotations::with_limiter(Limiter::in_process().build(), below()).await;
    assert!(matches!(called, Err(Rejection::NeverFits { .. })), "{called:?}");
    let errors = limiter_core::annotations::verify_annotations().map_err(|error| error.to_string());
    let is_reported = |errors: &String| {
        errors.contains("constants::below (")
            && errors.contains("`need` is 1, above the quota of 0.5 of below")
    };
    assert!(errors.as_ref().is_err_and(is_reported), "{errors:?}");
}
