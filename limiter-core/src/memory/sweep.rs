//! How idle keys leave: some are looked at by whichever call comes along, and more when there is no
//! room.

use crate::memory::{MemoryStore, SHARDS};
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::units::Timestamp;

/// A quarter of a million keys a second are looked at, if there are calls enough.
const SWEEP_EVERY_MICROS: u64 = 250;
/// So many keys are looked at by one call, in so many shards.
const SWEPT_AT_ONCE: usize = 64;
const SHARDS_AT_ONCE: usize = 4;
/// A full store is searched for what may go at most this often, so that new keys cannot make it
/// search all the time.
const SEARCH_EVERY_MICROS: u64 = 1_000;
const SEARCHED_AT_ONCE: usize = 1_024;

impl MemoryStore {
    /// Drops what has expired among the next keys, if it is time.
    pub(crate) fn sweep_some(&self, now: u64) {
        if self.is_due(&self.next_sweep_at, now, SWEEP_EVERY_MICROS) {
            self.sweep(now, SHARDS_AT_ONCE, SWEPT_AT_ONCE);
        }
    }

    /// Searches a full store for expired keys. `false` if it was searched a moment ago.
    #[cold]
    pub(super) fn search(&self, now: u64) -> bool {
        let is_due = self.is_due(&self.searched_at, now, SEARCH_EVERY_MICROS);
        if is_due {
            self.sweep(now, SHARDS, SEARCHED_AT_ONCE);
        }
        is_due
    }

    /// Whether the moment has come, for one caller alone; the next is then so much later.
    fn is_due(&self, next: &AtomicU64, now: u64, every: u64) -> bool {
        let due = next.load(Ordering::Relaxed);
        // A clock that stepped back by more than that starts anew.
        let early = now < due && due - now <= every;
        !early
            && next
                .compare_exchange(
                    due,
                    now.saturating_add(every),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Drops what has expired among so many keys at most, in so many shards that nobody is using.
    fn sweep(&self, now: u64, shards: usize, keys: usize) {
        let mut left = keys;
        let calendar = self.clock.calendar().as_micros();
        for _ in 0..shards {
            let number = self.next_swept.load(Ordering::Relaxed) % SHARDS;
            let mut ended = true;
            if let Some(mut table) = self.shards.get(number).and_then(|shard| shard.0.try_lock()) {
                // Nobody decides later on at a moment at which what goes was still there.
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
