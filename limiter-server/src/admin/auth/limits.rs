//! Limits of sign-ins and of password changes.
//!
//! An attempt to sign in is charged to its address, and to its name at that address. Attempts from
//! addresses at which the name has not signed in before share one more limit of the name, so
//! guesses from many addresses are slow, and they do not lock the user out of the known addresses.
//! A password change needs a session and is charged to its user alone, so requests without a
//! session cannot use up its limit. Sessions themselves have no limit. Tests: below, and
//! `tests/admin_attacks.rs`.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use limiter_core::{Key, Limiter, Policy};

use crate::admin::auth::AuthError;
use crate::secret;

/// The largest number of pairs of a name and an address that a node remembers.
const MAX_KNOWN: usize = 10_000;
/// The wait that an answer states if the limiter states none.
const WAIT: Duration = Duration::from_secs(10);

/// The limits of sign-ins and of password changes, in this process.
#[derive(Debug)]
pub struct SigninLimits {
    limiter: Limiter,
    per_address: Policy,
    per_name_at_address: Policy,
    per_name_elsewhere: Policy,
    per_password_change: Policy,
    known: Mutex<KnownAddresses>,
}

/// Names with the addresses at which they have signed in; the oldest are removed first.
#[derive(Debug, Default)]
struct KnownAddresses {
    pairs: HashSet<Key<'static>>,
    order: VecDeque<Key<'static>>,
}

impl SigninLimits {
    /// Creates the limits.
    ///
    /// # Errors
    ///
    /// The reason as one message.
    pub fn new() -> Result<Self, String> {
        let bucket = |name: &str, capacity: u32, rate: &str| {
            let policy = Policy::token_bucket(name).capacity(capacity).rate(rate);
            policy.build().map_err(|error| error.to_string())
        };
        Ok(Self {
            limiter: Limiter::in_process().build(),
            per_address: bucket("signin_address", 30, "30/min")?,
            per_name_at_address: bucket("signin_name_at_address", 10, "6/min")?,
            per_name_elsewhere: bucket("signin_name", 30, "30/min")?,
            per_password_change: bucket("password_change", 10, "6/min")?,
            known: Mutex::default(),
        })
    }

    /// Charges an attempt to sign in.
    pub(super) async fn charge_signin(&self, name: &str, address: &Key<'static>) -> Result<(), AuthError> {
        let (pair, name) = (pair(name, address), secret::hash(name));
        self.charge(&self.per_address, address).await?;
        self.charge(&self.per_name_at_address, &pair).await?;
        match self.is_known(&pair) {
            true => Ok(()),
            false => self.charge(&self.per_name_elsewhere, &Key::from(name)).await,
        }
    }

    /// Charges an attempt to change the own password.
    pub(in crate::admin) async fn charge_password_change(&self, user: &str) -> Result<(), AuthError> {
        let user = Key::from(secret::hash(user));
        self.charge(&self.per_password_change, &user).await
    }

    /// Remembers the address of a user that has signed in.
    pub(super) fn remember(&self, name: &str, address: &Key<'static>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = pair(name, address);
        if known.pairs.insert(pair.clone()) {
            known.order.push_back(pair);
        }
        if known.order.len() > MAX_KNOWN
            && let Some(oldest) = known.order.pop_front()
        {
            known.pairs.remove(&oldest);
        }
    }

    fn is_known(&self, pair: &Key<'static>) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.pairs.contains(pair)
    }

    async fn charge(&self, policy: &Policy, key: &Key<'static>) -> Result<(), AuthError> {
        match self.limiter.check(policy, key).await {
            Ok(decision) if decision.is_allowed() => Ok(()),
            Ok(decision) => Err(AuthError::Limited(decision.retry_after().unwrap_or(WAIT))),
            Err(_) => Err(AuthError::Limited(WAIT)),
        }
    }
}

/// Returns a name at an address. Names are hashed, because a password may be typed into their
/// field.
fn pair(name: &str, address: &Key<'static>) -> Key<'static> {
    Key::global().key(address).text(":").part(secret::hash(name))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn address(number: u32) -> Key<'static> {
        Key::from(format!("address{number}"))
    }

    async fn attempts(limits: &SigninLimits, addresses: impl Iterator<Item = u32>) -> usize {
        let mut accepted = 0;
        for number in addresses {
            let charged = limits.charge_signin("ann", &address(number)).await;
            accepted += usize::from(charged.is_ok());
        }
        accepted
    }

    #[tokio::test]
    async fn guesses_from_many_addresses_do_not_lock_out_a_known_one() {
        let limits = SigninLimits::new().unwrap();
        limits.remember("ann", &address(0));
        let accepted = attempts(&limits, 1..=1_000).await;
        assert!((30..60).contains(&accepted), "{accepted}");
        assert_eq!(attempts(&limits, 0..1).await, 1);
        let of_other = limits.charge_signin("bob", &address(7)).await;
        assert!(of_other.is_ok(), "{of_other:?}");
    }

    #[tokio::test]
    async fn guesses_from_one_address_leave_room_for_others() {
        let limits = SigninLimits::new().unwrap();
        let accepted = attempts(&limits, std::iter::repeat_n(1, 100)).await;
        assert!((10..20).contains(&accepted), "{accepted}");
        assert_eq!(attempts(&limits, 2..=3).await, 2);
    }

    #[tokio::test]
    async fn password_changes_and_sign_ins_have_separate_limits() {
        let limits = SigninLimits::new().unwrap();
        attempts(&limits, 0..1_000).await;
        let mut accepted = 0;
        for _ in 0..100 {
            accepted += usize::from(limits.charge_password_change("ann").await.is_ok());
        }
        assert!((10..20).contains(&accepted), "{accepted}");
    }

    #[test]
    fn known_addresses_are_bounded() {
        let limits = SigninLimits::new().unwrap();
        for number in 0..20_000 {
            limits.remember("ann", &address(number));
        }
        let known = limits.known.lock().unwrap();
        assert_eq!((known.pairs.len(), known.order.len()), (MAX_KNOWN, MAX_KNOWN));
        drop(known);
        assert!(limits.is_known(&pair("ann", &address(19_999))));
        assert!(!limits.is_known(&pair("ann", &address(0))));
    }
}
