//! Denials that the store has not been told of yet, of those keys that a penalty may block for them.
//!
//! A denial that is answered in this process is told to nobody, and one that Redis answers is not counted there: the count is a
//! limit of its own. So all of them are counted here, and told together.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use crate::identity::Identity;
use crate::key::Key;
use crate::policy::Policy;
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::{Timestamp, micros_ceil};

/// How late the store may be told of a denial.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// So many keys at most; of others each denial is told by itself.
const MAX_KEYS: usize = 10_000;
/// From so many on it is worth while to look for some that can go …
const MANY_KEYS: usize = 64;
/// … and not more often than this, since all of them are looked at.
const TIDIED_EVERY: Duration = Duration::from_millis(100);

/// Denials by the limit that denied.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    by_limit: HashMap<Identity, Count>,
    /// At so many keys those are looked for that can go …
    tidy_at: usize,
    /// … which was done last at this moment.
    tidied_at: Timestamp,
}

/// Whose denials are counted.
#[derive(Clone, Debug)]
pub(crate) struct Denied {
    pub(crate) identity: Identity,
    /// One with a penalty.
    pub(crate) policy: Policy,
    /// Bounded.
    pub(crate) key: Key<'static>,
}

#[derive(Debug)]
struct Count {
    denied: Denied,
    /// Not told yet, or on their way.
    untold: u64,
    /// How many more may come before the key may have to be blocked, as far as the store has said.
    left: u64,
    /// When the first that is not told came, or when they were last told.
    since: Timestamp,
}

/// What is to be done about a denial.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// It is told with others, in a while: by the one who is told this.
    Soon,
    /// Somebody sees to it already.
    Nothing,
    /// So many are to be told at once.
    Now(u64),
}

impl Denials {
    /// Counts one.
    pub(crate) fn count(&self, denied: &Denied, now: Timestamp) -> Due {
        let Some(punishing) = denied.policy.punishing() else {
            return Due::Nothing;
        };
        let penalty = &punishing.penalty;
        let mut counts = self.lock();
        if !counts.by_limit.contains_key(&denied.identity) && !counts.has_room(now) {
            return Due::Now(1);
        }
        let count = counts.by_limit.entry(denied.identity).or_insert_with(|| Count {
            denied: denied.clone(),
            untold: 0,
            left: penalty.denials().into(),
            since: now,
        });
        if count.denied.policy.penalty() != Some(penalty) {
            // Another version of the policy: what is known was said of that one.
            (count.denied, count.left) = (denied.clone(), penalty.denials().into());
        }
        count.drop_what_is_over(now);
        let is_first = count.untold == 0;
        if is_first {
            count.since = now;
        }
        count.untold += 1;
        // Whoever was to tell them is gone if it has taken so long.
        if count.untold >= count.left || now.since(count.since) > 2 * TOLD_WITHIN {
            return Due::Now(std::mem::take(&mut count.untold));
        }
        if is_first { Due::Soon } else { Due::Nothing }
    }

    /// What is to be told of a limit now.
    pub(crate) fn take(&self, identity: Identity, now: Timestamp) -> Option<(Denied, u64)> {
        let mut counts = self.lock();
        let count = counts.by_limit.get_mut(&identity)?;
        count.drop_what_is_over(now);
        let untold = std::mem::take(&mut count.untold);
        (untold > 0).then(|| (count.denied.clone(), untold))
    }

    /// Whose denials have to be told.
    pub(crate) fn untold(&self) -> Vec<Identity> {
        let counts = self.lock();
        let untold = counts.by_limit.iter().filter(|(_, count)| count.untold > 0);
        untold.map(|(identity, _)| *identity).collect()
    }

    /// The store was told, and so many more may come.
    pub(crate) fn told(&self, identity: Identity, left: u64, now: Timestamp) {
        if let Some(count) = self.lock().by_limit.get_mut(&identity) {
            let most = count
                .denied
                .policy
                .penalty()
                .map_or(1, |penalty| penalty.denials().into());
            count.left = left.clamp(1, most);
            if count.untold == 0 {
                count.since = now;
            }
        }
    }

    /// Nothing has come of telling so many: they are still to be told.
    pub(crate) fn untell(&self, identity: Identity, denials: u64, now: Timestamp) {
        if let Some(count) = self.lock().by_limit.get_mut(&identity) {
            if count.untold == 0 {
                count.since = now;
            }
            let most = count
                .denied
                .policy
                .penalty()
                .map_or(0, |penalty| penalty.denials().into());
            count.untold = (count.untold + denials).min(most);
        }
    }

    /// Forgets a limit's denials.
    pub(crate) fn forget(&self, identity: Identity) {
        self.lock().by_limit.remove(&identity);
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Whether another key may come, after those have gone of which nothing is known any more.
    fn has_room(&mut self, now: Timestamp) -> bool {
        let is_due = now >= self.tidied_at.after(TIDIED_EVERY) || now < self.tidied_at;
        if self.by_limit.len() >= self.tidy_at.max(MANY_KEYS) && is_due {
            self.by_limit.retain(|_, count| !count.is_over(now));
            self.tidy_at = (2 * self.by_limit.len()).min(MAX_KEYS);
            self.tidied_at = now;
        }
        self.by_limit.len() < MAX_KEYS
    }
}

impl Count {
    /// Whether whatever was told, or was to be, lies before the penalty's window.
    fn is_over(&self, now: Timestamp) -> bool {
        let penalty = self.denied.policy.penalty();
        let window = penalty.map_or(0, |penalty| micros_ceil(penalty.within()));
        micros_ceil(now.since(self.since)) >= window
    }

    /// Lets go of what came so long ago that it counts no more. What comes later would only be taken for newer than it is.
    fn drop_what_is_over(&mut self, now: Timestamp) {
        if self.is_over(now) {
            let penalty = self.denied.policy.penalty();
            self.left = penalty.map_or(1, |penalty| penalty.denials().into());
            self.untold = 0;
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::penalty::denial_counts::*;
    use crate::policy::Penalty;

    fn denied(key: &str, penalty: &str) -> Denied {
        let policy = Policy::token_bucket("p")
            .capacity(1)
            .rate(1)
            .penalty(penalty.parse::<Penalty>())
            .build()
            .unwrap();
        let key = Key::from(key).into_owned();
        Denied {
            identity: policy.identity(None, key.as_str()),
            policy,
            key,
        }
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(1_000_000_000 + micros)
    }

    #[test]
    fn denials_are_told_together_and_at_once_when_they_may_be_enough() {
        let (denials, ann) = (Denials::default(), denied("ann", "3 in 1m: 5m"));
        assert_eq!(denials.count(&ann, at(0)), Due::Soon);
        assert_eq!(denials.count(&ann, at(1)), Due::Nothing);
        assert_eq!(denials.count(&denied("bob", "3 in 1m: 5m"), at(1)), Due::Soon);
        assert_eq!(denials.count(&ann, at(2)), Due::Now(3));
        assert_eq!(denials.take(ann.identity, at(3)).map(|(_, count)| count), None);
        // The store has heard of others.
        denials.told(ann.identity, 2, at(3));
        assert_eq!(denials.count(&ann, at(4)), Due::Soon);
        assert_eq!(denials.count(&ann, at(5)), Due::Now(2));
        denials.untell(ann.identity, 2, at(6));
        assert_eq!(denials.count(&ann, at(7)), Due::Now(3));
    }

    #[test]
    fn what_nobody_told_in_time_is_told_by_the_next_and_not_when_it_is_over() {
        let (denials, ann) = (Denials::default(), denied("ann", "9 in 1m: 5m"));
        assert_eq!(denials.count(&ann, at(0)), Due::Soon);
        assert_eq!(denials.count(&ann, at(2_000_001)), Due::Now(2));
        assert_eq!(denials.count(&ann, at(3_000_000)), Due::Soon);
        assert_eq!(
            denials.count(&ann, at(63_000_000)),
            Due::Soon,
            "the other is over"
        );
        assert_eq!(
            denials.take(ann.identity, at(63_000_000)).map(|(_, count)| count),
            Some(1)
        );
    }

    #[test]
    fn however_many_keys_are_denied_only_so_many_are_kept() {
        let denials = Denials::default();
        let many = |from: usize, now| {
            let keys = (from..from + MAX_KEYS).map(|key| denied(&key.to_string(), "9 in 1s: 5m"));
            keys.filter(|denied| denials.count(denied, now) == Due::Soon)
                .count()
        };
        assert_eq!(many(0, at(0)), MAX_KEYS);
        assert_eq!(many(MAX_KEYS, at(1)), 0, "each is told by itself");
        assert_eq!(many(MAX_KEYS, at(1_000_001)), MAX_KEYS, "the others have gone");
        assert!(denials.lock().by_limit.len() <= MAX_KEYS);
    }
}
