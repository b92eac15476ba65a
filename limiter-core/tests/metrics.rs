//! Recorded metrics: each decision with its outcome and its origin, failed store queries, and
//! breaker states.
#![cfg(all(feature = "metrics", feature = "redis"))]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::time::Duration;

use limiter_core::lease::HolderDecisions;
use limiter_core::registry::OnUnknownPolicy;
use limiter_core::{
    Enforcement, LimitRequest, Limiter, ManualClock, OnStoreFailure, Origin, Policy, Rejection,
};
use limiter_testing::RedisServer;
use limiter_testing::recorder::Ledger;
use support::{KEY, PATIENT, answers_again, bucket, limiter, millis, namespace, secs, window};

/// The metrics of this process. Tests run in parallel, so each test uses its own names.
fn recorded() -> &'static Ledger {
    static LEDGER: LazyLock<Ledger> = LazyLock::new(|| {
        let ledger = Ledger::default();
        metrics::set_global_recorder(ledger.clone()).unwrap();
        ledger
    });
    &LEDGER
}

/// The decisions of a policy, by outcome and origin.
fn decisions(policy: &str) -> Vec<(String, f64)> {
    let start = format!("limiter_decisions_total{{policy={policy},");
    let of_policy = recorded().all().into_iter().filter_map(|(name, count)| {
        Some((name.strip_prefix(&start)?.trim_end_matches('}').to_owned(), count))
    });
    let mut counted: Vec<_> = of_policy.collect();
    counted.sort_by(|(a, _), (b, _)| a.cmp(b));
    counted
}

#[track_caller]
fn assert_counted(policy: &str, expected: &[(&str, &str, f64)]) {
    let mut expected: Vec<_> = expected
        .iter()
        .map(|(outcome, origin, count)| (format!("outcome={outcome},origin={origin}"), *count))
        .collect();
    expected.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert_eq!(decisions(policy), expected);
}

fn result(name: &str) -> f64 {
    recorded().get(name).unwrap_or_default()
}

#[tokio::test]
async fn in_process_decisions_are_counted_and_peeks_are_not() {
    recorded();
    let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    let policy = bucket("in process", 2, 1);
    for _ in 0..3 {
        let _ = limits.check(&policy, KEY).await.unwrap();
        let _ = limits.peek(&policy, KEY).await.unwrap();
    }
    assert!(limits.check(&policy, KEY).cost(3).await.is_err());
    assert!(limits.check(&policy, KEY).cost(-1).await.is_err());
    let expected = [
        ("allowed", "memory", 2.0),
        ("denied", "memory", 1.0),
        ("invalid", "none", 2.0),
    ];
    assert_counted("in process", &expected);
}

#[test]
fn decisions_of_holders_are_counted() {
    recorded();
    let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    let policy = bucket("held", 2, 1);
    let decisions = HolderDecisions::by(Origin::Lease).allowed(5).would_deny(3);
    limits.count_decisions(&policy, KEY, decisions);
    limits.count_decisions(&policy, KEY, HolderDecisions::by(Origin::Suspension).denied(4));
    let expected = [
        ("allowed", "lease", 5.0),
        ("denied", "suspension", 4.0),
        ("shadow_denied", "lease", 3.0),
    ];
    assert_counted("held", &expected);
}

#[tokio::test]
async fn several_limits_are_counted_with_spared_outcome() {
    recorded();
    let clock = ManualClock::new();
    let (narrow, wide) = (bucket("narrow", 1, 1), window("wide", 10, "1m"));
    let in_redis = Limiter::redis(RedisServer::shared().url());
    let in_redis = in_redis
        .namespace(namespace())
        .clock(&clock)
        .deny_cache(secs(0))
        .build()
        .unwrap();
    for limits in [Limiter::in_process().clock(&clock).build(), in_redis] {
        for _ in 0..3 {
            let _ = limits.check_all([(&narrow, KEY), (&wide, KEY)]).await.unwrap();
        }
        let never = limits
            .check_all([
                LimitRequest::new(&wide, KEY),
                LimitRequest::new(&narrow, KEY).cost(2),
            ])
            .await;
        assert!(matches!(never, Err(Rejection::NeverFits { .. })));
    }
    let narrow = [("allowed", 1.0), ("denied", 2.0)];
    let wide = [("allowed", 1.0), ("spared", 2.0)];
    let both = |counts: [(&'static str, f64); 2]| {
        let of = |origin| counts.map(|(outcome, count)| (outcome, origin, count));
        [of("memory"), of("redis")].concat()
    };
    assert_counted("narrow", &[both(narrow), vec![("invalid", "none", 2.0)]].concat());
    assert_counted("wide", &both(wide));
}

#[tokio::test]
async fn redis_and_deny_cache_have_separate_origins() {
    recorded();
    let clock = ManualClock::new();
    let limits = Limiter::redis(RedisServer::shared().url());
    let limits = limits.namespace(namespace()).clock(&clock).build().unwrap();
    let policy = bucket("remembered", 1, 1);
    let before = result("limiter_decision_seconds{origin=redis}");
    for _ in 0..3 {
        let _ = limits.check(&policy, KEY).await.unwrap();
    }
    let expected = [
        ("allowed", "redis", 1.0),
        ("denied", "redis", 1.0),
        ("denied", "deny_cache", 1.0),
    ];
    assert_counted("remembered", &expected);
    assert!(
        result("limiter_decision_seconds{origin=redis}") - before >= 2.0,
        "other tests count as well"
    );
    assert!(result("limiter_batch_requests{}") >= 2.0);

    let leased = Policy::token_bucket("leased")
        .capacity(1_000)
        .rate(1)
        .lease("10s")
        .deadline(PATIENT);
    let leased = leased.on_store_failure(OnStoreFailure::Error).build().unwrap();
    let (mut redis, mut lease) = (0.0, 0.0);
    while lease < 3.0 {
        match limits.check(&leased, KEY).await.unwrap().origin() {
            Origin::Lease => lease += 1.0,
            _ => redis += 1.0,
        }
        tokio::task::yield_now().await;
    }
    assert_counted(
        "leased",
        &[("allowed", "lease", lease), ("allowed", "redis", redis)],
    );
    limits.shutdown(PATIENT).await;
}

#[tokio::test]
async fn wait_is_counted_once() {
    recorded();
    let clock = ManualClock::new();
    let limits = Limiter::in_process().clock(&clock).build();
    let policy = bucket("awaited", 1, 1);
    limits.acquire(&policy, KEY).await.unwrap();
    let second = limits.acquire(&policy, KEY).timeout(secs(5)).into_future();
    let third = limits.acquire(&policy, KEY).timeout(millis(500)).into_future();
    let (second, third, ()) = tokio::join!(second, third, async {
        assert!(result("limiter_waiting_calls{}") >= 2.0, "both calls wait");
        for _ in 0..20 {
            clock.advance(millis(100));
            tokio::task::yield_now().await;
        }
    });
    assert!(second.is_ok() && matches!(third, Err(Rejection::TimedOut { .. })));
    let origin = decisions("awaited")
        .into_iter()
        .find(|(labels, _)| labels.contains("timed_out"));
    assert!(origin.is_some());
    assert!(decisions("awaited").contains(&("outcome=allowed,origin=memory".into(), 2.0)));
    assert_eq!(
        decisions("awaited").iter().map(|(_, count)| count).sum::<f64>(),
        3.0
    );
}

#[tokio::test]
async fn outage_outcomes_are_counted() {
    recorded();
    let nowhere = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let limits = limiter(format!("redis://{nowhere}/"));
    let answers = [
        (OnStoreFailure::Local, "allowed", "local_fallback"),
        (OnStoreFailure::FailOpen, "allowed", "failed_open"),
        (OnStoreFailure::FailClosed, "denied", "failed_closed"),
        (OnStoreFailure::Error, "error", "none"),
    ];
    let policy = |answer| {
        let policy = Policy::token_bucket(format!("out: {answer:?}"));
        let policy = policy.capacity(5).rate(1).on_store_failure(answer);
        policy.build().unwrap()
    };
    for (answer, outcome, origin) in answers {
        let (errors, seconds) = (
            "limiter_store_errors_total{kind=connection}",
            format!("limiter_decision_seconds{{origin={origin}}}"),
        );
        let before = (result(errors), result(&seconds));
        let policy = policy(answer);
        let _ = limits.check(&policy, KEY).await;
        assert_counted(policy.name(), &[(outcome, origin, 1.0)]);
        assert!(
            result(errors) > before.0 && result(&seconds) > before.1,
            "{answer:?}"
        );
    }
    // A call that would wait has the same outcome.
    for (answer, outcome, origin) in answers {
        let policy = policy(answer);
        let _ = limits.acquire(&policy, KEY).timeout(secs(1)).await;
        assert_counted(policy.name(), &[(outcome, origin, 2.0)]);
    }
}

/// A refund and a charge first convert the limit after a proportional change.
#[tokio::test]
async fn failed_conversion_before_change_is_counted() {
    recorded();
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = Limiter::redis(server.url()).namespace(namespace());
    let limits = limits.clock(&clock).build().unwrap();
    let sized = |capacity: u32| Policy::token_bucket("converted").capacity(capacity).rate("1/h");
    let before = sized(1).deadline(PATIENT).build().unwrap();
    let after = sized(2).deadline(PATIENT).build().unwrap();
    let policy = after.proportional_to(&before, clock.now()).unwrap();
    server.command(&[
        "RPUSH",
        &limits.redis_key(&policy, KEY).unwrap(),
        "of another program",
    ]);
    let errors = || result("limiter_store_errors_total{kind=wrong_type}");
    for counted in [1.0, 2.0] {
        let changed = match errors() {
            0.0 => limits.refund(&policy, KEY).await,
            _ => limits.charge(&policy, KEY).await,
        };
        assert!(changed.is_err());
        assert!(
            (errors() - counted).abs() < f64::EPSILON,
            "the conversion before change {counted} is counted once"
        );
    }
}

#[tokio::test]
async fn breaker_gauge_follows_state() {
    recorded();
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let gauge = format!("limiter_breaker_state{{node=127.0.0.1:{}}}", server.port());
    answers_again(&limits, secs(1)).await;
    assert_eq!(
        recorded().get(&gauge),
        Some(0.0),
        "the gauge exists before the first event"
    );
    server.kill();
    let policy = support::policy(OnStoreFailure::Error);
    for _ in 0..6 {
        assert!(limits.check(&policy, KEY).await.is_err());
    }
    assert!(result(&gauge) >= 1.0, "open, or probing");
    let shown_open = async {
        while result(&gauge) < 2.0 {
            assert!(limits.check(&policy, KEY).await.is_err());
        }
    };
    tokio::time::timeout(PATIENT, shown_open).await.unwrap();
    server.restart();
    answers_again(&limits, secs(5)).await;
    assert_eq!(result(&gauge), 0.0);
}

/// No call closes the breaker of an idle process.
#[tokio::test]
async fn outage_of_idle_process_ends_in_gauge() {
    recorded();
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let gauge = format!("limiter_breaker_state{{node=127.0.0.1:{}}}", server.port());
    answers_again(&limits, secs(1)).await;
    server.kill();
    let policy = support::policy(OnStoreFailure::Error);
    while result(&gauge) == 0.0 {
        assert!(limits.check(&policy, KEY).await.is_err());
    }
    server.restart();
    let closed = async {
        while result(&gauge) != 0.0 {
            tokio::time::sleep(millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENT, closed).await.unwrap();
    assert!(
        limits.check(&policy, KEY).await.is_ok(),
        "Redis decides the next call"
    );
}

#[tokio::test]
async fn removed_breaker_is_reported_closed() {
    recorded();
    let nowhere = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let limits = limiter(format!("redis://{nowhere}/"));
    let gauge = format!("limiter_breaker_state{{node={nowhere}}}");
    let policy = support::policy(OnStoreFailure::Error);
    while result(&gauge) == 0.0 {
        assert!(limits.check(&policy, KEY).await.is_err());
    }
    drop(limits);
    let closed = async {
        while result(&gauge) != 0.0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENT, closed).await.unwrap();
}

#[test]
fn counted_call_allocates_nothing() {
    recorded();
    let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    let policy = bucket("counted", 100, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let counted = runtime.block_on(async {
        let _ = limits.check(&policy, KEY).await.unwrap();
        allocation_counter::measure(|| {
            for _ in 0..50 {
                let mut decided = std::pin::pin!(limits.check(&policy, KEY).into_future());
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(decided.as_mut().poll(&mut context).is_ready());
            }
        })
    });
    assert_eq!(counted.count_total, 0);
    assert_counted("counted", &[("allowed", "memory", 51.0)]);
}

/// In process and with Redis.
#[tokio::test]
async fn concurrency_acquisitions_are_counted_and_timed() {
    recorded();
    let redis = limiter(RedisServer::shared().url());
    for (name, origin, limits) in [
        ("held here", "memory", Limiter::in_process().build()),
        ("held there", "redis", redis),
    ] {
        let seconds = format!("limiter_decision_seconds{{origin={origin}}}");
        let before = result(&seconds);
        let policy = Policy::concurrency(name)
            .max(1)
            .deadline(PATIENT)
            .build()
            .unwrap();
        let held = limits.acquire_concurrency(&policy, KEY).await.unwrap();
        assert!(limits.acquire_concurrency(&policy, KEY).await.is_err());
        assert!(limits.acquire_concurrency(&policy, KEY).cost(2).await.is_err());
        let late = limits.acquire_concurrency(&policy, KEY).timeout(millis(20)).await;
        assert!(matches!(late, Err(Rejection::TimedOut { .. })));
        held.release().await.unwrap();
        let held = limits
            .acquire_concurrency(&policy, KEY)
            .timeout(secs(5))
            .await
            .unwrap();
        let _ = limits.peek(&policy, KEY).await.unwrap();
        drop(held);
        assert_counted(
            name,
            &[
                ("allowed", origin, 2.0),
                ("denied", origin, 1.0),
                ("timed_out", origin, 1.0),
                ("invalid", "none", 1.0),
            ],
        );
        assert_eq!(result(&seconds) >= before + 4.0, origin == "redis", "{name}");
    }
}

#[tokio::test]
async fn permits_of_share_report_outage() {
    recorded();
    let limits = limiter("redis://127.0.0.1:1/");
    let policy = Policy::concurrency("held alone").max(1).build().unwrap();
    let before = result("limiter_store_errors_total{kind=connection}");
    let _held = limits.acquire_concurrency(&policy, KEY).await.unwrap();
    assert!(limits.acquire_concurrency(&policy, KEY).await.is_err());
    assert_counted(
        "held alone",
        &[
            ("allowed", "local_fallback", 1.0),
            ("denied", "local_fallback", 1.0),
        ],
    );
    assert!(result("limiter_store_errors_total{kind=connection}") > before);
}

#[tokio::test]
async fn exempt_and_shadow_calls_are_counted_by_every_entry_point() {
    recorded();
    let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    let of = |name: &str| Policy::token_bucket(name).capacity(1).rate(1);
    let off = of("switched off").enforcement(Enforcement::Off).build().unwrap();
    let listed = of("listed").allow_keys([KEY]).deny_keys(["eve"]).build().unwrap();
    let shadow = of("shadowed").enforcement(Enforcement::Shadow).build().unwrap();
    for policy in [&off, &listed, &shadow] {
        let _ = limits.check(policy, KEY).await.unwrap();
        let _ = limits.acquire(policy, KEY).await.unwrap();
        let _ = limits.reserve(policy, KEY).await.unwrap();
        let _ = limits.peek(policy, KEY).await.unwrap();
    }
    assert!(limits.acquire(&listed, "eve").await.is_err());
    assert!(!limits.check(&listed, "eve").await.unwrap().is_allowed());
    let beside = bucket("beside", 1, 1);
    let requests = [&off, &listed, &beside].map(|policy| LimitRequest::new(policy, KEY));
    assert!(limits.check_all(requests.clone()).await.unwrap().is_allowed());
    assert!(!limits.check_all(requests).await.unwrap().is_allowed());
    assert_counted("switched off", &[("allowed", "off", 4.0)]);
    assert_counted(
        "listed",
        &[("allowed", "key_list", 4.0), ("denied", "key_list", 2.0)],
    );
    assert_counted(
        "shadowed",
        &[("allowed", "memory", 1.0), ("shadow_denied", "memory", 2.0)],
    );
    assert_counted("beside", &[("allowed", "memory", 1.0), ("denied", "memory", 1.0)]);

    let held = |enforcement| Policy::concurrency("held off").max(1).enforcement(enforcement);
    for enforcement in [Enforcement::Off, Enforcement::Enforce, Enforcement::Shadow] {
        let policy = held(enforcement).build().unwrap();
        std::mem::forget(limits.acquire_concurrency(&policy, KEY).await.unwrap());
    }
    assert_counted(
        "held off",
        &[
            ("allowed", "off", 1.0),
            ("allowed", "memory", 1.0),
            ("shadow_denied", "memory", 1.0),
        ],
    );
}

#[tokio::test]
async fn limits_beside_forbidden_key_are_not_counted() {
    recorded();
    let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    let of = |name: &str| Policy::token_bucket(name).capacity(1).rate(1).group("all");
    let listed = of("listed once").deny_keys(["eve"]).build().unwrap();
    let shadow = of("beside forbidden")
        .enforcement(Enforcement::Shadow)
        .build()
        .unwrap();
    let all = [(&listed, KEY), (&shadow, KEY), (&listed, "eve")];
    assert!(!limits.check_all(all).await.unwrap().is_allowed());
    assert!(limits.acquire_all(all).await.is_err());
    assert_counted("listed once", &[("denied", "key_list", 2.0)]);
    assert_counted("beside forbidden", &[]);
}

/// The table of the limiter is full, and a denial of an enforced limit skips the shadow limits.
#[tokio::test]
async fn skipped_shadow_limits_are_not_counted_without_store() {
    recorded();
    let limits = Limiter::in_process().clock(&ManualClock::new()).max_keys(1);
    let limits = limits.build();
    let _ = limits.check(&bucket("filling", 1, 1), KEY).await.unwrap();
    let of = |name: &str| Policy::token_bucket(name).capacity(1).rate(1);
    let closed = of("closed if full").on_store_failure(OnStoreFailure::FailClosed);
    let closed = closed.build().unwrap();
    let error = of("error if full").on_store_failure(OnStoreFailure::Error);
    let error = error.build().unwrap();
    let shadow = of("skipped shadow")
        .enforcement(Enforcement::Shadow)
        .build()
        .unwrap();
    let both = [(&closed, KEY), (&shadow, KEY)];
    let denied = limits.check_all(both).await.unwrap();
    assert_eq!(
        (denied.is_allowed(), denied.origin()),
        (false, Origin::FailedClosed)
    );
    assert!(limits.acquire_all(both).await.is_err());
    assert!(limits.check_all([(&error, KEY), (&shadow, KEY)]).await.is_err());
    assert_counted("closed if full", &[("denied", "failed_closed", 2.0)]);
    assert_counted("error if full", &[("error", "none", 1.0)]);
    assert_counted("skipped shadow", &[]);
}

/// No other test of this process calls a policy by name, so all counted calls belong to this test.
#[tokio::test]
async fn unconfigured_calls_are_counted_without_name() {
    recorded();
    let limits = Limiter::in_process().build();
    for name in ["a", "b", "b"] {
        assert_eq!(
            limits.named(name).check(KEY).await.unwrap().origin(),
            Origin::NotConfigured
        );
    }
    assert!(limits.policy("c", KEY).is_err());
    let _ = limits.named("d").peek(KEY).await.unwrap();
    assert_eq!(result("limiter_not_configured_total{}"), 5.0);
    let strict = Limiter::in_process()
        .on_unknown_policy(OnUnknownPolicy::Deny)
        .build();
    assert!(strict.named("e").check(KEY).await.is_err());
    assert_counted(
        "",
        &[
            ("allowed", "not_configured", 3.0),
            ("error", "not_configured", 1.0),
        ],
    );
}

#[test]
fn unread_forwarding_headers_are_counted() {
    recorded();
    limiter_core::__private::forwarded_unread();
    limiter_core::__private::forwarded_unread();
    assert_eq!(result("limiter_forwarded_unread_total{}"), 2.0);
}

#[test]
fn shed_requests_are_counted_by_priority() {
    recorded();
    for (class, priority) in ["sheddable", "normal", "high", "critical"]
        .into_iter()
        .enumerate()
    {
        (0..=class).for_each(|_| limiter_core::__private::shed(class));
        let result = result(&format!("limiter_shed_total{{priority={priority}}}"));
        assert_eq!(result.to_string(), (class + 1).to_string(), "{priority}");
    }
    limiter_core::__private::shed(4);
}

#[cfg(feature = "registry")]
#[tokio::test]
async fn registry_revision_gauge_follows_redis() {
    recorded();
    let limits = Limiter::redis(RedisServer::shared().url())
        .namespace(namespace())
        .build()
        .unwrap();
    let store = limits.redis_registry().unwrap();
    let source = store.follow();
    source.synced().await.unwrap();
    assert_eq!(recorded().get("limiter_registry_revision{}"), Some(0.0));
    let revision = store.publish("", 0).await.unwrap();
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are exact")]
    let expected = revision as f64;
    let shown = async {
        while result("limiter_registry_revision{}") != expected {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENT, shown).await.unwrap();
}

#[cfg(feature = "registry")]
#[tokio::test(start_paused = true)]
async fn invalid_registry_text_is_counted_on_every_read() {
    recorded();
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("refused-{}", std::process::id()));
    let policy = "policy.p = { algorithm = 'concurrency', max = 3 }";
    std::fs::write(&path, policy).unwrap();
    let registry = limiter_core::registry::PolicyRegistry::new();
    let source = limiter_core::registry::FileSource::follow(&registry, &path).unwrap();
    let refused = || recorded().get("limiter_registry_refused_total{source=file}");
    std::fs::write(&path, "policy.p = 7").unwrap();
    let shown = async {
        while refused() < Some(3.0) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENT, shown).await.unwrap();
    std::fs::write(&path, policy).unwrap();
    while source.last_error().is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let last = refused();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(refused(), last, "the breaker is closed again");
    std::fs::remove_file(&path).unwrap();
}
