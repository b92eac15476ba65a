//! The state of the publication of a policy, in words.

/// Returns whether the newest revision is in force.
pub(super) fn is_in_force(state: &str) -> bool {
    state == "published"
}

/// Returns the word of the state.
pub(super) fn word(state: &str) -> &'static str {
    match state {
        "published" => "In force",
        "conflict" => "Conflict",
        _ => "Publishing",
    }
}

/// Returns the class of the state.
pub(super) fn class(state: &str) -> &'static str {
    match state {
        "published" => "ok",
        "conflict" => "bad",
        _ => "waiting",
    }
}
