//! Concurrency permits that annotated functions hold while they run.

use std::time::Duration;

use smallvec::SmallVec;

use crate::__private::{
    Amount, AnnotationEntry, AnnotationGuard, BuiltPolicy, EntryPolicy, PolicyOptions, RejectedEntry,
    by_first, decide_resolved, resolve,
};
use crate::concurrency::{AcquireConcurrency, ConcurrencyPermit};
use crate::decision::Allowed;
use crate::error::ConfigError;
use crate::limiter::Limiter;
use crate::policy::{OnDenial, Policy};

/// Builds the policy of a `#[concurrency_limiter]`.
///
/// # Errors
///
/// The first invalid parameter.
pub fn concurrency(name: &str, max: Result<Amount, ConfigError>, options: &PolicyOptions) -> BuiltPolicy {
    let builder = Policy::concurrency(name).max(max?);
    options.apply(builder)?.build()
}

/// Permits that a function holds until its future ends or is dropped.
#[derive(Debug, Default)]
pub struct HeldPermits {
    held: SmallVec<[ConcurrencyPermit; 1]>,
}

/// Acquires the permits of an annotated function's concurrency limits, in the order of the
/// attributes, and then decides its other limits. If that denies the call, the permits are
/// released. `None` is a call to which its limits do not apply (`when`). A misconfiguration is
/// logged, since a fallback may hide it.
///
/// # Errors
///
/// [`RejectedEntry`] if the call is rejected.
pub async fn hold<const N: usize>(guard: Option<AnnotationGuard<N>>) -> Result<HeldPermits, RejectedEntry> {
    let Some(mut guard) = guard else {
        return Ok(HeldPermits::default());
    };
    let answer = match guard.limiter() {
        // Boxed, because the future of a waiting call is large and the future of the annotated
        // function should not be.
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

/// Acquires the permits and decides the other limits. Entries with an acquired permit have no
/// request afterwards.
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
            // The timeout of the attributes applies to all limits together, and takes precedence
            // over that of a policy.
            let timeout = match (left(), ask.policy().on_denial()) {
                (Some(left), _) => left,
                (None, OnDenial::Wait(timeout)) => timeout,
                (None, _) => Duration::ZERO,
            };
            let enter = AcquireConcurrency::new(limiter, ask).timeout(timeout);
            permits.held.push(enter.await.map_err(refused)?);
            entry.policy = EntryPolicy::Nothing;
        }
    }
    let allowed = decide_resolved(limiter, entries, left()).await?;
    Ok((permits, allowed))
}
