//! Priorities of requests under load.

/// The priority of a request under load. Requests of a priority may use the capacity that is not
/// reserved for higher priorities.
///
/// The priorities follow Google's SRE book ("Handling Overload"), which calls them SHEDDABLE,
/// SHEDDABLE_PLUS, CRITICAL and CRITICAL_PLUS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Requests that are retried later: batch jobs, prefetches.
    Sheddable,
    /// The default.
    #[default]
    Normal,
    /// Requests whose failure is visible to users.
    High,
    /// Requests with the highest cost of failure: payments, logins, operator actions.
    Critical,
}

impl Priority {
    /// All priorities, the lowest first.
    pub const ALL: [Self; 4] = [Self::Sheddable, Self::Normal, Self::High, Self::Critical];
}
