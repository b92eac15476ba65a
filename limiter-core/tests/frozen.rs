//! External formats as reviewable text: Redis keys and stored bytes, script arguments and replies,
//! fields of policy texts, metrics. A difference is a breaking change for deployed replicas,
//! dashboards or configuration files.
//!
//! `LIMITER_FROZEN=write cargo test -p limiter-core --all-features --test frozen` writes the files
//! under `tests/frozen/` again.
#![cfg(all(feature = "redis", feature = "registry"))]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

#[path = "frozen/metrics.rs"]
mod metrics;
#[path = "frozen/recording_relay.rs"]
mod recording_relay;
#[path = "frozen/redis.rs"]
mod redis;
#[path = "frozen/usage.rs"]
mod usage;

use limiter_core::registry::PolicyRegistry;

/// Compares with the committed file, or replaces it.
#[track_caller]
fn assert_frozen(file: &str, actual: &str) {
    limiter_testing::assert_frozen(env!("CARGO_MANIFEST_DIR"), file, actual);
}

/// Each field and each value of a policy text. The fixture names all of them; its canonical form is
/// the snapshot.
#[test]
fn policy_text_fields_are_frozen() {
    let registry = PolicyRegistry::from_toml(include_str!("frozen/policies.toml")).unwrap();
    assert_frozen("policies.canonical.toml", &registry.to_toml());
}
