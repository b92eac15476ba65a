//! Time and number of the denials that the cache keeps.

use crate::redis::deny_cache::tests::*;

#[test]
fn policy_change_misses() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), bucket("p", 5, "1/s"));
    record(&cache, &clock, &charge(&policy, "k", 1), 1_000);
    assert_eq!(waits(&cache, &charge(&bucket("p", 6, "1/s"), "k", 1)), None);
    assert_eq!(waits(&cache, &charge(&policy, "k", 1)), None);
}

#[test]
fn invalidation_drops_denials_and_replies_in_flight() {
    let clock = ManualClock::new();
    let (cache, burst, daily) = (cache(&clock), bucket("p", 1, "1/s"), window("w", 1, "1d"));
    let alone = charge(&burst, "k", 1);
    let both = [&burst, &daily].map(|policy| LimitRequest::new(policy, "k"));
    let both = DecisionRequest::new(both, Mode::Charge, false).unwrap();
    let verdict = |request: &DecisionRequest<'_>| {
        let outcomes = request.limits.iter().map(|_| denied(&clock, SECOND).outcomes[0]);
        Verdict::new(clock.now(), outcomes.collect())
    };
    for request in [&alone, &both] {
        cache.on_verdict(
            request,
            &verdict(request),
            cache.in_flight_token(request, Instant::now()),
        );
        assert_eq!(waits(&cache, request), Some(SECOND));
        let in_flight = cache.in_flight_token(request, Instant::now());
        let forgetting = cache.forget(&alone);
        assert_eq!(waits(&cache, request), None);
        cache.on_verdict(request, &verdict(request), in_flight);
        assert!(cache.in_flight_token(request, Instant::now()).is_none());
        drop(forgetting);
        assert_eq!(waits(&cache, request), None);
        cache.on_verdict(request, &verdict(request), in_flight);
        assert_eq!(waits(&cache, request), None);
        cache.on_verdict(
            request,
            &verdict(request),
            cache.in_flight_token(request, Instant::now()),
        );
        assert_eq!(waits(&cache, request), Some(SECOND));
    }
}

#[test]
fn overtaken_reply_does_not_replace_later_denial() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), bucket("p", 1, "1/s"));
    let request = charge(&policy, "k", 1);
    let overtaken = cache.in_flight_token(&request, Instant::now());
    clock.advance(Duration::from_micros(10));
    record(&cache, &clock, &request, 1_000);
    cache.on_verdict(&request, &denied(&clock, 500), overtaken);
    assert_eq!(waits(&cache, &request), Some(1_000));
}

#[test]
fn size_is_bounded_and_newest_denials_are_kept() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), bucket("p", 1, "1/s"));
    let keys: Vec<_> = (0..2 * MAX_LIMITS).map(|key| key.to_string()).collect();
    for key in &keys {
        record(&cache, &clock, &charge(&policy, key, 1), SECOND);
    }
    let kept = limits(&cache);
    assert!((MAX_LIMITS / 2..=MAX_LIMITS).contains(&kept), "{kept}");
    let last = &keys[keys.len() - 10_000..];
    assert!(
        last.iter()
            .all(|key| waits(&cache, &charge(&policy, key, 1)).is_some())
    );
    assert!(
        size_of::<(u64, Denial)>() * 8 / 7 <= 204,
        "{}",
        size_of::<(u64, Denial)>()
    );
}

#[test]
fn expired_denials_are_dropped_by_allowed_calls() {
    let clock = ManualClock::new();
    let (cache, policy) = (cache(&clock), bucket("p", 1, "1/s"));
    let keys: Vec<_> = (0..1_000).map(|key| key.to_string()).collect();
    let fits = StepOutcome {
        fits: true,
        ..StepOutcome::default()
    };
    let allowed = Verdict::new(clock.now(), [fits].into_iter().collect());
    for key in &keys {
        record(&cache, &clock, &charge(&policy, key, 1), SECOND);
    }
    for expected in [1_000, 0] {
        assert!(cache.shards.iter().any(has_denials));
        clock.advance(CAP);
        for key in &keys {
            let request = charge(&policy, key, 1);
            cache.on_verdict(
                &request,
                &allowed,
                cache.in_flight_token(&request, Instant::now()),
            );
        }
        assert_eq!(limits(&cache), expected);
    }
    assert!(!cache.shards.iter().any(has_denials));
}

#[test]
fn disabled_cache_keeps_nothing() {
    let clock = ManualClock::new();
    let cache = DenyCache::new(Clock::Manual(clock.clone()), Duration::ZERO);
    let policy = bucket("p", 1, "1/s");
    record(&cache, &clock, &charge(&policy, "k", 1), SECOND);
    assert_eq!(waits(&cache, &charge(&policy, "k", 1)), None);
    drop(cache.forget(&charge(&policy, "k", 1)));
}

#[test]
fn longest_maximum_age_keeps_denials() {
    let clock = ManualClock::new();
    let cache = DenyCache::new(Clock::Manual(clock.clone()), Duration::MAX);
    let policy = bucket("p", 1, "1/s");
    for key in ["a", "b"] {
        record(&cache, &clock, &charge(&policy, key, 1), SECOND);
        assert_eq!(waits(&cache, &charge(&policy, key, 1)), Some(SECOND));
    }
}
