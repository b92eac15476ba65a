//! The scope of a rate limiter of the crate limiter-redisson, which a registry stores.

/// The callers that share the permits of a rate limiter of the crate limiter-redisson.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateType {
    /// All clients together. The default.
    #[default]
    Overall,
    /// Each `Client` has its own.
    PerClient,
}

impl RateType {
    #[cfg(feature = "registry")]
    pub(crate) const ALL: [Self; 2] = [Self::Overall, Self::PerClient];

    /// Returns the name in the text of a registry.
    #[cfg(feature = "registry")]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Overall => "overall",
            Self::PerClient => "per_client",
        }
    }
}
