//! The token lease behind a ledger: reads the shared state, and records each step with the renewal
//! of the lease.
//!
//! All nodes use one holder name, so the epoch of the lease orders their steps. A step whose epoch
//! was superseded is computed again from the state of the other node. Tests:
//! `tests/quota_ledger.rs` (`lost_record_keeps_assignments_of_the_node`).

use std::time::Duration;

use limiter_core::lease::{LeaseCall, LeaseRenewal, LeaseReport, TokenLease};
use limiter_core::{Amount, Key, Limiter, Policy, Rejection, Timestamp};

use crate::gateway::quota::ledger::{QuotaBudget, QuotaLedger};
use crate::gateway::quota::record;
use crate::gateway::quota::shares::MicroRate;

/// The time in which an assignment is applied after its computation.
pub const APPLY_WITHIN: Duration = Duration::from_secs(1);
/// The time to live of an assignment.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(10);
/// The lifetime of the lease: longer than any assignment.
const LIFETIME: Duration = Duration::from_secs(15);
/// The holder of the lease.
const HOLDER: &str = "quota-streams";
/// The largest number of attempts of a step that other nodes supersede.
const MAX_ATTEMPTS: usize = 8;
/// The algorithms with tokens.
const LEASABLE: [&str; 2] = ["token_bucket", "funnel"];

/// Executes a step on the shared ledger of a key and records the state after it. Returns the result
/// of the step and the recorded ledger; `None` for a policy without tokens, or if other nodes
/// recorded states at each attempt. The step is called again after each of these.
///
/// The usage since the last step is reported first, so that the step has the refill of the policy
/// since then for changes.
///
/// # Errors
///
/// [`Rejection::Unavailable`] if the store does not reply. The step may have been recorded.
pub async fn update<T>(
    limiter: &Limiter,
    policy: &Policy,
    key: &Key<'static>,
    mut step: impl FnMut(&mut QuotaLedger, Timestamp) -> T,
) -> Result<Option<(T, QuotaLedger)>, Rejection> {
    let call = || limiter.token_lease(policy, key, HOLDER).lifetime(LIFETIME);
    let mut lease = call().read().await?;
    for _ in 0..MAX_ATTEMPTS {
        let now = lease.decided_at();
        let Some(mut ledger) = ledger_of(policy, &lease, now) else {
            return Ok(None);
        };
        ledger.advance(now);
        let reported = match record_state(call(), &lease, &ledger).await? {
            LeaseRenewal::Renewed(reported) => reported,
            LeaseRenewal::Superseded(newer) => {
                lease = newer;
                continue;
            }
            _ => return Ok(None),
        };
        let Some(mut ledger) = ledger_of(policy, &reported, now) else {
            return Ok(None);
        };
        let result = step(&mut ledger, now);
        match record_state(call(), &reported, &ledger).await? {
            LeaseRenewal::Renewed(lease) => {
                let recorded = ledger_of(policy, &lease, now);
                return Ok(recorded.map(|ledger| (result, ledger)));
            }
            LeaseRenewal::Superseded(newer) => lease = newer,
            _ => return Ok(None),
        }
    }
    metrics::counter!("limiter_server_quota_actions_total", "kind" => "conflict").increment(1);
    Ok(None)
}

/// Renews the lease with the usage and the state of a ledger.
async fn record_state(
    call: LeaseCall<'_>,
    lease: &TokenLease,
    ledger: &QuotaLedger,
) -> Result<LeaseRenewal, Rejection> {
    let (usage, data) = (ledger.usage(), record::encode(ledger));
    let report = LeaseReport::default()
        .spent(Amount::from_thousandths(usage.spent))
        .steady_millionths(usage.steady)
        .held(Amount::from_thousandths(usage.held))
        .wanted(Amount::from_thousandths(usage.wanted))
        .data(&data);
    call.renew(lease, report).await
}

/// Returns the ledger of a recorded lease; `None` without a budget, or if another version of the
/// server recorded it.
fn ledger_of(policy: &Policy, lease: &TokenLease, now: Timestamp) -> Option<QuotaLedger> {
    let budget = budget(policy)?;
    let leased = u64::try_from(lease.permits().as_thousandths()).ok()?;
    match record::decode(budget, leased, lease.data(), now) {
        Ok(ledger) => Some(ledger),
        Err(error) => {
            tracing::warn!(policy = policy.name(), %error, "cannot read the assignments of a quota budget");
            None
        }
    }
}

/// Returns the budget of a policy; `None` for a policy without tokens.
#[must_use]
pub fn budget(policy: &Policy) -> Option<QuotaBudget> {
    if !LEASABLE.contains(&policy.algorithm_name()) {
        return None;
    }
    // The time in which the whole quota is refilled is rounded up, and the rate down.
    let millionths = policy.quota().as_thousandths().saturating_mul(1_000_000_000);
    let rate = millionths / policy.window().as_micros().max(1);
    Some(QuotaBudget {
        capacity: policy.quota().whole(),
        rate: MicroRate::try_from(rate).unwrap_or(MicroRate::MAX),
        apply_within: APPLY_WITHIN,
        time_to_live: TIME_TO_LIVE,
    })
}
