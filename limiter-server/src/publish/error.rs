//! The reason why a pass failed.

use limiter_core::registry::RegistryError;

use crate::error_text::with_causes;
use crate::policy_text::TextError;
use crate::store::StoreError;

/// The reason for a failed pass.
#[derive(Debug)]
pub(super) enum PublishError {
    Store(StoreError),
    Registry(RegistryError),
    Text(TextError),
    /// Some processes cannot read the pending documents.
    Unreadable(String),
    /// Other nodes publish continuously.
    Busy,
}

impl std::fmt::Display for PublishError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let error: &dyn std::error::Error = match self {
            Self::Store(error) => error,
            Self::Registry(error) => error,
            Self::Text(error) => error,
            Self::Unreadable(reason) => return f.write_str(reason),
            Self::Busy => return f.write_str("other nodes publish at the same time"),
        };
        f.write_str(&with_causes(error))
    }
}

impl From<StoreError> for PublishError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<RegistryError> for PublishError {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

impl From<TextError> for PublishError {
    fn from(error: TextError) -> Self {
        Self::Text(error)
    }
}
