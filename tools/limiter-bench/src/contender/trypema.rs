//! The crate `trypema`, which divides windows into buckets of ten milliseconds: its three providers
//! with default settings.

use std::sync::Arc;

use redis::aio::ConnectionManager;
use trypema::hybrid::HybridRateLimiterProvider;
use trypema::local::LocalRateLimiterProvider;
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use super::{Decide, DecideNow, Quota, Setup};

/// It supports only windows, and stores every bucket of a window: a minute is as long as any turn.
fn seconds(quota: Quota) -> u64 {
    quota.seconds.min(60)
}

fn rate(quota: Quota) -> RateLimit {
    RateLimit::per_second_or_panic(f64::from(quota.permits) / seconds(quota) as f64)
}

fn window(quota: Quota) -> WindowSize {
    WindowSize::seconds_or_panic(seconds(quota))
}

fn allowed(decision: RateLimitDecision) -> bool {
    matches!(decision, RateLimitDecision::Allowed)
}

async fn manager(setup: &Setup) -> ConnectionManager {
    let client = redis::Client::open(setup.address.connection()).expect("the URL is valid");
    client.get_connection_manager().await.expect("Redis answers")
}

fn redis_keys(setup: &Setup) -> Vec<RedisKey> {
    setup
        .keys
        .iter()
        .map(|key| RedisKey::new_or_panic(key.clone()))
        .collect()
}

fn prefix(setup: &Setup) -> RedisKey {
    RedisKey::new_or_panic(setup.prefix.clone())
}

#[derive(Debug)]
pub(crate) struct TrypemaLocal {
    provider: Arc<LocalRateLimiterProvider>,
    rate: RateLimit,
}

impl TrypemaLocal {
    pub(crate) fn new(quota: Quota) -> Self {
        let provider = LocalRateLimiterProvider::builder()
            .window_size(window(quota))
            .build();
        Self {
            provider: provider.expect("the settings are valid"),
            rate: rate(quota),
        }
    }
}

impl DecideNow for TrypemaLocal {
    fn decide_now(&self, key: &String) -> bool {
        allowed(self.provider.absolute().inc(key, &self.rate, 1))
    }
}

#[derive(Debug)]
pub(super) struct TrypemaRedis {
    provider: Arc<RedisRateLimiterProvider>,
    rate: RateLimit,
    keys: Vec<RedisKey>,
}

impl TrypemaRedis {
    pub(super) async fn connect(setup: &Setup) -> Self {
        let provider = RedisRateLimiterProvider::builder(manager(setup).await)
            .prefix(prefix(setup))
            .window_size(window(setup.quota))
            .build();
        Self {
            provider: provider.expect("the settings are valid"),
            rate: rate(setup.quota),
            keys: redis_keys(setup),
        }
    }
}

impl Decide for TrypemaRedis {
    async fn decide(&self, key: usize) -> bool {
        let decision = self.provider.absolute().inc(&self.keys[key], &self.rate, 1).await;
        allowed(decision.expect("Redis decides"))
    }
}

#[derive(Debug)]
pub(super) struct TrypemaHybrid {
    provider: Arc<HybridRateLimiterProvider>,
    rate: RateLimit,
    keys: Vec<RedisKey>,
}

impl TrypemaHybrid {
    pub(super) async fn connect(setup: &Setup) -> Self {
        let provider = HybridRateLimiterProvider::builder(manager(setup).await)
            .prefix(prefix(setup))
            .window_size(window(setup.quota))
            .build();
        Self {
            provider: provider.expect("the settings are valid"),
            rate: rate(setup.quota),
            keys: redis_keys(setup),
        }
    }
}

impl Decide for TrypemaHybrid {
    async fn decide(&self, key: usize) -> bool {
        // The provider for hot paths: it decides locally with its local state.
        let (limiter, key) = (self.provider.absolute(), &self.keys[key]);
        match limiter.try_inc(key.as_key_ref(), 1).expect("the key is valid") {
            Some(decision) => allowed(decision),
            None => allowed(limiter.inc(key, &self.rate, 1).await.expect("Redis decides")),
        }
    }
}
