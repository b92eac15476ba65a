//! The parameters of an exact sliding window.

/// Admits at most `limit` permits in any `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindow {
    /// Permits in a window.
    pub(crate) limit: u64,
    /// The window's length in microseconds.
    pub(crate) window: u64,
}
