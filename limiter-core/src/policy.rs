//! Policies: the limits and their parameters.
//!
//! A policy is read by each call and shared by many threads, and its name, escaped name and
//! identity prefix are part of each stored state. [`Policy`] is therefore an immutable handle with
//! all derived values, which builders compute once ([`constructors`]). A change creates another
//! policy, which the next call uses.
//!
//! Invariants: every `Policy` is valid, so that decisions validate only keys and costs. This module
//! has no clock, no store and no Redis. Rarely used options are behind one pointer, which plain
//! calls test alone.
//!
//! Tests: `tests/contract/policies.rs`, `tests/properties`.

mod algorithm;
mod builder;
mod cached_text;
mod calendar;
mod concurrency;
pub(crate) mod constructors;
mod counter_window;
mod enforcement;
mod fixed_window;
mod funnel;
pub(crate) mod inheritance;
mod key_list;
mod numbers;
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
mod store_settings;
mod text;
pub(crate) mod thread_cache;
mod token_bucket;
mod trial;
mod window;

#[cfg(feature = "redis")]
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::identity::{Identity, Prefix};
pub(crate) use crate::policy::algorithm::Algorithm;
#[cfg(feature = "redis")]
pub(crate) use crate::policy::builder::check_deadline;
pub use crate::policy::builder::{
    ConcurrencyParams, CounterWindowParams, FixedWindowParams, LevelParams, PolicyBuilder,
    SlidingWindowParams,
};
pub(crate) use crate::policy::builder::{MAX_DEADLINE, check_text};
pub(crate) use crate::policy::cached_text::CachedText;
pub use crate::policy::calendar::UtcOffset;
#[cfg(feature = "redis")]
pub(crate) use crate::policy::calendar::origin;
pub(crate) use crate::policy::concurrency::Concurrency;
pub(crate) use crate::policy::counter_window::{CounterWindow, MAX_COUNTED};
pub use crate::policy::enforcement::Enforcement;
pub(crate) use crate::policy::fixed_window::{FixedWindow, Periods};
pub(crate) use crate::policy::funnel::Funnel;
pub use crate::policy::inheritance::Inheritance;
pub(crate) use crate::policy::inheritance::PreviousPolicy;
pub use crate::policy::key_list::KeyList;
pub use crate::policy::key_list::KeyPrefixes;
pub(crate) use crate::policy::key_list::{Network, ReportedPrefixes, is_network};
pub use crate::policy::on_denial::OnDenial;
pub use crate::policy::on_store_failure::OnStoreFailure;
use crate::policy::options::RareOptions;
pub(crate) use crate::policy::penalty::PenaltyLimits;
pub use crate::policy::penalty::{Penalty, PenaltyBuilder};
pub use crate::policy::rate::Rate;
#[cfg(feature = "registry")]
pub(crate) use crate::policy::rate::Span;
pub(crate) use crate::policy::sliding_window::SlidingWindow;
pub(crate) use crate::policy::store_settings::LimiterDefaults;
use crate::policy::store_settings::{PolicyCopies, StoreSettings};
pub(crate) use crate::policy::thread_cache::CachedPolicy;
pub(crate) use crate::policy::token_bucket::TokenBucket;
pub use crate::policy::window::Window;
use crate::units::Amount;

/// A named limit: an algorithm with its parameters, and the behaviour when the store is
/// unavailable.
///
/// Cheap to clone. Each call passes its policy, so a changed policy takes effect on the next call.
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
    /// Prefix of the identities of its limits.
    identity: Prefix,
    /// The name, escaped for use in keys.
    #[cfg(feature = "redis")]
    escaped_name: Box<str>,
    algorithm: Algorithm,
    group: Option<Box<str>>,
    /// The group, escaped for use in keys.
    escaped_group: Option<Box<str>>,
    store: StoreSettings,
    /// This policy with the defaults of limiters.
    copies: PolicyCopies,
    lease: Option<Duration>,
    /// Generation of its stored states.
    generation: u32,
    /// Code of the algorithm in Redis keys.
    #[cfg(feature = "redis")]
    code: Cow<'static, str>,
    /// The previous policy, if limits may have to be converted.
    scaled: Option<Arc<PreviousPolicy>>,
    /// Counters of its decisions.
    #[cfg(feature = "metrics")]
    counters: crate::metrics_handles::PolicyCounters,
    /// Its counters in the recorder of usage that counted it first.
    #[cfg(feature = "redis")]
    usage: crate::usage_counters::UsageSlot,
    /// A text that a layer derives from the policy.
    cached_text: CachedText,
    /// Rarely used options.
    extras: Option<Box<RareOptions>>,
}

impl Policy {
    /// Deadline of a decision, including the wait for a connection, if neither the policy nor the
    /// limiter sets one.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);

    /// Returns the policy's name, part of the identity of its state.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the group whose members can be decided together, if one is set.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.0.group.as_deref()
    }

    /// Returns the largest cost that can be admitted at once: a bucket's or funnel's capacity, a
    /// window's limit, the maximum number of concurrency permits.
    #[must_use]
    pub fn quota(&self) -> Amount {
        self.amount(self.0.algorithm.quota())
    }

    /// Returns the time after which a fully used quota is available again: a window's length, the
    /// time in which a bucket fills or a funnel drains, or the lease of concurrency permits whose
    /// holders crashed. A month counts as 31 days. For a [counter window](Self::counter_window) it
    /// is the length too, although usage counts for up to twice that time.
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

    /// Returns whether the periods of a fixed window are months of the calendar.
    #[must_use]
    pub fn is_calendar_month(&self) -> bool {
        matches!(
            self.0.algorithm,
            Algorithm::FixedWindow(FixedWindow {
                periods: Periods::Months(_),
                ..
            })
        )
    }

    /// Returns the decision if the store does not reply. If the policy sets none: the default of
    /// the limiter in the policy of a [`LimitOutcome`](crate::LimitOutcome), elsewhere
    /// [`OnStoreFailure::Local`].
    #[must_use]
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.0.store.on_store_failure()
    }

    /// Returns the deadline of a decision, including the wait for a connection. If the policy sets
    /// none: the default of the limiter in the policy of a [`LimitOutcome`](crate::LimitOutcome),
    /// elsewhere [`DEFAULT_DEADLINE`](Self::DEFAULT_DEADLINE).
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.0.store.deadline()
    }

    /// Returns the policy with a deadline of at most this duration, for callers that cannot wait
    /// longer. Its numbers do not change. The duration also bounds the default of a limiter.
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
        match self.0.store.with_max_deadline(at_most) {
            None => self.clone(),
            Some(store) => self.with_store_settings(store),
        }
    }

    /// Returns the maximum time for which permits may be leased from Redis, if leases are enabled,
    /// or outlive their holder ([`PolicyBuilder::lease`]).
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.0.lease
    }

    /// Returns whether the policy enforces its decisions.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        self.extras()
            .map_or_else(Enforcement::default, |extras| extras.settings.enforcement)
    }

    /// Returns the handling of denied calls.
    #[must_use]
    pub fn on_denial(&self) -> OnDenial {
        self.extras()
            .map_or_else(OnDenial::default, |extras| extras.settings.on_denial)
    }

    /// Returns the penalty for keys that are denied too often.
    #[must_use]
    pub fn penalty(&self) -> Option<&Penalty> {
        self.extras()?.settings.penalty.as_ref()
    }

    /// Returns the keys that are allowed without a decision.
    #[must_use]
    pub fn allow_keys(&self) -> Option<&KeyList> {
        self.extras()?.settings.allow_keys.as_ref()
    }

    /// Returns the keys that are denied without a decision.
    #[must_use]
    pub fn deny_keys(&self) -> Option<&KeyList> {
        self.extras()?.settings.deny_keys.as_ref()
    }

    /// True if the store alone decides, without rarely used options.
    #[inline]
    pub(crate) fn is_store_only(&self) -> bool {
        self.0.extras.is_none()
    }

    /// True if limits may have to be [converted](Self::proportional_to).
    #[inline]
    pub(crate) fn is_scaled(&self) -> bool {
        self.0.scaled.is_some()
    }

    /// Returns the key prefixes for which entries of the key lists that never match were reported.
    pub(crate) fn reported_prefixes(&self) -> Option<&ReportedPrefixes> {
        Some(&self.extras()?.reported)
    }

    pub(crate) fn penalty_limits(&self) -> Option<&PenaltyLimits> {
        self.extras()?.penalty_limits.as_ref()
    }

    /// Returns the text that `write` returned the first time. One caller in the program may use it.
    #[inline]
    pub(crate) fn cached_text(&self, write: impl FnOnce() -> String) -> &str {
        self.0.cached_text.get_or_write(write)
    }

    fn extras(&self) -> Option<&RareOptions> {
        self.0.extras.as_deref()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn escaped_name(&self) -> &str {
        &self.0.escaped_name
    }

    /// Returns the code of the algorithm in Redis keys.
    #[cfg(feature = "redis")]
    pub(crate) fn code(&self) -> &str {
        &self.0.code
    }

    /// Returns the identity of the limit of this key and group.
    #[inline]
    pub(crate) fn identity(&self, group: Option<&str>, key: &str) -> Identity {
        self.0.identity.identity(group, key)
    }

    /// Returns the policy's part of the identities of its limits.
    #[inline]
    pub(crate) fn identity_prefix(&self) -> &Prefix {
        &self.0.identity
    }

    pub(crate) fn escaped_group(&self) -> Option<&str> {
        self.0.escaped_group.as_deref()
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        &self.0.algorithm
    }

    /// True for a concurrency policy.
    pub(crate) fn is_concurrency(&self) -> bool {
        matches!(self.algorithm(), Algorithm::Concurrency(_))
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn counters(&self) -> &crate::metrics_handles::PolicyCounters {
        &self.0.counters
    }

    #[cfg(feature = "redis")]
    pub(crate) fn usage_slot(&self) -> &crate::usage_counters::UsageSlot {
        &self.0.usage
    }

    /// True if admitted calls may be delayed.
    pub(crate) fn is_paced(&self) -> bool {
        matches!(self.0.algorithm, Algorithm::Funnel(Funnel { paced: true, .. }))
    }

    /// Returns the name of the algorithm, as the text of a registry writes it: `"token_bucket"`.
    #[must_use]
    pub fn algorithm_name(&self) -> &'static str {
        match self.0.algorithm {
            Algorithm::TokenBucket(_) => "token_bucket",
            Algorithm::Funnel(_) => "funnel",
            Algorithm::SlidingWindow(_) => "sliding_window",
            Algorithm::CounterWindow(_) => "counter_window",
            Algorithm::FixedWindow(_) => "fixed_window",
            Algorithm::Concurrency(_) => "concurrency",
        }
    }

    /// Converts an amount in the unit of the algorithm.
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
                && a.store == b.store
                && a.lease == b.lease
                && a.extras == b.extras
                && a.generation == b.generation
                && a.scaled == b.scaled)
    }
}

impl Eq for Policy {}
