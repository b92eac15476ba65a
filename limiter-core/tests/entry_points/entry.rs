//! The entry points: every way to request a permit of a policy.

use std::future::IntoFuture;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use limiter_core::__private::{admit, try_decide};
use limiter_core::registry::OnUnknownPolicy;
use limiter_core::{Allowed, Decision, Enforcement, Key, LimitRequest, Limiter, Rejection, token_limiter};
use limiter_redisson::Client;
use limiter_tower::{RateLimitLayer, RequestLimits};
use tower::{Layer as _, service_fn};

use super::answer::Answer;
use super::condition::Condition;
use super::end::End;
use super::layer::{handler, key_of, layer_call, layer_call_that_waits, of_client, of_response};
use super::overlay::Overlay;
use super::{ABOVE_QUOTA, QUOTA};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Check,
    CheckAll,
    CheckTwo,
    Peek,
    PeekTwo,
    Acquire,
    AcquireTwo,
    Admit,
    AdmitTwo,
    Reserve,
    ReserveTwo,
    NamedCheck,
    NamedPeek,
    NamedAcquire,
    NamedAdmit,
    NamedReserve,
    ResolvedPolicy,
    Attribute,
    AttributeWithoutKey,
    AttributeWithParameters,
    AttributeThatWaits,
    AttributeThatCounts,
    AttributeWithFallback,
    AttributeOfBlock,
    TwoAttributes,
    LayerCall,
    LayerCallOfTwo,
    LayerCallThatWaits,
    Layer,
    LayerWithDecision,
    LayerOfTwo,
    LayerOfRequestLimits,
    LayerThatWaits,
    NamedLayer,
    OutboundLayer,
    NamedOutboundLayer,
    Redisson,
}

pub(crate) const ENTRIES: &[Entry] = &[
    Entry::Check,
    Entry::CheckAll,
    Entry::CheckTwo,
    Entry::Peek,
    Entry::PeekTwo,
    Entry::Acquire,
    Entry::AcquireTwo,
    Entry::Admit,
    Entry::AdmitTwo,
    Entry::Reserve,
    Entry::ReserveTwo,
    Entry::NamedCheck,
    Entry::NamedPeek,
    Entry::NamedAcquire,
    Entry::NamedAdmit,
    Entry::NamedReserve,
    Entry::ResolvedPolicy,
    Entry::Attribute,
    Entry::AttributeWithoutKey,
    Entry::AttributeWithParameters,
    Entry::AttributeThatWaits,
    Entry::AttributeThatCounts,
    Entry::AttributeWithFallback,
    Entry::AttributeOfBlock,
    Entry::TwoAttributes,
    Entry::LayerCall,
    Entry::LayerCallOfTwo,
    Entry::LayerCallThatWaits,
    Entry::Layer,
    Entry::LayerWithDecision,
    Entry::LayerOfTwo,
    Entry::LayerOfRequestLimits,
    Entry::LayerThatWaits,
    Entry::NamedLayer,
    Entry::OutboundLayer,
    Entry::NamedOutboundLayer,
    Entry::Redisson,
];

#[token_limiter(policy = "p", key = key.clone(), need = cost, limiter = limits)]
async fn attribute(limits: &Limiter, key: Key<'static>, cost: u64) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(policy = "p", need = cost, limiter = limits)]
async fn attribute_without_key(limits: &Limiter, cost: u64) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(name = "p", capacity = 2, rate = "1/min", key = key.clone(), need = cost, deadline = "30s", limiter = limits)]
async fn attribute_with_parameters(limits: &Limiter, key: Key<'static>, cost: u64) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(policy = "p", key = key.clone(), need = cost, limiter = limits, wait = Duration::ZERO)]
async fn attribute_that_waits(limits: &Limiter, key: Key<'static>, cost: u64) -> Result<(), Rejection> {
    Ok(())
}

#[token_limiter(policy = "p", key = key.clone(), need = cost, limiter = limits, count_if = Result::is_ok)]
async fn attribute_that_counts(limits: &Limiter, key: Key<'static>, cost: u64) -> Result<(), Rejection> {
    Ok(())
}

fn rejected(rejection: Rejection) -> Result<(), Rejection> {
    Err(rejection)
}

#[token_limiter(policy = "p", key = key.clone(), need = cost, limiter = limits, fallback = rejected, pass_rejection)]
async fn attribute_with_fallback(limits: &Limiter, key: Key<'static>, cost: u64) -> Result<(), Rejection> {
    Ok(())
}

struct Block<'a>(&'a Limiter);

#[token_limiter(policy = "p", key = key.clone(), need = cost, limiter = self.0)]
impl Block<'_> {
    async fn call(&self, key: Key<'static>, cost: u64) -> Result<(), Rejection> {
        Ok(())
    }
}

#[token_limiter(policy = "p", key = key.clone(), need = cost, limiter = limits)]
#[token_limiter(policy = "q", key = key.clone(), need = cost)]
async fn two_attributes(limits: &Limiter, key: Key<'static>, cost: u64) -> Result<(), Rejection> {
    Ok(())
}

impl Entry {
    /// True if the entry point is available under the condition, with the meaning of the table.
    pub(crate) fn applies_to(&self, condition: &Condition) -> bool {
        if condition.overlay == Some(Overlay::Blocked) && !self.has_key() {
            return false;
        }
        match (self, condition.on_unknown_policy) {
            // The attribute defines the policy, without a mode or a key list.
            (Self::AttributeWithParameters, _) => {
                let Condition {
                    of_policy,
                    allows_key,
                    denies_key,
                    has_penalty,
                    ..
                } = *condition;
                of_policy == Enforcement::Enforce
                    && !(allows_key || denies_key || has_penalty)
                    && condition.on_unknown_policy.is_none()
            }
            (_, None) => true,
            // `Limiter::policy` has no policy to return, and Redisson's methods fail for an unknown
            // name.
            (Self::ResolvedPolicy | Self::Redisson, Some(answer)) => answer == OnUnknownPolicy::Deny,
            (entry, Some(_)) => entry.is_by_name(),
        }
    }

    fn is_by_name(&self) -> bool {
        match self {
            Self::NamedCheck
            | Self::NamedPeek
            | Self::NamedAcquire
            | Self::NamedAdmit
            | Self::NamedReserve
            | Self::ResolvedPolicy
            | Self::Attribute
            | Self::AttributeWithoutKey
            | Self::AttributeThatWaits
            | Self::AttributeThatCounts
            | Self::AttributeWithFallback
            | Self::AttributeOfBlock
            | Self::TwoAttributes
            | Self::NamedLayer
            | Self::NamedOutboundLayer
            | Self::Redisson => true,
            Self::Check
            | Self::CheckAll
            | Self::CheckTwo
            | Self::Peek
            | Self::PeekTwo
            | Self::Acquire
            | Self::AcquireTwo
            | Self::Admit
            | Self::AdmitTwo
            | Self::Reserve
            | Self::ReserveTwo
            | Self::AttributeWithParameters
            | Self::LayerCall
            | Self::LayerCallOfTwo
            | Self::LayerCallThatWaits
            | Self::Layer
            | Self::LayerWithDecision
            | Self::LayerOfTwo
            | Self::LayerOfRequestLimits
            | Self::LayerThatWaits
            | Self::OutboundLayer => false,
        }
    }

    /// The quota of a key of its own applies to calls by name; other calls state their policy.
    pub(crate) fn quota(&self, condition: &Condition) -> u64 {
        match condition.end {
            Some(End::LaterQuota) if self.is_by_name() => ABOVE_QUOTA,
            _ => QUOTA,
        }
    }

    /// The result of the trial of a call; `None` without a trial.
    pub(crate) fn trial(&self, condition: &Condition, cost: u64) -> Option<bool> {
        let is_tried = self.charges() && *self != Self::AttributeWithParameters;
        condition.trial(cost).filter(|_| is_tried)
    }

    /// Returns whether the entry point charges available permits.
    pub(crate) fn charges(&self) -> bool {
        !matches!(self, Self::Peek | Self::PeekTwo | Self::NamedPeek)
    }

    /// The key of a call: this one, where the entry point takes one.
    pub(crate) fn key(&self, key: String) -> Key<'static> {
        match self.has_key() {
            true => Key::from(key),
            false => Key::global(),
        }
    }

    fn has_key(&self) -> bool {
        !matches!(self, Self::AttributeWithoutKey | Self::Redisson)
    }

    pub(crate) async fn call(
        &self,
        limits: &Limiter,
        condition: &Condition,
        key: &Key<'_>,
        cost: u64,
    ) -> Answer {
        let (first, second) = (&condition.policy("p"), &condition.policy("q"));
        let one = || [LimitRequest::new(first, key)];
        let two = || [LimitRequest::new(first, key), LimitRequest::new(second, key)];
        let (named, owned) = (limits.named("p"), key.clone().into_owned());
        match self {
            Self::Check => of_decision(limits.check(first, key).cost(cost)).await,
            Self::CheckAll => of_decision(limits.check_all(one()).cost(cost)).await,
            Self::CheckTwo => of_decision(limits.check_all(two()).cost(cost)).await,
            Self::Peek => of_decision(limits.peek(first, key).cost(cost)).await,
            Self::PeekTwo => of_decision(limits.peek_all(two()).cost(cost)).await,
            Self::Acquire => of_allowed(limits.acquire(first, key).cost(cost).timeout(Duration::ZERO)).await,
            Self::AcquireTwo => {
                of_allowed(limits.acquire_all(two()).cost(cost).timeout(Duration::ZERO)).await
            }
            Self::Admit => of_allowed(limits.admit(first, key).cost(cost)).await,
            Self::AdmitTwo => of_allowed(limits.admit_all(two()).cost(cost)).await,
            Self::Reserve => of_reservation(limits.reserve(first, key).cost(cost).await),
            Self::ReserveTwo => of_reservation(limits.reserve_all(two()).cost(cost).await),
            Self::NamedCheck => of_decision(named.check(key).cost(cost)).await,
            Self::NamedPeek => of_decision(named.peek(key).cost(cost)).await,
            Self::NamedAcquire => of_allowed(named.acquire(key).cost(cost).timeout(Duration::ZERO)).await,
            Self::NamedAdmit => of_allowed(named.admit(key).cost(cost)).await,
            Self::NamedReserve => of_reservation(named.reserve(key).cost(cost).await),
            Self::ResolvedPolicy => match limits.policy("p", key) {
                Ok(policy) => of_decision(limits.check(&policy, key).cost(cost)).await,
                Err(rejection) => Answer::of_rejection(&rejection),
            },
            Self::Attribute => of_unit(attribute(limits, owned, cost).await),
            Self::AttributeWithoutKey => of_unit(attribute_without_key(limits, cost).await),
            Self::AttributeWithParameters => of_unit(attribute_with_parameters(limits, owned, cost).await),
            Self::AttributeThatWaits => of_unit(attribute_that_waits(limits, owned, cost).await),
            Self::AttributeThatCounts => of_unit(attribute_that_counts(limits, owned, cost).await),
            Self::AttributeWithFallback => of_unit(attribute_with_fallback(limits, owned, cost).await),
            Self::AttributeOfBlock => of_unit(Block(limits).call(owned, cost).await),
            Self::TwoAttributes => of_unit(two_attributes(limits, owned, cost).await),
            Self::LayerCall => layer_call(limits, first, key, cost).await,
            Self::LayerCallOfTwo => match try_decide(&limits.check_all(two()).cost(cost)) {
                Poll::Ready(answer) => Answer::of_decision(answer),
                Poll::Pending => Answer::of_decision(admit(limits.check_all(two()).cost(cost)).await),
            },
            Self::LayerCallThatWaits => layer_call_that_waits(limits, first, key, cost).await,
            Self::Layer => {
                let layer = RateLimitLayer::new(limits, first).key(key_of(owned)).cost(cost);
                of_response(layer.layer(service_fn(handler))).await
            }
            Self::LayerWithDecision => {
                let layer = RateLimitLayer::new(limits, first).key(key_of(owned)).cost(cost);
                of_response(layer.with_decision_extension().layer(service_fn(handler))).await
            }
            Self::LayerOfTwo => {
                let layer = RateLimitLayer::new(limits, [first, second]).key(key_of(owned));
                of_response(layer.cost(cost).layer(service_fn(handler))).await
            }
            Self::LayerOfRequestLimits => {
                let policy = first.clone();
                let requested =
                    move |_: &Request<String>| RequestLimits::new(&policy, owned.clone()).cost(cost);
                let layer = RateLimitLayer::limits_for(limits, requested);
                of_response(layer.layer(service_fn(handler))).await
            }
            Self::LayerThatWaits => {
                let layer = RateLimitLayer::new(limits, first).key(key_of(owned)).cost(cost);
                of_response(layer.max_wait(Duration::ZERO).layer(service_fn(handler))).await
            }
            Self::NamedLayer => {
                let layer = RateLimitLayer::new(limits, "p").key(key_of(owned)).cost(cost);
                of_response(layer.layer(service_fn(handler))).await
            }
            Self::OutboundLayer => {
                let layer = RateLimitLayer::outbound(limits, first)
                    .key(key_of(owned))
                    .cost(cost);
                of_client(layer.layer(service_fn(handler))).await
            }
            Self::NamedOutboundLayer => {
                let layer = RateLimitLayer::outbound(limits, "p")
                    .key(key_of(owned))
                    .cost(cost);
                of_client(layer.layer(service_fn(handler))).await
            }
            Self::Redisson => match Client::new(limits).rate_limiter("p").try_acquire(cost).await {
                Ok(true) => Answer::Allowed(None),
                Ok(false) => Answer::Limited(None),
                Err(rejection) => Answer::of_rejection(&rejection),
            },
        }
    }
}

async fn of_decision(call: impl IntoFuture<Output = Result<Decision, Rejection>>) -> Answer {
    Answer::of_decision(call.await)
}

async fn of_allowed(call: impl IntoFuture<Output = Result<Allowed, Rejection>>) -> Answer {
    match call.await {
        Ok(allowed) => Answer::allowed(&allowed),
        Err(rejection) => Answer::of_rejection(&rejection),
    }
}

fn of_reservation(reserved: Result<limiter_core::Reservation, Rejection>) -> Answer {
    match reserved {
        Ok(reservation) => Answer::allowed(reservation.decision()),
        Err(rejection) => Answer::of_rejection(&rejection),
    }
}

fn of_unit(answer: Result<(), Rejection>) -> Answer {
    match answer {
        Ok(()) => Answer::Allowed(None),
        Err(rejection) => Answer::of_rejection(&rejection),
    }
}
