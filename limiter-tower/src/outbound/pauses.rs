//! The pauses that a peer has requested, by key.
//!
//! After a 429 with `Retry-After`, further requests of the key would be denied too. A table maps
//! each key to the end of its pause. A flag lets requests skip the lock while no pause exists, and
//! a notification wakes requests that wait for a permit when a pause begins.
//!
//! Invariants: a pause is never shortened, and the table has at most `MAX_PAUSES` entries with
//! bounded keys. Tests: below, and `tests/outbound/pauses.rs`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use limiter_core::__private::bounded;
use limiter_core::{Key, Timestamp};
use tokio::sync::Notify;

/// The maximum number of paused keys. Beyond it, the pauses that end first are dropped.
const MAX_PAUSES: usize = 10_000;

/// The pauses of a layer, shared by all services that it wraps. They apply to this process only;
/// other processes observe the peer's responses themselves.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// True if a pause may exist. Otherwise readers skip the lock.
    any: AtomicBool,
    table: Mutex<PauseTable>,
    begun: Notify,
}

#[derive(Debug, Default)]
struct PauseTable {
    /// Keys are bounded in length, because callers on behalf of other clients do not control them.
    ends: HashMap<Key<'static>, Timestamp>,
    /// The end of the last pause.
    last: Timestamp,
}

impl Pauses {
    /// Returns the end of a key's pause, if it is paused. The clock is read only if there may be a
    /// pause.
    #[inline]
    pub(crate) fn end(&self, key: &Key<'_>, now: impl FnOnce() -> Timestamp) -> Option<Timestamp> {
        // The flag is set before the response that requests the pause is returned.
        if self.any.load(Ordering::Acquire) {
            self.paused_until(key, now())
        } else {
            None
        }
    }

    #[cold]
    fn paused_until(&self, key: &Key<'_>, now: Timestamp) -> Option<Timestamp> {
        let mut table = self.lock();
        if table.last <= now {
            table.ends.clear();
            self.any.store(false, Ordering::Release);
            return None;
        }
        // Shortens the lifetime of the keys to that of the lookup key.
        let ends: &HashMap<Key<'_>, Timestamp> = &table.ends;
        let end = ends.get(&bounded(Key::from(key))).copied();
        end.filter(|end| *end > now)
    }

    /// Pauses a key until `end` and wakes the waiters. A pause that ends later is kept. Returns
    /// whether this call starts a pause.
    pub(crate) fn begin(&self, key: Key<'static>, end: Timestamp, now: Timestamp) -> bool {
        let key = bounded(key);
        let mut table = self.lock();
        if table.ends.len() >= MAX_PAUSES && !table.ends.contains_key(&key) {
            table.free_entry(now);
        }
        let known = table.ends.entry(key).or_default();
        let begins = *known <= now;
        if end > *known {
            *known = end;
            table.last = table.last.max(end);
            self.any.store(true, Ordering::Release);
            drop(table);
            self.begun.notify_waiters();
        }
        begins
    }

    /// Completes when a pause begins or is extended after this call.
    pub(crate) fn begun(&self) -> tokio::sync::futures::Notified<'_> {
        self.begun.notified()
    }

    fn lock(&self) -> MutexGuard<'_, PauseTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PauseTable {
    /// Frees an entry.
    #[cold]
    fn free_entry(&mut self, now: Timestamp) {
        self.ends.retain(|_, end| *end > now);
        if self.ends.len() < MAX_PAUSES {
            return;
        }
        // Many entries at once, because each scan of the table takes time.
        let mut ends: Vec<_> = self.ends.values().copied().collect();
        let (_, limit, _) = ends.select_nth_unstable(MAX_PAUSES / 16);
        let (limit, mut surplus) = (*limit, MAX_PAUSES / 16);
        // Quotas that restart at the same time end their pauses at the same time, and only the
        // surplus may be dropped.
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
    fn pause_ends_at_its_time_and_is_never_shortened() {
        let (pauses, key) = (Pauses::default(), Key::from("a"));
        assert_eq!(pauses.end(&key, || unreachable!("the clock is not read")), None);
        assert!(pauses.begin(key.clone(), at(5), START));
        assert!(!pauses.begin(key.clone(), at(3), START));
        assert_eq!(pauses.end(&key, || START), Some(at(5)));
        assert_eq!(pauses.end(&Key::from("b"), || START), None);
        assert!(!pauses.begin(key.clone(), at(9), at(4)));
        let just_before = Timestamp::from_micros(at(9).as_micros() - 1);
        assert_eq!(pauses.end(&key, || just_before), Some(at(9)));
        assert_eq!(pauses.end(&key, || at(9)), None);
        assert_eq!(pauses.end(&key, || unreachable!("all pauses have ended")), None);
        assert!(pauses.lock().ends.is_empty());
        assert!(pauses.begin(key, at(10), at(9)));
    }

    #[test]
    fn keys_are_bounded_and_ended_pauses_removed_first() {
        let pauses = Pauses::default();
        let max_pauses = u64::try_from(MAX_PAUSES).unwrap_or(u64::MAX);
        for number in 0..max_pauses {
            pauses.begin(Key::from(number), at(1 + number % 2), START);
        }
        pauses.begin(Key::from(max_pauses), at(9), at(1));
        assert_eq!(
            pauses.lock().ends.len(),
            MAX_PAUSES / 2 + 1,
            "half of the pauses had ended"
        );

        for number in 0..3 * max_pauses {
            pauses.begin(Key::from(number), at(10 + number), at(2));
            assert!(pauses.lock().ends.len() <= MAX_PAUSES);
        }
        let longest = Key::from(3 * max_pauses - 1);
        assert!(pauses.end(&longest, || at(2)).is_some());
        assert!(pauses.end(&Key::from(0_u64), || at(2)).is_none());
    }

    /// Quotas that restart at midnight end their pauses together.
    #[test]
    fn pauses_with_equal_end_lose_only_the_surplus() {
        let pauses = Pauses::default();
        for number in 0..=u64::try_from(MAX_PAUSES).unwrap_or(u64::MAX) {
            pauses.begin(Key::from(number), at(5), START);
        }
        assert!(pauses.lock().ends.len() > MAX_PAUSES / 2);
    }

    /// A client that chooses its keys does not control the size of the table.
    #[test]
    fn stored_keys_are_bounded_and_distinct() {
        let pauses = Pauses::default();
        let [long, other] = ["a", "b"].map(|last| Key::from("k".repeat(60_000) + last));
        pauses.begin(long.clone(), at(5), START);
        assert_eq!(pauses.end(&long, || START), Some(at(5)));
        assert_eq!(pauses.end(&other, || START), None);
        let table = pauses.lock();
        assert!(table.ends.keys().all(|key| format!("{key:?}").len() < 500));
    }
}
