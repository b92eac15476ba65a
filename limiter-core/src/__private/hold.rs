//! What annotated functions hold while they run.

use std::time::Duration;

use smallvec::SmallVec;

use super::{Amount, Built, Entry, Guard, Options, Refused, guilty};
use crate::context::{self, Current};
use crate::decision::{Decision, Rejection};
use crate::error::ConfigError;
use crate::limiter::{Limiter, Permit};
use crate::policy::Policy;
use crate::request::Ask;

/// The policy of a `#[concurrency_limiter]`.
///
/// # Errors
///
/// The first parameter that cannot be used.
pub fn concurrency(name: &str, max: Result<Amount, ConfigError>, options: &Options) -> Built {
    let builder = Policy::concurrency(name).max(max?);
    options.apply(builder)?.build()
}

/// What a function holds until its future ends or is dropped.
#[derive(Debug, Default)]
pub struct Permits {
    _held: SmallVec<[Permit; 1]>,
}

/// Takes the permits of an annotated function's limits on what is in flight, in the order in which they stand, and then makes
/// the one decision about its other limits. Where that denies, the permits go back. `None` is a call to which its limits do not
/// apply (`when`). A misconfiguration is logged, since a fallback may hide it.
///
/// # Errors
///
/// [`Refused`] when the call must not go on.
pub async fn hold<const N: usize>(guard: Option<Guard<N>>) -> Result<Permits, Refused> {
    let Some(guard) = guard else {
        return Ok(Permits::default());
    };
    let reporter = guard.reporter;
    // Boxed, since the futures of those who wait are large, and a function's own should not be.
    let answer = Box::pin(hold_and_decide(guard)).await;
    if let Err(refused) = &answer {
        reporter.report(&refused.rejection);
    }
    answer
}

async fn hold_and_decide<const N: usize>(guard: Guard<N>) -> Result<Permits, Refused> {
    let Guard {
        limiter,
        entries,
        wait,
        ..
    } = guard;
    let by_first = |rejection| Refused { index: 0, rejection };
    let limiter = limiter
        .map_or_else(context::current, |limiter| Ok(Current::OfTask(limiter)))
        .map_err(|error| by_first(error.into()))?;
    let wait = wait.transpose().map_err(|error| by_first(error.into()))?;
    let started = limiter.now();
    let left = || wait.map(|up_to: Duration| up_to.saturating_sub(limiter.now().since(started)));

    let (mut held, mut others) = (SmallVec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        let refused = |rejection| Refused { index, rejection };
        let policy = entry.policy().map_err(|error| refused(error.into()))?;
        if policy.is_of_concurrency() {
            let ask = entry.ask().map_err(refused)?;
            let enter = limiter.enter_asked(ask).up_to(left().unwrap_or_default());
            held.push(enter.await.map_err(refused)?);
        } else {
            others.push((index, entry));
        }
    }
    if !others.is_empty() {
        decide(&limiter, &others, left()).await?;
    }
    Ok(Permits { _held: held })
}

/// Makes one decision about these, each with its number among all.
async fn decide(
    limiter: &Limiter,
    entries: &[(usize, &Entry)],
    wait: Option<Duration>,
) -> Result<(), Refused> {
    let asks = entries.iter().map(|(index, entry)| {
        let index = *index;
        entry.ask().map_err(|rejection| Refused { index, rejection })
    });
    let asks = asks.collect::<Result<Vec<Ask<'_>>, Refused>>()?;
    let answer = match wait {
        Some(up_to) => limiter.acquire_all(asks).up_to(up_to).await.map(|_| ()),
        None => match limiter.check_all(asks).await.and_then(Decision::require) {
            Ok(_) => Ok(()),
            Err(rejection) => Err(rejection),
        },
    };
    answer.map_err(|rejection: Rejection| {
        let number = guilty(&rejection, entries.iter().map(|(_, entry)| *entry));
        let index = entries.get(number).map_or(0, |(index, _)| *index);
        Refused { index, rejection }
    })
}
