//! The effect of a change of a policy: differences of the text, sentences, warnings and numbers.
//!
//! `preview` compares the texts only. `preview_in_numbers` adds the computation of `effect` under a
//! manual clock, which is ready at the first poll and needs no runtime; only the next resets depend
//! on the current time. No store is read, and the metrics of the process do not count the computed
//! decisions. Tests: below, and `tests/pages/preview.rs`.

mod effect;
mod rules;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use limiter_core::{Enforcement, Inheritance};
use metrics::NoopRecorder;
use serde_json::{Value, json};
use similar::TextDiff;

pub use crate::admin::preview::effect::UsedKey;
pub use crate::admin::preview::rules::{DescribedLimit, DescriptorChange, rule_changes};
use crate::admin::sentence::sentence;
use crate::policy_text::{PolicyText, hourly_rate};
use crate::publish::timestamp;
use crate::store::now_micros;

/// Returns the effect of a new text in place of the previous one, with numbers, also for these
/// keys, and with curves. The metrics of the process do not count the decisions of the computation.
#[must_use]
pub fn preview_in_numbers(
    before: Option<&PolicyText>,
    new: &PolicyText,
    inheritance: Inheritance,
    keys: &[UsedKey],
) -> Value {
    let computed = pin!(numbers(before, new, inheritance, keys));
    let mut context = Context::from_waker(Waker::noop());
    // A decision in process under a manual clock is ready at the first poll.
    match metrics::with_local_recorder(&NoopRecorder, || computed.poll(&mut context)) {
        Poll::Ready(found) => found,
        Poll::Pending => preview(before, new, inheritance),
    }
}

async fn numbers(
    before: Option<&PolicyText>,
    new: &PolicyText,
    inheritance: Inheritance,
    keys: &[UsedKey],
) -> Value {
    let mut found = preview(before, new, inheritance);
    let length = effect::curve_length(before, new);
    let old = match before {
        Some(before) => effect::curve(before.entry().policy(), length).await,
        None => Vec::new(),
    };
    let new_curve = effect::curve(new.entry().policy(), length).await;
    let effects = effect::effects(before, new, keys).await;
    let resets = effect::resets(new, timestamp(now_micros())).await;
    let resets: Vec<u64> = resets.iter().map(|of| of.as_micros()).collect();
    if let Some(fields) = found.as_object_mut() {
        fields.insert("effects".to_owned(), Value::Array(effects));
        let curves = json!({ "before": old, "after": new_curve });
        fields.insert("curves".to_owned(), curves);
        fields.insert("resets".to_owned(), json!(resets));
    }
    found
}

/// Returns the effect of a new text in place of the previous one.
#[must_use]
pub fn preview(before: Option<&PolicyText>, new: &PolicyText, inheritance: Inheritance) -> Value {
    let old_text = before.map(PolicyText::content).unwrap_or_default();
    json!({
        "before": before.map(sentence),
        "after": sentence(new),
        "diff": unified_diff(&old_text, &new.content()),
        "warnings": warnings(before, new, inheritance),
    })
}

/// Returns the differences of two texts, as `diff -u` prints them without a header.
#[must_use]
pub fn unified_diff(before: &str, after: &str) -> String {
    let diff = TextDiff::from_lines(before, after);
    diff.unified_diff().context_radius(3).to_string()
}

fn warnings(before: Option<&PolicyText>, new: &PolicyText, inheritance: Inheritance) -> Vec<String> {
    let mut warnings = Vec::new();
    let policy = new.entry().policy();
    if policy.enforcement() == Enforcement::Off {
        warnings.push("the policy limits nothing while its enforcement is off".to_owned());
    }
    if new.apps().is_none() {
        warnings.push("the policy is in force for all apps".to_owned());
    }
    if let Some(offset) = effect::alignment(new) {
        warnings.push(format!(
            "the periods follow the fixed offset {offset}: where summer time applies, they begin an hour earlier or \
             later by the clock after each change of the time"
        ));
    }
    let Some(old) = before.map(|text| text.entry().policy()) else {
        return warnings;
    };
    if inheritance == Inheritance::Reset {
        warnings.push("the usage of all keys is reset".to_owned());
    }
    if old.algorithm_name() != policy.algorithm_name() || old.group() != policy.group() {
        warnings.push("all keys start unused, because the algorithm or the group changes".to_owned());
    }
    let capacities = (old.quota().as_thousandths(), policy.quota().as_thousandths());
    let rates = (hourly_rate(old), hourly_rate(policy));
    for (name, (old, new)) in [("capacity", capacities), ("rate", rates)] {
        if new > old.saturating_mul(2) {
            warnings.push(format!("the {name} is more than twice the previous one"));
        }
        if new.saturating_mul(2) < old {
            warnings.push(format!("the {name} is less than half of the previous one"));
        }
    }
    if old.enforcement() != Enforcement::Enforce && policy.enforcement() == Enforcement::Enforce {
        warnings.push(format!(
            "the policy denies calls from now on; its enforcement was {}",
            old.enforcement()
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(capacity: u32, rest: &str) -> PolicyText {
        let text =
            format!("[policy.a]\nalgorithm = 'token_bucket'\ncapacity = {capacity}\nrate = '1/s'\n{rest}");
        PolicyText::parse("a", &text).unwrap()
    }

    #[test]
    fn large_changes_are_warned_of() {
        let warned = |before: &PolicyText, new: &PolicyText, part: &str| {
            let preview = preview(Some(before), new, Inheritance::AsIs);
            preview["warnings"].to_string().contains(part)
        };
        let (small, large) = (text(10, ""), text(21, ""));
        assert!(warned(&small, &large, "more than twice"));
        assert!(warned(&large, &small, "less than half"));
        assert!(!warned(&small, &text(20, ""), "twice"));
        assert!(warned(&text(10, "enforcement = 'shadow'"), &small, "was shadow"));
        assert!(warned(&small, &text(10, "enforcement = 'off'"), "limits nothing"));
        let reset = preview(Some(&small), &small, Inheritance::Reset);
        assert!(reset["warnings"].to_string().contains("reset"));
    }

    #[test]
    fn preview_in_numbers_counts_no_decisions() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let found = metrics::with_local_recorder(&recorder, || {
            preview_in_numbers(Some(&text(10, "")), &text(20, ""), Inheritance::AsIs, &[])
        });
        assert!(
            !found["curves"]["after"].as_array().unwrap().is_empty(),
            "{found}"
        );
        let metrics = recorder.handle().render();
        assert!(!metrics.contains("limiter_decisions"), "{metrics}");
    }

    #[test]
    fn diff_shows_changed_lines() {
        let preview = preview(Some(&text(10, "")), &text(20, ""), Inheritance::AsIs);
        let diff = preview["diff"].as_str().unwrap();
        assert!(diff.contains("-capacity = 10\n+capacity = 20\n"), "{diff}");
    }
}
