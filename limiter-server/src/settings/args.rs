//! The flags of `serve`, each with its environment variable, and their conversion to settings.
//!
//! `ServeArgs::or` adds the values of the file for absent flags. The other methods apply defaults
//! and reject values that contradict each other. A listener that other machines can reach needs
//! configured clients, unless `allow_unauthenticated` is set. A password on the command line causes
//! a warning.
//!
//! Tests: `tests/serve.rs`, and `listener_for_other_machines_keeps_its_clients` in
//! `tests/access.rs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use limiter_core::Policy;
use limiter_tower::key::IpNet;

use crate::host_name;
use crate::settings::control::ControlArgs;
use crate::settings::duration::duration;
use crate::settings::explanation::ExplanationArgs;
use crate::settings::file::SettingsFile;
use crate::settings::limits::LimitArgs;
use crate::settings::namespaces;
use crate::settings::store::StoreArgs;
use crate::settings::tls::TlsArgs;
use crate::settings::{
    EnvoySettings, ForwardingProxies, ListenAddress, ListenerLimits, Policies, SettingsError, StoreSettings,
    TlsSettings, Unmatched,
};

const DEFAULT_GRPC: ListenAddress = ListenAddress::loopback(8081);
const DEFAULT_HTTP: ListenAddress = ListenAddress::loopback(8080);
const DEFAULT_DRAIN: Duration = Duration::from_secs(10);

/// The arguments of `limiter-server serve`.
#[derive(Args, Debug, Default)]
pub struct ServeArgs {
    #[command(flatten)]
    pub(super) control: ControlArgs,
    /// Policy file, followed for changes; SIGHUP reads it at once.
    #[arg(long, value_name = "FILE", env = "LIMITER_POLICIES")]
    policies: Option<PathBuf>,
    /// Use the example policy, and print commands to try.
    #[arg(long, conflicts_with_all = ["policies", "redis", "redis_file", "redis_cluster", "redis_cluster_file", "redis_sentinel", "redis_sentinel_file"])]
    example: bool,
    /// Address of the gRPC listener or unix:/PATH; port 0 selects a port. Default: 127.0.0.1:8081.
    #[arg(long, value_name = "ADDR", env = "LIMITER_GRPC")]
    grpc: Option<ListenAddress>,
    /// Address of the HTTP listener or unix:/PATH; port 0 selects a port. Default: 127.0.0.1:8080.
    #[arg(long, value_name = "ADDR", env = "LIMITER_HTTP")]
    http: Option<ListenAddress>,
    /// Address of the listener for Redis clients (CL.THROTTLE), or unix:/PATH.
    /// Default: none.
    #[arg(long, value_name = "ADDR", env = "LIMITER_RESP")]
    pub(super) resp: Option<ListenAddress>,
    /// Longest time of a decision of CL.THROTTLE with its own numbers. Default: 50ms.
    #[arg(long, value_name = "DURATION", env = "LIMITER_RESP_DEADLINE")]
    resp_deadline: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    /// Name of this node in explanations of denials. Default: the host name.
    #[arg(long, value_name = "NAME", env = "LIMITER_NODE")]
    pub(super) node: Option<String>,
    /// Settings file. Default: limiter-server.toml in the current directory, if it exists.
    #[arg(long, value_name = "FILE", env = "LIMITER_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Longest time of a graceful shutdown. Default: 10s.
    #[arg(long, value_name = "DURATION", env = "LIMITER_DRAIN")]
    drain: Option<String>,
    /// Allow listeners on addresses other than loopback without authentication.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", env = "LIMITER_ALLOW_UNAUTHENTICATED")]
    allow_unauthenticated: Option<bool>,
    /// Longest time of a decision for Envoy, which waits for 20 ms by default. Default: 12ms.
    #[arg(long, value_name = "DURATION", env = "LIMITER_DECISION_DEADLINE")]
    decision_deadline: Option<String>,
    /// Result for descriptors without a matching rule or without its policy. Default: allow.
    #[arg(long, value_name = "RESULT", env = "LIMITER_UNMATCHED")]
    unmatched: Option<Unmatched>,
    /// Domains in which a descriptor may carry a limit of its own.
    #[arg(
        long,
        value_name = "DOMAIN,…",
        value_delimiter = ',',
        env = "LIMITER_OVERRIDE_DOMAINS"
    )]
    override_domains: Option<Vec<String>>,
    /// Proxies whose X-Forwarded-* headers /forward-auth and the limits of sign-ins read.
    /// Default: none.
    #[arg(
        long,
        value_name = "NETWORK,…",
        value_delimiter = ',',
        env = "LIMITER_TRUSTED_PROXIES"
    )]
    trusted_proxies: Option<Vec<String>>,
    /// Largest number of descriptors in a request. Default: 100.
    #[arg(long, value_name = "COUNT", env = "LIMITER_MAX_DESCRIPTORS")]
    max_descriptors: Option<usize>,
    #[command(flatten)]
    pub(super) explanation: ExplanationArgs,
    /// Names in the `Host` header of HTTP requests besides addresses and localhost.
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        env = "LIMITER_ALLOWED_HOSTS"
    )]
    pub(super) allowed_hosts: Option<Vec<String>>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    tls: TlsArgs,
}

impl ServeArgs {
    /// Returns the arguments of the demonstration: limits in this process, and a database of its
    /// own.
    pub(crate) fn of_demo(
        config: PathBuf,
        database: String,
        admin: std::net::SocketAddr,
        http: ListenAddress,
        grpc: ListenAddress,
    ) -> Self {
        Self {
            control: ControlArgs {
                database: Some(database),
                admin: Some(admin),
                ..ControlArgs::default()
            },
            config: Some(config),
            http: Some(http),
            grpc: Some(grpc),
            ..Self::default()
        }
    }

    /// Takes the settings that are absent from the file.
    pub(super) fn or(self, file: SettingsFile) -> Self {
        let control = self.control.or(&mut file.control(), self.example);
        let store = self.store.or(file.store(), self.example);
        let explanation = ExplanationArgs {
            key_in_metadata: file.key_in_metadata,
            key_secret_file: file.key_secret_file,
            public_url: file.public_url,
        };
        let policies = match self.example {
            true => None,
            false => self.policies.or(file.policies),
        };
        Self {
            control,
            policies,
            example: self.example,
            grpc: self.grpc.or(file.grpc),
            http: self.http.or(file.http),
            resp: self.resp.or(file.resp),
            resp_deadline: self.resp_deadline.or(file.resp_deadline),
            store,
            node: self.node.or(file.node),
            config: self.config,
            drain: self.drain.or(file.drain),
            allow_unauthenticated: self.allow_unauthenticated.or(file.allow_unauthenticated),
            decision_deadline: self.decision_deadline.or(file.decision_deadline),
            unmatched: self.unmatched.or(file.unmatched),
            override_domains: self.override_domains.or(file.override_domains),
            trusted_proxies: self.trusted_proxies.or(file.trusted_proxies),
            max_descriptors: self.max_descriptors.or(file.max_descriptors),
            explanation: self.explanation.or(explanation),
            allowed_hosts: self.allowed_hosts.or(file.allowed_hosts),
            limits: self.limits.or(file.limits),
            tls: self.tls.or(file.tls),
        }
    }

    pub(super) fn grpc(&self) -> ListenAddress {
        self.grpc.clone().unwrap_or(DEFAULT_GRPC)
    }

    pub(super) fn http(&self) -> ListenAddress {
        self.http.clone().unwrap_or(DEFAULT_HTTP)
    }

    pub(super) fn tls(&self) -> Result<Option<TlsSettings>, SettingsError> {
        self.tls.resolve()
    }

    pub(super) fn limits(&self) -> Result<ListenerLimits, SettingsError> {
        self.limits.resolve()
    }

    pub(super) fn resp_deadline(&self) -> Result<Duration, SettingsError> {
        let deadline = self.resp_deadline.as_deref();
        deadline.map_or(Ok(Policy::DEFAULT_DEADLINE), |text| {
            duration("resp_deadline", text)
        })
    }

    pub(super) fn trusted_proxies(&self) -> Result<ForwardingProxies, SettingsError> {
        let networks = self.trusted_proxies.iter().flatten();
        let networks = networks.map(|network| {
            let invalid = |_| SettingsError::Invalid {
                setting: "trusted_proxies",
                value: network.clone(),
                expected: "addresses such as 127.0.0.1, or networks such as 10.0.7.0/24",
            };
            network.parse::<IpNet>().map_err(invalid)
        });
        Ok(ForwardingProxies::new(networks.collect::<Result<Vec<_>, _>>()?))
    }

    /// Returns the accepted names in the `Host` header, which requests can contain.
    pub(super) fn allowed_hosts(&self) -> Result<Vec<String>, SettingsError> {
        let hosts = self.allowed_hosts.iter().flatten();
        let hosts = hosts.map(
            |host| match host_name::is_name(host) || host_name::is_local(host) {
                true => Ok(host.clone()),
                false => Err(SettingsError::Invalid {
                    setting: "allowed_hosts",
                    value: host.clone(),
                    expected: "names such as limits.example.com, without scheme and port",
                }),
            },
        );
        hosts.collect()
    }

    pub(super) fn drain(&self) -> Result<Duration, SettingsError> {
        self.drain
            .as_deref()
            .map_or(Ok(DEFAULT_DRAIN), |text| duration("drain", text))
    }

    pub(super) fn envoy(&self) -> Result<EnvoySettings, SettingsError> {
        let default = EnvoySettings::default();
        let deadline = self.decision_deadline.as_deref();
        let max_descriptors = self.max_descriptors.unwrap_or(default.max_descriptors);
        if max_descriptors == 0 {
            return Err(SettingsError::Invalid {
                setting: "max_descriptors",
                value: max_descriptors.to_string(),
                expected: "at least 1",
            });
        }
        Ok(EnvoySettings {
            decision_deadline: deadline.map_or(Ok(default.decision_deadline), |text| {
                duration("decision_deadline", text)
            })?,
            unmatched: self.unmatched.unwrap_or_default(),
            override_domains: self.override_domains.clone().unwrap_or_default(),
            max_descriptors,
        })
    }

    /// Selects the store: that of the gateway's namespace, or the one that the settings name.
    pub(super) fn store(&self) -> Result<StoreSettings, SettingsError> {
        let configured = self.control.namespaces()?;
        if configured.is_empty() {
            return self.store.resolve();
        }
        if self.store.deployment()?.is_some() || self.example {
            let reason = "a Redis deployment is set beside [namespace.NAME] tables, expected one of both";
            return Err(SettingsError::Conflict(reason.to_owned()));
        }
        let own = namespaces::of_gateway(&configured, self.store.namespace.as_deref())?;
        Ok(own.store.clone())
    }

    pub(super) fn policies(&self, store: &StoreSettings) -> Result<Policies, SettingsError> {
        match (&self.policies, store) {
            _ if self.example => Ok(Policies::Example),
            _ if self.control.has_database() => Ok(Policies::Database {
                import: self.policies.clone(),
            }),
            (Some(path), _) => Ok(Policies::File(path.clone())),
            (None, StoreSettings::Redis { .. }) => Ok(Policies::Redis),
            (None, StoreSettings::InProcess { .. }) => Err(SettingsError::Conflict(
                "no policies: set policies to a file, or redis to a server with a registry, or database to a URL, or use --example"
                    .to_owned(),
            )),
        }
    }

    /// Rejects listeners that other machines can reach, unless clients are configured. Returns
    /// whether clients must stay configured.
    pub(super) fn require_clients<'a>(
        &self,
        listeners: impl IntoIterator<Item = (&'static str, &'a ListenAddress)>,
        has_clients: bool,
    ) -> Result<bool, SettingsError> {
        let allows_anonymous = self.allow_unauthenticated.unwrap_or(false);
        let mut requires_clients = false;
        for (setting, address) in listeners {
            if address.is_local() {
                continue;
            }
            requires_clients = !allows_anonymous;
            if !has_clients && !allows_anonymous {
                return Err(SettingsError::Invalid {
                    setting,
                    value: address.to_string(),
                    expected: "a loopback address or a unix socket, because no [[token]] or [[client]] is configured and \
                               allow_unauthenticated is not set",
                });
            }
            if has_clients && self.tls.is_absent() {
                tracing::warn!(setting, %address, "listener without TLS receives tokens in plain text; set tls.cert_file");
            }
            if !has_clients {
                tracing::warn!(setting, %address, "listener accepts unauthenticated clients from other machines");
            }
        }
        Ok(requires_clients)
    }

    /// Warns of passwords in the arguments of the process, which other users of the machine can
    /// read.
    pub(super) fn warn_of_passwords(&self, arguments: impl IntoIterator<Item = String>) {
        let is_secret = |argument: String| {
            let authority = argument.split_once("://").map(|(_, rest)| rest.to_owned());
            authority.is_some_and(|rest| rest.split_once('@').is_some_and(|(login, _)| login.contains(':')))
        };
        if arguments.into_iter().any(is_secret) {
            tracing::warn!(
                "a URL on the command line contains a password; use an environment variable such as LIMITER_REDIS or \
                 LIMITER_DATABASE, or a file such as redis_file or database_file instead"
            );
        }
    }
}
