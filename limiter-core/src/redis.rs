//! The Redis store: a script decides, at the server's time, on the node that owns the slot.

pub(crate) mod call_deadline;
pub(crate) mod client;
pub(crate) mod compare_and_set;
pub(crate) mod deny_cache;
pub(crate) mod dispatch;
pub(crate) mod error_mapping;
mod eviction;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
pub(crate) mod heartbeat;
pub(crate) mod local_fallback;
pub(crate) mod outage_log;
pub(crate) mod pending_refunds;
pub(crate) mod preflight;
pub(crate) mod reconciler;
#[cfg(feature = "registry")]
pub(crate) mod registry_store;
pub(crate) mod replicas;
pub(crate) mod reservation_store;
pub(crate) mod script;
mod secret_url;
pub(crate) mod token_lease;
pub(crate) mod topology;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;

use crate::algorithm::Change;
use crate::error::{ConfigError, StoreError};
use crate::key::Namespace;
use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::connection::Dialer;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::node::Node;
pub(crate) use crate::redis::client::node::NodeSettings;
pub(crate) use crate::redis::client::tls::Certificates;
use crate::redis::dispatch::BatchPart;
use crate::redis::dispatch::operation::{DecideOperation, NodeOperation};
use crate::redis::eviction::Eviction;
pub(crate) use crate::redis::heartbeat::Heartbeat;
use crate::redis::reconciler::PermitReporter;
#[cfg(feature = "registry")]
pub(crate) use crate::redis::registry_store::{PublishOutcome, RegistryStore, Stored};
use crate::redis::script::Call;
use crate::redis::script::input::{InputDraft, Operation};
pub(crate) use crate::redis::secret_url::SecretUrl;
pub(crate) use crate::redis::token_lease::leased_limit::{LeaseReply, LeasedLimit, RedisTokenLender};
use crate::redis::topology::cluster::Cluster;
use crate::redis::topology::sentinel::Sentinel;
use crate::request::{DecisionRequest, RequestedLimit, Verdict};
use crate::support::clock::Clock;

/// The location of Redis.
#[derive(Clone)]
pub(crate) enum Topology {
    /// One server.
    Standalone(SecretUrl),
    /// Seed nodes of a cluster, through which the other nodes are discovered.
    Cluster(Vec<SecretUrl>),
    /// The primary that these sentinels monitor; its name replaces the host in its URL.
    Sentinel {
        sentinels: Vec<SecretUrl>,
        primary: SecretUrl,
    },
    /// An existing pool of the application; its manager opens the connections.
    Pool(Pool<RedisConnectionManager>),
}

/// Omits the manager of a pool, which contains credentials.
impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standalone(url) => f.debug_tuple("Standalone").field(url).finish(),
            Self::Cluster(urls) => f.debug_tuple("Cluster").field(urls).finish(),
            Self::Sentinel { sentinels, primary } => f
                .debug_struct("Sentinel")
                .field("sentinels", sentinels)
                .field("primary", primary)
                .finish(),
            Self::Pool(_) => f.write_str("Pool(..)"),
        }
    }
}

/// The location of Redis and the connection settings.
#[derive(Clone, Debug)]
pub(crate) struct Deployment {
    pub(crate) topology: Topology,
    pub(crate) certificates: Certificates,
    pub(crate) node: NodeSettings,
}

impl Deployment {
    /// Rejects certificates that no connection would use.
    fn check(&self) -> Result<(), ConfigError> {
        let urls: Vec<&SecretUrl> = match &self.topology {
            Topology::Standalone(url) => vec![url],
            Topology::Cluster(urls) => urls.iter().collect(),
            Topology::Sentinel { sentinels, primary } => [primary].into_iter().chain(sentinels).collect(),
            Topology::Pool(_) => Vec::new(),
        };
        if !self.certificates.is_configured()
            || urls
                .iter()
                .any(|url| crate::redis::client::endpoint::wants_tls(url))
        {
            return Ok(());
        }
        match urls.first() {
            Some(url) => Err(url.invalid("rediss://, since a certificate is given")),
            // A cluster without URLs is reported as an error of its own.
            None if !matches!(self.topology, Topology::Pool(_)) => Ok(()),
            None => Err(ConfigError::invalid(
                "certificate",
                "set for a pool",
                "a certificate in the pool's manager",
            )),
        }
    }
}

/// Deadline for the preparation of one node; the caller's deadline covers all nodes.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(5);

/// A store whose state is in Redis.
#[derive(Debug)]
pub(crate) struct RedisStore {
    pub(crate) route: Route,
    eviction: Eviction,
    pub(crate) namespace: Namespace,
    pub(crate) clock: Clock,
}

/// The route to the server that decides. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    Standalone(Node),
    Cluster(Cluster),
}

impl Route {
    pub(crate) async fn run<E: NodeOperation>(&self, operation: &E) -> Result<E::Output, StoreError> {
        match self {
            Self::Standalone(node) => Ok(operation.execute(node, BatchPart::default()).await?),
            Self::Cluster(cluster) => cluster.execute(operation).await,
        }
    }
}

impl RedisStore {
    pub(crate) fn new(
        deployment: Deployment,
        namespace: Namespace,
        clock: Clock,
    ) -> Result<Self, ConfigError> {
        deployment.check()?;
        let (certificates, settings) = (&deployment.certificates, deployment.node);
        let server = |dialer| Route::Standalone(Node::new(dialer, settings, clock.clone()));
        let route = match deployment.topology {
            Topology::Standalone(url) => server(Dialer::To(Endpoint::parse(&url, certificates)?)),
            Topology::Sentinel { sentinels, primary } => {
                let sentinel = Sentinel::new(&sentinels, &primary, certificates)?;
                server(Dialer::Primary(Arc::new(sentinel)))
            }
            Topology::Pool(pool) => server(Dialer::Through(pool)),
            Topology::Cluster(urls) => Route::Cluster(Cluster::new(
                crate::redis::topology::seed_nodes::parse(&urls, certificates)?,
                settings,
                clock.clone(),
            )?),
        };
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
    pub(crate) fn redis_key(&self, limit: &RequestedLimit<'_>) -> String {
        crate::redis::token_lease::leased_limit::key(limit, &self.namespace)
    }

    /// Returns the storage of detached reservations.
    pub(crate) fn reservations(&self) -> crate::redis::reservation_store::ReservationStore<'_> {
        crate::redis::reservation_store::ReservationStore::new(&self.route, &self.clock, &self.namespace)
    }

    /// Decides a request whose caller has waited since `started`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the request was charged; it is never charged twice.
    pub(crate) async fn decide_since(
        &self,
        started: Instant,
        request: &DecisionRequest<'_>,
    ) -> Result<Verdict, StoreError> {
        self.answer(request, request.mode.into(), started).await
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
        limit: &RequestedLimit<'_>,
        change: Change,
    ) -> Result<Verdict, StoreError> {
        let injected = self.clock.injected();
        let key = crate::redis::token_lease::leased_limit::key(limit, &self.namespace);
        let call = crate::redis::token_lease::leased_limit::apply_change(
            limit,
            change,
            key,
            injected,
            limit.policy.deadline(),
        );
        crate::redis::token_lease::leased_limit::changed(&self.route.run(&call).await?, limit, change)
    }

    /// Deletes the state of every limit of a request.
    pub(crate) async fn reset(&self, request: &DecisionRequest<'_>) -> Result<(), StoreError> {
        let reset = self.answer(request, Operation::Reset, Instant::now());
        reset.await.map(|_| ())
    }

    /// Connects to every node, loads the scripts of this module and `others`, and checks that the
    /// server permits their commands.
    pub(crate) async fn ready(
        &self,
        others: impl IntoIterator<Item = Call<'static>>,
    ) -> Result<(), StoreError> {
        let own = [
            crate::redis::script::wire::call(&[], None, READY_WITHIN),
            crate::redis::token_lease::leased_limit::nothing(READY_WITHIN),
        ];
        let scripts: Vec<_> = own.into_iter().chain(others).collect();
        let nodes = match &self.route {
            Route::Standalone(node) => vec![node.clone()],
            Route::Cluster(cluster) => cluster.primaries().await?,
        };
        for node in nodes {
            for nothing in &scripts {
                node.prepare(nothing).await?;
            }
            self.eviction.check_policy(&node).await;
        }
        crate::redis::preflight::try_out(&self.route, &self.namespace, &self.clock).await
    }
}

#[cfg(test)]
mod tests {
    use limiter_testing::RedisServer;

    use crate::algorithm::Mode;
    use crate::error::StoreErrorKind;
    use crate::policy::Policy;
    use crate::redis::script::input::ScriptInput;
    use crate::redis::*;
    use crate::request::LimitRequest;
    use crate::units::Timestamp;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn request<'a>(requests: impl IntoIterator<Item = LimitRequest<'a>>) -> DecisionRequest<'a> {
        DecisionRequest::new(requests, Mode::Charge, true).unwrap()
    }

    /// Runs several decisions in one call of the script, each on the keys that its limits' policies
    /// name.
    async fn run(
        server: &RedisServer,
        requests: &[&DecisionRequest<'_>],
    ) -> Vec<Result<Verdict, StoreError>> {
        let node = crate::redis::client::node::tests::node_of(server);
        let namespace = Namespace::new("", "");
        let inputs = requests.iter().map(|request| {
            let mut input = ScriptInput::new(request, Operation::Check, &namespace);
            let names = request.limits.iter().map(|limit| limit.policy.name().to_owned());
            input.keys = names.collect();
            input
        });
        let inputs: Vec<_> = inputs.collect();
        let items: Vec<_> = inputs.iter().map(|input| (input, 1)).collect();
        let call = crate::redis::script::wire::call(&items, Some(NOW), Duration::from_secs(5));
        let verdicts =
            crate::redis::script::reply::verdicts(&node.try_run(&call, false).await.unwrap(), &items)
                .unwrap();
        verdicts.into_iter().flatten().collect()
    }

    #[tokio::test]
    async fn unreadable_key_fails_only_its_own_decision() {
        let server = RedisServer::start();
        let bucket = |name: &str| Policy::token_bucket(name).capacity(5).rate(1).build().unwrap();
        let window = |name: &str| {
            Policy::sliding_window(name)
                .limit(5)
                .window("1m")
                .build()
                .unwrap()
        };
        let [good, list, text, other, out_of_range] =
            ["good", "list", "text", "other", "out_of_range"].map(bucket);
        let [ring, torn] = ["ring", "torn"].map(window);
        server.command(&["RPUSH", "list", "x"]);
        server.command(&["SET", "text", "not ours"]);
        server.command(&["SET", "torn", "\u{1}\u{3}"]);
        // The maximum `keep_until` of 2^53 + 1, which Lua rounds to 2^53 and would store again.
        let value = "struct.pack('<BBI8I8I8I8', 1, 1, 1000, 0, 0, 1) .. '\\1\\0\\0\\0\\0\\0\\32\\0'";
        server.command(&[
            "EVAL",
            &format!("redis.call('SET', 'out_of_range', {value})"),
            "0",
        ]);

        let ask = |policy| request([LimitRequest::new(policy, "k")]);
        let several = request([
            LimitRequest::new(&other, "k"),
            LimitRequest::new(&ring, "k"),
            LimitRequest::new(&list, "k"),
        ]);
        let (first, second, third, fourth) = (ask(&good), ask(&list), ask(&text), ask(&torn));
        let fifth = ask(&out_of_range);
        let verdicts = run(
            &server,
            &[&first, &second, &several, &third, &fourth, &fifth, &first],
        )
        .await;

        let results: Vec<_> = verdicts
            .iter()
            .map(|verdict| match verdict {
                Ok(verdict) => Ok(verdict
                    .outcomes
                    .iter()
                    .map(|outcome| outcome.remaining)
                    .collect::<Vec<_>>()),
                Err(error) => Err(error.kind()),
            })
            .collect();
        let (wrong, unknown) = (Err(StoreErrorKind::WrongType), Err(StoreErrorKind::UnknownLayout));
        // The same key twice: the second decision sees what the first has charged.
        assert_eq!(
            results,
            [
                Ok(vec![4_000]),
                wrong.clone(),
                wrong,
                unknown.clone(),
                unknown.clone(),
                unknown,
                Ok(vec![3_000])
            ]
        );
        assert_eq!(
            server.command(&["EXISTS", "other", "ring"]).integer(),
            0,
            "a failed decision charges nothing"
        );
        assert_eq!(server.command(&["GET", "text"]).text(), "not ours");
    }

    #[tokio::test]
    async fn batch_decides_as_single_calls() {
        let server = RedisServer::start();
        let bucket = Policy::token_bucket("b").capacity(3).rate(1).build().unwrap();
        let ring = Policy::sliding_window("r").limit(2).window("1m").build().unwrap();
        let both = request([LimitRequest::new(&bucket, "k"), LimitRequest::new(&ring, "k")]);
        let alone = request([LimitRequest::new(&bucket, "k")]);
        let verdicts = run(&server, &[&both, &both, &both, &alone, &alone]).await;
        let allowed: Vec<bool> = verdicts
            .iter()
            .map(|verdict| verdict.as_ref().unwrap().outcomes.iter().all(|o| o.fits))
            .collect();
        assert_eq!(allowed, [true, true, false, true, false]);
        assert!(
            verdicts
                .iter()
                .all(|verdict| verdict.as_ref().unwrap().decided_at == NOW)
        );
    }
}
