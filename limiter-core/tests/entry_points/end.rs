//! Settings that end by the clock: entries of key lists, quotas of keys, and trial values.

use limiter_core::registry::KeyOverride;
use limiter_core::{Key, KeyList, ManualClock, Policy, Timestamp};

use super::ABOVE_QUOTA;

/// A part of the settings that ends after the time of the call, or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The entries of the key lists end later.
    LaterEntries,
    /// The entries of the key lists have ended.
    PastEntries,
    /// A larger quota of the key ends later.
    LaterQuota,
    /// A larger quota of the key has ended.
    PastQuota,
    /// Smaller trial values of the policy end later.
    LaterTrial,
    /// Smaller trial values of the policy have ended.
    PastTrial,
}

/// The quota of the trial values.
pub(crate) const TRIAL_QUOTA: u64 = 1;

/// The first time after a time.
pub(crate) fn later(now: Timestamp) -> Timestamp {
    now.after(std::time::Duration::from_micros(1))
}

impl End {
    pub(crate) const ALL: &[Self] = &[
        Self::LaterEntries,
        Self::PastEntries,
        Self::LaterQuota,
        Self::PastQuota,
        Self::LaterTrial,
        Self::PastTrial,
    ];

    fn time(self) -> Timestamp {
        let now = ManualClock::new().now();
        match self {
            Self::LaterEntries | Self::LaterQuota | Self::LaterTrial => later(now),
            Self::PastEntries | Self::PastQuota | Self::PastTrial => now,
        }
    }

    /// A list of all keys. Its entry has an end if the condition is about entries.
    pub(crate) fn every_key(end: Option<Self>) -> KeyList {
        let list = match end {
            Some(end @ (Self::LaterEntries | Self::PastEntries)) => {
                KeyList::default().with_entry_until("*", end.time())
            }
            _ => KeyList::parse(["*"]),
        };
        list.unwrap()
    }

    /// The quota of a key beside that of the policy.
    pub(crate) fn key_override(self, name: &str, key: &Key<'_>) -> Option<KeyOverride> {
        let larger = Policy::token_bucket(name).capacity(ABOVE_QUOTA).rate("1/min");
        let quota = || KeyOverride::new(larger.build().unwrap(), key).until(self.time());
        matches!(self, Self::LaterQuota | Self::PastQuota).then(quota)
    }

    /// The policy, with trial values if the condition is about them.
    pub(crate) fn with_trial(end: Option<Self>, policy: Policy) -> Policy {
        match end {
            Some(end @ (Self::LaterTrial | Self::PastTrial)) => {
                let smaller = Policy::token_bucket(policy.name()).capacity(TRIAL_QUOTA);
                let smaller = smaller.rate("1/h").build().unwrap();
                policy.with_trial(&smaller, end.time()).unwrap()
            }
            _ => policy,
        }
    }
}
