//! A replica is in step when it should be, and two servers can change places.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a failed assumption is a failed test")]

use limiter_testing::{RedisServer, RespValue};

#[test]
fn replica_copies_its_primary() {
    let primary = RedisServer::start();
    primary.command(&["SET", "before", "x"]);
    let replica = RedisServer::builder().replica_of(&primary).start();
    assert_eq!(replica.command(&["GET", "before"]).text(), "x");
    for n in 0..100 {
        primary.command(&["SET", "after", &n.to_string()]);
        replica.wait_for_replication();
        assert_eq!(replica.command(&["GET", "after"]).integer(), n);
    }
    assert!(matches!(
        replica.try_command(&["SET", "k", "v"]).unwrap(),
        RespValue::Error(_)
    ));
}

#[test]
fn primary_and_replica_swap_roles() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    second.command(&["SET", "own", "x"]);
    second.demote_to(&first);
    assert!(second.command(&["GET", "own"]).is_nil());
    first.command(&["SET", "shared", "x"]);
    second.wait_for_replication();

    second.promote();
    second.command(&["SET", "new", "x"]);
    first.demote_to(&second);
    for key in ["shared", "new"] {
        assert_eq!(first.command(&["GET", key]).text(), "x");
    }
}

#[test]
#[should_panic(expected = "is no replica")]
fn primary_rejects_wait_for_replication() {
    RedisServer::shared().wait_for_replication();
}
