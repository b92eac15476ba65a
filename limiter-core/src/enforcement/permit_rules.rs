//! Acquisitions for which rules outside the store apply: overlays, key lists, shadow mode, `Off`.
//!
//! Decisions of rate limits apply these rules in `EnforcementPlan`; an acquisition has one limit
//! and returns a permit, so it applies them here. A call that a rule allows receives a permit
//! without backing.
//!
//! Invariant: in shadow mode, every call receives a permit and no call waits. Tests:
//! `tests/entry_points.rs`, `tests/contract/overlays.rs`, `tests/key_lists.rs`.

use crate::algorithm::{Mode, StepOutcome, StepResult};
use crate::decision::{Decision, DecisionFlags, LimitOutcome, Origin, Participation, Rejection};
use crate::enforcement::KeyRule;
use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::permits::permit::{ConcurrencyPermit, PermitBacking, into_permit};
use crate::permits::request::ConcurrencyRequest;
use crate::policy::Enforcement;
use crate::request::LimitRequest;
use crate::support::one_or_many::OneOrMany;

impl Limiter {
    /// Returns the decision that an acquisition would make now under the rules, and acquires
    /// nothing.
    pub(crate) async fn peek_permits(&self, request: LimitRequest<'_>) -> Result<Decision, Rejection> {
        let peek = async |request, _| {
            let request = ConcurrencyRequest::new(request, Mode::Peek)?;
            let decision = self.inner.backend.peek_permits(&request).await?;
            into_permit(decision, PermitBacking::Nothing)
        };
        match self.acquire_under_rules(request, peek).await {
            Ok(permit) => Ok(permit.into_parts().0),
            Err(
                Rejection::Limited(decision)
                | Rejection::Forbidden { decision, .. }
                | Rejection::Unavailable {
                    decision: Some(decision),
                    ..
                },
            ) => Ok(*decision),
            Err(rejection) => Err(rejection),
        }
    }

    /// Makes an attempt in a mode unless a rule decides the call, and allows the call in shadow
    /// mode.
    pub(crate) async fn acquire_under_rules<'a, F>(
        &self,
        request: LimitRequest<'a>,
        attempt: impl FnOnce(LimitRequest<'a>, Enforcement) -> F,
    ) -> Result<ConcurrencyPermit, Rejection>
    where
        F: Future<Output = Result<ConcurrencyPermit, Rejection>>,
    {
        let policy = request.policy();
        let (enforcement, key_rule) = self.enforcement_of(policy, request.key());
        let without_query = |origin| Decision::without_query(origin, self.now());
        if enforcement == Enforcement::Off {
            return Ok(ConcurrencyPermit::new(
                without_query(Origin::Off),
                PermitBacking::Nothing,
            ));
        }
        let is_enforced = enforcement == Enforcement::Enforce;
        if is_enforced {
            self.open()?;
        }
        match key_rule {
            KeyRule::Denied(origin) => {
                let forbidden = Rejection::Forbidden {
                    policy: policy.name().to_owned(),
                    decision: Box::new(Decision {
                        limits: OneOrMany::One(LimitOutcome::new(
                            policy,
                            StepResult::Computed(StepOutcome::default()),
                        )),
                        allowed: false,
                        ..without_query(origin)
                    }),
                };
                return shadow_permit(is_enforced, forbidden, without_query(origin));
            }
            KeyRule::Allowed => {
                return Ok(ConcurrencyPermit::new(
                    without_query(Origin::KeyList),
                    PermitBacking::Nothing,
                ));
            }
            KeyRule::Unlisted => {}
        }
        match attempt(request, enforcement).await {
            Err(rejection) => {
                let decision = match &rejection {
                    Rejection::Limited(denied) => Decision {
                        allowed: true,
                        ..Decision::clone(denied)
                    },
                    Rejection::Unavailable { error, .. } => Decision {
                        store_error: Some(Box::new(StoreError::clone(error))),
                        ..without_query(Origin::FailedOpen)
                    },
                    // The call is invalid, so the store was not queried and is assumed to be
                    // available.
                    _ => without_query(self.inner.backend.origin()),
                };
                shadow_permit(is_enforced, rejection, decision)
            }
            Ok(permit) if !is_enforced => {
                let (mut decision, backing) = permit.into_parts();
                decision.parts.set(0, Participation::InShadow);
                Ok(ConcurrencyPermit::new(decision, backing))
            }
            permit => permit,
        }
    }
}

/// Returns the rejection, or in shadow mode a permit without backing whose decision records the
/// denial.
fn shadow_permit(
    is_enforced: bool,
    rejection: Rejection,
    allowed: Decision,
) -> Result<ConcurrencyPermit, Rejection> {
    if is_enforced {
        return Err(rejection);
    }
    let flags = allowed.flags.and(DecisionFlags::WOULD_DENY);
    Ok(ConcurrencyPermit::new(
        Decision { flags, ..allowed },
        PermitBacking::Nothing,
    ))
}
