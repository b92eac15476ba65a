//! Random calls in process and on Redis.
#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use std::time::Duration;

use limiter_core::Limiter;
use limiter_redisson::{Client, RateLimiter, RateType};

use crate::World;
use crate::support::{Kind, millis};

/// Plays the calls one after the other, in process and on Redis, under one clock.
#[tokio::test]
async fn memory_and_redis_give_equal_results() {
    let seed = std::env::var("LIMITER_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    let mut rng = fastrand::Rng::with_seed(seed);
    for trace in 0..8 {
        let worlds = [World::new(Kind::Memory), World::new(Kind::Standalone)];
        let limits = worlds.each_ref().map(|world| (world.make)());
        let [memory, redis] = limits
            .each_ref()
            .map(|limits| [1, 2].map(|id| Client::with_id(limits, format!("c{id}")).rate_limiter("p")));
        for step in 0..40 {
            let (client, call) = (rng.usize(..2), rng.u32(..14));
            let (count, wait) = (rng.u64(1..6), millis(rng.u64(..4_000)));
            let mut result = Vec::new();
            for limiter in [&memory[client], &redis[client]] {
                result.push(answer(limiter, call, count, wait).await);
            }
            assert_eq!(
                result[0], result[1],
                "seed {seed}, trace {trace}, step {step}: call {call} of {count}"
            );
            extend_deadline(&limits[1]).await;
            if call == 13 {
                worlds.iter().for_each(|world| world.clock.advance(wait));
            }
        }
    }
}

/// Gives "p" a deadline that suits a busy machine.
async fn extend_deadline(limits: &Limiter) {
    let store = limits.redis_registry().unwrap();
    let (revision, text) = store.read().await.unwrap().unwrap_or_default();
    if text.contains("[policy.p]") && !text.contains("deadline") {
        let patient = text.replacen("[policy.p]\n", "[policy.p]\ndeadline = \"30s\"\n", 1);
        store.publish(&patient, revision).await.unwrap();
    }
}

async fn answer(limiter: &RateLimiter, call: u32, count: u64, wait: Duration) -> String {
    let of = [RateType::Overall, RateType::PerClient][usize::from(count > 3)];
    let (rate, interval) = (count + 4, ["2s", "10s"][usize::from(count % 2 == 0)]);
    match call {
        0 => format!("{:?}", limiter.try_set_rate(of, rate, interval).await),
        1 => format!("{:?}", limiter.set_rate(of, rate, interval).await),
        2 => format!("{:?}", limiter.update_rate(of, rate, interval).await),
        3 => format!("{:?}", limiter.release(count).await),
        4 => format!("{:?}", limiter.expire(wait).await),
        5 => format!("{:?}", limiter.clear_expire().await),
        6 if count == 1 => format!("{:?}", limiter.delete().await),
        7 => format!("{:?} {:?}", limiter.exists().await, limiter.remaining_ttl().await),
        8 => format!("{:?}", limiter.config().await),
        9 | 10 => format!("{:?}", limiter.available_permits().await),
        _ => format!("{:?}", limiter.try_acquire(count).await),
    }
}
