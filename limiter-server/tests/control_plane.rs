//! The control plane beside its API: readers of old versions, schemas of other versions, retention,
//! events, metrics, several namespaces, outages, restored databases, sign-in by a proxy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

#[path = "control_plane/acl.rs"]
mod acl;
#[path = "control_plane/commands.rs"]
mod commands;
#[path = "control_plane/ended_outside.rs"]
mod ended_outside;
#[path = "control_plane/expired_credentials.rs"]
mod expired_credentials;
#[path = "control_plane/first_import.rs"]
mod first_import;
#[path = "control_plane/guard.rs"]
mod guard;
#[path = "control_plane/long_names.rs"]
mod long_names;
#[path = "control_plane/managed.rs"]
mod managed;
#[path = "control_plane/monitoring.rs"]
mod monitoring;
#[path = "control_plane/namespaces.rs"]
mod namespaces;
#[path = "control_plane/newer_schema.rs"]
mod newer_schema;
#[path = "control_plane/outage_pages.rs"]
mod outage_pages;
#[path = "control_plane/outages.rs"]
mod outages;
#[path = "control_plane/pending.rs"]
mod pending;
#[path = "control_plane/proposals.rs"]
mod proposals;
#[path = "control_plane/proxy_sign_in.rs"]
mod proxy_sign_in;
#[path = "control_plane/races.rs"]
mod races;
#[path = "control_plane/restore.rs"]
mod restore;
#[path = "control_plane/retention.rs"]
mod retention;
#[path = "control_plane/reused_names.rs"]
mod reused_names;
#[path = "control_plane/stalled_database.rs"]
mod stalled_database;
mod support;
#[path = "control_plane/trial_counts.rs"]
mod trial_counts;
#[path = "control_plane/unstorable_names.rs"]
mod unstorable_names;
#[path = "control_plane/webhook.rs"]
mod webhook;

use limiter_core::Limiter;
use limiter_core::registry::{PolicyRegistry, RedisRegistry};
use limiter_server::publish::{PublicationTarget, Publisher};
use limiter_server::store::{DocumentKind, SaveRequest, Store};
use limiter_testing::RedisServer;
use support::saves::{author, policy_change};
use support::server::Directory;

fn registry_of(redis: &RedisServer) -> RedisRegistry {
    let limiter = Limiter::redis(redis.url()).namespace("prod").build().unwrap();
    limiter.redis_registry().unwrap()
}

fn publisher_of(store: &Store, redis: &RedisServer) -> Publisher {
    Publisher::new(
        "prod",
        store.clone(),
        PublicationTarget::Redis(registry_of(redis)),
    )
}

async fn open(directory: &Directory) -> Store {
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    Store::open(&url).await.unwrap()
}

/// The registry in force.
async fn in_force(redis: &RedisServer) -> PolicyRegistry {
    let text = registry_of(redis).read().await.unwrap().unwrap_or_default().1;
    PolicyRegistry::from_toml(&text).unwrap()
}

/// Saves a document of the namespace `prod` as the author `ann`.
async fn save(store: &Store, kind: DocumentKind, name: &str, expected: i64, body: &str, at: i64) {
    let registry = PolicyRegistry::from_toml(body).unwrap();
    let request = SaveRequest {
        kind,
        ..policy_change(name, expected, registry.to_toml())
    };
    store.save(&request, &author("ann", at)).await.unwrap();
}

/// A token bucket with further lines.
fn bucket(name: &str, more: &str) -> String {
    format!("[policy.{name}]\nalgorithm = 'token_bucket'\ncapacity = 5\nrate = '1/h'\n{more}\n")
}
