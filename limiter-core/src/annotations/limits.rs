//! The budgets of annotated functions, by the annotation's name and the parts of its key.
//!
//! `Limiter::annotation` finds the registered annotations of a name, `AnnotationLimit::key` builds
//! the key from its template (`key_template`), and `KeyLimit` peeks, resets and refunds under the
//! policy of the annotation. A name whose annotations have templates with different parts is an
//! error, since the parts would not determine one key. Tests: `tests/contract/annotations.rs`,
//! `limiter-macros/tests/behaviour/lines.rs`.

use std::fmt::Display;

use crate::algorithm::Mode;
use crate::annotations::key_template::places_alike;
use crate::annotations::registered::{AnnotationPolicy, RegisteredAnnotation};
use crate::annotations::{Annotation, annotations, build_key};
use crate::check::{Check, Refund};
use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest};
use crate::units::Amount;

impl Limiter {
    /// Returns the limit of the annotations with this name under this limiter, to read a budget,
    /// reset it, or find its key in Redis.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::annotations::with_limiter;
    /// use limiter_core::{Limiter, ManualClock, Rejection, token_limiter};
    ///
    /// #[token_limiter(name = "lookup", capacity = 2, rate = "1/min", key = "user:{user}")]
    /// async fn search(user: &str) -> Result<String, Rejection> {
    ///     Ok(format!("{user} found nothing"))
    /// }
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// with_limiter(limits.clone(), search("ann")).await?;
    ///
    /// let ann = limits.annotation("lookup")?.key(["ann"])?;
    /// assert_eq!(ann.peek().await?.remaining(), 1);
    /// ann.reset().await?;
    /// assert_eq!(ann.peek().await?.remaining(), 2);
    /// # Ok::<(), Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] if no annotation of the program has the name, or if several
    /// annotations of this name have keys with different parts.
    pub fn annotation(&self, name: &str) -> Result<AnnotationLimit<'_>, ConfigError> {
        let all = annotations();
        let mut named = all.iter().filter(|annotation| annotation.name() == name);
        let Some(first) = named.next() else {
            return Err(ConfigError::invalid(
                "annotation",
                name,
                expected_in_place_of(name, &all),
            ));
        };
        if let Some(other) = named.find(|other| !has_same_key(first.0, other.0)) {
            let expected = format!("one whose key has the same parts everywhere, unlike {first} and {other}");
            return Err(ConfigError::invalid("annotation", name, expected));
        }
        Ok(AnnotationLimit {
            limiter: self,
            annotation: *first,
        })
    }

    /// Returns the name of the key in which Redis stores the state of `key` under `policy`, with
    /// prefix and namespace, for example for `redis-cli TTL`. `None` in process.
    ///
    /// ```
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let search = Policy::token_bucket("search").capacity(20).rate(10).build()?;
    /// # #[cfg(feature = "redis")] {
    /// let limits = Limiter::redis("redis://localhost/").namespace("prod:checkout").build()?;
    /// assert_eq!(
    ///     limits.redis_key(&search, "user:ann").as_deref(),
    ///     Some("prod:checkout|tb|search|{user:ann}")
    /// );
    /// # }
    /// assert_eq!(Limiter::in_process().build().redis_key(&search, "user:ann"), None);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn redis_key<'a>(&self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Option<String> {
        let request = DecisionRequest::new(
            [LimitRequest::new(policy, key).cost(Amount::ZERO)],
            Mode::Peek,
            true,
        )
        .ok()?;
        self.inner.backend.redis_key(&request)
    }
}

/// Returns the expected names: the names of the block's methods if the name is that of an `impl`
/// block, else a reference to the list of annotations.
fn expected_in_place_of(name: &str, all: &[Annotation]) -> String {
    const MOST: usize = 8;
    let is_of_block = |annotation: &&Annotation| {
        let method = annotation.name().strip_prefix(name);
        method.is_some_and(|method| method.starts_with("::"))
    };
    let mut methods: Vec<String> = all
        .iter()
        .filter(is_of_block)
        .map(|annotation| format!("`{}`", annotation.name()))
        .collect();
    methods.sort();
    methods.dedup();
    if methods.is_empty() || methods.len() > MOST {
        return "the name of an annotated limit, as `limiter_core::annotations::annotations()` lists them"
            .to_owned();
    }
    format!("the name of a method's limit: {}", methods.join(" or "))
}

fn has_same_key(one: &RegisteredAnnotation, other: &RegisteredAnnotation) -> bool {
    places_alike((&one.key, one.group.as_ref()), (&other.key, other.group.as_ref()))
}

/// An annotation's limit, without a key. Returned by [`Limiter::annotation`].
#[derive(Clone, Debug)]
pub struct AnnotationLimit<'a> {
    limiter: &'a Limiter,
    annotation: Annotation,
}

impl<'a> AnnotationLimit<'a> {
    /// Returns the budget of the key with these parts: one for each placeholder of the annotation's
    /// `key`, in order, and then one for each placeholder of its `group` that the key does not
    /// contain. The parts are escaped as in the annotation. For a key without placeholders, call
    /// [`global`](Self::global).
    ///
    /// Parts of several types are passed as `[&tenant as &dyn Display, &7]`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`], with the template, for a wrong number of parts; for a key that is
    /// an expression (use [`whole_key`](Self::whole_key)); for a policy that depends on the
    /// arguments of a call or is not configured.
    pub fn key<P: Display>(&self, parts: impl IntoIterator<Item = P>) -> Result<KeyLimit<'a>, ConfigError> {
        let parts: Vec<String> = parts.into_iter().map(|part| part.to_string()).collect();
        let RegisteredAnnotation { name, key, group, .. } = self.annotation.0;
        self.budget(build_key(name, key, group.as_ref(), &parts)?)
    }

    /// Returns the only budget of an annotation that has no key or a constant key.
    ///
    /// # Errors
    ///
    /// Those of [`key`](Self::key).
    pub fn global(&self) -> Result<KeyLimit<'a>, ConfigError> {
        self.key([""; 0])
    }

    /// Returns the budget of this key, which must equal the value of the annotation's `key =
    /// expression`; with a `group` in the annotation, [in its group](Key::in_group).
    ///
    /// # Errors
    ///
    /// Those of [`key`](Self::key), except for the parts.
    pub fn whole_key<'k>(&self, key: impl Into<Key<'k>>) -> Result<KeyLimit<'a>, ConfigError> {
        self.budget(key.into().into_owned())
    }

    fn budget(&self, key: Key<'static>) -> Result<KeyLimit<'a>, ConfigError> {
        let policy = match self.annotation.0.policy {
            AnnotationPolicy::Named => self.limiter.policy(self.annotation.name(), &key).map_err(|_| {
                ConfigError::invalid(
                    "annotation",
                    self.annotation.name(),
                    "one whose policy is configured",
                )
            })?,
            AnnotationPolicy::Fixed(_) | AnnotationPolicy::Computed => self.annotation.policy()?,
        };
        Ok(KeyLimit {
            limiter: self.limiter,
            policy,
            key,
        })
    }
}

/// The budget of one key under an annotation's policy. Returned by [`AnnotationLimit::key`].
#[derive(Clone, Debug)]
pub struct KeyLimit<'a> {
    limiter: &'a Limiter,
    policy: Policy,
    key: Key<'static>,
}

impl KeyLimit<'_> {
    /// Returns the annotation's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the key as the annotation builds it.
    #[must_use]
    pub fn key(&self) -> &Key<'static> {
        &self.key
    }

    /// Returns the decision that a call would receive now, and charges nothing: [`Limiter::peek`].
    pub fn peek(&self) -> Check<'_> {
        self.limiter.peek(&self.policy, &self.key)
    }

    /// Deletes the recorded usage: [`Limiter::reset`].
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when the store does not answer. The usage may have been deleted
    /// nevertheless.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while a request to Redis is in flight, the reset is done or not.
    pub async fn reset(&self) -> Result<(), Rejection> {
        self.limiter.reset(&self.policy, &self.key).await
    }

    /// Refunds a permit of a call that did not happen, or the number set by [`Refund::cost`]:
    /// [`Limiter::refund`].
    pub fn refund(&self) -> Refund<'_> {
        self.limiter.refund(&self.policy, &self.key)
    }

    /// Returns the name of the key in Redis: [`Limiter::redis_key`]. `None` in process.
    #[must_use]
    pub fn redis_key(&self) -> Option<String> {
        self.limiter.redis_key(&self.policy, &self.key)
    }
}
