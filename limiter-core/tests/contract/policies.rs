//! Policies that change while their state exists.

use limiter_core::Amount;

use crate::support::{KEY, Subject, bucket, funnel, micros, millis, secs, wait_of, window};

pub(crate) async fn bucket_keeps_tokens_up_to_new_capacity(subject: Subject) {
    let sized = |capacity: u32| bucket("p", capacity, "1/h");
    assert_eq!(subject.call_of(&sized(10), 4).await.remaining(), 6);
    assert_eq!(
        subject.remaining(&sized(20)).await.whole(),
        6,
        "a larger capacity creates no permits"
    );
    assert_eq!(subject.remaining(&sized(3)).await.whole(), 3, "capped");
    assert_eq!(
        subject.remaining(&sized(10)).await.whole(),
        6,
        "a peek changes nothing"
    );
    assert_eq!(subject.call(&sized(3)).await.remaining(), 2);
    assert_eq!(subject.remaining(&sized(20)).await.whole(), 2);
}

/// The stored tokens count until the bucket would be full under every policy that has charged the
/// key. Afterwards the key equals an unused one, which has a full bucket of any size.
pub(crate) async fn raised_bucket_keeps_tokens_until_old_state_expires(subject: Subject) {
    let (small, large) = (bucket("p", 2, "1/m"), bucket("p", 100, "1/m"));
    let minute = secs(60);

    // Without a decision under the new policy, the state of the old one expires when its two tokens
    // are refilled.
    subject.use_up(&small).await;
    assert_eq!(subject.remaining(&large).await.whole(), 0);
    subject.clock.advance(minute);
    assert_eq!(subject.remaining(&large).await.whole(), 1);
    subject.clock.advance(minute - micros(1));
    assert_eq!(
        subject.remaining(&large).await.whole(),
        1,
        "a peek does not extend the lifetime"
    );
    subject.clock.advance(micros(1));
    assert_eq!(subject.remaining(&large).await.whole(), 100);

    // A decision under the new policy, allowed or denied, keeps the tokens until 100 are refilled.
    for admits in [true, false] {
        subject.limits.reset(&small, KEY).await.unwrap();
        subject.use_up(&small).await;
        if admits {
            subject.clock.advance(minute);
        }
        assert_eq!(subject.call(&large).await.is_allowed(), admits);
        subject.clock.advance(minute * 2);
        assert_eq!(subject.remaining(&large).await.whole(), 2);
        subject.clock.advance(minute * 98 - micros(1));
        assert_eq!(subject.remaining(&large).await.whole(), 99);
        subject.clock.advance(micros(1));
        assert_eq!(subject.remaining(&large).await.whole(), 100);
    }
}

pub(crate) async fn funnel_and_window_keep_usage(subject: Subject) {
    for sized in [
        (|capacity: u32| funnel("p", capacity, "1/h")) as fn(u32) -> _,
        |limit| window("p", u64::from(limit), "1h"),
    ] {
        assert_eq!(subject.call_of(&sized(10), 4).await.remaining(), 6);
        assert_eq!(subject.remaining(&sized(20)).await.whole(), 16);
        assert_eq!(subject.remaining(&sized(3)).await.whole(), 0);
        assert!(!subject.call(&sized(3)).await.is_allowed());
        assert_eq!(subject.remaining(&sized(10)).await.whole(), 6);
        assert_eq!(subject.call(&sized(5)).await.remaining(), 0);
        assert_eq!(subject.call_of(&sized(20), 15).await.remaining(), 0);
        assert!(!subject.call(&sized(20)).await.is_allowed());
    }
}

pub(crate) async fn changed_rate_applies_to_next_call(subject: Subject) {
    for rated in [(|rate: &str| bucket("p", 10, rate)) as fn(&str) -> _, |rate| {
        funnel("p", 10, rate)
    }] {
        subject.use_up(&rated("1/h")).await;
        assert_eq!(wait_of(&subject.call(&rated("1/h")).await), secs(3_600));
        assert_eq!(wait_of(&subject.call(&rated("2/s")).await), millis(500));
        subject.clock.advance(millis(500));
        assert!(subject.call(&rated("2/s")).await.is_allowed());
        assert_eq!(wait_of(&subject.call(&rated("1/m")).await), secs(60));
    }
}

pub(crate) async fn changed_window_applies_to_next_call(subject: Subject) {
    let lasting = |length| window("p", 2, length);
    assert!(subject.call_of(&lasting("1h"), 2).await.is_allowed());
    subject.clock.advance(secs(10));
    assert_eq!(wait_of(&subject.call(&lasting("1m")).await), secs(50));
    assert_eq!(wait_of(&subject.call(&lasting("2h")).await), secs(7_190));
    assert!(subject.call(&lasting("10s")).await.is_allowed());
    assert_eq!(subject.remaining(&lasting("1h")).await, Amount::ZERO);
    assert_eq!(
        wait_of(&subject.call(&lasting("1h")).await),
        secs(3_590),
        "the second newest permit must expire"
    );
}

/// A longer window reads the state of a shorter one, and the state still exists when the wait ends.
pub(crate) async fn denied_state_is_kept_until_retry_time(subject: Subject) {
    for (quick, slow) in [
        (bucket("b", 1, "1/s"), bucket("b", 1, "1/m")),
        (funnel("f", 1, "1/s"), funnel("f", 1, "1/m")),
        (window("w", 1, "1s"), window("w", 1, "1m")),
    ] {
        assert!(subject.call(&quick).await.is_allowed());
        assert_eq!(wait_of(&subject.call(&slow).await), secs(60), "{slow}");
        subject.clock.advance(secs(60) - micros(1));
        assert_eq!(wait_of(&subject.call(&slow).await), micros(1), "{slow}");
        subject.clock.advance(micros(1));
        assert!(subject.call(&slow).await.is_allowed(), "{slow}");
        subject.clock.advance(secs(60));
    }
}

/// After the ring has wrapped, a larger limit reorders it: the permits expire in the order of their
/// charges.
pub(crate) async fn growing_ring_keeps_its_order(subject: Subject) {
    for (small, large) in [(3, 5), (200, 300)] {
        let sized = |limit| window("p", limit, "1000s");
        // One permit per second; the ring of the small limit is full and then wraps by two.
        for _ in 0..small {
            assert!(subject.call(&sized(small)).await.is_allowed());
            subject.clock.advance(secs(1));
        }
        subject.clock.advance(secs(1_000 - small));
        for pause in [1, 0] {
            assert!(subject.call(&sized(small)).await.is_allowed());
            assert!(!subject.call(&sized(small)).await.is_allowed());
            subject.clock.advance(secs(pause));
        }
        // Grown; now small − 2 old permits, one newer one, and those of the last moment.
        let rest = large - small;
        assert!(subject.call_of(&sized(large), rest).await.is_allowed());
        assert!(!subject.call(&sized(large)).await.is_allowed());
        for _ in 2..small {
            assert_eq!(wait_of(&subject.call(&sized(large)).await), secs(1));
            subject.clock.advance(secs(1));
            assert_eq!(subject.calls(&sized(large), 2).await, "PD");
        }
        let newer = secs(1_001 - small);
        assert_eq!(wait_of(&subject.call(&sized(large)).await), newer);
        assert_eq!(wait_of(&subject.call_of(&sized(large), 2).await), newer + secs(1));
        subject.clock.advance(newer);
        assert_eq!(subject.calls(&sized(large), 2).await, "PD");
        subject.clock.advance(secs(1));
        assert!(subject.call_of(&sized(large), rest + 1).await.is_allowed());
        assert!(!subject.call(&sized(large)).await.is_allowed());
        subject
            .limits
            .reset(&sized(large), crate::support::KEY)
            .await
            .unwrap();
    }
}

pub(crate) async fn shrinking_ring_respects_smaller_limit(subject: Subject) {
    let sized = |limit| window("p", limit, "10s");
    for _ in 0..6 {
        assert!(subject.call(&sized(6)).await.is_allowed());
        subject.clock.advance(secs(1));
    }
    // The permits are 6, 5, 4, 3, 2 and 1 seconds old: the newest two count.
    assert_eq!(wait_of(&subject.call(&sized(2)).await), secs(8));
    assert_eq!(wait_of(&subject.call_of(&sized(2), 2).await), secs(9));
    subject.clock.advance(secs(8));
    assert_eq!(subject.calls(&sized(2), 2).await, "PD");
    assert_eq!(subject.remaining(&sized(6)).await.whole(), 4);
}

/// A cost that reaches across the end of the ring is written on both sides of it.
pub(crate) async fn cost_can_wrap_around_end_of_ring(subject: Subject) {
    for limit in [5, 250] {
        let policy = window("p", limit, "10s");
        assert!(subject.call_of(&policy, limit - 2).await.is_allowed());
        subject.clock.advance(secs(5));
        assert!(subject.call(&policy).await.is_allowed());
        subject.clock.advance(secs(5));
        // One permit is five seconds old and keeps the ring alive; all others are new.
        assert_eq!(subject.call_of(&policy, limit - 1).await.remaining(), 0);
        assert_eq!(subject.remaining(&policy).await, Amount::ZERO);
        assert_eq!(wait_of(&subject.call(&policy).await), secs(5));
        for cost in [2, 3, limit - 1, limit] {
            assert_eq!(
                wait_of(&subject.call_of(&policy, cost).await),
                secs(10),
                "cost {cost} of {limit}"
            );
        }
        subject.clock.advance(secs(5));
        assert_eq!(subject.calls(&policy, 2).await, "PD");
        subject.clock.advance(secs(5));
        assert_eq!(subject.remaining(&policy).await, Amount::from(limit - 1));
        subject.limits.reset(&policy, crate::support::KEY).await.unwrap();
    }
}
