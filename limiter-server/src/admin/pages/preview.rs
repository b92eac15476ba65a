//! The effect of a change of a policy, as the API states it and as the editor shows it.
//!
//! `PreviewView` is the answer of `POST policies/{name}/preview`, and `ShownPreview` has its texts:
//! warnings as sentences, the reach in apps and replicas, the drawing of the curves. Tests: below,
//! and `tests/pages/preview.rs`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::admin::numbers::{count, grouped};
use crate::admin::pages::curve::{CurveDrawing, CurvesView};
use crate::admin::pages::diff::{DiffLine, diff_lines};
use crate::admin::pages::time::PageTime;
use crate::admin::pages::usage::share;

/// The effect of a change, from the API.
#[derive(Debug, Deserialize)]
pub(super) struct PreviewView {
    before: Option<String>,
    after: String,
    diff: String,
    warnings: Vec<String>,
    effects: Vec<EffectView>,
    curves: CurvesView,
    /// The next resets of aligned periods.
    resets: Vec<PageTime>,
    /// `None` for all apps.
    apps: Option<Vec<String>>,
    /// `None` if the processes that apply the policy are not known.
    replicas: Option<usize>,
    /// The reason why the effect on the entered key is not stated.
    key_note: Option<String>,
    /// The calls of the last day, if the policy leaves shadow mode.
    shadow: Option<ShadowView>,
}

/// The remaining permits of a key.
#[derive(Debug, Deserialize)]
pub(super) struct LeftView {
    left: u64,
    of: u64,
}

/// The effect on a key.
#[derive(Debug, Deserialize)]
pub(super) struct EffectView {
    /// `None` for an example.
    key: Option<String>,
    pub(super) before: LeftView,
    /// By the treatment of usage.
    after: BTreeMap<String, LeftView>,
}

/// The calls of a policy in shadow mode.
#[derive(Clone, Copy, Debug, Deserialize)]
struct ShadowView {
    calls: i64,
    would_deny: i64,
}

/// The effect of a change on the page.
#[derive(Debug)]
pub(super) struct ShownPreview {
    pub(super) before: Option<String>,
    pub(super) after: String,
    pub(super) diff: Vec<DiffLine>,
    pub(super) warnings: Vec<String>,
    pub(super) effects: Vec<EffectView>,
    pub(super) curve: Option<CurveDrawing>,
    pub(super) resets: Vec<PageTime>,
    /// The apps and the replicas to which the change applies.
    pub(super) reach: String,
    pub(super) key_note: Option<String>,
    /// The text that a save stores.
    pub(super) text: String,
}

impl ShownPreview {
    pub(super) fn new(found: PreviewView, text: String) -> Self {
        let mut warnings = found.warnings;
        warnings.extend(found.shadow.map(ShadowView::warning));
        Self {
            reach: reach(found.apps.as_deref(), found.replicas),
            before: found.before,
            after: found.after,
            diff: diff_lines(&found.diff),
            warnings: warnings.iter().map(|of| as_sentence(of)).collect(),
            effects: found.effects,
            curve: found.curves.drawing(),
            resets: found.resets,
            key_note: found.key_note,
            text,
        }
    }
}

/// Returns a message of the API, which begins in lower case, as a sentence.
fn as_sentence(message: &str) -> String {
    let mut characters = message.chars();
    let first = characters.next().map(char::to_uppercase);
    let first: String = first.into_iter().flatten().collect();
    format!("{first}{}.", characters.as_str())
}

/// Returns the apps and the replicas to which a change applies, as words.
fn reach(apps: Option<&[String]>, replicas: Option<usize>) -> String {
    let apps = match apps {
        None => "all apps".to_owned(),
        Some([app]) => format!("app {app}"),
        Some(apps) => format!("apps {}", apps.join(", ")),
    };
    match replicas {
        None => format!("{apps}; the number of replicas is not known"),
        Some(replicas) => format!("{apps}, {}", count(replicas, "replica")),
    }
}

impl LeftView {
    /// `40 of 1,000`.
    pub(super) fn text(&self) -> String {
        format!("{} of {}", grouped(self.left), grouped(self.of))
    }
}

impl EffectView {
    /// Returns the key, or the description of the example.
    pub(super) fn subject(&self) -> &str {
        self.key.as_deref().unwrap_or("a key that used 60 %")
    }

    /// Returns the remaining permits after the change; a dash if usage cannot be treated so.
    pub(super) fn after(&self, inheritance: &str) -> String {
        let after = self.after.get(inheritance);
        after.map_or_else(|| "–".to_owned(), LeftView::text)
    }
}

impl ShadowView {
    /// Returns a warning for a policy that leaves shadow mode.
    fn warning(self) -> String {
        match self.calls {
            0 => "no call was recorded in the last 24 hours, so it is not known how many would be denied"
                .to_owned(),
            calls => format!(
                "of {} calls in the last 24 hours, {} would have been denied ({})",
                grouped(calls),
                grouped(self.would_deny),
                share(self.would_deny, calls)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_names_apps_and_replicas() {
        let apps = ["shop", "web"].map(str::to_owned);
        assert_eq!(reach(Some(&apps[..1]), Some(1)), "app shop, 1 replica");
        assert_eq!(reach(Some(&apps), Some(12)), "apps shop, web, 12 replicas");
        assert_eq!(reach(None, None), "all apps; the number of replicas is not known");
    }

    #[test]
    fn warnings_are_sentences() {
        assert_eq!(as_sentence("the usage is reset"), "The usage is reset.");
    }

    #[test]
    fn shadow_counts_are_a_warning() {
        let shadow = ShadowView {
            calls: 4_000,
            would_deny: 16,
        };
        let expected = "of 4,000 calls in the last 24 hours, 16 would have been denied (0.4 %)";
        assert_eq!(shadow.warning(), expected);
    }
}
