//! Background task of the token leases: returns unused tokens periodically, and all tokens on
//! shutdown.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::redis::token_lease::lender::TokenLender;
use crate::redis::token_lease::table::LeaseTable;
use crate::support::sync::atomic::Ordering;
use crate::units::micros_ceil;

/// Time after which a task without progress counts as abandoned with its runtime.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// Starts the task unless one is running. Must be called in a runtime.
pub(crate) fn spawn_if_absent<L: TokenLender>(table: &Arc<LeaseTable<L>>, closing: &watch::Sender<bool>) {
    let (now, abandoned_after) = (table.clock.now().as_micros(), micros_ceil(ABANDONED_AFTER));
    let due = table.due.load(Ordering::Relaxed);
    // A test's clock may have been set back.
    if now < due && due - now <= abandoned_after || table.is_closed.load(Ordering::Relaxed) {
        return;
    }
    let next = now.saturating_add(abandoned_after);
    if table
        .due
        .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        let task = table.task.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        tokio::spawn(maintain(Arc::clone(table), task, closing.subscribe()));
    }
}

/// Returns unused tokens until the limiter is dropped or shut down, then all tokens.
async fn maintain<L: TokenLender>(table: Arc<LeaseTable<L>>, task: u32, mut closing: watch::Receiver<bool>) {
    while table.task.load(Ordering::Relaxed) == task {
        let now = table.clock.now();
        table
            .due
            .store(now.after(ABANDONED_AFTER).as_micros(), Ordering::Relaxed);
        let (requests, pause) = table.stale(now);
        let mut running = JoinSet::new();
        for operation in requests {
            let table = Arc::clone(&table);
            running.spawn(async move { table.execute(operation).await.is_ok() });
        }
        running.join_all().await;
        let shutdown = async {
            // An error means that the limiter was dropped.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        tokio::select! {
            biased;
            () = shutdown => {
                table.is_closed.store(true, Ordering::Relaxed);
                let now = table.clock.now();
                let mut running = JoinSet::new();
                for mut entry in table.drain() {
                    let table = Arc::clone(&table);
                    running.spawn(async move { table.return_all(&entry.leased_limit, &mut entry.balance, now).await });
                }
                running.join_all().await;
                return;
            }
            () = table.clock.sleep(now, pause) => {}
        }
    }
}
