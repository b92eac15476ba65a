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

/// Defines both directions of the numbers by one table. The `match` of `number` is exhaustive, so a
/// missing origin is a compile error.
macro_rules! numbered {
    ($($origin:ident = $number:literal,)*) => {
        /// Returns the number of the origin in the usage in Redis; 0 is no origin.
        #[cfg(feature = "redis")]
        pub(crate) fn number(self) -> u8 {
            match self {
                $(Self::$origin => $number,)*
            }
        }

        /// Returns the origin of a [`number`](Self::number).
        #[cfg(feature = "redis")]
        pub(crate) fn from_number(number: u8) -> Option<Self> {
            match number {
                $($number => Some(Self::$origin),)*
                _ => None,
            }
        }
    };
}

impl Origin {
    /// Returns whether a denial of this origin does not depend on the remaining permits: by a key
    /// list, a suspension or a block. It becomes
    /// [`Rejection::Forbidden`](crate::Rejection::Forbidden).
    #[must_use]
    pub fn is_independent_of_permits(self) -> bool {
        matches!(self, Self::KeyList | Self::Suspension | Self::Block)
    }

    numbered! {
        Redis = 1,
        DenyCache = 2,
        Memory = 3,
        Lease = 4,
        LocalFallback = 5,
        FailedOpen = 6,
        FailedClosed = 7,
        NotConfigured = 8,
        KeyList = 9,
        Off = 10,
        Suspension = 11,
        Block = 12,
    }

    /// Returns whether calls of both origins are charged at the same place: in the store, in this
    /// replica's share, or nowhere.
    pub(crate) fn charges_as(self, other: Self) -> bool {
        let is_store = |origin| matches!(origin, Self::Redis | Self::Lease | Self::Memory);
        self == other || is_store(self) && is_store(other)
    }
}
