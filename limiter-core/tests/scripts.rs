//! Effects of the scripts on a Redis server: names, layout, expiry; and their handling of foreign
//! values.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

#[path = "scripts/commands.rs"]
mod commands;
#[path = "scripts/lifetime.rs"]
mod lifetime;
#[path = "scripts/servers.rs"]
mod servers;
#[path = "scripts/values.rs"]
mod values;

use limiter_core::{Limiter, Rejection, StoreErrorKind};
use limiter_testing::{RedisServer, RespValue};

/// A limiter on the server's own clock.
fn limiter(server: &RedisServer, namespace: &str) -> Limiter {
    Limiter::redis(server.url()).namespace(namespace).build().unwrap()
}

/// The names of all keys that begin so, sorted.
fn names(server: &RedisServer, beginning: &str) -> Vec<String> {
    let reply = server.command(&["KEYS", &format!("{beginning}*")]);
    let mut names: Vec<_> = reply.items().iter().map(RespValue::text).collect();
    names.sort();
    names
}

/// The one key that a limiter has written.
fn name(server: &RedisServer, beginning: &str) -> String {
    let names = names(server, beginning);
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].clone()
}

/// The server's time in microseconds, and the expiry time of the key by the same clock; `None` for
/// a key without expiry.
fn expiry(server: &RedisServer, name: &str) -> (u64, Option<u64>) {
    let script = "local t = redis.call('TIME') return {t[1], t[2], redis.call('PTTL', KEYS[1])}";
    let reading = || {
        let reply = server.command(&["EVAL", script, "1", name]);
        let [seconds, fraction, ttl] = [0, 1, 2].map(|place| reply.items()[place].integer());
        assert_ne!(ttl, -2, "{name} does not exist");
        let now = u64::try_from(seconds * 1_000_000 + fraction).unwrap();
        (now, u64::try_from(ttl).ok().map(|ttl| now + ttl * 1_000))
    };
    // Redis 6.2 counts the time to live from the start of the script, and a server that pauses
    // before it reads its time makes the expiry later. The earliest reading is the exact one.
    let mut best = reading();
    for _ in 0..4 {
        let next = reading();
        if next.1 < best.1 {
            best = next;
        }
    }
    best
}

fn time(server: &RedisServer) -> u64 {
    let reply = server.command(&["TIME"]);
    let [seconds, fraction] = [0, 1].map(|place| reply.items()[place].integer());
    u64::try_from(seconds * 1_000_000 + fraction).unwrap()
}

/// Number of changes that the server has counted.
fn changes(server: &RedisServer) -> String {
    let info = server.command(&["INFO", "persistence"]).text();
    let line = info
        .lines()
        .find(|line| line.starts_with("rdb_changes_since_last_save"));
    line.unwrap().to_owned()
}

fn get(server: &RedisServer, name: &str) -> Vec<u8> {
    server.command(&["GET", name]).bytes().to_vec()
}

fn set(server: &RedisServer, name: &str, value: &[u8]) {
    server.command(&[b"SET", name.as_bytes(), value]);
}

fn kind_of(answer: Result<limiter_core::Decision, Rejection>) -> StoreErrorKind {
    match answer {
        Err(Rejection::Unavailable { error, .. }) => error.kind(),
        other => unreachable!("expected the store to fail: {other:?}"),
    }
}
