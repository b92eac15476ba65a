//! The scope of a rate limiter, which a registry stores for [`redisson`](crate::redisson).

/// The callers that share the permits of a rate limiter of [`redisson`](crate::redisson).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateType {
    /// All clients together. The default.
    #[default]
    Overall,
    /// Each [`Client`](crate::redisson::Client) has its own.
    PerClient,
}

impl RateType {
    #[cfg(feature = "registry")]
    pub(crate) const ALL: [Self; 2] = [Self::Overall, Self::PerClient];

    /// Its name in the text of a registry.
    #[cfg(feature = "registry")]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Overall => "overall",
            Self::PerClient => "per_client",
        }
    }
}
