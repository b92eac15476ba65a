//! Values that explain a decision to operators, in the same words for all protocols.

use limiter_core::Origin;
use limiter_core::registry::Rule;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::gateway::Gateway;
use crate::settings::KeyForm;

impl Gateway {
    /// Returns the revision of the registry: that of Redis, or that of the cache after a start
    /// without Redis, or else the number of changes in this process.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.served_revision().current()
    }

    /// Returns the key of a limit, with its parts separated by ` / `, as the settings allow it to
    /// be shown.
    #[must_use]
    pub fn shown_key(&self, key: &str) -> Option<String> {
        match self.explanation().key_form {
            KeyForm::Omit => None,
            KeyForm::Plain => Some(key.to_owned()),
            KeyForm::Hashed => self.fingerprints().of(key),
        }
    }

    /// Returns the address of the page that explains a denial at a time in microseconds; `None`
    /// without an address of the pages. `key` is the shown form of the key.
    pub(crate) fn explain_url(&self, policy: &str, key: Option<&str>, at: i64) -> Option<String> {
        let public_url = self.explanation().public_url.as_deref()?;
        let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let (namespace, policy) = (encode(self.namespace()), encode(policy));
        let key = key.map(|key| format!("&key={}", encode(key))).unwrap_or_default();
        Some(format!(
            "{public_url}/e/{namespace}/explain?policy={policy}{key}&at={at}"
        ))
    }
}

/// Returns a rule as one line: its domain and patterns, such as `edge: route=login,
/// remote_address`.
#[must_use]
pub(crate) fn rule_text(rule: &Rule) -> String {
    let patterns: Vec<String> = rule.patterns().iter().map(ToString::to_string).collect();
    let more = if rule.allows_more_entries() { ", ..." } else { "" };
    let patterns = format!("{}{more}", patterns.join(", "));
    match rule.domain() {
        Some(domain) => format!("{domain}: {patterns}"),
        None => patterns,
    }
}

/// Returns the name of an origin.
#[must_use]
pub fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Redis => "redis",
        Origin::DenyCache => "deny_cache",
        Origin::Memory => "memory",
        Origin::Lease => "lease",
        Origin::LocalFallback => "local_fallback",
        Origin::FailedOpen => "failed_open",
        Origin::FailedClosed => "failed_closed",
        Origin::KeyList => "key_list",
        Origin::Off => "off",
        Origin::Suspension => "suspension",
        Origin::Block => "block",
        _ => "none",
    }
}
