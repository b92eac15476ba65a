//! The state of the control plane as metrics, for `monitoring/alerts.yml` and the dashboard.
//!
//! Every node with a database exports them, so the alerts take the maximum of all nodes.
//! Tests: `tests/control_plane/monitoring.rs`.

use std::time::{Duration, SystemTime};

use limiter_core::registry::Suspension;

use crate::access::{Access, AccessTable};
use crate::admin::edit::overlays;
use crate::publish::{Publisher, timestamp};
use crate::store::{Store, now_micros};

/// The interval between measurements.
const INTERVAL: Duration = Duration::from_secs(5);
/// The counter of the gateway for descriptors without a rule.
const DESCRIPTORS: &str = "limiter_server_descriptors_total";

/// Measures until the task is dropped.
pub(super) async fn run(store: Store, publishers: Vec<Publisher>, access: Access) {
    // A counter that appears with its first event shows no increase.
    metrics::counter!(DESCRIPTORS, "policy" => "unmatched").increment(0);
    loop {
        let is_up = store.ping().await.is_ok();
        set("limiter_server_database_up", is_up);
        for (number, publisher) in publishers.iter().enumerate() {
            if is_up {
                // The gateway serves the first namespace, with the tokens of the settings file.
                let own = (number == 0).then(|| access.table());
                measure_store(&store, publisher, own.as_deref()).await;
            }
            measure_redis(&store, publisher).await;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn set(name: &'static str, is_up: bool) {
    metrics::gauge!(name).set(if is_up { 1.0 } else { 0.0 });
}

fn set_of(name: &'static str, publisher: &Publisher, value: i64) {
    // Counts and seconds are far below the precision of the number.
    let value = f64::from(i32::try_from(value).unwrap_or(i32::MAX));
    metrics::gauge!(name, "namespace" => publisher.namespace().to_owned()).set(value);
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Measures the outbox, the suspensions, the alerts and the tokens, also those of a gateway. A
/// failure keeps the last values.
async fn measure_store(store: &Store, publisher: &Publisher, gateway: Option<&AccessTable>) {
    let (namespace, now) = (publisher.namespace(), now_micros());
    if let Ok(publication) = store.publication(namespace).await {
        let age = publication
            .oldest_pending
            .map_or(0, |oldest| (now - oldest).max(0));
        set_of("limiter_server_outbox_pending", publisher, publication.pending);
        set_of("limiter_server_outbox_age_seconds", publisher, age / 1_000_000);
    }
    if let Ok((registry, _)) = overlays(store, namespace).await {
        let is_active = |of: &&Suspension| of.is_active_at(timestamp(now));
        let active = registry.suspensions().iter().filter(is_active).count();
        set_of("limiter_server_suspensions", publisher, number(active));
    }
    if let Ok(alerts) = store.alerts(namespace).await {
        set_of("limiter_server_alerts", publisher, number(alerts.len()));
    }
    if let Ok(tokens) = store.tokens(namespace).await {
        let valid = tokens.iter().filter(|token| token.is_valid_at(now));
        // Without a token, none expires.
        let ends = valid.map(|token| (token.expires_at - now) / 1_000_000);
        let left = gateway.and_then(|table| table.first_expiry(SystemTime::now()));
        let left = left.map(|left| i64::try_from(left.as_secs()).unwrap_or(i64::MAX));
        let first = ends.chain(left).min();
        set_of(
            "limiter_server_token_expiry_seconds",
            publisher,
            first.unwrap_or(i64::MAX),
        );
    }
}

/// Measures the state of Redis, and the processes that have not adopted the published registry.
async fn measure_redis(store: &Store, publisher: &Publisher) {
    let Some(redis) = publisher.redis() else {
        return;
    };
    let subscribers = redis.subscribers().await;
    set_of(
        "limiter_server_redis_up",
        publisher,
        i64::from(subscribers.is_ok()),
    );
    let (Ok(subscribers), Ok(publication)) = (subscribers, store.publication(publisher.namespace()).await)
    else {
        return;
    };
    let published = u64::try_from(publication.registry_revision).unwrap_or_default();
    let behind = subscribers.iter().filter(|of| of.revision < published).count();
    set_of("limiter_server_subscribers", publisher, number(subscribers.len()));
    set_of("limiter_server_subscribers_behind", publisher, number(behind));
}
