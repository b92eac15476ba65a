//! The lines of a difference of two texts.

/// A line of a difference with its class.
#[derive(Debug)]
pub(super) struct DiffLine {
    pub(super) class: &'static str,
    pub(super) text: String,
}

/// Returns the lines of a difference.
pub(super) fn diff_lines(diff: &str) -> Vec<DiffLine> {
    let lines = diff.lines().map(|line| DiffLine {
        class: match line.as_bytes().first() {
            Some(b'+') => "add",
            Some(b'-') => "del",
            Some(b'@') => "muted",
            _ => "same",
        },
        text: line.to_owned(),
    });
    lines.collect()
}
