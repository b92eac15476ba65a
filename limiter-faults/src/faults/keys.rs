//! Keys that somebody invents by the million, made of what confuses parsers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use limiter_core::{Key, Limiter, OnStoreFailure, Policy, Rejection, StoreErrorKind};
use limiter_testing::RedisServer;

use super::memory::info;
use crate::process::resident_kib;
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
    let spent = ask_all(trial, &limits, &policy("stay", "1/h"), count);
    let (kept, mortal) = keyspace(&server);
    let bytes = info(&server, "memory", "used_memory_dataset")
        .max(0)
        .unsigned_abs()
        / count;
    trial.report.row(
        format!(
            "{} of {count} keys not fresh, {kept} keys kept, {bytes} bytes each",
            count - spent.fresh
        ),
        "0 collisions",
        spent.fresh == count && kept == count,
    );
    trial
        .report
        .row(format!("{} keys without TTL", kept - mortal), "0", kept == mortal);

    let server = RedisServer::start();
    let limits = limiter(trial, &server);
    // Whole again after a fifth of a second, and gone a second later: each third lasts longer than
    // that.
    let (middle, last) = peaks(trial, &server, &limits, count.max(500_000));
    let figure = format!(
        "memory peaks at {} KiB, then at {} KiB",
        middle / 1024,
        last / 1024
    );
    trial
        .report
        .row(figure, "a plateau: ≤ 1.25 times", last * 4 <= middle * 5);

    let most = count / 10;
    let limits = Limiter::in_process()
        .max_keys(usize::try_from(most).expect("small"))
        .build();
    let policy = policy("stay", "1/h");
    let _warm = ask_all(trial, &limits, &policy, most * 2);
    let before = resident_kib();
    let told = ask_all(trial, &limits, &policy, count);
    let grown = resident_kib().saturating_sub(before);
    trial.report.row(
        format!(
            "in process, {} of {count} keys refused, {grown} KiB more for {} new ones",
            told.full,
            count - 2 * most
        ),
        format!("≥ {} refused, ≤ 4096 KiB more", count - most - 64),
        told.full + most + 64 >= count && told.full + told.fresh + told.used == count && grown <= 4096,
    );
}

/// A limiter that does not count its replicas, which would take a key.
fn limiter(trial: &Trial, server: &RedisServer) -> Limiter {
    let builder = Limiter::redis(server.url()).namespace(namespace()).replicas(1);
    let limits = builder.build().expect("a valid limiter");
    trial.prepare(std::slice::from_ref(&limits));
    limits
}

/// What was answered.
#[derive(Debug, Default)]
struct Told {
    /// Decided as if nobody had used the key.
    fresh: u64,
    /// Decided as if somebody had.
    used: u64,
    /// Refused, since there are too many keys.
    full: u64,
}

/// Asks once for each of so many keys.
fn ask_all(trial: &Trial, limits: &Limiter, policy: &Policy, count: u64) -> Told {
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            trial
                .runtime
                .spawn(ask(limits.clone(), policy.clone(), Arc::clone(&next), count))
        })
        .collect();
    tasks.into_iter().fold(Told::default(), |sum, task| {
        let told = trial.wait(task).expect("a caller ends");
        Told {
            fresh: sum.fresh + told.fresh,
            used: sum.used + told.used,
            full: sum.full + told.full,
        }
    })
}

async fn ask(limits: Limiter, policy: Policy, next: Arc<AtomicU64>, count: u64) -> Told {
    let mut told = Told::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return told;
        }
        let bytes = hostile_key(number);
        match limits.check(&policy, Key::from(bytes.as_slice())).await {
            Ok(decision) if decision.is_allowed() && decision.remaining() == CAPACITY - 1 => told.fresh += 1,
            Ok(_) => told.used += 1,
            Err(Rejection::Unavailable(error)) if error.kind() == StoreErrorKind::Full => told.full += 1,
            Err(_) => {}
        }
        // In process nothing else gives way.
        tokio::task::yield_now().await;
    }
}

/// The memory that the server uses at most in the middle third of many short-lived keys, and in the
/// last third.
fn peaks(trial: &Trial, server: &RedisServer, limits: &Limiter, count: u64) -> (i64, i64) {
    let policy = policy("go", "5/s");
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            trial
                .runtime
                .spawn(ask(limits.clone(), policy.clone(), Arc::clone(&next), count))
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

/// A key for each number: its digits are what separates and ends things elsewhere, so that many are
/// prefixes of others, differ in a control character only, are no text, or are long.
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
        // Too long for a name as it stands.
        key.extend([b'x'; 300]);
    }
    key
}

/// How many keys a server holds, and how many of them expire.
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
    fn no_two_hostile_keys_are_the_same() {
        let keys: HashSet<Vec<u8>> = (0..50_000).map(hostile_key).collect();
        assert_eq!(keys.len(), 50_000);
    }
}
