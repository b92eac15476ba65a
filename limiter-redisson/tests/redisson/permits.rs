//! Permits: acquisition, release and waits.

use std::collections::VecDeque;

use limiter_core::{Enforcement, Rejection};
use limiter_redisson::RateType;
use tokio::time::timeout;

use crate::World;
use crate::support::{micros, millis, secs};

pub(crate) async fn release_creates_no_permits(world: World) {
    let limiter = world.configured(RateType::Overall, 5, "1m").await;
    limiter.release(5).await.unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 5);
    assert!(limiter.try_acquire(3).await.unwrap());
    limiter.release(2).await.unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 4);
    limiter.release(1_000).await.unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 5);
    assert!(limiter.try_acquire(5).await.unwrap() && !limiter.try_acquire(1).await.unwrap());

    // Released permits leave the interval once.
    limiter.release(2).await.unwrap();
    world.clock.advance(secs(60));
    assert_eq!(limiter.available_permits().await.unwrap(), 5);
    assert!(limiter.try_acquire(5).await.unwrap() && !limiter.try_acquire(1).await.unwrap());
}

pub(crate) async fn wait_is_exact_for_all_permits(world: World) {
    let limiter = world.configured(RateType::Overall, 3, "1s").await;
    assert!(limiter.try_acquire(1).await.unwrap());
    world.clock.advance(millis(400));
    assert!(limiter.try_acquire(2).await.unwrap());
    // The oldest permit leaves after 600 ms, and two that were acquired together after a second.
    world.clock.advance(millis(600));
    assert!(!limiter.try_acquire(2).await.unwrap());
    world.clock.advance(millis(400) - micros(1));
    assert!(!limiter.try_acquire(2).await.unwrap());
    world.clock.advance(micros(1));
    assert!(limiter.try_acquire(2).await.unwrap());
}

pub(crate) async fn waiter_is_served_when_permits_are_available(world: World) {
    let limiter = world.configured(RateType::Overall, 2, "10s").await;
    assert!(limiter.try_acquire_within(2, secs(0)).await.unwrap());
    let too_short = secs(10) - micros(1);
    let in_vain = async {
        tokio::join!(
            limiter.try_acquire_within(1, too_short),
            limiter.acquire(1).timeout(secs(9)).into_future(),
            async {
                tokio::time::sleep(millis(50)).await;
                world.clock.advance(too_short);
            }
        )
    };
    let (acquired, timed_out, ()) = timeout(secs(30), in_vain).await.unwrap();
    assert!(!acquired.unwrap());
    assert!(
        matches!(timed_out, Err(Rejection::TimedOut { .. })),
        "{timed_out:?}"
    );
    for of_all in [false, true] {
        let waiting = limiter.clone();
        let waiter = tokio::spawn(async move {
            if of_all {
                waiting.acquire(2).await.map(|()| true)
            } else {
                waiting.try_acquire_within(2, secs(20)).await
            }
        });
        let served = async {
            while !waiter.is_finished() {
                world.clock.advance(millis(100));
                tokio::time::sleep(millis(1)).await;
            }
        };
        timeout(secs(30), served).await.unwrap();
        assert!(waiter.await.unwrap().unwrap());
        assert!(!limiter.try_acquire(1).await.unwrap());
    }
}

pub(crate) async fn available_permits_are_rate_minus_recent_usage(world: World) {
    const RATE: u64 = 6;
    let limiter = world.configured(RateType::Overall, RATE, "1s").await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut used = VecDeque::new();
    for step in 0..300 {
        world.clock.advance(micros(random.u64(..400_000)));
        let now = world.clock.now();
        while used.front().is_some_and(|at| now.since(*at) >= secs(1)) {
            used.pop_front();
        }
        let free = RATE - used.len() as u64;
        assert_eq!(limiter.available_permits().await.unwrap(), free, "step {step}");
        let permits = random.u64(1..=3);
        if random.u8(..4) == 0 {
            limiter.release(permits).await.unwrap();
            used.drain(..used.len().min(usize::try_from(permits).unwrap()));
        } else {
            let granted = limiter.try_acquire(permits).await.unwrap();
            assert_eq!(granted, permits <= free, "step {step}");
            if granted {
                used.extend((0..permits).map(|_| now));
            }
        }
    }
}

pub(crate) async fn all_permits_are_available_without_enforcement(world: World) {
    let limits = (world.make)();
    let limiter = crate::configured(&limits, RateType::Overall, 5, "1h").await;
    assert!(limiter.try_acquire(5).await.unwrap());
    assert_eq!(limiter.available_permits().await.unwrap(), 0);
    limits.set_enforcement(Enforcement::Off);
    assert!(limiter.try_acquire(5).await.unwrap());
    assert_eq!(limiter.available_permits().await.unwrap(), 5);
}

pub(crate) async fn impossible_cost_is_rejected_at_once(world: World) {
    let limiter = world.configured(RateType::Overall, 5, "1h").await;
    for refused in [
        limiter.try_acquire(6).await.map(drop),
        limiter.acquire(6).await,
        limiter.try_acquire_within(6, secs(60)).await.map(drop),
    ] {
        assert!(matches!(refused, Err(Rejection::NeverFits { .. })), "{refused:?}");
    }
    let result = |refused: Result<(), Rejection>| refused.unwrap_err().diagnostic().to_string();
    for refused in [
        limiter.try_acquire(0).await.map(drop),
        limiter.acquire(0).await,
        limiter.release(0).await,
    ] {
        let result = result(refused);
        assert!(
            result.ends_with("permits is `0`, expected at least 1"),
            "{result}"
        );
    }
    for (rate, interval, expected) in [
        (
            0,
            "1m",
            "rate is `0`, expected whole permits from 1 to 4398046511104",
        ),
        (u64::MAX, "1m", "expected whole permits from 1 to 4398046511104"),
        (10_001, "51d", "interval is"),
        (1, "0s", "interval is"),
        (1, "month", "interval is"),
        (1, "-1s", "-1s"),
    ] {
        for refused in [
            limiter.set_rate(RateType::Overall, rate, interval).await,
            limiter.update_rate(RateType::Overall, rate.max(1), "").await,
        ] {
            assert!(matches!(refused, Err(Rejection::Config(_))), "{refused:?}");
        }
        let set = limiter.set_rate(RateType::Overall, rate, interval).await;
        let result = result(set);
        assert!(result.contains(expected), "{result}");
    }
    let nameless = world.client().rate_limiter("");
    let result = result(nameless.try_set_rate(RateType::Overall, 1, "1s").await.map(drop));
    assert!(result.contains("policy name"), "{result}");
    assert_eq!(
        limiter.config().await.unwrap().unwrap().rate,
        5,
        "nothing has changed"
    );
}
