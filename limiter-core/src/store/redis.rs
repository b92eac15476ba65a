//! The store in Redis: one script decides, at the server's time, on whichever node owns the slot.

mod cluster;
mod connection;
mod node;
mod script;
mod wire;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;

use super::{Store, Verdict};
use crate::clock::Clock;
use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::key::Namespace;
use crate::limiter::request::Request;
use cluster::Cluster;
use connection::Dialer;
use node::Node;
use script::Call;
use wire::Operation;

/// Where Redis is.
#[derive(Clone, Debug)]
pub(crate) enum Topology {
    /// One server.
    Standalone(String),
    /// Nodes of a cluster, through which the others are found.
    Cluster(Vec<String>),
    /// A pool of the application's, whose manager dials for us.
    Pool(Pool<RedisConnectionManager>),
}

/// State in Redis.
#[derive(Debug)]
pub(crate) struct RedisStore {
    route: Route,
    namespace: Namespace,
    clock: Clock,
}

#[derive(Debug)]
enum Route {
    Standalone(Node),
    Cluster(Cluster),
}

impl RedisStore {
    pub(crate) fn new(
        topology: Topology,
        namespace: Namespace,
        clock: Clock,
        connections: u32,
    ) -> Result<Self, ConfigError> {
        let route = match topology {
            Topology::Standalone(url) => Route::Standalone(Node::new(Dialer::to(&url)?, connections)),
            Topology::Pool(pool) => Route::Standalone(Node::new(Dialer::through(pool), connections)),
            Topology::Cluster(urls) => Route::Cluster(Cluster::new(&urls, connections)?),
        };
        Ok(Self {
            route,
            namespace,
            clock,
        })
    }

    /// Has one request answered by the script, on the node that owns its slot.
    async fn answer(&self, request: &Request<'_>, operation: Operation) -> Result<Verdict, StoreError> {
        let keys = request.limits.iter().map(|limit| {
            let policy = limit.policy;
            self.namespace.redis_key(
                policy.algorithm().code(),
                policy.escaped_name(),
                limit.group(),
                &limit.key,
            )
        });
        let plan = wire::plan(&[(request, operation)], self.clock.injected());
        let call = Call::new(keys.collect(), plan, request.deadline());
        let reply = match &self.route {
            Route::Standalone(node) => node.run(&call).await?,
            Route::Cluster(cluster) => cluster.run(&call).await?,
        };
        let mut verdicts = wire::verdicts(&reply, &[request.limits.len()])?;
        verdicts.pop().unwrap_or_else(|| {
            Err(StoreError::new(
                StoreErrorKind::Protocol,
                "a reply without a verdict",
            ))
        })
    }
}

impl Store for RedisStore {
    async fn decide(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        self.answer(request, request.mode.into()).await
    }

    async fn reset(&self, request: &Request<'_>) -> Result<(), StoreError> {
        self.answer(request, Operation::Reset).await.map(|_| ())
    }

    async fn ready(&self) -> Result<(), StoreError> {
        match &self.route {
            Route::Standalone(node) => node.prepare().await,
            Route::Cluster(cluster) => cluster.prepare().await,
        }
    }
}
