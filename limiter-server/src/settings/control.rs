//! The settings of the control plane: database, admin listener, role of the process.
//!
//! A process with a database has a control plane; the role `admin` requires one. A database on the
//! command line replaces that of the file, by URL or by file of the URL. Tables without a flag
//! (retention, webhook, namespaces) come from the file alone. `Debug` shows no URL, which can
//! contain a password.
//!
//! Tests: `tests/state_dir.rs`, `tests/control_plane/namespaces.rs`,
//! `tests/control_plane/proxy_sign_in.rs`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderName;
use clap::Args;
use serde::Deserialize;

use crate::settings::duration::duration;
use crate::settings::namespaces::{self, NamespaceTable};
use crate::settings::retention::RetentionTable;
use crate::settings::secret_file::read_secret;
use crate::settings::webhook::WebhookTable;
use crate::settings::{NamespaceSettings, RetentionSettings, SettingsError, WebhookSettings};

const UNCONFIRMED_TOKENS: Duration = Duration::from_secs(60);
const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8082);

/// The parts of the server that a process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProcessRole {
    /// Decisions only.
    Gateway,
    /// Policies, users and publication only.
    Admin,
    /// Both.
    #[default]
    All,
}

impl ProcessRole {
    /// Returns the name in the settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Admin => "admin",
            Self::All => "all",
        }
    }
}

/// A proxy that authenticates users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxySettings {
    /// The header with the name of the user, in lower case.
    pub user_header: Option<String>,
    /// The header with the groups of the user, separated by commas.
    pub groups_header: Option<String>,
    /// The addresses of the proxies.
    pub peers: Vec<IpAddr>,
}

/// The settings of the control plane.
#[derive(Clone)]
#[non_exhaustive]
pub struct ControlSettings {
    /// The URL of the database.
    pub database: String,
    /// The address of the admin listener.
    pub admin: SocketAddr,
    /// True if other nodes without Redis are accepted.
    pub is_standalone: bool,
    /// The proxy that authenticates users.
    pub proxy: ProxySettings,
    /// The time for which records are kept.
    pub retention: RetentionSettings,
    /// The receiver of events, if there is one.
    pub webhook: Option<WebhookSettings>,
    /// The namespaces that the admin part manages, if the settings file has a table for each.
    pub namespaces: Vec<NamespaceSettings>,
}

/// Shows no URL.
impl std::fmt::Debug for ControlSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlSettings")
            .field("admin", &self.admin)
            .field("is_standalone", &self.is_standalone)
            .field("proxy", &self.proxy)
            .finish_non_exhaustive()
    }
}

/// The arguments of the control plane.
#[derive(Args, Debug, Default)]
pub(super) struct ControlArgs {
    /// Database of policies, users and history: sqlite:FILE, postgres://… or mysql://….
    #[arg(
        long,
        value_name = "URL",
        env = "LIMITER_DATABASE",
        hide_env_values = true,
        conflicts_with = "example"
    )]
    pub(super) database: Option<String>,
    /// File that contains the URL of the database.
    #[arg(
        long,
        value_name = "FILE",
        env = "LIMITER_DATABASE_FILE",
        conflicts_with_all = ["database", "example"]
    )]
    pub(super) database_file: Option<PathBuf>,
    /// Address of the admin listener; port 0 selects a free port. Default: 127.0.0.1:8082.
    #[arg(long, value_name = "ADDR", env = "LIMITER_ADMIN")]
    pub(super) admin: Option<SocketAddr>,
    /// Parts of the server that this process runs. Default: all.
    #[arg(long, value_name = "ROLE", env = "LIMITER_ROLE")]
    pub(super) role: Option<ProcessRole>,
    /// Start although another node runs without Redis; each node then counts by itself.
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        env = "LIMITER_STANDALONE"
    )]
    pub(super) standalone: Option<bool>,
    /// Directory for the last policies and issued tokens, with which a node starts if no source
    /// answers.
    #[arg(long, value_name = "DIR", env = "LIMITER_STATE_DIR")]
    pub(super) state_dir: Option<PathBuf>,
    /// Longest time for which issued tokens are accepted while neither Redis nor the database
    /// confirms them, so that a revocation may be missed. Default: 60s.
    #[arg(long, value_name = "DURATION", env = "LIMITER_UNCONFIRMED_TOKENS")]
    pub(super) unconfirmed_tokens: Option<String>,
    /// Header in which a trusted proxy sends the name of the user.
    #[arg(long, value_name = "HEADER", env = "LIMITER_PROXY_USER_HEADER")]
    pub(super) proxy_user_header: Option<String>,
    /// Header in which a trusted proxy sends the groups of the user, separated by commas.
    #[arg(long, value_name = "HEADER", env = "LIMITER_PROXY_GROUPS_HEADER")]
    pub(super) proxy_groups_header: Option<String>,
    /// Addresses of the proxies that authenticate users.
    #[arg(
        long,
        value_name = "ADDR,…",
        value_delimiter = ',',
        env = "LIMITER_SIGN_IN_PROXIES"
    )]
    pub(super) sign_in_proxies: Option<Vec<IpAddr>>,
    #[arg(skip)]
    pub(super) tables: ControlTables,
}

/// The tables of the settings file that have no flag.
#[derive(Clone, Debug, Default)]
pub(super) struct ControlTables {
    pub(super) retention: RetentionTable,
    pub(super) webhook: WebhookTable,
    pub(super) namespaces: BTreeMap<String, NamespaceTable>,
}

impl ControlArgs {
    /// Takes the settings that are absent from the file.
    pub(super) fn or(self, file: &mut Self, is_example: bool) -> Self {
        let names_database = self.database.is_some() || self.database_file.is_some() || is_example;
        let (database, database_file) = match names_database {
            true => (self.database, self.database_file),
            false => (file.database.take(), file.database_file.take()),
        };
        Self {
            database,
            database_file,
            admin: self.admin.or(file.admin),
            role: self.role.or(file.role),
            standalone: self.standalone.or(file.standalone),
            state_dir: self.state_dir.or(file.state_dir.take()),
            unconfirmed_tokens: self.unconfirmed_tokens.or(file.unconfirmed_tokens.take()),
            proxy_user_header: self.proxy_user_header.or(file.proxy_user_header.take()),
            proxy_groups_header: self.proxy_groups_header.or(file.proxy_groups_header.take()),
            sign_in_proxies: self.sign_in_proxies.or(file.sign_in_proxies.take()),
            tables: std::mem::take(&mut file.tables),
        }
    }

    /// Returns the time for which issued tokens are accepted without a confirmation.
    pub(super) fn unconfirmed_tokens(&self) -> Result<Duration, SettingsError> {
        let time = self.unconfirmed_tokens.as_deref();
        time.map_or(Ok(UNCONFIRMED_TOKENS), |text| {
            duration("unconfirmed_tokens", text)
        })
    }

    /// Returns whether a database is configured.
    pub(super) fn has_database(&self) -> bool {
        self.database.is_some() || self.database_file.is_some()
    }

    /// Returns the namespaces of the tables of the settings file.
    pub(super) fn namespaces(&self) -> Result<Vec<NamespaceSettings>, SettingsError> {
        namespaces::resolve(&self.tables.namespaces)
    }

    /// Returns the settings, if a database is configured.
    pub(super) fn settings(&self) -> Result<Option<ControlSettings>, SettingsError> {
        let database = match (&self.database, &self.database_file) {
            (Some(_), Some(_)) => {
                let reason = "both database and database_file are set, expected one of them";
                return Err(SettingsError::Conflict(reason.to_owned()));
            }
            (Some(url), None) => url.clone(),
            (None, Some(path)) => read_secret(path)?,
            (None, None) if self.role.unwrap_or_default() == ProcessRole::Admin => {
                let reason = "role = \"admin\" needs a database";
                return Err(SettingsError::Conflict(reason.to_owned()));
            }
            (None, None) => return Ok(None),
        };
        let admin = self.admin.unwrap_or(DEFAULT_ADMIN);
        Ok(Some(ControlSettings {
            database,
            admin,
            is_standalone: self.standalone.unwrap_or(false),
            proxy: self.proxy()?,
            retention: self.tables.retention.resolve()?,
            webhook: self.tables.webhook.resolve()?,
            namespaces: self.namespaces()?,
        }))
    }

    /// Returns the proxy that authenticates users. A header without addresses would identify no
    /// user, and neither would addresses without a header.
    fn proxy(&self) -> Result<ProxySettings, SettingsError> {
        let header = |setting, name: &Option<String>| {
            let header = name.as_ref().map(|name| match name.parse::<HeaderName>() {
                Ok(header) => Ok(header.as_str().to_owned()),
                Err(_) => Err(SettingsError::Invalid {
                    setting,
                    value: name.clone(),
                    expected: "the name of a header such as x-forwarded-user",
                }),
            });
            header.transpose()
        };
        let proxy = ProxySettings {
            user_header: header("proxy_user_header", &self.proxy_user_header)?,
            groups_header: header("proxy_groups_header", &self.proxy_groups_header)?,
            peers: self.sign_in_proxies.clone().unwrap_or_default(),
        };
        let has_headers = proxy.user_header.is_some() || proxy.groups_header.is_some();
        let reason = match (has_headers, proxy.peers.is_empty()) {
            (true, true) => {
                "proxy_user_header or proxy_groups_header is set without sign_in_proxies, expected the addresses of the proxies"
            }
            (_, false) if proxy.user_header.is_none() => {
                "sign_in_proxies is set without proxy_user_header, expected the header with the name of the user"
            }
            _ => return Ok(proxy),
        };
        Err(SettingsError::Conflict(reason.to_owned()))
    }
}
