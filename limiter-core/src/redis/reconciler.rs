//! Reports permits that were admitted without Redis, so that Redis subtracts them.
//!
//! A task runs while there are such permits
//! ([`unreported`](crate::redis::local_fallback::unreported)). Every [`REPORT_EVERY`] it queries
//! Redis for the state of each of their limits, converts it after a proportional policy change, and
//! charges the permits only if Redis answers. All permits of a limit are one report. No call waits
//! for a report, at most [`MAX_CONCURRENT`] are under way, and a report is sent at most once: one
//! whose outcome is unknown counts as received, since charging it twice could deny a limit for as
//! long as the outage lasted.
//!
//! Verified by `tests/outages.rs` and by the fault suite.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::RwLock;
use tokio::task::JoinSet;

use crate::algorithm::UsageCorrection;
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Namespace;
use crate::policy::Policy;
use crate::redis::Route;
use crate::redis::compare_and_set::StateStore;
use crate::redis::converted_limits::ConvertedLimits;
use crate::redis::local_fallback::LocalFallback;
use crate::redis::local_fallback::unreported::UnreportedLimit;
use crate::redis::outage_log::is_outage;
use crate::redis::token_lease::leased_limit;
use crate::request::{DecisionRequest, ValidatedLimit, Verdict};
use crate::support::background_task::{BackgroundTask, TaskNumber};
use crate::support::clock::Clock;
use crate::support::join::join_completed;
use crate::support::real_time::with_deadline;

/// The pause between two rounds of reports.
pub(crate) const REPORT_EVERY: Duration = Duration::from_millis(100);
/// The time that Redis has for an answer, if the policy's deadline is not longer. No call waits for
/// it.
const MIN_TIMEOUT: Duration = Duration::from_millis(250);
/// The most reports under way at one time.
const MAX_CONCURRENT: usize = 64;
/// The number of limits after which a round ends.
const MAX_PER_ROUND: usize = 1_024;
/// A task that has not run for this time belongs to a runtime that has ended.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// Charges limits in Redis unconditionally.
#[derive(Clone, Debug)]
pub(crate) struct PermitReporter {
    pub(super) route: Route,
    pub(crate) clock: Clock,
    pub(crate) namespace: Namespace,
}

/// Reports the permits that a local fallback admitted.
#[derive(Debug)]
pub(crate) struct Reconciler {
    shared: Arc<ReconcilerState>,
}

#[derive(Debug)]
struct ReconcilerState {
    fallback: Arc<LocalFallback>,
    converted: Arc<ConvertedLimits>,
    reporter: PermitReporter,
    task: BackgroundTask,
    /// Read during each round of the task. A reported permit is not in the table meanwhile.
    rounds: RwLock<()>,
}

impl PermitReporter {
    async fn change(
        &self,
        limit: &ValidatedLimit<'_>,
        change: UsageCorrection,
    ) -> Result<Verdict, StoreError> {
        let timeout = MIN_TIMEOUT.max(limit.policy.deadline());
        let key = leased_limit::key(limit, &self.namespace);
        let call = leased_limit::apply_change(limit, change, key, self.clock.injected(), timeout);
        let reply = with_deadline(timeout, self.route.run(&call)).await?;
        leased_limit::changed(&reply, limit, change)
    }

    /// Queries the state of a limit, and converts it after a proportional policy change. Returns
    /// the policy in force, under which the limit is charged.
    async fn prepare<'a>(&self, limit: &ValidatedLimit<'a>) -> Result<&'a Policy, StoreError> {
        let policy: &'a Policy = limit.policy;
        let Some(scaled) = policy.pending(self.clock.now()) else {
            // A refund of nothing.
            let nothing = UsageCorrection::Refund { whole_at: 0 };
            self.change(limit, nothing).await?;
            return Ok(policy);
        };
        let states = StateStore::new(&self.route, &self.clock, &self.namespace);
        let timeout = MIN_TIMEOUT.max(policy.deadline());
        match with_deadline(timeout, states.convert(limit, scaled)).await? {
            true => Ok(policy),
            false => Ok(&scaled.before),
        }
    }
}

impl Reconciler {
    pub(crate) fn new(
        fallback: Arc<LocalFallback>,
        converted: Arc<ConvertedLimits>,
        reporter: PermitReporter,
    ) -> Self {
        Self {
            shared: Arc::new(ReconcilerState {
                fallback,
                converted,
                reporter,
                task: BackgroundTask::new(ABANDONED_AFTER),
                rounds: RwLock::default(),
            }),
        }
    }

    /// Records a request that the share of one of `replicas` decided without Redis, to be reported.
    pub(crate) fn record(&self, request: &DecisionRequest<'_>, verdict: &Verdict, replicas: u32) {
        self.shared.fallback.record(request, verdict, replicas);
        self.keep_reporting();
    }

    /// Reports all permits that can be reported now, and waits for the reports that are under way.
    pub(crate) async fn flush(&self) {
        let shared = &self.shared;
        if shared.fallback.unreported().is_empty() {
            return;
        }
        // First, since the runtime of the task may not be driven.
        Arc::clone(shared).round(usize::MAX).await;
        let _rounds = shared.rounds.write().await;
        // A report of the task may have failed.
        Arc::clone(shared).round(usize::MAX).await;
    }

    /// Starts the task unless it runs: the runtime of the previous one may have ended. Without a
    /// runtime the next call starts it.
    pub(crate) fn keep_reporting(&self) {
        let shared = &self.shared;
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if let Some(task) = shared.task.claim(shared.reporter.clock.now()) {
            runtime.spawn(run(Arc::downgrade(shared), task));
        }
    }
}

async fn run(shared: Weak<ReconcilerState>, task: TaskNumber) {
    loop {
        let Some(clock) = shared.upgrade().map(|shared| shared.reporter.clock.clone()) else {
            return;
        };
        // First, so that the permits of some time are one report.
        clock.sleep(clock.now(), REPORT_EVERY).await;
        let Some(shared) = shared
            .upgrade()
            .filter(|shared| shared.task.continues(task, clock.now()))
        else {
            return;
        };
        {
            let _round = shared.rounds.read().await;
            Arc::clone(&shared).round(MAX_PER_ROUND).await;
        }
        let unreported = shared.fallback.unreported();
        unreported.remove_settled(clock.now());
        if unreported.is_empty() {
            shared.task.release();
            // A call that recorded a permit before the release has seen a task that runs.
            if unreported.is_empty() {
                return;
            }
        }
    }
}

impl ReconcilerState {
    /// Reports about this number of limits, or until the server does not answer. In a cluster,
    /// other nodes may answer, and the breaker of a dead node rejects the reports to it at once.
    async fn round(self: Arc<Self>, max: usize) {
        let batch = self.fallback.unreported().batch(max);
        for limits in batch.chunks(MAX_CONCURRENT) {
            let mut reports = JoinSet::new();
            for limit in limits {
                let (shared, limit) = (Arc::clone(&self), limit.clone());
                reports.spawn(async move { shared.report(&limit).await });
            }
            let has_answer = join_completed(reports).await.contains(&true);
            if !has_answer && matches!(self.reporter.route, Route::Standalone(_)) {
                return;
            }
        }
    }

    /// Reports the permits of a limit: whether Redis answered.
    async fn report(&self, unreported: &UnreportedLimit) -> bool {
        let (clock, identity) = (&self.reporter.clock, unreported.identity);
        // The key may have no call since a proportional change.
        let changed = self.converted.successor_of(&unreported.policy, clock.now());
        let limit = ValidatedLimit {
            policy: changed.as_ref().unwrap_or(&unreported.policy),
            ..unreported.limit(0)
        };
        // A report that is lost in an outage is lost for good, so Redis has to answer first.
        let policy = match self.reporter.prepare(&limit).await {
            Ok(policy) => policy,
            Err(error) => {
                if !is_outage(error.kind()) {
                    // The value at the key is not a limit's.
                    self.fallback.unreported().forget(identity);
                }
                return false;
            }
        };
        let Some(report) = self.fallback.take_unreported(unreported, policy, clock.now()) else {
            return true;
        };
        if report.amount > 0 {
            let limit = ValidatedLimit {
                policy,
                ..unreported.limit(report.amount)
            };
            match self.reporter.change(&limit, UsageCorrection::ForceCharge).await {
                Ok(verdict) => self.fallback.on_verdict(&limit.alone(), &verdict, clock.now()),
                Err(error) => {
                    let policy = unreported.policy.name();
                    tracing::debug!(policy, error = %error.with_causes(), "cannot report permits of an outage");
                    // A server that refuses a write has written nothing: scripts write after all
                    // reads.
                    if error.has_changed_nothing() || error.kind() == StoreErrorKind::Refused {
                        self.fallback.unreported().restore(identity, report);
                        return false;
                    }
                }
            }
        }
        self.fallback.unreported().finish(identity, clock.now());
        true
    }
}
