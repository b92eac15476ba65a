//! Envoy's rate limit service v3: `ShouldRateLimit`.
//!
//! A request becomes one limit per descriptor, by the rules of the registry or by the limit in the
//! descriptor; [`decide`] decides them together, and the results become one status each, in
//! order. A decision ends before Envoy's own timeout. When no decision is possible the status is
//! UNAVAILABLE and never UNKNOWN, because Envoy ignores `failure_mode_deny`
//! on UNKNOWN. Tests: `tests/rate_limit_service.rs`, `tests/envoy.rs`.

mod deadline;
mod decide;
pub mod file_descriptor;
pub mod messages;
mod metadata;
mod overrides;
pub(crate) mod rpc;
mod status;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Amount, Policy, Rejection};
use tonic::Status;

use crate::access::{AccessDenial, Action, Client, Target};
use crate::gateway::charge::{LimitResult, RequestedLimit};
use crate::gateway::envoy::messages::{
    Code, DescriptorStatus, HeaderValue, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
pub use crate::gateway::envoy::rpc::{RATE_LIMIT_SERVICE, RateLimitServer, SHOULD_RATE_LIMIT};
use crate::gateway::explanation::rule_text;
use crate::gateway::readiness::ReadinessState;
use crate::gateway::rules::RuleSet;
use crate::gateway::{Gateway, RecordedDecision};
use crate::key_text::joined;
use crate::listener::call_span;
use crate::settings::Unmatched;

/// The time after the decision deadline in which refunds and further decisions can end.
const GRACE: Duration = Duration::from_millis(2);

/// The largest number of further lookups of a request while rules and policies change.
const MAX_REPETITIONS: usize = 8;

/// The operation that a descriptor requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// No rule or no policy: the settings select the result.
    Unmatched,
    /// The limit has no permits at all.
    Zero,
    /// A check or a peek, decided together with the others.
    Check,
    /// A refund.
    Refund,
    /// A charge beyond the capacity.
    Settle,
}

impl Operation {
    /// Returns whether it changes the usage without a decision.
    fn is_change(self) -> bool {
        matches!(self, Self::Refund | Self::Settle)
    }
}

/// A descriptor with its limit.
#[derive(Debug)]
struct Requested {
    operation: Operation,
    limit: Option<RequestedLimit>,
    values: Vec<String>,
    /// The number of the rule that matches.
    rule: Option<usize>,
}

impl Gateway {
    /// Decides a request of a client at an address.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT for a malformed request, UNAUTHENTICATED and PERMISSION_DENIED for a client
    /// without the scopes, UNAVAILABLE when no decision was possible.
    pub(crate) async fn rate_limit_of_peer(
        &self,
        client: &Client,
        peer: Option<IpAddr>,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        // Calls that arrive before their client knows of the shutdown are decided as well.
        if self.readiness().state() == ReadinessState::WaitsForPolicies {
            return Err(Status::unavailable("the server has no policies yet"));
        }
        self.validate(&request)?;
        let (rules, requested) = self.find_limits(client, &request)?;
        let deadline = self.envoy_settings().decision_deadline + GRACE;
        match deadline::within(deadline, self.decide(&requested)).await {
            Some(Ok(results)) => {
                self.record((peer, &rules), &requested, &results);
                let response = self.response(&rules, &requested, results);
                call_span::record_rate_limit(&request.domain, response.overall_code());
                Ok(response)
            }
            Some(Err(rejection)) => Err(status_of(&rejection)),
            None => Err(Status::unavailable("the decision exceeded its deadline")),
        }
    }

    fn validate(&self, request: &RateLimitRequest) -> Result<(), Status> {
        if request.domain.is_empty() {
            return Err(Status::invalid_argument("the domain is empty"));
        }
        if request.descriptors.is_empty() {
            return Err(Status::invalid_argument("the request has no descriptors"));
        }
        let (count, max) = (request.descriptors.len(), self.envoy_settings().max_descriptors);
        if count > max {
            return Err(Status::invalid_argument(format!(
                "the request has {count} descriptors, expected at most {max}"
            )));
        }
        match request.descriptors.iter().position(|of| of.entries.is_empty()) {
            Some(at) => Err(Status::invalid_argument(format!(
                "descriptor {at} has no entries"
            ))),
            None => Ok(()),
        }
    }

    /// Finds the limits of the descriptors, under one version of the rules and the policies: while
    /// both change, neither the old nor the new policy of a descriptor may be found.
    fn find_limits(
        &self,
        client: &Client,
        request: &RateLimitRequest,
    ) -> Result<(Arc<RuleSet>, Vec<Requested>), Status> {
        let is_unmatched = |of: &Requested| of.operation == Operation::Unmatched;
        let mut rules = self.policies().rules(self.limiter());
        let mut found = self.requested(client, request, &rules);
        for _ in 0..MAX_REPETITIONS {
            if found.as_ref().is_ok_and(|found| !found.iter().any(is_unmatched)) {
                break;
            }
            let current = self.policies().rules(self.limiter());
            if Arc::ptr_eq(&rules, &current) {
                break;
            }
            rules = current;
            found = self.requested(client, request, &rules);
        }
        let found = found?;
        for (descriptor, of) in request.descriptors.iter().zip(&found) {
            if is_unmatched(of) {
                self.unmatched().record(&request.domain, &descriptor.entries);
            }
        }
        Ok((rules, found))
    }

    fn requested(
        &self,
        client: &Client,
        request: &RateLimitRequest,
        rules: &RuleSet,
    ) -> Result<Vec<Requested>, Status> {
        let each = request.descriptors.iter().map(|descriptor| {
            let matched = rules.find(&request.domain, &descriptor.entries);
            let cost = cost(request, descriptor);
            let target = Target {
                policy: matched.as_ref().map(|matched| &*matched.policy),
                ..Target::domain(&request.domain)
            };
            let target = target.in_registry(self.limiter().registry());
            self.access()
                .may(client, action(descriptor, cost), &target)
                .map_err(|denial| status_of_denial(&denial))?;
            if let Some(limit) = descriptor
                .limit
                .as_ref()
                .filter(|_| self.allows_overrides(&request.domain))
            {
                let registry = self.limiter().registry();
                let configured = matched.filter(|matched| registry.get(&matched.policy).is_some());
                let resolved = overrides::resolve(limit, &request.domain, &descriptor.entries, configured)?;
                let (key, group) = (resolved.key, resolved.group);
                let limit = resolved.policy.map(|policy| RequestedLimit {
                    policy: policy.with_max_deadline(self.envoy_settings().store_deadline()),
                    key,
                    cost: Amount::from(cost),
                    group,
                });
                return Ok(Requested {
                    operation: match operation(descriptor, cost, false) {
                        // Nothing is charged there, so there is nothing to return.
                        operation if limit.is_some() || operation == Operation::Refund => operation,
                        _ => Operation::Zero,
                    },
                    limit,
                    values: resolved.values,
                    rule: None,
                });
            }
            let found = matched.and_then(|matched| {
                let policy = self
                    .policies()
                    .policy(self.limiter(), &matched.policy, &matched.key)?;
                Some((policy, matched))
            });
            let Some((policy, matched)) = found else {
                return Ok(Requested {
                    operation: Operation::Unmatched,
                    limit: None,
                    values: Vec::new(),
                    rule: None,
                });
            };
            Ok(Requested {
                operation: operation(descriptor, cost, matched.settles()),
                limit: Some(RequestedLimit {
                    policy,
                    cost: Amount::from(cost),
                    group: matched.rule.and_then(|rule| rule.group()).map(str::to_owned),
                    key: matched.key,
                }),
                values: matched.values,
                rule: matched.number,
            })
        });
        each.collect()
    }

    fn allows_overrides(&self, domain: &str) -> bool {
        self.envoy_settings()
            .override_domains
            .iter()
            .any(|of| of == domain)
    }

    /// Records the decided checks for the admin UI.
    fn record(
        &self,
        (peer, rules): (Option<IpAddr>, &RuleSet),
        requested: &[Requested],
        results: &[Option<LimitResult>],
    ) {
        for (requested, result) in requested.iter().zip(results) {
            if let (Operation::Check, Some(limit), Some(result)) =
                (&requested.operation, &requested.limit, result)
            {
                let decided = RecordedDecision {
                    peer,
                    is_allowed: result.allowed,
                    origin: result.origin,
                    outcome: result.outcome.as_ref(),
                };
                let key = || {
                    let rule = requested.rule.and_then(|number| rules.rules().get(number));
                    (joined(&requested.values), rule.map(rule_text))
                };
                self.record_call(limit.policy.name(), decided, key);
            }
        }
    }

    fn response(
        &self,
        rules: &RuleSet,
        requested: &[Requested],
        results: Vec<Option<LimitResult>>,
    ) -> RateLimitResponse {
        let mut response = RateLimitResponse {
            overall_code: Code::Ok.into(),
            ..RateLimitResponse::default()
        };
        let mut explained = None;
        let (mut retry_after, mut can_retry) = (None, true);
        for (requested, result) in requested.iter().zip(&results) {
            let policy = requested.limit.as_ref().map(|limit| &limit.policy);
            let status = match (&requested.operation, result) {
                (_, Some(result)) => status::status(policy, result),
                (Operation::Zero, None) => status::zero(Code::OverLimit),
                (Operation::Unmatched, None) => self.unmatched_status(),
                // The refund of a limit without permits.
                (_, None) => status::zero(Code::Ok),
            };
            let denies = status.code == i32::from(Code::OverLimit);
            if denies {
                response.overall_code = Code::OverLimit.into();
                let wait = result.as_ref().and_then(status::retry_after);
                retry_after = retry_after.max(wait);
                can_retry &= wait.is_some();
            }
            let would_deny = result.as_ref().is_some_and(|result| result.would_deny);
            // A denial has precedence over a denial in shadow mode.
            if (denies && !matches!(explained, Some((_, _, true)))) || (would_deny && explained.is_none()) {
                explained = Some((requested, result.as_ref(), denies));
            }
            response.statuses.push(status);
        }
        if let Some((requested, result, _)) = explained {
            response.dynamic_metadata = Some(metadata::explain(self, rules, requested, result));
        }
        // Another denial would deny the retry.
        if let Some(seconds) = retry_after.filter(|_| can_retry) {
            response.response_headers_to_add.push(HeaderValue {
                key: "retry-after".to_owned(),
                value: seconds.to_string(),
                raw_value: Vec::new(),
            });
        }
        response
    }

    fn unmatched_status(&self) -> DescriptorStatus {
        let code = match self.envoy_settings().unmatched {
            Unmatched::Allow => Code::Ok,
            Unmatched::Deny => Code::OverLimit,
        };
        DescriptorStatus {
            code: code.into(),
            ..DescriptorStatus::default()
        }
    }
}

/// Returns the operation of a descriptor. A cost of zero is a peek also under a rule that settles.
fn operation(descriptor: &RateLimitDescriptor, cost: u64, settles: bool) -> Operation {
    match descriptor.is_negative_hits {
        true => Operation::Refund,
        false if settles && cost > 0 => Operation::Settle,
        false => Operation::Check,
    }
}

/// Returns the action of a descriptor.
fn action(descriptor: &RateLimitDescriptor, cost: u64) -> Action {
    match (descriptor.is_negative_hits, cost) {
        (true, _) => Action::Refund,
        (false, 0) => Action::Peek,
        (false, _) => Action::Check,
    }
}

/// Returns the cost of a descriptor: its own, or else that of the request, which is at least 1.
fn cost(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    descriptor
        .hits_addend
        .unwrap_or_else(|| u64::from(request.hits_addend.max(1)))
}

/// Returns the gRPC status of a rejection.
fn status_of(rejection: &Rejection) -> Status {
    tracing::debug!(reason = %rejection.diagnostic(), "no decision");
    match rejection {
        Rejection::Config(error) => Status::failed_precondition(error.to_string()),
        _ => Status::unavailable(rejection.to_string()),
    }
}

/// Returns the gRPC status of a denial of access.
pub(crate) fn status_of_denial(denial: &AccessDenial) -> Status {
    match denial {
        _ if denial.is_forbidden() => Status::permission_denied(denial.to_string()),
        _ if denial.is_unavailable() => Status::unavailable(denial.to_string()),
        _ => Status::unauthenticated(denial.to_string()),
    }
}

/// Returns the name of a policy for explanations.
fn policy_name(policy: Option<&Policy>) -> &str {
    policy.map_or("unmatched", Policy::name)
}

#[cfg(test)]
mod tests {
    use limiter_core::Limiter;
    use limiter_core::registry::{PolicyRegistry, Rule};

    use super::*;
    use crate::gateway::envoy::messages::Entry;
    use crate::gateway::readiness::Readiness;
    use crate::settings::Settings;

    fn gateway(registry: &PolicyRegistry) -> Gateway {
        let limiter = Limiter::in_process().registry(registry).build();
        let path = std::env::temp_dir().join(format!("limiter-envoy-{}.toml", std::process::id()));
        std::fs::write(&path, "policies = 'policies.toml'\n").unwrap();
        let settings = Settings::of_file(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        Gateway::new(limiter, &settings, Readiness::new(true))
    }

    /// Puts another policy in force by its rule, which at each time leads to a policy.
    fn publish(registry: &PolicyRegistry, [new, old]: [&str; 2]) {
        let policy = Policy::token_bucket(new).capacity(1_000_000).rate("1/s");
        registry.set(policy.build().unwrap());
        registry.set_rules([Rule::new(new, ["user"]).unwrap()]).unwrap();
        registry.remove(old);
    }

    #[test]
    fn publication_leaves_no_descriptor_without_a_limit() {
        let registry = PolicyRegistry::new();
        publish(&registry, ["one", "none"]);
        let gateway = gateway(&registry);
        let descriptor = RateLimitDescriptor {
            entries: vec![Entry {
                key: "user".to_owned(),
                value: "ann".to_owned(),
            }],
            ..RateLimitDescriptor::default()
        };
        let request = RateLimitRequest {
            domain: "edge".to_owned(),
            descriptors: vec![descriptor; 100],
            hits_addend: 1,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let publishing = std::thread::spawn(move || {
            for _ in 0..100 {
                publish(&registry, ["two", "one"]);
                // A request takes less time.
                std::thread::sleep(Duration::from_millis(10));
                publish(&registry, ["one", "two"]);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        while !publishing.is_finished() {
            let decided = gateway.rate_limit_of_peer(&Client::Anonymous, None, request.clone());
            // A slow machine can exceed the deadline.
            if let Ok(answer) = runtime.block_on(decided) {
                let mut statuses = answer.statuses.iter();
                assert!(statuses.all(|status| status.current_limit.is_some()));
            }
        }
        publishing.join().unwrap();
    }
}
