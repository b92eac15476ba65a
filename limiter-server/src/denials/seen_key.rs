//! A denied or full key, as the gateway or the library processes saw it.
//!
//! The gateway reports keys as it shows them; library processes report escaped keys for each
//! minute. Both become one type: `read_library` unescapes the parts, and sums the minutes of each
//! policy, key and app. The circumstances of the last denial are those of its latest minute.
//!
//! Tests: below, and `tests/denials.rs`.

use std::collections::BTreeMap;

use limiter_core::usage::{DeniedKey, FleetUsage};
use limiter_core::{StoreError, Timestamp};
use percent_encoding::percent_decode_str;
use serde::Serialize;

use crate::gateway::activity::ActiveKey;
use crate::gateway::explanation::origin_name;
use crate::key_text::joined;

/// A key, as a source saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SeenKey {
    pub(crate) policy: String,
    /// The parts of the key, separated by ` / `.
    pub(crate) key: String,
    /// The app of library processes, empty for processes without one; `None` for the gateway.
    pub(crate) app: Option<String>,
    /// The rule that led to the policy at the last denial; `None` if the client named the policy.
    pub(crate) rule: Option<String>,
    /// The number of denied calls, which is too high by `error` at most.
    pub(crate) denied: u64,
    pub(crate) error: u64,
    /// The highest usage of the limit; `None` if it is not known.
    pub(crate) used_percent: Option<u8>,
    /// The component that made the last denial.
    pub(crate) origin: Option<&'static str>,
    /// The revision of the registry at the last denial.
    pub(crate) revision: Option<u64>,
    pub(crate) first_at: i64,
    pub(crate) last_at: i64,
}

impl SeenKey {
    pub(crate) fn by_gateway(policy: &str, key: ActiveKey) -> Self {
        Self {
            policy: policy.to_owned(),
            key: key.key,
            app: None,
            rule: key.rule,
            denied: key.denied,
            error: key.error,
            used_percent: Some(key.used_percent),
            origin: key.origin.map(origin_name),
            revision: key.revision,
            first_at: key.first_at,
            last_at: key.last_at,
        }
    }

    fn by_library(denied: DeniedKey) -> Self {
        Self {
            key: shown(&denied.key),
            policy: denied.policy,
            app: Some(denied.app.unwrap_or_default()),
            rule: None,
            denied: denied.denied,
            error: denied.error,
            used_percent: None,
            origin: denied.origin.map(origin_name),
            revision: denied.revision,
            first_at: micros(denied.first),
            last_at: micros(denied.last),
        }
    }

    /// Adds another minute of the key.
    fn add(&mut self, other: Self) {
        self.denied = self.denied.saturating_add(other.denied);
        self.error = self.error.saturating_add(other.error);
        self.first_at = self.first_at.min(other.first_at);
        if other.last_at >= self.last_at {
            self.last_at = other.last_at;
            self.origin = other.origin;
            self.revision = other.revision;
        }
    }
}

/// Reads the keys of library processes in Redis from a time to a later one.
pub(crate) async fn read_library(
    usage: &FleetUsage,
    (from, to): (i64, i64),
) -> Result<Vec<SeenKey>, StoreError> {
    let timestamp = |at: i64| Timestamp::from_micros(u64::try_from(at).unwrap_or_default());
    let minutes = usage.denied_keys(timestamp(from), timestamp(to)).await?;
    let mut merged: BTreeMap<(String, String, Option<String>), SeenKey> = BTreeMap::new();
    for denied in minutes.into_iter().flat_map(|minute| minute.keys) {
        let seen = SeenKey::by_library(denied);
        let name = (seen.policy.clone(), seen.key.clone(), seen.app.clone());
        match merged.get_mut(&name) {
            Some(sum) => sum.add(seen),
            None => {
                merged.insert(name, seen);
            }
        }
    }
    Ok(merged.into_values().collect())
}

/// Returns the parts of an escaped key, separated by ` / `.
fn shown(key: &str) -> String {
    let parts: Vec<String> = key
        .split(':')
        .map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned())
        .collect();
    joined(parts)
}

fn micros(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_key_are_separated() {
        for (escaped, expected) in [
            ("acme", "acme"),
            ("acme:ann%3Ax%7Cy", "acme / ann:x|y"),
            ("%C3%A9:%7B1%7D", "é / {1}"),
        ] {
            assert_eq!(shown(escaped), expected);
        }
    }
}
