//! Spans of decisions for subscribers of `tracing`: policy, outcome and origin, and never a key.
#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fmt;
use std::sync::{Arc, Mutex};

use limiter_core::{Enforcement, Limiter, ManualClock, OnStoreFailure, Policy, Rejection};
use limiter_testing::RedisServer;
use support::{bucket, limiter, namespace};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Each span and event as one text, in the order in which they began.
#[derive(Clone, Debug, Default)]
struct SpanLog(Arc<Mutex<Vec<String>>>);

impl SpanLog {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn spans(&self) -> Vec<String> {
        let mut all = self.all();
        all.retain(|text| text.starts_with("limiter."));
        all
    }
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl Subscriber for SpanLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("limiter_core")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        assert_eq!(*span.metadata().level(), Level::DEBUG);
        let mut text = span.metadata().name().to_owned();
        span.record(&mut Fields(&mut text));
        let mut all = self.0.lock().unwrap();
        all.push(text);
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let place = usize::try_from(span.into_u64()).unwrap() - 1;
        if let Some(text) = self.0.lock().unwrap().get_mut(place) {
            values.record(&mut Fields(text));
        }
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = "event".to_owned();
        event.record(&mut Fields(&mut text));
        self.0.lock().unwrap().push(text);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn redis_decision_has_span_and_local_decision_has_none() {
    let result = SpanLog::default();
    let _guard = tracing::subscriber::set_default(result.clone());
    let limits = Limiter::redis(RedisServer::shared().url());
    let limits = limits
        .namespace(namespace())
        .clock(&ManualClock::new())
        .build()
        .unwrap();
    let policy = bucket("seen", 1, 1);
    for _ in 0..3 {
        let _ = limits.check(&policy, "hidden").await.unwrap();
    }
    let in_process = Limiter::in_process().build();
    let _ = in_process.check(&policy, "hidden").await.unwrap();
    let expected = [
        "limiter.decide policy=\"seen\" outcome=\"allowed\" origin=Redis",
        // The deny cache decides the third call from the second one.
        "limiter.decide policy=\"seen\" outcome=\"denied\" origin=Redis",
    ];
    assert_eq!(result.spans(), expected);
    assert!(
        !result.all().iter().any(|text| text.contains("hidden")),
        "{result:?}"
    );
}

#[tokio::test]
async fn each_redis_query_has_a_span() {
    let result = SpanLog::default();
    let _guard = tracing::subscriber::set_default(result.clone());
    let limits = limiter(RedisServer::shared().url());
    let policy = bucket("kept", 1, 1);
    let shadow = Policy::token_bucket("shadow").capacity(1).rate(1);
    let shadow = shadow.enforcement(Enforcement::Shadow).build().unwrap();
    let held = Policy::concurrency("held").max(1).build().unwrap();
    let _ = limits.reserve(&policy, "hidden").await.unwrap();
    let _ = limits.check(&shadow, "hidden").await.unwrap();
    let _permit = limits.acquire_concurrency(&held, "hidden").await.unwrap();
    assert!(limits.acquire_concurrency(&held, "hidden").await.is_err());
    let in_process = Limiter::in_process().build();
    let _ = in_process.reserve(&policy, "hidden").await.unwrap();
    let _ = in_process.acquire_concurrency(&held, "hidden").await.unwrap();
    let expected = [
        "limiter.reserve policy=\"kept\" outcome=\"allowed\" origin=Redis",
        // Within it.
        "limiter.decide policy=\"kept\" outcome=\"allowed\" origin=Redis",
        "limiter.decide policy=\"shadow\" outcome=\"allowed\" origin=Redis",
        "limiter.enter policy=\"held\" outcome=\"allowed\" origin=Redis",
        "limiter.enter policy=\"held\" outcome=\"denied\" origin=Redis",
    ];
    assert_eq!(result.spans(), expected);
    assert!(
        !result.all().iter().any(|text| text.contains("hidden")),
        "{result:?}"
    );
}

#[tokio::test]
async fn wait_is_one_span_and_outage_log_has_no_key() {
    let result = SpanLog::default();
    let _guard = tracing::subscriber::set_default(result.clone());
    let limits = limiter("redis://127.0.0.1:1/");
    let policy = support::policy(OnStoreFailure::Error);
    assert!(limits.acquire(&policy, "hidden").await.is_err());
    assert!(matches!(
        limits.check(&policy, "hidden").await,
        Err(Rejection::Unavailable { .. })
    ));
    let local = support::policy(OnStoreFailure::Local);
    let _ = limits.check(&local, "hidden").await.unwrap();
    let expected = [
        "limiter.acquire policy=\"p\" outcome=\"error\"",
        "limiter.decide policy=\"p\" outcome=\"error\"",
        "limiter.decide policy=\"p\" outcome=\"allowed\" origin=LocalFallback",
    ];
    assert_eq!(result.spans(), expected);
    let all = result.all();
    assert!(
        all.iter().any(|text| text.contains("Redis made no decision")),
        "{all:?}"
    );
    assert!(!all.iter().any(|text| text.contains("hidden")), "{all:?}");
}
