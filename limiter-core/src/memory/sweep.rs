//! Removal of idle keys: decisions examine some keys each, and more keys when the store is full.

use crate::memory::{MemoryStore, SHARDS};
use crate::support::sync::atomic::Ordering;
use crate::units::Timestamp;

/// Minimum interval between searches of a full store, so that new keys cannot cause continuous
/// searches.
const SEARCH_EVERY_MICROS: u64 = 1_000;
const SEARCHED_AT_ONCE: usize = 1_024;

impl MemoryStore {
    /// Searches a full store for expired keys. Returns `false` if the last search was too recent.
    #[cold]
    pub(super) fn search(&self, now: u64) -> bool {
        let is_due = self.is_due(&self.searched_at, now, SEARCH_EVERY_MICROS);
        if is_due {
            self.sweep(now, SHARDS, SEARCHED_AT_ONCE);
        }
        is_due
    }

    /// Removes expired keys among at most `keys` keys in `shards` shards. Skips shards that are
    /// locked.
    #[inline(never)]
    pub(super) fn sweep(&self, now: u64, shards: usize, keys: usize) {
        let mut left = keys;
        let calendar = self.clock.calendar().as_micros();
        for _ in 0..shards {
            let number = self.next_swept.load(Ordering::Relaxed) % SHARDS;
            let mut ended = true;
            if let Some(mut table) = self.shards.get(number).and_then(|shard| shard.try_lock()) {
                // Later decisions must not use an earlier time, at which a removed state was not
                // expired.
                table.decided_at = table.decided_at.max(Timestamp::from_micros(now));
                let swept = table.sweep(now, calendar, left);
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
