use std::time::Duration;

use limiter_core::{Enforcement, ManualClock};
use limiter_testing::{Proxy, RedisServer};

use super::*;

fn limiter() -> Limiter {
    Limiter::in_process().clock(&ManualClock::new()).build()
}

fn policy(name: &str, limit: u32) -> Policy {
    Policy::sliding_window(name)
        .limit(limit)
        .window("1m")
        .build()
        .unwrap()
}

fn limit(policy: &Policy, key: &'static str, cost: u64) -> RequestedLimit {
    RequestedLimit {
        policy: policy.clone(),
        key: Key::from(key),
        cost: Amount::from(cost),
        group: None,
    }
}

async fn left(limiter: &Limiter, policy: &Policy, key: &str) -> u64 {
    limiter.peek(policy, key).await.unwrap().remaining()
}

fn allowed(results: &[LimitResult]) -> Vec<bool> {
    results.iter().map(|result| result.allowed).collect()
}

#[tokio::test]
async fn denial_of_one_set_refunds_earlier_sets_and_peeks_later_ones() {
    let (limiter, wide, narrow) = (limiter(), policy("wide", 10), policy("narrow", 1));
    let request = [limit(&wide, "a", 2), limit(&narrow, "b", 1), limit(&wide, "c", 3)];
    let first = charge_all(&limiter, &request).await.unwrap();
    assert_eq!(allowed(&first), [true, true, true]);
    let second = charge_all(&limiter, &request).await.unwrap();
    assert_eq!(allowed(&second), [true, false, true]);
    assert_eq!(left(&limiter, &wide, "a").await, 8);
    assert_eq!(left(&limiter, &wide, "c").await, 7);
    let peeked = second.last().unwrap().outcome.as_ref().unwrap();
    assert_eq!(peeked.remaining().whole(), 7, "the number of the peeked limit");
}

#[tokio::test]
async fn limits_with_one_tag_are_charged_atomically() {
    let (limiter, wide, narrow) = (limiter(), policy("wide", 10), policy("narrow", 1));
    let request = [limit(&wide, "a", 2), limit(&narrow, "a", 2)];
    let denied = charge_all(&limiter, &request).await.unwrap();
    assert_eq!(allowed(&denied), [true, false]);
    assert!(!denied[1].can_retry, "the cost exceeds the capacity");
    assert_eq!(left(&limiter, &wide, "a").await, 10);
}

#[tokio::test]
async fn repeated_limit_is_charged_the_sum_of_its_costs() {
    let (limiter, wide) = (limiter(), policy("wide", 10));
    let request = [limit(&wide, "a", 2), limit(&wide, "a", 3)];
    assert_eq!(
        allowed(&charge_all(&limiter, &request).await.unwrap()),
        [true, true]
    );
    assert_eq!(left(&limiter, &wide, "a").await, 5);
    let request = [limit(&wide, "a", 3), limit(&wide, "a", 3)];
    assert_eq!(
        allowed(&charge_all(&limiter, &request).await.unwrap()),
        [false, false]
    );
    assert_eq!(left(&limiter, &wide, "a").await, 5);
}

/// Descriptors of Envoy can contain different numbers for one key.
#[tokio::test]
async fn repeated_limit_with_other_numbers_is_decided_by_its_own() {
    let (limiter, five, two) = (limiter(), policy("window", 5), policy("window", 2));
    let request = [limit(&five, "a", 1), limit(&two, "a", 1), limit(&two, "a", 1)];
    let denied = charge_all(&limiter, &request).await.unwrap();
    assert_eq!(allowed(&denied), [true, false, false]);
    assert_eq!(left(&limiter, &five, "a").await, 5);
    assert_eq!(
        allowed(&charge_all(&limiter, &request[..2]).await.unwrap()),
        [true, true]
    );
    assert_eq!(left(&limiter, &five, "a").await, 3);
}

#[tokio::test]
async fn peek_that_denies_prevents_all_charges() {
    let (limiter, wide, narrow) = (limiter(), policy("wide", 10), policy("narrow", 1));
    let _ = limiter.check(&narrow, "n").await.unwrap();
    let request = [limit(&wide, "a", 2), limit(&narrow, "n", 0)];
    assert_eq!(
        allowed(&charge_all(&limiter, &request).await.unwrap()),
        [true, false]
    );
    assert_eq!(left(&limiter, &wide, "a").await, 10);
}

#[tokio::test]
async fn more_limits_than_an_atomic_decision_has_are_all_decided() {
    let limiter = limiter();
    let names: Vec<String> = (0..40).map(|number| format!("p{number}")).collect();
    let request: Vec<RequestedLimit> = names.iter().map(|name| limit(&policy(name, 1), "a", 1)).collect();
    assert_eq!(
        allowed(&charge_all(&limiter, &request).await.unwrap()),
        [true; 40]
    );
    assert_eq!(
        allowed(&charge_all(&limiter, &request).await.unwrap())[..16],
        [false; 16]
    );
}

#[tokio::test]
async fn shadow_and_off_policies_allow_and_report() {
    let limiter = limiter();
    let shadow = Policy::sliding_window("shadow").limit(1).window("1m");
    let shadow = shadow.enforcement(Enforcement::Shadow).build().unwrap();
    let off = Policy::sliding_window("off").limit(1).window("1m");
    let off = off.enforcement(Enforcement::Off).build().unwrap();
    let request = [limit(&off, "a", 1), limit(&shadow, "a", 1)];
    let first = charge_all(&limiter, &request).await.unwrap();
    assert_eq!((first[0].outcome.is_none(), first[0].would_deny), (true, false));
    assert!(!first[1].would_deny);
    let second = charge_all(&limiter, &request).await.unwrap();
    assert_eq!(allowed(&second), [true, true]);
    assert_eq!((second[0].would_deny, second[1].would_deny), (false, true));
}

#[tokio::test]
async fn refund_after_the_end_of_a_window_keeps_usage_of_the_next() {
    let clock = ManualClock::new();
    let limiter = Limiter::in_process().clock(&clock).build();
    let window = Policy::fixed_window("window")
        .limit(10)
        .window("1s")
        .build()
        .unwrap();
    let mut charged = ChargedSets::default();
    charged.add(limiter.reserve(&window, "a").cost(10_u32).await.unwrap());
    clock.advance(Duration::from_secs(1));
    assert!(
        limiter
            .check(&window, "a")
            .cost(10_u32)
            .await
            .unwrap()
            .is_allowed()
    );
    charged.refund().await;
    assert_eq!(left(&limiter, &window, "a").await, 0);
}

#[tokio::test]
async fn dropped_settlement_is_refunded() {
    let (limiter, wide) = (limiter(), policy("wide", 10));
    let settled = limit(&wide, "a", 4);
    limiter.charge(&wide, "a").cost(settled.cost).await.unwrap();
    let mut charged = ChargedSets::default();
    charged.add_settlement(&limiter, &settled);
    drop(charged);
    for _ in 0..1_000 {
        if left(&limiter, &wide, "a").await == 10 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{} of 10 are left", left(&limiter, &wide, "a").await);
}

/// Three peeks leave 2.2 s of the deadline for the charge. Its refund takes 2.4 s.
#[tokio::test]
async fn late_set_is_refunded_within_the_deadline_of_the_request() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let limiter = Limiter::redis(proxy.url()).namespace("test").build().unwrap();
    limiter.ready().await.unwrap();
    let patient = Policy::sliding_window("patient").limit(10_u32).window("1m");
    let patient = patient.deadline(Duration::from_secs(4)).build().unwrap();
    let request = [("x", 0), ("y", 0), ("z", 0), ("a", 3)].map(|(key, cost)| limit(&patient, key, cost));
    proxy.set_delay(Duration::from_millis(300));
    let (results, charged) = reserve_all(&limiter, &request).await.unwrap();
    assert_eq!(allowed(&results), [true; 4]);
    proxy.set_delay(Duration::from_millis(1_200));
    for reservation in charged.into_reservations() {
        reservation.cancel().await.unwrap();
    }
    proxy.set_delay(Duration::ZERO);
    assert_eq!(left(&limiter, &patient, "a").await, 10);
}
