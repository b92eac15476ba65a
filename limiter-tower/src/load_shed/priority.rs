//! How much a request matters.

/// How much a request matters when not all can be served. Each class may use what is not kept for
/// higher ones.
///
/// They are those of Google's SRE book ("Handling Overload"), where they are called SHEDDABLE,
/// SHEDDABLE_PLUS, CRITICAL and CRITICAL_PLUS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Whose failure is expected at times, and which is asked again later: batch jobs, prefetches.
    Sheddable,
    /// What nothing is said of. The default.
    #[default]
    Normal,
    /// Whose failure a person sees.
    High,
    /// Whose failure costs most: a payment, a login, an operator's hand.
    Critical,
}

impl Priority {
    /// All classes, the lowest first.
    pub const ALL: [Self; 4] = [Self::Sheddable, Self::Normal, Self::High, Self::Critical];
}
