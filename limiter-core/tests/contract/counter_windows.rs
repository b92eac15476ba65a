//! Windows with counters: fixed windows, also aligned with the calendar, and sliding windows of two
//! counters.

use std::time::Duration;

use limiter_core::{Amount, OnStoreFailure, Policy, Timestamp};

use crate::support::{KEY, PATIENT, Subject, micros, millis, only, secs, wait_of};

fn fixed(name: &str, limit: u64, window: &str) -> Policy {
    let policy = Policy::fixed_window(name).limit(limit).window(window);
    policy
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

fn aligned(name: &str, limit: u64, window: &str, offset: &str) -> Policy {
    let policy = Policy::fixed_window(name).limit(limit).window(window);
    policy
        .aligned(offset)
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

fn counter(name: &str, limit: u64, window: &str) -> Policy {
    let policy = Policy::counter_window(name).limit(limit).window(window);
    policy
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

/// 2024-02-29T23:00:00Z, a Thursday.
fn leap_day(subject: &Subject) {
    subject.clock.set(Timestamp::from_micros(1_709_247_600_000_000));
}

pub(crate) async fn fixed_window_admits_limit_per_period(subject: Subject) {
    let policy = fixed("p", 3, "10s");
    assert_eq!(subject.calls(&policy, 2).await, "PP");
    subject.clock.advance(secs(4));
    assert_eq!(subject.calls(&policy, 2).await, "PD");
    let denied = subject.call_of(&policy, 3).await;
    assert_eq!((wait_of(&denied), denied.reset_after()), (secs(6), secs(6)));
    subject.clock.advance(secs(6) - micros(1));
    assert_eq!(wait_of(&subject.call(&policy).await), micros(1));
    subject.clock.advance(micros(1));
    assert_eq!(
        subject.call_of(&policy, 3).await.reset_after(),
        secs(10),
        "a new period"
    );
    subject.clock.advance(secs(25));
    assert_eq!(
        subject.call(&policy).await.reset_after(),
        secs(10),
        "also after a pause"
    );
}

pub(crate) async fn aligned_period_ends_with_calendar_period(subject: Subject) {
    let hour = secs(3_600);
    for (number, (window, offset, left)) in [
        ("1d", "utc", hour),
        ("1d", "+02:00", hour * 23),
        ("1h", "+05:30", hour / 2),
        ("week", "utc", hour * 73),
        ("7h", "+02:00", hour * 3),
        ("30d", "utc", hour * 409),
        ("365d", "utc", hour * 7_009),
        ("month", "utc", hour),
        ("month", "+01:00", hour * 24 * 31),
        ("month", "-05:30", hour * 13 / 2),
    ]
    .into_iter()
    .enumerate()
    {
        leap_day(&subject);
        let policy = aligned(&format!("p{number}"), 2, window, offset);
        assert_eq!(subject.call_of(&policy, 2).await.reset_after(), left, "{policy}");
        let denied = subject.call(&policy).await;
        assert_eq!(
            (wait_of(&denied), only(&denied).expires_after()),
            (left, left),
            "{policy}"
        );
        subject.clock.advance(left - micros(1));
        assert_eq!(wait_of(&subject.call(&policy).await), micros(1), "{policy}");
        subject.clock.advance(micros(1));
        assert_eq!(subject.calls(&policy, 3).await, "PPD", "{policy}");
    }
}

pub(crate) async fn counter_window_decays_previous_period(subject: Subject) {
    let policy = counter("p", 10, "10s");
    assert_eq!(subject.call_of(&policy, 10).await.reset_after(), secs(20));
    // One permit expires after a tenth of the next period.
    assert_eq!(wait_of(&subject.call(&policy).await), secs(11));
    assert_eq!(wait_of(&subject.call_of(&policy, 10).await), secs(20));
    subject.clock.advance(secs(11) - micros(1));
    assert_eq!(wait_of(&subject.call(&policy).await), micros(1));
    subject.clock.advance(micros(1));
    assert_eq!(subject.calls(&policy, 2).await, "PD");
    subject.clock.advance(secs(4));
    // Half of ten, and one.
    assert_eq!(subject.remaining(&policy).await, Amount::from(4_u32));
    assert_eq!(subject.call_of(&policy, 4).await.reset_after(), secs(15));
    // The earlier permits have expired at the end of the period; the five of this period remain.
    subject.clock.advance(secs(5));
    assert_eq!(subject.remaining(&policy).await, Amount::from(5_u32));
    subject.clock.advance(secs(10));
    assert_eq!(subject.remaining(&policy).await, Amount::from(10_u32));
}

pub(crate) async fn large_limits_are_exact(subject: Subject) {
    let most = 1_u64 << 42;
    let policy = counter("c", most, "50d");
    assert!(subject.call_of(&policy, most - 1).await.is_allowed());
    assert_eq!(subject.calls(&policy, 2).await, "PD");
    let wait = wait_of(&subject.call(&policy).await);
    // In a microsecond slightly more than one permit expires.
    assert_eq!(wait, secs(50 * 86_400) + micros(1));
    subject.clock.advance(wait);
    assert_eq!(subject.calls(&policy, 2).await, "PD");
    let most = 1_u64 << 52;
    let policy = fixed("f", most, "1h");
    assert!(subject.call_of(&policy, most - 1).await.is_allowed());
    assert_eq!(subject.calls(&policy, 2).await, "PD");
}

pub(crate) async fn changed_limit_keeps_usage(subject: Subject) {
    for sized in [
        (|limit| fixed("f", limit, "1h")) as fn(u64) -> Policy,
        |limit| counter("c", limit, "1h"),
        |limit| aligned("a", limit, "month", "utc"),
    ] {
        assert_eq!(subject.call_of(&sized(10), 4).await.remaining(), 6);
        assert_eq!(subject.remaining(&sized(20)).await.whole(), 16);
        assert!(!subject.call(&sized(3)).await.is_allowed());
        assert_eq!(subject.call(&sized(5)).await.remaining(), 0);
        assert_eq!(subject.call_of(&sized(20), 15).await.remaining(), 0);
        assert_eq!(subject.calls(&sized(20), 1).await, "D");
    }
}

/// The usage is kept for at most one window of the new length, and none of it is discarded at once.
pub(crate) async fn changed_window_keeps_usage_for_at_most_its_length(subject: Subject) {
    let lasting = |window| fixed("f", 2, window);
    assert_eq!(subject.calls(&lasting("1h"), 3).await, "PPD");
    assert_eq!(wait_of(&subject.call(&lasting("1m")).await), secs(60));
    assert_eq!(wait_of(&subject.call(&lasting("1h")).await), secs(60));
    subject.clock.advance(secs(60));
    assert_eq!(subject.calls(&lasting("1h"), 3).await, "PPD");
    assert_eq!(
        wait_of(&subject.call(&lasting("2h")).await),
        secs(3_600),
        "a period keeps its initial length"
    );

    let lasting = |window| counter("c", 2, window);
    assert_eq!(subject.calls(&lasting("1h"), 3).await, "PPD");
    // The usage decays from now on: one permit has expired after half of the window.
    assert_eq!(wait_of(&subject.call(&lasting("1m")).await), secs(30));
    subject.clock.advance(secs(30));
    assert_eq!(subject.calls(&lasting("1m"), 2).await, "PD");
    assert_eq!(wait_of(&subject.call(&lasting("1h")).await), secs(30));
}

/// A peek changes nothing, so it states the time at which the cost fits without another call.
pub(crate) async fn peek_under_shorter_window_states_exact_wait(subject: Subject) {
    for lasting in [
        |window: &str| fixed("f", 2, window),
        |window: &str| counter("c", 2, window),
    ] {
        let (long, short) = (lasting("1h"), lasting("1m"));
        assert_eq!(subject.calls(&long, 2).await, "PP");
        let wait = wait_of(&subject.peek(&short).await);
        subject.clock.advance(wait - micros(1));
        assert_eq!(wait_of(&subject.peek(&short).await), micros(1), "{short}");
        subject.clock.advance(micros(1));
        assert!(subject.peek(&short).await.is_allowed(), "{short}");
        assert!(subject.call(&short).await.is_allowed(), "{short}");
    }
}

pub(crate) async fn clock_step_back_keeps_period_end(subject: Subject) {
    for policy in [
        fixed("f", 5, "10s"),
        counter("c", 5, "10s"),
        aligned("h", 5, "1h", "utc"),
        aligned("m", 5, "month", "utc"),
    ] {
        leap_day(&subject);
        let longest = policy.window() * 2;
        for step in [micros(1), millis(3), secs(1), secs(7_200), secs(86_400 * 400)] {
            assert!(subject.call_of(&policy, 5).await.is_allowed(), "{policy}");
            for _ in 0..3 {
                subject.clock.step_back(step);
                let denied = subject.call(&policy).await;
                assert!(
                    !denied.is_allowed() && denied.remaining() == 0,
                    "{policy}, back by {step:?}"
                );
                assert!(denied.reset_after() <= longest, "{policy}, back by {step:?}");
            }
            let wait = wait_of(&subject.call(&policy).await);
            subject.clock.advance(wait - micros(1));
            assert_eq!(
                wait_of(&subject.call(&policy).await),
                micros(1),
                "{policy}, back by {step:?}"
            );
            subject.clock.advance(micros(1));
            assert!(
                subject.call(&policy).await.is_allowed(),
                "{policy}, back by {step:?}"
            );
            subject.limits.reset(&policy, KEY).await.unwrap();
        }
    }
}

/// A clock that jitters around the end of a calendar period is the worst case.
pub(crate) async fn jittering_clock_at_midnight_admits_one_quota_per_day(subject: Subject) {
    for step in [millis(2), secs(60)] {
        let policy = aligned(&format!("{step:?}"), 5, "1d", "utc");
        leap_day(&subject);
        subject.clock.advance(secs(3_600) - step / 2);
        let mut admitted = 0;
        for _ in 0..20 {
            subject.clock.advance(step);
            admitted += subject.calls(&policy, 7).await.matches('P').count();
            subject.clock.step_back(step);
            admitted += subject.calls(&policy, 7).await.matches('P').count();
        }
        assert!(admitted <= 10, "{admitted}, back by {step:?}");
        // The day that has begun keeps its end.
        subject.clock.advance(secs(86_400));
        assert_eq!(subject.calls(&policy, 3).await, "DDD", "back by {step:?}");
        subject.clock.advance(step / 2);
        assert_eq!(subject.calls(&policy, 6).await, "PPPPPD", "back by {step:?}");
    }
}

pub(crate) async fn period_from_first_use_follows_monotonic_time(subject: Subject) {
    let policy = fixed("f", 2, "10s");
    assert!(subject.call(&policy).await.is_allowed());
    subject.clock.advance(secs(4));
    assert!(subject.call(&policy).await.is_allowed());
    subject.clock.step_back(secs(3_600));
    assert_eq!(
        wait_of(&subject.call(&policy).await),
        secs(6),
        "the period is unchanged"
    );
    subject.clock.advance(secs(6));
    assert_eq!(subject.calls(&policy, 3).await, "PPD");
}

pub(crate) async fn usage_is_refilled(subject: Subject) {
    for policy in [
        fixed("f", 5, "10s"),
        counter("c", 5, "10s"),
        aligned("a", 5, "1h", "utc"),
    ] {
        subject.use_up(&policy).await;
        subject.limits.refund(&policy, KEY).cost(2).await.unwrap();
        assert_eq!(subject.remaining(&policy).await, Amount::from(2_u32));
        assert_eq!(subject.calls(&policy, 3).await, "PPD", "{policy}");
        subject.limits.refund(&policy, KEY).cost(5).await.unwrap();
        let peeked = subject.peek(&policy).await;
        assert_eq!(
            (peeked.remaining(), peeked.reset_after()),
            (5, Duration::ZERO),
            "{policy}"
        );
        assert_eq!(only(&peeked).expires_after(), Duration::ZERO, "{policy}");
        assert_eq!(subject.redis_keys(), Vec::<String>::new(), "{policy}");
    }
    // A counter window refunds the oldest permits first, with their weight.
    let policy = counter("c", 10, "10s");
    assert!(subject.call_of(&policy, 10).await.is_allowed());
    subject.clock.advance(secs(15));
    assert!(subject.call_of(&policy, 5).await.is_allowed());
    subject.limits.refund(&policy, KEY).cost(4).await.unwrap();
    assert_eq!(subject.remaining(&policy).await, Amount::from(4_u32));
    subject.clock.advance(secs(5));
    assert_eq!(
        subject.remaining(&policy).await,
        Amount::from(5_u32),
        "the permits of this period are used"
    );
}
