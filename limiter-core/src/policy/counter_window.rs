//! Parameters of a sliding window that is estimated from two counters.

/// Admits while the estimated usage of the last `window` stays within `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CounterWindow {
    /// Permits in a window.
    pub(crate) limit: u64,
    /// The window's length in microseconds.
    pub(crate) window: u64,
}

/// The maximum limit, and the maximum window in microseconds (50 days): a product of the two,
/// divided by either, is exact in the scripts.
pub(crate) const MAX_COUNTED: u64 = 1 << 42;
