//! Several attributes on one function: one decision.

use limiter_core::registry::PolicyRegistry;
use limiter_core::{
    Enforcement, Limiter, ManualClock, Policy, Rejection, concurrency_limiter, token_limiter, window_limiter,
};

use crate::{fresh, isolated};
use std::time::Duration;

fn slow_down() -> &'static str {
    "slow down"
}

async fn come_back(rejection: Rejection) -> &'static str {
    assert!(rejection.decision().is_some());
    "come back tomorrow"
}

#[token_limiter(capacity = 2, rate = "1/s", key = "{user}", fallback = slow_down)]
/// Documentation between attributes is kept.
#[limiter_core::window_limiter(name = "daily", limit = 3, window = "1d", key = "{user}", fallback = come_back, pass_rejection)]
#[must_use]
async fn search(user: &str) -> &'static str {
    let _ = user;
    "found"
}

#[tokio::test]
async fn first_denying_limit_runs_fallback_and_charges_none() {
    let (limiter, clock) = fresh();
    limiter_core::annotations::with_limiter(limiter, async {
        assert_eq!(search("ann").await, "found");
        assert_eq!(search("ann").await, "found");
        for _ in 0..10 {
            assert_eq!(search("ann").await, "slow down");
        }
        assert_eq!(search("bob").await, "found");
        clock.advance(Duration::from_secs(10));
        assert_eq!(
            search("ann").await,
            "found",
            "denied calls do not charge the daily limit"
        );
        for _ in 0..10 {
            assert_eq!(search("ann").await, "come back tomorrow");
        }
        clock.advance(Duration::from_secs(86_400));
        assert_eq!(
            search("ann").await,
            "found",
            "denied calls do not charge the burst limit"
        );
        assert_eq!(search("ann").await, "found");
        assert_eq!(search("ann").await, "slow down");
    })
    .await;
}

fn take(text: String) -> String {
    text
}

fn refuse() -> String {
    "refused".to_owned()
}

#[token_limiter(name = "several.big", capacity = 10, rate = 1, need = need, fallback = refuse)]
#[token_limiter(name = "several.small", capacity = 5, rate = 1, need = need, fallback = take, pass_args)]
async fn mixed(text: String) -> String {
    text + "!"
}

// A constant in scope of the attribute; the arguments are the other place for names.
#[allow(non_upper_case_globals, reason = "looks like an argument")]
static need: u32 = 6;

#[tokio::test]
async fn impossible_cost_runs_fallback_of_its_limit() {
    isolated(async {
        assert_eq!(mixed("text".to_owned()).await, "text");
    })
    .await;
}

#[token_limiter(capacity = 5, rate = 1, key = "{a}")]
#[token_limiter(name = "several.other", capacity = 5, rate = 1, key = "{b}")]
async fn other_groups(a: u32, b: u32) -> Result<(), Rejection> {
    let _ = (a, b);
    Ok(())
}

#[token_limiter(capacity = 5, rate = 1, key = "{a}", group = "{a}")]
#[token_limiter(name = "several.one", capacity = 5, rate = 1, key = "{b}", group = "{a}")]
async fn one_group(a: u32, b: u32) -> Result<(), Rejection> {
    let _ = (a, b);
    Ok(())
}

#[tokio::test]
async fn limits_of_one_decision_share_a_group() {
    isolated(async {
        assert!(matches!(other_groups(1, 2).await, Err(Rejection::Config(_))));
        assert!(one_group(1, 2).await.is_ok());
    })
    .await;
}

#[cfg_attr(all(), token_limiter(capacity = 1, rate = "1/s"))]
#[window_limiter(name = "several.cfg", limit = 10, window = "1d")]
async fn conditional() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(limit = 1, window = "1d")]
#[cfg_attr(any(), token_limiter(name = "several.never", capacity = 1, rate = "1/s"))]
async fn not_conditional() -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(capacity = 1, rate = "1/s")]
#[cfg_attr(all(), window_limiter(name = "several.last", limit = 10, window = "1d"))]
async fn conditional_below() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn conditional_attribute_is_applied() {
    isolated(async {
        assert!(conditional_below().await.is_ok());
        let rejection = conditional_below().await.unwrap_err();
        assert_eq!(rejection.decision().unwrap().limits().len(), 2);
        assert!(conditional().await.is_ok());
        let rejection = conditional().await.unwrap_err();
        assert_eq!(rejection.decision().unwrap().limits().len(), 2);
        assert!(not_conditional().await.is_ok());
        let rejection = not_conditional().await.unwrap_err();
        assert_eq!(rejection.decision().unwrap().limits().len(), 1);
    })
    .await;
}

/// Without enforcement, no fallback runs; with enforcement, the fallback of the denying limit runs.
#[tokio::test]
async fn shadow_mode_allows_every_call() {
    let (limiter, _clock) = fresh();
    limiter_core::annotations::with_limiter(limiter.clone(), async {
        for mode in [Enforcement::Shadow, Enforcement::Off] {
            limiter.set_enforcement(mode);
            for _ in 0..5 {
                assert_eq!(search("ann").await, "found");
            }
        }
        limiter.set_enforcement(Enforcement::Enforce);
        assert_eq!(search("ann").await, "slow down");
    })
    .await;
}

fn invalid(rejection: Rejection) -> &'static str {
    assert!(matches!(rejection, Rejection::Config(_)), "{rejection:?}");
    "invalid"
}

#[token_limiter(name = "several.valid", capacity = 9, rate = 1, fallback = slow_down)]
#[token_limiter(name = "several.cost", capacity = 9, rate = 1, need = cost, fallback = invalid, pass_rejection)]
async fn costing(cost: f64) -> &'static str {
    let _ = cost;
    "done"
}

#[token_limiter(name = "several.settled", capacity = 9, rate = 1)]
#[token_limiter(name = "several.unsettled", capacity = 9, rate = 1, need = cost, count_if = Result::is_err)]
async fn counting(cost: f64) -> Result<(), Rejection> {
    let _ = cost;
    Ok(())
}

#[concurrency_limiter(name = "several.held", max = 9, need = cost)]
async fn holding(cost: f64) -> Result<(), Rejection> {
    let _ = cost;
    Ok(())
}

#[token_limiter(name = "several.sized", capacity = capacity, rate = 1, wait = wait)]
#[concurrency_limiter(name = "several.slots", max = capacity)]
async fn sized(capacity: u32, wait: &str) -> Result<(), Rejection> {
    let _ = (capacity, wait);
    Ok(())
}

#[token_limiter(name = "several.bucket", capacity = capacity, rate = 1)]
async fn bucket(capacity: u32) -> Result<(), Rejection> {
    let _ = capacity;
    Ok(())
}

#[token_limiter(name = "several.waiting", capacity = capacity, rate = 1, wait = wait)]
async fn waiting(capacity: u32, wait: &str) -> Result<(), Rejection> {
    let _ = (capacity, wait);
    Ok(())
}

#[tokio::test]
async fn invalid_policy_rejects_enforced_calls_only() {
    let (limiter, _clock) = fresh();
    limiter_core::annotations::with_limiter(limiter.clone(), async {
        for mode in [Enforcement::Shadow, Enforcement::Off, Enforcement::Enforce] {
            limiter.set_enforcement(mode);
            let is_allowed = mode != Enforcement::Enforce;
            assert_eq!(bucket(0).await.is_ok(), is_allowed, "{mode}");
            for (capacity, wait) in [(0, "1s"), (1, "soon"), (0, "soon")] {
                let found = [sized(capacity, wait).await, waiting(capacity, wait).await];
                let found = found.map(|call| call.is_ok());
                assert_eq!(found, [is_allowed; 2], "{mode} {capacity} {wait}");
            }
        }
    })
    .await;
}

/// As a check: the mode decides if an invalid cost rejects the call.
#[tokio::test]
async fn invalid_cost_rejects_enforced_calls_only() {
    let (limiter, _clock) = fresh();
    let policy = Policy::token_bucket("p").capacity(9).rate(1).build().unwrap();
    limiter_core::annotations::with_limiter(limiter.clone(), async {
        for mode in [Enforcement::Shadow, Enforcement::Off, Enforcement::Enforce] {
            limiter.set_enforcement(mode);
            let is_allowed = mode != Enforcement::Enforce;
            for cost in [-1.0, f64::NAN, 0.000_1] {
                let checked = limiter.check(&policy, "ann").cost(cost).await;
                assert_eq!(checked.is_ok_and(|decision| decision.is_allowed()), is_allowed);
                let expected = if is_allowed { "done" } else { "invalid" };
                assert_eq!(costing(cost).await, expected, "{mode} {cost}");
                assert_eq!(counting(cost).await.is_ok(), is_allowed, "{mode} {cost}");
                assert_eq!(holding(cost).await.is_ok(), is_allowed, "{mode} {cost}");
            }
        }
    })
    .await;
}

fn other_limit() -> &'static str {
    "first"
}

fn own_limit(rejection: Rejection) -> &'static str {
    assert!(matches!(rejection, Rejection::NeverFits { .. }), "{rejection:?}");
    "second"
}

#[token_limiter(name = "several.patient", capacity = 100, rate = 1, wait = "3h", fallback = other_limit)]
#[token_limiter(policy = "search", need = permits, fallback = own_limit, pass_rejection)]
async fn patient(permits: u32) -> &'static str {
    let _ = permits;
    "done"
}

/// The policy of a waiting call is not the one with which the call was rejected.
#[tokio::test]
async fn changed_policy_runs_fallback_of_its_limit() {
    let sized = |capacity: u32| {
        let policy = Policy::token_bucket("search").capacity(capacity).rate("1/h");
        policy.build().unwrap()
    };
    let registry = PolicyRegistry::new().with(sized(5));
    let clock = ManualClock::new();
    let limiter = Limiter::in_process().clock(&clock).registry(&registry).build();
    limiter_core::annotations::with_limiter(limiter, async {
        assert_eq!(patient(5).await, "done");
        let shrink = async {
            registry.set(sized(2));
            // Joins the queue with the changed policy.
            patient(1).await
        };
        let time = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
                clock.advance(Duration::from_secs(600));
            }
        };
        let (first, second, ()) = tokio::join!(patient(4), shrink, time);
        assert_eq!((first, second), ("second", "done"));
    })
    .await;
}
