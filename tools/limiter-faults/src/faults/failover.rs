//! A replica takes over, and callers find it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_testing::{Proxy, RedisServer};

use crate::baseline;
use crate::event::Event;
use crate::ledger::Outages;
use crate::load::{Load, Plan};
use crate::run::Run;
use crate::trial::{QUOTA, Shown, Trial, usual_policy, usual_policy_named};

const READONLY_FOR: Duration = Duration::from_millis(500);
/// The delay of the replica when the primary crashes.
const LAG: Duration = Duration::from_millis(200);

/// Behind one address: first, primary and replica exchange roles; then the new primary crashes
/// before its replica has received the last writes.
pub(crate) fn behind_one_address(trial: &Trial) {
    let first = RedisServer::start();
    let second = RedisServer::builder().replica_of(&first).start();
    let proxy = Proxy::start(first.port());
    let plan = Plan::usual(trial.limiters(2, &proxy.url()), usual_policy());
    let load = Load::start_with_probes(&trial.runtime, &plan);
    load.watch(&first);
    load.watch(&second);
    sleep(trial.pick(Duration::from_secs(1), Duration::from_secs(5)));

    second.wait_for_replication();
    let waiting = baseline::until_writable(second.port());
    first.command(&["REPLICAOF", "127.0.0.1", &second.port().to_string()]);
    second.promote();
    proxy.set_target(second.port());
    let back = waiting.answered_at();
    sleep(trial.pick(Duration::from_secs(2), Duration::from_secs(5)));
    let run = load.stop();
    judge(trial, &run, back);

    let link = Proxy::start(second.port());
    first.command(&["REPLICAOF", "127.0.0.1", &link.port().to_string()]);
    first.wait_for_replication();
    // Full buckets, so that a token lost is one too many.
    let plan = Plan {
        policy: usual_policy_named("crash"),
        ..plan
    };
    let load = Load::start_with_probes(&trial.runtime, &plan);
    load.watch(&first);
    load.watch(&second);
    sleep(Duration::from_secs(1));
    link.set_black_hole(true);
    sleep(LAG);
    second.kill();
    let waiting = baseline::until_writable(first.port());
    proxy.set_target(first.port());
    first.promote();
    let back = waiting.answered_at();
    sleep(trial.pick(Duration::from_secs(2), Duration::from_secs(5)));
    let run = load.stop();
    judge(trial, &run, back);
}

/// The gates of every failover.
pub(super) fn judge(trial: &Trial, run: &Run, back: Instant) {
    let refused = run.events.iter().filter(|event| event.has_code("READONLY"));
    let last = refused.map(Event::answered).max();
    let lasted = last.map_or(Duration::ZERO, |last| last.saturating_duration_since(back));
    let figure = format!(
        "READONLY answered for {} ({})",
        Shown(lasted),
        run.failure_summary()
    );
    let ok = run.scheduler_delay.fair(back, lasted) <= READONLY_FOR;
    trial.report.row(figure, format!("≤ {}", Shown(READONLY_FOR)), ok);
    trial.judge_recovery(run, back);
    let (lost, extra) = (run.lost_by_store(QUOTA), run.extra(QUOTA));
    let figure = format!(
        "{} tokens lost, {} of them under one key; {} extra under one key with the local fallback",
        lost.total, lost.worst, extra.worst
    );
    // Charges that the new primary had not received, and the local fallback.
    let max_extra = QUOTA.bound(Outages::Any, 1, run.limiters());
    trial.report.row(
        figure,
        format!("≤ {max_extra} a key (outages, and a loss of data)"),
        extra.worst <= max_extra,
    );
    trial.judge_hung(run);
}
