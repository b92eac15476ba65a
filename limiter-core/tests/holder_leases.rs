//! Leases of named holders: stored and leased permits never exceed the permits that the policy as
//! one bucket would have left, and both stores give the same leases.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]
#![expect(clippy::print_stdout, reason = "the seed repeats a failed run")]

mod support;

use std::time::Duration;

use fastrand::Rng;
use limiter_core::lease::{LeaseRenewal, LeaseReport, TokenLease};
use limiter_core::{Amount, Limiter, ManualClock, Policy, Rejection};
use support::{KEY, Kind, Subject, bucket, funnel, secs, window};

const HOLDERS: [&str; 3] = ["node-1", "node|2", "node-3"];
const LIFETIME: Duration = secs(5);

/// The policy as one bucket, in thousandths times microseconds.
struct OneBucket {
    full: u128,
    left: u128,
    per_micro: u128,
}

impl OneBucket {
    fn new(capacity: u64, per_second: u64) -> Self {
        let full = u128::from(capacity) * 1_000_000_000;
        Self {
            full,
            left: full,
            per_micro: u128::from(per_second) * 1_000,
        }
    }

    fn advance(&mut self, by: Duration) {
        self.left = self.full.min(self.left + by.as_micros() * self.per_micro);
    }

    fn spend(&mut self, permits: u64) {
        let spent = u128::from(permits) * 1_000_000_000;
        assert!(spent <= self.left, "{permits} permits above the policy");
        self.left -= spent;
    }
}

/// A holder as a process: it spends its lease, and nothing while the result of a call is unknown.
#[derive(Default)]
struct Process {
    lease: Option<TokenLease>,
    left: u64,
    spent: u64,
    is_unsure: bool,
}

impl Process {
    fn spend(&mut self, subject: &Subject, permits: u64) -> u64 {
        let is_over = self
            .lease
            .as_ref()
            .is_none_or(|lease| lease.ends_at() <= subject.clock.now());
        if is_over || self.is_unsure {
            return 0;
        }
        let spent = permits.min(self.left);
        self.left -= spent;
        self.spent += spent;
        spent
    }

    /// Returns the permits that the holder can still spend.
    fn spendable(&self, subject: &Subject) -> u64 {
        let lease = self.lease.as_ref().filter(|_| !self.is_unsure);
        lease.map_or(0, |lease| match lease.ends_at() > subject.clock.now() {
            true => self.left,
            false => 0,
        })
    }

    fn apply(&mut self, renewal: LeaseRenewal) {
        let (LeaseRenewal::Renewed(lease) | LeaseRenewal::Superseded(lease)) = renewal else {
            unreachable!("there are two results");
        };
        (self.left, self.spent, self.is_unsure) = (lease.permits().whole(), 0, false);
        self.lease = Some(lease);
    }
}

async fn renew(
    subject: &Subject,
    policy: &Policy,
    holder: usize,
    process: &Process,
    wanted: u64,
) -> LeaseRenewal {
    let call = || {
        subject
            .limits
            .token_lease(policy, KEY, HOLDERS[holder])
            .lifetime(LIFETIME)
    };
    let (lease, spent) = match &process.lease {
        Some(lease) => (lease.clone(), process.spent.into()),
        // An earlier process of this name may have spent all of its lease.
        None => {
            let lease = call().read().await.unwrap();
            let all = lease.permits();
            (lease, all)
        }
    };
    let report = LeaseReport::default().spent(spent).wanted(wanted);
    call().renew(&lease, report).await.unwrap()
}

fn policy(rng: &mut Rng, name: &str) -> (Policy, OneBucket) {
    let (capacity, rate) = (rng.u64(1..60), rng.u64(1..30));
    let policy = match rng.bool() {
        true => bucket(name, capacity, rate),
        false => funnel(name, capacity, rate),
    };
    (policy, OneBucket::new(capacity, rate))
}

/// Plays one history of holders that spend, renew, lose requests and replies, and disappear.
async fn play(subject: &Subject, rng: &mut Rng, name: &str) {
    let (policy, mut bound) = policy(rng, name);
    let mut processes: [Process; HOLDERS.len()] = Default::default();
    for _ in 0..40 {
        let span = match rng.u8(0..8) {
            0..4 => Duration::ZERO,
            4..7 => Duration::from_micros(rng.u64(1..900_000)),
            _ => Duration::from_micros(rng.u64(1..12_000_000)),
        };
        subject.clock.advance(span);
        bound.advance(span);
        let holder = rng.usize(0..HOLDERS.len());
        match rng.u8(0..10) {
            0..3 => bound.spend(processes[holder].spend(subject, rng.u64(0..20))),
            3 => {
                let cost = rng.u64(1..10).min(policy.quota().whole());
                let decision = subject.limits.check(&policy, KEY).cost(cost).await.unwrap();
                bound.spend(if decision.is_allowed() { cost } else { 0 });
            }
            4 => {
                let process = std::mem::take(&mut processes[holder]);
                let lease = subject.limits.token_lease(&policy, KEY, HOLDERS[holder]);
                let spent = Amount::from(process.spent);
                if let (Some(held), false) = (process.lease, process.is_unsure) {
                    lease.release(&held, spent).await.unwrap();
                }
            }
            // The request or the reply is lost.
            5 => processes[holder].is_unsure = true,
            6 if !processes[holder].is_unsure => {
                let wanted = rng.u64(0..=policy.quota().whole());
                drop(renew(subject, &policy, holder, &processes[holder], wanted).await);
                processes[holder].is_unsure = true;
            }
            _ => {
                let wanted = rng.u64(0..=policy.quota().whole());
                let renewal = renew(subject, &policy, holder, &processes[holder], wanted).await;
                processes[holder].apply(renewal);
            }
        }
        let stored = subject.remaining(&policy).await.as_thousandths();
        let leased: u64 = processes.iter().map(|process| process.spendable(subject)).sum();
        let spendable = (stored + u128::from(leased) * 1_000) * 1_000_000;
        assert!(
            spendable <= bound.left,
            "{spendable} of {} in {policy:?}",
            bound.left
        );
    }
}

/// Returns a random number, or that of `LIMITER_SEED`, which repeats a run.
fn seed() -> u64 {
    let given = std::env::var("LIMITER_SEED").ok();
    let given = given.map(|text| text.parse().unwrap());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("LIMITER_SEED={seed}");
    seed
}

async fn histories(kind: Kind, rounds: u64) {
    let seed = seed();
    let subject = Subject::without_deny_cache(kind, ManualClock::new());
    for round in 0..rounds {
        let mut rng = Rng::with_seed(seed ^ round.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        play(&subject, &mut rng, &format!("p{round}")).await;
    }
}

#[tokio::test]
async fn stored_and_leased_permits_stay_within_policy_in_process() {
    histories(Kind::Memory, 2_000).await;
}

#[tokio::test]
async fn stored_and_leased_permits_stay_within_policy_in_redis() {
    histories(Kind::Standalone, 150).await;
}

/// A bucket of a holder that is refilled at a steady rate, in thousandths times microseconds.
struct SteadyBucket {
    holder: usize,
    full: u128,
    tokens: u128,
    per_micro: u128,
    lease: TokenLease,
}

impl SteadyBucket {
    fn advance(&mut self, subject: &Subject, by: Duration) {
        self.tokens = self.full.min(self.tokens + by.as_micros() * self.per_micro);
        if self.lease.ends_at() <= subject.clock.now() {
            (self.tokens, self.full) = (0, 0);
        }
    }
}

/// Plays one history of holders with steady buckets, and of calls beside them.
async fn play_steady(subject: &Subject, rng: &mut Rng, name: &str) {
    let (capacity, rate) = (rng.u64(4..60), rng.u64(1..30));
    let policy = match rng.bool() {
        true => bucket(name, capacity, rate),
        false => funnel(name, capacity, rate),
    };
    let mut bound = OneBucket::new(capacity, rate);
    let mut buckets: Vec<SteadyBucket> = Vec::new();
    let (permits, steady) = (capacity / 4, rng.u32(1..500_000));
    let report = LeaseReport::default().held(permits).steady_millionths(steady);
    for _ in 0..60 {
        let span = match rng.u8(0..8) {
            0..3 => Duration::ZERO,
            3..7 => Duration::from_micros(rng.u64(1..900_000)),
            _ => Duration::from_micros(rng.u64(1..9_000_000)),
        };
        subject.clock.advance(span);
        bound.advance(span);
        buckets
            .iter_mut()
            .for_each(|bucket| bucket.advance(subject, span));
        buckets.retain(|bucket| bucket.full > 0);
        let call = |holder: usize| {
            let call = subject.limits.token_lease(&policy, KEY, HOLDERS[holder]);
            call.lifetime(LIFETIME)
        };
        let holder = rng.usize(0..2);
        let known = buckets.iter().position(|bucket| bucket.holder == holder);
        match (rng.u8(0..6), known) {
            (0, _) => {
                let cost = rng.u64(1..5).min(capacity);
                let decision = subject.limits.check(&policy, KEY).cost(cost).await.unwrap();
                bound.spend(if decision.is_allowed() { cost } else { 0 });
            }
            (1 | 2, Some(known)) => {
                let spent = rng
                    .u64(0..=permits)
                    .min(u64::try_from(buckets[known].tokens / 1_000_000_000).unwrap());
                buckets[known].tokens -= u128::from(spent) * 1_000_000_000;
                bound.spend(spent);
            }
            (3, Some(known)) => {
                let bucket = buckets.remove(known);
                call(holder).release(&bucket.lease, permits.into()).await.unwrap();
            }
            (_, Some(known)) => {
                let LeaseRenewal::Renewed(lease) =
                    call(holder).renew(&buckets[known].lease, report).await.unwrap()
                else {
                    panic!("the epoch is the recorded one");
                };
                buckets[known].lease = lease;
            }
            (_, None) if subject.remaining(&policy).await >= Amount::from(permits) => {
                let none = call(holder).read().await.unwrap();
                let LeaseRenewal::Renewed(lease) = call(holder).renew(&none, report).await.unwrap() else {
                    panic!("no lease is recorded");
                };
                let full = u128::from(permits) * 1_000_000_000;
                // In thousandths of a thousandth, rounded down below the millionths of the rate.
                let per_micro = u128::from(rate) * 1_000 * u128::from(steady) / 1_000_000;
                buckets.push(SteadyBucket {
                    holder,
                    full,
                    tokens: full,
                    per_micro,
                    lease,
                });
            }
            _ => {}
        }
        let stored = subject.remaining(&policy).await.as_thousandths() * 1_000_000;
        let spendable = stored + buckets.iter().map(|bucket| bucket.tokens).sum::<u128>();
        assert!(
            spendable <= bound.left,
            "{spendable} of {} in {policy:?} with {steady}",
            bound.left
        );
    }
}

async fn steady_histories(kind: Kind, rounds: u64) {
    let seed = seed();
    let subject = Subject::without_deny_cache(kind, ManualClock::new());
    for round in 0..rounds {
        let mut rng = Rng::with_seed(seed ^ round.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        play_steady(&subject, &mut rng, &format!("s{round}")).await;
    }
}

#[tokio::test]
async fn stored_permits_and_steady_buckets_stay_within_policy_in_process() {
    steady_histories(Kind::Memory, 2_000).await;
}

#[tokio::test]
async fn stored_permits_and_steady_buckets_stay_within_policy_in_redis() {
    steady_histories(Kind::Standalone, 150).await;
}

/// The permits of a holder and the stored permits after each of these steps, in both stores.
#[tokio::test]
async fn both_stores_give_same_leases() {
    let seed = seed();
    for round in 0..150_u64 {
        let mut rng = Rng::with_seed(seed ^ round.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let clock = ManualClock::new();
        let stores = [Kind::Memory, Kind::Standalone];
        let stores = stores.map(|kind| Subject::without_deny_cache(kind, clock.clone()));
        let (policy, _) = policy(&mut rng, &format!("p{round}"));
        let mut leases = [const { [const { None::<TokenLease> }; 2] }; HOLDERS.len()];
        for step in 0..30 {
            clock.advance(Duration::from_micros(match rng.u8(0..6) {
                0 => 0,
                1 => rng.u64(0..12_000_000),
                _ => rng.u64(0..700_000),
            }));
            let holder = rng.usize(0..HOLDERS.len());
            let thousandths = |rng: &mut Rng, most: u64| Amount::from_thousandths(rng.u64(0..most));
            let held = thousandths(&mut rng, 9_000).max(Amount::from_thousandths(1));
            let quota = u64::try_from(policy.quota().as_thousandths()).unwrap();
            let report = LeaseReport::default()
                .spent(thousandths(&mut rng, 5_000))
                .steady_millionths(rng.u32(0..3) * rng.u32(0..500_000))
                .held(held)
                .wanted(thousandths(&mut rng, quota + 1));
            let (is_check, data) = (rng.u8(0..4) == 0, [step, 1, 2]);
            let mut seen = Vec::new();
            for (store, subject) in stores.iter().enumerate() {
                if is_check {
                    let decision = subject.call(&policy).await;
                    seen.push(format!("{} {:?}", decision.is_allowed(), decision.retry_after()));
                    continue;
                }
                let call = || {
                    subject
                        .limits
                        .token_lease(&policy, KEY, HOLDERS[holder])
                        .lifetime(LIFETIME)
                };
                let lease = match leases[holder][store].clone() {
                    Some(lease) => lease,
                    None => call().read().await.unwrap(),
                };
                let renewed = call().renew(&lease, report.data(&data)).await.unwrap();
                let (is_renewed, lease) = match renewed {
                    LeaseRenewal::Renewed(lease) => (true, lease),
                    LeaseRenewal::Superseded(lease) => (false, lease),
                    _ => unreachable!("there are two results"),
                };
                let remaining = subject.remaining(&policy).await;
                let permits = lease.permits();
                seen.push(format!("{is_renewed} {permits} {remaining} {:?}", lease.data()));
                leases[holder][store] = Some(lease);
            }
            assert_eq!(seen[0], seen[1], "round {round} step {step} of {policy:?}");
        }
    }
}

async fn repeated_report_is_counted_once(subject: Subject) {
    let policy = bucket("p", 100, 1);
    let call = || subject.limits.token_lease(&policy, KEY, "node");
    let none = call().read().await.unwrap();
    assert_eq!((none.permits(), none.epoch()), (Amount::ZERO, 0));
    let wanted = LeaseReport::default().wanted(40_u32).data(b"x");
    let LeaseRenewal::Renewed(first) = call().renew(&none, wanted).await.unwrap() else {
        panic!("no lease is recorded");
    };
    let report = LeaseReport::default().spent(30_u32);
    let LeaseRenewal::Renewed(second) = call().renew(&first, report).await.unwrap() else {
        panic!("the epoch is the recorded one");
    };
    assert_eq!(subject.remaining(&policy).await, Amount::from(70_u32));
    let LeaseRenewal::Superseded(recorded) = call().renew(&first, report).await.unwrap() else {
        panic!("the epoch is an earlier one");
    };
    assert_eq!(recorded.epoch(), second.epoch());
    assert_eq!(subject.remaining(&policy).await, Amount::from(70_u32));
}

async fn ended_lease_counts_as_spent(subject: Subject) {
    let policy = bucket("p", 100, 1);
    let call = || {
        subject
            .limits
            .token_lease(&policy, KEY, "node")
            .lifetime(secs(10))
    };
    let none = call().read().await.unwrap();
    let _ = call()
        .renew(&none, LeaseReport::default().wanted(40_u32))
        .await
        .unwrap();
    subject.clock.advance(secs(10));
    assert_eq!(call().read().await.unwrap().epoch(), 0);
    // The level counts them for at most two lifetimes, and refills them afterwards.
    assert_eq!(subject.remaining(&policy).await, Amount::from(60_u32));
    subject.clock.advance(secs(15));
    assert_eq!(subject.remaining(&policy).await, Amount::from(65_u32));
}

async fn returned_permits_admit_the_next_call(subject: Subject) {
    let policy = bucket("p", 4, 1);
    let call = || subject.limits.token_lease(&policy, KEY, "node");
    let none = call().read().await.unwrap();
    let wanted = LeaseReport::default().wanted(4_u32);
    let LeaseRenewal::Renewed(lease) = call().renew(&none, wanted).await.unwrap() else {
        panic!("no lease is recorded");
    };
    assert!(
        !subject.call(&policy).await.is_allowed(),
        "all permits are leased"
    );
    call().release(&lease, Amount::ZERO).await.unwrap();
    assert!(
        subject.call(&policy).await.is_allowed(),
        "all permits are returned"
    );
}

async fn held_permits_are_debt_without_remaining_ones(subject: Subject) {
    let policy = bucket("p", 100, 1);
    let call = || subject.limits.token_lease(&policy, KEY, "node");
    let none = call().read().await.unwrap();
    let renewed = call()
        .renew(&none, LeaseReport::default().held(130_u32))
        .await
        .unwrap();
    assert!(matches!(renewed, LeaseRenewal::Renewed(lease) if lease.permits() == Amount::from(130_u32)));
    let denied = subject.call(&policy).await;
    assert!(!denied.is_allowed());
}

async fn steady_refill_of_a_late_report_is_no_debt(subject: Subject) {
    let policy = bucket("p", 100, 10);
    let call = || {
        subject
            .limits
            .token_lease(&policy, KEY, "node")
            .lifetime(secs(60))
    };
    let none = call().read().await.unwrap();
    let held = LeaseReport::default().held(50_u32).steady_millionths(900_000);
    let LeaseRenewal::Renewed(lease) = call().renew(&none, held).await.unwrap() else {
        panic!("no lease is recorded");
    };
    // The holder's bucket was refilled with 9 permits a second, and the policy with 1.
    subject.clock.advance(secs(30));
    let renewed = call().renew(&lease, held).await.unwrap();
    assert!(matches!(renewed, LeaseRenewal::Renewed(_)), "{renewed:?}");
    assert_eq!(subject.remaining(&policy).await, Amount::from(50_u32));
}

/// Renews the leases of holders each second for 30 s, with a call in each.
async fn calls_beside_buckets_of(subject: &Subject, policy: &Policy, holders: u32) {
    let report = LeaseReport::default()
        .held(50 / holders)
        .steady_millionths(900_000 / holders);
    let mut leases = [const { None::<TokenLease> }; 2];
    for second in 0..30 {
        for (lease, holder) in leases.iter_mut().zip(HOLDERS).take(holders as usize) {
            let call = || subject.limits.token_lease(policy, KEY, holder);
            let known = match lease.take() {
                Some(known) => known,
                None => call().read().await.unwrap(),
            };
            let LeaseRenewal::Renewed(renewed) = call().renew(&known, report).await.unwrap() else {
                panic!("the epoch is the recorded one");
            };
            assert_eq!(renewed.permits(), Amount::from(50 / holders));
            *lease = Some(renewed);
        }
        let decision = subject.call(policy).await;
        assert!(decision.is_allowed(), "{holders} holders in second {second}");
        // The permit is refilled within the second: one of ten, beside nine of the buckets.
        assert_eq!(subject.remaining(policy).await, Amount::from(49_u32));
        subject.clock.advance(secs(1));
    }
    assert!(subject.call_of(policy, 50).await.is_allowed());
    let denied = subject.call(policy).await;
    assert_eq!(denied.retry_after(), Some(secs(1)), "{holders} holders");
}

async fn calls_use_the_rate_that_buckets_leave(subject: Subject) {
    for holders in [1, 2] {
        let policy = bucket(&format!("p{holders}"), 100, 10);
        calls_beside_buckets_of(&subject, &policy, holders).await;
    }
}

/// Until a scheduled change, the previous numbers apply to leases too.
async fn lease_follows_scheduled_change(subject: Subject) {
    let (small, large) = (bucket("p", 10, 1), bucket("p", 100, 1));
    let at = subject.clock.now().after(secs(60));
    let changed = large.proportional_to(&small, at).unwrap();
    let call = || subject.limits.token_lease(&changed, KEY, "node");
    let wanted = LeaseReport::default().wanted(80_u32);
    let mut lease = call().read().await.unwrap();
    // One eighth of the remaining permits stays for other callers.
    for permits in [9_u32, 9] {
        let LeaseRenewal::Renewed(renewed) = call().renew(&lease, wanted).await.unwrap() else {
            panic!("the epoch is the recorded one");
        };
        assert_eq!(renewed.permits(), Amount::from(permits));
        lease = renewed;
    }
    call().release(&lease, Amount::ZERO).await.unwrap();
    subject.clock.set(at);
    let none = call().read().await.unwrap();
    let LeaseRenewal::Renewed(lease) = call().renew(&none, wanted).await.unwrap() else {
        panic!("the epoch is the recorded one");
    };
    assert_eq!(lease.permits(), Amount::from(80_u32));
}

async fn invalid_input_is_named(subject: Subject) {
    let (policy, minute) = (bucket("p", 100, 1), window("w", 5, "1m"));
    let error = |result: Result<LeaseRenewal, Rejection>| match result {
        Err(Rejection::Config(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let limits: &Limiter = &subject.limits;
    let none = limits.token_lease(&policy, KEY, "node").read().await.unwrap();
    let report = LeaseReport::default();
    let long = "x".repeat(129);
    let data = vec![0; 65_537];
    for (call, report, expected) in [
        (
            limits.token_lease(&minute, KEY, "n"),
            report,
            "a token bucket or a funnel",
        ),
        (limits.token_lease(&policy, KEY, ""), report, "1 to 128 bytes"),
        (limits.token_lease(&policy, KEY, &long), report, "1 to 128 bytes"),
        (
            limits.token_lease(&policy, KEY, "n"),
            report.wanted(101_u32),
            "at most the capacity 100",
        ),
        (
            limits.token_lease(&policy, KEY, "n"),
            report.spent(u64::MAX),
            "at most",
        ),
        (
            limits.token_lease(&policy, KEY, "n"),
            report.held(1_u32).steady_millionths(1_000_001),
            "at most 1000000 millionths with 1 held permits",
        ),
        (
            limits.token_lease(&policy, KEY, "n"),
            report.steady_millionths(1),
            "at most 0 millionths with 0 held permits",
        ),
        (
            limits.token_lease(&policy, KEY, "n"),
            report.data(&data),
            "at most 65536 bytes",
        ),
        (
            limits.token_lease(&policy, KEY, "n").lifetime(secs(7_200)),
            report,
            "from 100ms to 3600s",
        ),
    ] {
        let shown = error(call.renew(&none, report).await);
        assert!(shown.contains(expected), "{shown} lacks {expected}");
    }
}

macro_rules! on_each_store {
    ($($behaviour:ident)*) => {
        on_each_store!(memory Memory: $($behaviour)*);
        on_each_store!(standalone Standalone: $($behaviour)*);
        on_each_store!(cluster Cluster: $($behaviour)*);
    };
    ($store:ident $kind:ident: $($behaviour:ident)*) => {
        mod $store {
            use crate::support::{Kind, Subject};

            $(#[tokio::test]
            async fn $behaviour() {
                crate::$behaviour(Subject::new(Kind::$kind)).await;
            })*
        }
    };
}

on_each_store! {
    repeated_report_is_counted_once
    ended_lease_counts_as_spent
    returned_permits_admit_the_next_call
    held_permits_are_debt_without_remaining_ones
    steady_refill_of_a_late_report_is_no_debt
    calls_use_the_rate_that_buckets_leave
    lease_follows_scheduled_change
    invalid_input_is_named
}
