//! Background task of the token leases: returns unused tokens periodically, and all tokens on
//! shutdown.
//!
//! Leased tokens count as used in Redis until they are returned or expire. At intervals that follow
//! the shortest lease, the task returns the tokens of stale balances, with a bounded number of
//! calls in flight. When the limiter is shut down or dropped, it returns the tokens of all balances
//! at once.
//!
//! Tests: `housekeeper/tests.rs`, `tests/leases.rs`.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::redis::token_lease::lender::TokenLender;
use crate::redis::token_lease::table::{LeaseTable, RefillRequest};
use crate::support::background_task::TaskNumber;
use crate::support::join::join_completed;
use crate::support::sync::atomic::Ordering;

/// Upper bound of the returns in flight. Grants of one epoch end together, so thousands of balances
/// can become stale at once, and the calls of users wait behind the returns that were sent.
const MAX_CONCURRENT: usize = 32;

/// Starts the task unless one is running. Must be called in a runtime.
pub(crate) fn spawn_if_absent<L: TokenLender>(table: &Arc<LeaseTable<L>>, closing: &watch::Sender<bool>) {
    if table.is_closed.load(Ordering::Relaxed) {
        return;
    }
    if let Some(task) = table.task.claim(table.clock.now()) {
        tokio::spawn(maintain(Arc::clone(table), task, closing.subscribe()));
    }
}

/// Returns unused tokens until the limiter is dropped or shut down, then all tokens.
async fn maintain<L: TokenLender>(
    table: Arc<LeaseTable<L>>,
    task: TaskNumber,
    mut closing: watch::Receiver<bool>,
) {
    loop {
        let now = table.clock.now();
        if !table.task.continues(task, now) {
            return;
        }
        let (requests, pause) = table.stale(now);
        execute_all(&table, requests, &mut closing).await;
        let shutdown = async {
            // An error means that the limiter was dropped.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        tokio::select! {
            biased;
            () = shutdown => {
                table.is_closed.store(true, Ordering::Relaxed);
                table.return_balances().await;
                return;
            }
            () = table.clock.sleep(now, pause) => {}
        }
    }
}

/// Executes the requests, [`MAX_CONCURRENT`] at a time, or all of them during a shutdown.
async fn execute_all<L: TokenLender>(
    table: &Arc<LeaseTable<L>>,
    requests: Vec<RefillRequest>,
    closing: &mut watch::Receiver<bool>,
) {
    let mut running = JoinSet::new();
    let mut is_paced = true;
    for operation in requests {
        while is_paced && running.len() >= MAX_CONCURRENT {
            tokio::select! {
                _ = running.join_next() => {}
                // An error means that the limiter was dropped.
                _ = closing.wait_for(|closing| *closing) => is_paced = false,
            }
        }
        let table = Arc::clone(table);
        running.spawn(async move { table.execute(operation).await.is_ok() });
    }
    join_completed(running).await;
}

#[cfg(test)]
mod tests;
