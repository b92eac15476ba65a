//! The conditions of calls, and the expected result of each.

use std::fmt;
use std::time::Duration;

use limiter_core::penalty::Penalty;
use limiter_core::registry::{OnUnknownPolicy, SuspensionMode};
use limiter_core::{Enforcement, OnStoreFailure, Origin, Policy, PolicyBuilder};

use super::QUOTA;
use super::answer::{Answer, Denial, Details, Source};
use super::end::{End, TRIAL_QUOTA};
use super::overlay::Overlay;
use super::support::PATIENT;

/// The usage before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    Fresh,
    /// All of it, and the store has denied further calls.
    UsedUp,
}

/// The number of denials of each kind before the call; with a penalty they block the key.
pub(crate) const DENIALS: u32 = 3;
const BLOCKED_FOR: Duration = Duration::from_secs(600);
const REFILLED_AFTER: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    pub(crate) of_policy: Enforcement,
    pub(crate) of_limiter: Enforcement,
    pub(crate) allows_key: bool,
    pub(crate) denies_key: bool,
    pub(crate) has_penalty: bool,
    /// The limiter's setting for unknown policies; no policy is configured.
    pub(crate) on_unknown_policy: Option<OnUnknownPolicy>,
    /// The overlay of the registry.
    pub(crate) overlay: Option<Overlay>,
    pub(crate) end: Option<End>,
}

const ENFORCED: Condition = Condition {
    of_policy: Enforcement::Enforce,
    of_limiter: Enforcement::Enforce,
    allows_key: false,
    denies_key: false,
    has_penalty: false,
    on_unknown_policy: None,
    overlay: None,
    end: None,
};

pub(crate) const CONDITIONS: &[Condition] = &[
    ENFORCED,
    Condition {
        of_policy: Enforcement::Shadow,
        ..ENFORCED
    },
    Condition {
        of_limiter: Enforcement::Shadow,
        ..ENFORCED
    },
    Condition {
        of_policy: Enforcement::Off,
        ..ENFORCED
    },
    Condition {
        of_limiter: Enforcement::Off,
        ..ENFORCED
    },
    Condition {
        allows_key: true,
        ..ENFORCED
    },
    Condition {
        denies_key: true,
        ..ENFORCED
    },
    Condition {
        allows_key: true,
        denies_key: true,
        ..ENFORCED
    },
    Condition {
        denies_key: true,
        of_limiter: Enforcement::Shadow,
        ..ENFORCED
    },
    Condition {
        denies_key: true,
        of_limiter: Enforcement::Off,
        ..ENFORCED
    },
    Condition {
        has_penalty: true,
        ..ENFORCED
    },
    Condition {
        has_penalty: true,
        of_limiter: Enforcement::Shadow,
        ..ENFORCED
    },
    Condition {
        has_penalty: true,
        allows_key: true,
        ..ENFORCED
    },
    Condition {
        on_unknown_policy: Some(OnUnknownPolicy::Allow),
        ..ENFORCED
    },
    Condition {
        on_unknown_policy: Some(OnUnknownPolicy::Deny),
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::SuspendedPolicies(SuspensionMode::Off)),
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::SuspendedApp(SuspensionMode::Shadow)),
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::SuspendedAll(SuspensionMode::Deny)),
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::SuspendedPolicies(SuspensionMode::Deny)),
        of_policy: Enforcement::Off,
        allows_key: true,
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::SuspendedAll(SuspensionMode::Shadow)),
        of_limiter: Enforcement::Off,
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::SuspendedAll(SuspensionMode::Off)),
        denies_key: true,
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::SuspendedAll(SuspensionMode::Shadow)),
        has_penalty: true,
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::SuspendedOther),
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::Expired(SuspensionMode::Deny)),
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::Expired(SuspensionMode::Off)),
        of_policy: Enforcement::Shadow,
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::Blocked),
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::Blocked),
        allows_key: true,
        of_policy: Enforcement::Shadow,
        ..ENFORCED
    },
    Condition {
        overlay: Some(Overlay::ExpiredBlock),
        ..ENFORCED
    },
    Condition {
        end: Some(End::LaterEntries),
        denies_key: true,
        ..ENFORCED
    },
    Condition {
        end: Some(End::LaterEntries),
        allows_key: true,
        ..ENFORCED
    },
    Condition {
        end: Some(End::PastEntries),
        denies_key: true,
        allows_key: true,
        ..ENFORCED
    },
    Condition {
        end: Some(End::LaterQuota),
        ..ENFORCED
    },
    Condition {
        end: Some(End::LaterQuota),
        of_policy: Enforcement::Shadow,
        ..ENFORCED
    },
    Condition {
        end: Some(End::PastQuota),
        ..ENFORCED
    },
    Condition {
        end: Some(End::LaterTrial),
        ..ENFORCED
    },
    Condition {
        end: Some(End::LaterTrial),
        of_policy: Enforcement::Shadow,
        ..ENFORCED
    },
    Condition {
        end: Some(End::LaterTrial),
        allows_key: true,
        ..ENFORCED
    },
    Condition {
        end: Some(End::LaterTrial),
        overlay: Some(Overlay::SuspendedAll(SuspensionMode::Off)),
        ..ENFORCED
    },
    Condition {
        end: Some(End::PastTrial),
        ..ENFORCED
    },
];

impl Condition {
    /// The policy of this name under the condition.
    pub(crate) fn policy(&self, name: &str) -> Policy {
        let mut builder = self.penalized(name).enforcement(self.of_policy);
        let every_key = || End::every_key(self.end);
        if self.allows_key {
            builder = builder.allow_keys(every_key());
        }
        if self.denies_key {
            builder = builder.deny_keys(every_key());
        }
        End::with_trial(self.end, builder.build().unwrap())
    }

    /// Returns whether an entry of a list applies to the key.
    fn has_entries(&self) -> bool {
        self.end != Some(End::PastEntries)
    }

    /// The policy of this name before the condition holds. It has its penalty from the beginning,
    /// so that denials count.
    pub(crate) fn before(&self, name: &str) -> Policy {
        self.penalized(name).build().unwrap()
    }

    fn penalized(&self, name: &str) -> PolicyBuilder<limiter_core::typestate::LevelParams> {
        let builder = builder(name);
        if self.has_penalty {
            builder.penalty(Penalty::after(DENIALS, "10s").block_for(BLOCKED_FOR))
        } else {
            builder
        }
    }

    fn mode(&self) -> Enforcement {
        match self.overlay.and_then(Overlay::mode) {
            Some(SuspensionMode::Off) => Enforcement::Off,
            Some(SuspensionMode::Shadow) => Enforcement::Shadow,
            Some(_) => Enforcement::Enforce,
            None => self.of_policy.max(self.of_limiter),
        }
    }

    /// Returns whether the key is denied without a decision.
    fn denies_without_store(&self) -> bool {
        self.overlay == Some(Overlay::Blocked)
            || self.overlay.and_then(Overlay::mode) == Some(SuspensionMode::Deny)
    }

    /// The expected result of an entry point whose calls have this quota.
    pub(crate) fn answer(&self, situation: Situation, cost: u64, quota: u64) -> Answer {
        let allowed = |source, would_deny, shows_limit| {
            Answer::Allowed(Some(Details {
                would_deny,
                source,
                shows_limit,
            }))
        };
        let fits = cost <= quota;
        let denied = !fits || situation == Situation::UsedUp;
        match (self.on_unknown_policy, self.mode()) {
            (Some(OnUnknownPolicy::Allow), _) => allowed(Source::Other(Origin::NotConfigured), false, false),
            (Some(_), _) => Answer::NotConfigured,
            (None, Enforcement::Off) => allowed(Source::Other(Origin::Off), false, false),
            (None, Enforcement::Shadow) if self.denies_without_store() => {
                allowed(Source::Other(Origin::Block), true, false)
            }
            (None, _) if self.denies_without_store() => Answer::Forbidden,
            (None, Enforcement::Shadow) if self.denies_key && self.has_entries() => {
                allowed(Source::Other(Origin::KeyList), true, false)
            }
            (None, _) if self.denies_key && self.has_entries() => Answer::Forbidden,
            (None, _) if self.allows_key && self.has_entries() => {
                allowed(Source::Other(Origin::KeyList), false, false)
            }
            (None, Enforcement::Shadow) => allowed(Source::Store, denied, fits),
            (None, _) if !fits => Answer::NeverFits,
            (None, _) if denied => Answer::Limited(Some(Denial {
                retry_after: if self.has_penalty {
                    BLOCKED_FOR
                } else {
                    REFILLED_AFTER * u32::try_from(cost).unwrap()
                },
                is_blocked: self.has_penalty,
            })),
            (None, _) => allowed(Source::Store, false, true),
        }
    }

    /// The result of the trial of a charged call; `None` without a trial.
    pub(crate) fn trial(&self, cost: u64) -> Option<bool> {
        let is_tried = self.end == Some(End::LaterTrial) && self.settles();
        is_tried.then_some(cost <= TRIAL_QUOTA)
    }

    /// The remaining permits of the policy after a call that is charged if it is allowed.
    pub(crate) fn left_after(&self, situation: Situation, cost: u64, quota: u64) -> u64 {
        match situation {
            Situation::Fresh if self.settles() && cost <= quota => QUOTA.min(quota - cost),
            _ => left(situation),
        }
    }

    /// Returns whether decisions are charged.
    pub(crate) fn settles(&self) -> bool {
        let is_listed = (self.allows_key || self.denies_key) && self.has_entries();
        let is_listed = is_listed || self.denies_without_store();
        self.on_unknown_policy.is_none() && self.mode() != Enforcement::Off && !is_listed
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            of_policy,
            of_limiter,
            ..
        } = self;
        write!(f, "policy {of_policy}, limiter {of_limiter}")?;
        for (holds, name) in [
            (self.allows_key, "allow list"),
            (self.denies_key, "deny list"),
            (self.has_penalty, "penalty"),
        ] {
            if holds {
                write!(f, ", {name}")?;
            }
        }
        if let Some(overlay) = self.overlay {
            write!(f, ", {overlay:?}")?;
        }
        if let Some(end) = self.end {
            write!(f, ", {end:?}")?;
        }
        match self.on_unknown_policy {
            Some(answer) => write!(f, ", unknown policy ({answer:?})"),
            None => Ok(()),
        }
    }
}

/// Returns the remaining permits before the call.
pub(crate) fn left(situation: Situation) -> u64 {
    match situation {
        Situation::Fresh => QUOTA,
        Situation::UsedUp => 0,
    }
}

/// The policy without any condition.
pub(crate) fn plain(name: &str) -> Policy {
    builder(name).build().unwrap()
}

/// `p` is the tested policy; `q` is a second one that always fits.
fn builder(name: &str) -> PolicyBuilder<limiter_core::typestate::LevelParams> {
    let capacity = if name == "p" { QUOTA } else { 1_000 };
    Policy::token_bucket(name)
        .capacity(capacity)
        .rate("1/min")
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
}
