//! The location of Redis, and the settings of its connections, caches and fallback.
//!
//! A deployment is converted to a route without a connection to a server. The conversion rejects
//! invalid URLs, and certificates that no connection would use. The debug output contains no
//! credentials.
//!
//! Tests: `tests/connections.rs`, `tests/tls.rs`, `tests/secrets.rs`.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;

use crate::error::ConfigError;
use crate::redis::Route;
use crate::redis::client::endpoint::{Endpoint, wants_tls};
pub(crate) use crate::redis::client::tls::Certificates;
use crate::redis::cluster::Cluster;
use crate::redis::node::Node;
pub(crate) use crate::redis::node::NodeSettings;
pub(crate) use crate::redis::secret_url::SecretUrl;
use crate::redis::topology::dialer::Dialer;
use crate::redis::topology::seed_nodes;
use crate::redis::topology::sentinel::Sentinel;
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

/// The settings of the caches, of the fallback and of the wait for permits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackendSettings {
    /// The number of replicas; `None` if Redis counts them.
    pub(crate) replicas: Option<NonZeroU32>,
    /// The maximum age of a cached denial.
    pub(crate) deny_cache: Duration,
    /// The maximum number of keys in each table of the local fallback.
    pub(crate) max_local_keys: usize,
    /// The maximum number of calls that wait for concurrency permits.
    pub(crate) max_waiting: usize,
}

impl Deployment {
    /// Returns the route to the servers; opens no connection.
    pub(super) fn into_route(self, clock: &Clock) -> Result<Route, ConfigError> {
        self.check()?;
        let (certificates, settings) = (&self.certificates, self.node);
        let server = |dialer| Route::Standalone(Node::new(dialer, settings, clock.clone()));
        Ok(match self.topology {
            Topology::Standalone(url) => server(Dialer::To(Endpoint::parse(&url, certificates)?)),
            Topology::Sentinel { sentinels, primary } => {
                let sentinel = Sentinel::new(&sentinels, &primary, certificates)?;
                server(Dialer::Primary(Arc::new(sentinel)))
            }
            Topology::Pool(pool) => server(Dialer::Through(pool)),
            Topology::Cluster(urls) => {
                let seeds = seed_nodes::parse(&urls, certificates)?;
                Route::Cluster(Cluster::new(seeds, settings, clock.clone())?)
            }
        })
    }

    /// Rejects certificates that no connection would use.
    fn check(&self) -> Result<(), ConfigError> {
        let urls: Vec<&SecretUrl> = match &self.topology {
            Topology::Standalone(url) => vec![url],
            Topology::Cluster(urls) => urls.iter().collect(),
            Topology::Sentinel { sentinels, primary } => [primary].into_iter().chain(sentinels).collect(),
            Topology::Pool(_) => Vec::new(),
        };
        if !self.certificates.is_configured() || urls.iter().any(|url| wants_tls(url)) {
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
