//! Sentinels that promote a replica, on command and after a crash.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use limiter_core::Limiter;
use limiter_testing::{RedisSentinel, RedisServer, RespValue};

use super::failover;
use crate::baseline;
use crate::load::{Load, Plan};
use crate::trial::{Shown, Trial, namespace, usual_policy_named};

/// The time for which the sentinels wait before they take a silent primary for dead.
const DOWN_AFTER: Duration = Duration::from_millis(1_000);
const GIVE_UP: Duration = Duration::from_secs(30);

/// `SENTINEL FAILOVER`, then the crash of the new primary.
pub(crate) fn through_sentinel(trial: &Trial) {
    let sentinel = RedisSentinel::builder().down_after(DOWN_AFTER).start();
    let limiters: Vec<Limiter> = (0..2)
        .map(|_| {
            let primary = format!("redis://{}/", sentinel.primary_name());
            let builder = Limiter::redis_sentinel(sentinel.urls(), primary).namespace(namespace());
            builder.build().expect("a valid limiter")
        })
        .collect();
    trial.prepare(&limiters);
    for (name, is_commanded) in [("command", true), ("crash", false)] {
        // Full buckets, so that a token lost is one too many.
        let plan = Plan::usual(limiters.clone(), usual_policy_named(name));
        let load = Load::start_with_probes(&trial.runtime, &plan);
        sentinel.servers().iter().for_each(|server| load.watch(server));
        sleep(trial.pick(Duration::from_secs(1), Duration::from_secs(5)));
        let (promoted, back) = thread::scope(|scope| {
            let successor = successor(&sentinel);
            let promoted = baseline::until_writable(successor.port());
            let agreed = scope.spawn(|| agreed_on(&sentinel, successor));
            if is_commanded {
                sentinel.fail_over();
            } else {
                let dead = sentinel.kill_primary();
                sentinel.await_fail_over(dead);
            }
            (
                promoted.answered_at(),
                agreed.join().expect("sentinels that agree"),
            )
        });
        sleep(trial.pick(Duration::from_secs(2), Duration::from_secs(5)));
        let waited = back.saturating_duration_since(promoted);
        trial.report.row(
            format!(
                "{name}: most sentinels named the new primary {} after its promotion",
                Shown(waited)
            ),
            "stated: it is theirs",
            true,
        );
        failover::judge(trial, &load.stop(), back);
    }
}

/// Returns the replica that will be promoted.
fn successor(sentinel: &RedisSentinel) -> &RedisServer {
    let old = sentinel.primary().port();
    let successor = sentinel.servers().iter().find(|server| server.port() != old);
    successor.expect("a replica")
}

/// Returns the time from which on most sentinels name this server and it accepts writes. No client
/// can detect the failover earlier.
fn agreed_on(sentinel: &RedisSentinel, successor: &RedisServer) -> Instant {
    let (began, port) = (Instant::now(), successor.port().to_string());
    let names = |other: &&RedisServer| {
        let reply = other.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinel.primary_name()]);
        matches!(reply, Ok(RespValue::Array(address)) if address.get(1).is_some_and(|named| named.text() == port))
    };
    while sentinel.sentinels().iter().filter(names).count() * 2 <= sentinel.sentinels().len() {
        assert!(began.elapsed() < GIVE_UP, "the sentinels do not agree");
        sleep(Duration::from_millis(2));
    }
    baseline::until_writable(successor.port()).answered_at()
}
