//! The budgets of this node and their streams.
//!
//! A budget belongs to one policy and key. The first bucket of a stream creates the budget and its
//! task (`budget`), and the task removes the budget when it ends. A `Subscription` ends its bucket
//! when it is dropped.
//!
//! Invariants: a node has at most `MAX_BUDGETS` budgets, its streams occupy at most
//! `MAX_STREAM_BYTES` and their unread actions `MAX_UNREAD_BYTES`, and a task that ends removes
//! only its own budget. Tests: `tests/quota_streams.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use limiter_core::{Key, Limiter};

use crate::gateway::admission::{ByteLimit, HeldBytes};
use crate::gateway::quota::budget::Budget;
use crate::gateway::quota::reported::ReportedCalls;
use crate::gateway::quota::subscriber::{QuotaAssignmentRow, StreamBucket, SubscriberId};

/// The largest number of budgets of a node. Streams of further budgets get no assignments.
const MAX_BUDGETS: usize = 10_000;

/// The largest number of bytes that the streams of a node occupy together.
const MAX_STREAM_BYTES: usize = 32 * 1_024 * 1_024;

/// The largest number of bytes of the actions that the streams of a node have not read.
const MAX_UNREAD_BYTES: usize = 32 * 1_024 * 1_024;

/// The policy and the key of a budget.
type BudgetName = (String, Key<'static>);

/// The budgets of this node. Cheap to clone; clones share them.
#[derive(Clone, Debug)]
pub struct QuotaService {
    limiter: Limiter,
    budgets: Arc<Mutex<HashMap<BudgetName, Arc<Budget>>>>,
    bytes: ByteLimit,
    unread: ByteLimit,
}

/// A bucket of a stream in its budget. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    budget: Arc<Budget>,
    id: SubscriberId,
}

impl QuotaService {
    /// Creates a service without budgets, in front of a limiter.
    #[must_use]
    pub fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            budgets: Arc::default(),
            bytes: ByteLimit::new(MAX_STREAM_BYTES),
            unread: ByteLimit::new(MAX_UNREAD_BYTES),
        }
    }

    /// Returns the bytes of a new stream, which has none yet.
    pub(crate) fn hold_bytes(&self) -> HeldBytes {
        self.bytes.hold()
    }

    /// Returns the limit on the bytes of unread actions.
    pub(crate) fn unread(&self) -> ByteLimit {
        self.unread.clone()
    }

    fn budgets(&self) -> MutexGuard<'_, HashMap<BudgetName, Arc<Budget>>> {
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a bucket of a stream to the budget of a policy and key. `None` if there are too many
    /// budgets.
    pub(crate) fn subscribe(
        &self,
        policy: &str,
        key: &Key<'static>,
        bucket: &StreamBucket,
        calls: ReportedCalls,
    ) -> Option<Subscription> {
        let name = (policy.to_owned(), key.clone());
        let mut budgets = self.budgets();
        if let Some(budget) = budgets.get(&name)
            && let Some(id) = budget.subscribe(bucket.clone(), calls)
        {
            let budget = Arc::clone(budget);
            return Some(Subscription { budget, id });
        }
        if budgets.len() >= MAX_BUDGETS && !budgets.contains_key(&name) {
            metrics::counter!("limiter_server_quota_actions_total", "kind" => "too_many").increment(1);
            return None;
        }
        let budget = Arc::new(Budget::new(name.0.clone(), name.1.clone()));
        let id = budget.subscribe(bucket.clone(), calls)?;
        budgets.insert(name.clone(), Arc::clone(&budget));
        drop(budgets);
        let (service, running) = (self.clone(), Arc::clone(&budget));
        tokio::spawn(async move {
            Arc::clone(&running).run(service.limiter.clone()).await;
            // Another task may have replaced the budget since.
            let mut budgets = service.budgets();
            if budgets.get(&name).is_some_and(|of| Arc::ptr_eq(of, &running)) {
                budgets.remove(&name);
            }
        });
        Some(Subscription { budget, id })
    }

    /// Returns the current assignments of this node's streams, by domain and bucket.
    #[must_use]
    pub fn assignments(&self) -> Vec<QuotaAssignmentRow> {
        let budgets: Vec<Arc<Budget>> = self.budgets().values().cloned().collect();
        let mut rows: Vec<QuotaAssignmentRow> = budgets.iter().flat_map(|budget| budget.rows()).collect();
        rows.sort_by(|one, other| {
            let order = |row: &QuotaAssignmentRow| (row.domain.clone(), row.bucket.clone(), row.peer.clone());
            order(one).cmp(&order(other))
        });
        rows
    }
}

impl Subscription {
    /// Returns whether the bucket belongs to the budget of this policy and key.
    pub(crate) fn is_of(&self, policy: &str, key: &Key<'_>) -> bool {
        self.budget.is_of(policy, key)
    }

    /// Returns whether the bucket is not abandoned.
    pub(crate) fn is_open(&self) -> bool {
        self.budget.contains(self.id)
    }

    /// Applies a report; false if the bucket is abandoned.
    pub(crate) fn report(&self, calls: ReportedCalls) -> bool {
        self.budget.report(self.id, calls)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.budget.unsubscribe(self.id);
    }
}
