//! Refunds the sets that were charged before a later set denied.

use limiter_core::{Limiter, Origin};

use crate::gateway::charge::{LimitResult, RequestedLimit};

/// The limits that were charged. They are refunded when this is dropped before
/// [`keep`](ChargedSets::keep), because a later decision failed or the request was abandoned.
#[derive(Debug)]
pub(super) struct ChargedSets {
    limiter: Limiter,
    limits: Vec<(RequestedLimit, u64)>,
}

impl ChargedSets {
    pub(super) fn new(limiter: &Limiter) -> Self {
        Self {
            limiter: limiter.clone(),
            limits: Vec::new(),
        }
    }

    /// Records the limits of an allowed set. Limits that no store charged are left out.
    pub(super) fn add(
        &mut self,
        limits: &[RequestedLimit],
        costs: &[(usize, u64)],
        results: &[(usize, LimitResult)],
    ) {
        for (position, cost) in costs {
            let result = results.iter().find(|(of, _)| of == position);
            let was_charged = result.is_some_and(|(_, result)| {
                result.outcome.is_some() && result.origin != Origin::LocalFallback
            });
            if let Some(limit) = limits.get(*position).filter(|_| was_charged) {
                self.limits.push((limit.clone(), *cost));
            }
        }
    }

    /// Refunds the charged limits and waits until that is done.
    pub(super) async fn refund(&mut self) {
        if let Some(refunding) = self.start_refund() {
            // The task goes on if the request is abandoned.
            let _ = refunding.await;
        }
    }

    /// Leaves the limits charged.
    pub(super) fn keep(mut self) {
        self.limits.clear();
    }

    fn start_refund(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        let limits = std::mem::take(&mut self.limits);
        if limits.is_empty() {
            return None;
        }
        let limiter = self.limiter.clone();
        Some(tokio::spawn(async move {
            for (limit, cost) in limits {
                let refund = limiter.refund(&limit.policy, &limit.key).cost(cost);
                if let Err(error) = refund.await {
                    metrics::counter!("limiter_server_failed_refunds_total").increment(1);
                    tracing::warn!(policy = limit.policy.name(), error = %error.diagnostic(), "refund failed");
                }
            }
        }))
    }
}

impl Drop for ChargedSets {
    fn drop(&mut self) {
        self.start_refund();
    }
}
