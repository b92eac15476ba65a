//! Several namespaces of one server: `[namespace.NAME]` in the settings file.
//!
//! The admin part manages all of them. The gateway serves one, because its limits are those of one
//! Redis deployment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::settings::secret_file::read_secret;
use crate::settings::{RedisDeployment, SettingsError, StoreSettings};

/// The colours of a namespace on the pages.
pub(crate) const NAMESPACE_COLOURS: [&str; 5] = ["grey", "blue", "green", "amber", "red"];

/// A namespace that the admin part manages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NamespaceSettings {
    /// The name, which is the first part of every key in Redis.
    pub name: String,
    /// The Redis deployment.
    pub store: StoreSettings,
    /// The name on the pages, until an administrator chooses another one.
    pub label: Option<String>,
    /// The colour on the pages, until an administrator chooses another one.
    pub colour: Option<String>,
}

/// The setting `namespace`: the name of one namespace, or a table for each of several.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a name, or tables such as [namespace.prod] with redis, redis_file, redis_cluster, redis_sentinel, \
                 sentinel_master, label and colour"
)]
pub(super) enum NamespaceField {
    Name(String),
    Tables(BTreeMap<String, NamespaceTable>),
}

/// The table `[namespace.NAME]`.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceTable {
    redis: Option<String>,
    redis_file: Option<PathBuf>,
    redis_cluster: Option<Vec<String>>,
    redis_sentinel: Option<Vec<String>>,
    sentinel_master: Option<String>,
    label: Option<String>,
    colour: Option<String>,
}

/// Shows no URL.
impl std::fmt::Debug for NamespaceTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NamespaceTable(..)")
    }
}

/// The settings that name a Redis deployment.
#[derive(Clone, Default)]
pub(super) struct DeploymentFields {
    pub(super) redis: Option<String>,
    pub(super) redis_file: Option<PathBuf>,
    pub(super) redis_cluster: Option<Vec<String>>,
    pub(super) redis_sentinel: Option<Vec<String>>,
    pub(super) sentinel_master: Option<String>,
}

impl DeploymentFields {
    /// The deployment; `None` if no setting names one.
    pub(super) fn resolve(self) -> Result<Option<RedisDeployment>, SettingsError> {
        let mut deployments = Vec::new();
        deployments.extend(self.redis.map(RedisDeployment::Standalone));
        if let Some(path) = &self.redis_file {
            deployments.push(RedisDeployment::Standalone(read_secret(path)?));
        }
        deployments.extend(self.redis_cluster.map(RedisDeployment::Cluster));
        if let Some(urls) = self.redis_sentinel {
            let master = self.sentinel_master.ok_or_else(|| {
                SettingsError::Conflict(
                    "redis_sentinel needs sentinel_master, the name of the primary".to_owned(),
                )
            })?;
            deployments.push(RedisDeployment::Sentinel { urls, master });
        }
        if deployments.len() > 1 {
            return Err(SettingsError::Conflict(
                "several Redis deployments are set, expected one of redis, redis_file, redis_cluster and redis_sentinel"
                    .to_owned(),
            ));
        }
        Ok(deployments.pop())
    }
}

/// The namespaces of the tables.
pub(super) fn resolve(
    tables: &BTreeMap<String, NamespaceTable>,
) -> Result<Vec<NamespaceSettings>, SettingsError> {
    let mut namespaces = Vec::with_capacity(tables.len());
    for (name, table) in tables {
        let fields = DeploymentFields {
            redis: table.redis.clone(),
            redis_file: table.redis_file.clone(),
            redis_cluster: table.redis_cluster.clone(),
            redis_sentinel: table.redis_sentinel.clone(),
            sentinel_master: table.sentinel_master.clone(),
        };
        let deployment = fields.resolve()?.ok_or_else(|| {
            SettingsError::Conflict(format!(
                "namespace.{name} names no Redis, expected one of redis, redis_file, redis_cluster and redis_sentinel"
            ))
        })?;
        if let Some(colour) = &table.colour
            && !NAMESPACE_COLOURS.contains(&colour.as_str())
        {
            return Err(SettingsError::Invalid {
                setting: "namespace.*.colour",
                value: colour.clone(),
                expected: "grey, blue, green, amber or red",
            });
        }
        namespaces.push(NamespaceSettings {
            name: name.clone(),
            store: StoreSettings::Redis {
                deployment,
                namespace: name.clone(),
            },
            label: table.label.clone(),
            colour: table.colour.clone(),
        });
    }
    Ok(namespaces)
}

/// The namespace that the gateway serves: the named one, or the only one.
pub(super) fn of_gateway<'a>(
    namespaces: &'a [NamespaceSettings],
    named: Option<&str>,
) -> Result<&'a NamespaceSettings, SettingsError> {
    let found = match (named, namespaces) {
        (None, [only]) => Some(only),
        (None, _) => {
            let reason =
                "several namespaces are set: name that of the gateway by --namespace or gateway_namespace";
            return Err(SettingsError::Conflict(reason.to_owned()));
        }
        (Some(named), all) => all.iter().find(|of| of.name == named),
    };
    found.ok_or_else(|| SettingsError::Invalid {
        setting: "namespace",
        value: named.unwrap_or_default().to_owned(),
        expected: "one of the tables [namespace.NAME] of the settings file",
    })
}
