//! One lease, and what its holder can know of it.

use std::sync::Arc;
use std::time::Duration;

use crate::concurrency::leases::renewal::{Release, Renewal};
use crate::concurrency::leases::validity::{Validity, WITHOUT_END, ends};
use crate::concurrency::leases::{PermitLeases, housekeeper as keeper};
use crate::concurrency::redis_store::PermitId;
use crate::concurrency::table::{PermitPayload, PermitTerms};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::support::deadline::within;
use crate::units::Timestamp;

/// For so long at most a lease is handed on from one holder of this process to the next. Then it
/// goes back to Redis, lest those who wait in other processes never have their turn.
const HANDED_ON_FOR: Duration = Duration::from_secs(1);

/// A lease. Dropping it gives it back in the background.
#[derive(Debug)]
pub(crate) struct PermitLease {
    holding: Arc<PermitLeases>,
    identity: Identity,
    key: Arc<str>,
    permit: PermitId,
    /// When it was handed on for the first time.
    handed_on: Option<Timestamp>,
    term: Arc<Validity>,
    end: OnDrop,
}

/// What becomes of a lease that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDrop {
    /// It goes back, and who is next is told.
    GoesBack,
    /// It goes back for whoever asks first.
    GoesBackQuietly,
    /// Nobody knows whether Redis has admitted it, or when it will.
    Unknown,
    /// There is none.
    Nothing,
}

impl PermitLease {
    /// One for which Redis is about to be asked.
    pub(crate) fn for_request(
        holding: &Arc<PermitLeases>,
        identity: Identity,
        key: &Arc<str>,
        permit: PermitId,
    ) -> Self {
        let now = holding.clock.now();
        let ends = ends(now, &permit.terms);
        Self::new(holding, identity, key, permit, (ends, OnDrop::Unknown))
    }

    /// One for which Redis cannot be asked now.
    pub(crate) fn without_end(
        holding: &Arc<PermitLeases>,
        identity: Identity,
        key: &Arc<str>,
        permit: PermitId,
    ) -> Self {
        Self::new(holding, identity, key, permit, (WITHOUT_END, OnDrop::GoesBack))
    }

    fn new(
        holding: &Arc<PermitLeases>,
        identity: Identity,
        key: &Arc<str>,
        permit: PermitId,
        (ends, end): (u64, OnDrop),
    ) -> Self {
        Self {
            holding: Arc::clone(holding),
            identity,
            key: Arc::clone(key),
            permit,
            handed_on: None,
            term: Arc::new(Validity::until(ends)),
            end,
        }
    }

    pub(crate) fn permit(&self) -> PermitId {
        self.permit
    }

    /// Has it renewed from now on.
    pub(crate) fn into_held(mut self) -> Self {
        self.end = OnDrop::GoesBack;
        let renewing = Renewal {
            key: Arc::clone(&self.key),
            permit: self.permit,
            term: Arc::clone(&self.term),
        };
        let now = self.holding.clock.now();
        self.holding.lock().schedule_renewal(renewing, now);
        // It may be due before what the keeper waits for.
        self.holding.wake.notify_one();
        keeper::ensure_running(&self.holding);
        self
    }

    /// It was not admitted.
    pub(crate) fn was_refused(mut self) {
        self.end = OnDrop::Nothing;
    }

    /// Whether it is surely held.
    pub(crate) fn is_held(&self) -> bool {
        keeper::ensure_running(&self.holding);
        self.term.is_held(&self.holding.clock)
    }

    /// Whether Redis was not asked for it.
    pub(crate) fn is_insured(&self) -> bool {
        self.term.is_without_end()
    }

    /// Waits until it may have ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn lost(&self) {
        let clock = &self.holding.clock;
        loop {
            let mut told = std::pin::pin!(self.term.changed());
            told.as_mut().enable();
            keeper::ensure_running(&self.holding);
            let now = clock.now();
            let Some(left) = self.term.remaining(clock) else {
                return;
            };
            tokio::select! {
                biased;
                () = told => {}
                // An hour is as good as for ever: it is looked at again then.
                () = clock.sleep(now, left.min(Duration::from_secs(3_600))) => {}
            }
        }
    }

    /// Gives it back, and waits until that is done.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it goes on in the background.
    pub(crate) async fn release(mut self, deadline: Duration) -> Result<(), StoreError> {
        let holding = Arc::clone(&self.holding);
        let permits = [self.permit];
        let left = async {
            holding.lock().forget(self.permit.number);
            holding.is_not_renewing(self.permit.number).await;
            holding.register.release(&self.key, &permits, deadline).await
        };
        within(deadline, left).await?;
        self.end = OnDrop::Nothing;
        holding.held.notify_first(self.identity);
        Ok(())
    }
}

impl PermitPayload for PermitLease {
    fn pass(mut self, held: &PermitTerms, wanted: &PermitTerms, _: u64) -> Result<Self, Self> {
        let clock = &self.holding.clock;
        if held != wanted || !self.term.is_held(clock) {
            return Err(self);
        }
        let now = clock.now();
        if now.since(*self.handed_on.get_or_insert(now)) >= HANDED_ON_FOR {
            self.end = OnDrop::GoesBackQuietly;
            return Err(self);
        }
        Ok(self)
    }

    fn another(&self) -> Option<Self> {
        None
    }
}

impl Drop for PermitLease {
    fn drop(&mut self) {
        if self.end == OnDrop::Nothing {
            return;
        }
        let now = self.holding.clock.now();
        self.holding.lock().schedule_release(Release {
            key: Arc::clone(&self.key),
            identity: self.identity,
            permit: self.permit,
            // Redis may be hearing of it this moment, and not later than this.
            moot_at: ends(now, &self.permit.terms),
            due: now.as_micros(),
            again: self.end == OnDrop::Unknown,
            tells: self.end != OnDrop::GoesBackQuietly,
        });
        self.holding.wake.notify_one();
        keeper::ensure_running(&self.holding);
    }
}
