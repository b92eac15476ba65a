//! What the expansion of the attributes calls. Not for people: it changes without notice.

pub use inventory;

pub use crate::site::Site;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use crate::context;
use crate::decision::{Decision, Rejection};
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::Ask;
use crate::units::Amount;

/// One attribute's limit, evaluated for one call.
#[derive(Debug)]
pub struct Entry {
    policy: Result<Policy, ConfigError>,
    key: Key<'static>,
    cost: Result<Amount, ConfigError>,
}

impl Entry {
    /// A limit of one permit.
    #[must_use]
    pub fn new(policy: Result<Policy, ConfigError>, key: Key<'static>) -> Self {
        Self {
            policy,
            key,
            cost: Ok(Amount::ONE),
        }
    }

    /// The same with another cost.
    #[must_use]
    pub fn need(self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        Self {
            cost: cost.try_into().map_err(Into::into),
            ..self
        }
    }

    fn ask(&self) -> Result<Ask<'_>, Rejection> {
        let policy = self.policy.as_ref().map_err(Clone::clone)?;
        Ok(Ask::new(policy, &self.key).cost(self.cost.clone()?))
    }
}

/// A rejected call, and the number of the attribute whose fallback answers.
#[derive(Debug)]
pub struct Refused {
    /// The number of the attribute, counted from 0.
    pub index: usize,
    /// Why.
    pub rejection: Rejection,
}

/// Makes the one decision of an annotated function.
///
/// # Errors
///
/// [`Refused`] when the call must not go on.
pub async fn enter<const N: usize>(
    limiter: Option<Limiter>,
    entries: [Entry; N],
    wait: Option<Duration>,
) -> Result<(), Refused> {
    let limiter = limiter.map_or_else(context::current, Ok);
    let limiter = limiter.map_err(|error| Refused {
        index: 0,
        rejection: error.into(),
    })?;

    let mut asks = Vec::with_capacity(N);
    for (index, entry) in entries.iter().enumerate() {
        asks.push(entry.ask().map_err(|rejection| Refused { index, rejection })?);
    }
    let answer = match wait {
        Some(up_to) => limiter.acquire_all(asks).up_to(up_to).await,
        None => limiter.check_all(asks).await,
    };
    match answer.and_then(Decision::require) {
        Ok(_) => Ok(()),
        Err(rejection) => Err(Refused {
            index: guilty(&rejection, &entries),
            rejection,
        }),
    }
}

/// The number of the first limit to which a rejection is due; the first of all where it is due to none.
fn guilty(rejection: &Rejection, entries: &[Entry]) -> usize {
    let position = match rejection {
        Rejection::NeverFits { policy, .. } => entries
            .iter()
            .position(|entry| entry.policy.as_ref().is_ok_and(|own| own == policy)),
        _ => rejection
            .decision()
            .and_then(|denied| denied.limits().iter().position(|limit| !limit.is_allowed())),
    };
    position.unwrap_or(0)
}

/// What `key = …` and `group = …` accept: anything that can be displayed, and a [`Key`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key",
    note = "a key is anything that implements `Display`, or a `limiter_core::Key`"
)]
pub trait ToKey {
    /// The key, without moving the value.
    fn to_key(&self) -> Key<'static>;
}

impl<T: Display + ?Sized> ToKey for T {
    fn to_key(&self) -> Key<'static> {
        Key::from(self.to_string())
    }
}

impl ToKey for Key<'_> {
    fn to_key(&self) -> Key<'static> {
        self.clone().into_owned()
    }
}

/// What `limiter = …` accepts: a [`Limiter`], and references to one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no limiter",
    note = "`limiter = …` takes a `limiter_core::Limiter`, or a reference to one"
)]
pub trait ToLimiter {
    /// A clone of the handle.
    fn to_limiter(&self) -> Limiter;
}

impl ToLimiter for Limiter {
    fn to_limiter(&self) -> Limiter {
        self.clone()
    }
}

impl<T: ToLimiter + ?Sized> ToLimiter for &T {
    fn to_limiter(&self) -> Limiter {
        (**self).to_limiter()
    }
}

impl<T: ToLimiter + ?Sized> ToLimiter for Arc<T> {
    fn to_limiter(&self) -> Limiter {
        (**self).to_limiter()
    }
}

/// A fallback's value, or the future of one: `Fallback(value).resolve().await` is the value either way.
#[derive(Debug)]
pub struct Fallback<T>(pub T);

impl<F: Future> Fallback<F> {
    /// Awaits an async fallback. An inherent method, so it is found before the trait's.
    pub async fn resolve(self) -> F::Output {
        self.0.await
    }
}

/// Hands out the value of a sync fallback.
#[allow(
    async_fn_in_trait,
    reason = "called on concrete types, where auto traits leak through"
)]
pub trait ResolveValue<T> {
    /// The value.
    async fn resolve(self) -> T;
}

impl<T> ResolveValue<T> for Fallback<T> {
    async fn resolve(self) -> T {
        self.0
    }
}
