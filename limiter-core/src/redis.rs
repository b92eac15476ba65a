//! The Redis store, and the route to the server that decides: a script decides, at the server's
//! time, on the node that owns the slot.
//!
//! [`RedisStore`] sends the operations; [`RedisBackend`] puts the deny cache and the leases in
//! front of it and the local fallback behind it. Other modules use these two and the sub-modules
//! `permit_leases`, `registry_store`, `settings` and `usage`; the rest is private.
//!
//! Invariant: a decision that may have run is never repeated; only errors that prove that nothing
//! ran are followed. Tests: `redis/tests.rs`, `tests/contract`, `tests/differential.rs`.

mod backend;
mod client;
mod cluster;
mod compare_and_set;
mod converted_limits;
mod denial_window;
mod deny_cache;
mod dispatch;
mod error_mapping;
mod eviction;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod heartbeat;
mod holder_lease;
mod local_fallback;
mod node;
mod outage_log;
mod pending_refunds;
pub(crate) mod permit_leases;
mod preflight;
mod reconciler;
#[cfg(feature = "registry")]
pub(crate) mod registry_store;
mod replicas;
mod reservation_store;
mod script;
mod secret_url;
pub(crate) mod settings;
mod token_lease;
mod topology;
pub(crate) mod usage;

use std::time::{Duration, Instant};

use crate::algorithm::UsageCorrection;
use crate::error::{ConfigError, StoreError};
use crate::key::Namespace;
pub(crate) use crate::redis::backend::RedisBackend;
use crate::redis::cluster::Cluster;
use crate::redis::compare_and_set::StateStore;
use crate::redis::dispatch::BatchPart;
use crate::redis::eviction::Eviction;
use crate::redis::heartbeat::Heartbeat;
use crate::redis::node::{DecideOperation, Node, NodeOperation};
use crate::redis::preflight::check_permissions;
use crate::redis::reconciler::PermitReporter;
#[cfg(feature = "registry")]
use crate::redis::registry_store::{RegistryStore, SubscriberStore};
use crate::redis::reservation_store::ReservationStore;
use crate::redis::script::Call;
use crate::redis::script::wire::{self, InputDraft, Operation};
use crate::redis::settings::Deployment;
use crate::redis::token_lease::leased_limit::{self, RedisTokenLender};
use crate::redis::usage::UsageStore;
use crate::request::{DecisionRequest, ValidatedLimit, Verdict};
use crate::support::clock::Clock;
use crate::support::real_time::CallDeadline;

/// The hash tag of the keys of test decisions. In a cluster, a number follows.
const PREFLIGHT_TAG: &str = "ready";
/// Deadline for the preparation of one node; the caller's deadline covers all nodes.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// The route to the server that decides. Cheap to clone.
#[derive(Clone, Debug)]
enum Route {
    Standalone(Node),
    Cluster(Cluster),
}

impl Route {
    pub(crate) async fn run<E: NodeOperation>(&self, operation: &E) -> Result<E::Output, StoreError> {
        match self {
            Self::Standalone(node) => Ok(operation.execute(node, BatchPart::default()).await?),
            // On the heap, so that the future of other decisions stays small: see the test
            // `query_fits_small_allocation`.
            Self::Cluster(cluster) => Box::pin(cluster.execute(operation)).await,
        }
    }
}

/// A store whose state is in Redis.
#[derive(Debug)]
pub(crate) struct RedisStore {
    route: Route,
    eviction: Eviction,
    pub(crate) namespace: Namespace,
    pub(crate) clock: Clock,
}

impl RedisStore {
    pub(crate) fn new(
        deployment: Deployment,
        namespace: Namespace,
        clock: Clock,
    ) -> Result<Self, ConfigError> {
        let route = deployment.into_route(&clock)?;
        Ok(Self {
            route,
            eviction: Eviction::default(),
            namespace,
            clock,
        })
    }

    /// Returns the heartbeat that counts the replicas of the namespace.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        Heartbeat::new(
            self.route.clone(),
            self.clock.clone(),
            self.namespace.replicas_key(),
        )
    }

    /// Returns the access to the registry of the namespace.
    #[cfg(feature = "registry")]
    pub(crate) fn registry_store(&self) -> RegistryStore {
        RegistryStore::new(
            self.route.clone(),
            self.clock.clone(),
            self.namespace.registry_key(),
        )
    }

    /// Returns the register of the processes that follow the registry.
    #[cfg(feature = "registry")]
    pub(crate) fn subscriber_store(&self) -> SubscriberStore {
        SubscriberStore::new(
            self.route.clone(),
            self.clock.clone(),
            self.namespace.subscribers_key(),
        )
    }

    /// Returns the access to the usage of the namespace.
    pub(crate) fn usage_store(&self) -> UsageStore {
        let namespace = self.namespace.clone();
        UsageStore::new(self.route.clone(), self.clock.clone(), namespace)
    }

    /// Returns the lender from which this replica leases tokens.
    pub(crate) fn lender(&self) -> RedisTokenLender {
        let namespace = self.namespace.clone();
        RedisTokenLender::new(self.route.clone(), self.clock.clone(), namespace)
    }

    /// Reports permits that this replica admitted while Redis was unavailable.
    pub(crate) fn permit_reporter(&self) -> PermitReporter {
        PermitReporter {
            route: self.route.clone(),
            clock: self.clock.clone(),
            namespace: self.namespace.clone(),
        }
    }

    /// Returns the name of the key that contains a limit's state.
    pub(crate) fn redis_key(&self, limit: &ValidatedLimit<'_>) -> String {
        leased_limit::key(limit, &self.namespace)
    }

    /// Returns the access to the stored values of limits.
    pub(crate) fn states(&self) -> StateStore<'_> {
        StateStore::new(&self.route, &self.clock, &self.namespace)
    }

    /// Returns the storage of detached reservations.
    pub(crate) fn reservations(&self) -> ReservationStore<'_> {
        ReservationStore::new(&self.route, &self.clock, &self.namespace)
    }

    /// Decides a request whose caller has waited since `started`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the request was charged; it is never charged twice.
    // No future of its own, which would store the arguments twice.
    pub(crate) fn decide_since(
        &self,
        started: Instant,
        request: &DecisionRequest<'_>,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        self.answer(request, request.mode.into(), started)
    }

    /// Runs the script for one request, on the node that owns its slot.
    async fn answer(
        &self,
        request: &DecisionRequest<'_>,
        operation: Operation,
        started: Instant,
    ) -> Result<Verdict, StoreError> {
        let decision = DecideOperation {
            input: InputDraft::new(request, operation, &self.namespace),
            wait: CallDeadline::since(started, request.deadline()),
        };
        self.route.run(&decision).await
    }

    /// Decides a request whose caller starts to wait now.
    ///
    /// # Cancel safety
    ///
    /// As [`decide_since`](Self::decide_since).
    pub(crate) async fn decide(&self, request: &DecisionRequest<'_>) -> Result<Verdict, StoreError> {
        self.decide_since(Instant::now(), request).await
    }

    /// Refunds the cost of a limit, at most its usage, or charges it even if too little is left.
    ///
    /// # Cancel safety
    ///
    /// As [`decide_since`](Self::decide_since).
    pub(crate) async fn change(
        &self,
        limit: &ValidatedLimit<'_>,
        change: UsageCorrection,
    ) -> Result<Verdict, StoreError> {
        let injected = self.clock.injected();
        let key = leased_limit::key(limit, &self.namespace);
        let call = leased_limit::apply_change(limit, change, key, injected, limit.policy.deadline());
        leased_limit::changed(&self.route.run(&call).await?, limit, change)
    }

    /// Deletes the state of every limit of a request.
    pub(crate) async fn reset(&self, request: &DecisionRequest<'_>) -> Result<(), StoreError> {
        let reset = self.answer(request, Operation::Reset, Instant::now());
        reset.await.map(|_| ())
    }

    /// Connects to every primary, loads the scripts of decisions and refunds and `others`, and
    /// checks that the primary permits the commands of decisions and refunds.
    pub(crate) async fn ready(
        &self,
        others: impl IntoIterator<Item = Call<'static>>,
    ) -> Result<(), StoreError> {
        let own = [
            wire::call(&[], None, READY_WITHIN),
            leased_limit::nothing(READY_WITHIN),
        ];
        let scripts: Vec<_> = own.into_iter().chain(others).collect();
        let (nodes, tags) = match &self.route {
            Route::Standalone(node) => (vec![node.clone()], vec![PREFLIGHT_TAG.to_owned()]),
            Route::Cluster(cluster) => (cluster.primaries().await?, cluster.tags(PREFLIGHT_TAG)),
        };
        for node in nodes {
            for nothing in &scripts {
                node.prepare(nothing).await?;
            }
            self.eviction.check_policy(&node).await;
        }
        for tag in tags {
            check_permissions(self, &tag).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
