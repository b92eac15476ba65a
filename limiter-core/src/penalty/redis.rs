//! Tells Redis of denials, and has it block whom a penalty blocks.

use crate::algorithm::Mode;
use crate::error::StoreError;
use crate::key::Key;
use crate::penalty::denial_counts::{Denials, Denied};
use crate::policy::OnStoreFailure;
use crate::redis::backend::Guard;
use crate::request::{Ask, Request};
use crate::store::Store;
use crate::support::deadline::within;
use crate::units::Amount;

impl Guard {
    /// The denials that Redis has not been told of.
    pub(crate) fn untold(&self) -> &Denials {
        &self.untold
    }

    /// Tells of so many denials. For how many microseconds the key is blocked, if it is for these; else how many more may come.
    ///
    /// Three steps, each of which can be done again, so that it does no harm if the others never come: a count that is full
    /// stays so, and the next denial blocks; who is blocked is not blocked for longer.
    pub(crate) async fn punish(&self, denied: &Denied, denials: u64) -> Result<Result<u64, u64>, StoreError> {
        let (policy, key) = (&denied.policy, &denied.key);
        let Some(punishing) = policy.punishing() else {
            return Ok(Err(u64::MAX));
        };
        let counting = Request::counting(punishing, key, denials);
        let left = within(policy.deadline(), self.store.decide(&counting)).await?;
        if left.denials_left() > 0 {
            return Ok(Err(left.denials_left()));
        }
        // What was denied before says nothing of the block.
        let ask = Ask::new(policy, Key::from(key)).cost(Amount::ZERO);
        let denied = Request::new([ask], Mode::Peek, true).ok();
        let _forgetting = denied.as_ref().map(|denied| self.denials.forget(denied));
        let blocking = Request::blocking(punishing, key);
        let blocked = within(policy.deadline(), self.store.decide(&blocking)).await?;
        if policy.on_store_failure() == OnStoreFailure::Local {
            self.fallback.on_verdict(&blocking, &blocked, self.clock.now());
        }
        // It begins anew after the block. If that fails, it begins with a denial or two.
        let _ = within(policy.deadline(), self.store.reset(&counting)).await;
        Ok(Ok(blocked.blocked_for()))
    }
}
