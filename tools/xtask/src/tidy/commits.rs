//! Subjects of commits: `scope: imperative summary`, in at most 72 characters.

use std::path::Path;
use std::process::Command;

const LONGEST: usize = 72;

/// Checks the commits that are not on `main` yet, or the newest one on `main`. Without git or
/// history there is none.
pub(super) fn check(root: &Path) -> Result<(), String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(root).args(args).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let new = git(&["log", "--no-merges", "--format=%s", "main..HEAD"]).unwrap_or_default();
    let subjects = if new.is_empty() {
        git(&["log", "--no-merges", "--format=%s", "-1"]).unwrap_or_default()
    } else {
        new
    };
    let wrong: Vec<_> = subjects
        .lines()
        .filter_map(|subject| Some(format!("  `{subject}`: {}", defect(subject)?)))
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("subjects of commits:\n{}", wrong.join("\n")))
}

/// Returns the defect of a subject, if it has one.
fn defect(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > LONGEST {
        return Some(format!("{length} characters; the limit is {LONGEST}"));
    }
    let is_scope = |scope: &str| {
        let is_letter =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_/, ".contains(letter);
        !scope.is_empty() && scope.chars().all(is_letter)
    };
    let is_summary = |rest: &str| !rest.ends_with('.') && rest.split(' ').next().is_some_and(is_imperative);
    match subject.split_once(": ") {
        Some((scope, rest)) if is_scope(scope) && is_summary(rest) => None,
        _ => Some("expected `scope: imperative summary`, without a full stop".to_owned()),
    }
}

/// Returns whether a first word can be an imperative: in lower case, and not the past tense, the
/// participle or the third person of a verb.
fn is_imperative(word: &str) -> bool {
    let is_inflected = ["ed", "ing", "ts", "ds", "es", "ns", "ls", "ks", "ms", "ps", "rs"]
        .iter()
        .any(|end| word.ends_with(end));
    let is_verb = [
        "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "bring",
    ]
    .contains(&word);
    word.starts_with(|letter: char| letter.is_ascii_lowercase()) && (is_verb || !is_inflected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_have_a_scope_and_a_length() {
        assert_eq!(defect("redis: batch refunds by slot"), None);
        assert_eq!(defect("tower, core: share one decision future"), None);
        for wrong in [
            "The layer limits requests",
            "redis:",
            "redis: batch refunds.",
            "Redis: batch",
            "redis: batched refunds",
            "redis: batches refunds",
            "redis: batching of refunds",
            "redis: Batch refunds",
        ] {
            assert!(
                defect(wrong).is_some_and(|text| text.contains("scope")),
                "{wrong}"
            );
        }
        assert!(defect(&format!("redis: {}", "x".repeat(66))).is_some_and(|text| text.contains("73")));
    }
}
