//! Decides the descriptors of a request: all take effect, or none.
//!
//! A request is allowed if no descriptor denies it: no check, no limit of zero, and no descriptor
//! without a policy where the settings deny those. A denied request is only peeked, for the numbers
//! of its statuses. In an allowed request, the checks are charged first, then all costs are settled
//! together, then all permits are refunded together. If a step fails, or the request is abandoned
//! at its deadline, the charges before it are refunded and the request has no answer. Two effects
//! can remain then: a charge whose reply was lost, and a refund, because charging its permits again
//! could deny other calls. Tests: `tests/all_or_nothing.rs`.

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use limiter_core::{Amount, Limiter, Rejection};
use tokio::time::{Instant, timeout_at};

use crate::gateway::Gateway;
use crate::gateway::charge::refund::ChargedSets;
use crate::gateway::charge::{LimitResult, RequestedLimit, charge_all, peek_all, reserve_all};
use crate::gateway::envoy::{Operation, Requested};
use crate::settings::Unmatched;

impl Gateway {
    /// Decides all descriptors: the results in order, `None` for those without a limit.
    pub(super) async fn decide(
        &self,
        requested: &[Requested],
    ) -> Result<Vec<Option<LimitResult>>, Rejection> {
        let ends = Instant::now() + self.envoy_settings().decision_deadline;
        let limiter = self.limiter();
        let of_check = requested.iter().filter(|of| of.operation == Operation::Check);
        let checks: Vec<RequestedLimit> = of_check.filter_map(|of| of.limit.clone()).collect();
        let has_changes = requested.iter().any(|of| of.operation.is_change());
        let is_denied = requested.iter().any(|of| self.denies_without_limit(of.operation));
        let mut charged = ChargedSets::default();
        let checked = match (is_denied, has_changes) {
            (true, _) => peek_all(limiter, &checks).await,
            (false, false) if checks.is_empty() => Vec::new(),
            (false, false) => charge_all(limiter, &checks).await?,
            (false, true) => {
                let (results, reserved) = reserve_all(limiter, &checks).await?;
                charged = reserved;
                results
            }
        };
        let is_denied = is_denied || checked.iter().any(|result| !result.allowed);
        let mut checked = checked.into_iter();
        let results = requested.iter().map(|of| match of.operation {
            Operation::Check => checked.next(),
            _ => None,
        });
        let mut results: Vec<Option<LimitResult>> = results.collect();
        if has_changes {
            if !is_denied {
                change_all(limiter, requested, &mut charged).await?;
            }
            // Missing numbers of a status do not undo the changes.
            let _ = charged.keep();
            let changed = requested.iter().map(|of| async move {
                let limit = of.limit.as_ref().filter(|_| of.operation.is_change())?;
                Some(numbers(limiter, limit, ends).await)
            });
            for (numbers, result) in join_all(changed).await.into_iter().zip(&mut results) {
                *result = numbers.or_else(|| result.take());
            }
        }
        Ok(results)
    }

    /// Returns whether a descriptor denies its request without a limit.
    fn denies_without_limit(&self, operation: Operation) -> bool {
        match operation {
            Operation::Zero => true,
            Operation::Unmatched => self.envoy_settings().unmatched == Unmatched::Deny,
            Operation::Check | Operation::Refund | Operation::Settle => false,
        }
    }
}

/// Settles costs and refunds permits, the refunds last because they are not undone.
async fn change_all(
    limiter: &Limiter,
    requested: &[Requested],
    charged: &mut ChargedSets,
) -> Result<(), Rejection> {
    let of_operation = |operation| {
        let of = requested.iter().filter(move |of| of.operation == operation);
        of.filter_map(|of| of.limit.as_ref())
    };
    let settlements = of_operation(Operation::Settle).map(|limit| async move {
        let charge = limiter.charge(&limit.policy, &limit.key);
        (limit, charge.cost(limit.cost).await)
    });
    let mut settlements: FuturesUnordered<_> = settlements.collect();
    let mut ended = Ok(());
    // Each charge is recorded when it ends, since the request can be abandoned before the others.
    while let Some((limit, settled)) = settlements.next().await {
        match settled {
            Ok(()) => charged.add_settlement(limiter, limit),
            Err(rejection) => ended = Err(rejection),
        }
    }
    ended?;
    let refunds = of_operation(Operation::Refund).map(|limit| async move {
        let refund = limiter.refund(&limit.policy, &limit.key);
        refund.cost(limit.cost).await
    });
    join_all(refunds).await.into_iter().collect()
}

/// Returns the numbers of a limit that a descriptor changes, which never denies; unknown if the
/// store does not return them in time.
async fn numbers(limiter: &Limiter, limit: &RequestedLimit, ends: Instant) -> LimitResult {
    let peek = RequestedLimit {
        cost: Amount::ZERO,
        ..limit.clone()
    };
    let peeked = timeout_at(ends, charge_all(limiter, std::slice::from_ref(&peek))).await;
    let peeked = peeked.ok().and_then(Result::ok);
    match peeked.and_then(|results| results.into_iter().next()) {
        Some(result) => LimitResult {
            allowed: true,
            would_deny: false,
            ..result
        },
        None => LimitResult::UNKNOWN,
    }
}
