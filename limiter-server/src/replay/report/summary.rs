//! The report as text for a terminal, and the notes on its accuracy.
//!
//! Broken lines, clocks, time zones, undecided calls and omitted keys can make a result inexact.
//! The notes state each of these with its number of lines or calls; the HTML page contains them
//! too.
//!
//! Tests: `tests/replay/command.rs` for text and numbers, `tests/replay/input.rs` for notes.

use std::fmt::Write as _;
use std::time::Duration;

use crate::replay::report::{PolicyReport, PolicySetReport, ReplayReport};
use crate::replay::suggest::Suggestion;
use crate::replay::text::{grouped, percent, span, time};
use crate::replay::waits::Waits;

/// The number of keys that are shown.
const SHOWN: usize = 10;

pub(super) fn write(report: &ReplayReport) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(report, &mut text);
    text
}

fn write_all(report: &ReplayReport, to: &mut String) -> std::fmt::Result {
    let covered = Duration::from_micros(report.last_at.saturating_sub(report.first_at));
    writeln!(
        to,
        "{} calls in {}, {} to {} UTC",
        grouped(report.calls),
        span(covered),
        time(report.first_at),
        time(report.last_at)
    )?;
    for note in report.notes() {
        writeln!(to, "note: {}", shown(&note))?;
    }
    for result in &report.results {
        write_result(result, report, to)?;
    }
    if let Some(changes) = &report.changes {
        writeln!(
            to,
            "\ncomparison: {} calls denied only by the second file, {} denied only by the first",
            grouped(changes.newly_denied),
            grouped(changes.newly_admitted)
        )?;
    }
    for suggestion in &report.suggestions {
        write_suggestion(suggestion, to)?;
    }
    Ok(())
}

/// Returns a text of a log without control characters, which a terminal would obey.
fn shown(text: &str) -> String {
    let shown = |of: char| if of.is_control() { '\u{fffd}' } else { of };
    text.chars().map(shown).collect()
}

fn write_result(result: &PolicySetReport, report: &ReplayReport, to: &mut String) -> std::fmt::Result {
    writeln!(
        to,
        "\n{}: {} admitted, {} denied ({})",
        result.file,
        grouped(result.admitted),
        grouped(result.denied),
        percent(result.denied, report.calls)
    )?;
    for policy in &result.policies {
        write_policy(policy, to)?;
    }
    Ok(())
}

fn write_policy(policy: &PolicyReport, to: &mut String) -> std::fmt::Result {
    writeln!(to, "\n  {}{}", policy.policy, policy.mode_note())?;
    let calls = policy.admitted + policy.denied;
    writeln!(
        to,
        "    {} admitted, {} denied ({}); {} of {} keys denied",
        grouped(policy.admitted),
        grouped(policy.denied),
        percent(policy.denied, calls),
        grouped(policy.denied_keys),
        grouped(policy.keys)
    )?;
    let waits = &policy.waits;
    let ranges = Waits::RANGES.iter().zip(waits.ranges);
    // A cost above the capacity is admitted after no wait.
    let ranges: Vec<String> = ranges
        .chain([(&"never", waits.never)])
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name}: {}", grouped(count)))
        .collect();
    if !ranges.is_empty() {
        let longest = match waits.ranges.iter().any(|count| *count > 0) {
            true => format!("; longest {}", span(waits.longest)),
            false => String::new(),
        };
        writeln!(to, "    waits {}{longest}", ranges.join(", "))?;
    }
    for key in policy.most_denied.iter().take(SHOWN) {
        let (key, denied, calls) = (shown(&key.key), grouped(key.denied), grouped(key.calls));
        writeln!(to, "    {denied:>12} of {calls} calls denied: {key}")?;
    }
    Ok(())
}

fn write_suggestion(suggestion: &Suggestion, to: &mut String) -> std::fmt::Result {
    let of = suggestion
        .policy
        .as_deref()
        .map_or("all calls".to_owned(), |policy| format!("policy {policy}"));
    writeln!(
        to,
        "\nsmallest token buckets for {of} with {}:",
        suggestion.target
    )?;
    writeln!(
        to,
        "    {:>12} {:>12} {:>14} {:>12}",
        "rate", "capacity", "denied calls", "denied keys"
    )?;
    for (number, bucket) in suggestion.buckets.iter().enumerate() {
        let mark = if suggestion.recommended == Some(number) {
            "  recommended"
        } else {
            ""
        };
        writeln!(
            to,
            "    {:>12} {:>12} {:>14} {:>12}{mark}",
            bucket.rate.to_string(),
            grouped(bucket.capacity),
            grouped(bucket.denied_calls),
            grouped(bucket.denied_keys)
        )?;
    }
    Ok(())
}

impl Suggestion {
    /// Adds each limit of the accuracy of the suggestion as a sentence.
    fn add_notes(&self, notes: &mut Vec<String>) {
        let (calls, keys, omitted) = (
            grouped(self.calls),
            grouped(self.keys),
            grouped(self.omitted_calls),
        );
        if self.one_key_in > 1 {
            notes.push(format!(
                "the suggestion is computed from one key in {}: {calls} calls of {keys} keys, without {omitted} calls",
                self.one_key_in
            ));
        } else if self.omitted_calls > 0 {
            notes.push(format!(
                "the suggestion is computed from the first {calls} calls, without {omitted} later ones"
            ));
        }
        if self.costs_differ && self.target.ends_with("denied") {
            notes.push(
                "the costs of calls differ: the suggested capacities meet the target and one less does not, but a \
                 capacity far below can meet it too"
                    .to_owned(),
            );
        }
    }
}

impl PolicyReport {
    /// Returns a note on a policy that is not enforced.
    pub(super) fn mode_note(&self) -> &'static str {
        match self.enforcement.as_str() {
            "shadow" => ", in shadow mode: would deny",
            "off" => ", off: admits all calls",
            _ => "",
        }
    }
}

impl ReplayReport {
    /// Returns everything that limits the accuracy of the report, as sentences.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for broken in &self.broken {
            let (lines, all) = (grouped(broken.lines), percent(broken.lines, self.lines));
            notes.push(format!(
                "{lines} lines ({all}) skipped, such as {}",
                broken.examples.join("; ")
            ));
        }
        if self.whole_seconds {
            notes.push(
                "the times are whole seconds: the calls of one second are decided at once, so bursts look shorter \
                 than they were, and limits that refill within a second deny too much"
                    .to_owned(),
            );
        }
        if self.clock.late_lines > 0 {
            let (lines, lag) = (grouped(self.clock.late_lines), span(self.clock.longest_lag));
            notes.push(format!(
                "{lines} lines are earlier than a line before them, by at most {lag}; they are decided at the time \
                 of that line"
            ));
        }
        if self.clock.clock_steps > 0 {
            let (steps, by) = (grouped(self.clock.clock_steps), span(self.clock.shifted_by));
            notes.push(format!(
                "clocks were set back {steps} times, by {by} in total; the later lines of these files are shifted"
            ));
        }
        if self.zones.len() > 1 || self.zones.iter().any(|zone| zone.zone.starts_with("no ")) {
            let zones = self
                .zones
                .iter()
                .map(|zone| format!("{} ({} lines)", zone.zone, grouped(zone.lines)));
            let zones: Vec<String> = zones.collect();
            notes.push(format!("time zones: {}", zones.join(", ")));
        }
        for result in &self.results {
            result.add_notes(&mut notes);
        }
        for suggestion in &self.suggestions {
            suggestion.add_notes(&mut notes);
        }
        notes
    }
}

impl PolicySetReport {
    fn add_notes(&self, notes: &mut Vec<String>) {
        let file = &self.file;
        let mut add = |count: u64, note: &str| {
            if count > 0 {
                notes.push(format!("{file}: {} {note}", grouped(count)));
            }
        };
        add(
            self.undecided,
            "calls are undecided: more keys were in use than --max-keys, or the policy cannot count their cost",
        );
        add(self.unmatched, "calls match no rule and are admitted");
        add(
            self.not_configured,
            "calls match a rule without a policy and are admitted",
        );
        for policy in &self.policies {
            let name = &policy.name;
            add(
                policy.merged_keys.calls,
                &format!(
                    "calls under {name} have keys beyond --max-keys; lists of keys and numbers of keys omit them"
                ),
            );
        }
        let shadow = self.policies.iter().filter(|of| of.enforcement == "shadow");
        let shadow: Vec<&str> = shadow.map(|of| of.name.as_str()).collect();
        if !shadow.is_empty() {
            notes.push(format!(
                "{file}: the totals count calls as denied that policies in shadow mode would deny: {}",
                shadow.join(", ")
            ));
        }
        if !self.skipped.is_empty() {
            let names = self.skipped.join(", ");
            notes.push(format!("{file}: concurrency policies are not replayed: {names}"));
        }
        if !self.other_apps.is_empty() {
            let names = self.other_apps.join(", ");
            notes.push(format!(
                "{file}: policies of other apps are not replayed, name an app by --app: {names}"
            ));
        }
    }
}
