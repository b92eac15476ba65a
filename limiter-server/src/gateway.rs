//! The protocols of clients, in front of one limiter.
//!
//! gRPC (`grpc`), HTTP (`http`) and RESP (`resp`) share one `Gateway`: the limiter, the access of
//! clients, the admission of calls, the policies in force and the records for the admin UI. A
//! protocol parses requests and writes replies; `charge` and the limiter decide.
//! `Gateway::record_call` keeps the last calls and the fullest keys in memory, and computes the
//! text of a key only if it is kept.
//!
//! Tests: `tests/http_api.rs`, `tests/rate_limit_service.rs`, `tests/quota_streams.rs`,
//! `tests/resp.rs`.

pub mod activity;
pub mod admission;
pub mod charge;
pub mod credentials;
pub mod envoy;
pub mod explanation;
pub mod grpc;
pub mod http;
pub mod issued_policies;
pub mod policies;
mod proto_file;
#[cfg(feature = "rlqs")]
pub mod quota;
pub mod readiness;
pub mod resp;
pub mod rules;
pub mod served_revision;
pub mod unmatched;

use std::net::IpAddr;
use std::sync::Arc;

use limiter_core::{LimitOutcome, Limiter, Origin};

use crate::access::{Access, AccessDenial, Action, Client, Target};
use crate::gateway::activity::{DecidedCall, KeptCall, KeyActivity};
use crate::gateway::admission::Admission;
use crate::gateway::issued_policies::IssuedPolicies;
use crate::gateway::policies::PreparedPolicies;
#[cfg(feature = "rlqs")]
use crate::gateway::quota::service::QuotaService;
use crate::gateway::readiness::Readiness;
use crate::gateway::resp::ThrottlePolicies;
use crate::gateway::served_revision::ServedRevision;
use crate::gateway::unmatched::UnmatchedDescriptors;
use crate::secret::fingerprint::KeyFingerprints;
use crate::settings::{EnvoySettings, ExplanationSettings, ForwardingProxies, ListenerLimits, Settings};

/// The state that all protocols share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gateway(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limiter: Limiter,
    access: Access,
    admission: Admission,
    limits: ListenerLimits,
    allowed_hosts: Vec<String>,
    readiness: Readiness,
    revision: ServedRevision,
    node: String,
    namespace: String,
    envoy: EnvoySettings,
    explanation: ExplanationSettings,
    fingerprints: KeyFingerprints,
    policies: PreparedPolicies,
    issued_policies: IssuedPolicies,
    throttle_policies: ThrottlePolicies,
    proxies: ForwardingProxies,
    unmatched: UnmatchedDescriptors,
    activity: KeyActivity,
    #[cfg(feature = "rlqs")]
    quota: QuotaService,
}

impl Gateway {
    /// Creates a gateway in front of a limiter.
    #[must_use]
    pub fn new(limiter: Limiter, settings: &Settings, readiness: Readiness) -> Self {
        Self(Arc::new(Shared {
            #[cfg(feature = "rlqs")]
            quota: QuotaService::new(limiter.clone()),
            revision: ServedRevision::new(limiter.registry().clone()),
            limiter,
            access: settings.access.clone(),
            admission: Admission::new(&settings.limits),
            limits: settings.limits.clone(),
            allowed_hosts: settings.allowed_hosts.clone(),
            readiness,
            node: settings.node.clone(),
            namespace: settings.store.namespace().to_owned(),
            envoy: settings.envoy.clone(),
            explanation: settings.explanation.clone(),
            fingerprints: KeyFingerprints::new(settings.explanation.key_secret.as_deref()),
            policies: PreparedPolicies::new(settings.envoy.store_deadline()),
            issued_policies: IssuedPolicies::default(),
            throttle_policies: ThrottlePolicies::new(settings.resp_deadline),
            proxies: settings.trusted_proxies.clone(),
            unmatched: UnmatchedDescriptors::default(),
            activity: KeyActivity::new(crate::store::now_micros()),
        }))
    }

    /// Returns the limiter that decides.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    /// Returns the configured clients and their scopes.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.0.access
    }

    /// Decides whether a client may take an action on a policy.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn may(&self, client: &Client, action: Action, policy: &str) -> Result<(), AccessDenial> {
        let target = Target::policy(policy).in_registry(self.0.limiter.registry());
        self.0.access.may(client, action, &target)
    }

    /// Returns the limits on the calls of all listeners.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.0.admission
    }

    /// Returns the limits of the listeners.
    #[must_use]
    pub fn limits(&self) -> &ListenerLimits {
        &self.0.limits
    }

    /// Returns whether a name of the `Host` header is configured.
    pub(crate) fn allows_host(&self, name: &str) -> bool {
        let allowed = &self.0.allowed_hosts;
        allowed.iter().any(|of| of.eq_ignore_ascii_case(name))
    }

    /// Returns whether the gateway accepts requests.
    #[must_use]
    pub fn readiness(&self) -> &Readiness {
        &self.0.readiness
    }

    /// Returns the revision of the policies in force.
    #[must_use]
    pub fn served_revision(&self) -> &ServedRevision {
        &self.0.revision
    }

    /// Returns the name of this node in explanations.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// Returns the settings of explanations of denials.
    pub(crate) fn explanation(&self) -> &ExplanationSettings {
        &self.0.explanation
    }

    /// Returns the fingerprints of keys in the namespace of the limits.
    #[must_use]
    pub fn fingerprints(&self) -> &KeyFingerprints {
        &self.0.fingerprints
    }

    /// Returns the namespace of the limits.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// Returns the settings of Envoy's rate limit service.
    #[must_use]
    pub fn envoy_settings(&self) -> &EnvoySettings {
        &self.0.envoy
    }

    /// Returns the rules and policies in force.
    #[must_use]
    pub fn policies(&self) -> &PreparedPolicies {
        &self.0.policies
    }

    /// Returns the policies of the ids that this node issued.
    #[must_use]
    pub fn issued_policies(&self) -> &IssuedPolicies {
        &self.0.issued_policies
    }

    /// Returns the policies of limits that `CL.THROTTLE` describes.
    pub(crate) fn throttle_policies(&self) -> &ThrottlePolicies {
        &self.0.throttle_policies
    }

    /// Returns the proxies whose `X-Forwarded-*` headers are read.
    #[must_use]
    pub fn proxies(&self) -> &ForwardingProxies {
        &self.0.proxies
    }

    /// Returns the budgets of the quota service.
    #[cfg(feature = "rlqs")]
    #[must_use]
    pub fn quota(&self) -> &QuotaService {
        &self.0.quota
    }

    /// Returns the last descriptors without a policy.
    #[must_use]
    pub fn unmatched(&self) -> &UnmatchedDescriptors {
        &self.0.unmatched
    }

    /// Returns the last calls and the fullest keys.
    #[must_use]
    pub fn activity(&self) -> &KeyActivity {
        &self.0.activity
    }

    /// Records the decision about a limit for the admin UI. `key` is called if the key is kept, and
    /// returns the key and the rule that led to the policy.
    pub(crate) fn record_call(
        &self,
        policy: &str,
        decision: RecordedDecision<'_>,
        key: impl FnOnce() -> (String, Option<String>),
    ) {
        let outcome = decision.outcome;
        let call = DecidedCall {
            policy,
            peer: decision.peer,
            is_allowed: decision.is_allowed,
            numbers: outcome.map(|of| (of.remaining().whole(), of.policy().quota().whole())),
            origin: decision.origin,
        };
        let kept = || {
            let (key, rule) = key();
            KeptCall {
                key,
                rule,
                revision: self.revision(),
            }
        };
        self.0.activity.record(call, kept, crate::store::now_micros());
    }
}

/// A decision about one limit, for the admin UI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedDecision<'a> {
    /// The address of the client, as far as it is known.
    pub(crate) peer: Option<IpAddr>,
    /// True if the call passed.
    pub(crate) is_allowed: bool,
    /// The origin of the decision.
    pub(crate) origin: Origin,
    /// The numbers.
    pub(crate) outcome: Option<&'a LimitOutcome>,
}
