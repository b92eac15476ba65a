//! Values of clients in error messages.

/// The longest part of a value in an error message, in characters.
const SHOWN_CHARS: usize = 64;

/// Returns a value of a client for an error message: printable, in quotes and truncated.
pub(super) fn shown(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let mut chars = text.chars();
    let start: String = chars.by_ref().take(SHOWN_CHARS).collect();
    let more = if chars.next().is_some() { "…" } else { "" };
    format!("`{}{more}`", start.escape_debug())
}
