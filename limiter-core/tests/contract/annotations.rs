//! Annotated functions: uncounted results, and budgets found by name and key parts.

use limiter_core::{Limiter, OnDenial, Policy, Rejection, token_limiter, window_limiter};

use crate::support::{PATIENT, Subject, secs};

#[derive(Debug, PartialEq)]
enum Failure {
    Wrong,
    Limited,
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        assert!(rejection.is_limited(), "{rejection}");
        Self::Limited
    }
}

#[window_limiter(name = "login", limit = 2, window = "1m", key = "{user}", group = "{tenant}", deadline = "30s", limiter = limits, count_if = Result::is_err)]
#[token_limiter(
    name = "attempts",
    capacity = 6,
    rate = "1/h",
    group = "{tenant}",
    deadline = "30s"
)]
async fn login(limits: &Limiter, tenant: &str, user: &str, right: bool) -> Result<(), Failure> {
    if right { Ok(()) } else { Err(Failure::Wrong) }
}

pub(crate) async fn uncounted_call_is_refunded(subject: Subject) {
    let limits = &subject.limits;
    let failures = limits.annotation("login").unwrap().key(["ann", "acme"]).unwrap();
    let attempts = limits.annotation("attempts").unwrap().key(["acme"]).unwrap();
    for left in (3..6).rev() {
        assert_eq!(login(limits, "acme", "ann", true).await, Ok(()));
        assert_eq!(failures.peek().await.unwrap().remaining(), 2);
        assert_eq!(attempts.peek().await.unwrap().remaining(), left);
    }
    for _ in 0..2 {
        assert_eq!(login(limits, "acme", "ann", false).await, Err(Failure::Wrong));
    }
    for _ in 0..3 {
        assert_eq!(login(limits, "acme", "ann", true).await, Err(Failure::Limited));
    }
    assert_eq!(
        attempts.peek().await.unwrap().remaining(),
        1,
        "a denied call charges nothing"
    );
    assert_eq!(login(limits, "acme", "bob", true).await, Ok(()), "another key");
    assert_eq!(attempts.peek().await.unwrap().remaining(), 0);
    subject.clock.advance(secs(60));
    assert_eq!(failures.peek().await.unwrap().remaining(), 2);
}

#[token_limiter(name = "placed", capacity = 3, rate = "1/h", key = "u|{user}:{id}", group = "in {tenant}", deadline = "30s", limiter = limits)]
async fn placed(limits: &Limiter, tenant: &str, user: &str, id: u32) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "computed", capacity = 3, rate = "1/h", key = format!("{user}!"), deadline = "30s", limiter = limits)]
async fn computed(limits: &Limiter, user: &str) -> Result<(), Rejection> {
    Ok(())
}

/// For every content of the parts: the budget that is peeked, reset and named is the one that the
/// call charged.
pub(crate) async fn budget_is_found_by_name_and_key_parts(subject: Subject) {
    let limits = &subject.limits;
    let annotation = limits.annotation("placed").unwrap();
    for (tenant, user) in [
        ("acme", "ann"),
        ("a:c|{me}", "a:n%n"),
        ("", ""),
        ("é\r\n", "{user}"),
    ] {
        let budget = annotation.key([user, "7", tenant]).unwrap();
        let left = async || budget.peek().await.unwrap().remaining();
        placed(limits, tenant, user, 7).await.unwrap();
        assert_eq!(left().await, 2, "{tenant} {user}");
        let keys = subject.redis_keys();
        assert!(
            keys.is_empty() || budget.redis_key().is_some_and(|key| keys.contains(&key)),
            "{keys:?}"
        );
        for _ in 0..2 {
            placed(limits, tenant, user, 7).await.unwrap();
        }
        assert!(placed(limits, tenant, user, 7).await.is_err());
        budget.refund().await.unwrap();
        placed(limits, tenant, user, 7).await.unwrap();
        assert!(placed(limits, tenant, user, 7).await.is_err());
        budget.reset().await.unwrap();
        assert_eq!(left().await, 3);
        placed(limits, tenant, user, 7).await.unwrap();
        budget.reset().await.unwrap();
    }
    computed(limits, "a:b").await.unwrap();
    let computed = limits.annotation("computed").unwrap();
    assert!(computed.key(["a:b"]).is_err(), "its key is an expression");
    let budget = computed.whole_key("a:b!").unwrap();
    assert_eq!(budget.peek().await.unwrap().remaining(), 2);
}

fn from_cache() -> Result<&'static str, Rejection> {
    Ok("from the cache")
}

#[token_limiter(policy = "searches", limiter = limits, fallback = from_cache)]
async fn search(limits: &Limiter) -> Result<&'static str, Rejection> {
    let _ = limits;
    Ok("fresh")
}

#[token_limiter(policy = "searches", limiter = limits, key = "counted", count_if = Result::is_ok)]
async fn search_or_not(limits: &Limiter) -> Result<&'static str, Rejection> {
    let _ = limits;
    Ok("fresh")
}

/// A degrading policy limits annotated functions too: the fallback returns the cheaper response,
/// and a function without a fallback is not called.
pub(crate) async fn degraded_call_runs_fallback(subject: Subject) {
    let (limits, registry) = (&subject.limits, subject.limits.registry());
    let built = [Policy::token_bucket("searches"), Policy::funnel("searches")];
    let [plain, paced] = built.map(|built| built.capacity(1).rate("1/h").deadline(PATIENT));
    for (round, policy) in [plain, paced.paced()].into_iter().enumerate() {
        let policy = policy.on_denial(OnDenial::Degrade).build().unwrap();
        registry.set(&policy);
        for call in 0..3 {
            let expected = if call == 0 { "fresh" } else { "from the cache" };
            assert_eq!(search(limits).await.unwrap(), expected, "{round}: {call}");
            let result = search_or_not(limits).await;
            let is_limited = result
                .as_ref()
                .is_err_and(|result| result.is_limited() && result.retry_after().is_some());
            assert_eq!(is_limited, call > 0, "{round}: {result:?}");
        }
    }
}
