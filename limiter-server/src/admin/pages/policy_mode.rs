//! The mode of a policy: its own, or that of the suspensions that replace it. Tests: below.

use crate::admin::numbers::grouped;
use crate::admin::pages::overlays::{OverlayReach, SuspensionView};
use crate::admin::pages::views::PolicyView;

/// The mode of a policy with the active suspensions.
#[derive(Debug)]
pub(super) struct PolicyMode {
    /// The class and the word of the own mode; `None` if a suspension replaces it everywhere.
    pub(super) own: Option<(&'static str, &'static str)>,
    /// The suspensions that apply, in descending order of precedence.
    pub(super) suspended: Vec<SuspendedMode>,
}

/// A suspension of a policy.
#[derive(Debug)]
pub(super) struct SuspendedMode {
    /// `Suspended`, or `Suspended in app shop` if other programs are not concerned.
    pub(super) text: String,
    pub(super) consequence: &'static str,
}

impl PolicyMode {
    /// Returns the mode of a policy with the active suspensions of its environment.
    pub(super) fn of(policy: &PolicyView, suspensions: &[SuspensionView]) -> Self {
        let apps = policy.apps.as_deref();
        let mut applying: Vec<(&SuspensionView, OverlayReach)> = suspensions
            .iter()
            .filter_map(|of| Some((of, of.reach(&policy.name, apps)?)))
            .collect();
        applying.sort_by_key(|(of, _)| of.rank());
        // Suspensions of lower precedence than one that applies everywhere have no effect.
        let everywhere = applying
            .iter()
            .position(|(_, reach)| *reach == OverlayReach::Everywhere);
        if let Some(last) = everywhere {
            applying.truncate(last + 1);
        }
        let own = (policy.enforcement_class(), policy.enforcement_word());
        Self {
            own: everywhere.is_none().then_some(own),
            suspended: applying
                .into_iter()
                .map(|(of, reach)| SuspendedMode {
                    text: match reach {
                        OverlayReach::Everywhere => "Suspended".to_owned(),
                        OverlayReach::ProgramsOf(app) => format!("Suspended in app {app}"),
                    },
                    consequence: of.consequence(),
                })
                .collect(),
        }
    }

    /// Returns the own mode in a sentence, if it applies: `in shadow mode`.
    pub(super) fn own_phrase(&self) -> Option<&'static str> {
        self.own.map(|(_, word)| match word {
            "Enforced" => "enforced",
            "Shadow" => "in shadow mode",
            "Off" => "off",
            _ => "in a mode that is not known",
        })
    }

    /// Returns whether the own mode applies and has this name.
    pub(super) fn is(&self, word: &str) -> bool {
        self.own.is_some_and(|(_, own)| own == word)
    }
}

/// Returns the number of policies by mode: `12 policies decide their calls: 9 enforced, 3 in shadow
/// mode.`
pub(super) fn summary(modes: &[PolicyMode]) -> String {
    const PHRASES: [&str; 5] = [
        "enforced",
        "in shadow mode",
        "off",
        "in a mode that is not known",
        "suspended",
    ];
    let phrase = |mode: &PolicyMode| mode.own_phrase().unwrap_or("suspended");
    let counts = PHRASES.map(|of| (of, modes.iter().filter(|mode| phrase(mode) == of).count()));
    let counts = counts.iter().filter(|(_, number)| *number > 0);
    let counts: Vec<String> = counts
        .map(|(phrase, number)| format!("{} {phrase}", grouped(number)))
        .collect();
    match modes.len() {
        0 => "No policy has this scope.".to_owned(),
        1 => format!("1 policy decides its calls: {}.", counts.join(", ")),
        number => {
            let number = grouped(number);
            format!("{number} policies decide their calls: {}.", counts.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspension(scope: &str, enforcement: &str) -> SuspensionView {
        let fields = serde_json::json!({
            "id": scope,
            "scope": scope,
            "enforcement": enforcement,
            "until": i64::MAX,
            "active": true,
        });
        serde_json::from_value(fields).unwrap()
    }

    fn mode(apps: Option<&[&str]>, suspensions: &[(&str, &str)]) -> (Option<&'static str>, Vec<String>) {
        let policy = serde_json::json!({
            "name": "search",
            "enforcement": "enforce",
            "apps": apps,
            "toml": "",
            "revision": 1,
            "managed_by": "ui",
            "state": "published",
            "updated_by": "ann",
            "updated_at": 0,
        });
        let policy: PolicyView = serde_json::from_value(policy).unwrap();
        let suspensions: Vec<SuspensionView> = suspensions
            .iter()
            .map(|(scope, mode)| suspension(scope, mode))
            .collect();
        let mode = PolicyMode::of(&policy, &suspensions);
        let texts = mode
            .suspended
            .iter()
            .map(|of| format!("{}: {}", of.text, of.consequence));
        (mode.own.map(|(_, word)| word), texts.collect())
    }

    #[test]
    fn suspension_replaces_own_mode() {
        let shop = Some(&["shop"][..]);
        assert_eq!(mode(shop, &[]), (Some("Enforced"), vec![]));
        assert_eq!(
            mode(shop, &[("policy:login", "off"), ("app:bank", "off")]).0,
            Some("Enforced")
        );
        for scope in ["policy:search", "app:shop", "all"] {
            let expected = vec!["Suspended: All calls are denied.".to_owned()];
            assert_eq!(mode(shop, &[(scope, "deny")]), (None, expected), "{scope}");
        }
        // The suspension of the policy precedes the others.
        let (_, texts) = mode(shop, &[("all", "deny"), ("policy:search", "off")]);
        assert_eq!(texts, ["Suspended: All calls pass and use no permits."]);
    }

    #[test]
    fn modes_are_counted() {
        let mode = |own| PolicyMode {
            own,
            suspended: Vec::new(),
        };
        assert_eq!(summary(&[]), "No policy has this scope.");
        let enforced = || mode(Some(("ok", "Enforced")));
        assert_eq!(summary(&[enforced()]), "1 policy decides its calls: 1 enforced.");
        let modes = [
            mode(None),
            enforced(),
            mode(Some(("shadow", "Shadow"))),
            enforced(),
        ];
        assert_eq!(
            summary(&modes),
            "4 policies decide their calls: 2 enforced, 1 in shadow mode, 1 suspended."
        );
    }

    #[test]
    fn suspension_of_an_app_applies_to_its_programs_alone() {
        for apps in [None, Some(&["shop", "web"][..])] {
            let (own, texts) = mode(apps, &[("app:shop", "deny")]);
            assert_eq!(own, Some("Enforced"));
            assert_eq!(texts, ["Suspended in app shop: All calls are denied."]);
        }
        let (own, texts) = mode(None, &[("all", "off"), ("app:shop", "deny")]);
        assert_eq!(own, None);
        assert_eq!(texts.len(), 2);
    }
}
