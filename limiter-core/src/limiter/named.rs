//! Calls that name their policy, which is looked up in the limiter's book each time.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Acquire, Check, Limiter, Mode};
use crate::__private::Resolved;
use crate::book::{BookEntry, PolicyBook};
use crate::decision::{Allowed, Decision, Origin, Rejection};
use crate::error::ConfigError;
use crate::key::Key;
use crate::policy::Policy;
use crate::request::Ask;
use crate::units::Amount;

/// What becomes of a call for which no policy is configured: none of its name, or not for this app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnNotConfigured {
    /// It is allowed, by a decision without limits whose [`Origin`] says `NotConfigured`. The default.
    ///
    /// So it is for what stands only in Redis, until Redis was heard for the first time (feature `book`: `RedisSource::heard`).
    #[default]
    Allow,
    /// It is rejected as [`Rejection::NotConfigured`].
    Deny,
}

/// Where a limiter finds policies by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(super) book: PolicyBook,
    pub(super) app: Option<Arc<str>>,
    pub(super) on_not_configured: OnNotConfigured,
}

impl Limiter {
    /// Decides by the policy of this name in the [book](Self::book), as it is at each call.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{BookEntry, Limiter, ManualClock, OnNotConfigured, Origin, Policy, PolicyBook, Rejection};
    ///
    /// let search = Policy::token_bucket("search").capacity(2).rate("1/s").build()?;
    /// let mail = Policy::sliding_window("mail").limit(5).window("1m").build()?;
    /// let book = PolicyBook::new().with(search).with(BookEntry::new(mail).for_apps(["newsletter"])?);
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).book(&book).app("checkout").build();
    /// assert_eq!(limits.named("search").check("ann").await?.remaining(), 1);
    /// for name in ["serach", "mail"] {
    ///     let decision = limits.named(name).check("ann").await?;
    ///     assert!(decision.is_allowed());
    ///     assert_eq!(decision.origin(), Origin::NotConfigured);
    /// }
    /// assert_eq!(book.not_configured(), 2);
    ///
    /// let strict = Limiter::in_process().book(&book).on_not_configured(OnNotConfigured::Deny).build();
    /// let refused = strict.named("serach").check("ann").await;
    /// assert!(matches!(refused, Err(Rejection::NotConfigured { policy }) if policy == "serach"));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn named<'a>(&'a self, policy: &'a str) -> Named<'a> {
        Named {
            limiter: self,
            name: policy,
        }
    }

    /// The book in which policies are looked up by name.
    #[must_use]
    pub fn book(&self) -> &PolicyBook {
        &self.inner.names.book
    }

    /// The book of the namespace in Redis, to have the limiter's own [book](Self::book) follow it, and to publish it.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for a limiter in process.
    #[cfg(all(feature = "book", feature = "redis"))]
    pub fn book_in_redis(&self) -> Result<crate::RedisBook, ConfigError> {
        match &self.inner.backend {
            super::Backend::Redis(guard) => {
                Ok(crate::RedisBook::new(guard.store().shelf(), self.book().clone()))
            }
            super::Backend::Memory(_) => {
                let expected = "a limiter whose state lives in Redis";
                Err(ConfigError::invalid("limiter", "in process", expected))
            }
        }
    }

    /// The policy of this name that counts for a key now: to decide by it together with others
    /// ([`check_all`](Self::check_all)), or to show it. Whoever keeps it does not see what changes in the book.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy, PolicyBook};
    ///
    /// let burst = Policy::token_bucket("burst").capacity(5).rate(1).build()?;
    /// let daily = Policy::sliding_window("daily").limit(2).window("1d").build()?;
    /// let limits = Limiter::in_process().book(&PolicyBook::new().with(daily)).build();
    ///
    /// let daily = limits.policy("daily", "ann")?;
    /// limits.check_all([(&burst, "ann"), (&daily, "ann")]).cost(2).await?.require()?;
    /// assert!(limits.policy("weekly", "ann").is_err());
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] when there is none, or not for this app, whatever becomes of calls that ask for it. It is
    /// counted as they are.
    pub fn policy<'a>(&self, name: &str, key: impl Into<Key<'a>>) -> Result<Policy, Rejection> {
        self.find(name, &key.into()).ok_or_else(|| not_configured(name))
    }

    /// What stands in the book under a name, if it is for this app and has not ended. Nothing is counted.
    pub(crate) fn entry(&self, name: &str) -> Option<Arc<BookEntry>> {
        let Names { book, app, .. } = &self.inner.names;
        let entry = book.get(name)?;
        (entry.is_for(app.as_deref()) && entry.holds_at(self.now())).then_some(entry)
    }

    /// What is not found is counted.
    fn find(&self, name: &str, key: &Key<'_>) -> Option<Policy> {
        let Names { book, app, .. } = &self.inner.names;
        let clock = &self.inner.clock;
        let found = book.find(name, app.as_deref(), key, clock);
        found
            .inspect_err(|miss| book.miss(name, app.as_deref(), *miss, clock))
            .ok()
    }

    /// What a call that names its policy is to be decided by.
    pub(crate) fn resolve(&self, name: &str, key: &Key<'_>) -> Result<Resolved, Rejection> {
        self.open()?;
        match (self.find(name, key), self.inner.names.on_not_configured) {
            (Some(policy), _) => Ok(Resolved::Policy(policy)),
            (None, OnNotConfigured::Allow) => Ok(Resolved::Allowed(Decision {
                ..Decision::unasked(Origin::NotConfigured, self.inner.clock.now())
            })),
            (None, OnNotConfigured::Deny) => Err(not_configured(name)),
        }
    }
}

fn not_configured(name: &str) -> Rejection {
    let policy = name.to_owned();
    Rejection::NotConfigured { policy }
}

/// A policy by its name, which is looked up at each call. Made by [`Limiter::named`].
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    limiter: &'a Limiter,
    name: &'a str,
}

impl<'a> Named<'a> {
    /// As [`Limiter::check`].
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] where the limiter was told so ([`OnNotConfigured::Deny`]); else as [`Limiter::check`].
    pub fn check(&self, key: impl Into<Key<'a>>) -> NamedCheck<'a> {
        self.ask(key.into(), Mode::Charge)
    }

    /// As [`Limiter::peek`].
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek(&self, key: impl Into<Key<'a>>) -> NamedCheck<'a> {
        self.ask(key.into(), Mode::Peek)
    }

    /// As [`Limiter::acquire`]. A wait goes on by the policy with which it began.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy, PolicyBook};
    /// use std::time::Duration;
    ///
    /// let mail = Policy::token_bucket("mail").capacity(1).rate("100/s").build()?;
    /// let limits = Limiter::in_process().book(&PolicyBook::new().with(mail)).build();
    /// for _ in 0..3 {
    ///     limits.named("mail").acquire("ann").up_to(Duration::from_millis(500)).await?;
    /// }
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] where the limiter was told so; else as [`Limiter::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::acquire`].
    pub fn acquire(&self, key: impl Into<Key<'a>>) -> NamedAcquire<'a> {
        NamedAcquire {
            question: self.question(key.into()),
            up_to: Acquire::DEFAULT_UP_TO,
        }
    }

    /// As [`Limiter::refund`]. Where no policy is configured, nothing was taken, and nothing is given back.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] where the limiter was told so; else as [`Limiter::refund`].
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::refund`].
    pub fn refund(&self, key: impl Into<Key<'a>>) -> NamedRefund<'a> {
        NamedRefund(self.question(key.into()))
    }

    /// As [`Limiter::reset`]. Where no policy is configured there is nothing to forget.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] where the limiter was told so; else as [`Limiter::reset`].
    ///
    /// # Cancel safety
    ///
    /// As [`Limiter::reset`].
    pub async fn reset(&self, key: impl Into<Key<'a>>) -> Result<(), Rejection> {
        let key = key.into();
        match self.limiter.resolve(self.name, &key)? {
            Resolved::Policy(policy) => self.limiter.reset(&policy, key).await,
            Resolved::Allowed(_) => Ok(()),
        }
    }

    fn ask(&self, key: Key<'a>, mode: Mode) -> NamedCheck<'a> {
        NamedCheck {
            question: self.question(key),
            mode,
        }
    }

    fn question(&self, key: Key<'a>) -> Question<'a> {
        Question {
            named: *self,
            key,
            cost: Ok(Amount::ONE),
        }
    }
}

/// Whose permits of which policy, and how many.
#[derive(Clone, Debug)]
struct Question<'a> {
    named: Named<'a>,
    key: Key<'a>,
    cost: Result<Amount, ConfigError>,
}

impl Question<'_> {
    fn resolve(&self) -> Result<Resolved, Rejection> {
        self.named.limiter.resolve(self.named.name, &self.key)
    }

    fn check<'b>(&'b self, policy: &'b Policy, mode: Mode) -> Check<'b> {
        let mut ask = Ask::new(policy, &self.key);
        ask.set_cost(self.cost.clone());
        Check::alone(self.named.limiter, ask, mode)
    }
}

/// A question by the name of a policy, not yet asked: await it. Made by [`Named::check`] and [`Named::peek`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked or charged until this is awaited"]
pub struct NamedCheck<'a> {
    question: Question<'a>,
    mode: Mode,
}

impl<'a> NamedCheck<'a> {
    /// What the call costs, as [`Check::cost`]. Default: 1.
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        self.question.cost = cost.try_into().map_err(Into::into);
        self
    }
}

impl<'a> IntoFuture for NamedCheck<'a> {
    type Output = Result<Decision, Rejection>;
    type IntoFuture = NamedDeciding<'a>;

    fn into_future(self) -> NamedDeciding<'a> {
        NamedDeciding(Progress::Unasked(self))
    }
}

/// The future of a [`NamedCheck`]. In process it is ready at the first poll, without an allocation. As cancel safe as that of
/// [`Limiter::check`].
#[must_use = "futures do nothing unless polled"]
pub struct NamedDeciding<'a>(Progress<'a>);

enum Progress<'a> {
    Unasked(NamedCheck<'a>),
    Asked(Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send + 'a>>),
    Answered,
}

impl Future for NamedDeciding<'_> {
    type Output = Result<Decision, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        #[expect(clippy::panic, reason = "as every future, this one ends once")]
        let mut asked = match mem::replace(&mut self.0, Progress::Answered) {
            Progress::Unasked(NamedCheck { question, mode }) => {
                let policy = match question.resolve()? {
                    Resolved::Policy(policy) => policy,
                    Resolved::Allowed(decision) => return Poll::Ready(Ok(decision)),
                };
                if let Some(answer) = question.check(&policy, mode).without_waiting() {
                    return Poll::Ready(answer);
                }
                Box::pin(async move { question.check(&policy, mode).await })
            }
            Progress::Asked(asked) => asked,
            Progress::Answered => panic!("a decision polled again after it was made"),
        };
        let answer = asked.as_mut().poll(context);
        if answer.is_pending() {
            self.0 = Progress::Asked(asked);
        }
        answer
    }
}

impl fmt::Debug for NamedDeciding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamedDeciding")
    }
}

/// A wait for a permit by the name of a policy, not yet begun: await it. Made by [`Named::acquire`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked or charged until this is awaited"]
pub struct NamedAcquire<'a> {
    question: Question<'a>,
    up_to: Duration,
}

impl<'a> NamedAcquire<'a> {
    /// What the call costs, as [`Check::cost`]. Default: 1.
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        self.question.cost = cost.try_into().map_err(Into::into);
        self
    }

    /// How long to wait in total, as [`Acquire::up_to`]. Default: [`Acquire::DEFAULT_UP_TO`].
    pub fn up_to(self, up_to: Duration) -> Self {
        Self { up_to, ..self }
    }
}

impl<'a> IntoFuture for NamedAcquire<'a> {
    type Output = Result<Allowed, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.question.resolve()? {
                Resolved::Policy(policy) => {
                    let check = self.question.check(&policy, Mode::Charge);
                    Acquire::new(check).up_to(self.up_to).await
                }
                Resolved::Allowed(decision) => decision.require(),
            }
        })
    }
}

/// Permits to be given back by the name of their policy: await it. Made by [`Named::refund`].
#[derive(Clone, Debug)]
#[must_use = "nothing is given back until this is awaited"]
pub struct NamedRefund<'a>(Question<'a>);

impl<'a> NamedRefund<'a> {
    /// How much is given back, as [`Refund::cost`](crate::Refund::cost). Default: 1.
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        self.0.cost = cost.try_into().map_err(Into::into);
        self
    }
}

impl<'a> IntoFuture for NamedRefund<'a> {
    type Output = Result<(), Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Question { named, key, cost } = self.0;
            match named.limiter.resolve(named.name, &key)? {
                Resolved::Policy(policy) => named.limiter.refund(&policy, key).cost(cost?).await,
                Resolved::Allowed(_) => Ok(()),
            }
        })
    }
}
