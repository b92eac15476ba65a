//! Refunds and settlements of calls whose limits differ: shadow, off, exempt, or changed before the
//! settlement.

use limiter_core::{
    Amount, Enforcement, Inheritance, LimitRequest, Limiter, Policy, Rejection, token_limiter, window_limiter,
};

use crate::inheritance::pairs;
use crate::support::{KEY, PATIENT, Subject, bucket, funnel, left, micros, one_of_each, secs, window};

/// An exhausted limit of ten, which would deny every call.
async fn would_deny(subject: &Subject, name: &str) -> Policy {
    let policy = in_shadow(name, 10);
    assert!(!subject.call_of(&policy, 10).await.would_deny());
    policy
}

fn in_shadow(name: &str, capacity: u32) -> Policy {
    let policy = Policy::token_bucket(name).capacity(capacity).rate("1/h");
    let policy = policy.deadline(PATIENT).enforcement(Enforcement::Shadow);
    policy.build().unwrap()
}

/// A shadow limit does not affect the refunds of the others: if it denies the call, if it allows
/// it, and if the cost never fits it.
pub(crate) async fn shadow_limit_ignores_refund(subject: Subject) {
    let full = would_deny(&subject, "full").await;
    let roomy = Policy::funnel("roomy")
        .capacity(100)
        .rate("1/h")
        .deadline(PATIENT);
    let roomy = roomy.enforcement(Enforcement::Shadow).build().unwrap();
    for policy in one_of_each() {
        for shadow in [&full, &in_shadow("small", 1), &roomy] {
            let both = || [LimitRequest::new(shadow, KEY), LimitRequest::new(&policy, KEY)];
            let estimated = || both().map(|request| request.cost(4));
            let reservation = subject.limits.reserve_all(estimated()).await.unwrap();
            assert_eq!(subject.remaining(&policy).await, Amount::ONE);
            reservation.cancel().await.unwrap();
            assert_eq!(
                subject.remaining(&policy).await,
                policy.quota(),
                "{policy} beside {shadow}"
            );
            let reservation = subject.limits.reserve_all(estimated()).timeout(secs(1)).await;
            reservation.unwrap().settle_each([4, 1]).await.unwrap();
            assert_eq!(subject.remaining(&policy).await, Amount::from(4_u32), "{policy}");
            subject.limits.reset(&policy, KEY).await.unwrap();
        }
    }
    // The limits that fit were charged four for each of two calls, in three rounds.
    assert_eq!(subject.remaining(&roomy).await, Amount::from(100_u32 - 3 * 4));
    assert_eq!(
        subject.remaining(&full).await,
        Amount::ZERO,
        "a denial is never refunded"
    );
}

/// A limit in shadow mode that denies a reservation owes no debt after its settlement.
pub(crate) async fn shadow_limit_ignores_debt(subject: Subject) {
    let small = in_shadow("small", 1);
    for policy in [bucket("b", 10, "1/h"), funnel("f", 10, "1/h")] {
        let both = [&small, &policy].map(|policy| LimitRequest::new(policy, KEY).cost(5));
        let reservation = subject.limits.reserve_all(both).await.unwrap();
        reservation.settle(9).await.unwrap();
        assert_eq!(subject.remaining(&policy).await, Amount::ONE, "{policy}");
        assert_eq!(
            subject.remaining(&small).await,
            Amount::ONE,
            "a denied cost is not a debt"
        );
    }
}

/// Limits that are off or exempt are not settled, at every position.
pub(crate) async fn each_limit_is_settled_with_its_own_amount(subject: Subject) {
    let built = |name: &str| {
        Policy::token_bucket(name)
            .capacity(10)
            .rate("1/h")
            .deadline(PATIENT)
    };
    let off = built("off").enforcement(Enforcement::Off).build().unwrap();
    let listed = built("listed").allow_keys([KEY]).build().unwrap();
    let shadow = built("shadow").enforcement(Enforcement::Shadow).build().unwrap();
    let plain = built("plain").build().unwrap();
    let requests = [&off, &shadow, &listed, &plain].map(|policy| LimitRequest::new(policy, KEY).cost(6));
    let reservation = subject.limits.reserve_all(requests).await.unwrap();
    reservation.settle_each([9, 1, 9, 8]).await.unwrap();
    assert_eq!(subject.remaining(&shadow).await, Amount::from(9_u32));
    assert_eq!(subject.remaining(&plain).await, Amount::from(2_u32));
    for untouched in ["off", "listed"] {
        let same = built(untouched).build().unwrap();
        assert_eq!(
            subject.remaining(&same).await,
            Amount::from(10_u32),
            "{untouched}"
        );
    }
}

#[window_limiter(policy = "guarded", key = "{user}", limiter = limits, count_if = Result::is_err)]
#[token_limiter(policy = "watched")]
async fn log_in(limits: &Limiter, user: &str, right: bool) -> Result<(), Rejection> {
    match right {
        true => Ok(()),
        false => Err(Rejection::NotConfigured {
            policy: "wrong".to_owned(),
        }),
    }
}

/// Successful logins are not counted, independent of a shadow limit beside them.
pub(crate) async fn uncounted_call_is_refunded_beside_shadow_limit(subject: Subject) {
    let guarded = Policy::sliding_window("guarded")
        .limit(4)
        .window("1h")
        .deadline(PATIENT);
    subject.limits.registry().set(guarded.build().unwrap());
    subject.limits.registry().set(in_shadow("watched", 1));
    for call in 0..10 {
        let result = log_in(&subject.limits, KEY, true).await;
        assert!(result.is_ok(), "{call}: {result:?}");
    }
    for _ in 0..4 {
        let result = log_in(&subject.limits, KEY, false).await;
        assert!(
            matches!(result, Err(Rejection::NotConfigured { .. })),
            "{result:?}"
        );
    }
    let result = log_in(&subject.limits, KEY, true).await;
    assert!(matches!(result, Err(Rejection::Limited(_))), "{result:?}");
}

#[token_limiter(name = "brief", capacity = 2, rate = "1/s", deadline = "30s", limiter = limits, count_if = Result::is_err)]
#[window_limiter(name = "short", limit = 2, window = "1s", deadline = "30s", count_if = Result::is_err)]
async fn lasts(limits: &Limiter, meanwhile: impl Future<Output = ()>) -> Result<(), Rejection> {
    meanwhile.await;
    Ok(())
}

/// A call that outlives its permit refunds nothing: the current usage belongs to other callers.
pub(crate) async fn expired_permit_is_not_refunded(subject: Subject) {
    let limits = &subject.limits;
    let budgets = ["brief", "short"].map(|name| limits.annotation(name).unwrap().global().unwrap());
    let slow = lasts(limits, async {
        subject.clock.advance(secs(2));
        for budget in &budgets {
            let others = limits.check(budget.policy(), budget.key()).cost(2).await.unwrap();
            assert!(others.is_allowed(), "{}", budget.policy());
        }
    });
    slow.await.unwrap();
    for budget in &budgets {
        assert_eq!(budget.peek().await.unwrap().remaining(), 0, "{}", budget.policy());
    }
}

#[token_limiter(policy = "paced", key = "annotated", limiter = limits)]
async fn paced(limits: &Limiter) -> Result<(), Rejection> {
    let _ = limits;
    Ok(())
}

/// No entry point waits for a shadow limit or returns its delay.
pub(crate) async fn shadow_funnel_delays_no_call(subject: Subject) {
    let shadow = Policy::funnel("paced")
        .capacity(5)
        .rate("1/min")
        .paced()
        .deadline(PATIENT);
    let shadow = shadow.enforcement(Enforcement::Shadow).build().unwrap();
    let (limits, plain) = (&subject.limits, bucket("b", 99, "1/h"));
    limits.registry().set(&shadow);
    let all = async {
        for call in 0..4_u32 {
            let both = || [&shadow, &plain].map(|policy| LimitRequest::new(policy, KEY));
            let result = limits.check_all(both()).await.unwrap();
            assert_eq!(result.delay(), secs(0), "call {call}");
            assert!(limits.acquire_all(both()).await.is_ok());
            assert!(limits.acquire(&shadow, "alone").await.is_ok());
            assert!(limits.admit_all(both()).await.is_ok());
            assert!(paced(limits).await.is_ok());
        }
    };
    let result = tokio::time::timeout(PATIENT, all).await;
    assert!(result.is_ok(), "no clock is moved");
}

/// A proportional change also converts earlier reservations.
pub(crate) async fn settlement_across_proportional_change_creates_no_permits(subject: Subject) {
    let (limits, clock, registry) = (&subject.limits, &subject.clock, subject.limits.registry());
    for (small, large) in pairs() {
        for (before, after) in [(&large, &small), (&small, &large)] {
            let [half, half_after] = [before, after].map(|policy| Amount::from(policy.quota().whole() / 2));
            registry.change(before, Inheritance::Reset).unwrap();
            let named = limits.named(before.name());
            let in_force = limits.policy(before.name(), KEY).unwrap();
            let reserve = async || limits.reserve(&in_force, KEY).cost(half).await.unwrap();
            let (first, second) = (reserve().await, reserve().await);
            let at = clock.now().after(micros(2));
            registry.change_at(after, Inheritance::Proportional, at).unwrap();
            // Until then the previous numbers apply.
            clock.advance(micros(1));
            first.cancel().await.unwrap();
            let result = async || left(&named.peek(KEY).await.unwrap());
            assert_about(result().await, half, before);
            clock.advance(micros(1));
            assert_about(result().await, half_after, after);
            let others = result().await;
            assert!(named.check(KEY).cost(others).await.unwrap().is_allowed());
            second.cancel().await.unwrap();
            assert_about(result().await, half_after, after);
        }
    }
}

/// The conversion is rounded against the caller, and a microsecond refills nearly nothing.
fn assert_about(left: Amount, expected: Amount, policy: &Policy) {
    let missing = expected.as_thousandths().checked_sub(left.as_thousandths());
    assert!(
        missing.is_some_and(|missing| missing <= 10),
        "{policy}: {left} for {expected}"
    );
}

/// A debt keeps its fraction of the quota.
pub(crate) async fn debt_is_converted_by_proportional_change(subject: Subject) {
    let (limits, clock, registry) = (&subject.limits, &subject.clock, subject.limits.registry());
    for (small, large) in pairs() {
        registry.set(&large);
        let reservation = limits.reserve(&large, KEY).cost(20).await.unwrap();
        clock.advance(micros(1));
        registry
            .change_at(&small, Inheritance::Proportional, clock.now())
            .unwrap();
        reservation.settle(50).await.unwrap();
        let result = limits.named(small.name()).peek(KEY).await.unwrap();
        assert_eq!(left(&result), Amount::from(5_u32), "{small}");
    }
}

/// A debt from before a change that keeps the usage reduces the level of the larger policy.
pub(crate) async fn debt_is_charged_to_enlarged_level(subject: Subject) {
    let (limits, clock, registry) = (&subject.limits, &subject.clock, subject.limits.registry());
    for (small, large) in [
        (bucket("b", 10, "1/h"), bucket("b", 100, "10/s")),
        (funnel("f", 10, "1/h"), funnel("f", 100, "10/s")),
    ] {
        registry.set(&small);
        let reservation = limits.reserve(&small, KEY).await.unwrap();
        registry.set(&large);
        let named = limits.named(large.name());
        assert!(named.check(KEY).await.unwrap().is_allowed());
        clock.advance(secs(10));
        assert!(named.check(KEY).cost(20).await.unwrap().is_allowed());
        reservation.settle(4).await.unwrap();
        assert_eq!(named.peek(KEY).await.unwrap().remaining(), 77, "{large}");
    }
}

/// Permits refilled at the new rate are not refunded again, even if they were used since.
pub(crate) async fn refill_at_new_rate_is_not_refunded(subject: Subject) {
    let (limits, clock, registry) = (&subject.limits, &subject.clock, subject.limits.registry());
    for (before, after) in [
        (bucket("b", 100, "1/s"), bucket("b", 10, "1/s")),
        (funnel("f", 100, "1/s"), funnel("f", 10, "1/s")),
        (fixed("100s", 100), fixed("10s", 10)),
    ] {
        registry.set(&before);
        let reservation = limits.reserve(&before, KEY).cost(100).await.unwrap();
        clock.advance(micros(1));
        registry
            .change_at(&after, Inheritance::Proportional, clock.now())
            .unwrap();
        let named = limits.named(after.name());
        assert_eq!(named.peek(KEY).await.unwrap().remaining(), 0, "{after}");
        clock.advance(secs(11));
        assert!(named.check(KEY).cost(10).await.unwrap().is_allowed(), "{after}");
        reservation.cancel().await.unwrap();
        assert_eq!(named.peek(KEY).await.unwrap().remaining(), 0, "{after}");
    }
}

/// A refund after a change that keeps the usage returns the part of the estimate that neither
/// policy has refilled.
pub(crate) async fn refund_after_kept_usage_creates_no_permits(subject: Subject) {
    let (limits, clock, registry) = (&subject.limits, &subject.clock, subject.limits.registry());
    let counter = |window| {
        let policy = Policy::counter_window("c").limit(5_u32).window(window);
        policy.deadline(PATIENT).build().unwrap()
    };
    // The policies, the estimate, the time until the refund, the usage of other calls at that time,
    // and the permits that remain after the refund.
    for (before, after, estimate, later, others, expected) in [
        // The estimate is not refilled at the time of the refund.
        (bucket("b", 10, "1/s"), bucket("b", 100, "1/s"), 10, 5, 0, 10),
        (funnel("f", 10, "1/s"), funnel("f", 100, "1/s"), 10, 5, 50, 50),
        (window("w", 5, "10s"), window("w", 5, "1h"), 5, 9, 0, 5),
        (fixed("1h", 5), fixed("1d", 5), 5, 61, 0, 5),
        (counter("1h"), counter("1d"), 5, 61, 0, 5),
        // The estimate is refilled faster.
        (bucket("b", 10, "1/h"), bucket("b", 10, "1/s"), 10, 10, 10, 0),
        (funnel("f", 10, "1/h"), funnel("f", 10, "1/s"), 10, 10, 10, 0),
        // The capacity is reduced by more than the estimate.
        (bucket("b", 100, "1/s"), bucket("b", 10, "1/s"), 50, 0, 0, 0),
        (funnel("f", 100, "1/s"), funnel("f", 10, "1/s"), 50, 0, 0, 10),
        // The permits leave the window earlier.
        (window("w", 5, "1h"), window("w", 5, "10s"), 5, 11, 5, 0),
        (fixed("1h", 5), fixed("1m", 5), 5, 61, 5, 0),
        (counter("1h"), counter("1m"), 5, 61, 5, 0),
        (aligned("1d"), aligned("1h"), 5, 3_660, 5, 0),
        (aligned("month"), aligned("1d"), 5, 86_460, 5, 0),
        (aligned("1d"), fixed("1h", 5), 5, 3_660, 5, 0),
    ] {
        let case = format!("{before} to {after}, {others} used");
        registry.set(&before);
        let reservation = limits.reserve(&before, KEY).cost(estimate).await.unwrap();
        registry.set(&after);
        let named = limits.named(after.name());
        // Takes the remaining permits of the smaller bucket; a denial shortens the window.
        let _ = named.check(KEY).cost(after.quota()).await.unwrap();
        clock.advance(secs(later));
        assert!(
            named.check(KEY).cost(others).await.unwrap().is_allowed(),
            "{case}"
        );
        reservation.cancel().await.unwrap();
        assert_eq!(named.peek(KEY).await.unwrap().remaining(), expected, "{case}");
        limits.reset(&after, KEY).await.unwrap();
    }
}

fn fixed(window: &str, limit: u64) -> Policy {
    let policy = Policy::fixed_window("x").limit(limit).window(window);
    policy.deadline(PATIENT).build().unwrap()
}

fn aligned(window: &str) -> Policy {
    let policy = Policy::fixed_window("x").limit(5_u32).window(window);
    policy.aligned("utc").deadline(PATIENT).build().unwrap()
}

/// A refund of a reservation under a shorter window leaves the permits of the longer window, which
/// replaced it, in their window.
pub(crate) async fn refund_does_not_shorten_window_of_successor(subject: Subject) {
    let (limits, clock, registry) = (&subject.limits, &subject.clock, subject.limits.registry());
    let counter = |window| {
        let policy = Policy::counter_window("c").limit(5_u32).window(window);
        policy.deadline(PATIENT).build().unwrap()
    };
    let (before, after) = (counter("1m"), counter("1h"));
    registry.set(&before);
    let reservation = limits.reserve(&before, KEY).cost(2).await.unwrap();
    registry.set(&after);
    let named = limits.named("c");
    clock.advance(secs(61));
    // Starts a period of one hour.
    assert!(named.check(KEY).cost(3).await.unwrap().is_allowed());
    clock.advance(secs(29));
    // Half of the estimate still counts under the policy of the decision.
    reservation.cancel().await.unwrap();
    assert_eq!(named.peek(KEY).await.unwrap().remaining(), 1);
    clock.advance(secs(60));
    assert_eq!(named.peek(KEY).await.unwrap().remaining(), 1);
}

/// A reservation before a scheduled change is settled by the numbers that decided it.
pub(crate) async fn reservation_before_scheduled_change_is_converted(subject: Subject) {
    let (limits, clock) = (&subject.limits, &subject.clock);
    for (small, large) in pairs() {
        let at = clock.now().after(micros(2));
        let changed = small.proportional_to(&large, at).unwrap();
        let reservation = limits.reserve(&changed, KEY).cost(10).await.unwrap();
        assert!(limits.check(&large, KEY).cost(90).await.unwrap().is_allowed());
        clock.set(at);
        assert_eq!(
            limits.peek(&changed, KEY).await.unwrap().remaining(),
            0,
            "{changed}"
        );
        reservation.cancel().await.unwrap();
        assert_about(subject.remaining(&changed).await, Amount::ONE, &changed);
    }
}

/// After several changes the current value of the refund is unknown, also after a return to the
/// numbers of the decision.
pub(crate) async fn several_proportional_changes_refund_nothing(subject: Subject) {
    let (limits, clock, registry) = (&subject.limits, &subject.clock, subject.limits.registry());
    let sized = [
        |capacity: u32| bucket("b", capacity, "1/h"),
        |capacity: u32| funnel("f", capacity, "1/h"),
    ];
    for (sized, last) in sized.into_iter().flat_map(|sized| [(sized, 40), (sized, 100)]) {
        registry.change(sized(100), Inheritance::Reset).unwrap();
        let named = limits.named(if sized(1).name() == "b" { "b" } else { "f" });
        let reservation = named.reserve(KEY).cost(50).await.unwrap();
        assert!(named.check(KEY).cost(50).await.unwrap().is_allowed());
        for capacity in [10, last] {
            clock.advance(micros(1));
            registry
                .change_at(sized(capacity), Inheritance::Proportional, clock.now())
                .unwrap();
            assert_eq!(named.peek(KEY).await.unwrap().remaining(), 0);
        }
        reservation.cancel().await.unwrap();
        assert_eq!(named.peek(KEY).await.unwrap().remaining(), 0, "{last}");
    }
}

/// The units of a debt are unknown then, but it leaves the level of the last policy.
pub(crate) async fn debt_across_several_changes_leaves_enlarged_level(subject: Subject) {
    let (limits, clock, registry) = (&subject.limits, &subject.clock, subject.limits.registry());
    let sized = [
        |capacity: u32| bucket("b", capacity, "1/h"),
        |capacity: u32| funnel("f", capacity, "1/h"),
    ];
    for sized in sized {
        let small = sized(10);
        registry.set(&small);
        let reservation = limits.reserve(&small, KEY).await.unwrap();
        for capacity in [100, 1_000] {
            clock.advance(micros(1));
            registry
                .change_at(sized(capacity), Inheritance::Proportional, clock.now())
                .unwrap();
            assert!(limits.named(small.name()).peek(KEY).await.unwrap().is_allowed());
        }
        reservation.settle(4).await.unwrap();
        let peeked = limits.named(small.name()).peek(KEY).await.unwrap();
        assert_eq!(peeked.remaining(), 900 - 3, "{small}");
    }
}
