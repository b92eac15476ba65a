//! How many replicas share the limits: given by hand, or counted in Redis.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::deadline::within;
use crate::store::redis::Heart;
use crate::units::{Timestamp, micros_ceil};

/// A replica that has just started is soon known to the others; later it tells less often that it is there.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a replica counts after it was last heard: it may miss a few beats.
const LIFE: Duration = Duration::from_secs(30);
const BEAT_WITHIN: Duration = Duration::from_secs(1);

/// The number of replicas, as far as it is known. Cheap to clone.
///
/// Beats go along with decisions: one that finds a beat due starts a task. So an idle replica, which uses nothing, falls out
/// of the count, and nothing runs that nobody asked for.
#[derive(Clone, Debug)]
pub(crate) struct Replicas(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    by_hand: Option<NonZeroU32>,
    counted: AtomicU32,
    heart: Heart,
    /// The moment of the next beat, and the pause after it, in microseconds.
    due: AtomicU64,
    pause: AtomicU64,
}

impl Replicas {
    pub(crate) fn new(by_hand: Option<NonZeroU32>, heart: Heart) -> Self {
        Self(Arc::new(Inner {
            by_hand,
            counted: AtomicU32::new(1),
            heart,
            due: AtomicU64::new(0),
            pause: AtomicU64::new(micros_ceil(FIRST_PAUSE)),
        }))
    }

    /// At least 1: this one.
    pub(crate) fn count(&self) -> u32 {
        self.0
            .by_hand
            .map_or_else(|| self.0.counted.load(Ordering::Relaxed).max(1), NonZeroU32::get)
    }

    /// Tells the others that this one is there, and learns how many there are, if it is time. To be called in a runtime.
    pub(super) fn beat(&self, now: Timestamp) {
        let now = now.as_micros();
        let due = self.0.due.load(Ordering::Relaxed);
        let longest = micros_ceil(LONGEST_PAUSE);
        // A test's clock may have been set back.
        if self.0.by_hand.is_some() || (now < due && due - now <= longest) {
            return;
        }
        let pause = self.0.pause.load(Ordering::Relaxed);
        let next = now.saturating_add(pause);
        if self
            .0
            .due
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        self.0.pause.store((pause * 2).min(longest), Ordering::Relaxed);
        let replicas = self.clone();
        tokio::spawn(async move { replicas.count_anew(LIFE).await });
    }

    /// Tells the others that this one is gone.
    pub(super) async fn leave(&self) {
        if self.0.by_hand.is_none() && self.0.due.load(Ordering::Relaxed) > 0 {
            self.count_anew(Duration::ZERO).await;
        }
    }

    async fn count_anew(&self, life: Duration) {
        match within(BEAT_WITHIN, self.0.heart.beat(life)).await {
            Ok(count) => {
                let known = self.0.counted.swap(count, Ordering::Relaxed);
                if known != count {
                    tracing::debug!(replicas = count, "the number of replicas has changed");
                }
            }
            // The last count holds.
            Err(error) => tracing::debug!(%error, "the replicas could not be counted"),
        }
    }
}
