//! The background task that renews held leases and releases the others.
//!
//! The task takes due calls from `renewal_queue.rs`, runs a bounded number of them concurrently,
//! and reports their results to the queue. It ends when no lease is left. If it makes no progress
//! for `TAKE_OVER_AFTER`, its runtime may have ended, and the next use of a lease starts another
//! task. `support/background_task.rs` is not used, because a takeover also reschedules the calls of
//! the previous task: the queue's lock covers its number and its calls, and each renewal keeps the
//! number of its task.
//!
//! Invariants: a task that another one has replaced starts no calls, a call that was started
//! reports its end unless its runtime ends, and the timeout of a renewal is at most a sixth of the
//! lease, so that a failed renewal is repeated before the lease ends.
//! Tests: below, `tests/concurrency.rs`, `tests/concurrency/outages.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::redis::permit_leases::PermitLeases;
use crate::redis::permit_leases::renewal_queue::{Release, RenewalBatch, RenewalCall};
use crate::redis::permit_leases::validity::ends;
use crate::support::real_time;
use crate::support::real_time::with_deadline;
use crate::units::Timestamp;

/// Maximum number of concurrent calls.
const MAX_CALLS: usize = 64;
/// Interval of the task's heartbeat, and the silence after which another task takes over: the
/// runtime of the first may have ended or may not be driven.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
const TAKE_OVER_AFTER: Duration = Duration::from_secs(5);
/// Timeout of a call. No caller waits for it, but a failed call must be retried before the lease
/// ends.
const TIMEOUT: Duration = Duration::from_secs(1);
const TIMEOUTS_PER_LEASE: u32 = 6;

/// Starts the task if there is a runtime and no live task. Without a runtime, the next use of the
/// limiter in a runtime starts it.
pub(crate) fn ensure_running(leases: &Arc<PermitLeases>) {
    let now = Instant::now();
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let Some(number) = leases.lock().start_housekeeper(now + TAKE_OVER_AFTER, now) else {
        return;
    };
    // The renewals of the previous task are no longer in flight.
    leases.settled.notify_waiters();
    let task = Housekeeper {
        leases: Arc::clone(leases),
        number,
    };
    runtime.spawn(task.run());
}

struct Housekeeper {
    leases: Arc<PermitLeases>,
    number: u64,
}

impl Housekeeper {
    async fn run(self) {
        let leases = &self.leases;
        let mut calls = JoinSet::new();
        loop {
            let now = leases.clock.now();
            let free_calls = MAX_CALLS.saturating_sub(calls.len());
            let due = leases.lock().due_calls(self.number, now, free_calls);
            let Some((calls_due, next)) = due else {
                // A call that was sent reports its end.
                calls.detach_all();
                return;
            };
            for call in calls_due {
                calls.spawn(run(Arc::clone(leases), call));
            }
            let until = Timestamp::from_micros(next);
            tokio::select! {
                _ = calls.join_next(), if !calls.is_empty() => {}
                () = leases.wake.notified(), if calls.len() < MAX_CALLS => {}
                () = leases.clock.sleep(now, until.since(now)), if calls.len() < MAX_CALLS => {}
                () = real_time::sleep(HEARTBEAT) => {}
            }
            let alive_until = Instant::now() + TAKE_OVER_AFTER;
            leases.lock().extend_housekeeper(self.number, alive_until);
        }
    }
}

impl Drop for Housekeeper {
    /// The runtime of the task may have ended.
    fn drop(&mut self) {
        self.leases.lock().end_housekeeper(self.number);
    }
}

async fn run(leases: Arc<PermitLeases>, call: RenewalCall) {
    match call {
        RenewalCall::Renew(batch) => renew(&leases, batch).await,
        RenewalCall::Release(releases) => release(&leases, releases).await,
    }
}

async fn renew(owner: &Arc<PermitLeases>, batch: RenewalBatch) {
    let leases = &batch.leases;
    let Some(first) = leases.first() else { return };
    let permits: Vec<_> = leases.iter().map(|lease| lease.permit).collect();
    let shortest = permits.iter().map(|permit| permit.terms.lease_ms).min();
    let timeout = Duration::from_millis(shortest.unwrap_or_default().into()) / TIMEOUTS_PER_LEASE;
    let timeout = timeout.min(TIMEOUT);
    let sent_at = owner.clock.now();
    let renewal = owner.register.renew(&first.key, &permits, timeout);
    let reply = with_deadline(timeout, renewal).await;
    match &reply {
        Ok(renewed) => {
            for (lease, renewed) in leases.iter().zip(renewed) {
                lease
                    .validity
                    .on_renewal(*renewed, ends(sent_at, &lease.permit.terms));
            }
        }
        Err(error) => tracing::debug!(error = %error.with_causes(), "cannot renew concurrency leases"),
    }
    let now = owner.clock.now();
    owner.lock().on_renewed(&batch, now, reply.as_ref().map(|_| ()));
    // A release may wait for the end of the renewal, or may be repeated after it.
    owner.settled.notify_waiters();
    owner.wake.notify_one();
    ensure_running(owner);
}

async fn release(owner: &PermitLeases, releases: Vec<Release>) {
    let Some(first) = releases.first() else { return };
    let permits: Vec<_> = releases.iter().map(|release| release.permit).collect();
    let released = owner.register.release(&first.key, &permits, TIMEOUT);
    let reply = with_deadline(TIMEOUT, released).await;
    if let Err(error) = &reply {
        tracing::debug!(error = %error.with_causes(), "cannot release concurrency permits yet; retrying");
    }
    let notified = releases.iter().find(|release| release.notifies_next);
    let notified = notified.map(|release| release.identity);
    let now = owner.clock.now();
    owner
        .lock()
        .on_released(releases, now, reply.as_ref().map(|_| ()));
    if let (Some(identity), Ok(())) = (notified, reply) {
        owner.table.notify_first(identity);
    }
    owner.settled.notify_waiters();
}

#[cfg(test)]
mod tests;
