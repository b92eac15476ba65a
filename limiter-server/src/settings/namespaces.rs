//! Several namespaces of one server: `[namespace.NAME]` in the settings file.
//!
//! The admin part manages all of them. The gateway serves one, because its limits are those of one
//! Redis deployment. Tests: `tests/control_plane/namespaces.rs`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::settings::store::StoreArgs;
use crate::settings::{SettingsError, StoreSettings};

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
                 sentinel_master, their files, label and colour"
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
    redis_cluster_file: Option<PathBuf>,
    redis_sentinel: Option<Vec<String>>,
    redis_sentinel_file: Option<PathBuf>,
    sentinel_master: Option<String>,
    sentinel_master_file: Option<PathBuf>,
    label: Option<String>,
    colour: Option<String>,
}

impl NamespaceTable {
    fn store(&self) -> StoreArgs {
        StoreArgs {
            redis: self.redis.clone(),
            redis_file: self.redis_file.clone(),
            redis_cluster: self.redis_cluster.clone(),
            redis_cluster_file: self.redis_cluster_file.clone(),
            redis_sentinel: self.redis_sentinel.clone(),
            redis_sentinel_file: self.redis_sentinel_file.clone(),
            sentinel_master: self.sentinel_master.clone(),
            sentinel_master_file: self.sentinel_master_file.clone(),
            namespace: None,
        }
    }
}

/// Shows no URL.
impl std::fmt::Debug for NamespaceTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NamespaceTable(..)")
    }
}

/// Returns the namespaces of the tables.
pub(super) fn resolve(
    tables: &BTreeMap<String, NamespaceTable>,
) -> Result<Vec<NamespaceSettings>, SettingsError> {
    let mut namespaces = Vec::with_capacity(tables.len());
    for (name, table) in tables {
        let deployment = table.store().deployment()?.ok_or_else(|| {
            SettingsError::Conflict(format!(
                "namespace.{name} names no Redis, expected one of redis, redis_file, redis_cluster, \
                 redis_cluster_file, redis_sentinel and redis_sentinel_file"
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

/// Returns the namespace that the gateway serves: the named one, or the only one.
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
