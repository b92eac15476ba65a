//! The calls of a log in compact form, grouped by key.
//!
//! Calls of one key at one time with one cost are stored once with their number. The number of
//! stored calls is bounded: beyond the bound, the calls of half of the keys are dropped, selected
//! by a bit of their hash, and the calls of dropped keys are no longer stored. If few keys have
//! nearly all calls, this frees too little, and the calls from then on are left out. The suggestion
//! states both. The logs of several policies share one bound (`streams.rs`). Tests: below.

use crate::replay::keys::HashedMap;

/// The largest number of stored calls, of 24 bytes each.
pub(super) const MAX_EVENTS: usize = 20_000_000;

/// Calls of one key at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) key: u32,
    pub(super) count: u32,
    /// Microseconds since 1970.
    pub(super) at: u64,
    /// Thousandths of a permit.
    pub(super) cost: u64,
}

#[derive(Clone, Copy, Debug)]
struct StoredKey {
    number: u32,
    /// The position of its last event.
    last: u32,
}

/// The calls in the order of their times.
#[derive(Clone, Debug)]
pub(in crate::replay) struct EventLog {
    max_events: usize,
    events: Vec<Event>,
    keys: HashedMap<StoredKey>,
    hashes: Vec<u64>,
    /// Keys whose hash has one of these bits are dropped.
    dropped: u64,
    is_full: bool,
    omitted_calls: u64,
}

impl EventLog {
    pub(super) fn with_max_events(max_events: usize) -> Self {
        Self {
            max_events,
            events: Vec::new(),
            keys: HashedMap::default(),
            hashes: Vec::new(),
            dropped: 0,
            is_full: false,
            omitted_calls: 0,
        }
    }

    /// Adds a call. Times do not step back.
    pub(in crate::replay) fn record(&mut self, hash: u64, at: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        if hash & self.dropped != 0 {
            self.omitted_calls += 1;
            return;
        }
        if let Some(key) = self.keys.get(&hash)
            && let Some(event) = self.events.get_mut(key.last as usize)
            && (event.at, event.cost) == (at, cost)
            && event.count < u32::MAX
        {
            event.count += 1;
            return;
        }
        if self.events.len() >= self.max_events && !self.is_full {
            self.drop_keys();
        }
        if self.is_full || hash & self.dropped != 0 {
            self.omitted_calls += 1;
            return;
        }
        let (Ok(number), Ok(last)) = (u32::try_from(self.hashes.len()), u32::try_from(self.events.len()))
        else {
            self.omitted_calls += 1;
            return;
        };
        let key = self.keys.entry(hash).or_insert(StoredKey { number, last });
        if key.number == number {
            self.hashes.push(hash);
        }
        key.last = last;
        self.events.push(Event {
            key: key.number,
            count: 1,
            at,
            cost,
        });
    }

    /// Returns the number of stored calls.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Drops the calls of half of the keys, or the later half of the calls if few keys have nearly
    /// all of them.
    pub(super) fn shrink(&mut self) {
        if self.is_full {
            let dropped = self.events.split_off(self.events.len() / 2);
            self.omitted_calls += dropped.iter().map(|event| u64::from(event.count)).sum::<u64>();
        } else {
            self.drop_keys();
        }
        // Another log grows in this memory.
        self.events.shrink_to_fit();
    }

    /// Drops the calls of half of the keys.
    fn drop_keys(&mut self) {
        let before = self.events.len();
        // The low bits select the place in a hash map.
        self.dropped = self.dropped >> 1 | 1 << 63;
        let dropped = self.dropped;
        let mut numbers: Vec<Option<u32>> = Vec::with_capacity(self.hashes.len());
        let mut hashes = Vec::new();
        for hash in &self.hashes {
            let is_kept = hash & dropped == 0;
            numbers.push(is_kept.then(|| u32::try_from(hashes.len()).unwrap_or(u32::MAX)));
            if is_kept {
                hashes.push(*hash);
            }
        }
        let omitted = &mut self.omitted_calls;
        self.events
            .retain_mut(|event| match numbers.get(event.key as usize).copied().flatten() {
                Some(number) => {
                    event.key = number;
                    true
                }
                None => {
                    *omitted += u64::from(event.count);
                    false
                }
            });
        self.keys.clear();
        for (last, event) in self.events.iter().enumerate() {
            if let (Some(hash), Ok(last)) = (hashes.get(event.key as usize), u32::try_from(last)) {
                let number = event.key;
                self.keys.insert(*hash, StoredKey { number, last });
            }
        }
        self.hashes = hashes;
        self.is_full = self.events.len() > before / 4 * 3;
    }

    /// Groups the calls by key.
    pub(super) fn into_traffic(self) -> Traffic {
        let mut ends = vec![0_usize; self.hashes.len()];
        for event in &self.events {
            if let Some(end) = ends.get_mut(event.key as usize) {
                *end += 1;
            }
        }
        let mut sum = 0;
        for end in &mut ends {
            (*end, sum) = (sum, sum + *end);
        }
        let none = Event {
            key: 0,
            count: 0,
            at: 0,
            cost: 0,
        };
        let mut events = vec![none; self.events.len()];
        for event in self.events {
            if let Some(place) = ends.get_mut(event.key as usize) {
                if let Some(slot) = events.get_mut(*place) {
                    *slot = event;
                }
                *place += 1;
            }
        }
        Traffic {
            events,
            ends,
            omitted_calls: self.omitted_calls,
            one_key_in: 1 << self.dropped.count_ones(),
        }
    }
}

/// The calls grouped by key, those of each key in the order of their times.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    events: Vec<Event>,
    /// For each key the position after its last event.
    ends: Vec<usize>,
    pub(super) omitted_calls: u64,
    pub(super) one_key_in: u64,
}

impl Traffic {
    /// Returns the calls of each key.
    pub(super) fn each(&self) -> impl Iterator<Item = &[Event]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(self.ends.iter().copied());
        ranges.map(|(start, end)| self.events.get(start..end).unwrap_or_default())
    }

    /// Returns the calls of one key.
    pub(super) fn key(&self, number: usize) -> &[Event] {
        let start = match number.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or_default(),
            None => 0,
        };
        let end = self.ends.get(number).copied().unwrap_or_default();
        self.events.get(start..end).unwrap_or_default()
    }

    pub(super) fn keys(&self) -> u64 {
        self.ends.len() as u64
    }

    pub(super) fn calls(&self) -> u64 {
        self.events.iter().map(|event| u64::from(event.count)).sum()
    }

    pub(super) fn costs_differ(&self) -> bool {
        let first = self.events.first().map(|event| event.cost);
        self.events.iter().any(|event| Some(event.cost) != first)
    }

    /// Returns the times of the first and of the last call.
    pub(super) fn span(&self) -> Option<(u64, u64)> {
        let times = || self.events.iter().map(|event| event.at);
        Some((times().min()?, times().max()?))
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::suggest::events::{EventLog, MAX_EVENTS};

    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn calls_at_one_time_are_stored_once() {
        let mut log = EventLog::with_max_events(MAX_EVENTS);
        for (key, at) in [(1, 10), (2, 10), (1, 10), (1, 11), (2, 12)] {
            log.record(hash(key), at, 1_000);
        }
        let traffic = log.into_traffic();
        let counts: Vec<Vec<(u64, u32)>> = traffic
            .each()
            .map(|events| events.iter().map(|event| (event.at, event.count)).collect())
            .collect();
        assert_eq!(counts, [vec![(10, 2), (11, 1)], vec![(10, 1), (12, 1)]]);
        assert_eq!(
            (traffic.calls(), traffic.keys(), traffic.span()),
            (5, 2, Some((10, 12)))
        );
        assert_eq!(traffic.key(1).len(), 2);
    }

    #[test]
    fn calls_above_bound_drop_whole_keys() {
        let mut log = EventLog::with_max_events(1_000);
        for at in 0..100 {
            for key in 1..=200 {
                log.record(hash(key), at, 1_000);
            }
        }
        let traffic = log.into_traffic();
        assert!(traffic.one_key_in >= 16, "{}", traffic.one_key_in);
        assert!(traffic.keys() > 0);
        // Each remaining key has all of its calls.
        assert!(traffic.each().all(|events| events.len() == 100));
        assert_eq!(traffic.calls() + traffic.omitted_calls, 20_000);
    }

    #[test]
    fn calls_of_one_key_above_bound_are_left_out() {
        let mut log = EventLog::with_max_events(100);
        let key = (1..).map(hash).find(|hash| hash >> 60 == 0).unwrap();
        for at in 0..1_000 {
            log.record(key, at, 1_000);
        }
        let traffic = log.into_traffic();
        assert_eq!((traffic.calls(), traffic.omitted_calls), (100, 900));
    }
}
