//! The result of a call by name that finds no policy.

/// Selects the result of a call whose policy is not configured: the registry has no policy of
/// the name, or none for this app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnUnknownPolicy {
    /// Allows the call. The decision has no limits, and its [`Origin`](crate::Origin) is
    /// `NotConfigured`. The default.
    ///
    /// Policies that exist only in Redis are unknown until the first synchronization (feature
    /// `registry`: `RedisSubscription::synced`).
    #[default]
    Allow,
    /// Rejects the call with [`Rejection::NotConfigured`](crate::Rejection::NotConfigured), unless
    /// the limiter is in [shadow mode or off](crate::Enforcement).
    Deny,
}
