//! Policies: what is limited, and how. A `Policy` that exists is valid.

mod builder;
mod calendar;
mod concurrency;
mod counter_window;
mod enforcement;
mod extras;
mod fixed_window;
mod funnel;
mod key_list;
mod lineage;
mod on_denial;
mod penalty;
mod purse;
mod rate;
mod reciprocal;
#[cfg(feature = "redis")]
mod share;
mod sliding_window;
mod token_bucket;

#[cfg(feature = "redis")]
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use builder::check_text;
pub use builder::{
    CounterWindowShape, FixedWindowShape, LevelShape, PolicyBuilder, SlidingWindowShape, Window,
};
pub use calendar::UtcOffset;
#[cfg(feature = "redis")]
pub(crate) use calendar::origin;
pub(crate) use concurrency::Concurrency;
pub use concurrency::ConcurrencyShape;
pub(crate) use counter_window::{CounterWindow, MAX_COUNTED};
pub use enforcement::Enforcement;
use extras::Extras;
pub(crate) use fixed_window::{FixedWindow, Periods};
pub(crate) use funnel::Funnel;
pub use key_list::KeyList;
pub use lineage::Inheritance;
pub(crate) use lineage::Scaled;
pub use on_denial::OnDenial;
pub(crate) use penalty::Punishing;
pub use penalty::{Penalty, PenaltyAfter};
pub(crate) use purse::Lent;
pub use rate::Rate;
#[cfg(feature = "book")]
pub(crate) use rate::Span;
pub(crate) use sliding_window::SlidingWindow;
pub(crate) use token_bucket::TokenBucket;

use crate::identity::{Identity, Prefix};
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
pub struct Policy(Arc<Inner>);

#[derive(Clone)]
struct Inner {
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
    scaled: Option<Arc<Scaled>>,
    /// What it has answered.
    #[cfg(feature = "metrics")]
    counters: crate::observe::Counters,
    /// What few policies say.
    extras: Option<Box<Extras>>,
}

/// Which algorithm a policy uses, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Algorithm {
    TokenBucket(TokenBucket),
    Funnel(Funnel),
    SlidingWindow(SlidingWindow),
    CounterWindow(CounterWindow),
    FixedWindow(FixedWindow),
    Concurrency(Concurrency),
}

impl Algorithm {
    /// The most that can be admitted at once, in the algorithm's own unit.
    pub(crate) fn quota(&self) -> u64 {
        match *self {
            Self::TokenBucket(TokenBucket { capacity, .. }) | Self::Funnel(Funnel { capacity, .. }) => {
                capacity
            }
            Self::SlidingWindow(SlidingWindow { limit, .. })
            | Self::CounterWindow(CounterWindow { limit, .. })
            | Self::FixedWindow(FixedWindow { limit, .. }) => limit,
            Self::Concurrency(Concurrency { max, .. }) => max,
        }
    }

    /// Whether it counts whole permits in windows; a level counts thousandths, which come back at a rate.
    #[inline]
    pub(crate) fn is_window(&self) -> bool {
        !matches!(self, Self::TokenBucket(_) | Self::Funnel(_))
    }

    /// How the algorithm is called in names of keys.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "tb",
            Self::Funnel(_) => "fn",
            Self::SlidingWindow(_) => "sw",
            Self::CounterWindow(_) => "cw",
            Self::FixedWindow(_) => "fw",
            Self::Concurrency(_) => "cc",
        }
    }
}

/// What a decision is when the store gives no answer within the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// The policy is applied in this process, to this replica's share of it. The default.
    ///
    /// Of n replicas each admits a quota of max(1, ⌈quota/n⌉) at an nth of the rate, starting from an nth of what was left
    /// when Redis was last heard about the key (of 100,000 keys, see
    /// [`RedisBuilder::max_local_keys`](crate::RedisBuilder::max_local_keys)). So in any time T all of them admit at most n
    /// permits more than the policy would, beside what Redis admits in the same time. A cost above the share is denied, and
    /// told to ask again in half a second. The [`Origin`](crate::Origin) says `Insurance`.
    ///
    /// A replica is a [`Limiter`](crate::Limiter) of this namespace with all its clones. They are counted in Redis while it
    /// answers (up to 1,024), or given by [`RedisBuilder::replicas`](crate::RedisBuilder::replicas): n is right for those that
    /// have been running for some seconds before the outage. One that started in it counts itself alone.
    ///
    /// A value that cannot be read ([`WrongType`](crate::StoreErrorKind::WrongType),
    /// [`UnknownLayout`](crate::StoreErrorKind::UnknownLayout)) is no outage, so it is an error, as is a store in process
    /// that is full.
    #[default]
    Local,
    /// No decision: the call fails with [`Rejection::Unavailable`](crate::Rejection::Unavailable).
    Error,
    /// The call is allowed; its [`Origin`](crate::Origin) says `FailedOpen`.
    Allow,
    /// The call is denied; its [`Origin`](crate::Origin) says `FailedClosed`.
    Deny,
}

impl Policy {
    /// How long a decision may take, the wait for a connection included, unless the policy says otherwise.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);

    /// A token bucket: `capacity` at once, then `rate`. Over any time T it admits at most capacity + rate·T.
    pub fn token_bucket(name: impl Into<String>) -> PolicyBuilder<LevelShape> {
        PolicyBuilder::level(name.into(), |capacity, rate| {
            Algorithm::TokenBucket(TokenBucket { capacity, rate })
        })
    }

    /// A funnel (leaky bucket as a meter): holds `capacity`, drains at `rate`. It admits as a token bucket does;
    /// when its capacity changes, what was *used* is kept, where a token bucket keeps what is *left*.
    /// [Paced](PolicyBuilder::paced), it tells each call how long to wait, so that calls leave evenly.
    pub fn funnel(name: impl Into<String>) -> PolicyBuilder<LevelShape> {
        PolicyBuilder::level(name.into(), |capacity, rate| {
            Algorithm::Funnel(Funnel {
                capacity,
                rate,
                paced: false,
            })
        })
    }

    /// An exact sliding window: never more than `limit` permits in any window.
    pub fn sliding_window(name: impl Into<String>) -> PolicyBuilder<SlidingWindowShape> {
        PolicyBuilder::sliding_window(name.into())
    }

    /// A sliding window that is estimated from two counters: so much memory however large the limit, and a stated error.
    ///
    /// The last window is taken to hold what this period was given, and of what the period before was given the part by which
    /// it reaches into that window. Periods are as long as the window; they begin with a key's first permit, and follow each
    /// other while something counts.
    ///
    /// Over any time T it gives at most limit · (1 + T / window) permits, as a token bucket of that capacity and rate does. So
    /// in any window it is less than twice the limit: as much as that where somebody takes all at the end of a period and all
    /// at the end of the next; calls at random moments get some percent more than the limit (13 of a hundred at most, as measured). Where that is too much, there is
    /// [`sliding_window`](Self::sliding_window), at 8 bytes a permit.
    ///
    /// When its window changes, what counts is kept, and over any time T no more is given than by the larger limit and the
    /// shorter window.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let policy = Policy::counter_window("events").limit(1_000_000).window("1m").build()?;
    ///
    /// assert!(limits.check(&policy, "ann").cost(1_000_000).await?.is_allowed());
    /// // A quarter of the next minute later, a quarter of them counts no more.
    /// clock.advance(Duration::from_secs(75));
    /// let decision = limits.check(&policy, "ann").await?;
    /// assert_eq!(decision.remaining(), 249_999);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn counter_window(name: impl Into<String>) -> PolicyBuilder<CounterWindowShape> {
        PolicyBuilder::counter_window(name.into())
    }

    /// A fixed window: at most `limit` permits in each period. The cheapest algorithm: one count.
    ///
    /// A period begins with a key's first permit. [`aligned`](PolicyBuilder::aligned), it is a minute, an hour, a day, a week
    /// or a month of the calendar, by the store's clock and a fixed offset from UTC: what quotas are sold by.
    ///
    /// Around the end of a period up to twice the limit is given within a moment. All that was used comes back at once.
    ///
    /// When the limit changes, what was used is kept. When the window changes, or how it is aligned, what was used counts until
    /// the period ends in which it was, or for one window of the new length, whichever is sooner: so each of two policies
    /// that take turns is given no more in a period than the larger limit, and a period that follows another lasts as the policy
    /// says that begins it.
    ///
    /// A clock that steps back does not end a period, and makes none last longer than a window from then on.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy, Timestamp, UtcOffset};
    /// use std::time::Duration;
    ///
    /// // 2024-02-29T23:00:00Z
    /// let clock = ManualClock::starting_at(Timestamp::from_micros(1_709_247_600_000_000));
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let daily = Policy::fixed_window("daily").limit(2).window("1d").aligned(UtcOffset::UTC).build()?;
    /// let month = Policy::fixed_window("month").limit(2).window("month").aligned("+02:00").build()?;
    ///
    /// assert!(limits.check(&daily, "ann").cost(2).await?.is_allowed());
    /// let denied = limits.check(&daily, "ann").await?;
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs(3_600)));
    /// // Two hours further east it is March already.
    /// let decision = limits.check(&month, "ann").await?;
    /// assert_eq!(decision.reset_after(), Duration::from_secs(31 * 86_400 - 3_600));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn fixed_window(name: impl Into<String>) -> PolicyBuilder<FixedWindowShape> {
        PolicyBuilder::fixed_window(name.into())
    }

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

    /// The most that can be admitted at once: a bucket's or funnel's capacity, a window's limit, what may be in flight.
    #[must_use]
    pub fn quota(&self) -> Amount {
        self.amount(self.0.algorithm.quota())
    }

    /// The time after which nothing remains of a fully used quota: a window's length, the time in which a bucket fills or a
    /// funnel drains, or the lease of permits whose holders died. A month is said to have 31 days. Of a
    /// [counter window](Self::counter_window) it is the length, too, though what was used counts for up to twice as long.
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

    /// For how long at most permits may be borrowed from Redis, where they may, or outlive their holder
    /// ([`PolicyBuilder::lease`]).
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
    pub(crate) fn is_plain(&self) -> bool {
        self.0.extras.is_none()
    }

    pub(crate) fn punishing(&self) -> Option<&Punishing> {
        self.extras()?.punishing.as_ref()
    }

    fn extras(&self) -> Option<&Extras> {
        self.0.extras.as_deref()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn escaped_name(&self) -> &str {
        &self.0.escaped_name
    }

    /// What tells the limit of this key, in this group, from every other.
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
    pub(crate) fn counters(&self) -> &crate::observe::Counters {
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
        Self(Arc::new(Inner {
            algorithm,
            scaled: None,
            ..(*self.0).clone()
        }))
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

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.0.name)
            .field("algorithm", &self.0.algorithm)
            .field("group", &self.0.group)
            .field("on_store_failure", &self.0.on_store_failure)
            .field("deadline", &self.0.deadline)
            .field("lease", &self.0.lease)
            .field("extras", &self.0.extras)
            .field("generation", &self.0.generation)
            .field("before", &self.before())
            .finish()
    }
}

/// `search (token bucket: 20, refilled at 10/s)`.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self.0.algorithm {
            Algorithm::TokenBucket(TokenBucket { capacity, rate }) => {
                write!(
                    f,
                    "{name} (token bucket: {}, refilled at {rate})",
                    Amount::from_thousandths(capacity)
                )
            }
            Algorithm::Funnel(Funnel {
                capacity,
                rate,
                paced,
            }) => {
                write!(
                    f,
                    "{name} ({}: {}, drained at {rate})",
                    if paced { "paced funnel" } else { "funnel" },
                    Amount::from_thousandths(capacity)
                )
            }
            Algorithm::SlidingWindow(SlidingWindow { limit, window }) => {
                write!(
                    f,
                    "{name} (sliding window: {limit} in any {})",
                    rate::Span(window)
                )
            }
            Algorithm::CounterWindow(CounterWindow { limit, window }) => {
                write!(
                    f,
                    "{name} (counter window: {limit} in about {})",
                    rate::Span(window)
                )
            }
            Algorithm::FixedWindow(FixedWindow {
                limit,
                window,
                periods,
            }) => {
                write!(f, "{name} (fixed window: {limit} in each ")?;
                match periods {
                    Periods::FirstUse => write!(f, "{} from its first use)", rate::Span(window)),
                    Periods::Aligned(offset) => write!(f, "{} of {offset})", rate::Span(window)),
                    Periods::Months(offset) => write!(f, "month of {offset})"),
                }
            }
            Algorithm::Concurrency(limit) => write!(f, "{name} (concurrency: {limit})"),
        }
    }
}
