//! Scopes: an action on a pattern of domains, policies or apps.
//!
//! A client has a list of scopes, and each permits one action on the targets of its pattern: an
//! exact name, or a prefix with `*`. The scope `check` includes `peek`; no other action includes
//! another one.
//!
//! Invariants: a scope of apps permits a policy only if it matches all apps of the policy, and
//! never a policy of all apps; a target without a name matches `*` only. Tests: below, and
//! `tests/access.rs`.

use std::fmt;
use std::str::FromStr;

use limiter_core::registry::PolicyRegistry;
use serde::Deserialize;

/// An operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Charge a limit.
    Check,
    /// Read a limit without a charge. The scope `check` includes it.
    Peek,
    /// Acquire, renew and release a concurrency permit.
    Acquire,
    /// Reserve and settle an amount.
    Reserve,
    /// Return an amount.
    Refund,
    /// Delete the usage of a key.
    Reset,
    /// Apply limits that the client states itself, which belong to no policy.
    Namespace,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 7] = [
        Self::Check,
        Self::Peek,
        Self::Acquire,
        Self::Reserve,
        Self::Refund,
        Self::Reset,
        Self::Namespace,
    ];

    /// Returns the name in scopes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Acquire => "acquire",
            Self::Reserve => "reserve",
            Self::Refund => "refund",
            Self::Reset => "reset",
            Self::Namespace => "namespace",
        }
    }

    /// Returns whether a scope for this action permits another action.
    fn includes(self, other: Self) -> bool {
        self == other || (self == Self::Check && other == Self::Peek)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The object of an action.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Target<'a> {
    /// The domain of the request, in protocols that have domains.
    pub domain: Option<&'a str>,
    /// The name of the policy.
    pub policy: Option<&'a str>,
    /// The registry, which knows the apps of the policy.
    pub registry: Option<&'a PolicyRegistry>,
    /// The apps of a policy that the registry does not have any more.
    pub(crate) removed_apps: Option<&'a [String]>,
}

impl<'a> Target<'a> {
    /// No domain and no policy: limits that a client states itself.
    pub const NONE: Target<'static> = Target {
        domain: None,
        policy: None,
        registry: None,
        removed_apps: None,
    };

    /// Returns a policy.
    #[must_use]
    pub const fn policy(name: &'a str) -> Self {
        Self {
            policy: Some(name),
            ..Self::NONE
        }
    }

    /// Adds the registry to the target. Without it, scopes of apps do not apply.
    #[must_use]
    pub const fn in_registry(self, registry: &'a PolicyRegistry) -> Self {
        Self {
            registry: Some(registry),
            ..self
        }
    }

    /// Returns a domain without a policy.
    #[must_use]
    pub const fn domain(name: &'a str) -> Self {
        Self {
            domain: Some(name),
            ..Self::NONE
        }
    }

    /// Adds the domain under which the policy is requested.
    #[must_use]
    pub const fn in_domain(self, name: &'a str) -> Self {
        Self {
            domain: Some(name),
            ..self
        }
    }
}

/// An action that a client may take on some targets. Text form: `refund:policy=search`,
/// `check:domain=edge*`, `acquire:app=billing`, `reset:*`, `namespace`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Scope {
    action: Action,
    targets: TargetPattern,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TargetPattern {
    Any,
    Domain(NamePattern),
    Policy(NamePattern),
    App(NamePattern),
}

/// A name, or a prefix followed by `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamePattern {
    Exact(String),
    Prefix(String),
}

impl NamePattern {
    fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.to_owned()),
            None => Self::Exact(text.to_owned()),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => name == exact,
            Self::Prefix(prefix) => name.starts_with(prefix.as_str()),
        }
    }
}

impl Scope {
    /// Returns whether the scope permits an action on a target.
    #[must_use]
    pub fn permits(&self, action: Action, target: &Target<'_>) -> bool {
        self.action.includes(action)
            && match &self.targets {
                TargetPattern::Any => true,
                TargetPattern::Domain(pattern) => target.domain.is_some_and(|name| pattern.matches(name)),
                TargetPattern::Policy(pattern) => target.policy.is_some_and(|name| pattern.matches(name)),
                // A policy of several apps needs all of them; a policy of all apps belongs to none.
                TargetPattern::App(pattern) => {
                    let entry = target
                        .registry
                        .zip(target.policy)
                        .and_then(|(registry, name)| registry.get(name));
                    let Some(entry) = entry else {
                        let apps = target.removed_apps.filter(|apps| !apps.is_empty());
                        return apps.is_some_and(|apps| apps.iter().all(|app| pattern.matches(app)));
                    };
                    entry
                        .apps()
                        .is_some_and(|mut apps| apps.all(|app| pattern.matches(app)))
                }
            }
    }

    /// Returns the action.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.action
    }
}

impl TryFrom<String> for Scope {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, targets) = match text.split_once(':') {
            Some((name, targets)) => (name, Some(targets)),
            None => (text, None),
        };
        if name == "admin" {
            return Err(format!(
                "scope `{text}` is one of the admin API, which accepts tokens of the database only: use `token issue` or the \
                 page Tokens"
            ));
        }
        let action = Action::ALL.into_iter().find(|action| action.name() == name);
        let action = action.ok_or_else(|| {
            let names: Vec<_> = Action::ALL.iter().map(|action| action.name()).collect();
            format!(
                "scope `{text}` has no known action, expected one of {}",
                names.join(", ")
            )
        })?;
        let targets = match (action, targets) {
            (Action::Namespace, None) => TargetPattern::Any,
            (Action::Namespace, Some(_)) => {
                return Err(format!("scope `{text}` names a target, expected `namespace` alone"));
            }
            (_, Some("*")) => TargetPattern::Any,
            (_, targets) => targets.and_then(target_pattern).ok_or_else(|| {
                format!("scope `{text}` names no target, expected {action}:policy=NAME, {action}:domain=NAME, {action}:app=NAME or {action}:*")
            })?,
        };
        Ok(Self { action, targets })
    }
}

fn target_pattern(text: &str) -> Option<TargetPattern> {
    let (kind, pattern) = text.split_once('=')?;
    if pattern.is_empty() {
        return None;
    }
    let pattern = NamePattern::new(pattern);
    match kind {
        "domain" => Some(TargetPattern::Domain(pattern)),
        "policy" => Some(TargetPattern::Policy(pattern)),
        "app" => Some(TargetPattern::App(pattern)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::registry::PolicyRegistry;

    use super::*;

    fn permits(scope: &str, action: Action, target: &Target<'_>) -> bool {
        scope.parse::<Scope>().unwrap().permits(action, target)
    }

    #[test]
    fn scope_permits_its_action_on_its_targets() {
        let search = Target::policy("search");
        assert!(permits("refund:policy=search", Action::Refund, &search));
        assert!(permits("refund:policy=se*", Action::Refund, &search));
        assert!(permits("refund:*", Action::Refund, &search));
        assert!(!permits("refund:policy=se", Action::Refund, &search));
        assert!(!permits("refund:policy=search", Action::Reset, &search));
        assert!(!permits("refund:domain=search", Action::Refund, &search));
        let edge = search.in_domain("edge");
        assert!(permits("check:domain=edge", Action::Check, &edge));
        assert!(permits("check:policy=search", Action::Check, &edge));
        assert!(!permits("check:domain=edge-2", Action::Check, &edge));
        assert!(!permits(
            "check:policy=search",
            Action::Check,
            &Target::domain("edge")
        ));
    }

    #[test]
    fn check_includes_peek_and_nothing_else() {
        for action in Action::ALL {
            let expected = matches!(action, Action::Check | Action::Peek);
            assert_eq!(
                permits("check:*", action, &Target::policy("p")),
                expected,
                "{action}"
            );
        }
        assert!(!permits("peek:*", Action::Check, &Target::policy("p")));
        assert!(permits("namespace", Action::Namespace, &Target::NONE));
    }

    #[test]
    fn app_scope_needs_all_apps_of_the_policy() {
        let text = "[policy.one]\nalgorithm = 'sliding_window'\nlimit = 1\nwindow = '1s'\napps = ['billing']\n\
                    [policy.two]\nalgorithm = 'sliding_window'\nlimit = 1\nwindow = '1s'\napps = ['billing', 'mail']\n\
                    [policy.all]\nalgorithm = 'sliding_window'\nlimit = 1\nwindow = '1s'\n";
        let registry = PolicyRegistry::from_toml(text).unwrap();
        for (name, expected) in [("one", true), ("two", false), ("all", false)] {
            let target = Target::policy(name).in_registry(&registry);
            assert_eq!(
                permits("acquire:app=billing", Action::Acquire, &target),
                expected,
                "{name}"
            );
            assert_eq!(permits("acquire:app=*", Action::Acquire, &target), name != "all");
        }
    }

    #[test]
    fn malformed_scopes_are_rejected() {
        for text in [
            "",
            "check",
            "check:",
            "check:search",
            "check:policy=",
            "check:team=a",
            "admin:*",
            "namespace:*",
            "Check:*",
            " check:*",
        ] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
    }
}
