//! The deadline of a settlement.

use std::time::Duration;

use crate::settlement::reserve::Reservation;

impl Reservation {
    /// Settles within this deadline, in place of those of the policies. A policy whose
    /// [maximum deadline](crate::Policy::with_max_deadline) was the rest of a request's time would
    /// leave too little time for a refund.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    ///
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let tokens = Policy::token_bucket("tokens").capacity(1_000).rate("100/s").build()?;
    /// let hurried = tokens.with_max_deadline(Duration::from_millis(2));
    /// let reserved = limits.reserve(&hurried, "ann").cost(800).await?;
    /// reserved.with_deadline(Duration::from_millis(50)).cancel().await?;
    /// assert_eq!(limits.peek(&tokens, "ann").await?.remaining(), 1_000);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        for reserved in &mut self.limits {
            *reserved = reserved.take().map(|limit| limit.with_deadline(deadline));
        }
        self
    }
}
