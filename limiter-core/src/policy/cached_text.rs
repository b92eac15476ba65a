//! A text that a layer derives from a policy and writes once.

use std::sync::OnceLock;

/// A text that is written once. A clone belongs to another policy with other numbers and starts
/// empty.
#[derive(Debug, Default)]
pub(crate) struct CachedText(OnceLock<Box<str>>);

impl CachedText {
    /// Returns the text, after it was written if it did not exist.
    pub(super) fn get_or_write(&self, write: impl FnOnce() -> String) -> &str {
        self.0.get_or_init(|| write().into())
    }
}

impl Clone for CachedText {
    fn clone(&self) -> Self {
        Self::default()
    }
}
