//! The settings of `serve`, from flags, the environment and `limiter-server.toml`.
//!
//! A flag takes precedence over an environment variable, and an environment variable over the file.
//! Each setting has one name in all three: `--decision-deadline`, `LIMITER_DECISION_DEADLINE`,
//! `decision_deadline`.
//! [`Settings`] holds the resolved values with their defaults applied, so the rest of the program
//! reads typed values only. Tests: below.

mod address;
mod args;
mod clients;
mod control;
mod duration;
mod error;
mod explanation;
mod file;
mod limits;
mod namespaces;
mod proxies;
mod retention;
mod secret_file;
mod store;
mod tls;
mod webhook;

use std::path::PathBuf;
use std::time::Duration;

use crate::access::Access;
pub use crate::settings::address::ListenAddress;
pub use crate::settings::args::ServeArgs;
pub(crate) use crate::settings::clients::ClientSource;
pub use crate::settings::control::{ControlSettings, ProcessRole, ProxySettings};
pub use crate::settings::error::SettingsError;
pub use crate::settings::explanation::{ExplanationSettings, KeyForm};
use crate::settings::file::{DEFAULT_PATH, SettingsFile};
pub use crate::settings::limits::ListenerLimits;
pub(crate) use crate::settings::namespaces::NAMESPACE_COLOURS;
pub use crate::settings::namespaces::NamespaceSettings;
pub(crate) use crate::settings::proxies::FORWARDED_FOR;
pub use crate::settings::proxies::ForwardingProxies;
pub use crate::settings::retention::RetentionSettings;
pub(crate) use crate::settings::store::{DEFAULT_NAMESPACE, StoreArgs};
pub use crate::settings::tls::TlsSettings;
pub use crate::settings::webhook::WebhookSettings;

/// The settings of `limiter-server serve`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The source of the policies besides Redis.
    pub policies: Policies,
    /// The address of the gRPC listener.
    pub grpc: ListenAddress,
    /// The address of the HTTP listener.
    pub http: ListenAddress,
    /// The address of the RESP listener, if there is one.
    pub resp: Option<ListenAddress>,
    /// The longest time of a decision of `CL.THROTTLE` with its own numbers.
    pub resp_deadline: Duration,
    /// The accepted names in the `Host` header besides addresses and localhost.
    pub allowed_hosts: Vec<String>,
    /// The limits of the listeners.
    pub limits: ListenerLimits,
    /// The files of TLS, if the listeners on TCP use it.
    pub tls: Option<TlsSettings>,
    /// The store of the state of the limits.
    pub store: StoreSettings,
    /// The name of this node in explanations.
    pub node: String,
    /// The longest time from the start of a shutdown until the process ends.
    pub drain: Duration,
    /// The proxies whose `X-Forwarded-*` headers are read.
    pub trusted_proxies: ForwardingProxies,
    /// The configured clients and their scopes.
    pub access: Access,
    /// The file in which the clients are followed.
    pub(crate) client_source: ClientSource,
    /// The settings of Envoy's rate limit service.
    pub envoy: EnvoySettings,
    /// The settings of explanations of denials.
    pub explanation: ExplanationSettings,
    /// The settings of the control plane, if there is a database.
    pub control: Option<ControlSettings>,
    /// The parts of the server that this process runs.
    pub role: ProcessRole,
    /// The directory for the last policies.
    pub state_dir: Option<PathBuf>,
    /// The time for which issued tokens are accepted while neither Redis nor the database confirms
    /// them.
    pub unconfirmed_tokens: Duration,
}

/// The source of the policies besides Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policies {
    /// A file, which is followed for changes.
    File(PathBuf),
    /// The example that is compiled into the program.
    Example,
    /// Redis alone.
    Redis,
    /// The database, and Redis if there is one.
    Database {
        /// The file whose policies fill an empty database.
        import: Option<PathBuf>,
    },
}

/// The store of the state of the limits.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreSettings {
    /// In this process. The namespace selects the policies of the database.
    InProcess {
        /// The namespace of the policies.
        namespace: String,
    },
    /// In a deployment of Redis, under a namespace.
    Redis {
        /// The deployment.
        deployment: RedisDeployment,
        /// The first part of every key.
        namespace: String,
    },
}

/// A deployment of Redis. Its URLs can contain passwords.
#[derive(Clone, PartialEq, Eq)]
pub enum RedisDeployment {
    /// One server.
    Standalone(String),
    /// Some nodes of a cluster.
    Cluster(Vec<String>),
    /// Sentinels, and the name of the primary they watch.
    Sentinel {
        /// The URLs of the sentinels.
        urls: Vec<String>,
        /// The name of the primary, or a URL with the name in place of the host.
        master: String,
    },
}

impl StoreSettings {
    /// Returns the namespace of the limits.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::InProcess { namespace } | Self::Redis { namespace, .. } => namespace,
        }
    }
}

impl std::fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InProcess { namespace } => {
                f.debug_struct("InProcess").field("namespace", namespace).finish()
            }
            Self::Redis {
                deployment,
                namespace,
            } => f
                .debug_struct("Redis")
                .field("deployment", deployment)
                .field("namespace", namespace)
                .finish(),
        }
    }
}

/// Shows no URL.
impl std::fmt::Debug for RedisDeployment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Standalone(_) => "Standalone(..)",
            Self::Cluster(_) => "Cluster(..)",
            Self::Sentinel { .. } => "Sentinel(..)",
        })
    }
}

/// The settings of Envoy's rate limit service.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnvoySettings {
    /// The longest time that a decision may take. Envoy's own timeout is 20 ms by default.
    pub decision_deadline: Duration,
    /// The result for a descriptor without a matching rule or without its policy.
    pub unmatched: Unmatched,
    /// The domains in which a descriptor may carry a limit of its own.
    pub override_domains: Vec<String>,
    /// The largest number of descriptors in a request.
    pub max_descriptors: usize,
}

impl EnvoySettings {
    /// Returns the longest time that the store has for a decision. The timers of the runtime have a
    /// resolution of a millisecond and fire late, so it is a millisecond less than the decision.
    #[must_use]
    pub fn store_deadline(&self) -> Duration {
        const RESOLUTION: Duration = Duration::from_millis(1);
        let deadline = self.decision_deadline;
        deadline.saturating_sub(RESOLUTION).max(deadline.min(RESOLUTION))
    }
}

/// The result for a descriptor without a matching rule or without its policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Unmatched {
    /// The descriptor is allowed, without a limit in its status.
    #[default]
    Allow,
    /// The descriptor is denied.
    Deny,
}

impl Default for EnvoySettings {
    fn default() -> Self {
        Self {
            decision_deadline: Duration::from_millis(12),
            unmatched: Unmatched::default(),
            override_domains: Vec::new(),
            max_descriptors: 100,
        }
    }
}

impl Settings {
    /// Returns the settings of a file, without arguments.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve).
    pub fn of_file(path: &std::path::Path) -> Result<Self, SettingsError> {
        let mut args = ServeArgs::default();
        args.config = Some(path.to_owned());
        Self::resolve(args)
    }

    /// Merges the arguments with the settings file and applies the defaults.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] when the file cannot be read, a value is invalid, or values contradict
    /// each other.
    pub fn resolve(args: ServeArgs) -> Result<Self, SettingsError> {
        let path = args.config.clone().unwrap_or_else(|| DEFAULT_PATH.into());
        let (mut file, text) = SettingsFile::find(args.config.as_deref())?;
        let table = file.clients().map_err(|reason| SettingsError::File {
            path: path.clone(),
            reason,
        })?;
        args.warn_of_passwords(std::env::args().skip(1));
        let args = args.or(file);
        let store = args.store()?;
        let policies = args.policies(&store)?;
        let envoy = args.envoy()?;
        let control = args.control.settings()?;
        let (grpc, http) = (args.grpc(), args.http());
        let mut listeners = vec![("grpc", &grpc), ("http", &http)];
        listeners.extend(args.resp.as_ref().map(|resp| ("resp", resp)));
        let requires_clients = args.require_clients(listeners, !table.is_empty())?;
        Ok(Self {
            policies,
            grpc,
            http,
            resp: args.resp.clone(),
            resp_deadline: args.resp_deadline()?,
            allowed_hosts: args.allowed_hosts()?,
            limits: args.limits()?,
            tls: args.tls()?,
            store,
            drain: args.drain()?,
            trusted_proxies: args.trusted_proxies()?,
            node: args.node.unwrap_or_else(host_name),
            access: Access::new(table),
            client_source: ClientSource {
                path,
                text,
                requires_clients,
            },
            envoy,
            explanation: args.explanation.resolve()?,
            control,
            role: args.control.role.unwrap_or_default(),
            unconfirmed_tokens: args.control.unconfirmed_tokens()?,
            state_dir: args.control.state_dir,
        })
    }
}

/// Returns the name of this machine, without which a node is named by its process.
fn host_name() -> String {
    let from_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = from_kernel.or_else(|| std::env::var("HOSTNAME").ok());
    let name = name.map(|name| name.trim().to_owned());
    name.filter(|name| !name.is_empty())
        .unwrap_or_else(|| format!("process-{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_has_a_millisecond_less_than_a_decision() {
        for (decision, store) in [(12_000, 11_000), (2_000, 1_000), (1_000, 1_000), (400, 400)] {
            let envoy = EnvoySettings {
                decision_deadline: Duration::from_micros(decision),
                ..EnvoySettings::default()
            };
            assert_eq!(envoy.store_deadline(), Duration::from_micros(store), "{decision}");
        }
    }
}
