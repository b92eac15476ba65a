//! Replicas of a cluster that take over, on command and after a crash.

use std::collections::HashSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use limiter_testing::RedisCluster;

use super::cluster;
use crate::baseline;
use crate::event::Event;
use crate::load::Load;
use crate::run::Run;
use crate::trial::Trial;

/// `CLUSTER FAILOVER` of one shard, then a crash of the primary of another one.
pub(crate) fn in_a_cluster(trial: &Trial) {
    let builder = RedisCluster::builder()
        .replicas(1)
        .arg("cluster-node-timeout", "2000");
    // With full coverage, the nodes reject all commands while a shard has no primary.
    let cluster = builder.arg("cluster-require-full-coverage", "no").start();
    let plan = cluster::plan(trial, &cluster, Duration::from_secs(1));
    let load = Load::start_with_probes(&trial.runtime, &plan);
    sleep(Duration::from_secs(1));

    let keys = keys_of(&cluster, plan.keys, 1);
    let began = Instant::now();
    let waiting = baseline::until_writable_at(cluster.replica_of(1).port(), &any(&keys));
    cluster.fail_over(1);
    let back = waiting.answered_at();
    sleep(trial.pick(Duration::from_secs(1), Duration::from_secs(5)));
    let mut before = load.stop();
    judge_others(trial, "CLUSTER FAILOVER", &before, &keys, began);
    cluster::judge(trial, &cluster, &before);
    let calls = before.events.clone();
    before.retain_keys(&keys);
    trial.judge_recovery(&before, back);

    let load = Load::start_with_probes(&trial.runtime, &plan);
    sleep(Duration::from_secs(1));
    let keys = keys_of(&cluster, plan.keys, 2);
    let began = Instant::now();
    let waiting = baseline::until_writable_at(cluster.replica_of(2).port(), &any(&keys));
    let dead = cluster.kill_primary(2);
    let back = waiting.answered_at();
    cluster.await_fail_over(2, dead);
    sleep(trial.pick(Duration::from_secs(1), Duration::from_secs(5)));
    let mut run = load.stop();
    judge_others(trial, "a crash", &run, &keys, began);
    let own = run.events.clone();
    run.events.extend(calls);
    cluster::judge(trial, &cluster, &run);
    run.events = own;
    run.retain_keys(&keys);
    trial.judge_recovery(&run, back);
}

/// Returns the keys of the shard at a place.
fn keys_of(cluster: &RedisCluster, count: u32, place: usize) -> HashSet<u32> {
    let is_there = |key: &u32| cluster.owner_of(cluster.slot_of(key.to_string())) == place;
    (0..count).filter(is_there).collect()
}

fn any(keys: &HashSet<u32>) -> String {
    keys.iter()
        .next()
        .map(u32::to_string)
        .expect("every shard has keys")
}

fn judge_others(trial: &Trial, event: &str, run: &Run, keys: &HashSet<u32>, began: Instant) {
    let failed = |event: &Event| !event.is_healthy() && event.answered() >= began;
    let its_own = run.count(|event| failed(event) && keys.contains(&event.key));
    let others = run.count(|event| failed(event) && !keys.contains(&event.key));
    let served = run.count(|call| call.sent_at >= began && call.is_healthy() && !keys.contains(&call.key));
    let figure = format!(
        "{event}: {others} errors on other shards ({served} calls served, {its_own} failed on its own)"
    );
    trial.report.row(figure, "0", others == 0 && served > 0);
}
