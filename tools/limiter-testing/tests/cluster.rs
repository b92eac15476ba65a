//! A cluster starts completely, and a slot can be moved step by step.
#![cfg(unix)]
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a failed assumption is a failed test"
)]

use limiter_testing::{RedisCluster, RedisServer, RespValue};

#[test]
fn each_slot_has_an_owner_on_each_node() {
    let cluster = RedisCluster::shared();
    assert_eq!(cluster.nodes().len(), 3);
    assert_eq!(cluster.urls().len(), 3);
    for node in cluster.nodes() {
        let info = node.command(&["CLUSTER", "INFO"]).text();
        assert!(
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384"),
            "{info}"
        );
    }
    assert_eq!([0, 5_461, 16_383].map(|slot| cluster.owner_of(slot)), [0, 1, 2]);
}

#[test]
fn key_is_served_by_owner_of_its_slot_only() {
    let cluster = RedisCluster::shared();
    let slot = cluster.slot_of("{user}:1");
    assert_eq!(slot, cluster.slot_of("user"));
    let owner = cluster.owner_of(slot);
    cluster.node(owner).command(&["SET", "{user}:1", "x"]);
    let elsewhere = cluster
        .node((owner + 1) % 3)
        .try_command(&["GET", "{user}:1"])
        .unwrap();
    assert_eq!(
        elsewhere,
        RespValue::Error(format!("MOVED {slot} 127.0.0.1:{}", cluster.node(owner).port()))
    );
}

#[test]
fn slot_moves_with_its_keys() {
    let cluster = RedisCluster::start();
    let slot = cluster.slot_of("{tag}");
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    let keys: Vec<String> = (0..250).map(|n| format!("{{tag}}{n}")).collect();
    for key in &keys {
        cluster.node(from).command(&["SET", key, "x"]);
    }

    let migration = cluster.begin_migration(slot, to);
    assert!(is_error(migration.source(), &["GET", "{tag}unknown"], "ASK"));
    migration.move_key(&keys[0]);
    assert!(is_error(migration.source(), &["GET", &keys[0]], "ASK"));
    // Redis 6.2 redirects to the target, which then replies TRYAGAIN.
    let both = ["MGET", &keys[0], &keys[1]];
    assert!(
        ["TRYAGAIN", "ASK"]
            .iter()
            .any(|code| is_error(migration.source(), &both, code))
    );
    assert_eq!(migration.source().command(&["GET", &keys[1]]).text(), "x");
    assert_eq!(migration.move_keys(), keys.len() - 1);
    assert_eq!(cluster.owner_of(slot), from);

    migration.finish();
    assert_eq!(cluster.owner_of(slot), to);
    assert_eq!(cluster.node(to).command(&["GET", &keys[0]]).text(), "x");
    assert!(is_error(cluster.node(from), &["GET", &keys[0]], "MOVED"));
}

#[test]
fn cancelled_migration_keeps_all_keys_at_source() {
    let cluster = RedisCluster::builder()
        .primaries(2)
        .arg("maxmemory", "64mb")
        .start();
    let slot = cluster.slot_of("key");
    let from = cluster.owner_of(slot);
    cluster.node(from).command(&["SET", "key", "x"]);
    let migration = cluster.begin_migration(slot, 1 - from);
    migration.move_keys();
    migration.cancel();
    assert_eq!(cluster.node(from).command(&["GET", "key"]).text(), "x");
}

#[test]
fn killed_node_rejoins() {
    let cluster = RedisCluster::start();
    let node = cluster.node(2);
    node.kill();
    assert_eq!(cluster.owner_of(16_383), 2);
    node.restart();
    let slots = node.command(&["CLUSTER", "SLOTS"]);
    assert_eq!(slots.items().len(), 3);
}

#[test]
fn replicas_take_over_on_request_and_after_primary_death() {
    let cluster = RedisCluster::builder()
        .replicas(1)
        .arg("cluster-node-timeout", "1000")
        .start();
    assert_eq!((cluster.nodes().len(), cluster.urls().len()), (3, 6));
    let slot = cluster.slot_of("key");
    let place = cluster.owner_of(slot);
    let (node, replica) = (cluster.node(place), cluster.replica_of(place));
    node.command(&["SET", "key", "1"]);

    assert_eq!(cluster.fail_over(place).port(), replica.port());
    assert_eq!(cluster.primary_of(place).port(), replica.port());
    assert_eq!(cluster.owner_of(slot), place);
    let moved = format!("MOVED {slot} 127.0.0.1:{}", replica.port());
    for server in cluster.servers().filter(|server| server.port() != replica.port()) {
        assert!(is_error(server, &["SET", "key", "x"], &moved));
    }
    assert_eq!(replica.command(&["INCR", "key"]).integer(), 2);

    // The current owner moves the slot.
    let other = (place + 1) % 3;
    let migration = cluster.begin_migration(slot, other);
    assert_eq!(migration.source().port(), replica.port());
    migration.finish();
    assert_eq!(cluster.owner_of(slot), other);
    cluster.replica_of(other).wait_for_replication();

    let killed = cluster.kill_primary(other);
    assert_eq!(killed.port(), cluster.node(other).port());
    let primary = cluster.await_fail_over(other, killed);
    assert_eq!(primary.port(), cluster.replica_of(other).port());
    assert_eq!(primary.command(&["GET", "key"]).integer(), 2);
}

fn is_error(node: &RedisServer, args: &[&str], code: &str) -> bool {
    matches!(node.try_command(args).unwrap(), RespValue::Error(message) if message.starts_with(code))
}

#[test]
fn replicas_follow_from_start_and_take_over_on_request() {
    let cluster = RedisCluster::builder().replicas(1).start();
    assert_eq!((cluster.nodes().len(), cluster.urls().len()), (3, 6));
    let slot = cluster.slot_of("key");
    let place = cluster.owner_of(slot);
    let (node, replica) = (cluster.node(place), cluster.replica_of(place));
    node.command(&["SET", "key", "1"]);

    assert_eq!(cluster.fail_over(place).port(), replica.port());
    assert_eq!(cluster.primary_of(place).port(), replica.port());
    assert_eq!(cluster.owner_of(slot), place);
    for server in cluster.servers().filter(|server| server.port() != replica.port()) {
        assert!(is_error(
            server,
            &["SET", "key", "x"],
            &format!("MOVED {slot} 127.0.0.1:{}", replica.port())
        ));
    }
    assert_eq!(replica.command(&["INCR", "key"]).integer(), 2);

    // The current owner moves the slot.
    let to = (place + 1) % 3;
    let migration = cluster.begin_migration(slot, to);
    assert_eq!(migration.source().port(), replica.port());
    migration.finish();
    assert_eq!(cluster.owner_of(slot), to);

    assert_eq!(cluster.fail_over(place).port(), node.port());
}

#[test]
fn replica_takes_over_when_its_primary_dies() {
    let cluster = RedisCluster::builder()
        .replicas(1)
        .arg("cluster-node-timeout", "1000")
        .start();
    let place = cluster.owner_of(cluster.slot_of("key"));
    let (node, replica) = (cluster.node(place), cluster.replica_of(place));
    node.command(&["SET", "key", "x"]);
    replica.wait_for_replication();

    let killed = cluster.kill_primary(place);
    assert_eq!(killed.port(), node.port());
    let primary = cluster.await_fail_over(place, killed);
    assert_eq!(primary.port(), replica.port());
    assert_eq!(primary.command(&["GET", "key"]).text(), "x");
}
