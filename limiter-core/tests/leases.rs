//! Token leases: tokens are leased, spent locally and returned; effects on callers and other
//! limiters.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use limiter_core::{LimitRequest, Limiter, ManualClock, OnStoreFailure, Origin, Policy, Rejection};
use limiter_testing::{Proxy, RedisServer};
use support::{KEY, PATIENT, millis, namespace, secs};

/// Policies with a capacity of 1,000 and a rate of one per second, which may be leased for 10 s.
fn shapes() -> [Policy; 2] {
    [Policy::token_bucket("p"), Policy::funnel("p")].map(|shape| {
        let shape = shape.capacity(1_000).rate(1).lease("10s").deadline(PATIENT);
        shape.on_store_failure(OnStoreFailure::Error).build().unwrap()
    })
}

fn without_lease(policy: &Policy) -> Policy {
    let shape = if policy.to_string().contains("funnel") {
        Policy::funnel("p")
    } else {
        Policy::token_bucket("p")
    };
    let shape = shape.capacity(1_000).rate(1).deadline(PATIENT);
    shape.on_store_failure(OnStoreFailure::Error).build().unwrap()
}

/// Two limiters of one namespace, under one clock.
fn two() -> (Limiter, Limiter, ManualClock) {
    let (namespace, clock) = (namespace(), ManualClock::new());
    let build = || {
        let builder = Limiter::redis(RedisServer::shared().url());
        builder.namespace(&namespace).clock(&clock).build().unwrap()
    };
    (build(), build(), clock)
}

/// Calls until one is denied, at most `most` times. Returns the number of allowed calls, and the
/// number of those that were decided without Redis.
async fn take(limits: &Limiter, policy: &Policy, most: u64) -> (u64, u64) {
    let (mut allowed, mut leased) = (0, 0);
    while allowed < most {
        let decision = limits.check(policy, KEY).await.unwrap();
        if !decision.is_allowed() {
            break;
        }
        allowed += 1;
        leased += u64::from(decision.origin() == Origin::Lease);
        tokio::task::yield_now().await;
    }
    (allowed, leased)
}

/// The usage in Redis after all reports have arrived.
async fn settles_at(limits: &Limiter, policy: &Policy, expected: u64) {
    let plain = without_lease(policy);
    let settled = async {
        while limits.peek(&plain, KEY).await.unwrap().remaining() != expected {
            tokio::task::yield_now().await;
        }
    };
    let settled = tokio::time::timeout(secs(10), settled).await;
    let has = limits.peek(&plain, KEY).await.unwrap().remaining();
    assert!(settled.is_ok(), "{policy}: {has} in place of {expected}");
}

#[tokio::test]
async fn busy_key_uses_lease_within_quota() {
    for policy in shapes() {
        let (limits, other, _) = two();
        let (allowed, leased) = take(&limits, &policy, 700).await;
        assert_eq!(allowed, 700);
        assert!(leased > 500, "{policy}: {leased} decisions without a query");
        let (rest, _) = take(&other, &policy, 1_000).await;
        let (last, _) = take(&limits, &policy, 1_000).await;
        assert_eq!(allowed + rest + last, 1_000, "{policy}");
    }
}

#[tokio::test]
async fn remaining_includes_local_lease() {
    for policy in shapes() {
        let (limits, _other, _) = two();
        for taken in 1..=300 {
            let decision = limits.check(&policy, KEY).await.unwrap();
            // A lease granted after the last reply of the store counts locally and no longer in the
            // store.
            assert!(
                decision.remaining() <= 1_000 - taken + 1,
                "{policy}: {decision:?}"
            );
        }
        let peeked = limits.peek(&policy, KEY).cost(1).await.unwrap();
        assert!(peeked.is_allowed() && peeked.remaining() > 0, "{policy}");
    }
}

/// A call with two limits uses no leased tokens.
#[tokio::test]
async fn returned_tokens_admit_call_that_redis_denied() {
    let beside = Policy::token_bucket("beside").capacity(1_000).rate(1);
    let beside = beside.deadline(PATIENT).build().unwrap();
    for policy in shapes() {
        let (namespace, clock) = (namespace(), ManualClock::new());
        let build = || {
            Limiter::redis(RedisServer::shared().url())
                .namespace(&namespace)
                .clock(&clock)
        };
        let limits = build().deny_cache(secs(60)).build().unwrap();
        let other = build().build().unwrap();
        take(&limits, &policy, 300).await;
        let both = || {
            let all_left = LimitRequest::new(&policy, KEY).cost(700);
            limits.check_all([all_left, LimitRequest::new(&beside, KEY)])
        };
        assert!(!both().await.unwrap().is_allowed(), "{policy}: a part is leased");
        // Idle tokens return after a quarter of the lease.
        clock.advance(secs(3));
        settles_at(&other, &policy, 703).await;
        assert!(both().await.unwrap().is_allowed(), "{policy}");
    }
}

/// A larger policy converts the level before the tokens of the smaller one return.
#[tokio::test]
async fn returned_tokens_leave_converted_level() {
    let sized = |capacity: u64, lease: Option<&str>| {
        [Policy::token_bucket("p"), Policy::funnel("p")].map(|shape| {
            let shape = shape.capacity(capacity).rate("1/h").deadline(PATIENT);
            let shape = match lease {
                Some(lease) => shape.lease(lease),
                None => shape,
            };
            shape.build().unwrap()
        })
    };
    // Of 100, one is used and 8 are leased; leased tokens are not converted.
    let expected = [910 + 8 - 1, 1_000 - 10 - 1];
    for lease in [Some("10s"), None] {
        let sizes = sized(100, Some("10s")).into_iter().zip(sized(1_000, lease));
        for ((small, large), expected) in sizes.zip(expected) {
            let (limits, other, clock) = two();
            assert!(limits.check(&small, KEY).await.unwrap().is_allowed());
            clock.advance(millis(1));
            let changed = large.clone().proportional_to(&small, clock.now()).unwrap();
            assert!(limits.check(&changed, KEY).await.unwrap().is_allowed());
            limits.shutdown(secs(10)).await;
            let left = other.peek(&large, KEY).await.unwrap().remaining();
            assert_eq!(left, expected, "{small}, then a lease of {lease:?}");
        }
    }
}

/// Tokens of a key without calls, which return after a change, leave its usage to be converted.
#[tokio::test]
async fn idle_lease_returns_into_converted_level() {
    let sized = |capacity: u64| {
        [Policy::token_bucket("p"), Policy::funnel("p")].map(|shape| {
            let shape = shape.capacity(capacity).rate("1/h").deadline(PATIENT);
            shape.lease("10s").build().unwrap()
        })
    };
    // Of 100, one is used and 8 are leased; leased tokens are not converted.
    let expected = [910 + 8, 1_000 - 10];
    for ((small, large), expected) in sized(100).into_iter().zip(sized(1_000)).zip(expected) {
        let (limits, other, clock) = two();
        assert!(limits.check(&small, KEY).await.unwrap().is_allowed());
        clock.advance(millis(1));
        let changed = large.clone().proportional_to(&small, clock.now()).unwrap();
        // A call of another key brings the change to this replica.
        assert!(limits.check(&changed, "other").await.unwrap().is_allowed());
        limits.shutdown(secs(10)).await;
        let left = other.peek(&changed, KEY).await.unwrap().remaining();
        assert_eq!(left, expected, "{small}");
    }
}

#[tokio::test]
async fn shutdown_returns_unspent_lease() {
    for policy in shapes() {
        let (limits, other, _) = two();
        take(&limits, &policy, 300).await;
        limits.shutdown(secs(10)).await;
        settles_at(&other, &policy, 700).await;
        assert_eq!(take(&other, &policy, 1_000).await.0, 700, "{policy}");
    }
}

/// The task that returns tokens has ended with its runtime, or is not driven.
#[test]
fn shutdown_returns_lease_of_another_runtime() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    for has_ended in [true, false] {
        for policy in shapes() {
            let ((limits, other, _), first) = (two(), runtime());
            let (allowed, leased) = first.block_on(take(&limits, &policy, 3));
            assert_eq!((allowed, leased), (3, 2), "no refill is due");
            let first = (!has_ended).then_some(first);
            runtime().block_on(async {
                limits.shutdown(secs(3)).await;
                settles_at(&other, &policy, 997).await;
            });
            drop(first);
        }
    }
}

#[tokio::test]
async fn unpolled_waiter_does_not_prevent_return_at_shutdown() {
    let (limits, other, _) = two();
    let exhausted = Policy::token_bucket("exhausted").capacity(1).rate("1/h");
    let exhausted = exhausted.deadline(PATIENT).build().unwrap();
    assert!(limits.check(&exhausted, KEY).await.unwrap().is_allowed());
    let mut waiter = limits.acquire(&exhausted, KEY).into_future();
    let waits = tokio::time::timeout(millis(100), &mut waiter).await;
    assert!(waits.is_err(), "{waits:?}");
    let [policy, _] = shapes();
    take(&limits, &policy, 3).await;
    limits.shutdown(secs(2)).await;
    settles_at(&other, &policy, 997).await;
    drop(waiter);
}

/// A slow Redis receives the denials one by one.
#[tokio::test]
async fn unreported_denials_do_not_delay_return_at_shutdown() {
    let (server, namespace, clock) = (RedisServer::start(), namespace(), ManualClock::new());
    let proxy = Proxy::start(server.port());
    let build = |url: String| {
        let builder = Limiter::redis(url).namespace(&namespace).clock(&clock);
        builder.build().unwrap()
    };
    let (limits, other) = (build(proxy.url()), build(server.url()));
    let penalized = Policy::token_bucket("penalized").capacity(1).rate("1/h");
    let penalized = penalized.penalty("3 in 1h: 1h").deadline(PATIENT);
    let penalized = penalized.on_store_failure(OnStoreFailure::Error).build().unwrap();
    for key in 0..300_u32 {
        for is_allowed in [true, false] {
            let decision = limits.check(&penalized, key).await.unwrap();
            assert_eq!(decision.is_allowed(), is_allowed);
        }
    }
    let [policy, _] = shapes();
    take(&limits, &policy, 3).await;
    proxy.set_delay(millis(20));
    limits.shutdown(secs(3)).await;
    settles_at(&other, &policy, 997).await;
}

#[tokio::test]
async fn dropped_limiter_returns_unspent_lease() {
    for policy in shapes() {
        let (limits, other, _) = two();
        take(&limits, &policy, 300).await;
        drop(limits);
        settles_at(&other, &policy, 700).await;
    }
}

#[tokio::test]
async fn idle_lease_is_returned() {
    for policy in shapes() {
        let (limits, other, clock) = two();
        take(&limits, &policy, 300).await;
        let back = async {
            // In steps, because the housekeeper sleeps by this clock.
            for _ in 0..40 {
                clock.advance(millis(100));
                tokio::time::sleep(millis(5)).await;
            }
        };
        back.await;
        settles_at(&other, &policy, 704).await;
    }
}

#[tokio::test]
async fn reset_applies_at_once() {
    for policy in shapes() {
        let (limits, _other, _) = two();
        take(&limits, &policy, 1_000).await;
        limits.reset(&policy, KEY).await.unwrap();
        assert_eq!(take(&limits, &policy, 2_000).await.0, 1_000, "{policy}");
    }
}

#[tokio::test]
async fn changed_policy_applies_at_once_and_recovers_leases() {
    for policy in shapes() {
        let (limits, other, _) = two();
        take(&limits, &policy, 300).await;
        let small = Policy::token_bucket("p").capacity(5).rate(1).lease("10s");
        let small = if policy.to_string().contains("funnel") {
            Policy::funnel("p").capacity(5).rate(1).lease("10s")
        } else {
            small
        };
        let small = small.deadline(PATIENT).build().unwrap();
        let (allowed, _) = take(&limits, &small, 100).await;
        assert!(allowed <= 5, "{policy}: {allowed}");
        if policy.to_string().contains("funnel") {
            settles_at(&other, &policy, 700).await;
        }
    }
}

/// Permits that are not leased may be refilled meanwhile: Redis has no usage.
#[tokio::test]
async fn refund_of_leased_permits_is_applied_to_full_limit() {
    for shape in [Policy::token_bucket("p"), Policy::funnel("p")] {
        let policy = shape
            .capacity(1_000)
            .rate(1_000)
            .lease("10s")
            .deadline(PATIENT)
            .build();
        let policy = policy.unwrap();
        let (limits, _other, clock) = two();
        let has = async || limits.peek(&policy, KEY).await.unwrap().remaining();
        while limits.check(&policy, KEY).await.unwrap().origin() != Origin::Lease {}
        // All leased tokens except the one that was spent.
        clock.advance(secs(1));
        let mut leased = 0;
        for _ in 0..5 {
            leased += take(&limits, &policy, 1).await.1;
        }
        assert!(leased > 0, "{policy}");
        limits.refund(&policy, KEY).cost(leased).await.unwrap();
        let settled = async {
            while has().await < 994 + leased {
                tokio::task::yield_now().await;
            }
        };
        let settled = tokio::time::timeout(secs(10), settled).await;
        assert!(settled.is_ok(), "{policy}: {} of {leased}", has().await);
        // No permits are created: the usage was never higher.
        limits.refund(&policy, KEY).cost(900).await.unwrap();
        assert!(has().await <= 1_000, "{policy}");
        assert!(take(&limits, &policy, 2_000).await.0 <= 1_000, "{policy}");
    }
}

#[tokio::test]
async fn several_limits_are_decided_by_the_store() {
    let (limits, _other, _) = two();
    let policy = &shapes()[0];
    let daily = Policy::sliding_window("d")
        .limit(50)
        .window("1d")
        .deadline(PATIENT)
        .build()
        .unwrap();
    for _ in 0..50 {
        let decision = limits.check_all([(policy, KEY), (&daily, KEY)]).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.origin()), (true, Origin::Redis));
    }
    assert!(
        !limits
            .check_all([(policy, KEY), (&daily, KEY)])
            .await
            .unwrap()
            .is_allowed()
    );
}

#[tokio::test]
async fn lease_has_no_effect_in_process() {
    for policy in shapes() {
        let limits = Limiter::in_process().build();
        assert_eq!(take(&limits, &policy, 2_000).await, (1_000, 0));
    }
}

/// Leased permits can be spent in an outage until the lease ends.
#[tokio::test]
async fn leased_permits_remain_valid_in_outage() {
    let server = RedisServer::start();
    let (limits, policy, clock) = limiter_with_lease(&server).await;
    drop(server);
    let decision = limits.check(&policy, KEY).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.origin()), (true, Origin::Lease));
    clock.advance(secs(10));
    assert!(
        limits.check(&policy, KEY).await.is_err(),
        "an expired lease is not spent"
    );
}

/// An unsent call does not return permits that Redis has not received.
#[tokio::test]
async fn unsent_call_in_outage_costs_no_leased_permit() {
    let server = RedisServer::start();
    let (limits, policy, _clock) = limiter_with_lease(&server).await;
    drop(server);
    let plain = without_lease(&policy);
    let nothing_is_sent = async {
        let sent = |answer: Result<_, Rejection>| match answer {
            Err(Rejection::Unavailable { error, .. }) => error.may_have_been_charged(),
            _ => true,
        };
        while sent(limits.check(&plain, KEY).await) {}
    };
    tokio::time::timeout(secs(10), nothing_is_sent).await.unwrap();
    for _ in 0..3 {
        assert!(limits.check(&policy, KEY).cost(900).await.is_err());
        let decision = limits.check(&policy, KEY).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.origin()), (true, Origin::Lease));
    }
}

/// A limiter with leased tokens of a policy.
async fn limiter_with_lease(server: &RedisServer) -> (Limiter, Policy, ManualClock) {
    let clock = ManualClock::new();
    let limits = Limiter::redis(server.url())
        .namespace("n")
        .clock(&clock)
        .build()
        .unwrap();
    let policy = Policy::token_bucket("p").capacity(1_000).rate(1).lease("10s");
    let policy = policy.on_store_failure(OnStoreFailure::Error).build().unwrap();
    while limits.check(&policy, KEY).await.unwrap().origin() != Origin::Lease {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(millis(50)).await;
    (limits, policy, clock)
}

/// A call with a grant that is cancelled while its trial is decided returns the permit.
#[tokio::test]
async fn cancelled_call_with_pending_trial_returns_its_permit() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let proxy = Proxy::start(server.port());
    let limits = Limiter::redis(proxy.url()).namespace(namespace()).clock(&clock);
    let limits = limits.replicas(1).build().unwrap();
    let [policy, _] = shapes();
    let tried = policy
        .clone()
        .with_trial(&without_lease(&policy), clock.now().after(secs(3_600)))
        .unwrap();
    let (_, leased) = take(&limits, &policy, 100).await;
    assert!(leased > 0);
    let remaining = async || {
        let decision = limits.check(&policy, KEY).await.unwrap();
        assert_eq!(decision.origin(), Origin::Lease);
        decision.remaining()
    };
    let before = remaining().await;
    proxy.set_black_hole(true);
    let mut call = limits.acquire(&tried, KEY).timeout(secs(60)).into_future();
    let granted = tokio::time::timeout(Duration::ZERO, &mut call).await;
    assert!(granted.is_err(), "the trial has no reply");
    drop(call);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(remaining().await, before - 1);
}
