//! The budget of one policy and key: one task divides it among the streams of this node.
//!
//! The task runs a step each second, and at once when a bucket is added or ends. A step reads the
//! mode, reports the demand of the streams to the shared ledger, and sends the assignments after
//! the ledger was recorded. Without the store nothing is sent, and assignments end by themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use limiter_core::{Key, Limiter};
use tokio::sync::{Notify, mpsc};
use tonic::Status;

use crate::gateway::quota::lease::{self, TIME_TO_LIVE};
use crate::gateway::quota::ledger::{HolderId, HolderState, NewAssignment, QuotaLedger};
use crate::gateway::quota::messages::{
    Abandon, BlanketRule, BucketAction, BucketId, QuotaAction, QuotaAssignment, QuotaResponse, Strategy,
    StrategyKind, TokenBucket,
};
use crate::gateway::quota::mode::{QuotaMode, mode_of};
use crate::gateway::quota::shares::MicroRate;

/// The interval between steps.
const STEP: Duration = Duration::from_secs(1);
/// The shortest time between two steps, so that many new buckets share one.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// The number of reports without demand after which a bucket is abandoned.
const IDLE_REPORTS: u32 = 2;

/// Sends responses to a stream.
pub(crate) type ResponseSender = mpsc::Sender<Result<QuotaResponse, Status>>;

/// A bucket of a stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamBucket {
    pub(crate) domain: String,
    pub(crate) id: BucketId,
    /// The address of the client.
    pub(crate) peer: String,
    pub(crate) responses: ResponseSender,
}

/// The number of a bucket of a stream in its budget.
pub(crate) type SubscriberId = u64;

#[derive(Debug)]
struct Subscriber {
    /// The holder in the ledger. It changes when the mode of the policy does, because the old
    /// assignment counts until it ends.
    holder: HolderId,
    bucket: StreamBucket,
    demand: MicroRate,
    idle_reports: u32,
}

/// One row of the current assignments.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct QuotaAssignmentRow {
    /// The domain of the stream.
    pub domain: String,
    /// The entries of the bucket, as `key=value`.
    pub bucket: Vec<String>,
    /// The policy.
    pub policy: String,
    /// The address of the Envoy.
    pub peer: String,
    /// `divided`, `allow_all`, `deny_all`, or `waiting` without an assignment.
    pub state: String,
    /// The permits per second of the assignment, in thousandths.
    pub rate_thousandths: u64,
    /// The capacity of the assigned bucket.
    pub permits: u32,
    /// The demand of the last report, in thousandths of permits per second.
    pub demand_thousandths: u64,
    /// The seconds since the first assignment.
    pub age_seconds: u64,
}

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

    /// Adds a bucket of a stream; `None` if the task has ended.
    pub(crate) fn subscribe(&self, bucket: StreamBucket, demand: MicroRate) -> Option<SubscriberId> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        // A blanket rule is sent to the new stream with the next step.
        state.blanket = None;
        let id = state.next_id;
        state.next_id += 1;
        let subscriber = Subscriber {
            holder: random_holder(),
            bucket,
            demand,
            idle_reports: 0,
        };
        state.subscribers.insert(id, subscriber);
        drop(state);
        self.changed.notify_one();
        Some(id)
    }

    /// Sets the demand of a bucket; false if it was idle for too long and is abandoned.
    pub(crate) fn report(&self, id: SubscriberId, demand: MicroRate) -> bool {
        let mut state = self.state();
        let Some(subscriber) = state.subscribers.get_mut(&id) else {
            return false;
        };
        subscriber.demand = demand;
        subscriber.idle_reports = if demand > 0 {
            0
        } else {
            subscriber.idle_reports + 1
        };
        if subscriber.idle_reports < IDLE_REPORTS {
            return true;
        }
        subscriber.bucket.send(QuotaAction::Abandon(Abandon {}));
        count("abandoned");
        state.remove(id);
        drop(state);
        self.changed.notify_one();
        false
    }

    /// Removes a bucket of a stream that has ended.
    pub(crate) fn unsubscribe(&self, id: SubscriberId) {
        self.state().remove(id);
        self.changed.notify_one();
    }

    /// Runs steps until the last bucket has ended.
    pub(crate) async fn run(self: Arc<Self>, limiter: Limiter) {
        loop {
            let has_waiting = self.step(&limiter).await;
            {
                let mut state = self.state();
                if state.subscribers.is_empty() && state.ended.is_empty() {
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
            let pause = if has_waiting { SHORTEST_PAUSE } else { STEP };
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Executes one step. Returns whether a holder waits for permits that were leased now.
    async fn step(&self, limiter: &Limiter) -> bool {
        let Ok(policy) = limiter.policy(&self.policy, &self.key) else {
            self.end_all();
            return false;
        };
        if let QuotaMode::Blanket(rule) = mode_of(limiter, &policy, &self.key).await {
            self.end_all();
            self.send_blanket(rule);
        } else {
            self.state().blanket = None;
        }
        let (demands, ended, known) = {
            let state = self.state();
            let is_divided = state.blanket.is_none();
            let subscribers = state.subscribers.values().filter(|_| is_divided);
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

    /// Sends recorded assignments. Returns whether a holder waits although permits are stored.
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
            let Some(subscriber) = subscribers.find(|of| of.holder == assignment.holder) else {
                continue;
            };
            let bucket = TokenBucket {
                max_tokens: assignment.bucket.max_tokens,
                tokens_per_fill: Some(assignment.bucket.tokens_per_fill),
                fill_interval: Some(seconds(assignment.bucket.fill_seconds.into())),
            };
            subscriber.bucket.assign(StrategyKind::TokenBucket(bucket));
            count(if assignment.is_changed {
                "changed"
            } else {
                "renewed"
            });
        }
        let waits = |subscriber: &Subscriber| !state.assigned.contains_key(&subscriber.holder);
        ledger.stored() > 0 && state.subscribers.values().any(waits)
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

    /// The current assignments of this node.
    pub(crate) fn rows(&self) -> Vec<QuotaAssignmentRow> {
        let state = self.state();
        let rows = state.subscribers.values().map(|subscriber| {
            let assigned = state.assigned.get(&subscriber.holder);
            let rule = state.blanket.map(|(rule, _)| rule);
            let shown = match (rule, assigned) {
                (Some(BlanketRule::AllowAll), _) => "allow_all",
                (Some(BlanketRule::DenyAll), _) => "deny_all",
                (None, Some(_)) => "divided",
                (None, None) => "waiting",
            };
            let bucket = &subscriber.bucket;
            let entries = bucket.id.entries.iter();
            QuotaAssignmentRow {
                domain: bucket.domain.clone(),
                bucket: entries.map(|(key, value)| format!("{key}={value}")).collect(),
                policy: self.policy.clone(),
                peer: bucket.peer.clone(),
                state: shown.to_owned(),
                rate_thousandths: assigned.map_or(0, |of| of.bucket.rate() / 1_000),
                permits: assigned.map_or(0, |of| of.bucket.max_tokens),
                demand_thousandths: subscriber.demand / 1_000,
                age_seconds: assigned.map_or(0, |of| state.recorded_at.since(of.assigned_at).as_secs()),
            }
        });
        rows.collect()
    }
}

impl BudgetState {
    fn remove(&mut self, id: SubscriberId) {
        if let Some(subscriber) = self.subscribers.remove(&id) {
            self.ended.push(subscriber.holder);
        }
    }
}

impl StreamBucket {
    fn assign(&self, kind: StrategyKind) {
        self.send(QuotaAction::Assign(QuotaAssignment {
            time_to_live: Some(seconds(TIME_TO_LIVE.as_secs())),
            strategy: Some(Strategy { kind: Some(kind) }),
        }));
    }

    /// Sends an action. A stream that does not read loses it, and its assignment ends.
    fn send(&self, action: QuotaAction) {
        let response = QuotaResponse {
            actions: vec![BucketAction {
                bucket_id: Some(self.id.clone()),
                action: Some(action),
            }],
        };
        if self.responses.try_send(Ok(response)).is_err() {
            count("undelivered");
        }
    }
}

fn seconds(seconds: u64) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: 0,
    }
}

/// Counts an action that was sent, or a failure.
fn count(kind: &'static str) {
    metrics::counter!("limiter_server_quota_actions_total", "kind" => kind).increment(1);
}

/// A number that no other holder of any node has.
fn random_holder() -> HolderId {
    use std::hash::{BuildHasher, RandomState};
    // The seeds are random for each process, and differ for each instance.
    RandomState::new().hash_one(std::process::id())
}
