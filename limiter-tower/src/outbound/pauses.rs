//! Until when a peer asked to be left alone, by key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use limiter_core::__private::bounded;
use limiter_core::{Key, Timestamp};
use tokio::sync::Notify;

/// At most so many keys are paused at once; of more, those are forgotten that would end first.
const MOST: usize = 10_000;

/// The pauses of a layer, which all services that it wraps share. They are this process's own:
/// others hear what the peer says when they ask it.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// Whether there may be one. Who finds none looks no further.
    any: AtomicBool,
    kept: Mutex<Kept>,
    begun: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    /// By keys that are bounded: whoever sends requests on behalf of others does not choose them.
    ends: HashMap<Key<'static>, Timestamp>,
    /// When all of them are over.
    last: Timestamp,
}

impl Pauses {
    /// Until when a key is paused, if it is. The clock is read only where it may be.
    #[inline]
    pub(crate) fn end(&self, key: &Key<'_>, now: impl FnOnce() -> Timestamp) -> Option<Timestamp> {
        // Whoever begins a pause says so before the response is returned that asked for it.
        if self.any.load(Ordering::Acquire) {
            self.paused_until(key, now())
        } else {
            None
        }
    }

    #[cold]
    fn paused_until(&self, key: &Key<'_>, now: Timestamp) -> Option<Timestamp> {
        let mut kept = self.lock();
        if kept.last <= now {
            kept.ends.clear();
            self.any.store(false, Ordering::Release);
            return None;
        }
        // As keys that live as short as the one that is looked for.
        let ends: &HashMap<Key<'_>, Timestamp> = &kept.ends;
        let end = ends.get(&bounded(Key::from(key))).copied();
        end.filter(|end| *end > now)
    }

    /// Pauses a key until a moment, and calls those who wait. A pause that lasts longer stays. Says
    /// whether this begins one.
    pub(crate) fn begin(&self, key: Key<'static>, end: Timestamp, now: Timestamp) -> bool {
        let key = bounded(key);
        let mut kept = self.lock();
        if kept.ends.len() >= MOST && !kept.ends.contains_key(&key) {
            kept.make_room(now);
        }
        let known = kept.ends.entry(key).or_default();
        let begins = *known <= now;
        if end > *known {
            *known = end;
            kept.last = kept.last.max(end);
            self.any.store(true, Ordering::Release);
            drop(kept);
            self.begun.notify_waiters();
        }
        begins
    }

    /// Is told of pauses that begin, or last longer, from its making on.
    pub(crate) fn begun(&self) -> tokio::sync::futures::Notified<'_> {
        self.begun.notified()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// For one more.
    #[cold]
    fn make_room(&mut self, now: Timestamp) {
        self.ends.retain(|_, end| *end > now);
        if self.ends.len() < MOST {
            return;
        }
        // A good many at once, since each look at all of them takes its time.
        let mut ends: Vec<_> = self.ends.values().copied().collect();
        let (_, limit, _) = ends.select_nth_unstable(MOST / 16);
        let (limit, mut surplus) = (*limit, MOST / 16);
        // Quotas that begin anew at one moment end their pauses all at once, and not all of them
        // are to be forgotten.
        self.ends.retain(|_, end| {
            let goes = *end <= limit && surplus > 0;
            surplus -= usize::from(goes);
            !goes
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn at(seconds: u64) -> Timestamp {
        START.after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_pause_ends_at_its_moment_and_only_grows() {
        let (pauses, key) = (Pauses::default(), Key::from("a"));
        assert_eq!(pauses.end(&key, || unreachable!("nobody reads the clock")), None);
        assert!(pauses.begin(key.clone(), at(5), START));
        assert!(!pauses.begin(key.clone(), at(3), START));
        assert_eq!(pauses.end(&key, || START), Some(at(5)));
        assert_eq!(pauses.end(&Key::from("b"), || START), None);
        assert!(!pauses.begin(key.clone(), at(9), at(4)));
        let just_before = Timestamp::from_micros(at(9).as_micros() - 1);
        assert_eq!(pauses.end(&key, || just_before), Some(at(9)));
        assert_eq!(pauses.end(&key, || at(9)), None);
        assert_eq!(pauses.end(&key, || unreachable!("all are over")), None);
        assert!(pauses.lock().ends.is_empty());
        assert!(pauses.begin(key, at(10), at(9)));
    }

    #[test]
    fn keys_are_bounded_and_those_that_are_over_go_first() {
        let pauses = Pauses::default();
        let most = u64::try_from(MOST).unwrap_or(u64::MAX);
        for number in 0..most {
            pauses.begin(Key::from(number), at(1 + number % 2), START);
        }
        pauses.begin(Key::from(most), at(9), at(1));
        assert_eq!(pauses.lock().ends.len(), MOST / 2 + 1, "half of them were over");

        for number in 0..3 * most {
            pauses.begin(Key::from(number), at(10 + number), at(2));
            assert!(pauses.lock().ends.len() <= MOST);
        }
        let longest = Key::from(3 * most - 1);
        assert!(pauses.end(&longest, || at(2)).is_some());
        assert!(pauses.end(&Key::from(0_u64), || at(2)).is_none());
    }

    /// As quotas do that begin anew at midnight.
    #[test]
    fn of_pauses_that_end_at_once_no_more_are_forgotten_than_must_be() {
        let pauses = Pauses::default();
        for number in 0..=u64::try_from(MOST).unwrap_or(u64::MAX) {
            pauses.begin(Key::from(number), at(5), START);
        }
        assert!(pauses.lock().ends.len() > MOST / 2);
    }

    /// Who chooses keys does not choose how much is kept of them.
    #[test]
    fn what_is_kept_of_a_key_is_bounded_and_keys_stay_apart() {
        let pauses = Pauses::default();
        let [long, other] = ["a", "b"].map(|last| Key::from("k".repeat(60_000) + last));
        pauses.begin(long.clone(), at(5), START);
        assert_eq!(pauses.end(&long, || START), Some(at(5)));
        assert_eq!(pauses.end(&other, || START), None);
        let kept = pauses.lock();
        assert!(kept.ends.keys().all(|key| format!("{key:?}").len() < 500));
    }
}
