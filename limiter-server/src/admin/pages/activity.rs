//! Denied and nearly exhausted keys, as pages read and show them: those of the gateway of this
//! node, and those that library processes report.
//!
//! API routes below the namespace: `GET keys/activity`, and `GET denials` for recorded samples.
//! Tests: below, `tests/denials.rs`, `tests/pages/explain.rs`.

use serde::Deserialize;

use crate::admin::numbers::{count, grouped};
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::NavLink;
use crate::admin::pages::links;
use crate::admin::pages::time::PageTime;
use crate::key_text::is_cut;
use crate::store::UsageSpan;

/// The number of keys in a list.
const SHOWN: usize = 8;
const HOUR: i64 = 3_600_000_000;

/// A key of a policy.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct KeyActivityView {
    pub(super) policy: String,
    pub(super) key: String,
    #[serde(default)]
    pub(super) fingerprint: Option<String>,
    denied: u64,
    error: u64,
    /// The app of library processes, empty for processes without one; `None` for the gateway.
    app: Option<String>,
    rule: Option<String>,
    revision: Option<u64>,
    origin: Option<String>,
    /// The usage of the limit; `None` if it is not known.
    #[serde(default)]
    pub(super) used_percent: Option<u8>,
    /// The node that recorded the sample; `None` for library processes and outside of samples.
    #[serde(default)]
    node: Option<String>,
    pub(super) last_at: PageTime,
}

/// The recorded samples of an hour, from the API.
#[derive(Debug, Deserialize)]
pub(super) struct DenialListView {
    /// The fingerprint of the wanted key; `None` without a key, and while it is not known.
    pub(super) fingerprint: Option<String>,
    pub(super) denials: Vec<KeyActivityView>,
}

/// The keys of a range of time, from the API.
#[derive(Debug, Deserialize)]
pub(super) struct KeyActivityListView {
    pub(super) node: String,
    pub(super) keys: Option<Vec<KeyActivityView>>,
    /// True if this node has a gateway.
    sees_calls: bool,
    /// The start of the record of this node, if it is later than that of the range.
    since: Option<PageTime>,
    utilisation: Option<UtilisationView>,
}

/// The usage of the limits of a policy in one minute, at the gateway of this node.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct UtilisationView {
    pub(super) at: PageTime,
    pub(super) highest_percent: u8,
    /// The key with this usage, if it is known.
    fullest: Option<String>,
    nearly_full: usize,
    is_lower_bound: bool,
}

/// A key with its pages.
#[derive(Debug)]
pub(super) struct KeyActivityRow {
    pub(super) of: KeyActivityView,
    pub(super) policy_href: String,
    /// The page on which the key is raised, blocked and reset; `None` for the record of a longer
    /// key, which names no key.
    pub(super) customer: Option<String>,
    pub(super) explain: String,
}

/// The denied keys and the fullest other keys of the last minutes; `None` if neither this node nor
/// a library process sees calls.
#[derive(Debug)]
pub(super) struct KeyTables {
    pub(super) denied: Option<Vec<KeyActivityRow>>,
    pub(super) full: Option<Vec<KeyActivityRow>>,
    /// The node whose gateway sees the calls.
    pub(super) node: String,
    pub(super) sees_calls: bool,
    /// The start of the record of the node, if it is younger than the range.
    pub(super) since: Option<PageTime>,
    /// The utilisation of the policy; `None` without a call in the last minutes.
    pub(super) utilisation: Option<UtilisationView>,
    /// The fullest key with its page, if it is known.
    pub(super) fullest: Option<NavLink>,
}

impl UtilisationView {
    /// `3 keys`, or `at least 20 keys`.
    pub(super) fn nearly_full(&self) -> String {
        let keys = count(self.nearly_full, "key");
        match self.is_lower_bound {
            true => format!("at least {keys}"),
            false => keys,
        }
    }
}

impl KeyActivityView {
    pub(super) fn is_denied(&self) -> bool {
        self.denied > 0
    }

    /// Returns the number of denials. A count with an error is a range.
    pub(super) fn denied_text(&self) -> String {
        match self.error {
            0 => grouped(self.denied),
            error => {
                let least = self.denied.saturating_sub(error);
                format!("{} to {}", grouped(least), grouped(self.denied))
            }
        }
    }

    /// Returns the number of denials with a noun: `1 denied call`, `90 to 100 denied calls`.
    pub(super) fn denied_calls(&self) -> String {
        match (self.denied, self.error) {
            (1, 0) => "1 denied call".to_owned(),
            _ => format!("{} denied calls", self.denied_text()),
        }
    }

    /// Returns the class of the usage: red without anything left.
    pub(super) fn class(&self) -> &'static str {
        match self.used_percent {
            Some(100..) => "bad",
            Some(80..) => "waiting",
            _ => "ok",
        }
    }

    /// Returns the word of the usage.
    pub(super) fn used_word(&self) -> &'static str {
        match self.used_percent {
            Some(100..) => "Full",
            Some(80..) => "Nearly full",
            _ => "In use",
        }
    }

    pub(super) fn is_by_gateway(&self) -> bool {
        self.app.is_none()
    }

    /// Returns the circumstances of the last denial, as far as they are recorded: rule, revision of
    /// the registry, origin. Pages show the revision of the policy elsewhere.
    pub(super) fn circumstances(&self) -> String {
        let rule = self.rule.as_ref().map(|rule| format!(", by rule {rule}"));
        let revision = self
            .revision
            .map(|number| format!(", registry revision {number}"));
        let origin = self
            .origin
            .as_ref()
            .map(|origin| format!(", decided by {origin}"));
        let parts = [rule, revision, origin];
        parts.into_iter().flatten().collect()
    }

    /// Returns the place of the decision: a node, or library processes.
    pub(super) fn place(&self) -> String {
        match &self.node {
            Some(node) => format!("at node {node}"),
            None => format!("by the {}", self.source()),
        }
    }

    /// Returns the component that decided the calls.
    pub(super) fn source(&self) -> String {
        match self.app.as_deref() {
            None => "gateway".to_owned(),
            Some("") => "library".to_owned(),
            Some(app) => format!("library in {app}"),
        }
    }
}

impl KeyActivityRow {
    pub(super) fn new(environment: &str, of: KeyActivityView) -> Self {
        let explain = links::page(environment, &["explain"]);
        let key = match is_cut(&of.key) {
            true => String::new(),
            false => format!("&key={}", links::encode(&of.key)),
        };
        Self {
            policy_href: links::page(environment, &["policies", &of.policy]),
            customer: (!is_cut(&of.key)).then(|| links::customer(environment, &of.key)),
            explain: format!(
                "{explain}?policy={}{key}&at={}",
                links::encode(&of.policy),
                of.last_at.0
            ),
            of,
        }
    }
}

/// Reads the keys of a policy, or of all, in a range of time.
pub(super) async fn read(
    caller: &PageCaller,
    environment: &str,
    policy: Option<&str>,
    range: Option<(i64, i64)>,
) -> Result<KeyActivityListView, PageFailure> {
    let mut query = Vec::new();
    if let Some(policy) = policy {
        query.push(format!("policy={}", links::encode(policy)));
    }
    if let Some((from, to)) = range {
        query.push(format!("from={from}&to={to}"));
    }
    let path = links::api(environment, &["keys", "activity"]);
    caller.api.get(&format!("{path}?{}", query.join("&"))).await
}

/// Reads the recorded samples of a policy in the hour that contains a time, of one key or of all.
pub(super) async fn samples(
    caller: &PageCaller,
    environment: &str,
    (policy, key): (&str, &str),
    at: i64,
) -> Result<DenialListView, PageFailure> {
    let start = UsageSpan::Hour.start(at);
    let mut query = format!("policy={}&from={start}&to={}", links::encode(policy), start + 1);
    if !key.is_empty() {
        query.push_str(&format!("&key={}", links::encode(key)));
    }
    let path = links::api(environment, &["denials"]);
    caller.api.get(&format!("{path}?{query}")).await
}

/// Returns the key of a fingerprint, if it is among the denied keys of a policy at a time.
pub(super) async fn key_of_fingerprint(
    caller: &PageCaller,
    environment: &str,
    (policy, fingerprint): (&str, &str),
    at: i64,
) -> Result<Option<String>, PageFailure> {
    let range = (at.saturating_sub(HOUR), at.saturating_add(HOUR));
    let list = read(caller, environment, Some(policy), Some(range)).await?;
    let samples = samples(caller, environment, (policy, ""), at).await?;
    let mut keys = list.keys.into_iter().flatten().chain(samples.denials);
    let found = keys.find(|of| of.fingerprint.as_deref() == Some(fingerprint));
    Ok(found.map(|of| of.key))
}

impl KeyTables {
    /// Returns the keys of a policy, or of all.
    pub(super) async fn recent(
        caller: &PageCaller,
        environment: &str,
        policy: Option<&str>,
    ) -> Result<Self, PageFailure> {
        let list = read(caller, environment, policy, None).await?;
        let keys = list.keys.as_deref();
        let rows = |is_denied: bool| {
            let of_kind = keys?.iter().filter(|of| of.is_denied() == is_denied);
            let shown = of_kind.take(SHOWN).cloned();
            Some(shown.map(|of| KeyActivityRow::new(environment, of)).collect())
        };
        let fullest = list.utilisation.as_ref().and_then(|of| of.fullest.clone());
        let fullest = fullest.filter(|key| !is_cut(key));
        Ok(Self {
            fullest: fullest.map(|key| NavLink {
                href: links::customer(environment, &key),
                text: key,
                is_current: false,
            }),
            since: list.since,
            denied: rows(true),
            full: rows(false),
            sees_calls: list.sees_calls,
            utilisation: list.utilisation,
            node: list.node,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_have_separated_thousands() {
        let denied = |denied: u64, error: u64| {
            let fields = serde_json::json!({
                "policy": "search", "key": "acme", "denied": denied, "error": error, "last_at": 0,
            });
            let key: KeyActivityView = serde_json::from_value(fields).unwrap();
            key.denied_calls()
        };
        assert_eq!(denied(1, 0), "1 denied call");
        assert_eq!(denied(12_428, 0), "12,428 denied calls");
        assert_eq!(denied(12_428, 2_000), "10,428 to 12,428 denied calls");
    }
}
