//! Builds limiters whose state lives in Redis.
//!
//! The builder collects the topology, the connection settings and the settings of a limiter, and
//! `build` checks them and opens no connection, so that a program can start while Redis is down.
//!
//! Invariant: neither `Debug` nor an error of `build` contains credentials. Tests:
//! `tests/secrets.rs`, `tests/connections.rs`, `tests/limiter_defaults.rs`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;

use crate::backend::Backend;
use crate::error::ConfigError;
use crate::key::Namespace;
use crate::limiter::{Limiter, LimiterSettings};
use crate::policy::{Enforcement, OnStoreFailure, check_deadline, check_text};
use crate::redis::settings::{BackendSettings, Certificates, Deployment, NodeSettings, SecretUrl, Topology};
use crate::redis::usage::{RevisionSource, UsageReporter};
use crate::redis::{RedisBackend, RedisStore};
use crate::registry::policy_lookup::PolicyLookup;
use crate::registry::{OnUnknownPolicy, PolicyRegistry};
use crate::support::clock::{Clock, ManualClock};
use crate::usage_recorder::{UsageRecorder, UsageReporting};

const MAX_PREFIX_BYTES: usize = 64;

/// The default duration for which a denial is cached; a reset by another replica may stay unseen
/// for that time.
const DENY_CACHE: Duration = Duration::from_secs(1);

/// Builds a [`Limiter`] whose state lives in Redis. Returned by [`Limiter::redis`],
/// [`Limiter::redis_cluster`], [`Limiter::redis_sentinel`] and [`Limiter::redis_pool`].
///
/// `Debug` and the errors of [`build`](Self::build) contain no credentials: they show at most the
/// scheme of a malformed URL, since any part of it may be a password.
#[derive(Clone, Debug)]
#[must_use = "a limiter exists once `build` has returned it"]
pub struct RedisBuilder {
    deployment: Deployment,
    namespace: Option<String>,
    prefix: String,
    clock: Clock,
    replicas: Option<u32>,
    deny_cache: Duration,
    max_local_keys: usize,
    settings: LimiterSettings,
    enforcement: Option<Enforcement>,
    usage: UsageReporting,
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
            replicas: None,
            deny_cache: DENY_CACHE,
            max_local_keys: 100_000,
            settings: LimiterSettings::default(),
            enforcement: None,
            usage: UsageReporting::Off,
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

    /// Sets the owner of the limits, such as `prod:checkout`: the first part of every Redis key,
    /// with all characters except plain ASCII percent-encoded as in URLs (`%20`). Required.
    /// Replicas with the same namespace share their limits.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        Self {
            namespace: Some(namespace.into()),
            ..self
        }
    }

    /// Sets a text that precedes the namespace in every Redis key, unencoded, for servers that
    /// require a key prefix (`~team:*` in an ACL). Replicas share limits if both prefix and
    /// namespace are equal. Printable, without braces, at most 64 bytes. Default: none.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            ..self
        }
    }

    /// Reads the time from a clock that a test advances, instead of the server's clock. Keys then
    /// live for at least an hour, since the server expires them by its own clock. Default: the
    /// server's clock.
    pub fn clock(self, clock: &ManualClock) -> Self {
        Self {
            clock: Clock::Manual(clock.clone()),
            ..self
        }
    }

    /// Allows limits of different groups in one decision, which a cluster cannot decide. Default:
    /// rejected.
    pub fn standalone_only(mut self) -> Self {
        self.settings.any_groups = true;
        self
    }

    /// Sets the number of connections to each node, per runtime. One connection carries all calls,
    /// in order of arrival; the others take over when it responds slowly or has to be reopened.
    /// Default: 2.
    pub fn connections(mut self, connections: u32) -> Self {
        self.deployment.node.connections = connections;
        self
    }

    /// Sets the maximum number of calls in flight to one node. A further call is not sent: it fails
    /// with [`StoreErrorKind::Overloaded`](crate::StoreErrorKind::Overloaded), and the policy's
    /// [`OnStoreFailure`](crate::OnStoreFailure) decides. Default: 4,096.
    ///
    /// With [`Local`](crate::OnStoreFailure::Local), too small a number admits this replica's share
    /// in addition to the permits of Redis.
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.deployment.node.max_in_flight = calls;
        self
    }

    /// Sets the maximum number of calls that wait for permits, in all queues of this process
    /// together. Further calls are rejected with
    /// [`StoreErrorKind::Overloaded`](crate::StoreErrorKind::Overloaded). Default: 10,000.
    pub fn max_waiting(mut self, calls: usize) -> Self {
        self.settings.max_waiting = calls;
        self
    }

    /// Sets the maximum time for which this process repeats a denial by Redis, without a request,
    /// for calls under the same limits with the same or a larger cost. Default: one second. Zero
    /// disables the cache.
    ///
    /// Such a call is denied until the `retry_after` of the reply from Redis and receives the same
    /// outcome; its [`Origin`](crate::Origin) is `DenyCache`. A reset through this limiter or its
    /// clones and a change of the policy take effect immediately. A reset by another replica, which
    /// returns permits before the cached `retry_after`, takes effect after this time at the latest.
    /// A larger cost under a window is sent to Redis, since only Redis knows when its permits
    /// return.
    ///
    /// The cache holds 65,536 limits; others are sent to Redis. With a [`clock`](Self::clock) of a
    /// test, that clock measures the time.
    pub fn deny_cache(self, at_most: Duration) -> Self {
        Self {
            deny_cache: at_most,
            ..self
        }
    }

    /// Sets the number of replicas that share the limits, for
    /// [`OnStoreFailure::Local`](crate::OnStoreFailure::Local). Default: Redis counts them. Set it
    /// if replicas may start while Redis is unavailable: a replica that has never received the
    /// count assumes that it is the only one.
    pub fn replicas(self, replicas: u32) -> Self {
        Self {
            replicas: Some(replicas),
            ..self
        }
    }

    /// Sets the certificates, in PEM, of the authorities that sign for the servers of `rediss://`
    /// URLs. They replace the default: the authorities that the system trusts.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.deployment.certificates.roots = Some(pem.into());
        self
    }

    /// Sets the client certificate, in PEM and with the chain to its authority, for servers that
    /// request one, and its private key. Default: none.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.deployment.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// Sets the approximate number of keys in each table of
    /// [`OnStoreFailure::Local`](crate::OnStoreFailure::Local) in this process: keys that are
    /// limited locally while Redis is unavailable, keys whose permits are not yet reported to
    /// Redis, and keys whose remaining permits in Redis are known. If the first table is full, a
    /// new key is rejected with [`StoreErrorKind::Full`](crate::StoreErrorKind::Full). If the
    /// second is full, permits of a new key are not reported. If the third is full, a new key
    /// replaces the least recently used one, which then starts with a full share. Default: 100,000.
    pub fn max_local_keys(self, max_keys: usize) -> Self {
        Self {
            max_local_keys: max_keys,
            ..self
        }
    }

    shared_setters!();

    /// Sets the initial enforcement mode, which [`Limiter::set_enforcement`] changes. Default: the
    /// value of the environment variable [`LIMITER_ENFORCEMENT`](Enforcement::ENV) when the limiter
    /// is built, or [`Enforcement::Enforce`].
    pub fn enforcement(self, enforcement: Enforcement) -> Self {
        Self {
            enforcement: Some(enforcement),
            ..self
        }
    }

    /// Reports the usage of this limiter to Redis, where [`Limiter::fleet_usage`] reads the sum of
    /// all processes of the namespace. Default: [`UsageReporting::Off`].
    ///
    /// Each decision is counted once, by its policy, the [`app`](Self::app), its outcome and the
    /// minute; peeks are not counted. A task adds the counts to those of the other processes every
    /// five seconds, and up to once per minute in a fleet so large that the reports would take more
    /// than a two-hundredth of the time of Redis. Redis stores a minute for two hours. A report
    /// without a reply is sent again, and is counted once.
    ///
    /// Decisions never wait for the reports. While Redis is unavailable, the process keeps the
    /// counts of two hours, up to 50,000 cells; older counts, and those of policies above 4,096,
    /// are dropped and counted in the metric `limiter_usage_dropped_total`. Counts that Redis loses
    /// are not restored. [`Limiter::shutdown`] reports the last counts.
    ///
    /// With [`UsageReporting::CountsAndDeniedKeys`], a process also reports the 20 most denied keys
    /// of up to 24 policies per report, and of fewer in a fleet of more than 16 processes. Redis
    /// stores them for 24 hours, for up to 24 policies per minute.
    ///
    /// The Redis user needs `+hget +hgetall +hmget +hset +hincrby` in addition.
    pub fn usage(self, usage: UsageReporting) -> Self {
        Self { usage, ..self }
    }

    /// Builds the limiter. Opens no connection, so it succeeds while Redis is down.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when the namespace is missing, a URL is malformed, a limit of connections is
    /// 0, the default deadline is invalid, or `standalone_only` is set for a cluster, or when the
    /// environment variable [`LIMITER_ENFORCEMENT`](Enforcement::ENV) is invalid and
    /// [`enforcement`](Self::enforcement) is not set. With a `rediss://` URL and no
    /// `root_certificate`, it reads the system's certificates, which blocks, and fails if there is
    /// none.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let namespace = self
            .namespace
            .ok_or(ConfigError::Missing { field: "namespace" })?;
        check_text("namespace", &namespace)?;
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        if self.prefix.len() > MAX_PREFIX_BYTES || !self.prefix.bytes().all(plain) {
            let expected = format!("at most {MAX_PREFIX_BYTES} printable ASCII bytes without braces");
            return Err(ConfigError::invalid("prefix", &self.prefix, expected));
        }
        for (setting, value) in [
            ("connections", self.deployment.node.connections),
            ("max_in_flight", self.deployment.node.max_in_flight),
            ("replicas", self.replicas.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(ConfigError::invalid(setting, value, "at least 1"));
            }
        }
        check_deadline("default_deadline", self.settings.defaults.deadline)?;
        if self.settings.any_groups && matches!(self.deployment.topology, Topology::Cluster(_)) {
            return Err(ConfigError::invalid(
                "standalone_only",
                "a cluster",
                "a standalone server",
            ));
        }
        let of_environment = match self.enforcement {
            Some(_) => None,
            None => Enforcement::from_environment()?,
        };
        let namespace = Namespace::new(&self.prefix, &namespace);
        let store = RedisStore::new(self.deployment, namespace, self.clock.clone())?;
        let usage = usage_reporter(self.usage, &store, &self.clock, &self.settings.names);
        let settings = BackendSettings {
            replicas: self.replicas.and_then(NonZeroU32::new),
            deny_cache: self.deny_cache,
            max_local_keys: self.max_local_keys,
            max_waiting: self.settings.max_waiting,
        };
        let redis = RedisBackend::new(store, settings).with_usage(usage);
        let backend = Backend::Redis(Arc::new(redis));
        let limiter = Limiter::new(backend, self.clock, self.settings);
        Ok(limiter.with_enforcement(self.enforcement, of_environment))
    }
}

/// Returns the reporter of the usage, if it is reported.
fn usage_reporter(
    usage: UsageReporting,
    store: &RedisStore,
    clock: &Clock,
    names: &PolicyLookup,
) -> Option<UsageReporter> {
    let recorder = match usage {
        UsageReporting::Off => return None,
        UsageReporting::Counts => UsageRecorder::new(clock.clone()),
        UsageReporting::CountsAndDeniedKeys => UsageRecorder::new(clock.clone()).with_denied_keys(),
    };
    let app = names.app.as_deref().unwrap_or_default();
    #[cfg(feature = "registry")]
    let revision = {
        let registry = names.registry.clone();
        RevisionSource(Box::new(move || registry.published().unwrap_or(0)))
    };
    #[cfg(not(feature = "registry"))]
    let revision = RevisionSource(Box::new(|| 0));
    let store = store.usage_store();
    Some(UsageReporter::new(recorder, store, clock.clone(), app, revision))
}
