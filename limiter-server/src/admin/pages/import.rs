//! The import of a configuration of envoyproxy/ratelimit: its plan, and the save of all changes.
//!
//! The plan converts the configuration and compares it with the saved policies and rules; a
//! repeated import changes nothing. API routes below the namespace: `GET policies/{name}`,
//! `GET rules`, `POST import`, which saves all changes or none. Test: `tests/pages/start.rs`.

use axum::http::{HeaderName, Method, StatusCode, header};
use limiter_core::registry::Rule;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links;
use crate::admin::pages::policy_list::read;
use crate::admin::pages::views::ProposalView;
use crate::admin::preview::unified_diff;
use crate::admin::sentence::sentence;
use crate::import;
use crate::policy_text::{PolicyText, parse_rules, rules_to_toml};
use crate::secret;

/// The reason in the history.
const REASON: &str = "imported from a configuration of envoyproxy/ratelimit";

/// A policy of the configuration.
#[derive(Debug)]
pub(super) struct ImportedPolicy {
    pub(super) name: String,
    pub(super) before: Option<String>,
    pub(super) after: String,
    text: String,
    /// The saved revision; 0 without one.
    revision: i64,
    /// True if the saved policy equals the imported one.
    pub(super) is_same: bool,
}

/// The changes of an import.
#[derive(Debug)]
pub(super) struct ImportPlan {
    pub(super) policies: Vec<ImportedPolicy>,
    pub(super) warnings: Vec<String>,
    rules: RulesView,
    new_rules: String,
}

/// The rules of a namespace.
#[derive(Debug, Deserialize)]
struct RulesView {
    toml: String,
    revision: i64,
}

impl ImportPlan {
    /// Converts a configuration and compares it with the saved policies and rules.
    pub(super) async fn new(caller: &PageCaller, environment: &str, yaml: &str) -> Result<Self, PageFailure> {
        let invalid = |reason: String| PageFailure::unprocessable(reason);
        let imported = import::convert(yaml).map_err(invalid)?;
        let mut policies = Vec::new();
        for name in imported.registry.names() {
            let text = PolicyText::of(&imported.registry, &name);
            let text = text.ok_or_else(|| invalid(format!("the name of policy `{name}` is too long")))?;
            let saved = match read(caller, environment, &name).await {
                Ok(saved) => Some(saved),
                Err(failure) if failure.status == StatusCode::NOT_FOUND => None,
                Err(failure) => return Err(failure),
            };
            let before = saved
                .as_ref()
                .and_then(|of| PolicyText::parse(&name, &of.toml).ok());
            policies.push(ImportedPolicy {
                before: before.as_ref().map(sentence),
                after: sentence(&text),
                text: text.to_toml(),
                revision: saved.as_ref().map_or(0, |of| of.revision),
                is_same: before.is_some_and(|before| before.has_content_of(&text)),
                name,
            });
        }
        let rules: RulesView = caller.api.get(&links::api(environment, &["rules"])).await?;
        let new_rules = with_rules(&rules.toml, &imported.registry.rules()).map_err(invalid)?;
        Ok(Self {
            policies,
            warnings: imported.warnings,
            rules,
            new_rules,
        })
    }

    /// Identifies the saved revisions with which the configuration was compared.
    pub(super) fn basis(&self) -> String {
        let policies = self.policies.iter().map(|of| json!([of.name, of.revision]));
        let read: Vec<Value> = policies.chain([json!(self.rules.revision)]).collect();
        secret::hash(&Value::Array(read).to_string())
    }

    /// Returns the change of the rules.
    pub(super) fn rules_diff(&self) -> String {
        unified_diff(&self.rules.toml, &self.new_rules)
    }

    /// Returns whether the import closes a proposal.
    pub(super) fn closes(&self, proposal: &ProposalView) -> bool {
        let mut changed = self.policies.iter().filter(|policy| !policy.is_same);
        changed.any(|policy| proposal.replaces(&policy.name, policy.revision))
    }

    /// Saves the changed policies and the rules that name them, all of them or none.
    pub(super) async fn save(&self, caller: &PageCaller, environment: &str) -> Result<(), PageFailure> {
        let changed = self.policies.iter().filter(|policy| !policy.is_same);
        let changed = changed
            .map(|policy| json!({ "name": policy.name, "toml": policy.text, "revision": policy.revision }));
        let policies: Vec<Value> = changed.collect();
        let has_new_rules = self.new_rules != self.rules.toml;
        if policies.is_empty() && !has_new_rules {
            return Ok(());
        }
        let rules = has_new_rules.then(|| json!({ "toml": self.new_rules, "revision": self.rules.revision }));
        let body = json!({ "policies": policies, "rules": rules, "reason": REASON });
        let path = links::api(environment, &["import"]);
        caller.api.send(Method::POST, &path, &[], &body).await?;
        Ok(())
    }
}

/// Returns the text of the saved rules with those of an import behind them. A repeated import adds
/// no rule twice.
fn with_rules(saved: &str, imported: &[Rule]) -> Result<String, String> {
    let mut rules = parse_rules(saved).map_err(|error| error.to_string())?.to_vec();
    let number = rules.len();
    for rule in imported {
        if !rules.contains(rule) {
            rules.push(rule.clone());
        }
    }
    match rules.len() == number {
        true => Ok(saved.to_owned()),
        false => rules_to_toml(&rules).map_err(|error| error.to_string()),
    }
}

/// Returns the condition of a save: the revision that was read.
pub(super) fn condition(revision: i64) -> (HeaderName, String) {
    match revision {
        0 => (header::IF_NONE_MATCH, "*".to_owned()),
        revision => (header::IF_MATCH, revision.to_string()),
    }
}
