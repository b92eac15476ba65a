//! Refunds that this process has started and Redis has not yet confirmed, by limit.
//!
//! A settlement with Redis runs in a background task, so the next call of a sequential client can
//! reach Redis before the refund of its previous call. Redis then denies a call that fits. The
//! table lets a denied call find the refunds that were pending when it was submitted, wait for
//! them, and query Redis again.
//!
//! Invariants: a call waits for refunds that were pending at its submission only, so that a steady
//! stream of refunds does not hold it up; and an entry is removed when its last refund ends,
//! however that ends.
//!
//! Tests: below, and `tests/reservations.rs`.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;
use tokio::sync::watch;

use crate::identity::Identity;
use crate::support::sync::{Mutex, MutexGuard};

/// The pending refunds of all limits.
#[derive(Debug, Default)]
pub(crate) struct PendingRefunds(Mutex<RefundTable>);

#[derive(Debug, Default)]
struct RefundTable {
    by_limit: HashMap<Identity, Pending>,
    last_ticket: u64,
}

#[derive(Debug, Default)]
struct Pending {
    tickets: BTreeSet<u64>,
    /// The oldest of `tickets`. Closed when there is none left.
    oldest: watch::Sender<u64>,
}

/// The refunds that were pending when a call was submitted.
#[derive(Debug)]
pub(crate) struct PendingAtSubmission {
    last_ticket: u64,
    oldest: SmallVec<[watch::Receiver<u64>; 1]>,
}

impl PendingRefunds {
    /// Adds a refund of these limits. Returns the ticket with which [`finish`](Self::finish)
    /// removes it.
    pub(crate) fn start(&self, limits: &[Identity]) -> u64 {
        let mut table = self.lock();
        table.last_ticket += 1;
        let ticket = table.last_ticket;
        for limit in limits {
            let pending = table.by_limit.entry(*limit).or_default();
            pending.tickets.insert(ticket);
            pending.publish();
        }
        ticket
    }

    /// Removes a refund that was applied, or failed.
    pub(crate) fn finish(&self, limits: &[Identity], ticket: u64) {
        let mut table = self.lock();
        for limit in limits {
            let Some(pending) = table.by_limit.get_mut(limit) else {
                continue;
            };
            pending.tickets.remove(&ticket);
            if pending.tickets.is_empty() {
                table.by_limit.remove(limit);
            } else {
                pending.publish();
            }
        }
    }

    /// Returns the refunds of these limits that are pending now, if there are any.
    pub(crate) fn at_submission(
        &self,
        limits: impl Iterator<Item = Identity>,
    ) -> Option<PendingAtSubmission> {
        let table = self.lock();
        let pending = limits.filter_map(|limit| table.by_limit.get(&limit));
        let oldest: SmallVec<_> = pending.map(|pending| pending.oldest.subscribe()).collect();
        (!oldest.is_empty()).then_some(PendingAtSubmission {
            last_ticket: table.last_ticket,
            oldest,
        })
    }

    fn lock(&self) -> MutexGuard<'_, RefundTable> {
        self.0.lock()
    }
}

impl Pending {
    fn publish(&self) {
        if let Some(oldest) = self.tickets.first() {
            self.oldest.send_if_modified(|published| {
                let is_new = *published != *oldest;
                *published = *oldest;
                is_new
            });
        }
    }
}

impl PendingAtSubmission {
    /// Waits until each of these refunds was applied, or has failed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn finished(mut self) {
        for oldest in &mut self.oldest {
            // The sender is dropped with the last refund.
            let _ = oldest.wait_for(|oldest| *oldest > self.last_ticket).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use crate::redis::pending_refunds::*;

    fn limits() -> [Identity; 2] {
        ["a", "b"].map(|key| {
            let policy = crate::Policy::token_bucket("p").capacity(1).rate(1);
            let policy = policy.build().expect("valid");
            crate::request::ValidatedLimit::of(crate::LimitRequest::new(&policy, key))
                .expect("valid")
                .identity
        })
    }

    fn is_ready(future: std::pin::Pin<&mut impl Future>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        matches!(future.poll(&mut context), Poll::Ready(_))
    }

    #[test]
    fn call_waits_for_refunds_of_its_limits_alone() {
        let (refunds, [a, b]) = (PendingRefunds::default(), limits());
        let ticket = refunds.start(&[a]);
        assert!(refunds.at_submission([b].into_iter()).is_none());
        let pending = refunds.at_submission([b, a].into_iter()).expect("one is pending");
        let mut finished = pin!(pending.finished());
        assert!(!is_ready(finished.as_mut()));
        refunds.finish(&[a], ticket);
        assert!(is_ready(finished.as_mut()));
        assert!(refunds.at_submission([a].into_iter()).is_none());
        assert!(refunds.lock().by_limit.is_empty());
    }

    #[test]
    fn later_refund_does_not_prolong_wait() {
        let (refunds, [a, b]) = (PendingRefunds::default(), limits());
        let first = refunds.start(&[a, b]);
        let second = refunds.start(&[a]);
        let pending = refunds.at_submission([a].into_iter()).expect("two are pending");
        let mut finished = pin!(pending.finished());
        let later = refunds.start(&[a]);
        refunds.finish(&[a], second);
        assert!(!is_ready(finished.as_mut()), "the first is pending");
        refunds.finish(&[a, b], first);
        assert!(is_ready(finished.as_mut()));
        assert!(
            refunds.at_submission([a].into_iter()).is_some(),
            "the later one is pending"
        );
        refunds.finish(&[a], later);
        assert!(refunds.at_submission([a, b].into_iter()).is_none());
    }
}
