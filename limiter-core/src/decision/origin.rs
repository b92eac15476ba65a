//! Who decided.

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// A script in Redis. Also the origin of a call in [`Shadow`](crate::Enforcement::Shadow) on a
    /// limiter with Redis that would be rejected as invalid, such as a cost above the quota: it has
    /// no limits, and Redis is not asked.
    Redis,
    /// This process, as Redis would: it denied the same a moment ago, and it is not time to ask
    /// again ([`RedisBuilder::deny_cache`](crate::RedisBuilder::deny_cache)).
    DenyCache,
    /// The store in this process, also for a call in [`Shadow`](crate::Enforcement::Shadow) that
    /// would be rejected as invalid.
    Memory,
    /// This process, of permits that Redis lent it
    /// ([`PolicyBuilder::lease`](crate::PolicyBuilder::lease)). What remains is what is held here
    /// and what Redis had left when it last answered.
    Lease,
    /// This process, by its share of the policy: the store was out
    /// ([`Local`](crate::OnStoreFailure::Local)).
    LocalFallback,
    /// Nobody: the store was out, and the policy says
    /// [`FailOpen`](crate::OnStoreFailure::FailOpen).
    FailedOpen,
    /// Nobody: the store was out, and the policy says
    /// [`FailClosed`](crate::OnStoreFailure::FailClosed).
    FailedClosed,
    /// Nobody: no policy of the name that was asked for is configured, or not for this app, and
    /// that is allowed ([`OnUnknownPolicy::Allow`](crate::registry::OnUnknownPolicy::Allow)). There
    /// are no limits in the decision.
    NotConfigured,
    /// A list of keys ([`PolicyBuilder::allow_keys`](crate::PolicyBuilder::allow_keys),
    /// [`deny_keys`](crate::PolicyBuilder::deny_keys)). Nobody was asked, and nothing was charged.
    KeyList,
    /// Nobody: all of its limits are [`Off`](crate::Enforcement::Off).
    Off,
}

impl Origin {
    /// Whether what either allows is charged at the same place: in the store, in this replica's
    /// share, or nowhere.
    pub(crate) fn charges_as(self, other: Self) -> bool {
        let is_store = |origin| matches!(origin, Self::Redis | Self::Lease | Self::Memory);
        self == other || is_store(self) && is_store(other)
    }
}
