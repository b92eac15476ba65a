//! A cluster with moving slots and failing nodes.

use std::collections::HashSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_core::Limiter;
use limiter_testing::RedisCluster;

use crate::audit::{audit, policy};
use crate::baseline;
use crate::event::Event;
use crate::load::{Load, Plan};
use crate::run::Run;
use crate::trial::{Trial, namespace};

/// Longer than any delay of the machine, so that an error is the limiter's.
const PATIENT: Duration = Duration::from_secs(5);

/// The slots of many keys go round all nodes under load.
pub(crate) fn migration(trial: &Trial) {
    let cluster = RedisCluster::start();
    let plan = plan(trial, &cluster, PATIENT);
    let load = Load::start(&trial.runtime, &plan);
    let (began, lasts) = (
        Instant::now(),
        trial.pick(Duration::from_secs(4), Duration::from_secs(20)),
    );
    let mut moved = 0;
    for key in (0..plan.keys).cycle().take_while(|_| began.elapsed() < lasts) {
        let slot = cluster.slot_of(key.to_string());
        let to = (cluster.owner_of(slot) + 1) % cluster.nodes().len();
        let migration = cluster.begin_migration(slot, to);
        // With half of the keys moved, nodes reply ASK.
        sleep(Duration::from_millis(20));
        migration.move_keys();
        sleep(Duration::from_millis(20));
        migration.finish();
        moved += 1;
    }
    let run = load.stop();
    trial.report.row(
        format!("{moved} slots moved, {} calls", run.events.len()),
        "some",
        moved > 0,
    );
    let errors = run.count(|event| !event.is_healthy());
    trial.report.row(
        format!("{errors} errors seen by callers: {}", run.failure_summary()),
        "0",
        errors == 0,
    );
    judge(trial, &cluster, &run);
}

/// One node is suspended for a while; the other nodes are not affected.
pub(crate) fn node_stopped(trial: &Trial) {
    let cluster = RedisCluster::builder()
        .arg("cluster-require-full-coverage", "no")
        .start();
    let plan = plan(trial, &cluster, Duration::from_secs(1));
    let dead = cluster.node(2);
    let is_dead = |key: &u32| cluster.owner_of(cluster.slot_of(key.to_string())) == 2;
    let dead_keys: HashSet<u32> = (0..plan.keys).filter(is_dead).collect();
    let load = Load::start_with_probes(&trial.runtime, &plan);
    sleep(Duration::from_secs(1));
    let began = Instant::now();
    dead.pause();
    sleep(trial.pick(Duration::from_secs(3), Duration::from_secs(10)));
    let tag = dead_keys.iter().next().map(u32::to_string);
    let waiting = baseline::until_writable_at(dead.port(), &tag.expect("every node has keys"));
    dead.resume();
    let back = waiting.answered_at();
    sleep(Duration::from_secs(2));
    let mut run = load.stop();

    let failed = |event: &&Event| !event.is_healthy() && event.answered() >= began;
    let (its_own, others): (Vec<&Event>, Vec<&Event>) = run
        .events
        .iter()
        .filter(failed)
        .partition(|event| dead_keys.contains(&event.key));
    let served =
        run.count(|event| event.sent_at >= began && event.is_healthy() && !dead_keys.contains(&event.key));
    trial.report.row(
        format!("{} calls on the stopped node failed", its_own.len()),
        "some",
        !its_own.is_empty(),
    );
    let figure = format!("{} errors on other shards, {served} calls served", others.len());
    trial.report.row(figure, "0", others.is_empty() && served > 0);
    judge(trial, &cluster, &run);
    run.retain_keys(&dead_keys);
    trial.judge_recovery(&run, back);
}

/// Returns a load whose limiters know one node of the cluster.
pub(super) fn plan(trial: &Trial, cluster: &RedisCluster, deadline: Duration) -> Plan {
    let limiters: Vec<Limiter> = (0..2)
        .map(|_| {
            let builder = Limiter::redis_cluster(cluster.urls().into_iter().take(1));
            builder.namespace(namespace()).build().expect("a valid limiter")
        })
        .collect();
    trial.prepare(&limiters);
    Plan::usual(limiters, policy(deadline))
}

/// The gates that apply to every fault of a cluster.
pub(super) fn judge(trial: &Trial, cluster: &RedisCluster, run: &Run) {
    let redirections = run.count(|event| {
        ["MOVED", "ASK", "TRYAGAIN"]
            .iter()
            .any(|code| event.has_code(code))
    });
    trial.report.row(
        format!("{redirections} redirections seen by callers"),
        "0",
        redirections == 0,
    );
    let builder = Limiter::redis_cluster(cluster.urls()).namespace(namespace());
    let limits = builder.build().expect("a valid limiter");
    let audit = audit(trial, &limits, &policy(Duration::from_secs(20)), run);
    let figure = format!(
        "{} calls charged twice, {} charges lost",
        audit.excess, audit.lost
    );
    trial.report.row(figure, "0 charged twice", audit.excess == 0);
    trial.judge_hung(run);
}
