//! Builds limiters whose state lives in Redis.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;

use crate::backend::Backend;
use crate::backend::redis::RedisBackend;
use crate::error::ConfigError;
use crate::key::Namespace;
use crate::limiter::Limiter;
use crate::limiter::builder::MAX_WAITING;
use crate::policy::{Enforcement, check_text};
use crate::redis::replicas::Replicas;
use crate::redis::{Certificates, Deployment, NodeSettings, RedisStore, SecretUrl, Topology};
use crate::registry::lookup::PolicyLookup;
use crate::registry::{OnUnknownPolicy, PolicyRegistry};
use crate::support::clock::{Clock, ManualClock};

const MAX_PREFIX_BYTES: usize = 64;

/// How long a reset elsewhere may remain unseen by a caller who is denied.
const DENY_CACHE: Duration = Duration::from_secs(1);

/// Builds a [`Limiter`] whose state lives in Redis. Made by [`Limiter::redis`],
/// [`Limiter::redis_cluster`], [`Limiter::redis_sentinel`] and [`Limiter::redis_pool`].
///
/// `Debug` and the errors of [`build`](Self::build) show no credentials: of a malformed URL they
/// show at most the scheme, since a password may be anywhere in it.
#[derive(Clone, Debug)]
#[must_use = "a limiter exists once `build` has returned it"]
pub struct RedisBuilder {
    deployment: Deployment,
    namespace: Option<String>,
    prefix: String,
    clock: Clock,
    any_groups: bool,
    replicas: Option<u32>,
    deny_cache: Duration,
    max_local_keys: usize,
    max_waiting: usize,
    names: PolicyLookup,
    enforcement: Option<Enforcement>,
}

impl RedisBuilder {
    fn new(topology: Topology) -> Self {
        let prefix = String::new();
        let deployment = Deployment {
            topology,
            certificates: Certificates::default(),
            node: NodeSettings {
                connections: 2,
                max_in_flight: 4_096,
            },
        };
        Self {
            deployment,
            namespace: None,
            prefix,
            clock: Clock::System,
            any_groups: false,
            replicas: None,
            deny_cache: DENY_CACHE,
            max_local_keys: 100_000,
            max_waiting: MAX_WAITING,
            names: PolicyLookup::default(),
            enforcement: None,
        }
    }

    pub(in crate::limiter) fn standalone(url: String) -> Self {
        Self::new(Topology::Standalone(url.into()))
    }

    pub(in crate::limiter) fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self::new(Topology::Cluster(SecretUrl::list(urls)))
    }

    pub(in crate::limiter) fn sentinel<U: Into<String>>(
        sentinels: impl IntoIterator<Item = U>,
        primary: String,
    ) -> Self {
        Self::new(Topology::Sentinel {
            sentinels: SecretUrl::list(sentinels),
            primary: primary.into(),
        })
    }

    pub(in crate::limiter) fn pool(pool: Pool<RedisConnectionManager>) -> Self {
        Self::new(Topology::Pool(pool))
    }

    /// Whose limits these are, such as `prod:checkout`: the first part of every Redis key, where
    /// what is not plain ASCII stands as `%20` does in URLs. Required. Replicas with the same
    /// namespace share their limits.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        Self {
            namespace: Some(namespace.into()),
            ..self
        }
    }

    /// Text in front of the namespace in every Redis key, as it stands, for servers that demand one
    /// (`~team:*` in an ACL). Prefix and namespace together tell whose limits these are. Printable,
    /// without braces, at most 64 bytes. Default: none.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            ..self
        }
    }

    /// Takes the time from a clock that a test moves, in place of the server's. Keys then live for
    /// an hour or longer, since the server expires them by a clock of its own. Default: the
    /// server's clock.
    pub fn clock(self, clock: &ManualClock) -> Self {
        Self {
            clock: Clock::Manual(clock.clone()),
            ..self
        }
    }

    /// Allows limits of different groups in one decision, which no cluster could decide. Default:
    /// refused.
    pub fn standalone_only(self) -> Self {
        Self {
            any_groups: true,
            ..self
        }
    }

    /// How many connections are kept to each node, by each runtime that uses it. One carries all
    /// calls, in order of arrival; the others stand by, and carry on when it is slow to answer or
    /// has to be dialled anew. Default: 2.
    pub fn connections(mut self, connections: u32) -> Self {
        self.deployment.node.connections = connections;
        self
    }

    /// How many calls may be on their way to one node at once. One more is not sent: the store gave
    /// no decision ([`StoreErrorKind::Overloaded`](crate::StoreErrorKind::Overloaded)), and the
    /// policy says what that means. Default: 4,096.
    ///
    /// Where a policy says [`Local`](crate::OnStoreFailure::Local), too small a number adds this
    /// replica's share to what Redis admits.
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.deployment.node.max_in_flight = calls;
        self
    }

    /// How many calls may wait for permits at once, in all queues of this process together. One
    /// more is told so ([`StoreErrorKind::Overloaded`](crate::StoreErrorKind::Overloaded)).
    /// Default: 10,000.
    pub fn max_waiting(self, calls: usize) -> Self {
        Self {
            max_waiting: calls,
            ..self
        }
    }

    /// For how long at most a denial is answered in this process again, without asking Redis, to
    /// calls under the same limits for the same cost or more. Default: one second. Zero asks Redis
    /// each time.
    ///
    /// Such a call is denied until the `retry_after` that Redis named, and told what Redis would
    /// tell; its [`Origin`](crate::Origin) says `DenyCache`. A reset through this limiter or its
    /// clones, and a policy that changed, are seen at once; a reset by another replica, which gives
    /// permits back sooner than Redis said, after so long at most. In a window, where only Redis
    /// knows when the permits for a larger cost come back, that is asked for.
    ///
    /// Of 65,536 limits it is known at most that they deny; the others are asked for. With a
    /// [`clock`](Self::clock) that a test moves, it is that clock that measures the time.
    pub fn deny_cache(self, at_most: Duration) -> Self {
        Self {
            deny_cache: at_most,
            ..self
        }
    }

    /// How many replicas share the limits, for
    /// [`OnStoreFailure::Local`](crate::OnStoreFailure::Local). Default: they are counted in Redis.
    /// Give it where replicas may start while Redis is out, since one that was never told how many
    /// there are counts itself alone.
    pub fn replicas(self, replicas: u32) -> Self {
        Self {
            replicas: Some(replicas),
            ..self
        }
    }

    /// The certificates, in PEM, of the authorities that sign for the servers, for `rediss://`
    /// URLs. Default: those that the system trusts, which these replace.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.deployment.certificates.roots = Some(pem.into());
        self
    }

    /// The certificate, in PEM and with what leads to its authority, that servers are shown which
    /// ask for one, and its private key. Default: none.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.deployment.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// The approximate number of keys in each table that is kept in this process for
    /// [`OnStoreFailure::Local`](crate::OnStoreFailure::Local): keys that it limits while Redis is
    /// unavailable, keys whose permits it has yet to report to Redis, and keys whose remaining
    /// permits in Redis it knows. A new key beyond the first table is rejected with
    /// [`StoreErrorKind::Full`](crate::StoreErrorKind::Full), and permits of one beyond the second
    /// are not reported. One beyond the third replaces a key that was used longest ago, which then
    /// starts with a whole share. Default: 100,000.
    pub fn max_local_keys(self, max_keys: usize) -> Self {
        Self {
            max_local_keys: max_keys,
            ..self
        }
    }

    names_of_policies!();

    /// Whether decisions are obeyed, until [`Limiter::set_enforcement`] says otherwise. Default:
    /// what the environment variable [`LIMITER_ENFORCEMENT`](Enforcement::ENV) says when the
    /// limiter is built, else [`Enforcement::Enforce`].
    pub fn enforcement(self, enforcement: Enforcement) -> Self {
        Self {
            enforcement: Some(enforcement),
            ..self
        }
    }

    /// The limiter. Dials nothing: it succeeds while Redis is down.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when the namespace is missing, a URL is malformed, no connections are
    /// allowed, or limits without a common group are to be decided in a cluster, or when the
    /// environment's [`LIMITER_ENFORCEMENT`](Enforcement::ENV) is none of its words and
    /// [`enforcement`](Self::enforcement) says nothing. With a `rediss://` URL and no
    /// `root_certificate` it reads the system's certificates, which blocks, and fails if there is
    /// none.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let namespace = self.namespace.ok_or(ConfigError::Missing { what: "namespace" })?;
        check_text("namespace", &namespace)?;
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        if self.prefix.len() > MAX_PREFIX_BYTES || !self.prefix.bytes().all(plain) {
            let expected = format!("at most {MAX_PREFIX_BYTES} printable ASCII bytes without braces");
            return Err(ConfigError::invalid("prefix", &self.prefix, expected));
        }
        for (what, value) in [
            ("connections", self.deployment.node.connections),
            ("max_in_flight", self.deployment.node.max_in_flight),
            ("replicas", self.replicas.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(ConfigError::invalid(what, value, "at least 1"));
            }
        }
        if self.any_groups && matches!(self.deployment.topology, Topology::Cluster(_)) {
            return Err(ConfigError::invalid(
                "standalone_only",
                "a cluster",
                "a standalone server",
            ));
        }
        let enforcement = match self.enforcement {
            Some(enforcement) => enforcement,
            None => Enforcement::from_environment()?.unwrap_or_default(),
        };
        let namespace = Namespace::new(&self.prefix, &namespace);
        let store = RedisStore::new(self.deployment, namespace, self.clock.clone())?;
        let replicas = Replicas::new(
            self.replicas.and_then(NonZeroU32::new),
            store.heart(),
            self.clock.clone(),
        );
        let clock = self.clock.clone();
        let bounds = (self.max_local_keys, self.max_waiting);
        let guard = RedisBackend::new(store, replicas, clock, self.deny_cache, bounds);
        Ok(Limiter::new(
            Backend::Redis(Arc::new(guard)),
            self.clock,
            self.any_groups,
            self.max_waiting,
            self.names,
        )
        .with_enforcement(enforcement))
    }
}
