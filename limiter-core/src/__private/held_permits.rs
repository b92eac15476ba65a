//! Concurrency permits that annotated functions hold while they run.
//!
//! The permits of all concurrency attributes are acquired first, in the order of the attributes,
//! and then the other limits are decided, so that a call that finds no permit charges no rate
//! limit. The `wait` of the attributes is one timeout for all of these steps.
//!
//! Invariant: a rejected, completed or cancelled call holds no permit, because the permits are
//! owned by its future. Tests: `limiter-macros/tests/behaviour/concurrency.rs`.

use std::time::Duration;

use smallvec::SmallVec;

use crate::__private::entry::EntryPolicy;
use crate::__private::guard::{by_first, decide_resolved, is_enforced, resolve, valid_wait};
use crate::__private::{Amount, AnnotationEntry, BuiltPolicy, PendingCall, PolicyOptions, RejectedEntry};
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
pub async fn hold<const N: usize>(call: Option<PendingCall<N>>) -> Result<HeldPermits, RejectedEntry> {
    let Some(mut call) = call else {
        return Ok(HeldPermits::default());
    };
    let (held, _) = hold_and_decide(&mut call).await?;
    Ok(held)
}

/// Acquires the permits and decides the other limits. Entries with an acquired permit have no
/// request afterwards. A misconfiguration is logged.
pub(super) async fn hold_and_decide<const N: usize>(
    call: &mut PendingCall<N>,
) -> Result<(HeldPermits, Option<Allowed>), RejectedEntry> {
    let answer = match &call.limiter {
        // Boxed, because the future of a waiting call is large and the future of the annotated
        // function should not be.
        Ok(limiter) => Box::pin(hold_with(limiter, &mut call.entries, call.wait.take())).await,
        Err(error) => Err(by_first(error.clone())),
    };
    answer.inspect_err(|refused| call.reporter.report(&refused.rejection))
}

async fn hold_with(
    limiter: &Limiter,
    entries: &mut [AnnotationEntry<'_>],
    wait: Option<Result<Duration, ConfigError>>,
) -> Result<(HeldPermits, Option<Allowed>), RejectedEntry> {
    let wait = valid_wait(limiter, wait)?;
    resolve(limiter, entries)?;
    let started = limiter.now();
    let left = || wait.map(|timeout: Duration| timeout.saturating_sub(limiter.now().since(started)));

    let mut permits = HeldPermits::default();
    for (index, entry) in entries.iter_mut().enumerate() {
        let refused = |rejection| RejectedEntry { index, rejection };
        let is_held = match entry.policy() {
            _ if !entry.has_request() => false,
            Ok(policy) => policy.is_concurrency(),
            Err(_) if !is_enforced(limiter) => false,
            Err(rejection) => return Err(refused(rejection)),
        };
        if is_held {
            let request = entry.limit_request().map_err(refused)?;
            // The timeout of the attributes applies to all limits together, and takes precedence
            // over that of a policy.
            let timeout = match (left(), request.policy().on_denial()) {
                (Some(left), _) => left,
                (None, OnDenial::Wait(timeout)) => timeout,
                (None, _) => Duration::ZERO,
            };
            let enter = AcquireConcurrency::new(limiter, request).timeout(timeout);
            let enter = enter.registered([entry.is_registered()]);
            permits.held.push(enter.await.map_err(refused)?);
            entry.policy = EntryPolicy::Nothing;
        }
    }
    let allowed = decide_resolved(limiter, entries, left(), |check| check).await?;
    Ok((permits, allowed))
}
