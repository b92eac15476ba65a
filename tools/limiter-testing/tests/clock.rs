//! The clock of a server can be set, and all timers of the server follow it.
#![cfg(target_os = "linux")]
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a failed assumption is a failed test"
)]

use std::time::{SystemTime, UNIX_EPOCH};

use limiter_testing::{RedisServer, RespValue};

const HOUR_US: i64 = 3_600_000_000;
/// The maximum delay between a command and its inspection.
const TOLERANCE_US: i64 = 5_000_000;

#[test]
fn time_shifts_forwards_and_backwards() {
    let server = RedisServer::builder().movable_clock().start();
    assert_ahead(&server, 0);
    for ahead in [HOUR_US, -HOUR_US, 24 * HOUR_US + 500_001, -999_999, 0] {
        server.shift_clock(ahead);
        assert_ahead(&server, ahead);
    }
}

#[test]
fn expiry_follows_shifted_clock() {
    let server = RedisServer::builder().movable_clock().start();
    server.command(&["SET", "key", "x", "PX", "60000"]);
    server.shift_clock(-HOUR_US);
    assert!(server.command(&["PTTL", "key"]).integer() > 3_600_000);
    server.shift_clock(50_000_000);
    assert!((1..=10_000).contains(&server.command(&["PTTL", "key"]).integer()));
    server.shift_clock(61_000_000);
    assert!(server.command(&["GET", "key"]).is_nil());
}

#[test]
fn shift_survives_restart_and_affects_one_server() {
    let primary = RedisServer::builder().movable_clock().start();
    let replica = RedisServer::builder()
        .replica_of(&primary)
        .movable_clock()
        .start();
    primary.shift_clock(HOUR_US);
    assert_ahead(&replica, 0);
    primary.restart();
    assert_ahead(&primary, HOUR_US);
}

#[test]
#[should_panic(expected = "built without a movable clock")]
fn plain_server_rejects_a_clock_shift() {
    RedisServer::shared().shift_clock(1);
}

#[track_caller]
fn assert_ahead(server: &RedisServer, ahead_us: i64) {
    let before = machine_us();
    let times = [
        server.command(&["TIME"]),
        server.command(&["EVAL", "return redis.call('TIME')", "0"]),
    ];
    for time in times.iter().map(RespValue::items) {
        let seen = time[0].integer() * 1_000_000 + time[1].integer() - before;
        assert!(
            (ahead_us..ahead_us + TOLERANCE_US).contains(&seen),
            "{seen} µs ahead"
        );
    }
}

fn machine_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_micros().try_into().unwrap()
}
