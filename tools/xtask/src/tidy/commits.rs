//! Subjects of commits: `scope: what the commit does`, in at most 72 characters.

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
        .filter_map(|subject| Some(format!("  `{subject}`: {}", mistake(subject)?)))
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("subjects of commits:\n{}", wrong.join("\n")))
}

/// Returns the defect of a subject, if it has one.
fn mistake(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > LONGEST {
        return Some(format!("{length} characters; the limit is {LONGEST}"));
    }
    let is_scope = |scope: &str| {
        let is_letter =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_/, ".contains(letter);
        !scope.is_empty() && scope.chars().all(is_letter)
    };
    match subject.split_once(": ") {
        Some((scope, rest)) if is_scope(scope) && !rest.is_empty() && !rest.ends_with('.') => None,
        _ => Some("expected `scope: imperative summary`, without a full stop".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_have_a_scope_and_a_length() {
        assert_eq!(mistake("redis: batch refunds by slot"), None);
        assert_eq!(mistake("tower, core: share one decision future"), None);
        for wrong in [
            "Who waits behind one is told",
            "redis:",
            "redis: batch refunds.",
            "Redis: batch",
        ] {
            assert!(
                mistake(wrong).is_some_and(|text| text.contains("scope")),
                "{wrong}"
            );
        }
        assert!(mistake(&format!("redis: {}", "x".repeat(66))).is_some_and(|text| text.contains("73")));
    }
}
