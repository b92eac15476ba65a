//! The decisions of the cache equal those of Redis, which the pure algorithms compute.

mod retention;

use crate::algorithm;
use crate::algorithm::{StateSlot, StepOutcome, StepState};
use crate::policy::{Algorithm, Policy, SlidingWindow};
use crate::redis::deny_cache::*;
use crate::request::{LimitRequest, ReportedState, ValidatedLimit};
use crate::support::clock::ManualClock;

const CAP: Duration = Duration::from_secs(1);
const SECOND: u64 = 1_000_000;

fn cache(clock: &ManualClock) -> DenyCache {
    DenyCache::new(Clock::Manual(clock.clone()), CAP)
}

fn bucket(name: &str, capacity: u32, rate: &str) -> Policy {
    let policy = Policy::token_bucket(name).capacity(capacity).rate(rate);
    policy.build().unwrap()
}

fn window(name: &str, limit: u64, window: &str) -> Policy {
    let policy = Policy::sliding_window(name).limit(limit).window(window);
    policy.build().unwrap()
}

fn charge<'a>(policy: &'a Policy, key: &'a str, cost: u32) -> DecisionRequest<'a> {
    DecisionRequest::new([LimitRequest::new(policy, key).cost(cost)], Mode::Charge, false).unwrap()
}

/// A verdict with one denying limit and this `retry_after`.
fn denied(clock: &ManualClock, retry_after: u64) -> Verdict {
    let outcome = StepOutcome {
        retry_after,
        reset_after: retry_after,
        expires_after: retry_after,
        ..StepOutcome::default()
    };
    Verdict::new(clock.now(), [outcome].into_iter().collect())
}

/// Caches a denial at the current moment.
fn record(cache: &DenyCache, clock: &ManualClock, request: &DecisionRequest<'_>, retry_after: u64) {
    cache.on_verdict(
        request,
        &denied(clock, retry_after),
        cache.in_flight_token(request, Instant::now()),
    );
}

fn waits(cache: &DenyCache, request: &DecisionRequest<'_>) -> Option<u64> {
    let verdict = cache.decide(request)?;
    assert!(verdict.outcomes.iter().any(|outcome| !outcome.fits));
    verdict.outcomes.iter().map(|outcome| outcome.retry_after).max()
}

fn limits(cache: &DenyCache) -> usize {
    cache.shards.iter().map(DenialShard::limits).sum()
}

/// The state of several limits in a store.
struct Model(Vec<StepState>);

impl Model {
    fn decide(&mut self, request: &DecisionRequest<'_>, clock: &ManualClock, mode: Mode) -> Verdict {
        let limits = request.limits.iter().zip(&mut self.0);
        let decided_at = clock.now();
        let mut slots: Vec<_> = limits
            .map(|(limit, state)| StateSlot {
                algorithm: limit.policy.algorithm(),
                cost: limit.cost,
                state,
                blocks: false,
                now: decided_at.as_micros(),
            })
            .collect();
        let mut verdict = Verdict::new(decided_at, algorithm::decide(&mut slots, mode));
        if verdict.outcomes.iter().any(|outcome| !outcome.fits) {
            // Like Redis, which does not report the moments of a sliding window.
            let reported = |(limit, state): (&ValidatedLimit<'_>, &StepState)| match limit.policy.algorithm()
            {
                Algorithm::SlidingWindow(window) => {
                    ReportedState::WindowUsage(usage(window, state, decided_at))
                }
                _ => ReportedState::Stored(state.clone()),
            };
            verdict.states = Some(request.limits.iter().zip(&self.0).map(reported).collect());
        }
        verdict
    }
}

/// Returns the number of permits in a window: those that are missing under a large limit.
fn usage(window: &SlidingWindow, state: &StepState, now: Timestamp) -> u64 {
    const LARGE: u64 = 1_000;
    let large = Algorithm::SlidingWindow(SlidingWindow {
        limit: LARGE,
        ..*window
    });
    LARGE - algorithm::step(&large, &mut state.clone(), 0, now.as_micros(), Mode::Peek).remaining
}

#[test]
#[expect(clippy::print_stdout, reason = "the seed repeats a failed run")]
fn cached_decisions_equal_store_decisions() {
    let funnel = Policy::funnel("f").capacity(9).rate("7/3s").build().unwrap();
    let policies = [
        bucket("sevens", 10, "7/3s"),
        funnel,
        window("w", 7, "999983us"),
        bucket("fast", 50, "1_000_000/s"),
        bucket("day", 1_000, "999_983/day"),
        Policy::counter_window("c")
            .limit(7)
            .window("999983us")
            .build()
            .unwrap(),
        Policy::fixed_window("x").limit(7).window("1s").build().unwrap(),
        Policy::fixed_window("a")
            .limit(7)
            .window("1s")
            .aligned("utc")
            .build()
            .unwrap(),
    ];
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut hits = [0; 2];
    for _ in 0..400 {
        let clock = ManualClock::new();
        let cache = cache(&clock);
        let mut chosen = policies.to_vec();
        random.shuffle(&mut chosen);
        chosen.truncate(random.usize(1..=3));
        let mut model = Model(vec![StepState::Absent; chosen.len()]);
        for _ in 0..60 {
            clock.advance(Duration::from_micros(random.u64(0..200_000)));
            let requests = chosen
                .iter()
                .map(|policy| LimitRequest::new(policy, "k").cost(random.u32(0..5)));
            let request = DecisionRequest::new(requests.collect::<Vec<_>>(), Mode::Charge, false).unwrap();
            // A permit may leave the window before the call fits.
            let has_window = chosen.iter().any(|policy| policy.name() == "w");
            if let Some(cached) = cache.decide(&request) {
                let expected = model.decide(&request, &clock, Mode::Peek);
                assert_eq!(cached.decided_at, expected.decided_at);
                assert!(
                    expected.outcomes.iter().any(|outcome| !outcome.fits),
                    "{cached:?} {expected:?}"
                );
                assert_eq!(cached.outcomes, expected.outcomes);
                hits[0] += 1;
            } else {
                let verdict = model.decide(&request, &clock, Mode::Charge);
                cache.on_verdict(
                    &request,
                    &verdict,
                    cache.in_flight_token(&request, Instant::now()),
                );
                if verdict.outcomes.iter().all(|outcome| outcome.fits) {
                    continue;
                }
                // The same request at random times, including the last microsecond of the
                // denial.
                let Some(wait) = waits(&cache, &request) else {
                    continue; // A denial for a smaller cost is kept in its place.
                };
                let mut left = wait.min(SECOND);
                while left > 0 {
                    let span = if random.bool() {
                        left - 1
                    } else {
                        random.u64(0..left)
                    };
                    clock.advance(Duration::from_micros(span.max(1)));
                    left -= span.max(1);
                    let Some(cached) = cache.decide(&request) else {
                        assert!(left == 0 || has_window, "{left} of {wait}");
                        break;
                    };
                    let expected = model.decide(&request, &clock, Mode::Peek);
                    assert_eq!(cached.decided_at, expected.decided_at);
                    assert_eq!(cached.outcomes, expected.outcomes);
                    hits[1] += 1;
                    if random.bool() {
                        break;
                    }
                }
            }
        }
    }
    assert!(hits.iter().all(|hits| *hits > 500), "{hits:?}");
}

#[test]
fn denial_expires_at_retry_after_or_cap() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), bucket("p", 1, "1/s"));
    let request = charge(&policy, "k", 1);
    for (retry_after, holds) in [(1, 1), (999_999, 999_999), (SECOND, SECOND), (5 * SECOND, SECOND)] {
        record(&cache, &clock, &request, retry_after);
        assert_eq!(waits(&cache, &request), Some(retry_after));
        clock.advance(Duration::from_micros(holds - 1));
        assert_eq!(waits(&cache, &request), Some(retry_after - holds + 1));
        clock.advance(Duration::from_micros(1));
        assert_eq!(waits(&cache, &request), None);
    }
}

#[test]
fn denial_age_counts_from_request_start() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), bucket("p", 1, "1/s"));
    let request = charge(&policy, "k", 1);
    let in_flight = cache.in_flight_token(&request, Instant::now());
    clock.advance(Duration::from_micros(300));
    cache.on_verdict(&request, &denied(&clock, 1_000), in_flight);
    assert_eq!(waits(&cache, &request), Some(700));
    clock.advance(Duration::from_micros(700));
    assert_eq!(waits(&cache, &request), None);
    let in_flight = cache.in_flight_token(&request, Instant::now());
    clock.advance(Duration::from_micros(1_000));
    cache.on_verdict(&request, &denied(&clock, 1_000), in_flight);
    assert_eq!(waits(&cache, &request), None, "it had expired on arrival");
}

#[test]
fn backward_clock_step_drops_denial() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), bucket("p", 1, "1/s"));
    let request = charge(&policy, "k", 1);
    record(&cache, &clock, &request, 1_000);
    clock.step_back(Duration::from_micros(1));
    assert_eq!(waits(&cache, &request), None);
    clock.advance(Duration::from_micros(1));
    assert_eq!(
        waits(&cache, &request),
        None,
        "the store may have charged the limit"
    );
}

#[test]
fn different_requests_miss() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), bucket("p", 5, "1/s"));
    let request = charge(&policy, "k", 2);
    record(&cache, &clock, &request, 1_000);
    let peek = DecisionRequest::new([LimitRequest::new(&policy, "k").cost(2)], Mode::Peek, false).unwrap();
    assert!(cache.decide(&peek).is_none());
    cache.on_verdict(
        &peek,
        &denied(&clock, 5_000),
        cache.in_flight_token(&peek, Instant::now()),
    );
    for (policy, key, cost) in [
        (&policy, "other", 2),
        (&policy, "k", 0),
        (&bucket("other", 5, "1/s"), "k", 2),
        (
            &Policy::funnel("p").capacity(5).rate("1/s").build().unwrap(),
            "k",
            2,
        ),
    ] {
        assert!(
            cache.decide(&charge(policy, key, cost)).is_none(),
            "{policy} {key} {cost}"
        );
    }
    let other = window("w", 1, "1s");
    let together = [
        LimitRequest::new(&policy, "k").cost(2),
        LimitRequest::new(&other, "k"),
    ];
    let together = DecisionRequest::new(together, Mode::Charge, false);
    assert!(cache.decide(&together.unwrap()).is_none());
    assert_eq!(
        waits(&cache, &request),
        Some(1_000),
        "the other requests change nothing"
    );
}

/// Caches a denial of the store for this cost.
fn denial(model: &mut Model, cache: &DenyCache, clock: &ManualClock, request: &DecisionRequest<'_>) {
    let verdict = model.decide(request, clock, Mode::Charge);
    assert!(verdict.outcomes.iter().any(|outcome| !outcome.fits));
    cache.on_verdict(request, &verdict, cache.in_flight_token(request, Instant::now()));
}

#[test]
fn cached_level_denial_denies_other_costs_that_do_not_fit() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), bucket("p", 5, "2/s"));
    let mut model = Model(vec![StepState::Absent]);
    let _three_left = model.decide(&charge(&policy, "k", 2), &clock, Mode::Charge);
    denial(&mut model, &cache, &clock, &charge(&policy, "k", 5));
    assert_eq!(waits(&cache, &charge(&policy, "k", 5)), Some(1_000_000));
    assert_eq!(waits(&cache, &charge(&policy, "k", 4)), Some(500_000));
    assert_eq!(waits(&cache, &charge(&policy, "k", 3)), None);
    assert_eq!(
        waits(&cache, &charge(&policy, "k", 5)),
        None,
        "the store may have charged the smaller cost"
    );
}

#[test]
fn cached_window_denial_denies_its_cost_until_permit_expires() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), window("w", 5, "900ms"));
    let mut model = Model(vec![StepState::Absent]);
    for _ in 0..2 {
        assert!(
            model
                .decide(&charge(&policy, "k", 2), &clock, Mode::Charge)
                .outcomes[0]
                .fits
        );
        clock.advance(Duration::from_millis(100));
    }
    denial(&mut model, &cache, &clock, &charge(&policy, "k", 4));
    assert_eq!(waits(&cache, &charge(&policy, "k", 5)), None);
    assert_eq!(waits(&cache, &charge(&policy, "k", 4)), Some(800_000));
    clock.advance(Duration::from_micros(699_999));
    assert_eq!(waits(&cache, &charge(&policy, "k", 4)), Some(100_001));
    clock.advance(Duration::from_micros(1));
    assert_eq!(
        waits(&cache, &charge(&policy, "k", 4)),
        None,
        "two permits have expired"
    );
    let denied = charge(&policy, "k", 4);
    denial(&mut model, &cache, &clock, &denied);
    assert_eq!(waits(&cache, &charge(&policy, "k", 3)), None);
    assert_eq!(
        waits(&cache, &denied),
        None,
        "the store may have charged the smaller cost"
    );
}

#[test]
fn times_of_free_window_ahead_of_clock_are_not_cached() {
    let clock = ManualClock::new();
    let (cache, spent, window) = (cache(&clock), bucket("p", 1, "1/h"), window("w", 5, "8s"));
    let pair = |of_window: u32| {
        let requests = [
            LimitRequest::new(&spent, "k"),
            LimitRequest::new(&window, "k").cost(of_window),
        ];
        DecisionRequest::new(requests, Mode::Charge, false).unwrap()
    };
    let mut model = Model(vec![StepState::Absent, StepState::Absent]);
    let _charged = model.decide(&pair(1), &clock, Mode::Charge);
    clock.step_back(Duration::from_secs(60));
    // The store moves the bucket back, but not the window, of which the call charges nothing.
    denial(&mut model, &cache, &clock, &pair(0));
    for _ in 0..5 {
        clock.advance(Duration::from_micros(300));
        let expected = model.decide(&pair(0), &clock, Mode::Peek);
        assert_eq!(expected.outcomes[1].reset_after, 8 * SECOND);
        if let Some(cached) = cache.decide(&pair(0)) {
            assert_eq!(cached.outcomes, expected.outcomes);
        }
    }
}

#[test]
fn times_of_window_above_its_limit_are_not_cached() {
    let clock = ManualClock::new();
    let cache = DenyCache::new(Clock::Manual(clock.clone()), Duration::from_secs(60));
    let (before, after) = (window("w", 3, "8s"), window("w", 2, "8s"));
    let mut model = Model(vec![StepState::Absent]);
    for _ in 0..3 {
        let _charged = model.decide(&charge(&before, "k", 1), &clock, Mode::Charge);
        clock.advance(Duration::from_secs(2));
    }
    // Three permits are in use, and the new limit is two. When the first one has expired, the
    // second one expires next.
    denial(&mut model, &cache, &clock, &charge(&after, "k", 1));
    for passed in [1, 2, 1] {
        clock.advance(Duration::from_secs(passed));
        let request = charge(&after, "k", 1);
        let expected = model.decide(&request, &clock, Mode::Peek);
        if let Some(cached) = cache.decide(&request) {
            assert_eq!(cached.outcomes, expected.outcomes);
        }
    }
}
