//! Policies: what is limited, and how. A `Policy` that exists is valid.

mod algorithm;
mod builder;
mod calendar;
mod concurrency;
pub(crate) mod constructors;
mod counter_window;
mod enforcement;
mod fixed_window;
mod funnel;
pub(crate) mod inheritance;
mod key_list;
mod on_denial;
mod on_store_failure;
pub(crate) mod options;
mod owned_text;
mod penalty;
mod rate;
mod reciprocal;
#[cfg(feature = "redis")]
pub(crate) mod replica_share;
mod sliding_window;
mod text;
pub(crate) mod thread_cache;
mod token_bucket;
mod window;

#[cfg(feature = "redis")]
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::identity::{Identity, Prefix};
pub(crate) use crate::policy::algorithm::Algorithm;
pub(crate) use crate::policy::builder::check_text;
pub use crate::policy::builder::{
    CounterWindowParams, FixedWindowParams, LevelParams, PolicyBuilder, SlidingWindowParams,
};
pub use crate::policy::calendar::UtcOffset;
#[cfg(feature = "redis")]
pub(crate) use crate::policy::calendar::origin;
pub(crate) use crate::policy::concurrency::Concurrency;
pub use crate::policy::concurrency::ConcurrencyParams;
pub(crate) use crate::policy::counter_window::{CounterWindow, MAX_COUNTED};
pub use crate::policy::enforcement::Enforcement;
pub(crate) use crate::policy::fixed_window::{FixedWindow, Periods};
pub(crate) use crate::policy::funnel::Funnel;
pub use crate::policy::inheritance::Inheritance;
pub(crate) use crate::policy::inheritance::PreviousPolicy;
pub use crate::policy::key_list::KeyList;
pub use crate::policy::key_list::KeyPrefixes;
pub(crate) use crate::policy::key_list::{Network, ReportedPrefixes};
pub use crate::policy::on_denial::OnDenial;
pub use crate::policy::on_store_failure::OnStoreFailure;
use crate::policy::options::RareOptions;
pub(crate) use crate::policy::penalty::PenaltyLimits;
pub use crate::policy::penalty::{Penalty, PenaltyBuilder};
pub use crate::policy::rate::Rate;
#[cfg(feature = "registry")]
pub(crate) use crate::policy::rate::Span;
pub(crate) use crate::policy::sliding_window::SlidingWindow;
pub(crate) use crate::policy::thread_cache::CachedPolicy;
pub(crate) use crate::policy::token_bucket::TokenBucket;
pub use crate::policy::window::Window;
use crate::units::Amount;

/// A named limit: an algorithm with its parameters, and what to do when the store is out.
///
/// Cheap to clone. It travels with each call, so a changed policy takes effect on the next call.
///
/// ```
/// use limiter_core::Policy;
///
/// let search = Policy::token_bucket("search").capacity(20).rate("10/s").build()?;
/// let send = Policy::sliding_window("send").limit(5).window("1m").build()?;
/// let upload = Policy::funnel("upload").capacity(10).rate(2).build()?;
/// assert_eq!(search.quota().whole(), 20);
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Policy(Arc<PolicyInner>);

#[derive(Clone)]
struct PolicyInner {
    name: Box<str>,
    /// What the identities of its limits begin with.
    identity: Prefix,
    /// The name, escaped for use in keys.
    #[cfg(feature = "redis")]
    escaped_name: Box<str>,
    algorithm: Algorithm,
    group: Option<Box<str>>,
    /// The group, escaped for use in keys.
    escaped_group: Option<Box<str>>,
    on_store_failure: OnStoreFailure,
    deadline: Duration,
    lease: Option<Duration>,
    /// Which states are its own.
    generation: u32,
    /// What its algorithm is called in names of keys.
    #[cfg(feature = "redis")]
    code: Cow<'static, str>,
    /// What it was before, if its limits may have to be converted.
    scaled: Option<Arc<PreviousPolicy>>,
    /// What it has answered.
    #[cfg(feature = "metrics")]
    counters: crate::metrics_handles::PolicyCounters,
    /// A text that a layer derives from the policy.
    cached_text: CachedText,
    /// What few policies say.
    extras: Option<Box<RareOptions>>,
}

/// A text that is written once. A clone is part of another policy, with other numbers, and starts
/// empty.
#[derive(Debug, Default)]
struct CachedText(OnceLock<Box<str>>);

impl Clone for CachedText {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Policy {
    /// How long a decision may take, the wait for a connection included, unless the policy says
    /// otherwise.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);

    /// The policy's name, part of the identity of its state.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The group whose members can be decided together, where one was given.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.0.group.as_deref()
    }

    /// The most that can be admitted at once: a bucket's or funnel's capacity, a window's limit,
    /// what may be in flight.
    #[must_use]
    pub fn quota(&self) -> Amount {
        self.amount(self.0.algorithm.quota())
    }

    /// The time after which nothing remains of a fully used quota: a window's length, the time in
    /// which a bucket fills or a funnel drains, or the lease of permits whose holders died. A month
    /// is said to have 31 days. Of a [counter window](Self::counter_window) it is the length, too,
    /// though what was used counts for up to twice as long.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_micros(match self.0.algorithm {
            Algorithm::TokenBucket(TokenBucket { capacity, rate })
            | Algorithm::Funnel(Funnel { capacity, rate, .. }) => rate.time_for(capacity, 0),
            Algorithm::SlidingWindow(SlidingWindow { window, .. })
            | Algorithm::CounterWindow(CounterWindow { window, .. })
            | Algorithm::FixedWindow(FixedWindow { window, .. }) => window,
            Algorithm::Concurrency(limit) => limit.lease_micros(),
        })
    }

    /// What a decision is when the store gives no answer.
    #[must_use]
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.0.on_store_failure
    }

    /// How long a decision may take, the wait for a connection included.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.0.deadline
    }

    /// The policy with a deadline of at most this duration, for callers that cannot wait longer.
    /// Its limits are the same.
    ///
    /// ```
    /// use limiter_core::Policy;
    /// use std::time::Duration;
    ///
    /// let search = Policy::token_bucket("search").capacity(20).rate("10/s").build()?;
    /// let at_most = |millis| search.with_max_deadline(Duration::from_millis(millis)).deadline();
    /// assert_eq!(at_most(12), Duration::from_millis(12));
    /// assert_eq!(at_most(90), Policy::DEFAULT_DEADLINE);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn with_max_deadline(&self, at_most: Duration) -> Self {
        if self.0.deadline <= at_most {
            return self.clone();
        }
        let mut inner = PolicyInner::clone(&self.0);
        // As in the builder, a deadline is positive.
        inner.deadline = at_most.max(Duration::from_micros(1));
        Self(Arc::new(inner))
    }

    /// For how long at most permits may be borrowed from Redis, where they may, or outlive their
    /// holder ([`PolicyBuilder::lease`]).
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.0.lease
    }

    /// Whether its decisions are obeyed, as far as it is up to the policy.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        self.extras()
            .map_or_else(Enforcement::default, |extras| extras.settings.enforcement)
    }

    /// What becomes of a call that it denies.
    #[must_use]
    pub fn on_denial(&self) -> OnDenial {
        self.extras()
            .map_or_else(OnDenial::default, |extras| extras.settings.on_denial)
    }

    /// The penalty for keys that it denies too often.
    #[must_use]
    pub fn penalty(&self) -> Option<&Penalty> {
        self.extras()?.settings.penalty.as_ref()
    }

    /// The keys that it allows without a look.
    #[must_use]
    pub fn allow_keys(&self) -> Option<&KeyList> {
        self.extras()?.settings.allow_keys.as_ref()
    }

    /// The keys that it denies without a look.
    #[must_use]
    pub fn deny_keys(&self) -> Option<&KeyList> {
        self.extras()?.settings.deny_keys.as_ref()
    }

    /// Whether it says nothing that a store does not know.
    #[inline]
    pub(crate) fn is_store_only(&self) -> bool {
        self.0.extras.is_none()
    }

    /// The prefixes of keys for which entries of its key lists were reported that never match.
    pub(crate) fn reported_prefixes(&self) -> Option<&ReportedPrefixes> {
        Some(&self.extras()?.reported)
    }

    pub(crate) fn punishing(&self) -> Option<&PenaltyLimits> {
        self.extras()?.punishing.as_ref()
    }

    /// The text that `write` returned the first time. One caller in the program may use it.
    #[inline]
    pub(crate) fn cached_text(&self, write: impl FnOnce() -> String) -> &str {
        self.0.cached_text.0.get_or_init(|| write().into())
    }

    fn extras(&self) -> Option<&RareOptions> {
        self.0.extras.as_deref()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn escaped_name(&self) -> &str {
        &self.0.escaped_name
    }

    /// What tells the limit of this key, in this group, from every other.
    #[inline]
    pub(crate) fn identity(&self, group: Option<&str>, key: &str) -> Identity {
        self.0.identity.identity(group, key)
    }

    pub(crate) fn escaped_group(&self) -> Option<&str> {
        self.0.escaped_group.as_deref()
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        &self.0.algorithm
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn counters(&self) -> &crate::metrics_handles::PolicyCounters {
        &self.0.counters
    }

    /// Whether calls that are admitted wait for their turn.
    pub(crate) fn is_paced(&self) -> bool {
        matches!(self.0.algorithm, Algorithm::Funnel(Funnel { paced: true, .. }))
    }

    /// This policy with the numbers of another one, of the same algorithm.
    pub(crate) fn with_numbers_of(&self, other: &Self) -> Self {
        let algorithm = match (self.0.algorithm, other.0.algorithm) {
            // A lease is no number of permits, and neither is whether calls leave evenly.
            (Algorithm::Concurrency(own), Algorithm::Concurrency(Concurrency { max, .. })) => {
                Algorithm::Concurrency(Concurrency { max, ..own })
            }
            (Algorithm::Funnel(Funnel { paced, .. }), Algorithm::Funnel(numbers)) => {
                Algorithm::Funnel(Funnel { paced, ..numbers })
            }
            (_, other) => other,
        };
        Self(Arc::new(PolicyInner {
            algorithm,
            scaled: None,
            ..(*self.0).clone()
        }))
    }

    /// The same for a key of its own: periods of a fixed window begin as this policy's, unless the
    /// other one says otherwise.
    pub(crate) fn with_quota_of(&self, other: &Self) -> Self {
        let mut own = self.with_numbers_of(other);
        if let Some(aligned) = self.aligned_as_this(other) {
            if let Some(inner) = Arc::get_mut(&mut own.0) {
                inner.algorithm = Algorithm::FixedWindow(aligned);
            }
        }
        own
    }

    /// Whether periods of that length can begin as this policy's do.
    pub(crate) fn can_have_quota_of(&self, other: &Self) -> bool {
        self.aligned_as_this(other)
            .is_none_or(|aligned| calendar::can_be_aligned(aligned.window))
    }

    /// The other one's numbers, where it is left to this policy when its periods begin, and that is
    /// with the calendar.
    fn aligned_as_this(&self, other: &Self) -> Option<FixedWindow> {
        let (Algorithm::FixedWindow(own), Algorithm::FixedWindow(numbers)) =
            (self.0.algorithm, other.0.algorithm)
        else {
            return None;
        };
        let (Periods::Aligned(offset) | Periods::Months(offset), Periods::FirstUse) =
            (own.periods, numbers.periods)
        else {
            return None;
        };
        let periods = Periods::Aligned(offset);
        Some(FixedWindow { periods, ..numbers })
    }

    /// An amount counted in the algorithm's own unit.
    pub(crate) fn amount(&self, units: u64) -> Amount {
        if self.0.algorithm.is_window() {
            Amount::from(units)
        } else {
            Amount::from_thousandths(units)
        }
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        Arc::ptr_eq(a, b)
            || (a.name == b.name
                && a.algorithm == b.algorithm
                && a.group == b.group
                && a.on_store_failure == b.on_store_failure
                && a.deadline == b.deadline
                && a.lease == b.lease
                && a.extras == b.extras
                && a.generation == b.generation
                && a.scaled == b.scaled)
    }
}

impl Eq for Policy {}
