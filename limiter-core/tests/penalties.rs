//! Penalties with Redis: cached denials are reported in batches, and a block applies on every
//! replica.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Instant;

use limiter_core::{
    Decision, Limiter, ManualClock, OnStoreFailure, Origin, Policy, Rejection, StoreErrorKind,
};
use limiter_testing::log::Everything;
use limiter_testing::{Proxy, RedisServer};
use support::{KEY, PATIENT, SLACK, namespace, secs, wait_of};

fn policy(penalty: &str, answer: OnStoreFailure) -> Policy {
    let policy = Policy::token_bucket("login").capacity(1).rate("1/h");
    policy
        .penalty(penalty)
        .deadline(PATIENT)
        .on_store_failure(answer)
        .build()
        .unwrap()
}

/// A server, and replicas of a program on it, all on a clock that the test moves.
struct Fixture {
    server: RedisServer,
    clock: ManualClock,
    namespace: String,
}

impl Fixture {
    fn new() -> Self {
        Self {
            server: RedisServer::start(),
            clock: ManualClock::new(),
            namespace: namespace(),
        }
    }

    async fn replica(&self) -> Limiter {
        let builder = Limiter::redis(self.server.url()).namespace(&self.namespace);
        let limits = builder.clock(&self.clock).build().unwrap();
        limits.ready().await.unwrap();
        limits
    }

    /// Number of executions of a script.
    fn script_calls(&self) -> u64 {
        let stats = self.server.command(&["INFO", "commandstats"]).text();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
        line.and_then(|line| line.split_once("calls=")?.1.split_once(',')?.0.parse().ok())
            .unwrap_or_default()
    }

    fn keys(&self, of: &str) -> Vec<String> {
        let names = self
            .server
            .command(&["KEYS", &format!("{}*{of}*", self.namespace)]);
        names
            .items()
            .iter()
            .map(limiter_testing::RespValue::text)
            .collect()
    }

    /// Waits until the counted denials have been reported.
    async fn result(&self) {
        let started = Instant::now();
        while self.keys("denials").is_empty() {
            assert!(started.elapsed() < secs(10), "no denial is reported");
            tokio::task::yield_now().await;
        }
    }
}

async fn denied(limits: &Limiter, policy: &Policy, times: usize) -> Decision {
    let mut last = None;
    for _ in 0..times {
        let decision = limits.check(policy, KEY).await.unwrap();
        assert!(!decision.is_allowed());
        last = Some(decision);
    }
    last.unwrap()
}

#[tokio::test]
async fn cached_denials_count_and_are_reported_in_batches() {
    let fixture = Fixture::new();
    let (limits, policy) = (
        fixture.replica().await,
        policy("1000 in 1m: 1h", OnStoreFailure::Error),
    );
    assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    let before = fixture.script_calls();
    let last = denied(&limits, &policy, 999).await;
    assert_eq!((last.is_blocked(), last.origin()), (false, Origin::DenyCache));
    assert_eq!(fixture.script_calls(), before + 1, "the first of them");
    let thousandth = denied(&limits, &policy, 1).await;
    assert!(thousandth.is_blocked() && wait_of(&thousandth) == secs(3_600));
    assert_eq!(
        fixture.script_calls(),
        before + 4,
        "the count, the block, and the end of the count"
    );
    // The next call queries the store; the following ones are decided in this process.
    for _ in 0..500 {
        assert!(denied(&limits, &policy, 1).await.is_blocked());
    }
    assert_eq!(fixture.script_calls(), before + 5);
    assert_eq!(fixture.keys("denials"), Vec::<String>::new());
}

#[tokio::test]
async fn denials_of_all_replicas_count_and_all_replicas_block() {
    let fixture = Fixture::new();
    let policy = policy("10 in 1m: 1h", OnStoreFailure::Error);
    let (one, other) = (fixture.replica().await, fixture.replica().await);
    assert!(one.check(&policy, KEY).await.unwrap().is_allowed());
    let _ = denied(&one, &policy, 6).await;
    assert_eq!(fixture.keys("denials"), Vec::<String>::new());
    fixture.clock.advance(secs(1));
    fixture.result().await;
    let last = denied(&other, &policy, 4).await;
    assert!(!last.is_blocked(), "this replica has not received the block");
    fixture.clock.advance(secs(1));
    let started = Instant::now();
    while other.blocked_until(&policy, KEY).await.unwrap().is_none() {
        assert!(started.elapsed() < secs(10), "ten denials block");
        tokio::task::yield_now().await;
    }
    assert!(denied(&other, &policy, 1).await.is_blocked());
    // A denial from before the block may still be cached, for at most one second.
    fixture.clock.advance(secs(1));
    assert!(denied(&one, &policy, 1).await.is_blocked());

    one.reset(&policy, KEY).await.unwrap();
    assert!(one.check(&policy, KEY).await.unwrap().is_allowed());
    fixture.clock.advance(secs(1));
    assert!(!denied(&other, &policy, 1).await.is_blocked());
}

#[tokio::test]
async fn shutdown_reports_counted_denials() {
    let fixture = Fixture::new();
    let policy = policy("10 in 1m: 1h", OnStoreFailure::Error);
    let (one, other) = (fixture.replica().await, fixture.replica().await);
    assert!(one.check(&policy, KEY).await.unwrap().is_allowed());
    let _ = denied(&one, &policy, 9).await;
    one.shutdown(PATIENT).await;
    let _ = denied(&other, &policy, 1).await;
    other.shutdown(PATIENT).await;
    let third = fixture.replica().await;
    assert!(denied(&third, &policy, 1).await.is_blocked());
}

/// A report that does not reach Redis is repeated without another denial.
#[tokio::test]
async fn denials_of_failed_report_are_reported_later() {
    let log = Everything::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new();
    let proxy = Proxy::start(fixture.server.port());
    let limits = Limiter::redis(proxy.url()).namespace(&fixture.namespace);
    let limits = limits.clock(&fixture.clock).build().unwrap();
    let policy = policy("10 in 1m: 1h", OnStoreFailure::Error);
    assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    let _ = denied(&limits, &policy, 6).await;
    proxy.refuse(true);
    proxy.drop_connections();
    let started = Instant::now();
    let is_failed = || (log.all().iter()).any(|event| event.contains("cannot report denials"));
    while !is_failed() {
        assert!(started.elapsed() < secs(10), "the report fails");
        fixture.clock.advance(support::millis(100));
        tokio::time::sleep(support::millis(1)).await;
    }
    proxy.refuse(false);
    while fixture.keys("denials").is_empty() {
        assert!(started.elapsed() < secs(20), "the denials are reported");
        fixture.clock.advance(support::millis(100));
        tokio::time::sleep(support::millis(1)).await;
    }
}

/// An unreadable value is left unchanged and fails no other decision.
#[tokio::test]
async fn penalty_keeps_values_of_another_type() {
    let fixture = Fixture::new();
    let (limits, policy) = (
        fixture.replica().await,
        policy("2 in 1m: 1h", OnStoreFailure::Error),
    );
    let key = |operation: &str| {
        let code = if operation == "denials" { "sw" } else { "fn" };
        format!(
            "{}|{code}|login|{operation}|{{{KEY}}}",
            fixture.namespace.replace(' ', "%20")
        )
    };
    fixture.server.command(&["RPUSH", &key("denials"), "x"]);
    assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    assert!(
        !denied(&limits, &policy, 5).await.is_blocked(),
        "the denials cannot be counted"
    );
    fixture.server.command(&["RPUSH", &key("blocked"), "x"]);
    fixture.clock.advance(secs(2));
    let answer = limits.check(&policy, KEY).await;
    let Err(Rejection::Unavailable { error, .. }) = answer else {
        unreachable!("{answer:?}")
    };
    assert_eq!(error.kind(), StoreErrorKind::WrongType);
    assert!(limits.blocked_until(&policy, KEY).await.is_err());
    assert!(limits.check(&policy, "other").await.unwrap().is_allowed());
    limits.reset(&policy, KEY).await.unwrap();
    assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
}

#[tokio::test]
async fn blocks_remain_in_outage() {
    let fixture = Fixture::new();
    let limits = fixture.replica().await;
    let policy = Policy::token_bucket("login").capacity(1).rate(1);
    let policy = policy.penalty("2 in 1m: 10m").deadline(PATIENT).build().unwrap();
    assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    assert!(denied(&limits, &policy, 2).await.is_blocked());
    fixture.server.kill();
    fixture.clock.advance(secs(60));
    let blocked = denied(&limits, &policy, 1).await;
    assert_eq!(
        (blocked.is_blocked(), blocked.origin()),
        (true, Origin::LocalFallback)
    );
    assert_eq!(wait_of(&blocked), secs(540));
    assert!(limits.check(&policy, "other").await.unwrap().is_allowed());
    for _ in 0..5 {
        let denied = limits.check(&policy, "other").await.unwrap();
        assert!(!denied.is_allowed() && !denied.is_blocked());
    }
}

/// Uses the server's own clock.
#[tokio::test]
async fn block_and_count_expire() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = Limiter::redis(server.url())
        .namespace(&namespace)
        .build()
        .unwrap();
    let policy = policy("2 in 10s: 20s", OnStoreFailure::Error);
    let life = |operation: &str| {
        let names = server.command(&["KEYS", &format!("{namespace}*{operation}*")]);
        let [name] = names.items() else {
            unreachable!("{names:?}")
        };
        server.command(&["PTTL", &name.text()]).integer()
    };
    assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    let _ = denied(&limits, &policy, 1).await;
    let started = Instant::now();
    while server
        .command(&["KEYS", &format!("{namespace}*denials*")])
        .items()
        .is_empty()
    {
        assert!(
            started.elapsed() < secs(1) + 10 * SLACK,
            "reported within a second"
        );
        tokio::time::sleep(support::millis(5)).await;
    }
    // The window of 10 s, and 10 s for late reports.
    assert!((15_000..=21_001).contains(&life("denials")));
    assert!(denied(&limits, &policy, 1).await.is_blocked());
    assert!((15_000..=21_001).contains(&life("blocked")));
}

/// A caller that does not wait for the reply does not affect the report.
#[tokio::test]
async fn cancelled_denied_call_is_counted() {
    let fixture = Fixture::new();
    let (limits, policy) = (
        fixture.replica().await,
        policy("2 in 1m: 1h", OnStoreFailure::Error),
    );
    assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    let _ = denied(&limits, &policy, 1).await;
    let mut second = Box::pin(limits.check(&policy, KEY).into_future());
    let polled = std::future::poll_fn(|context| std::task::Poll::Ready(second.as_mut().poll(context))).await;
    assert!(polled.is_pending());
    drop(second);
    let started = Instant::now();
    while limits.blocked_until(&policy, KEY).await.unwrap().is_none() {
        assert!(started.elapsed() < secs(10));
        tokio::task::yield_now().await;
    }
}
