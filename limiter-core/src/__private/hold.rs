//! What annotated functions hold while they run.

use std::time::Duration;

use smallvec::SmallVec;

use crate::__private::{
    Amount, AnnotationEntry, AnnotationGuard, BuiltPolicy, EntryPolicy, PolicyOptions, RejectedEntry,
    by_first, decide_resolved, resolve,
};
use crate::concurrency::ConcurrencyPermit;
use crate::decision::Allowed;
use crate::error::ConfigError;
use crate::limiter::Limiter;
use crate::policy::{OnDenial, Policy};

/// The policy of a `#[concurrency_limiter]`.
///
/// # Errors
///
/// The first parameter that cannot be used.
pub fn concurrency(name: &str, max: Result<Amount, ConfigError>, options: &PolicyOptions) -> BuiltPolicy {
    let builder = Policy::concurrency(name).max(max?);
    options.apply(builder)?.build()
}

/// What a function holds until its future ends or is dropped.
#[derive(Debug, Default)]
pub struct HeldPermits {
    held: SmallVec<[ConcurrencyPermit; 1]>,
}

/// Takes the permits of an annotated function's limits on what is in flight, in the order in which
/// they stand, and then makes the one decision about its other limits. Where that denies, the
/// permits go back. `None` is a call to which its limits do not apply (`when`). A misconfiguration
/// is logged, since a fallback may hide it.
///
/// # Errors
///
/// [`RejectedEntry`] when the call must not go on.
pub async fn hold<const N: usize>(guard: Option<AnnotationGuard<N>>) -> Result<HeldPermits, RejectedEntry> {
    let Some(mut guard) = guard else {
        return Ok(HeldPermits::default());
    };
    let answer = match guard.limiter() {
        // Boxed, since the futures of those who wait are large, and a function's own should not be.
        Ok(limiter) => Box::pin(hold_and_decide(&limiter, &mut guard.entries, guard.wait)).await,
        Err(refused) => Err(refused),
    };
    match answer {
        Ok((held, _)) => Ok(held),
        Err(refused) => {
            guard.reporter.report(&refused.rejection);
            Err(refused)
        }
    }
}

/// The same, and what the one decision said. Entries of what is held are not asked any more.
pub(super) async fn hold_and_decide(
    limiter: &Limiter,
    entries: &mut [AnnotationEntry],
    wait: Option<Result<Duration, ConfigError>>,
) -> Result<(HeldPermits, Option<Allowed>), RejectedEntry> {
    let wait = wait.transpose().map_err(|error| by_first(error.into()))?;
    resolve(limiter, entries)?;
    let started = limiter.now();
    let left = || wait.map(|timeout: Duration| timeout.saturating_sub(limiter.now().since(started)));

    let mut permits = HeldPermits::default();
    for (index, entry) in entries.iter_mut().enumerate() {
        let refused = |rejection| RejectedEntry { index, rejection };
        if entry.has_request() && entry.policy().map_err(refused)?.is_concurrency() {
            let ask = entry.limit_request().map_err(refused)?;
            // What the attributes say of waiting is for all limits together, and comes before what
            // a policy says.
            let timeout = match (left(), ask.policy().on_denial()) {
                (Some(left), _) => left,
                (None, OnDenial::Wait(timeout)) => timeout,
                (None, _) => Duration::ZERO,
            };
            let enter = limiter.acquire_concurrency_for(ask).timeout(timeout);
            permits.held.push(enter.await.map_err(refused)?);
            entry.policy = EntryPolicy::Nothing;
        }
    }
    let allowed = decide_resolved(limiter, entries, left()).await?;
    Ok((permits, allowed))
}
