//! Sentinels report the primary and replace it, on request and after its death.
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
fn replica_takes_over_on_request_to_sentinels() {
    let watched = RedisSentinel::builder()
        .replicas(2)
        .arg("maxmemory", "64mb")
        .start();
    assert_eq!((watched.urls().len(), watched.servers().len()), (3, 3));
    let old = watched.primary();
    assert_eq!(old.port(), watched.servers()[0].port());
    let new = watched.fail_over();
    assert_ne!(new.port(), old.port());
    assert_eq!(watched.primary().port(), new.port());
    new.command(&["SET", "key", "x"]);
    let limit = new.command(&["CONFIG", "GET", "maxmemory"]);
    assert_eq!(limit.items()[1].integer(), 64 << 20);
    for sentinel in watched.sentinels() {
        let reply = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", watched.primary_name()]);
        assert_eq!(reply.items()[1].integer(), i64::from(new.port()));
    }
}

#[test]
fn replica_replaces_dead_primary_after_quorum() {
    let watched = RedisSentinel::start();
    watched.primary().command(&["SET", "key", "x"]);
    watched.servers()[1].wait_for_replication();
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
    let new = watched.await_fail_over(old);
    assert_eq!(new.port(), watched.servers()[1].port());
    assert_eq!(new.command(&["GET", "key"]).text(), "x");
}
