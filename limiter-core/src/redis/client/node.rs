//! One Redis server, and the connections to it.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "registry")]
use bb8_redis::bb8::ManageConnection as _;
use bb8_redis::bb8::{CustomizeConnection, Pool, RunError};
use bb8_redis::redis::{RedisError, Value};

use crate::error::{StoreError, StoreErrorKind};
use crate::observe;
use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::breaker::{Breaker, Pass};
use crate::redis::client::connection::{Connection, Dialer};
use crate::redis::client::dial_failures::DialFailures;
use crate::redis::client::pools::{RuntimeConnections, RuntimePools};
use crate::redis::dispatch::in_flight::{InFlightLimit, InFlightSlot};
use crate::redis::dispatch::{Admission, BatchPart, BatchQueue, InFlightBatch, batch};
use crate::redis::script::input::{LazyInput, ScriptInput};
use crate::redis::script::reply::Replies;
use crate::redis::script::wire::Item;
use crate::redis::script::{Call, is_unknown, reply, wire};
use crate::request::Verdict;
use crate::support::clock::{Clock, LogThrottle};
use crate::units::Timestamp;

/// One server. Cheap to clone.
///
/// A call takes a clone of a connection from the pool and gives the connection back before it sends
/// anything, so that no call waits for another's answer.
#[derive(Clone, Debug)]
pub(crate) struct Node(Arc<NodeInner>);

#[derive(Debug)]
struct NodeInner {
    dialer: Dialer,
    settings: NodeSettings,
    /// Tells the time of decisions, where it is not the server's.
    pub(crate) clock: Clock,
    pools: RuntimePools,
    failures: Arc<DialFailures>,
    breaker: Arc<Breaker>,
    told_out: LogThrottle,
    told_back: LogThrottle,
    /// A server that is slow must not gather calls without end: they would all wait for their
    /// deadlines.
    in_flight: InFlightLimit,
}

/// How a node is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSettings {
    /// Connections that are kept.
    pub(crate) connections: u32,
    /// Calls that may be on their way at once.
    pub(crate) max_in_flight: u32,
}

/// Why a call got no answer from a node.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nothing was sent.
    Unreachable(StoreError),
    /// The server, or the connection, answered with an error.
    Answered(RedisError),
    /// The script answered that this decision cannot be made, or something unreadable.
    Undecided(StoreError),
}

impl Node {
    pub(crate) fn new(dialer: Dialer, settings: NodeSettings, clock: Clock) -> Self {
        let breaker = Arc::new(Breaker::for_server(&dialer));
        Self(Arc::new(NodeInner {
            dialer,
            settings,
            clock,
            pools: RuntimePools::default(),
            failures: Arc::new(DialFailures::default()),
            breaker,
            told_out: LogThrottle::default(),
            told_back: LogThrottle::default(),
            in_flight: InFlightLimit::new(settings.max_in_flight),
        }))
    }

    /// Has a question decided, together with those that others ask meanwhile.
    pub(crate) async fn decide(
        &self,
        part: BatchPart,
        question: &impl LazyInput,
        wait: &CallDeadline,
    ) -> Result<Verdict, Failure> {
        let _place = self.place()?;
        let local = self.local().map_err(Failure::Unreachable)?;
        match local.lane.enter(part, question, *wait) {
            // On the heap, so that the futures of those who wait, of which there may be many, stay
            // small and are moved fast.
            Admission::Alone(slot) => {
                Box::pin(async move {
                    let verdicts = self.decide_alone(slot, part, question.question(), 1, wait);
                    let verdict = verdicts.await?.into_iter().next();
                    verdict
                        .unwrap_or_else(|| Err(no_verdict()))
                        .map_err(Failure::Undecided)
                })
                .await
            }
            Admission::Waits(told) => told.await.unwrap_or_else(|_| Err(nobody_answers())),
        }
    }

    /// Has a question decided so many times in a row, by a call of its own.
    pub(crate) async fn decide_alone(
        &self,
        slot: InFlightBatch,
        part: BatchPart,
        question: &ScriptInput,
        times: usize,
        wait: &CallDeadline,
    ) -> Result<Replies, Failure> {
        let items: [Item<'_>; 1] = [(question, times)];
        // The caller may have been sent here by another node: his time began before.
        let call = wire::call(&items, self.injected(), wait.deadline()).with_deadline(*wait);
        observe::batch(1);
        let reply = self.run_alone(&call, part.asking).await?;
        slot.answered();
        drop(slot);
        let verdicts = reply::verdicts(&reply, &items).map_err(Failure::Undecided)?;
        let verdicts = verdicts.into_iter().next();
        verdicts.ok_or_else(|| Failure::Undecided(no_verdict()))
    }

    /// Runs a script, unless the breaker is open or too many calls are in flight; `asking` on
    /// behalf of a slot that is moving here.
    pub(crate) async fn try_run(&self, call: &Call<'_>, asking: bool) -> Result<Value, Failure> {
        let _place = self.place()?;
        self.run_alone(call, asking).await
    }

    async fn run_alone(&self, call: &Call<'_>, asking: bool) -> Result<Value, Failure> {
        let mut pass = Some(self.admit()?);
        let overdue = || self.failed(pass.take(), None);
        let exchange = pin!(self.exchange(call, asking));
        let answer = call.wait().for_answer(exchange, overdue).await;
        match &answer {
            Err(Failure::Unreachable(error)) => self.failed(pass, Some(error)),
            Err(Failure::Answered(error)) if error.is_io_error() => {
                self.failed(pass, Some(&error.clone().into()));
            }
            _ => self.answered(pass),
        }
        answer
    }

    /// A place among the calls that may be on their way.
    pub(crate) fn place(&self) -> Result<InFlightSlot<'_>, Failure> {
        let places = &self.0.in_flight;
        places.try_acquire().ok_or_else(|| {
            let detail = format!(
                "{} calls are on their way to Redis at {} already",
                places.most(),
                self.0.dialer
            );
            Failure::Unreachable(StoreError::new(StoreErrorKind::Overloaded, detail))
        })
    }

    /// Lets something be sent, unless the breaker is open.
    pub(crate) fn admit(&self) -> Result<Pass<'_>, Failure> {
        self.0.breaker.admit(Instant::now()).ok_or_else(|| {
            let detail = "circuit breaker open: recent calls to Redis got no reply";
            Failure::Unreachable(StoreError::new(StoreErrorKind::CircuitOpen, detail))
        })
    }

    pub(crate) fn answered(&self, pass: Option<Pass<'_>>) {
        if pass.is_some_and(Pass::answered) && self.0.told_back.is_due(Clock::System.now()) {
            tracing::info!(node = %self, "Redis answers again; circuit breaker closed");
        }
    }

    /// The server answers, be it late for some.
    pub(crate) fn on_success(&self) {
        self.0.breaker.on_success();
    }

    /// A call got no answer: for this reason, or because its time was over.
    pub(crate) fn failed(&self, pass: Option<Pass<'_>>, reason: Option<&StoreError>) {
        let opened = pass.is_some_and(|pass| pass.failed(Instant::now()));
        if !opened || !self.0.told_out.is_due(Clock::System.now()) {
            return;
        }
        match reason {
            // It may be there, and refuse the login.
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

    /// Connects, and has the script run once without keys, so that the server knows it and the
    /// permissions are known to suffice.
    pub(crate) async fn prepare(&self, empty: &Call<'_>) -> Result<(), StoreError> {
        self.exchange(empty, false)
            .await
            .map(|_| ())
            .map_err(StoreError::from)
    }

    async fn exchange(&self, call: &Call<'_>, asking: bool) -> Result<Value, Failure> {
        let mut connection = self
            .connection(call.wait().deadline())
            .await
            .map_err(Failure::Unreachable)?;
        let answer = connection.send(call.by_hash(), asking, call.wait()).await;
        match answer {
            // Proof that nothing has run.
            Err(error) if is_unknown(&error) => connection.send(call.by_text(), asking, call.wait()).await,
            answer => answer,
        }
        .map_err(Failure::Answered)
    }

    /// A connection for a call of this deadline, dialled if there is no healthy one. Nothing of the
    /// call is sent yet.
    pub(crate) async fn connection(&self, deadline: Duration) -> Result<Connection, StoreError> {
        let local = self.local()?;
        match local.in_use(deadline) {
            Some(connection) => Ok(connection),
            // On the heap, since it is needed once in a while, and every call's future would have
            // room for it.
            None => Box::pin(self.another_connection(&local, deadline)).await,
        }
    }

    async fn another_connection(
        &self,
        local: &RuntimeConnections,
        deadline: Duration,
    ) -> Result<Connection, StoreError> {
        loop {
            // Registered before the pool is asked, so that a failure in between is not missed.
            let failed = self.0.failures.next();
            tokio::pin!(failed);
            failed.as_mut().enable();
            let connection = tokio::select! {
                biased;
                connection = local.pool.get() => connection.map_err(|error| match error {
                    RunError::User(error) => StoreError::from(error).unsent(),
                    RunError::TimedOut => StoreError::new(StoreErrorKind::Timeout, "timed out waiting for a connection").unsent(),
                })?,
                () = failed => return Err(self.0.failures.last(&self.0.dialer).unsent()),
            };
            // A broken one leaves the pool as it is dropped.
            if connection.is_healthy(deadline) {
                local.switch_to(connection.clone());
                return Ok(connection.clone());
            }
        }
    }

    /// A connection that is in no pool.
    #[cfg(feature = "registry")]
    pub(crate) async fn dial(&self) -> Result<Connection, RedisError> {
        self.0.dialer.connect().await
    }

    /// Has the next call use another connection, since this one is slow to answer.
    pub(crate) fn discard(&self, connection: &Connection) {
        if let Ok(local) = self.local() {
            local.discard(connection);
        }
    }

    /// The moment of decisions, where it is not the server's.
    pub(crate) fn injected(&self) -> Option<Timestamp> {
        self.0.clock.injected()
    }

    /// What the current runtime has of this node.
    pub(crate) fn local(&self) -> Result<Arc<RuntimeConnections>, StoreError> {
        self.0.pools.current(|runtime| {
            let node = Arc::downgrade(&self.0);
            let lane = BatchQueue::new(move |start| {
                // Whoever waits has the node, so it is there.
                if let Some(node) = node.upgrade() {
                    runtime.spawn(async move { batch::execute(&Self(node), start).await });
                }
            });
            RuntimeConnections::new(self.0.new_pool(), lane)
        })
    }
}

fn no_verdict() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "reply of the script has no verdict")
}

/// Who was to give the answer is gone.
pub(crate) fn nobody_answers() -> Failure {
    let detail = "the Tokio runtime of the request has ended";
    Failure::Unreachable(StoreError::new(StoreErrorKind::Connection, detail))
}

/// Where it is.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.dialer.fmt(f)
    }
}

impl NodeInner {
    fn new_pool(&self) -> Pool<Dialer> {
        Pool::builder()
            .max_size(self.settings.connections)
            .min_idle(Some(self.settings.connections))
            // Health is known without asking; connections have no age at which they get worse.
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            // Each call dials anew where none is left, and learns at once why it failed.
            .retry_connection(false)
            .error_sink(self.failures.sink())
            .connection_customizer(Box::new(Connected(Arc::clone(&self.breaker))))
            .build_unchecked(self.dialer.clone())
    }
}

/// Tells the breaker of each new connection.
#[derive(Debug)]
struct Connected(Arc<Breaker>);

impl CustomizeConnection<Connection, RedisError> for Connected {
    fn on_acquire<'a>(
        &'a self,
        _connection: &'a mut Connection,
    ) -> Pin<Box<dyn Future<Output = Result<(), RedisError>> + Send + 'a>> {
        self.0.connected(Instant::now());
        Box::pin(std::future::ready(Ok(())))
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(error) | Failure::Undecided(error) => error,
            Failure::Answered(error) => error.into(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
