//! The types of the configuration file of envoyproxy/ratelimit, as YAML.
//!
//! A file is one domain with a tree of descriptors. An unknown field is an error that names its
//! position; fields without a counterpart are read, so that the import can warn of them. Tests:
//! `import/tests.rs`.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The file: one domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DomainConfig {
    pub(super) domain: String,
    #[serde(default)]
    pub(super) descriptors: Vec<DescriptorConfig>,
}

/// A node of the tree.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DescriptorConfig {
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) rate_limit: Option<LimitConfig>,
    #[serde(default)]
    pub(super) descriptors: Vec<DescriptorConfig>,
    #[serde(default)]
    pub(super) shadow_mode: bool,
    #[serde(default)]
    pub(super) quota_mode: bool,
    #[serde(default)]
    pub(super) detailed_metric: bool,
    #[serde(default)]
    pub(super) value_to_metric: bool,
    #[serde(default)]
    pub(super) share_threshold: bool,
    /// Arbitrary content for the answers of the original.
    pub(super) metadata: Option<IgnoredAny>,
}

/// The limit of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitConfig {
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) replaces: Vec<ReplacedLimit>,
    pub(super) unit: Option<String>,
    pub(super) unit_multiplier: Option<u32>,
    pub(super) requests_per_unit: Option<u32>,
    #[serde(default)]
    pub(super) unlimited: bool,
}

/// A limit that another limit replaces.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplacedLimit {
    #[serde(rename = "name")]
    _name: String,
}

impl DescriptorConfig {
    /// Returns the pattern of a rule for this node.
    pub(super) fn pattern(&self) -> String {
        match self.value.as_deref().unwrap_or_default() {
            "" => self.key.clone(),
            value => format!("{}={value}", self.key),
        }
    }

    /// Returns whether the value has a wildcard that is not its last character.
    pub(super) fn has_inner_wildcard(&self) -> bool {
        let value = self.value.as_deref().unwrap_or_default();
        value.strip_suffix('*').unwrap_or(value).contains('*')
    }

    /// Returns whether the entries of this node would match a less specific sibling.
    pub(super) fn is_covered_by(&self, sibling: &Self) -> bool {
        let (value, other) = (
            self.value.as_deref().unwrap_or_default(),
            sibling.value.as_deref().unwrap_or_default(),
        );
        let prefixes_meet = || {
            let (own, other) = (value.trim_end_matches('*'), other.trim_end_matches('*'));
            own.starts_with(other) || (value.ends_with('*') && other.starts_with(own))
        };
        let covers = other.is_empty() || (other.ends_with('*') && prefixes_meet());
        self.key == sibling.key && !value.is_empty() && covers
    }
}

impl LimitConfig {
    /// Returns the length of a period. A month has 30 days and a year 365, as in the original.
    pub(super) fn window(&self) -> Result<String, String> {
        let unit = self.unit.as_deref().ok_or("rate_limit.unit is missing")?;
        let seconds = match unit.to_lowercase().as_str() {
            "second" => 1,
            "minute" => 60,
            "hour" => 3_600,
            "day" => 86_400,
            "week" => 7 * 86_400,
            "month" => 30 * 86_400,
            "year" => 365 * 86_400,
            _ => {
                return Err(format!(
                    "rate_limit.unit is `{unit}`, expected second, minute, hour, day, week, month or year"
                ));
            }
        };
        let seconds = u64::from(self.unit_multiplier.unwrap_or(1).max(1)) * seconds;
        Ok(format!("{seconds}s"))
    }
}
