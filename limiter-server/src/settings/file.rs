//! The settings file, `limiter-server.toml`.
//!
//! The file has a field for each flag except `--config` and `--example`, and the tables without a
//! flag: clients, namespaces, retention and the webhook. It is optional at its default path, and
//! required at the path of `--config`. An unknown setting is an error, so that a misspelled one is
//! not ignored. `find` returns the text as well, from which changed tokens are recognized.
//!
//! Tests: `tests/serve.rs`, and `edited_tokens_apply_without_a_restart` in `tests/access.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::access::{AccessTable, CertificateClient, Token};
use crate::settings::control::{ControlArgs, ControlTables, ProcessRole};
use crate::settings::limits::LimitArgs;
use crate::settings::namespaces::NamespaceField;
use crate::settings::retention::RetentionTable;
use crate::settings::store::StoreArgs;
use crate::settings::tls::TlsArgs;
use crate::settings::webhook::WebhookTable;
use crate::settings::{KeyForm, ListenAddress, SettingsError, Unmatched};

/// The file that is read if it exists and `--config` names no other one.
pub(super) const DEFAULT_PATH: &str = "limiter-server.toml";

/// The settings file. Every setting is optional; an unknown one is an error.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettingsFile {
    pub(super) policies: Option<PathBuf>,
    pub(super) grpc: Option<ListenAddress>,
    pub(super) http: Option<ListenAddress>,
    pub(super) resp: Option<ListenAddress>,
    pub(super) resp_deadline: Option<String>,
    redis: Option<String>,
    redis_file: Option<PathBuf>,
    redis_cluster: Option<Vec<String>>,
    redis_cluster_file: Option<PathBuf>,
    redis_sentinel: Option<Vec<String>>,
    redis_sentinel_file: Option<PathBuf>,
    sentinel_master: Option<String>,
    sentinel_master_file: Option<PathBuf>,
    namespace: Option<NamespaceField>,
    gateway_namespace: Option<String>,
    pub(super) node: Option<String>,
    pub(super) drain: Option<String>,
    pub(super) allow_unauthenticated: Option<bool>,
    pub(super) decision_deadline: Option<String>,
    pub(super) unmatched: Option<Unmatched>,
    pub(super) override_domains: Option<Vec<String>>,
    pub(super) trusted_proxies: Option<Vec<String>>,
    pub(super) max_descriptors: Option<usize>,
    pub(super) key_in_metadata: Option<KeyForm>,
    pub(super) key_secret_file: Option<PathBuf>,
    pub(super) public_url: Option<String>,
    database: Option<String>,
    database_file: Option<PathBuf>,
    admin: Option<SocketAddr>,
    role: Option<ProcessRole>,
    standalone: Option<bool>,
    state_dir: Option<PathBuf>,
    unconfirmed_tokens: Option<String>,
    proxy_user_header: Option<String>,
    proxy_groups_header: Option<String>,
    sign_in_proxies: Option<Vec<IpAddr>>,
    pub(super) allowed_hosts: Option<Vec<String>>,
    #[serde(default)]
    pub(super) limits: LimitArgs,
    #[serde(default)]
    pub(super) tls: TlsArgs,
    #[serde(default)]
    retention: RetentionTable,
    #[serde(default)]
    webhook: WebhookTable,
    #[serde(default)]
    token: Vec<Token>,
    #[serde(default)]
    client: Vec<CertificateClient>,
}

impl SettingsFile {
    /// Returns the settings of the control plane.
    pub(super) fn control(&self) -> ControlArgs {
        ControlArgs {
            database: self.database.clone(),
            database_file: self.database_file.clone(),
            admin: self.admin,
            role: self.role,
            standalone: self.standalone,
            state_dir: self.state_dir.clone(),
            unconfirmed_tokens: self.unconfirmed_tokens.clone(),
            proxy_user_header: self.proxy_user_header.clone(),
            proxy_groups_header: self.proxy_groups_header.clone(),
            sign_in_proxies: self.sign_in_proxies.clone(),
            tables: ControlTables {
                retention: self.retention.clone(),
                webhook: self.webhook.clone(),
                namespaces: match &self.namespace {
                    Some(NamespaceField::Tables(tables)) => tables.clone(),
                    Some(NamespaceField::Name(_)) | None => BTreeMap::new(),
                },
            },
        }
    }

    /// Returns the namespace of the gateway.
    fn namespace(&self) -> Option<String> {
        match &self.namespace {
            Some(NamespaceField::Name(name)) => Some(name.clone()),
            Some(NamespaceField::Tables(_)) | None => self.gateway_namespace.clone(),
        }
    }

    /// Returns the settings of the store.
    pub(super) fn store(&self) -> StoreArgs {
        StoreArgs {
            redis: self.redis.clone(),
            redis_file: self.redis_file.clone(),
            redis_cluster: self.redis_cluster.clone(),
            redis_cluster_file: self.redis_cluster_file.clone(),
            redis_sentinel: self.redis_sentinel.clone(),
            redis_sentinel_file: self.redis_sentinel_file.clone(),
            sentinel_master: self.sentinel_master.clone(),
            sentinel_master_file: self.sentinel_master_file.clone(),
            namespace: self.namespace(),
        }
    }

    /// Reads the given file, or else `limiter-server.toml` in the current directory if it exists.
    /// Returns the text as well.
    pub(super) fn find(path: Option<&Path>) -> Result<(Self, Option<String>), SettingsError> {
        let is_required = path.is_some();
        let path = path.unwrap_or_else(|| Path::new(DEFAULT_PATH));
        let refused = |reason: String| SettingsError::File {
            path: path.to_owned(),
            reason,
        };
        match fs::read_to_string(path) {
            Ok(text) => match Self::parse(&text) {
                Ok(file) => Ok((file, Some(text))),
                Err(error) => Err(refused(error)),
            },
            Err(error) if error.kind() == ErrorKind::NotFound && !is_required => Ok((Self::default(), None)),
            Err(error) => Err(refused(error.to_string())),
        }
    }

    /// Reads the text of a file.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| position_and_reason(text, &error))
    }

    /// Takes the configured clients.
    pub(super) fn clients(&mut self) -> Result<AccessTable, String> {
        let (tokens, clients) = (std::mem::take(&mut self.token), std::mem::take(&mut self.client));
        AccessTable::new(tokens, clients)
    }
}

/// Describes an error without the line of the text, which may contain a password.
fn position_and_reason(text: &str, error: &toml::de::Error) -> String {
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return error.message().to_owned();
    };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|char| *char != '\n').count() + 1;
    format!("line {line}, column {column}: {}", error.message())
}

#[cfg(test)]
mod tests {
    use crate::settings::file::SettingsFile;

    #[test]
    fn error_does_not_show_the_line() {
        let text = "http = '127.0.0.1:1'\nredis = \"redis://:secret@host\nnamespace = 'n'\n";
        let error = SettingsFile::parse(text).expect_err("a text without an end");
        assert!(error.starts_with("line 2, column "), "{error}");
        assert!(!error.contains("secret"), "{error}");
        let error = SettingsFile::parse("redis = 'redis://:secret@host' x\n").expect_err("a second value");
        assert!(
            error.starts_with("line 1, column ") && !error.contains("secret"),
            "{error}"
        );
    }
}
