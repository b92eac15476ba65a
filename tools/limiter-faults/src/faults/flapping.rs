//! Outages in which replicas have different states of a key, or Redis replies intermittently:
//! admissions above the quota stay within the bound of outages.

use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_core::Policy;
use limiter_testing::{Proxy, RedisServer};

use crate::baseline;
use crate::ledger::{Outages, Quota};
use crate::load::{Load, Plan};
use crate::run::Run;
use crate::trial::{QUOTA, Trial};

/// Few keys, so that every replica exhausts each key.
const KEYS: u32 = 4;
/// Large enough for the quotas of several shares to show.
const LARGE: Quota = Quota {
    capacity: 100,
    per_second: 10,
};
/// In this time a limit of [`LARGE`] is whole again in Redis.
const WHOLE_AFTER: Duration = Duration::from_secs(10);
/// Before and after an outage.
const CALM: Duration = Duration::from_secs(3);
/// Longer than a deadline.
const LATE: Duration = Duration::from_millis(60);

/// One replica exhausts the keys during its outage. Then all replicas decide without Redis. Its
/// state is complete when it returns.
pub(crate) fn one_replica(trial: &Trial) {
    for replicas in [2, 10] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let plan = plan(trial, &proxy, LARGE, replicas);
        let first = Plan {
            limiters: plan.limiters.iter().take(1).cloned().collect(),
            ..plan.clone()
        };
        let load = Load::start(&trial.runtime, &first);
        load.watch(&server);
        sleep(Duration::from_secs(1));
        let earlier = load.stop().events;

        proxy.refuse(true);
        proxy.drop_connections();
        let load = Load::start(&trial.runtime, &plan);
        load.watch(&server);
        sleep(WHOLE_AFTER + trial.pick(Duration::from_secs(1), Duration::from_secs(6)));
        let waiting = baseline::until_writable(proxy.port());
        proxy.refuse(false);
        let back = waiting.answered_at();
        sleep(CALM);
        let mut run = load.stop();
        judge_calls(trial, &format!("{replicas} replicas"), &run);
        trial.judge_later_calls(&run, back);
        run.events.extend(earlier);
        trial.judge_extra_of(&run, LARGE, Outages::Any, 0);
    }
}

/// Neither late replies nor short outages let the excess grow with time.
pub(crate) fn by_turns(trial: &Trial) {
    late_replies(trial, 1, LATE);
    late_replies(trial, 2, Duration::from_millis(300));
    short_outages(trial);
}

/// Replies are late for a moment, and in time for the next one.
fn late_replies(trial: &Trial, replicas: usize, turn: Duration) {
    let quota = Quota {
        capacity: 20,
        per_second: 50,
    };
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let load = Load::start(&trial.runtime, &plan(trial, &proxy, quota, replicas));
    load.watch(&server);
    let began = Instant::now();
    let lasts = trial.pick(Duration::from_secs(10), Duration::from_secs(20));
    while began.elapsed() < lasts {
        proxy.set_delay(LATE);
        sleep(turn);
        proxy.set_delay(Duration::ZERO);
        sleep(turn);
    }
    let run = load.stop();
    judge_calls(trial, &format!("late replies, {replicas} replicas"), &run);
    trial.judge_extra_of(&run, quota, Outages::Short, 0);
}

/// The server is down for longer than a limit needs to reconcile, and up for a shorter time.
fn short_outages(trial: &Trial) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let load = Load::start(&trial.runtime, &plan(trial, &proxy, QUOTA, 2));
    load.watch(&server);
    for _ in 0..trial.pick(7, 30) {
        proxy.refuse(true);
        proxy.drop_connections();
        sleep(Duration::from_millis(1_500));
        proxy.refuse(false);
        sleep(Duration::from_millis(700));
    }
    sleep(CALM);
    let run = load.stop();
    judge_calls(trial, "short outages", &run);
    trial.judge_extra_of(&run, QUOTA, Outages::Any, 0);
    trial.judge_hung(&run);
}

/// Returns a load on few keys by replicas that know the number of replicas.
fn plan(trial: &Trial, proxy: &Proxy, quota: Quota, replicas: usize) -> Plan {
    let limiters = trial.limiters_with(replicas, &proxy.url(), |builder| {
        builder.replicas(u32::try_from(replicas).expect("few replicas"))
    });
    let policy = Policy::token_bucket("shared")
        .capacity(quota.capacity)
        .rate(quota.per_second);
    Plan {
        keys: KEYS,
        ..Plan::usual(limiters, policy.build().expect("a valid policy"))
    }
}

fn judge_calls(trial: &Trial, name: &str, run: &Run) {
    let failure_summary = run.failure_summary();
    trial.report.row(
        format!("{name}: {} calls, {failure_summary}", run.events.len()),
        "some calls fail",
        failure_summary != "no trouble",
    );
}
