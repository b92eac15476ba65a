//! The enforcement of one limit of a call.
//!
//! Three settings decide it, in this order: the environment variable, a suspension of the registry,
//! and the looser mode of the policy and the limiter. Blocks of the registry and key lists of the
//! policy then decide single keys without the store. All entry points use this lookup alone.

use crate::decision::Origin;
use crate::enforcement::KeyRule;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::{Enforcement, Policy};
use crate::registry::{EVERY_APP, OverlaidLimit, OverlayRule, OverlaySet, SuspensionMode};
use crate::request::LimitRequest;
use crate::support::one_or_many::OneOrMany;

impl Limiter {
    /// Returns the enforcement of a limit, and the rule for its key. If the limit is off, the rule
    /// does not apply.
    pub(crate) fn enforcement_of(&self, policy: &Policy, key: &Key<'_>) -> (Enforcement, KeyRule) {
        let own = policy.enforcement().max(self.enforcement());
        let by_list = || KeyRule::for_key(policy, key, &self.inner.clock);
        match self.overlay_of(policy, key) {
            Some(OverlayRule::Suspended(SuspensionMode::Off)) => (Enforcement::Off, KeyRule::Unlisted),
            Some(OverlayRule::Suspended(SuspensionMode::Shadow)) => (Enforcement::Shadow, by_list()),
            Some(OverlayRule::Suspended(SuspensionMode::Deny)) => {
                (Enforcement::Enforce, KeyRule::Denied(Origin::Suspension))
            }
            Some(OverlayRule::Blocked) => (own, KeyRule::Denied(Origin::Block)),
            None if own == Enforcement::Off => (own, KeyRule::Unlisted),
            None => (own, by_list()),
        }
    }

    /// Returns whether the store alone decides these limits although the registry has overlays or
    /// the limiter was shut down: the limiter enforces decisions, and no overlay applies.
    #[cold]
    pub(crate) fn is_free_of_overlays(&self, requests: &OneOrMany<LimitRequest<'_>>) -> bool {
        self.enforcement() == Enforcement::Enforce
            && requests
                .iter()
                .all(|request| self.overlay_of(request.policy(), request.key()).is_none())
    }

    fn overlay_of(&self, policy: &Policy, key: &Key<'_>) -> Option<OverlayRule> {
        if !self.has_overlays() {
            return None;
        }
        let names = &self.inner.names;
        let obeys_suspensions = self.obeys_suspensions();
        let now = self.inner.clock.calendar();
        // A limiter of all apps decides for programs whose app it does not know. The owners of an
        // app must not affect other apps, so only a policy of this app alone counts.
        let app = names.app.as_deref();
        let of_every_app = app == Some(EVERY_APP);
        let needs_entry = of_every_app || names.registry.with_overlays(OverlaySet::blocks_parts);
        let entry = needs_entry.then(|| names.registry.get(policy.name())).flatten();
        let only_app = entry
            .as_ref()
            .filter(|_| of_every_app)
            .map(|entry| entry.only_app());
        let limit = OverlaidLimit {
            policy: policy.name(),
            key,
            app: only_app.unwrap_or(app),
            entry: entry.as_deref(),
        };
        names
            .registry
            .with_overlays(|overlays| overlays.rule(&limit, now, obeys_suspensions))
    }
}
