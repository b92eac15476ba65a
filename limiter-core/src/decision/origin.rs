//! The component that made a decision.
//!
//! Metrics, spans and rejections distinguish decisions by their origin. Refunds depend on it too:
//! permits are returned to the place where the call was charged (`charges_as`).
//!
//! Invariant: the number of an origin is part of the usage format in Redis and does not change.
//! Tests: `tests/usage.rs`, `tests/contract/settlement.rs`.

/// The component that made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// A script in Redis. Also the origin of a call in [`Shadow`](crate::Enforcement::Shadow) mode
    /// on a limiter with Redis that would be rejected as invalid, such as a cost above the quota:
    /// its decision has no limits, and no request is sent to Redis.
    Redis,
    /// The deny cache of this process, which repeats a recent denial by Redis until its retry time
    /// ([`RedisBuilder::deny_cache`](crate::RedisBuilder::deny_cache)).
    DenyCache,
    /// The in-process store, also for a call in [`Shadow`](crate::Enforcement::Shadow) mode that
    /// would be rejected as invalid.
    Memory,
    /// This process, from permits that it leased from Redis
    /// ([`PolicyBuilder::lease`](crate::PolicyBuilder::lease)). The remaining amount is the sum of
    /// the leased permits and the remaining permits of the last reply from Redis.
    Lease,
    /// This process, with its share of the policy, because the store was unavailable
    /// ([`Local`](crate::OnStoreFailure::Local)).
    LocalFallback,
    /// No component: the store was unavailable and the policy allows such calls
    /// ([`FailOpen`](crate::OnStoreFailure::FailOpen)).
    FailedOpen,
    /// No component: the store was unavailable and the policy denies such calls
    /// ([`FailClosed`](crate::OnStoreFailure::FailClosed)).
    FailedClosed,
    /// No component: the registry contains no policy of the requested name for this app, and the
    /// limiter allows such calls
    /// ([`OnUnknownPolicy::Allow`](crate::registry::OnUnknownPolicy::Allow)). The decision has no
    /// limits.
    NotConfigured,
    /// A key list of the policy ([`PolicyBuilder::allow_keys`](crate::PolicyBuilder::allow_keys),
    /// [`deny_keys`](crate::PolicyBuilder::deny_keys)). The store was not queried, and nothing was
    /// charged.
    KeyList,
    /// No component: all limits of the call are [`Off`](crate::Enforcement::Off).
    Off,
    /// A suspension of the registry that denies all calls
    /// ([`PolicyRegistry::suspend`](crate::registry::PolicyRegistry::suspend)). The store was not
    /// queried, and nothing was charged.
    Suspension,
    /// A block of the registry ([`PolicyRegistry::block`](crate::registry::PolicyRegistry::block)).
    /// The store was not queried, and nothing was charged.
    Block,
}

impl Origin {
    /// Returns whether a denial of this origin does not depend on the remaining permits: by a key
    /// list, a suspension or a block. It becomes
    /// [`Rejection::Forbidden`](crate::Rejection::Forbidden).
    #[must_use]
    pub fn is_independent_of_permits(self) -> bool {
        matches!(self, Self::KeyList | Self::Suspension | Self::Block)
    }

    /// Returns the number of the origin in the usage in Redis; 0 is no origin.
    #[cfg(feature = "redis")]
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Redis => 1,
            Self::DenyCache => 2,
            Self::Memory => 3,
            Self::Lease => 4,
            Self::LocalFallback => 5,
            Self::FailedOpen => 6,
            Self::FailedClosed => 7,
            Self::NotConfigured => 8,
            Self::KeyList => 9,
            Self::Off => 10,
            Self::Suspension => 11,
            Self::Block => 12,
        }
    }

    /// Returns the origin of a [`number`](Self::number).
    #[cfg(feature = "redis")]
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        const ALL: [Origin; 12] = [
            Origin::Redis,
            Origin::DenyCache,
            Origin::Memory,
            Origin::Lease,
            Origin::LocalFallback,
            Origin::FailedOpen,
            Origin::FailedClosed,
            Origin::NotConfigured,
            Origin::KeyList,
            Origin::Off,
            Origin::Suspension,
            Origin::Block,
        ];
        ALL.into_iter().find(|origin| origin.number() == number)
    }

    /// Returns whether calls of both origins are charged at the same place: in the store, in this
    /// replica's share, or nowhere.
    pub(crate) fn charges_as(self, other: Self) -> bool {
        let is_store = |origin| matches!(origin, Self::Redis | Self::Lease | Self::Memory);
        self == other || is_store(self) && is_store(other)
    }
}
