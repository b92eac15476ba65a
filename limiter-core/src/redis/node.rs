//! One Redis server: its connections, circuit breaker and bound of calls in flight.
//!
//! A node sends a call of a script within a deadline, alone or in a batch of concurrent calls:
//! `pools` keeps connections and batch queues of each runtime, `batch` executes a batch,
//! `repeat` decides a request several times, and `probe` tests a server whose breaker is open.

mod across_slots;
mod batch;
mod batched_call;
mod dial_failures;
mod operation;
mod pools;
mod probe;
pub(crate) mod repeat;
#[cfg(test)]
pub(crate) mod repeat_tests;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "registry")]
use bb8_redis::bb8::ManageConnection as _;
use bb8_redis::bb8::Pool;
use bb8_redis::redis::Value;

use crate::error::{StoreError, StoreErrorKind};
use crate::observe;
use crate::redis::client::breaker::Breaker;
use crate::redis::client::connection::{Asking, Connection, Driver};
use crate::redis::client::failure::Failure;
use crate::redis::dispatch::{Admission, BatchPart, BatchQueue, InFlightBatch};
use crate::redis::node::across_slots::AcrossSlots;
use crate::redis::node::batched_call::BatchedCall;
use crate::redis::node::dial_failures::DialFailures;
pub(crate) use crate::redis::node::operation::NodeOperation;
use crate::redis::node::pools::{BreakerNotifier, RuntimeConnections, RuntimePools};
use crate::redis::script::reply::Replies;
use crate::redis::script::wire::Item;
use crate::redis::script::wire::{InputDraft, ScriptInput};
use crate::redis::script::{Call, is_unknown, reply, wire};
use crate::redis::topology::dialer::Dialer;
use crate::redis::topology::slots::slot;
use crate::request::Verdict;
use crate::support::bounded_counter::{BoundedCounter, CountGuard};
use crate::support::clock::Clock;
use crate::support::log_throttle::LogThrottle;
use crate::support::real_time::CallDeadline;
use crate::support::sync::Mutex;
use crate::units::Timestamp;

/// One server. Cheap to clone.
///
/// A call clones a connection from the pool and returns the pooled one before it sends anything, so
/// that no call waits for the reply to another.
#[derive(Clone, Debug)]
pub(crate) struct Node(Arc<NodeInner>);

#[derive(Debug)]
struct NodeInner {
    dialer: Dialer,
    settings: NodeSettings,
    /// Time of decisions, unless the server's clock decides.
    pub(crate) clock: Clock,
    pools: RuntimePools,
    breaker: Arc<Breaker>,
    across_slots: AcrossSlots,
    /// The task that probes the server while the breaker is open; it ends with the node.
    probe_task: Mutex<Option<Driver>>,
    open_log: LogThrottle,
    close_log: LogThrottle,
    /// Bounds the calls to a slow server, which would otherwise pile up until their deadlines.
    in_flight: BoundedCounter,
}

/// Settings of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSettings {
    /// Connections that the pool keeps open.
    pub(crate) connections: u32,
    /// Upper bound of calls in flight.
    pub(crate) max_in_flight: u32,
}

impl Node {
    pub(crate) fn new(dialer: Dialer, settings: NodeSettings, clock: Clock) -> Self {
        Self(Arc::new(NodeInner {
            breaker: Arc::new(Breaker::for_server(&dialer)),
            across_slots: AcrossSlots::default(),
            dialer,
            settings,
            clock,
            pools: RuntimePools::default(),
            probe_task: Mutex::new(None),
            open_log: LogThrottle::default(),
            close_log: LogThrottle::default(),
            in_flight: BoundedCounter::new(usize::try_from(settings.max_in_flight).unwrap_or(usize::MAX)),
        }))
    }

    /// Decides a request, in one batch with the requests of concurrent callers.
    pub(crate) async fn decide(
        &self,
        part: BatchPart,
        input: &InputDraft<'_, '_>,
        wait: &CallDeadline,
    ) -> Result<Verdict, Failure> {
        let _slot = self.in_flight_slot()?;
        self.admit(wait)?;
        // The connections are not kept while the caller waits, so that its future stays small.
        let batch_queue = Arc::clone(&self.local().map_err(Failure::Unreachable)?.batch_queue);
        let admission = batch_queue.enter(part, input, *wait);
        drop(batch_queue);
        match admission {
            // On the heap, so that the futures of waiting callers stay small and cheap to move.
            Admission::Alone(slot) => {
                Box::pin(async move {
                    let verdicts = self.decide_alone(slot, part, input.input(), 1, wait);
                    let verdict = verdicts.await?.into_iter().next();
                    verdict
                        .unwrap_or_else(|| Err(missing_verdict()))
                        .map_err(Failure::Undecided)
                })
                .await
            }
            Admission::Waits(reply) => {
                let call = BatchedCall::new(self, wait);
                match reply.await {
                    Ok(reply) => call.finish(reply),
                    Err(_) => Err(call.without_reply()),
                }
            }
        }
    }

    /// Decides a request `times` times in a row by its own call.
    pub(crate) async fn decide_alone(
        &self,
        slot: InFlightBatch,
        part: BatchPart,
        input: &ScriptInput,
        times: usize,
        wait: &CallDeadline,
    ) -> Result<Replies, Failure> {
        let items: [Item<'_>; 1] = [(input, times)];
        // The deadline counts from the caller's start, which may lie before a redirection from
        // another node.
        let call = wire::call(&items, self.injected(), wait.deadline()).with_deadline(*wait);
        observe::batch(1);
        let reply = self.run_alone(&call, part.asking).await?;
        slot.on_reply();
        drop(slot);
        let verdicts = reply::verdicts(&reply, &items).map_err(Failure::Undecided)?;
        let verdicts = verdicts.into_iter().next();
        verdicts.ok_or_else(|| Failure::Undecided(missing_verdict()))
    }

    /// Runs a script, unless the breaker is open or too many calls are in flight.
    pub(crate) async fn try_run(&self, call: &Call<'_>, asking: Asking) -> Result<Value, Failure> {
        let _slot = self.in_flight_slot()?;
        self.admit(call.wait())?;
        self.run_alone(call, asking).await
    }

    async fn run_alone(&self, call: &Call<'_>, asking: Asking) -> Result<Value, Failure> {
        let on_timeout = || self.on_timeout(call.wait());
        let exchange = pin!(self.exchange(call, asking));
        let answer = call.wait().for_answer(exchange, on_timeout).await;
        match connection_error(&answer) {
            Some(error) => self.record_failure(&error),
            None => self.record_reply(call.wait().elapsed()),
        }
        answer
    }

    /// Acquires one of the slots for calls in flight.
    pub(crate) fn in_flight_slot(&self) -> Result<CountGuard<'_>, Failure> {
        let limit = &self.0.in_flight;
        limit.try_hold().ok_or_else(|| {
            let detail = format!(
                "{} calls to Redis at {} are in flight, the configured maximum",
                limit.max(),
                self.0.dialer
            );
            Failure::Unreachable(StoreError::new(StoreErrorKind::Overloaded, detail))
        })
    }

    /// Admits a call, unless the breaker is open for its deadline. A rejected call starts the probe
    /// that is due.
    pub(crate) fn admit(&self, wait: &CallDeadline) -> Result<(), Failure> {
        let admitted = self.0.breaker.admit(wait.deadline(), Instant::now);
        admitted.map_err(|probe| {
            if probe.is_some() {
                self.keep_probing(probe);
            }
            circuit_open()
        })
    }

    /// Records the reply to a call or a batch.
    fn record_reply(&self, took: Duration) {
        if self.0.breaker.on_reply(took) {
            self.log_closing();
        }
    }

    /// Records that a call or a batch got no reply for this reason.
    fn record_failure(&self, reason: &StoreError) {
        if self.0.breaker.unreachable(Instant::now()) {
            self.log_opening(Some(reason));
            self.keep_probing(None);
        }
    }

    /// Records a call without a reply at its deadline. If the breaker opens, calls that wait for a
    /// batch fail immediately.
    fn on_timeout(&self, wait: &CallDeadline) {
        if !self.0.breaker.on_timeout(Instant::now(), wait.deadline()) {
            return;
        }
        self.log_opening(None);
        self.keep_probing(None);
        if let Ok(local) = self.local() {
            let rejects = |other: &CallDeadline| self.0.breaker.rejects(other.deadline());
            local.batch_queue.fail_waiting(rejects, &circuit_open());
        }
    }

    fn log_closing(&self) {
        if self.0.close_log.is_due(Clock::System.now()) {
            tracing::info!(node = %self, "Redis answers again; circuit breaker closed");
        }
    }

    /// Logs an opening. `reason` is `None` after a timeout.
    fn log_opening(&self, reason: Option<&StoreError>) {
        if !self.0.open_log.is_due(Clock::System.now()) {
            return;
        }
        match reason {
            // The server may be reachable and reject the login.
            Some(error) if error.kind() == StoreErrorKind::Connection && !error.may_have_been_charged() => {
                let error = error.with_causes();
                tracing::warn!(node = %self, %error, "cannot connect to Redis; circuit breaker opened");
            }
            reason => {
                let error = reason.map(|error| error.with_causes().to_string());
                let error = error.unwrap_or_else(|| "no answer in time".to_owned());
                tracing::warn!(node = %self, error, "Redis does not answer; circuit breaker opened");
            }
        }
    }

    /// Connects and runs the script once without keys, which loads it into the server and verifies
    /// the permissions. The breaker does not reject this call; as a probe does, a reply closes it.
    pub(crate) async fn prepare(&self, empty: &Call<'_>) -> Result<(), StoreError> {
        let started = Instant::now();
        self.exchange(empty, Asking::Omitted)
            .await
            .map_err(StoreError::from)?;
        self.record_reply(started.elapsed());
        Ok(())
    }

    async fn exchange(&self, call: &Call<'_>, asking: Asking) -> Result<Value, Failure> {
        let connection = self.connection(call.wait().deadline()).await;
        let mut connection = connection.map_err(Failure::Unreachable)?;
        send(&mut connection, call, asking).await
    }

    /// Returns a healthy connection for a call with this deadline, and dials one if there is none.
    /// Sends nothing of the call.
    pub(crate) async fn connection(&self, deadline: Duration) -> Result<Connection, StoreError> {
        self.local()?.connection(deadline).await
    }

    /// Opens a connection outside of the pools.
    #[cfg(feature = "registry")]
    pub(crate) async fn dial(&self) -> Result<Connection, bb8_redis::redis::RedisError> {
        self.0.dialer.connect().await
    }

    /// Makes the next call use another connection, since this one replies slowly.
    pub(crate) fn discard(&self, connection: &Connection) {
        if let Ok(local) = self.local() {
            local.discard(connection);
        }
    }

    fn across_slots(&self) -> &AcrossSlots {
        &self.0.across_slots
    }

    /// Returns the time of decisions, unless the server's clock decides.
    pub(crate) fn injected(&self) -> Option<Timestamp> {
        self.0.clock.injected()
    }

    /// Returns the connections and the batch queue of the current runtime.
    pub(crate) fn local(&self) -> Result<Arc<RuntimeConnections>, StoreError> {
        self.0.pools.current(|runtime| {
            let node = Arc::downgrade(&self.0);
            let batch_queue = BatchQueue::new(move |start| {
                // A waiting caller keeps the node alive, so the upgrade succeeds.
                if let Some(node) = node.upgrade() {
                    runtime.spawn(async move { batch::execute(&Self(node), start).await });
                }
            });
            let failures = DialFailures::new(self.0.dialer.clone());
            RuntimeConnections::new(self.0.new_pool(&failures), failures, batch_queue)
        })
    }
}

/// A decision, which may be sent in a batch.
#[derive(Debug)]
pub(crate) struct DecideOperation<'a, 'r> {
    pub(crate) input: InputDraft<'a, 'r>,
    pub(crate) wait: CallDeadline,
}

impl NodeOperation for DecideOperation<'_, '_> {
    type Output = Verdict;

    fn slot(&self) -> u16 {
        let keys = &self.input.input().keys;
        slot(keys.first().map_or("", String::as_str))
    }

    fn wait(&self) -> &CallDeadline {
        &self.wait
    }

    fn execute(&self, node: &Node, part: BatchPart) -> impl Future<Output = Result<Verdict, Failure>> + Send {
        node.decide(part, &self.input, &self.wait)
    }
}

/// Sends a call of a script.
async fn send(connection: &mut Connection, call: &Call<'_>, asking: Asking) -> Result<Value, Failure> {
    let answer = connection.send(call.by_hash(), asking, call.wait()).await;
    match answer {
        // NOSCRIPT proves that nothing was executed.
        Err(error) if is_unknown(&error) => connection.send(call.by_text(), asking, call.wait()).await,
        answer => answer,
    }
    .map_err(Failure::Answered)
}

/// Returns the reason for which the server did not reply.
fn connection_error<T>(answer: &Result<T, Failure>) -> Option<StoreError> {
    match answer {
        Err(Failure::Unreachable(error)) => Some(error.clone()),
        Err(Failure::Answered(error)) if error.is_io_error() => Some(error.clone().into()),
        _ => None,
    }
}

fn circuit_open() -> Failure {
    let detail = "circuit breaker open: recent calls to Redis got no reply";
    Failure::Unreachable(StoreError::new(StoreErrorKind::CircuitOpen, detail))
}

fn missing_verdict() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "reply of the script has no verdict")
}

/// Writes the address.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.dialer.fmt(f)
    }
}

impl NodeInner {
    fn new_pool(&self, failures: &Arc<DialFailures>) -> Pool<Dialer> {
        Pool::builder()
            .max_size(self.settings.connections)
            .min_idle(Some(self.settings.connections))
            // Health is known without a command; connections do not degrade with age.
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            // Each call dials if no connection is left, and receives the error of its dial.
            .retry_connection(false)
            .error_sink(failures.sink())
            .connection_customizer(Box::new(BreakerNotifier(Arc::clone(&self.breaker))))
            .build_unchecked(self.dialer.clone())
    }
}

#[cfg(test)]
pub(crate) mod tests;
