//! Removal of idle keys: decisions examine some keys each, and more keys when the store is full.

use crate::memory::{MemoryStore, SHARDS};
use crate::support::sync::atomic::Ordering;
use crate::units::Timestamp;

/// Minimum interval between searches of a full store, so that new keys cannot cause continuous
/// searches.
const SEARCH_EVERY_MICROS: u64 = 1_000;
const SEARCHED_AT_ONCE: usize = 1_024;

/// The extent of one sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweepExtent {
    pub(super) shards: usize,
    pub(super) keys: usize,
    /// The longest time in microseconds for which ended calendar periods are kept.
    pub(super) max_kept: u64,
}

/// A search for space.
const SEARCH: SweepExtent = SweepExtent {
    shards: SHARDS,
    keys: SEARCHED_AT_ONCE,
    max_kept: 0,
};

impl MemoryStore {
    /// Searches a full store for expired keys. Returns `false` if the last search was too recent.
    #[cold]
    pub(super) fn search(&self, now: u64) -> bool {
        let is_due = self.is_due(&self.searched_at, now, SEARCH_EVERY_MICROS);
        if is_due {
            self.sweep(now, SEARCH);
        }
        is_due
    }

    /// Removes expired keys to an extent. Skips shards that are locked.
    #[inline(never)]
    pub(super) fn sweep(&self, now: u64, extent: SweepExtent) {
        let mut left = extent.keys;
        let calendar = self.clock.calendar().as_micros();
        for _ in 0..extent.shards {
            let number = self.next_swept.load(Ordering::Relaxed) % SHARDS;
            let mut ended = true;
            if let Some(mut table) = self.shards.get(number).and_then(|shard| shard.try_lock()) {
                // Later decisions must not use an earlier time, at which a removed state was not
                // expired.
                table.decided_at = table.decided_at.max(Timestamp::from_micros(now));
                let swept = table.sweep(now, (calendar, extent.max_kept), left);
                self.release(swept.gone);
                left -= swept.seen;
                ended = swept.ended;
            }
            if ended {
                self.next_swept.fetch_add(1, Ordering::Relaxed);
            }
            if left == 0 {
                break;
            }
        }
    }
}
