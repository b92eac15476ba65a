//! The task that looks after the wallets: it gives back what nobody asks for, and everything in the
//! end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::redis::token_lease::lender::TokenLender;
use crate::redis::token_lease::table::LeaseTable;
use crate::support::sync::atomic::Ordering;
use crate::units::micros_ceil;

/// A task that looks after the wallets and has not shown itself for so long lives in a runtime that
/// is gone.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// Sees to it that a task looks after the wallets. To be called in a runtime.
pub(crate) fn keep_looking<L: TokenLender>(wallets: &Arc<LeaseTable<L>>, closing: &watch::Sender<bool>) {
    let (now, patience) = (wallets.clock.now().as_micros(), micros_ceil(ABANDONED_AFTER));
    let due = wallets.due.load(Ordering::Relaxed);
    // A test's clock may have been set back.
    if now < due && due - now <= patience || wallets.is_closed.load(Ordering::Relaxed) {
        return;
    }
    let next = now.saturating_add(patience);
    if wallets
        .due
        .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        let task = wallets.task.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        tokio::spawn(maintain(Arc::clone(wallets), task, closing.subscribe()));
    }
}

/// Gives back what is not needed until the limiter is dropped, and then everything.
async fn maintain<L: TokenLender>(
    wallets: Arc<LeaseTable<L>>,
    task: u32,
    mut closing: watch::Receiver<bool>,
) {
    while wallets.task.load(Ordering::Relaxed) == task {
        let now = wallets.clock.now();
        wallets
            .due
            .store(now.after(ABANDONED_AFTER).as_micros(), Ordering::Relaxed);
        let (errands, pause) = wallets.stale(now);
        let mut running = JoinSet::new();
        for errand in errands {
            let wallets = Arc::clone(&wallets);
            running.spawn(async move { wallets.execute(errand).await.is_ok() });
        }
        running.join_all().await;
        let leaving = async {
            // An error says that the limiter was dropped.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        tokio::select! {
            biased;
            () = leaving => {
                wallets.is_closed.store(true, Ordering::Relaxed);
                let now = wallets.clock.now();
                let mut running = JoinSet::new();
                for mut entry in wallets.drain() {
                    let wallets = Arc::clone(&wallets);
                    running.spawn(async move { wallets.return_all(&entry.account, &mut entry.wallet, now).await });
                }
                running.join_all().await;
                return;
            }
            () = wallets.clock.sleep(now, pause) => {}
        }
    }
}
