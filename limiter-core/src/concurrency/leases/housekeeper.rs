//! The task that renews what is held and gives back what is not. It ends when there is neither.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::concurrency::leases::PermitLeases;
use crate::concurrency::leases::renewal::{Release, Renewal, RenewalCall};
use crate::concurrency::leases::validity::ends;
use crate::support::deadline::within;
use crate::support::real_time;
use crate::units::Timestamp;

/// So many calls may be under way at once.
const MOST_CALLS: usize = 64;
/// How often the task shows itself, and after how long without it another takes over: it lives in a
/// runtime that has ended, or that nobody drives.
const SHOWN_EVERY: Duration = Duration::from_secs(1);
const ABANDONED_AFTER: Duration = Duration::from_secs(5);
/// How long Redis may take. Nobody waits for it, but a lease must be tried again in time.
const PATIENCE: Duration = Duration::from_secs(1);
const PARTS_OF_A_LEASE: u32 = 6;

/// Sees to it that a task is at it, where there is a runtime. Without one, whoever next uses the
/// limiter does.
pub(crate) fn ensure_running(holding: &Arc<PermitLeases>) {
    let now = Instant::now();
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let Some(number) = holding.lock().needs_keeper(now + ABANDONED_AFTER, now) else {
        return;
    };
    let keeper = Housekeeper {
        holding: Arc::clone(holding),
        number,
    };
    runtime.spawn(keeper.run());
}

struct Housekeeper {
    holding: Arc<PermitLeases>,
    number: u64,
}

impl Housekeeper {
    async fn run(self) {
        let holding = &self.holding;
        let mut calls = JoinSet::new();
        loop {
            let now = holding.clock.now();
            let room = MOST_CALLS.saturating_sub(calls.len());
            let work = holding.lock().work(self.number, now, room);
            let Some((errands, next)) = work else {
                return;
            };
            for errand in errands {
                calls.spawn(run(Arc::clone(holding), errand));
            }
            let until = Timestamp::from_micros(next);
            tokio::select! {
                _ = calls.join_next(), if !calls.is_empty() => {}
                () = holding.wake.notified(), if calls.len() < MOST_CALLS => {}
                () = holding.clock.sleep(now, until.since(now)), if calls.len() < MOST_CALLS => {}
                () = real_time::sleep(SHOWN_EVERY) => {}
            }
            let shown = Instant::now() + ABANDONED_AFTER;
            holding.lock().is_kept_until(self.number, shown);
        }
    }
}

impl Drop for Housekeeper {
    /// Its runtime may have ended.
    fn drop(&mut self) {
        self.holding.lock().is_not_kept(self.number);
    }
}

async fn run(holding: Arc<PermitLeases>, errand: RenewalCall) {
    match errand {
        RenewalCall::Renew(leases) => renew(&holding, &leases).await,
        RenewalCall::Leave(leaving) => release(&holding, leaving).await,
    }
}

async fn renew(holding: &PermitLeases, leases: &[Renewal]) {
    let Some(first) = leases.first() else { return };
    let permits: Vec<_> = leases.iter().map(|lease| lease.permit).collect();
    let shortest = permits.iter().map(|permit| permit.terms.lease_ms).min();
    let patience = Duration::from_millis(shortest.unwrap_or_default().into()) / PARTS_OF_A_LEASE;
    let patience = patience.min(PATIENCE);
    let asked_at = holding.clock.now();
    let asked = holding.register.renew(&first.key, &permits, patience);
    let answer = within(patience, asked).await;
    match &answer {
        Ok(renewed) => {
            for (lease, renewed) in leases.iter().zip(renewed) {
                lease
                    .term
                    .on_renewal(*renewed, ends(asked_at, &lease.permit.terms));
            }
        }
        Err(error) => tracing::debug!(error = %error.with_causes(), "cannot renew concurrency leases"),
    }
    let now = holding.clock.now();
    holding.lock().on_renewed(leases, now, answer.is_ok());
    // Some may have been given back meanwhile.
    holding.settled.notify_waiters();
}

async fn release(holding: &PermitLeases, leaving: Vec<Release>) {
    let Some(first) = leaving.first() else { return };
    let permits: Vec<_> = leaving.iter().map(|leaving| leaving.permit).collect();
    let told = holding.register.release(&first.key, &permits, PATIENCE);
    let answer = within(PATIENCE, told).await;
    if let Err(error) = &answer {
        tracing::debug!(error = %error.with_causes(), "cannot release concurrency permits yet; retrying");
    }
    let next = leaving.iter().find(|leaving| leaving.tells);
    let next = next.map(|leaving| leaving.identity);
    let now = holding.clock.now();
    holding.lock().on_released(leaving, now, answer.is_ok());
    if let (Some(identity), Ok(())) = (next, answer) {
        holding.held.notify_first(identity);
    }
    holding.settled.notify_waiters();
}
