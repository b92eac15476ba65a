//! Suspensions and blocks, as pages read them: their state in words, and the programs they apply
//! to.
//!
//! API routes below the namespace: `GET suspensions` and `GET blocks`, also of an earlier time. A
//! gateway applies an overlay of one app only to policies of this app alone (`OverlayReach`).
//! Tests: below, `tests/pages/overlays.rs`, `tests/pages/truth.rs`.

use serde::Deserialize;

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links;
use crate::admin::pages::policy_list::all_policies;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::views::PolicySummary;
use crate::admin::permissions::AdminAction;
use crate::store::now_micros;

/// The banner offers an extension this time before the end of a suspension, in microseconds.
const ENDS_SOON: i64 = 10 * 60_000_000;

/// A suspension.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SuspensionView {
    pub(super) id: String,
    scope: String,
    enforcement: String,
    /// `None` for a suspension that has always been active.
    pub(super) from: Option<PageTime>,
    pub(super) until: PageTime,
    pub(super) by: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) active: bool,
    /// True if the user may extend and end the overlay.
    #[serde(default)]
    pub(super) may_change: bool,
}

#[derive(Debug, Deserialize)]
struct SuspensionListView {
    suspensions: Vec<SuspensionView>,
}

/// A block.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct BlockView {
    pub(super) id: String,
    key: Option<String>,
    network: Option<String>,
    part: Option<String>,
    pub(super) app: Option<String>,
    pub(super) until: Option<PageTime>,
    pub(super) by: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) active: bool,
    /// True if the block applies to the key of the query; `None` without one.
    #[serde(default)]
    pub(super) matches: Option<bool>,
    #[serde(default)]
    pub(super) may_change: bool,
}

/// The programs in which an overlay applies to a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OverlayReach {
    /// All gateways and programs.
    Everywhere,
    /// The library processes of this app: a gateway does not know the app of a call, so it applies
    /// an overlay of one app only to policies of this app alone.
    ProgramsOf(String),
}

#[derive(Debug, Deserialize)]
struct BlockListView {
    blocks: Vec<BlockView>,
}

/// Returns a scope in words.
pub(super) fn scope_text(scope: &str) -> String {
    match scope.split_once(':') {
        Some(("policy", name)) => format!("policy {name}"),
        Some(("app", name)) => format!("app {name}"),
        _ => "all policies".to_owned(),
    }
}

/// Returns the consequence of a suspension for calls.
pub(super) fn consequence(enforcement: &str) -> &'static str {
    match enforcement {
        "off" => "All calls pass and use no permits.",
        "shadow" => "All calls pass. Denials are counted and not applied.",
        "deny" => "All calls are denied.",
        _ => "Not known.",
    }
}

impl SuspensionView {
    pub(super) fn scope_text(&self) -> String {
        scope_text(&self.scope)
    }

    pub(super) fn consequence(&self) -> &'static str {
        consequence(&self.enforcement)
    }

    pub(super) fn ends_soon(&self) -> bool {
        self.until.0.saturating_sub(now_micros()) < ENDS_SOON
    }

    /// Returns the programs in which the suspension applies to a policy; `None` if it does not.
    pub(super) fn reach(&self, policy: &str, apps: Option<&[String]>) -> Option<OverlayReach> {
        match self.scope.split_once(':') {
            Some(("policy", name)) => (name == policy).then_some(OverlayReach::Everywhere),
            Some(("app", app)) => reach(Some(app), apps),
            _ => Some(OverlayReach::Everywhere),
        }
    }

    /// Returns the position among the suspensions of a policy; a lower one takes precedence.
    pub(super) fn rank(&self) -> u8 {
        match self.scope.split_once(':') {
            Some(("policy", _)) => 0,
            Some(("app", _)) => 1,
            _ => 2,
        }
    }

    /// Returns whether the suspension starts later.
    pub(super) fn is_planned(&self) -> bool {
        self.from.is_some_and(|from| from.0 > now_micros())
    }

    pub(super) fn class(&self) -> &'static str {
        match (self.active, self.is_planned()) {
            (true, _) => "bad",
            (false, true) => "waiting",
            (false, false) => "off",
        }
    }

    pub(super) fn word(&self) -> &'static str {
        match (self.active, self.is_planned()) {
            (true, _) => "Suspended",
            (false, true) => "Planned",
            (false, false) => "Ended",
        }
    }

    pub(super) fn remaining(&self) -> String {
        remaining(self.until, now_micros())
    }
}

impl BlockView {
    /// Returns the programs in which the block applies to a policy of these apps; `None` if it does
    /// not.
    pub(super) fn reach(&self, apps: Option<&[String]>) -> Option<OverlayReach> {
        reach(self.app.as_deref(), apps)
    }

    /// Returns the programs in which the block applies to a policy of these apps, in words.
    pub(super) fn place(&self, apps: Option<&[String]>) -> String {
        match self.reach(apps) {
            Some(OverlayReach::ProgramsOf(app)) => format!("programs of app {app}"),
            _ => "all gateways and programs".to_owned(),
        }
    }

    pub(super) fn target(&self) -> String {
        match (&self.key, &self.network, &self.part) {
            (Some(key), _, _) => format!("key {key}"),
            (_, Some(network), _) => format!("network {network}"),
            (_, _, Some(part)) => format!("keys with {part}"),
            _ => "not known".to_owned(),
        }
    }

    pub(super) fn class(&self) -> &'static str {
        if self.active { "bad" } else { "off" }
    }

    pub(super) fn word(&self) -> &'static str {
        if self.active { "Blocked" } else { "Ended" }
    }

    pub(super) fn remaining(&self) -> String {
        self.until
            .map(|until| remaining(until, now_micros()))
            .unwrap_or_default()
    }
}

/// Returns the programs in which an overlay of an app, or of all, applies to a policy of these
/// apps.
fn reach(app: Option<&str>, apps: Option<&[String]>) -> Option<OverlayReach> {
    match (app, apps) {
        (None, _) => Some(OverlayReach::Everywhere),
        (Some(app), Some([only])) if only == app => Some(OverlayReach::Everywhere),
        (Some(app), Some(apps)) if !apps.iter().any(|of| of == app) => None,
        (Some(app), _) => Some(OverlayReach::ProgramsOf(app.to_owned())),
    }
}

/// Returns the remaining time in words.
fn remaining(until: PageTime, now: i64) -> String {
    // The minute that is not over counts as a whole one.
    match until.0.saturating_sub(now).div_euclid(60_000_000) + 1 {
        minutes if minutes <= 0 => "ended".to_owned(),
        minutes @ ..=90 => format!("{minutes} min left"),
        minutes => format!("{} h left", (minutes + 30) / 60),
    }
}

/// Returns the apps in which the user may block keys; an empty name for all apps.
pub(super) fn block_in<'a>(
    caller: &PageCaller,
    environment: &str,
    apps_of_policies: impl IntoIterator<Item = Option<&'a [String]>>,
) -> Vec<String> {
    let apps = apps_of_policies.into_iter().flatten().flatten();
    let mut apps: Vec<String> = apps.cloned().collect();
    apps.sort();
    apps.dedup();
    let may_edit = |apps: Option<&[String]>| caller.may_edit(environment, AdminAction::EditNumbers, apps);
    apps.retain(|app| may_edit(Some(std::slice::from_ref(app))));
    if may_edit(None) {
        apps.insert(0, String::new());
    }
    apps
}

/// Returns the scopes of these policies that the user may suspend, with their names.
pub(super) fn scopes(
    caller: &PageCaller,
    environment: &str,
    policies: &[PolicySummary],
) -> Vec<(String, String)> {
    let mut scopes = Vec::new();
    let is_owner = |apps: Option<&[String]>| caller.may_edit(environment, AdminAction::EditPolicy, apps);
    for policy in policies {
        if is_owner(policy.apps.as_deref()) {
            scopes.push((
                format!("policy:{}", policy.name),
                format!("policy {}", policy.name),
            ));
        }
    }
    let mut apps: Vec<&String> = policies.iter().flat_map(|of| of.apps.iter().flatten()).collect();
    apps.sort();
    apps.dedup();
    for app in apps {
        if is_owner(Some(std::slice::from_ref(app))) {
            scopes.push((format!("app:{app}"), format!("app {app}")));
        }
    }
    if caller.is_admin_of(environment) {
        scopes.push(("all".to_owned(), "all policies of the environment".to_owned()));
    }
    scopes
}

/// Returns the suspensions now, or those that were active at a time.
pub(super) async fn suspensions(
    caller: &PageCaller,
    environment: &str,
    at: Option<i64>,
) -> Result<Vec<SuspensionView>, PageFailure> {
    let path = links::api(environment, &["suspensions"]);
    let list: SuspensionListView = caller.api.get(&(path + &at_query(at))).await?;
    Ok(list.suspensions)
}

/// Returns the active blocks that apply to a policy of these apps.
pub(super) async fn blocks_of_policy(
    caller: &PageCaller,
    environment: &str,
    apps: Option<&[String]>,
) -> Result<Vec<BlockView>, PageFailure> {
    let mut found = blocks(caller, environment, None).await?;
    found.retain(|of| of.active && of.reach(apps).is_some());
    Ok(found)
}

/// Returns the blocks now, or those that were active at a time.
pub(super) async fn blocks(
    caller: &PageCaller,
    environment: &str,
    at: Option<i64>,
) -> Result<Vec<BlockView>, PageFailure> {
    let path = links::api(environment, &["blocks"]);
    let list: BlockListView = caller.api.get(&(path + &at_query(at))).await?;
    Ok(list.blocks)
}

/// Returns the blocks that were active at a time, each with a statement about a key of a policy.
pub(super) async fn blocks_of_key(
    caller: &PageCaller,
    environment: &str,
    (policy, key): (&str, &str),
    at: i64,
) -> Result<Vec<BlockView>, PageFailure> {
    let path = links::api(environment, &["blocks"]);
    let (policy, key) = (links::encode(policy), links::encode(key));
    let query = format!("?at={at}&policy={policy}&key={key}");
    let list: BlockListView = caller.api.get(&(path + &query)).await?;
    Ok(list.blocks)
}

fn at_query(at: Option<i64>) -> String {
    at.map(|at| format!("?at={at}")).unwrap_or_default()
}

/// Returns the active suspensions, for the banner.
pub(super) async fn active(
    caller: &PageCaller,
    environment: &str,
) -> Result<Vec<SuspensionView>, PageFailure> {
    let mut suspensions = suspensions(caller, environment, None).await?;
    suspensions.retain(|of| of.active);
    if suspensions.iter().any(SuspensionView::ends_soon) {
        let policies = all_policies(caller, environment).await?;
        let scopes = scopes(caller, environment, &policies);
        allow_changes(&mut suspensions, &scopes);
    }
    Ok(suspensions)
}

/// Marks the suspensions of scopes that the user may suspend.
pub(super) fn allow_changes(suspensions: &mut [SuspensionView], scopes: &[(String, String)]) {
    for suspension in suspensions {
        suspension.may_change = scopes.iter().any(|(scope, _)| *scope == suspension.scope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_is_in_words() {
        let minute = 60_000_000;
        assert_eq!(remaining(PageTime(5 * minute), 6 * minute + 1), "ended");
        assert_eq!(remaining(PageTime(60 * minute), 1), "60 min left");
        assert_eq!(remaining(PageTime(120 * minute), 1), "2 h left");
        assert_eq!(remaining(PageTime(200 * minute), 0), "3 h left");
    }
}
