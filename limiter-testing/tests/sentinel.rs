//! Sentinels know the primary, and put another in its place, told to or not.
#![cfg(unix)]
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a failed assumption is a failed test"
)]

mod support;

use limiter_testing::{RedisSentinel, RespValue};
use support::eventually;

#[test]
fn a_replica_takes_over_when_the_sentinels_are_told() {
    let watched = RedisSentinel::start();
    assert_eq!((watched.urls().len(), watched.servers().len()), (3, 2));
    let old = watched.primary();
    assert_eq!(old.port(), watched.servers()[0].port());
    let new = watched.fail_over();
    assert_eq!(new.port(), watched.servers()[1].port());
    assert_eq!(watched.primary().port(), new.port());
    new.command(&["SET", "key", "x"]);
    for sentinel in watched.sentinels() {
        let reply = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", watched.primary_name()]);
        assert_eq!(reply.items()[1].integer(), i64::from(new.port()));
    }
}

#[test]
fn a_replica_takes_over_when_the_primary_dies() {
    let watched = RedisSentinel::builder()
        .replicas(2)
        .arg("maxmemory", "64mb")
        .start();
    let old = watched.primary();
    old.command(&["SET", "key", "x"]);
    watched.servers()[1..]
        .iter()
        .for_each(|replica| replica.wait_for_replication());
    let killed = watched.kill_primary();
    assert_eq!(killed.port(), old.port());
    let new = watched.await_fail_over(killed);
    assert_ne!(new.port(), old.port());
    assert_eq!(new.command(&["GET", "key"]).text(), "x");
}

#[test]
fn a_minority_of_sentinels_waits_for_the_others() {
    let watched = RedisSentinel::start();
    watched.sentinels()[1..]
        .iter()
        .for_each(|sentinel| sentinel.kill());
    let (sentinel, old) = (&watched.sentinels()[0], watched.kill_primary());
    let name = watched.primary_name();
    let lacks_quorum = || {
        let reply = sentinel.try_command(&["SENTINEL", "CKQUORUM", name]).unwrap();
        matches!(reply, RespValue::Error(message) if message.starts_with("NOQUORUM"))
    };
    eventually(|| sentinel.log().contains("+sdown master") && lacks_quorum());
    assert_eq!(watched.primary().port(), old.port());

    watched.sentinels()[1..]
        .iter()
        .for_each(|sentinel| sentinel.restart());
    assert_eq!(watched.await_fail_over(old).port(), watched.servers()[1].port());
}
