//! The deny cache: denials of Redis are repeated without a query until their retry time, with the
//! numbers of Redis.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::{Duration, Instant};

use limiter_core::{Decision, LimitRequest, Limiter, ManualClock, Origin, Policy, RedisBuilder};
use limiter_testing::{Proxy, RedisServer};
use support::{KEY, SLACK, bucket, left, micros, millis, namespace, secs, wait_of, window};

/// A server, a limiter on it, and the clock that drives the limiter.
struct Fixture {
    server: RedisServer,
    limits: Limiter,
    clock: ManualClock,
    namespace: String,
}

impl Fixture {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(settings: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Self {
        let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
        let builder = Limiter::redis(server.url()).namespace(&namespace);
        let limits = settings(builder.clock(&clock)).build().unwrap();
        limits.ready().await.unwrap();
        Self {
            server,
            limits,
            clock,
            namespace,
        }
    }

    /// Another process, under the same limits.
    fn replica(&self) -> Limiter {
        let builder = Limiter::redis(self.server.url()).namespace(&self.namespace);
        builder.clock(&self.clock).build().unwrap()
    }

    async fn call(&self, policy: &Policy) -> Decision {
        self.limits.check(policy, KEY).await.unwrap()
    }

    async fn use_up(&self, policy: &Policy) {
        let all = self.limits.check(policy, KEY).cost(policy.quota()).await;
        assert!(all.unwrap().is_allowed());
    }

    /// Number of executions of the script.
    fn script_calls(&self) -> u64 {
        script_calls(&self.server)
    }
}

fn script_calls(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text().to_owned();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    line.and_then(|line| line.split_once("calls=")?.1.split_once(',')?.0.parse().ok())
        .unwrap_or_default()
}

fn answered(decision: &Decision) -> (bool, Origin) {
    (decision.is_allowed(), decision.origin())
}

const DENIED: (bool, Origin) = (false, Origin::Redis);
const KNOWN: (bool, Origin) = (false, Origin::DenyCache);
const ADMITTED: (bool, Origin) = (true, Origin::Redis);

/// One policy of each algorithm, with a used-up quota of which one permit returns after 0.5 s.
fn halves() -> [Policy; 3] {
    [
        bucket("bucket", 1, "2/s"),
        support::funnel("funnel", 1, "2/s"),
        window("window", 1, "500ms"),
    ]
}

#[tokio::test]
async fn denied_key_is_queried_at_retry_time() {
    let fixture = Fixture::new().await;
    for policy in halves() {
        fixture.use_up(&policy).await;
        let denied = fixture.call(&policy).await;
        assert_eq!(answered(&denied), DENIED);
        let (due, script_calls) = (
            fixture.clock.now().after(wait_of(&denied)),
            fixture.script_calls(),
        );
        for passed in [0, 1, 99_999, 300_000, 99_999] {
            fixture.clock.advance(micros(passed));
            let known = fixture.call(&policy).await;
            assert_eq!(answered(&known), KNOWN, "{policy}");
            assert_eq!(known.decided_at(), fixture.clock.now());
            assert_eq!(fixture.clock.now().after(wait_of(&known)), due);
            assert_eq!(known.reset_after(), wait_of(&known));
            let own = fixture.limits.peek(&policy, KEY).await.unwrap();
            assert_eq!(own.origin(), Origin::Redis, "a peek queries Redis");
            assert_eq!(
                (wait_of(&known), known.remaining(), left(&known)),
                (wait_of(&own), own.remaining(), left(&own)),
                "{policy}"
            );
        }
        assert_eq!(
            fixture.script_calls(),
            script_calls + 5,
            "only the peeks query Redis"
        );
        fixture.clock.advance(micros(1));
        assert_eq!(answered(&fixture.call(&policy).await), ADMITTED, "{policy}");
    }
}

#[tokio::test]
async fn other_keys_and_smaller_costs_query_redis() {
    let fixture = Fixture::new().await;
    let policy = bucket("p", 5, "1/s");
    for (cost, answer) in [
        (4, ADMITTED),
        (2, DENIED),
        (3, KNOWN),
        (1, ADMITTED),
        (2, DENIED),
        (2, KNOWN),
    ] {
        let decision = fixture.limits.check(&policy, KEY).cost(cost).await.unwrap();
        assert_eq!(answered(&decision), answer, "{cost}");
        if !decision.is_allowed() {
            let own = fixture.limits.peek(&policy, KEY).cost(cost).await.unwrap();
            assert_eq!(wait_of(&decision), wait_of(&own), "{cost}");
        }
    }
    let other = fixture.limits.check(&policy, "other").cost(5).await.unwrap();
    assert_eq!(answered(&other), ADMITTED);
}

#[tokio::test]
async fn local_reset_applies_at_once_and_remote_within_a_second() {
    let fixture = Fixture::new().await;
    let (burst, daily) = (bucket("burst", 5, "1/min"), window("daily", 5, "1d"));
    let both = || [&burst, &daily].map(|policy| LimitRequest::new(policy, KEY).cost(5));
    for policy in [&burst, &daily] {
        fixture.use_up(policy).await;
    }
    let answer = async || answered(&fixture.limits.check_all(both()).await.unwrap());
    assert_eq!([answer().await, answer().await], [DENIED, KNOWN]);
    fixture.limits.clone().reset(&burst, KEY).await.unwrap();
    assert_eq!(answer().await, DENIED, "the other limit still denies");
    assert_eq!(answer().await, KNOWN);
    fixture.limits.reset(&daily, KEY).await.unwrap();
    assert_eq!(
        [answer().await, answer().await, answer().await],
        [ADMITTED, DENIED, KNOWN]
    );

    let replica = fixture.replica();
    for policy in [&burst, &daily] {
        replica.reset(policy, KEY).await.unwrap();
    }
    fixture.clock.advance(secs(1) - micros(1));
    assert_eq!(answer().await, KNOWN);
    fixture.clock.advance(micros(1));
    assert_eq!(answer().await, ADMITTED);
}

#[tokio::test]
async fn changed_policy_is_visible_at_once() {
    let fixture = Fixture::new().await;
    let (before, after) = (window("p", 5, "1m"), window("p", 6, "1m"));
    fixture.use_up(&before).await;
    for (policy, answer) in [
        (&before, DENIED),
        (&before, KNOWN),
        (&after, ADMITTED),
        (&before, DENIED),
        (&after, DENIED),
        (&after, KNOWN),
    ] {
        assert_eq!(answered(&fixture.call(policy).await), answer, "{policy}");
    }
}

#[tokio::test]
async fn cached_denial_reports_each_limit_like_redis() {
    let fixture = Fixture::new().await;
    let (short, long, roomy) = (
        bucket("s", 2, "4/s"),
        window("l", 3, "700ms"),
        bucket("r", 10, "1/h"),
    );
    let all = || [&short, &long, &roomy].map(|policy| LimitRequest::new(policy, KEY));
    for _ in 0..2 {
        assert!(fixture.limits.check_all(all()).await.unwrap().is_allowed());
        fixture.clock.advance(millis(1));
    }
    assert!(fixture.limits.check(&long, KEY).await.unwrap().is_allowed());
    assert_eq!(answered(&fixture.limits.check_all(all()).await.unwrap()), DENIED);
    // The bucket has a permit again before the window has.
    for passed in [0, 100, 148, 1, 300, 147] {
        fixture.clock.advance(millis(passed));
        let known = fixture.limits.check_all(all()).await.unwrap();
        let own = fixture.limits.peek_all(all()).await.unwrap();
        assert_eq!((answered(&known), own.is_allowed()), (KNOWN, false));
        for (known, own) in known.limits().iter().zip(own.limits()) {
            assert_eq!(known.is_allowed(), own.is_allowed());
            assert_eq!(known.retry_after(), own.retry_after());
            assert_eq!(known.reset_after(), own.reset_after());
            assert_eq!(known.expires_after(), own.expires_after());
        }
    }
    fixture
        .clock
        .advance(wait_of(&fixture.limits.check_all(all()).await.unwrap()));
    assert_eq!(
        answered(&fixture.limits.check_all(all()).await.unwrap()),
        ADMITTED
    );
}

#[tokio::test]
async fn window_above_its_reduced_limit_is_reported_like_redis() {
    let fixture = Fixture::with(|builder| builder.deny_cache(secs(60))).await;
    let (before, reduced) = (window("p", 5, "10s"), window("p", 3, "10s"));
    for cost in [3, 2] {
        let charged = fixture.limits.check(&before, KEY).cost(cost).await;
        assert!(charged.unwrap().is_allowed());
        fixture.clock.advance(secs(1));
    }
    // A cost equal to the limit fits when all permits have expired, like the reset.
    let call = || fixture.limits.check(&reduced, KEY).cost(3);
    assert_eq!(answered(&call().await.unwrap()), DENIED);
    // Three permits expire after ten seconds.
    for passed in [secs(7), secs(1)] {
        fixture.clock.advance(passed);
        let known = call().await.unwrap();
        let own = fixture.limits.peek(&reduced, KEY).cost(3).await.unwrap();
        assert_eq!(
            (wait_of(&known), known.remaining(), left(&known)),
            (wait_of(&own), own.remaining(), left(&own)),
            "{passed:?}"
        );
    }
}

#[tokio::test]
async fn waiter_is_served_on_time_with_one_query() {
    let fixture = Fixture::new().await;
    for policy in halves() {
        fixture.use_up(&policy).await;
        let wait = wait_of(&fixture.call(&policy).await);
        fixture.clock.advance(wait / 2);
        let (due, script_calls) = (fixture.clock.now().after(wait / 2), fixture.script_calls());
        let acquiring = fixture.limits.acquire(&policy, KEY).into_future();
        tokio::pin!(acquiring);
        // The denial is cached, so the call waits without a query.
        let waits = tokio::time::timeout(Duration::ZERO, &mut acquiring).await;
        assert!(waits.is_err(), "{policy}");
        fixture.clock.advance(wait / 2 - micros(1));
        assert!(
            tokio::time::timeout(Duration::ZERO, &mut acquiring)
                .await
                .is_err()
        );
        assert_eq!(fixture.script_calls(), script_calls);
        fixture.clock.advance(micros(1));
        let permit = acquiring.await.unwrap();
        assert_eq!(
            (permit.origin(), permit.decided_at()),
            (Origin::Redis, due),
            "{policy}"
        );
        assert_eq!(fixture.script_calls(), script_calls + 1);
    }
}

#[tokio::test]
async fn denial_is_cached_for_configured_time() {
    for (kept, script_calls) in [(Duration::ZERO, 4), (millis(10), 2), (secs(60), 1)] {
        let fixture = Fixture::with(|builder| builder.deny_cache(kept)).await;
        let policy = bucket("p", 1, "1/min");
        fixture.use_up(&policy).await;
        let before = fixture.script_calls();
        for pause in [0, 1, 10, 1] {
            fixture.clock.advance(millis(pause));
            assert!(!fixture.call(&policy).await.is_allowed());
        }
        assert_eq!(fixture.script_calls() - before, script_calls, "{kept:?}");
    }
}

/// Decided before the reset and received after it, on different connections: those of two runtimes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denial_overtaken_by_reset_is_not_cached() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = Limiter::redis(proxy.url())
        .namespace(namespace())
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    let policy = bucket("p", 1, "1/h");
    let mut overtaken = false;
    for round in 0..20 {
        let key = format!("key {round}");
        assert!(limits.check(&policy, &key).await.unwrap().is_allowed());
        let before = script_calls(&server);
        proxy.set_delay(millis(300));
        let slow = tokio::spawn({
            let (limits, policy, key) = (limits.clone(), policy.clone(), key.clone());
            async move { limits.check(&policy, &key).await.unwrap() }
        });
        while script_calls(&server) == before {
            tokio::task::yield_now().await;
        }
        proxy.set_delay(Duration::ZERO);
        reset_elsewhere(&limits, &policy, &key).await;
        overtaken |= !slow.is_finished();
        assert_eq!(answered(&slow.await.unwrap()), DENIED);
        let fresh = limits.check(&policy, &key).await.unwrap();
        assert_eq!(answered(&fresh), ADMITTED, "round {round}");
        if overtaken {
            break;
        }
    }
    assert!(overtaken);
}

async fn reset_elsewhere(limits: &Limiter, policy: &Policy, key: &str) {
    let (limits, policy, key) = (limits.clone(), policy.clone(), key.to_owned());
    let reset = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(limits.reset(&policy, &key)).unwrap();
    };
    tokio::task::spawn_blocking(reset).await.unwrap();
}

#[tokio::test]
async fn server_clock_waits_are_not_exceeded() {
    let server = RedisServer::start();
    let limits = support::limiter(server.url());
    limits.ready().await.unwrap();
    let policy = bucket("p", 1, "5/s");
    assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    let started = Instant::now();
    let denied = limits.check(&policy, KEY).await.unwrap();
    assert_eq!(answered(&denied), DENIED);
    let (due, calls_before) = (denied.decided_at().after(wait_of(&denied)), script_calls(&server));
    let mut known = 0;
    let admitted = loop {
        let decision = limits.check(&policy, KEY).await.unwrap();
        if decision.is_allowed() {
            break decision;
        }
        assert_eq!(decision.decided_at().after(wait_of(&decision)), due);
        known += usize::from(decision.origin() == Origin::DenyCache);
    };
    assert!(admitted.decided_at() >= due);
    assert!(started.elapsed() < millis(200) + SLACK);
    assert!(known > 1_000, "{known}");
    // The reply of the server takes some time, so this process sends its next request slightly too
    // early.
    assert!(script_calls(&server) - calls_before < 100);
}
