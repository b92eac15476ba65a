//! Millions of invented keys with bytes that confuse parsers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use limiter_core::{Key, Limiter, OnStoreFailure, Policy, Rejection, StoreErrorKind};
use limiter_testing::RedisServer;

use super::memory::info;
use crate::process::allocated_kib;
use crate::trial::{Trial, namespace};

const TASKS: u64 = 64;
const CAPACITY: u64 = 5;
const PATIENT: Duration = Duration::from_secs(30);

/// In Redis: keys that stay, to count them; then keys that soon go, to see that memory does not
/// grow. In process: no more keys than allowed.
pub(crate) fn hostile(trial: &Trial) {
    let count = trial.pick(100_000, 1_000_000);
    let server = RedisServer::start();
    let limits = limiter(trial, &server);
    let stored = call_all(trial, &limits, &policy("stay", "1/h"), count);
    let (stored_keys, mortal) = keyspace(&server);
    let bytes = info(&server, "memory", "used_memory_dataset")
        .max(0)
        .unsigned_abs()
        / count;
    trial.report.row(
        format!(
            "{} of {count} keys not fresh, {stored_keys} keys stored, {bytes} bytes each",
            count - stored.fresh
        ),
        "0 collisions",
        stored.fresh == count && stored_keys == count,
    );
    trial.report.row(
        format!("{} keys without TTL", stored_keys - mortal),
        "0",
        stored_keys == mortal,
    );

    let server = RedisServer::start();
    let limits = limiter(trial, &server);
    // A key is full again after 200 ms and removed one second later; each third of the run lasts
    // longer.
    let (middle, last) = peaks(trial, &server, &limits, count.max(500_000));
    let figure = format!(
        "memory peaks at {} KiB, then at {} KiB",
        middle / 1024,
        last / 1024
    );
    trial
        .report
        .row(figure, "a plateau: ≤ 1.25 times", last * 4 <= middle * 5);

    let max_keys = count / 10;
    let limits = Limiter::in_process()
        .max_keys(usize::try_from(max_keys).expect("small"))
        .build();
    let policy = policy("stay", "1/h");
    let _warm = call_all(trial, &limits, &policy, max_keys * 2);
    let before = allocated_kib();
    let counts = call_all(trial, &limits, &policy, count);
    let grown = allocated_kib().saturating_sub(before);
    trial.report.row(
        format!(
            "in process, {} of {count} keys refused, {grown} KiB more for {} new ones",
            counts.full,
            count - 2 * max_keys
        ),
        format!("≥ {} refused, ≤ 4096 KiB more", count - max_keys - 64),
        counts.full + max_keys + 64 >= count
            && counts.full + counts.fresh + counts.used == count
            && grown <= 4096,
    );
}

/// Returns a limiter that does not count its replicas, which would take a key.
fn limiter(trial: &Trial, server: &RedisServer) -> Limiter {
    let builder = Limiter::redis(server.url()).namespace(namespace()).replicas(1);
    let limits = builder.build().expect("a valid limiter");
    trial.prepare(std::slice::from_ref(&limits));
    limits
}

/// Counts of the replies.
#[derive(Debug, Default)]
struct ReplyCounts {
    /// Decided as for an unused key.
    fresh: u64,
    /// Decided as for a used key.
    used: u64,
    /// Calls rejected because there are too many keys.
    full: u64,
}

/// Calls the limiter once for each of `count` keys.
fn call_all(trial: &Trial, limits: &Limiter, policy: &Policy, count: u64) -> ReplyCounts {
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            trial.runtime.spawn(call_next(
                limits.clone(),
                policy.clone(),
                Arc::clone(&next),
                count,
            ))
        })
        .collect();
    tasks.into_iter().fold(ReplyCounts::default(), |sum, task| {
        let counts = trial.wait(task).expect("a caller ends");
        ReplyCounts {
            fresh: sum.fresh + counts.fresh,
            used: sum.used + counts.used,
            full: sum.full + counts.full,
        }
    })
}

async fn call_next(limits: Limiter, policy: Policy, next: Arc<AtomicU64>, count: u64) -> ReplyCounts {
    let mut counts = ReplyCounts::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return counts;
        }
        let bytes = hostile_key(number);
        match limits.check(&policy, Key::from(bytes.as_slice())).await {
            Ok(decision) if decision.is_allowed() && decision.remaining() == CAPACITY - 1 => {
                counts.fresh += 1
            }
            Ok(_) => counts.used += 1,
            Err(Rejection::Unavailable { error, .. }) if error.kind() == StoreErrorKind::Full => {
                counts.full += 1
            }
            Err(_) => {}
        }
        // A decision in process does not yield to other tasks.
        tokio::task::yield_now().await;
    }
}

/// Returns the memory that the server uses at most in the middle third of many short-lived keys,
/// and in the last third.
fn peaks(trial: &Trial, server: &RedisServer, limits: &Limiter, count: u64) -> (i64, i64) {
    let policy = policy("go", "5/s");
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            trial.runtime.spawn(call_next(
                limits.clone(),
                policy.clone(),
                Arc::clone(&next),
                count,
            ))
        })
        .collect();
    let (mut middle, mut last) = (0, 0);
    while tasks.iter().any(|task| !task.is_finished()) {
        let used = info(server, "memory", "used_memory");
        match next.load(Ordering::Relaxed) * 3 / count {
            0 => {}
            1 => middle = used.max(middle),
            _ => last = used.max(last),
        }
        sleep(Duration::from_millis(10));
    }
    (middle, last)
}

fn policy(name: &str, rate: &str) -> Policy {
    let policy = Policy::token_bucket(name)
        .capacity(CAPACITY)
        .rate(rate)
        .deadline(PATIENT);
    policy
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .expect("a valid policy")
}

/// Returns a key for each number. Its digits are separators and terminators of various formats, so
/// that many keys are prefixes of others, differ in one control character, are not text, or are
/// long.
fn hostile_key(number: u64) -> Vec<u8> {
    const DIGITS: &[u8; 12] = b"{}|:\r\n\0%~ \xff*";
    let mut key = b"user".to_vec();
    let mut rest = number;
    while rest > 0 {
        let digit = usize::try_from(rest % 12).unwrap_or(0);
        key.extend(DIGITS.get(digit));
        rest /= 12;
    }
    if number.is_multiple_of(3) {
        // Too long for an unhashed name.
        key.extend([b'x'; 300]);
    }
    key
}

/// Returns the number of keys of a server, and the number of keys that expire.
fn keyspace(server: &RedisServer) -> (u64, u64) {
    let lines = server.command(&["INFO", "keyspace"]).text();
    let number = |name: &str| {
        let after = lines.split_once(name)?.1;
        after.split(',').next()?.trim().parse().ok()
    };
    (number("keys=").unwrap_or(0), number("expires=").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn hostile_keys_are_distinct() {
        let keys: HashSet<Vec<u8>> = (0..50_000).map(hostile_key).collect();
        assert_eq!(keys.len(), 50_000);
    }
}
