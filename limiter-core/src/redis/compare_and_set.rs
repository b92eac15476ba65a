//! Compare-and-set of stored values, for conversions that no script computes.
//!
//! A read returns the stored value and the store time. A replacement sends the value that was read
//! and the new one, in the fields of a lease request, and `lua/token_lease.lua` writes the new
//! value only if the stored one is unchanged.
//!
//! Invariant: no concurrent change is overwritten, and a value of another layout or algorithm is an
//! error and stays unchanged. Tests: `compare_and_set/tests.rs`, `tests/outages.rs`
//! (`report_after_proportional_change_converts_usage`).

use bb8_redis::redis::Value;

use crate::algorithm::{
    LeaseRequest, ScaleChange, StepState, StoredLevel, StoredLoans, StoredState, UsageReport, scale,
};
use crate::error::StoreError;
use crate::key::Namespace;
use crate::policy::{Algorithm, PreviousPolicy};
use crate::redis::Route;
use crate::redis::script::reply::LimitReply;
use crate::redis::script::{reply, wire};
use crate::redis::token_lease::leased_limit;
use crate::redis::token_lease::leased_limit::{LeaseScriptReply, LeasedLimit};
use crate::request::ValidatedLimit;
use crate::support::clock::Clock;

const REPLACE: u8 = 3;
/// See `lua/prelude.lua`.
const LAYOUT: u8 = 1;
/// A compare-and-set fails only if another call charged the key after the policy change; that call
/// has already converted the state, so the next read succeeds.
const MAX_ATTEMPTS: usize = 4;

/// The stored values of the limits of a namespace.
#[derive(Debug)]
pub(crate) struct StateStore<'a> {
    route: &'a Route,
    clock: &'a Clock,
    namespace: &'a Namespace,
}

/// A stored value as it was read.
#[derive(Debug)]
pub(crate) struct RawState {
    /// Store time in microseconds.
    pub(crate) now: u64,
    pub(crate) state: StepState,
    value: Vec<u8>,
    is_replaced: bool,
}

impl<'a> StateStore<'a> {
    pub(super) fn new(route: &'a Route, clock: &'a Clock, namespace: &'a Namespace) -> Self {
        Self {
            route,
            clock,
            namespace,
        }
    }

    /// Converts a limit after a proportional policy change if necessary. Returns `false` if the
    /// change is in the future by the server's clock.
    pub(crate) async fn convert(
        &self,
        limit: &ValidatedLimit<'_>,
        scaled: &PreviousPolicy,
    ) -> Result<bool, StoreError> {
        self.convert_stored(&self.target(limit), scaled).await
    }

    /// As [`convert`](Self::convert), for a limit whose Redis key is known.
    pub(crate) async fn convert_stored(
        &self,
        limit: &LeasedLimit,
        scaled: &PreviousPolicy,
    ) -> Result<bool, StoreError> {
        let scaling = ScaleChange::from_policies(scaled, &limit.policy);
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.read_state(limit).await?;
            if stored.now < scaling.at {
                return Ok(false);
            }
            let mut state = stored.state.clone();
            if !scale(&scaling, &mut state, stored.now) || self.replace(limit, &stored, &state).await? {
                break;
            }
        }
        Ok(true)
    }

    /// Returns a limit with its Redis key.
    pub(crate) fn target(&self, limit: &ValidatedLimit<'_>) -> LeasedLimit {
        LeasedLimit {
            identity: limit.identity,
            policy: limit.policy.clone(),
            key: leased_limit::key(limit, self.namespace),
        }
    }

    /// Reads the stored value of a limit.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn read_state(&self, limit: &LeasedLimit) -> Result<RawState, StoreError> {
        self.replace_value(limit, None).await
    }

    /// Replaces the stored value if it equals `found`. Returns whether it was replaced.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the value was replaced.
    pub(crate) async fn replace(
        &self,
        limit: &LeasedLimit,
        found: &RawState,
        state: &StepState,
    ) -> Result<bool, StoreError> {
        let replaced = self.replace_value(limit, Some((&found.value, state))).await;
        replaced.map(|found| found.is_replaced)
    }

    async fn replace_value(
        &self,
        limit: &LeasedLimit,
        values: Option<(&[u8], &StepState)>,
    ) -> Result<RawState, StoreError> {
        let algorithm = limit.policy.algorithm();
        let (read, new, ends) = match values {
            Some((read, state)) => (read, value_of(algorithm, state), state.ends()),
            None => (&[][..], Vec::new(), 0),
        };
        let lease_request = LeaseRequest {
            cost: ends,
            want: read.len() as u64,
            epoch: 0,
            report: UsageReport {
                epoch: 0,
                spent: new.len() as u64,
                returned: u64::from(values.is_some()),
            },
        };
        let mut plan = leased_limit::plan(REPLACE, algorithm, &lease_request, self.clock.injected());
        plan.extend_from_slice(read);
        plan.extend_from_slice(&new);
        let call = leased_limit::call(limit.key.clone(), plan, limit.policy.deadline());
        parse_state(&self.route.run(&call).await?, algorithm)
    }
}

fn parse_state(reply: &Value, algorithm: &Algorithm) -> Result<RawState, StoreError> {
    let LeaseScriptReply { now, granted, piece } = LeaseScriptReply::read(reply)?;
    let value = piece.0.to_vec();
    // The script does not interpret the value that it replaces.
    let is_ours = value.is_empty() || value.starts_with(&[LAYOUT, wire::parameters(algorithm).0]);
    let reply = LimitReply::read(piece, algorithm).ok();
    let Some(LimitReply::Stored(mut state)) = reply.filter(|_| is_ours) else {
        return Err(reply::unreadable_as(reply::UNKNOWN_LAYOUT)?);
    };
    // The fast form is not stored.
    state.expand_fast_form(algorithm);
    Ok(RawState {
        now,
        state,
        value,
        is_replaced: granted == 1,
    })
}

/// Returns the stored form of a state, empty for an absent one. The layouts are described in
/// `lua/level.lua`, `lua/leased_level.lua` and `lua/counted_windows.lua`.
fn value_of(algorithm: &Algorithm, state: &StepState) -> Vec<u8> {
    let Some(stored) = state.stored() else {
        return Vec::new();
    };
    let mut value = vec![LAYOUT, wire::parameters(algorithm).0];
    let mut put = |numbers: &[u64]| {
        for number in numbers {
            value.extend_from_slice(&number.to_le_bytes());
        }
    };
    let put_level = |put: &mut dyn FnMut(&[u64]), level: &StoredLevel| {
        let amount = u64::from_ne_bytes(level.amount.to_ne_bytes());
        put(&[level.parts, amount, level.remainder, level.at, level.keep_until]);
    };
    match stored {
        StoredState::Level(level) => put_level(&mut put, &level),
        StoredState::Leased(level, loans) => {
            let StoredLoans {
                current,
                previous,
                since,
                epoch,
                number,
                steady,
                fraction,
            } = loans;
            put_level(&mut put, &level);
            put(&[current, previous, since]);
            value.extend_from_slice(&epoch.to_le_bytes());
            value.extend_from_slice(&number.to_le_bytes());
            if steady != [0, 0] {
                let [current, previous] = steady.map(u32::to_le_bytes);
                value.extend_from_slice(&[current, previous, fraction.to_le_bytes()].concat());
            }
        }
        StoredState::Counters(numbers) => put(&numbers),
        StoredState::Count(numbers) => put(&numbers),
    }
    value
}

#[cfg(test)]
mod tests;
