//! The defaults of a limiter for policies without a deadline or failure mode of their own.
//!
//! Every entry point applies them, and every entry point prefers the setting of a policy.
#![cfg(all(feature = "macros", feature = "registry"))]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::convert::Infallible;
use std::future::IntoFuture;
use std::net::TcpListener;
use std::time::{Duration, Instant, SystemTime};

use http::{Request, Response};
use limiter_core::concurrency::ConcurrencyPermit;
use limiter_core::penalty::Penalty;
use limiter_core::registry::PolicyRegistry;
use limiter_core::{
    Allowed, Decision, Inheritance, LimitRequest, Limiter, OnStoreFailure, Origin, Policy, PolicyBuilder,
    Rejection, Reservation, StoreErrorKind, token_limiter,
};
use limiter_redisson::Client;
use limiter_testing::{Proxy, RedisServer};
use limiter_tower::{RateLimitLayer, key};
use support::{KEY, PATIENT, millis, namespace, secs};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Check,
    CheckTwo,
    CheckWithPenalty,
    Peek,
    Acquire,
    Wait,
    Admit,
    Reserve,
    NamedCheck,
    NamedAcquire,
    NamedReserve,
    Attribute,
    AttributeWithParameters,
    Layer,
    LayerThatWaits,
    Redisson,
    Concurrency,
    NamedConcurrency,
}

const ENTRIES: [Entry; 18] = [
    Entry::Check,
    Entry::CheckTwo,
    Entry::CheckWithPenalty,
    Entry::Peek,
    Entry::Acquire,
    Entry::Wait,
    Entry::Admit,
    Entry::Reserve,
    Entry::NamedCheck,
    Entry::NamedAcquire,
    Entry::NamedReserve,
    Entry::Attribute,
    Entry::AttributeWithParameters,
    Entry::Layer,
    Entry::LayerThatWaits,
    Entry::Redisson,
    Entry::Concurrency,
    Entry::NamedConcurrency,
];

/// The settings of a policy.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    deadline: Option<Duration>,
    on_store_failure: Option<OnStoreFailure>,
}

impl Own {
    fn apply<S>(self, mut builder: PolicyBuilder<S>) -> PolicyBuilder<S> {
        if let Some(deadline) = self.deadline {
            builder = builder.deadline(deadline);
        }
        if let Some(answer) = self.on_store_failure {
            builder = builder.on_store_failure(answer);
        }
        builder
    }

    fn bucket(self, name: &str) -> Policy {
        self.apply(Policy::token_bucket(name).capacity(2).rate("1/h"))
            .build()
            .unwrap()
    }

    /// A policy whose calls are evaluated with settings outside of the store.
    fn penalized(self, name: &str) -> Policy {
        let bucket = Policy::token_bucket(name).capacity(2).rate("1/h");
        let penalty = Penalty::after(3, secs(60)).block_for(secs(3_600)).unwrap();
        self.apply(bucket.penalty(penalty)).build().unwrap()
    }

    fn concurrency(self, name: &str) -> Policy {
        self.apply(Policy::concurrency(name).max(2)).build().unwrap()
    }
}

#[token_limiter(policy = "p", limiter = limits)]
async fn attribute(limits: &Limiter) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "p", capacity = 2, rate = "1/h", limiter = limits)]
async fn attribute_with_parameters(limits: &Limiter) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "p", capacity = 2, rate = "1/h", on_store_failure = fail_closed, limiter = limits)]
async fn attribute_that_fails_closed(limits: &Limiter) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "p", capacity = 2, rate = "1/h", deadline = "20ms", limiter = limits)]
async fn attribute_with_deadline(limits: &Limiter) -> Result<(), Rejection> {
    Ok(())
}

impl Entry {
    /// Returns whether the call is allowed.
    async fn allows(self, limits: &Limiter, own: Own) -> bool {
        let (policy, second) = (&own.bucket("p"), &own.bucket("q"));
        limits.registry().set(own.bucket("p"));
        limits.registry().set(own.concurrency("c"));
        let named = limits.named("p");
        match self {
            Self::Check => decides(limits.check(policy, KEY)).await,
            Self::CheckTwo => {
                let both = [LimitRequest::new(policy, KEY), LimitRequest::new(second, KEY)];
                decides(limits.check_all(both)).await
            }
            Self::CheckWithPenalty => decides(limits.check(&own.penalized("p"), KEY)).await,
            Self::Peek => decides(limits.peek(policy, KEY)).await,
            Self::Acquire => passes(limits.acquire(policy, KEY).timeout(Duration::ZERO)).await,
            Self::Wait => passes(limits.acquire(policy, KEY).timeout(secs(60))).await,
            Self::Admit => passes(limits.admit(policy, KEY)).await,
            Self::Reserve => reserves(limits.reserve(policy, KEY)).await,
            Self::NamedCheck => decides(named.check(KEY)).await,
            Self::NamedAcquire => passes(named.acquire(KEY).timeout(Duration::ZERO)).await,
            Self::NamedReserve => reserves(named.reserve(KEY)).await,
            Self::Attribute => attribute(limits).await.is_ok(),
            Self::AttributeWithParameters => match own {
                Own {
                    on_store_failure: Some(OnStoreFailure::FailClosed),
                    ..
                } => attribute_that_fails_closed(limits).await.is_ok(),
                Own {
                    deadline: Some(_), ..
                } => attribute_with_deadline(limits).await.is_ok(),
                _ => attribute_with_parameters(limits).await.is_ok(),
            },
            Self::Layer => {
                let layer = RateLimitLayer::new(limits, policy).key(key::global());
                responds(layer.layer(service_fn(handler))).await
            }
            Self::LayerThatWaits => {
                let layer = RateLimitLayer::new(limits, policy).key(key::global());
                responds(layer.max_wait(secs(60)).layer(service_fn(handler))).await
            }
            Self::Redisson => matches!(
                Client::new(limits).rate_limiter("p").try_acquire(1).await,
                Ok(true)
            ),
            Self::Concurrency => holds(limits.acquire_concurrency(&own.concurrency("c"), KEY)).await,
            Self::NamedConcurrency => holds(limits.named("c").acquire_concurrency(KEY)).await,
        }
    }

    fn can_fail_open(self) -> bool {
        // The attribute of this test with a failure mode denies.
        self != Self::AttributeWithParameters
    }

    /// Returns whether the entry point stores a new key in the table of limits.
    fn inserts_key(self) -> bool {
        !matches!(self, Self::Peek | Self::Concurrency | Self::NamedConcurrency)
    }
}

async fn handler(_: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::default())
}

async fn responds<S, B>(service: S) -> bool
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible>,
{
    let Ok(response) = service.oneshot(Request::default()).await;
    response.status().is_success()
}

async fn decides(call: impl IntoFuture<Output = Result<Decision, Rejection>>) -> bool {
    call.await.is_ok_and(|decision| decision.is_allowed())
}

async fn passes(call: impl IntoFuture<Output = Result<Allowed, Rejection>>) -> bool {
    call.await.is_ok()
}

async fn reserves(call: impl IntoFuture<Output = Result<Reservation, Rejection>>) -> bool {
    call.await.is_ok()
}

async fn holds(call: impl IntoFuture<Output = Result<ConcurrencyPermit, Rejection>>) -> bool {
    call.await.is_ok()
}

/// A limiter whose server refuses connections.
fn without_server(on_store_failure: OnStoreFailure) -> Limiter {
    let builder = Limiter::redis("redis://127.0.0.1:1").namespace(namespace());
    builder
        .default_on_store_failure(on_store_failure)
        .build()
        .unwrap()
}

/// A limiter in process whose table is full.
async fn full(on_store_failure: OnStoreFailure) -> Limiter {
    let builder = Limiter::in_process().max_keys(1);
    let limits = builder.default_on_store_failure(on_store_failure).build();
    let other = Own::default().bucket("other");
    assert!(limits.check(&other, KEY).await.unwrap().is_allowed());
    limits
}

const MODES: [OnStoreFailure; 2] = [OnStoreFailure::FailOpen, OnStoreFailure::FailClosed];

#[tokio::test]
async fn every_entry_point_applies_the_failure_mode_on_redis() {
    for default in MODES {
        for on_store_failure in [None, Some(MODES[0]), Some(MODES[1])] {
            for entry in ENTRIES {
                if on_store_failure == Some(OnStoreFailure::FailOpen) && !entry.can_fail_open() {
                    continue;
                }
                let own = Own {
                    on_store_failure,
                    ..Own::default()
                };
                let is_allowed = entry.allows(&without_server(default), own).await;
                let expected = on_store_failure.unwrap_or(default) == OnStoreFailure::FailOpen;
                assert_eq!(is_allowed, expected, "{entry:?}, default {default:?}, {own:?}");
            }
        }
    }
}

#[tokio::test]
async fn every_entry_point_applies_the_failure_mode_in_process() {
    for default in MODES {
        for on_store_failure in [None, Some(MODES[0]), Some(MODES[1])] {
            for entry in ENTRIES.into_iter().filter(|entry| entry.inserts_key()) {
                if on_store_failure == Some(OnStoreFailure::FailOpen) && !entry.can_fail_open() {
                    continue;
                }
                let own = Own {
                    on_store_failure,
                    ..Own::default()
                };
                let is_allowed = entry.allows(&full(default).await, own).await;
                let expected = on_store_failure.unwrap_or(default) == OnStoreFailure::FailOpen;
                assert_eq!(is_allowed, expected, "{entry:?}, default {default:?}, {own:?}");
            }
        }
    }
}

/// A server that accepts connections and never replies.
fn silent_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// The time of a call without a reply, with a fresh limiter and therefore a closed circuit breaker.
async fn time_without_reply(entry: Entry, default: Duration, own: Own) -> Duration {
    let (_listener, url) = silent_server();
    let builder = Limiter::redis(url).namespace(namespace());
    let builder = builder.default_on_store_failure(OnStoreFailure::FailOpen);
    let limits = builder.default_deadline(default).build().unwrap();
    let started = Instant::now();
    assert!(entry.allows(&limits, own).await, "{entry:?}");
    started.elapsed()
}

#[tokio::test]
async fn every_entry_point_applies_the_deadline() {
    let default = millis(150);
    for entry in ENTRIES {
        let time = time_without_reply(entry, default, Own::default()).await;
        assert!(time >= default, "{entry:?} took {time:?}");
    }
}

#[tokio::test]
async fn every_entry_point_prefers_the_deadline_of_the_policy() {
    let default = secs(600);
    let own = Own {
        deadline: Some(millis(20)),
        ..Own::default()
    };
    for entry in ENTRIES {
        let time = time_without_reply(entry, default, own).await;
        assert!(time < default / 10, "{entry:?} took {time:?}");
    }
}

#[tokio::test]
async fn strictest_failure_mode_includes_the_default() {
    let limits = without_server(OnStoreFailure::Error);
    let open = Own {
        on_store_failure: Some(OnStoreFailure::FailOpen),
        ..Own::default()
    };
    let (first, second) = (open.bucket("p"), Own::default().bucket("q"));
    let alone = limits.check(&first, KEY).await.unwrap();
    assert_eq!(alone.origin(), Origin::FailedOpen);
    let both = [LimitRequest::new(&first, KEY), LimitRequest::new(&second, KEY)];
    let rejection = limits.check_all(both).await.unwrap_err();
    let Rejection::Unavailable { error, .. } = rejection else {
        unreachable!("{rejection}")
    };
    assert_eq!(error.kind(), StoreErrorKind::Connection);
}

/// The previous policy decides until a scheduled change, with the defaults of the limiter.
#[tokio::test]
async fn previous_policy_has_the_failure_mode_of_the_limiter() {
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url()).namespace(namespace());
    let limits = limits.default_on_store_failure(OnStoreFailure::FailClosed);
    let limits = limits.default_deadline(PATIENT).build().unwrap();
    let tomorrow = SystemTime::now() + secs(86_400);
    let before = Policy::token_bucket("p").capacity(9).rate("1/h").build().unwrap();
    let policy = Own::default().bucket("p");
    let policy = policy.proportional_to(&before, tomorrow.into()).unwrap();
    assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    // Redis replies to reads, and rejects writes.
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let closed = limits.check(&policy, KEY).await.unwrap();
    assert_eq!(closed.origin(), Origin::FailedClosed);
}

#[tokio::test]
async fn settlement_after_policy_change_has_the_deadline_of_the_limiter() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = Limiter::redis(proxy.url()).namespace(namespace());
    let limits = limits.default_deadline(PATIENT).build().unwrap();
    for inheritance in [Inheritance::Proportional, Inheritance::AsIs] {
        let policy = Own::default().bucket("p");
        limits.registry().change(&policy, Inheritance::Reset).unwrap();
        let reservation = limits.named("p").reserve(KEY).await.unwrap();
        let larger = Policy::token_bucket("p").capacity(9).rate("1/h").build();
        limits.registry().change(larger.unwrap(), inheritance).unwrap();
        proxy.set_delay(2 * Policy::DEFAULT_DEADLINE);
        reservation.settle(2).await.unwrap();
        proxy.set_delay(Duration::ZERO);
    }
}

#[tokio::test]
async fn text_keeps_a_failure_mode_that_is_the_default() {
    let text = "[policy.p]\nalgorithm = \"token_bucket\"\ncapacity = 2\nrate = \"1/h\"\n";
    let local = format!("{text}deadline = \"50ms\"\non_store_failure = \"local\"\n");
    for (text, origin) in [
        (text, Origin::FailedClosed),
        (local.as_str(), Origin::LocalFallback),
    ] {
        let registry = PolicyRegistry::from_toml(text).unwrap();
        let written = PolicyRegistry::from_toml(&registry.to_toml()).unwrap();
        let builder = Limiter::redis("redis://127.0.0.1:1").namespace(namespace());
        let builder = builder.default_on_store_failure(OnStoreFailure::FailClosed);
        let limits = builder.registry(&written).build().unwrap();
        assert_eq!(limits.named("p").check(KEY).await.unwrap().origin(), origin);
        assert_eq!(registry.get("p"), written.get("p"));
    }
}

#[test]
fn invalid_default_deadline_is_rejected() {
    for deadline in [Duration::ZERO, secs(3_601)] {
        let builder = Limiter::redis("redis://127.0.0.1:1").namespace("n");
        let error = builder.default_deadline(deadline).build().unwrap_err();
        assert!(error.to_string().contains("default_deadline"), "{error}");
        // The setting has no effect in process.
        let _ = Limiter::in_process().default_deadline(deadline).build();
    }
}
