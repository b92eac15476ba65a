//! Bounds of reservations for random estimates, actual costs, pauses and settlements; and the
//! effects of a settlement on the caches in front of Redis.
//!
//! `LIMITER_SEED` repeats a run.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "the seed repeats a failed run")]

mod support;

use std::sync::Arc;

use fastrand::Rng;
use limiter_core::__private::{Reporter, Settlement};
use limiter_core::{Amount, LimitRequest, Limiter, ManualClock, OnStoreFailure, Origin, Policy, Reservation};
use limiter_testing::{Proxy, RedisServer};
use support::{KEY, PATIENT, bucket, funnel, left, micros, millis, namespace, secs, wait_of, window};

fn seed() -> u64 {
    let seed = std::env::var("LIMITER_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("LIMITER_SEED={seed}");
    seed
}

/// Ten at once, and ten in a second.
fn policies() -> [Policy; 3] {
    [bucket("b", 10, 10), funnel("f", 10, 10), window("w", 10, "1s")]
}

/// A granted reservation: its time, its actual cost and estimate, and the time of the refund.
#[derive(Debug)]
struct Granted {
    at: u64,
    estimate: u64,
    used: u64,
    settled_at: Option<u64>,
}

/// Over any time T the admitted actual cost is at most the quota plus the refill, plus the refunds
/// within T of earlier charges. In a window at most the limit.
#[tokio::test]
async fn settled_usage_stays_within_bound() {
    let mut rng = Rng::with_seed(seed());
    for round in 0..600 {
        let policy = &policies()[round % 3];
        let clock = ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).build();
        let mut granted: Vec<Granted> = Vec::new();
        let mut open: Vec<(usize, Reservation)> = Vec::new();
        for _ in 0..60 {
            clock.advance(micros(rng.u64(0..400_000) * rng.u64(0..2)));
            let at = clock.now().as_micros();
            if !open.is_empty() && rng.bool() {
                let (number, reservation) = open.swap_remove(rng.usize(0..open.len()));
                // Some are dropped, and some owe.
                if rng.u8(0..5) > 0 {
                    let actual = rng.u64(0..=granted[number].estimate + 2);
                    reservation.settle(actual).await.unwrap();
                    granted[number].used = actual.min(granted[number].estimate);
                    granted[number].settled_at = Some(at);
                }
                continue;
            }
            let estimate = rng.u64(1..=10);
            if let Ok(reservation) = limits.reserve(policy, KEY).cost(estimate).await {
                open.push((granted.len(), reservation));
                granted.push(Granted {
                    at,
                    estimate,
                    used: estimate,
                    settled_at: None,
                });
            }
        }
        for first in 0..granted.len() {
            let from = granted[first].at;
            let mut sum = 0;
            for grant in &granted[first..] {
                sum += grant.used;
                let most = if policy.name() == "w" {
                    if grant.at >= from + 1_000_000 {
                        break;
                    }
                    10_000_000
                } else {
                    let given_back = granted[..first].iter().filter(|earlier| {
                        earlier
                            .settled_at
                            .is_some_and(|at| (from..=grant.at).contains(&at))
                    });
                    let given_back: u64 = given_back.map(|earlier| earlier.estimate - earlier.used).sum();
                    (10 + given_back) * 1_000_000 + 10 * (grant.at - from)
                };
                assert!(
                    sum * 1_000_000 <= most,
                    "{round} {policy}: {sum} from {from} to {grant:?}"
                );
            }
        }
    }
}

/// A settlement before any time passes equals a charge of the actual cost, including debts.
#[tokio::test]
async fn immediate_settlement_equals_charge_of_actual_cost() {
    let mut rng = Rng::with_seed(seed());
    for round in 0..600 {
        let policy = &policies()[round % 3];
        let clock = ManualClock::new();
        let build = || Limiter::in_process().clock(&clock).build();
        let (reserving, charging) = (build(), build());
        for _ in 0..40 {
            clock.advance(micros(rng.u64(0..900_000)));
            let estimate = rng.u64(0..=10);
            if let Ok(reservation) = reserving.reserve(policy, KEY).cost(estimate).await {
                let actual = rng.u64(0..=estimate + 5);
                reservation.settle(actual).await.unwrap();
                charging.charge(policy, KEY).cost(actual).await.unwrap();
            }
            let check = |limits: &Limiter| {
                let limits = limits.clone();
                async move { limits.peek(policy, KEY).cost(1).await.unwrap() }
            };
            let (ours, theirs) = (check(&reserving).await, check(&charging).await);
            let result = |decision: &limiter_core::Decision| {
                (
                    decision.remaining(),
                    decision.retry_after(),
                    decision.reset_after(),
                )
            };
            // A window refunds its oldest permits first, so that the others leave it later.
            if policy.name() == "w" {
                assert_eq!(result(&ours).0, result(&theirs).0, "{round} {policy}");
                break;
            }
            assert_eq!(result(&ours), result(&theirs), "{round} {policy}");
        }
    }
}

/// After a policy change that keeps the usage, a cancelled reservation leaves no more permits than
/// a limit without it.
#[tokio::test]
async fn cancelled_reservation_creates_no_permits_after_change() {
    let mut rng = Rng::with_seed(seed());
    let mut refunded = 0;
    for round in 0..4_000 {
        let policy = |rng: &mut Rng| {
            let quota = rng.u64(1..40);
            let rate = ["1/s", "3/s", "1/10s", "10/s", "7/3s"][rng.usize(0..5)];
            let length = ["1s", "7s", "20s", "1m"][rng.usize(0..4)];
            match round % 3 {
                0 => bucket("p", quota, rate),
                1 => funnel("p", quota, rate),
                _ => window("p", quota, length),
            }
        };
        let (before, after) = (policy(&mut rng), policy(&mut rng));
        let clock = ManualClock::new();
        let build = || Limiter::in_process().clock(&clock).build();
        let (with, without) = (build(), build());
        // Both have the same calls. A change rounds a fraction of a thousandth down, which may deny
        // a call by this amount: such a call is refunded.
        let call = async |policy: &Policy, cost: u64| {
            if cost <= policy.quota().whole()
                && with.check(policy, KEY).cost(cost).await.unwrap().is_allowed()
            {
                let other = without.check(policy, KEY).cost(cost).await.unwrap();
                if !other.is_allowed() {
                    assert!(wait_of(&other) <= millis(20), "{round}: {before} to {after}");
                    with.refund(policy, KEY).cost(cost).await.unwrap();
                }
            }
        };
        call(&before, rng.u64(0..20)).await;
        clock.advance(micros(rng.u64(0..2_000_000)));
        // A call refills a level at the rate of its policy since the last write, so both are
        // written at the time of the reservation.
        if round % 3 < 2 {
            for limits in [&with, &without] {
                limits.charge(&before, KEY).cost(0.001).await.unwrap();
            }
        }
        let estimate = rng.u64(1..=before.quota().whole());
        let Ok(reservation) = with.reserve(&before, KEY).cost(estimate).await else {
            continue;
        };
        let changes_after = rng.u32(0..4);
        for number in 0..6 {
            if number == changes_after {
                with.registry().set(&after);
            }
            let applied = if number < changes_after { &before } else { &after };
            clock.advance(micros(rng.u64(0..4_000_000) * rng.u64(0..4)));
            call(applied, rng.u64(0..12)).await;
        }
        let remaining =
            async |limits: &Limiter| left(&limits.peek(&after, KEY).await.unwrap()).as_thousandths();
        let earlier = remaining(&with).await;
        reservation.cancel().await.unwrap();
        refunded += u32::from(remaining(&with).await > earlier);
        for _ in 0..2 {
            let (one, other) = (remaining(&with).await, remaining(&without).await);
            assert!(one <= other + 2, "{round}: {before} to {after}: {one} of {other}");
            clock.advance(secs(3));
        }
    }
    assert!(refunded > 100, "{refunded}");
}

fn on_redis(server: &RedisServer, clock: &ManualClock) -> Limiter {
    let builder = Limiter::redis(server.url()).namespace(namespace());
    builder.clock(clock).build().unwrap()
}

/// A settlement invalidates an earlier denial of Redis, in both directions.
#[tokio::test]
async fn cached_denials_are_invalidated_by_settlement() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    for policy in policies() {
        let limits = on_redis(&server, &clock);
        let reservation = limits.reserve(&policy, KEY).cost(10).await.unwrap();
        let denied = limits.check(&policy, KEY).await.unwrap();
        assert!(!denied.is_allowed(), "{policy}");
        let known = limits.check(&policy, KEY).await.unwrap();
        assert_eq!(known.origin(), Origin::DenyCache, "{policy}");
        reservation.settle(9).await.unwrap();
        let allowed = limits.check(&policy, KEY).await.unwrap();
        assert!(
            allowed.is_allowed() && allowed.origin() == Origin::Redis,
            "{policy}"
        );

        assert!(
            !limits.check(&policy, KEY).await.unwrap().is_allowed(),
            "{policy}"
        );
        limits.charge(&policy, KEY).cost(10).await.unwrap();
        let denied = limits.check(&policy, KEY).await.unwrap();
        assert_eq!(denied.origin(), Origin::Redis, "{policy}");
        assert!(wait_of(&denied) >= secs(1), "{policy}");
    }
}

/// Leased permits are spent before a debt arises, and a debt delays calls to Redis.
#[tokio::test]
async fn debt_uses_leased_permits_first() {
    for shape in [Policy::token_bucket("p"), Policy::funnel("p")] {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let policy = shape.capacity(100).rate(1).lease("10s").deadline(PATIENT);
        let policy = policy.on_store_failure(OnStoreFailure::Error).build().unwrap();
        let limits = on_redis(&server, &clock);
        // The second is spent from the lease of the first.
        let mut borrowed = false;
        while !borrowed {
            let decision = limits.check(&policy, KEY).await.unwrap();
            borrowed = decision.origin() == Origin::Lease;
            assert!(decision.is_allowed(), "{policy}");
        }
        limits.charge(&policy, KEY).cost(150).await.unwrap();
        let denied = limits.check(&policy, KEY).await.unwrap();
        assert!(!denied.is_allowed(), "{policy}: {denied:?}");
        assert!(wait_of(&denied) >= secs(51), "{policy}: {denied:?}");
    }
}

/// The charge of a reservation was refilled: leased permits that others spent since are not
/// refunded for it.
#[tokio::test]
async fn refilled_permits_are_not_refunded_from_leases() {
    for shape in [Policy::token_bucket("p"), Policy::funnel("p")] {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let policy = shape.capacity(1_000).rate(1_000).lease("10s").deadline(PATIENT);
        let policy = policy.on_store_failure(OnStoreFailure::Error).build().unwrap();
        let limits = on_redis(&server, &clock);
        let reservation = limits.reserve(&policy, KEY).cost(500).await.unwrap();
        assert_eq!(reservation.decision().origin(), Origin::Redis, "{policy}");
        clock.advance(secs(2));
        let (mut admitted, mut borrowed) = (0, 0);
        while borrowed < 10 {
            let decision = limits.check(&policy, KEY).await.unwrap().require().unwrap();
            admitted += 1;
            borrowed += u32::from(decision.origin() == Origin::Lease);
        }
        reservation.settle(0).await.unwrap();
        while limits.check(&policy, KEY).await.unwrap().is_allowed() {
            admitted += 1;
        }
        assert!(admitted <= 1_000, "{policy}: {admitted}");
    }
}

/// The share that a replica applies while Redis is out begins in debt as well.
#[tokio::test]
async fn local_fallback_continues_debt() {
    for shape in [Policy::token_bucket("p"), Policy::funnel("p")] {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let limits = Limiter::redis(server.url()).namespace(namespace());
        let limits = limits.clock(&clock).replicas(1).build().unwrap();
        let policy = shape.capacity(10).rate(10).deadline(secs(10)).build().unwrap();
        let reservation = limits.reserve(&policy, KEY).cost(10).await.unwrap();
        reservation.settle(40).await.unwrap();
        server.kill();
        clock.advance(secs(3));
        let denied = limits.check(&policy, KEY).await.unwrap();
        assert_eq!(
            (denied.is_allowed(), denied.origin()),
            (false, Origin::LocalFallback)
        );
        clock.advance(millis(101));
        let allowed = limits.check(&policy, KEY).await.unwrap();
        assert_eq!(
            (allowed.is_allowed(), allowed.origin()),
            (true, Origin::LocalFallback)
        );
        assert!(
            !limits.check(&policy, KEY).await.unwrap().is_allowed(),
            "{policy}"
        );
    }
}

/// A local fallback grant was not charged in Redis, so it is not refunded there.
#[tokio::test]
async fn local_fallback_grant_creates_no_permits_in_redis() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let policy = bucket("p", 10, 10);
    let open = Policy::token_bucket("p").capacity(10).rate(10);
    let open = open
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::FailOpen)
        .build()
        .unwrap();
    let limits = on_redis(&server, &clock);
    server.kill();
    let reservation = limits.reserve(&open, KEY).cost(8).await.unwrap();
    assert_eq!(reservation.decision().origin(), Origin::FailedOpen);
    server.restart();
    support::answers_again(&limits, secs(5)).await;
    assert!(limits.check(&policy, KEY).cost(10).await.unwrap().is_allowed());
    reservation.cancel().await.unwrap();
    assert!(!limits.check(&policy, KEY).await.unwrap().is_allowed());
}

/// A grant of this replica's share is settled against the share, in both directions, and never in
/// Redis.
#[tokio::test]
async fn grant_of_share_is_settled_with_share() {
    let local = [
        Policy::token_bucket("b")
            .capacity(10)
            .rate("1/h")
            .build()
            .unwrap(),
        Policy::funnel("f").capacity(10).rate("1/h").build().unwrap(),
        Policy::sliding_window("w")
            .limit(10)
            .window("1h")
            .build()
            .unwrap(),
        Policy::counter_window("c")
            .limit(10)
            .window("1h")
            .build()
            .unwrap(),
        Policy::fixed_window("x").limit(10).window("1h").build().unwrap(),
    ];
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = Limiter::redis(server.url()).namespace(namespace());
    let limits = limits.clock(&clock).replicas(1).build().unwrap();
    server.kill();
    let left = async |policy| {
        let decision = limits.peek(policy, KEY).cost(0).await.unwrap();
        assert_eq!(decision.origin(), Origin::LocalFallback, "{policy}");
        decision.remaining()
    };
    let mut open = Vec::new();
    for policy in &local {
        let reservation = limits.reserve(policy, KEY).cost(10).await.unwrap();
        assert_eq!(reservation.decision().origin(), Origin::LocalFallback, "{policy}");
        reservation.settle(4).await.unwrap();
        assert_eq!(left(policy).await, 6, "{policy}: the difference is refunded");
        let reservation = limits.reserve(policy, KEY).cost(3).await.unwrap();
        reservation.cancel().await.unwrap();
        assert_eq!(left(policy).await, 6, "{policy}: the whole estimate is refunded");
        let reservation = limits.reserve(policy, KEY).cost(1).await.unwrap();
        reservation.settle(5).await.unwrap();
        assert_eq!(left(policy).await, 1, "{policy}: the usage exceeds the estimate");
        open.push(limits.reserve(policy, KEY).cost(1).await.unwrap());
    }
    // Refilled permits are not refunded again.
    clock.advance(secs(48 * 3_600));
    for policy in &local {
        assert!(
            limits.check(policy, KEY).cost(10).await.unwrap().is_allowed(),
            "{policy}"
        );
    }
    for (policy, reservation) in local.iter().zip(open) {
        reservation.cancel().await.unwrap();
        assert_eq!(left(policy).await, 0, "{policy}");
    }
    // The recovered Redis has no additional permits either.
    let patient = bucket("b", 10, "1/h");
    let reservation = limits.reserve(&local[0], "other").cost(8).await.unwrap();
    server.restart();
    support::answers_again(&limits, secs(5)).await;
    assert!(
        limits
            .check(&patient, "other")
            .cost(10)
            .await
            .unwrap()
            .is_allowed()
    );
    reservation.cancel().await.unwrap();
    assert!(!limits.check(&patient, "other").await.unwrap().is_allowed());
}

/// A settlement continues when its future is dropped and when the limiter is shut down.
#[tokio::test]
async fn cancelled_settlement_is_applied() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let policy = bucket("p", 10, 1);
    let shared = namespace();
    let [limits, other] = [(); 2].map(|()| {
        let builder = Limiter::redis(server.url()).namespace(&shared);
        builder.clock(&clock).build().unwrap()
    });
    let reservation = limits.reserve(&policy, KEY).cost(10).await.unwrap();
    let settling = tokio::time::timeout(std::time::Duration::ZERO, reservation.settle(4)).await;
    assert!(settling.is_err(), "Redis takes longer than no time");
    limits.shutdown(PATIENT).await;
    assert_eq!(other.peek(&policy, KEY).await.unwrap().remaining(), 6);
}

/// A sequential client: when it reserves again, the settlement of its previous call is still in
/// flight to Redis.
#[tokio::test]
async fn unapplied_settlement_does_not_deny_next_reservation() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let proxy = Proxy::start(server.port());
    proxy.set_delay(millis(2));
    let limits = Limiter::redis(proxy.url()).namespace(namespace());
    let limits = limits.clock(&clock).build().unwrap();
    let window = Policy::sliding_window("w").limit(100).window("1h");
    let funnel = Policy::funnel("f").capacity(100).rate("1/h");
    let window = window.deadline(PATIENT).build().unwrap();
    let funnel = funnel.deadline(PATIENT).build().unwrap();
    for policy in [bucket("b", 100, "1/h"), funnel, window] {
        for call in 0..30 {
            let reservation = match call % 3 {
                0 => limits.reserve(&policy, KEY).cost(60).await,
                1 => {
                    limits
                        .reserve_all([LimitRequest::new(&policy, KEY).cost(60)])
                        .await
                }
                // No other call waits, so a grant must not depend on the wait.
                _ => limits.reserve(&policy, KEY).cost(60).timeout(millis(0)).await,
            };
            assert!(reservation.is_ok(), "{policy}, call {call}: {reservation:?}");
            start(reservation.unwrap().settle(1)).await;
        }
        // The denial is the usual one where the settlements leave too little.
        start(limits.reserve(&policy, KEY).cost(60).await.unwrap().settle(50)).await;
        let denied = limits.check(&policy, KEY).cost(60).await.unwrap();
        assert_eq!((denied.is_allowed(), denied.remaining()), (false, 20), "{policy}");
    }
}

/// A layer settles in the background; its next request finds the share settled, though no task has
/// run in between.
#[tokio::test]
async fn background_settlement_of_share_precedes_next_call() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = Limiter::redis(server.url()).namespace(namespace());
    let limits = limits.clock(&clock).replicas(1).build().unwrap();
    let policy = Policy::token_bucket("p")
        .capacity(100)
        .rate("1/h")
        .build()
        .unwrap();
    server.kill();
    let reporter = Arc::new(Reporter::of_layer("test", ["p"].into_iter()));
    for _ in 0..20 {
        let check = limits.check(&policy, KEY).cost(60);
        let decision = check.clone().await.unwrap();
        assert_eq!(decision.origin(), Origin::LocalFallback);
        assert!(decision.is_allowed(), "{decision:?}");
        let settlement = Settlement::of(&check, &decision, &reporter).unwrap();
        assert!(settlement.settle([Amount::ONE]).is_none());
    }
}

/// Polls once, as a caller does that is cancelled then.
async fn start(future: impl Future) {
    let _ = tokio::time::timeout(std::time::Duration::ZERO, future).await;
}

/// A reservation crosses awaits and tasks, and outlives its reference to the limiter.
#[test]
fn reservation_is_owned() {
    fn is_owned<T: Send + Sync + std::fmt::Debug + 'static>() {}
    is_owned::<Reservation>();
}
