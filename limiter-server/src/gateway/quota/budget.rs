//! The budget of one policy and key: one task divides it among the streams of this node.
//!
//! The task runs a step each second, and at once when a bucket is added or ends. A step reads the
//! mode, counts the reported calls, reports the demand of the streams to the shared ledger, and
//! sends the assignments after the ledger was recorded. Without the store no share is sent, and
//! assignments end by themselves. Tests: below.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use limiter_core::{Key, Limiter, Policy};
use tokio::sync::Notify;

use crate::gateway::quota::lease::{self, TIME_TO_LIVE};
use crate::gateway::quota::ledger::{HolderId, HolderState, NewAssignment, QuotaLedger};
use crate::gateway::quota::messages::{Abandon, BlanketRule, QuotaAction, StrategyKind};
use crate::gateway::quota::mode::{QuotaMode, mode_of};
use crate::gateway::quota::reported::ReportedCalls;
use crate::gateway::quota::shares::MicroRate;
use crate::gateway::quota::subscriber::{
    QuotaAssignmentRow, ShownAssignment, StreamBucket, Subscriber, SubscriberId, count, random_holder,
    token_bucket,
};

/// The interval between steps.
const STEP: Duration = Duration::from_secs(1);
/// The shortest time between two steps, so that many new buckets share one.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// The number of steps in sequence that follow at once because a holder waits: one leases permits,
/// and the next one assigns them. A rate that is too small for all holders never serves some.
const QUICK_STEPS: u32 = 3;
/// The number of reports without demand after which a bucket is abandoned.
const IDLE_REPORTS: u32 = 2;

/// The state that the task and the streams share.
#[derive(Debug, Default)]
struct BudgetState {
    subscribers: BTreeMap<SubscriberId, Subscriber>,
    next_id: SubscriberId,
    /// Holders whose end is not recorded yet.
    ended: Vec<HolderId>,
    /// The holders of this node that the ledger recorded.
    assigned: BTreeMap<HolderId, HolderState>,
    /// The time of the ledger that recorded them.
    recorded_at: limiter_core::Timestamp,
    /// The calls of buckets that have ended, to be counted by the next step.
    departed: ReportedCalls,
    /// The mode of the last step; `None` without a policy.
    mode: Option<QuotaMode>,
    /// The blanket rule that was sent last, and when.
    blanket: Option<(BlanketRule, Instant)>,
    is_closed: bool,
}

/// The budget of one policy and key.
#[derive(Debug)]
pub(crate) struct Budget {
    policy: String,
    key: Key<'static>,
    state: Mutex<BudgetState>,
    changed: Notify,
}

impl Budget {
    pub(crate) fn new(policy: String, key: Key<'static>) -> Self {
        Self {
            policy,
            key,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_of(&self, policy: &str, key: &Key<'_>) -> bool {
        self.policy == policy && self.key == *key
    }

    /// Adds a bucket of a stream; `None` if the task has ended.
    pub(crate) fn subscribe(&self, bucket: StreamBucket, calls: ReportedCalls) -> Option<SubscriberId> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        // A blanket rule is sent to the new stream with the next step.
        state.blanket = None;
        let id = state.next_id;
        state.next_id += 1;
        state.subscribers.insert(id, Subscriber::new(bucket, calls));
        drop(state);
        self.changed.notify_one();
        Some(id)
    }

    /// Applies a report of a bucket; false if it was idle for too long and is abandoned.
    pub(crate) fn report(&self, id: SubscriberId, calls: ReportedCalls) -> bool {
        let mut state = self.state();
        let Some(subscriber) = state.subscribers.get_mut(&id) else {
            return false;
        };
        if subscriber.report(calls) < IDLE_REPORTS {
            return true;
        }
        state.abandon(id);
        drop(state);
        self.changed.notify_one();
        false
    }

    /// Returns whether the budget has a bucket, which is not abandoned.
    pub(crate) fn contains(&self, id: SubscriberId) -> bool {
        self.state().subscribers.contains_key(&id)
    }

    /// Removes a bucket of a stream that has ended.
    pub(crate) fn unsubscribe(&self, id: SubscriberId) {
        self.state().remove(id);
        self.changed.notify_one();
    }

    /// Runs steps until the last bucket has ended.
    pub(crate) async fn run(self: Arc<Self>, limiter: Limiter) {
        let mut quick_steps = 0;
        loop {
            let has_waiting = self.step(&limiter).await;
            quick_steps = match has_waiting {
                true => QUICK_STEPS.min(quick_steps) + 1,
                false => 0,
            };
            {
                let mut state = self.state();
                let is_counted = state.departed == ReportedCalls::default();
                if state.subscribers.is_empty() && state.ended.is_empty() && is_counted {
                    state.is_closed = true;
                    return;
                }
                // The end of a holder cannot be recorded while the store is unavailable; the
                // assignment then ends by itself.
                if state.subscribers.is_empty() && !has_waiting {
                    state.ended.clear();
                }
            }
            tokio::time::sleep(SHORTEST_PAUSE).await;
            let is_quick = (1..=QUICK_STEPS).contains(&quick_steps);
            let pause = if is_quick { SHORTEST_PAUSE } else { STEP };
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Executes one step. Returns whether a holder waits for permits that were leased now.
    async fn step(&self, limiter: &Limiter) -> bool {
        self.state().abandon_silent();
        let Ok(policy) = limiter.policy(&self.policy, &self.key) else {
            self.count_reported(limiter, None);
            self.end_all();
            return false;
        };
        let mode = mode_of(limiter, &policy, &self.key).await;
        self.count_reported(limiter, Some((&policy, mode)));
        if !mode.is_divided() {
            self.end_all();
        }
        match mode.rule() {
            Some(rule) => self.send_blanket(rule),
            None => self.state().blanket = None,
        }
        let (demands, ended, known) = {
            let state = self.state();
            let subscribers = state.subscribers.values().filter(|_| mode.is_divided());
            let demands: BTreeMap<HolderId, MicroRate> =
                subscribers.map(|of| (of.holder, of.demand)).collect();
            (demands, state.ended.clone(), state.assigned.clone())
        };
        if demands.is_empty() && ended.is_empty() {
            return false;
        }
        let step = |ledger: &mut QuotaLedger, now| {
            for (holder, state) in &known {
                ledger.restore(*holder, *state);
            }
            for holder in &ended {
                ledger.end(*holder);
            }
            ledger.advance(now);
            for (holder, demand) in &demands {
                ledger.report(*holder, *demand);
            }
            ledger.assign(now, |holder| demands.contains_key(holder))
        };
        let recorded = lease::update(limiter, &policy, &self.key, step).await;
        let (assignments, ledger) = match recorded {
            Ok(Some(recorded)) => recorded,
            Ok(None) => return false,
            Err(rejection) => {
                count("failed");
                tracing::debug!(policy = self.policy, reason = %rejection.diagnostic(), "quota not renewed");
                return false;
            }
        };
        self.recorded(&assignments, &ledger, &ended, &demands)
    }

    /// Counts the calls that were reported since the last step. Without a policy they are not
    /// counted.
    fn count_reported(&self, limiter: &Limiter, counted: Option<(&Policy, QuotaMode)>) {
        let state = &mut *self.state();
        state.mode = counted.map(|(_, mode)| mode);
        let mut reported = vec![(std::mem::take(&mut state.departed), 0)];
        for subscriber in state.subscribers.values_mut() {
            let share = state.assigned.get(&subscriber.holder).map(|of| of.bucket);
            reported.push(subscriber.take_reported(share));
        }
        if let Some((policy, mode)) = counted {
            for (calls, would_deny) in reported {
                limiter.count_decisions(policy, &self.key, calls.decisions(mode, would_deny));
            }
        }
    }

    /// Sends recorded assignments, except in shadow mode. Returns whether a holder waits although
    /// permits are stored.
    fn recorded(
        &self,
        assignments: &[NewAssignment],
        ledger: &QuotaLedger,
        ended: &[HolderId],
        demands: &BTreeMap<HolderId, MicroRate>,
    ) -> bool {
        let mut state = self.state();
        state.ended.retain(|holder| !ended.contains(holder));
        let own = |holder: &HolderId, known: &BTreeMap<HolderId, HolderState>| {
            demands.contains_key(holder) || known.contains_key(holder)
        };
        let assigned = ledger.holders().iter();
        let assigned = assigned.filter(|(holder, _)| own(holder, &state.assigned));
        let assigned = assigned.map(|(holder, of)| (*holder, *of)).collect();
        state.assigned = assigned;
        state.recorded_at = ledger.updated_at();
        for assignment in assignments {
            let mut subscribers = state.subscribers.values();
            let subscriber = subscribers.find(|of| of.holder == assignment.holder);
            let Some(subscriber) = subscriber.filter(|_| state.mode == Some(QuotaMode::Divided)) else {
                continue;
            };
            subscriber.bucket.assign(token_bucket(assignment.bucket));
            count(if assignment.is_changed {
                "changed"
            } else {
                "renewed"
            });
        }
        let without = demands
            .keys()
            .filter(|holder| !state.assigned.contains_key(holder));
        let is_waiting = |holder: &&HolderId| ledger.waiting().contains_key(holder);
        // The others are above the largest number of holders.
        let excess = without.clone().filter(|holder| !is_waiting(holder)).count();
        (0..excess).for_each(|_| count("too_many"));
        ledger.stored() > 0 && without.clone().any(|holder| is_waiting(&holder))
    }

    /// Ends all assigned holders. Their streams get new holders for later assignments.
    fn end_all(&self) {
        let state = &mut *self.state();
        for subscriber in state.subscribers.values_mut() {
            if state.assigned.contains_key(&subscriber.holder) {
                state.ended.push(subscriber.holder);
                subscriber.holder = random_holder();
            }
        }
    }

    /// Sends a blanket rule to all streams, unless they received it recently.
    fn send_blanket(&self, rule: BlanketRule) {
        let mut state = self.state();
        let is_recent = |(last, at): (BlanketRule, Instant)| last == rule && at.elapsed() < TIME_TO_LIVE / 4;
        if state.blanket.is_some_and(is_recent) {
            return;
        }
        for subscriber in state.subscribers.values() {
            subscriber.bucket.assign(StrategyKind::Blanket(rule.into()));
            count("blanket");
        }
        state.blanket = Some((rule, Instant::now()));
    }

    /// Returns the current assignments of this node.
    pub(crate) fn rows(&self) -> Vec<QuotaAssignmentRow> {
        let state = self.state();
        let rows = state.subscribers.values().map(|subscriber| {
            let assigned = state.assigned.get(&subscriber.holder);
            let shown = match (state.mode, assigned) {
                (Some(QuotaMode::Divided), Some(_)) => ShownAssignment::Divided,
                (Some(QuotaMode::Shadow), _) => ShownAssignment::Shadow,
                (Some(QuotaMode::Blanket { rule, .. }), _) => ShownAssignment::Blanket(rule),
                _ => ShownAssignment::Waiting,
            };
            subscriber.row(&self.policy, shown, assigned.map(|of| (of, state.recorded_at)))
        });
        rows.collect()
    }
}

impl BudgetState {
    /// Abandons a bucket. Its share becomes free, and the stream adds it again if it is used.
    fn abandon(&mut self, id: SubscriberId) {
        if let Some(subscriber) = self.subscribers.get(&id) {
            subscriber.bucket.send(QuotaAction::Abandon(Abandon {}));
            count("abandoned");
        }
        self.remove(id);
    }

    /// Abandons the buckets whose streams are open and do not report.
    fn abandon_silent(&mut self) {
        let silent = self.subscribers.iter().filter(|(_, of)| of.is_silent());
        let silent: Vec<SubscriberId> = silent.map(|(id, _)| *id).collect();
        silent.into_iter().for_each(|id| self.abandon(id));
    }

    fn remove(&mut self, id: SubscriberId) {
        if let Some(subscriber) = self.subscribers.remove(&id) {
            self.ended.push(subscriber.holder);
            self.departed.add(subscriber.reported);
        }
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::registry::PolicyRegistry;
    use tokio::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::gateway::admission::ByteLimit;
    use crate::gateway::quota::subscriber::StreamAction;
    use crate::gateway::quota::subscriber::UnreadLimit;

    /// The calls of a report after five seconds.
    const CALLS: ReportedCalls = ReportedCalls {
        allowed: 100,
        denied: 0,
        time: Duration::from_secs(5),
    };

    type Responses = Receiver<Result<StreamAction, tonic::Status>>;

    fn bucket() -> (StreamBucket, Responses) {
        let (responses, unread) = mpsc::channel(2_048);
        let bucket = StreamBucket {
            domain: "edge".to_owned(),
            id: Arc::default(),
            peer: "peer".to_owned(),
            responses,
            unread: UnreadLimit::new(ByteLimit::new(1 << 20)),
        };
        (bucket, unread)
    }

    fn has_abandoned(unread: &mut Responses) -> bool {
        let mut actions = std::iter::from_fn(|| unread.try_recv().ok()?.ok());
        actions.any(|of| matches!(of.action, QuotaAction::Abandon(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn bucket_without_reports_is_abandoned() {
        let policy = Policy::token_bucket("p").capacity(1_000).rate("1000/s");
        let registry = PolicyRegistry::new().with(policy.build().unwrap());
        let limiter = Limiter::in_process().registry(&registry).build();
        let budget = Arc::new(Budget::new("p".to_owned(), Key::global()));
        let slow = ReportedCalls {
            time: Duration::from_secs(100),
            ..CALLS
        };
        let [mut silent, mut active, mut rare] = [bucket(), bucket(), bucket()];
        let silent_id = budget.subscribe(silent.0, CALLS).unwrap();
        let active_id = budget.subscribe(active.0, CALLS).unwrap();
        let rare_id = budget.subscribe(rare.0, slow).unwrap();
        let running = tokio::spawn(Arc::clone(&budget).run(limiter));
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(budget.report(active_id, CALLS));
        }
        assert!(has_abandoned(&mut silent.1));
        assert!(!budget.report(silent_id, CALLS), "its share is free");
        assert!(!has_abandoned(&mut active.1));
        // The interval of its reports is longer.
        assert!(!has_abandoned(&mut rare.1) && budget.report(rare_id, slow));
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn holder_that_cannot_be_served_does_not_repeat_steps() {
        // At most 14 buckets of one permit a day fit into the rate.
        let policy = Policy::token_bucket("p").capacity(100).rate("16/d");
        let policy = policy.build().unwrap();
        let registry = PolicyRegistry::new().with(policy.clone());
        let limiter = Limiter::in_process().registry(&registry).build();
        let budget = Arc::new(Budget::new("p".to_owned(), Key::global()));
        let buckets = [(); 20].map(|()| bucket());
        for (bucket, _) in &buckets {
            budget.subscribe(bucket.clone(), CALLS).unwrap();
        }
        let running = tokio::spawn(Arc::clone(&budget).run(limiter.clone()));
        let epoch = async || {
            let lease = limiter.token_lease(&policy, Key::global(), "quota-streams");
            lease.read().await.unwrap().epoch()
        };
        tokio::time::sleep(Duration::from_secs(5)).await;
        let before = epoch().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        // Each step renews the lease twice.
        let steps = (epoch().await - before) / 2;
        assert!((5..=12).contains(&steps), "{steps}");
        running.abort();
    }
}
