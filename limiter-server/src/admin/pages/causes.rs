//! The causes of calls that the store did not decide, in words: an outage, an invalid request.
//!
//! Gateways record the causes. Library processes report outcomes without them, so the page states
//! this limitation instead of a cause. Tests: below.

use crate::admin::numbers::{count, grouped};
use crate::admin::pages::usage::{CountsView, PointListView};

/// A statement about the store in a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoreFact {
    /// True if the store did not decide calls.
    pub(super) is_outage: bool,
    pub(super) text: String,
}

impl StoreFact {
    /// Returns the statements about the counted calls.
    pub(super) fn of(usage: &PointListView, counts: CountsView) -> Vec<Self> {
        let mut facts = Vec::new();
        let mut add = |is_outage, text| facts.push(Self { is_outage, text });
        let without = usage.without_store;
        if without.failed > 0 {
            let text = format!(
                "{} failed, because the store did not answer",
                calls(without.failed)
            );
            add(true, text);
        }
        let decided = without.calls() - without.failed;
        if decided > 0 {
            let verb = if decided == 1 { "was" } else { "were" };
            let (decided, allowed, denied) = (calls(decided), without.allowed(), without.denied());
            let would_deny = match without.would_deny {
                0 => String::new(),
                _ => format!(", {} would be denied", without.would_deny()),
            };
            let text = format!(
                "{decided} {verb} decided without the store, by the local fallback or the failure mode \
                 of the policy: {allowed} allowed, {denied} denied{would_deny}"
            );
            add(true, text);
        }
        let unexplained = counts.failed - usage.invalid - without.failed;
        if unexplained > 0 {
            add(
                false,
                format!("{} failed without a recorded cause", calls(unexplained)),
            );
        }
        if !usage.apps.is_empty() {
            let text = "not known for library processes: their decisions without the store count as \
                        allowed or denied";
            add(false, text.to_owned());
        }
        if facts.is_empty() {
            facts.push(Self {
                is_outage: false,
                text: "none recorded: no gateway decided a call without the store".to_owned(),
            });
        }
        facts
    }
}

/// Returns the part of the failed calls that was invalid, in words.
pub(super) fn invalid_text(invalid: i64) -> String {
    match invalid {
        ..=0 => String::new(),
        1 => ", of which 1 was invalid, such as a cost above the capacity".to_owned(),
        invalid => format!(
            ", of which {} were invalid, such as a cost above the capacity",
            grouped(invalid)
        ),
    }
}

/// `1 call`, `1,200 calls`.
fn calls(number: i64) -> String {
    match number {
        1 => count(1, "call"),
        number => format!("{} calls", grouped(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::pages::usage::AppUsageView;

    fn usage(without_store: CountsView, invalid: i64) -> PointListView {
        PointListView {
            now: 0,
            apps: Vec::new(),
            points: Vec::new(),
            without_store,
            invalid,
        }
    }

    fn failed(failed: i64) -> CountsView {
        CountsView {
            failed,
            ..CountsView::default()
        }
    }

    #[test]
    fn invalid_requests_are_no_outage() {
        let facts = StoreFact::of(&usage(CountsView::default(), 2), failed(2));
        assert!(!facts.iter().any(|fact| fact.is_outage), "{facts:?}");
        let facts = StoreFact::of(&usage(CountsView::default(), 2), failed(3));
        assert_eq!(facts[0].text, "1 call failed without a recorded cause");
    }

    #[test]
    fn decisions_and_failures_without_the_store_are_an_outage() {
        let without = CountsView {
            allowed: 3,
            denied: 1_200,
            ..failed(2)
        };
        let facts = StoreFact::of(&usage(without, 0), failed(2));
        let texts: Vec<&str> = facts.iter().map(|fact| &*fact.text).collect();
        assert!(facts.iter().all(|fact| fact.is_outage), "{texts:?}");
        assert!(
            texts[0].starts_with("2 calls failed, because the store"),
            "{texts:?}"
        );
        assert!(
            texts[1].starts_with("1,203 calls were decided without the store"),
            "{texts:?}"
        );
        assert!(texts[1].ends_with("3 allowed, 1,200 denied"), "{texts:?}");
    }

    #[test]
    fn causes_of_library_processes_are_not_known() {
        let mut of_library = usage(CountsView::default(), 0);
        of_library.apps.push(AppUsageView {
            app: "shop".to_owned(),
            counts: CountsView::default(),
        });
        let facts = StoreFact::of(&of_library, CountsView::default());
        assert!(facts[0].text.starts_with("not known for library"), "{facts:?}");
        let facts = StoreFact::of(&usage(CountsView::default(), 0), CountsView::default());
        assert!(facts[0].text.starts_with("none recorded"), "{facts:?}");
    }
}
