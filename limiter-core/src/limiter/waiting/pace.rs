//! Waits until a paced call may leave.

use crate::decision::{Decision, Rejection};
use crate::limiter::{Limiter, shut_down};

impl Limiter {
    /// Waits for the delay that an allowed call was told; not at all where there is none.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when the limiter is shut down meanwhile. The call stays charged.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. The call stays charged.
    pub(crate) async fn pace(&self, allowed: &Decision) -> Result<(), Rejection> {
        let delay = allowed.delay();
        if delay.is_zero() {
            return Ok(());
        }
        // Boxed, so that the futures of calls that are not paced need not make room for it.
        Box::pin(async {
            let mut closing = self.inner.closing.subscribe();
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
                () = self.inner.clock.sleep(allowed.decided_at(), delay) => Ok(()),
            }
        })
        .await
    }
}
