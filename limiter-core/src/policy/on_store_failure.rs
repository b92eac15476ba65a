//! What a decision is when nobody decides.

/// What a decision is when the store gives no answer within the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// The policy is applied in this process, to this replica's share of it. The default.
    ///
    /// Of n replicas each admits a quota of max(1, ⌈quota/n⌉) at an nth of the rate, starting from
    /// an nth of what was left when Redis was last heard about the key (of 100,000 keys, see
    /// [`RedisBuilder::max_local_keys`](crate::RedisBuilder::max_local_keys)). So in any time T all
    /// of them admit at most n permits more than the policy would, beside what Redis admits in the
    /// same time. When Redis answers again, these permits are reported and subtracted there. A cost
    /// above the share is denied, with half a second as its retry time. The
    /// [`Origin`](crate::Origin) is `LocalFallback`.
    ///
    /// A replica is a [`Limiter`](crate::Limiter) of this namespace with all its clones. They are
    /// counted in Redis while it answers (up to 1,024), or given by
    /// [`RedisBuilder::replicas`](crate::RedisBuilder::replicas): n is right for those that have
    /// been running for some seconds before the outage. One that started in it counts itself alone.
    ///
    /// A value that cannot be read ([`WrongType`](crate::StoreErrorKind::WrongType),
    /// [`UnknownLayout`](crate::StoreErrorKind::UnknownLayout)) is no outage, so it is an error, as
    /// is a store in process that is full.
    #[default]
    Local,
    /// No decision: the call fails with [`Rejection::Unavailable`](crate::Rejection::Unavailable).
    Error,
    /// The call is allowed; its [`Origin`](crate::Origin) says `FailedOpen`.
    FailOpen,
    /// The call is denied; its [`Origin`](crate::Origin) says `FailedClosed`.
    FailClosed,
}
