//! Decisions while the store is unavailable.

/// The decision if the store does not reply within the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// The policy is applied in this process, with this replica's share of the quota. The default.
    ///
    /// Each of n replicas admits a quota of max(1, ⌈quota/n⌉) at 1/n of the rate, starting with 1/n
    /// of the permits that remained at the last reply of Redis for the key (for 100,000 keys, see
    /// [`RedisBuilder::max_local_keys`](crate::RedisBuilder::max_local_keys)). In any time T all
    /// replicas together admit at most n permits more than the policy, in addition to the permits
    /// that Redis admits in that time. When Redis is available again, these permits are reported
    /// and subtracted there. A cost above the share is denied with a retry time of half a second.
    /// The [`Origin`](crate::Origin) is `LocalFallback`.
    ///
    /// A replica is a [`Limiter`](crate::Limiter) of this namespace with all its clones. Redis
    /// counts the replicas while it is available (up to 1,024), unless
    /// [`RedisBuilder::replicas`](crate::RedisBuilder::replicas) sets the number. The count is
    /// correct for replicas that started a few seconds before the outage. A replica that starts
    /// during the outage counts only itself.
    ///
    /// A value that cannot be read ([`WrongType`](crate::StoreErrorKind::WrongType),
    /// [`UnknownLayout`](crate::StoreErrorKind::UnknownLayout)) is no outage and therefore an
    /// error; so is a full in-process store.
    #[default]
    Local,
    /// No decision: the call fails with [`Rejection::Unavailable`](crate::Rejection::Unavailable).
    Error,
    /// The call is allowed; its [`Origin`](crate::Origin) is `FailedOpen`.
    FailOpen,
    /// The call is denied; its [`Origin`](crate::Origin) is `FailedClosed`.
    FailClosed,
}

impl OnStoreFailure {
    /// Orders the reactions: of the policies of one decision, the strictest is applied.
    pub(crate) const fn strictness(self) -> u8 {
        match self {
            Self::FailOpen => 0,
            Self::Local => 1,
            Self::FailClosed => 2,
            Self::Error => 3,
        }
    }
}
