//! A server that runs out of memory.

use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_core::{OnStoreFailure, Policy};
use limiter_testing::RedisServer;

use crate::baseline;
use crate::ledger::Outages;
use crate::ledger::Quota;
use crate::load::{Load, Plan};
use crate::trial::{Trial, usual_policy};

/// Without eviction, the server rejects writes that need memory.
pub(crate) fn noeviction(trial: &Trial) {
    let server = RedisServer::builder()
        .arg("maxmemory-policy", "noeviction")
        .start();
    let load = Load::start_with_probes(
        &trial.runtime,
        &Plan::usual(trial.limiters(2, &server.url()), usual_policy()),
    );
    load.watch(&server);
    sleep(Duration::from_secs(1));
    let began = Instant::now();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    sleep(trial.pick(Duration::from_secs(2), Duration::from_secs(10)));
    let waiting = baseline::until_writable(server.port());
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let back = waiting.answered_at();
    sleep(Duration::from_secs(2));
    let run = load.stop();
    let refused = run.count(|event| event.has_code("OOM"));
    trial
        .report
        .row(format!("{refused} calls answered OOM"), "some", refused > 0);
    trial.judge_decision_time(&run, began, back);
    trial.judge_recovery(&run, back);
    trial.judge_extra(&run, Outages::Any, 0);
}

/// With eviction, the server removes live limits, and each removed limit has its full quota again.
pub(crate) fn eviction(trial: &Trial) {
    const KEYS: u32 = 4_000;
    const ROOM: i64 = 200_000;
    let server = RedisServer::builder()
        .arg("maxmemory-policy", "allkeys-random")
        .start();
    // A rate without refill during this test.
    let quota = Quota {
        capacity: 2,
        per_second: 0,
    };
    let policy = Policy::token_bucket("load").capacity(quota.capacity).rate("1/d");
    let policy = policy
        .deadline(Duration::from_secs(5))
        .on_store_failure(OnStoreFailure::Error);
    let plan = Plan {
        keys: KEYS,
        pause: Duration::from_millis(5),
        ..Plan::usual(
            trial.limiters(2, &server.url()),
            policy.build().expect("a valid policy"),
        )
    };
    let maximum = info(&server, "memory", "used_memory") + ROOM;
    server.command(&["CONFIG", "SET", "maxmemory", &maximum.to_string()]);
    let load = Load::start(&trial.runtime, &plan);
    sleep(trial.pick(Duration::from_secs(4), Duration::from_secs(15)));
    let run = load.stop();
    let evicted = info(&server, "stats", "evicted_keys");
    trial
        .report
        .row(format!("{evicted} limits evicted"), "some", evicted > 0);
    let errors = run.count(|event| !event.is_healthy());
    trial.report.row(
        format!("{errors} errors seen by callers: {}", run.failure_summary()),
        "0",
        errors == 0,
    );
    let extra = run.extra(quota);
    let maximum = u64::try_from(evicted).unwrap_or(0) * quota.capacity;
    let figure = format!(
        "{} extra admitted in all, {} under one key",
        extra.total, extra.worst
    );
    trial.report.row(
        figure,
        format!("≤ {maximum} (a burst a limit evicted)"),
        extra.total <= maximum,
    );
    trial.judge_hung(&run);
}

/// Returns a number in the server's INFO reply.
pub(super) fn info(server: &RedisServer, section: &str, name: &str) -> i64 {
    let lines = server.command(&["INFO", section]).text();
    let value = lines
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}
