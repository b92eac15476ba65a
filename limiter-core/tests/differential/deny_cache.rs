//! The deny cache equals Redis: all numbers of its decisions are compared with those of the memory
//! store.

use fastrand::Rng;
use limiter_core::ManualClock;

use super::support::{Kind, Subject, secs};
use super::{setting, trace};

/// Longer than nearly all retry times, so that the cache decides until a permit returns.
const KEPT_FOR: std::time::Duration = secs(100_000);

#[tokio::test]
async fn deny_cache_equals_redis() {
    let traces = setting("LIMITER_TRACES", 10_000) / 10;
    let seed = setting("LIMITER_SEED", fastrand::u64(..));
    println!("LIMITER_SEED={seed} LIMITER_TRACES={}", 10 * traces);
    let clock = ManualClock::new();
    let model = Subject::with_clock(Kind::Memory, clock.clone());
    let redis = Subject::with_deny_cache(Kind::Standalone, clock.clone(), KEPT_FOR);
    let mut from_cache = 0;
    for number in 0..traces {
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let tally = trace(&mut rng, number, &clock, &model, &redis).await;
        from_cache += tally.from_cache;
    }
    println!("{from_cache} answers of the deny cache");
    // About 1.15 per trace; the number of 1,000 traces varies by a tenth.
    assert!(
        from_cache > traces / 2,
        "too few answers come from the cache: {from_cache}"
    );
}
