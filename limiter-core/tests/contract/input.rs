//! Input of callers and its validation.

use limiter_core::{Allowed, Amount, ConfigError, LimitRequest, Policy, Rejection, Timestamp};

use crate::support::{KEY, Subject, bucket, funnel, left, micros, one_of_each, only, secs, window};

pub(crate) async fn zero_cost_is_a_peek_and_always_allowed(subject: Subject) {
    for policy in one_of_each() {
        let fresh = subject.call_of(&policy, 0).await;
        assert!(fresh.is_allowed() && fresh.reset_after().is_zero(), "{policy}");
        assert_eq!(subject.redis_keys(), Vec::<String>::new(), "{policy}");

        subject.use_up(&policy).await;
        let before = subject.peek(&policy).await;
        for _ in 0..5 {
            let decision = subject.call_of(&policy, 0).await;
            assert!(decision.is_allowed(), "{policy}");
            assert_eq!(
                (decision.remaining(), decision.retry_after()),
                (0, None),
                "{policy}"
            );
            assert_eq!(decision.reset_after(), before.reset_after(), "{policy}");
        }
        let acquired = subject.limits.acquire(&policy, KEY).cost(0).await.unwrap();
        assert!(acquired.is_allowed(), "{policy}");
        subject.limits.reset(&policy, KEY).await.unwrap();
    }
}

pub(crate) async fn cost_above_quota_never_fits(subject: Subject) {
    for policy in one_of_each() {
        let costs = [
            Amount::from(6_u32),
            Amount::from(u64::MAX),
            Amount::from(1_u64 << 52),
            Amount::from_thousandths(u64::MAX),
        ];
        for cost_above in costs {
            let answers = [
                subject.limits.check(&policy, KEY).cost(cost_above).await,
                subject.limits.peek(&policy, KEY).cost(cost_above).await,
                subject
                    .limits
                    .acquire(&policy, KEY)
                    .cost(cost_above)
                    .await
                    .map(Allowed::into_decision),
            ];
            for answer in answers {
                let Err(Rejection::NeverFits {
                    policy: named,
                    cost,
                    quota,
                }) = answer
                else {
                    unreachable!("{policy}, cost {cost_above}: {answer:?}")
                };
                assert_eq!((&named, cost, quota), (&policy, cost_above, policy.quota()));
            }
        }
        assert_eq!(subject.remaining(&policy).await, policy.quota(), "{policy}");
    }
    let policy = bucket("fraction", 5, 1);
    let above = subject.limits.check(&policy, KEY).cost(5.001).await;
    assert!(matches!(above, Err(Rejection::NeverFits { .. })), "{above:?}");
}

/// One limit that can never fit rejects the whole decision, and the others are not charged.
pub(crate) async fn cost_that_never_fits_one_limit_charges_no_other(subject: Subject) {
    let (wide, narrow) = (bucket("wide", 100, 1), window("narrow", 5, "5s"));
    let requests = [
        LimitRequest::new(&wide, KEY).cost(6),
        LimitRequest::new(&narrow, KEY).cost(6),
    ];
    let answer = subject.limits.check_all(requests).await;
    let Err(Rejection::NeverFits { policy, .. }) = answer else {
        unreachable!("{answer:?}")
    };
    assert_eq!(policy.name(), "narrow");
    assert_eq!(subject.remaining(&wide).await, wide.quota());
}

fn named_in(answer: Result<limiter_core::Decision, Rejection>) -> String {
    match answer {
        Err(Rejection::Config(ConfigError::Invalid { value, .. })) => value,
        other => unreachable!("expected an invalid value: {other:?}"),
    }
}

pub(crate) async fn invalid_cost_is_rejected_by_name(subject: Subject) {
    for policy in one_of_each() {
        let check = || subject.limits.check(&policy, KEY);
        assert_eq!(named_in(check().cost(-1).await), "-1");
        assert_eq!(named_in(check().cost(i64::MIN).await), "-9223372036854775808");
        assert_eq!(named_in(check().cost(-0.5).await), "-0.5");
        assert_eq!(named_in(check().cost(f64::NAN).await), "NaN");
        assert_eq!(named_in(check().cost(f64::INFINITY).await), "inf");
        assert_eq!(named_in(check().cost(0.000_1).await), "0.0001");
        assert_eq!(named_in(check().cost("many").await), "many");
        assert_eq!(
            named_in(
                subject
                    .limits
                    .acquire(&policy, KEY)
                    .cost(-2)
                    .await
                    .map(Allowed::into_decision)
            ),
            "-2"
        );
        assert_eq!(
            named_in(
                subject
                    .limits
                    .check_all([LimitRequest::new(&policy, KEY).cost(-3)])
                    .await
            ),
            "-3"
        );
        assert_eq!(subject.remaining(&policy).await, policy.quota(), "{policy}");
    }
}

pub(crate) async fn fractional_cost_of_window_is_named(subject: Subject) {
    let policy = window("p", 5, "5s");
    assert_eq!(
        named_in(subject.limits.check(&policy, KEY).cost(1.5).await),
        "1.5"
    );
    assert_eq!(
        named_in(subject.limits.peek(&policy, KEY).cost(0.001).await),
        "0.001"
    );
    assert_eq!(subject.call_of(&policy, 2.0).await.remaining(), 3);
}

/// The limits of valid policies: no overflow, and every number as the formula states.
pub(crate) async fn extreme_policies_are_exact(subject: Subject) {
    let largest = Amount::from_thousandths(1 << 52);
    for policy in [
        bucket("p", largest, "4_000_000_000/s"),
        funnel("p", largest, "4_000_000_000/s"),
    ] {
        assert!(subject.call_of(&policy, largest).await.is_allowed(), "{policy}");
        let denied = subject.call_of(&policy, largest).await;
        // 2^52 thousandths at 4,000,000 thousandths a microsecond.
        assert_eq!(denied.retry_after(), Some(micros(1_125_899_907)), "{policy}");
        subject.clock.advance(micros(1_125_899_906));
        assert!(!subject.call_of(&policy, largest).await.is_allowed(), "{policy}");
        subject.clock.advance(micros(1));
        assert!(subject.call_of(&policy, largest).await.is_allowed(), "{policy}");
    }
    for policy in [
        bucket("slow", 0.001, "0.001/40d"),
        funnel("slow", 0.001, "0.001/40d"),
    ] {
        assert!(subject.call_of(&policy, 0.001).await.is_allowed(), "{policy}");
        let denied = subject.call_of(&policy, 0.001).await;
        assert_eq!(denied.retry_after(), Some(secs(40 * 86_400)), "{policy}");
    }
    // The clock reaches to the year 2112: begin early enough for a hundred years.
    subject.clock.set(Timestamp::from_micros(1));
    let century = window("century", 2, "36500d");
    assert_eq!(subject.calls(&century, 3).await, "PPD");
    subject.clock.advance(secs(36_500 * 86_400));
    assert_eq!(left(&subject.call(&century).await), Amount::ONE);
    let wide = window("wide", 100_000, "1s");
    let decision = subject.call_of(&wide, 100_000).await;
    assert!(decision.is_allowed() && only(&decision).remaining().is_zero());
    assert_eq!(subject.calls(&wide, 1).await, "D");
}

pub(crate) async fn invalid_policies_are_named(subject: Subject) {
    let bucket = |capacity: f64, rate: f64| Policy::token_bucket("p").capacity(capacity).rate(rate).build();
    let funnel = |capacity: f64, rate: &str| Policy::funnel("p").capacity(capacity).rate(rate).build();
    let window = |limit: i64, window: &str| Policy::sliding_window("p").limit(limit).window(window).build();
    for (refused, named) in [
        (bucket(0.0, 1.0), "0"),
        (bucket(-1.0, 1.0), "-1"),
        (bucket(f64::NAN, 1.0), "NaN"),
        (bucket(1.0, 0.0), "0 per 1s"),
        (bucket(1.0, -1.0), "-1"),
        (bucket(1.0, f64::INFINITY), "inf"),
        (bucket(1e12, 0.001), "1000000000000"),
        (funnel(1.0, "0/s"), "0 per 1s"),
        (funnel(1.0, "1/0s"), "1 per 0ns"),
        (funnel(f64::INFINITY, "1/s"), "inf"),
        (window(0, "1s"), "0"),
        (window(-5, "1s"), "-5"),
        (window(i64::MAX, "1s"), "9223372036854775807"),
        (window(1, "0s"), "0ns"),
        (window(1, "-1s"), "-1s"),
    ] {
        let error = refused.unwrap_err();
        assert!(
            error.to_string().contains(&format!("`{named}`")),
            "{error}, expected {named}"
        );
    }
    // The smallest policies are exact.
    let smallest = self::bucket("p", 0.001, "0.001/s");
    assert!(subject.call_of(&smallest, 0.001).await.is_allowed());
}
