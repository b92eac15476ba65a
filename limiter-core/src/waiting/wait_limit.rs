//! Bounds how many calls wait at once, fairly among the queues in which they wait.
//!
//! While slots are free, any call takes one. When no slot is free, the queue with the most slots
//! loses the slot of its last waiter to a call of a shorter queue (longest queue drop). Therefore a
//! key with many waiters does not prevent calls of other keys from waiting. A call that waits for
//! the delay of its grant keeps its slot. Tests: below and
//! `limiter-tower/tests/decisions/fairness.rs`.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::support::sync::{Mutex, MutexGuard};
use crate::wait_queue::QueueId;

/// A bounded number of slots for waiting calls. A call that queries the store needs none; a call
/// that was denied, or that is behind others in its queue, needs one.
#[derive(Debug)]
pub struct WaitLimit {
    slots: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    /// The slots of each queue, in the order in which they were taken.
    queues: HashMap<QueueId, Vec<Arc<Slot>>>,
}

/// A taken slot. All flags change under the lock of the limit.
#[derive(Debug, Default)]
struct Slot {
    /// A call of another queue has taken it over.
    is_evicted: AtomicBool,
    evicted: Notify,
    is_kept: AtomicBool,
}

impl WaitLimit {
    /// Creates a limit of `slots` waiting calls.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            slots,
            taken: Mutex::default(),
        }
    }

    /// Returns the number of waiting calls.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().count
    }

    fn acquire_slot(&self, queue: &QueueId) -> Option<Arc<Slot>> {
        let mut taken = self.lock();
        if taken.count < self.slots {
            taken.count += 1;
        } else {
            taken.evict_for(queue)?;
        }
        let slot = Arc::<Slot>::default();
        let slots = taken.queues.entry(queue.clone()).or_default();
        slots.push(Arc::clone(&slot));
        Some(slot)
    }

    /// Prevents a take-over of the slot. Returns `false` if it was taken over already.
    fn claim_slot(&self, slot: &Slot) -> bool {
        let _taken = self.lock();
        slot.is_kept.store(true, Ordering::Relaxed);
        !slot.is_evicted.load(Ordering::Relaxed)
    }

    fn release_slot(&self, queue: &QueueId, slot: &Arc<Slot>) {
        let mut taken = self.lock();
        if slot.is_evicted.load(Ordering::Relaxed) {
            return;
        }
        taken.count -= 1;
        if let Some(slots) = taken.queues.get_mut(queue) {
            slots.retain(|other| !Arc::ptr_eq(other, slot));
            if slots.is_empty() {
                taken.queues.remove(queue);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock()
    }
}

impl Taken {
    /// Evicts the last waiter of the queue with the most slots, if the other queue has fewer even
    /// with one more.
    fn evict_for(&mut self, queue: &QueueId) -> Option<()> {
        let own = self.queues.get(queue).map_or(0, Vec::len);
        let largest = self.queues.values_mut().max_by_key(|slots| slots.len())?;
        if own + 1 >= largest.len() {
            return None;
        }
        let evictable = |slot: &Arc<Slot>| !slot.is_kept.load(Ordering::Relaxed);
        let slot = largest.remove(largest.iter().rposition(evictable)?);
        slot.is_evicted.store(true, Ordering::Relaxed);
        slot.evicted.notify_one();
        Some(())
    }
}

/// A call's slot, which it may not have taken yet.
#[derive(Debug)]
pub(crate) enum WaitSlot<'a> {
    /// No slot is needed.
    NotRequired,
    Required(&'a WaitLimit, QueueId),
    Taken(TakenSlot<'a>),
}

/// A slot that is released on drop.
#[derive(Debug)]
pub(crate) struct TakenSlot<'a> {
    wait_limit: &'a WaitLimit,
    queue: QueueId,
    slot: Arc<Slot>,
}

impl<'a> WaitSlot<'a> {
    /// Creates a slot of `wait_limit`, if there is one, for a call of this queue.
    pub(crate) fn new(wait_limit: Option<&'a WaitLimit>, queue: impl FnOnce() -> QueueId) -> Self {
        wait_limit.map_or(Self::NotRequired, |wait_limit| {
            Self::Required(wait_limit, queue())
        })
    }

    /// Takes a slot, if one is needed and not taken yet. `false` if none is left, or if the slot
    /// was taken over.
    pub(crate) fn try_take(&mut self) -> bool {
        match self {
            Self::NotRequired => true,
            Self::Taken(taken) => !taken.slot.is_evicted.load(Ordering::Relaxed),
            Self::Required(wait_limit, queue) => {
                let Some(slot) = wait_limit.acquire_slot(queue) else {
                    return false;
                };
                let queue = std::mem::take(queue);
                *self = Self::Taken(TakenSlot {
                    wait_limit,
                    queue,
                    slot,
                });
                true
            }
        }
    }

    /// As [`try_take`](Self::try_take); the slot cannot be taken over afterwards.
    pub(crate) fn take_and_keep(&mut self) -> bool {
        self.try_take()
            && match self {
                Self::Taken(taken) => taken.wait_limit.claim_slot(&taken.slot),
                Self::NotRequired | Self::Required(..) => true,
            }
    }

    /// Waits until the slot is taken over.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn evicted(&self) {
        match self {
            Self::Taken(taken) => taken.slot.evicted.notified().await,
            Self::NotRequired | Self::Required(..) => pending().await,
        }
    }
}

impl Drop for TakenSlot<'_> {
    fn drop(&mut self) {
        self.wait_limit.release_slot(&self.queue, &self.slot);
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;
    use crate::waiting::wait_limit::*;

    fn queue(key: &str) -> QueueId {
        let policy = Policy::token_bucket("p").capacity(1).rate(1).build().unwrap();
        QueueId::from_slice(&[policy.identity(None, key)])
    }

    fn slot<'a>(wait_limit: &'a WaitLimit, key: &str) -> WaitSlot<'a> {
        WaitSlot::new(Some(wait_limit), || queue(key))
    }

    #[test]
    fn full_limit_evicts_last_waiter_of_largest_queue() {
        let wait_limit = WaitLimit::new(4);
        let mut busy: Vec<_> = (0..5).map(|_| slot(&wait_limit, "busy")).collect();
        let taken = |slots: &mut [WaitSlot<'_>]| slots.iter_mut().map(WaitSlot::try_take).collect::<Vec<_>>();
        assert_eq!(taken(&mut busy), [true, true, true, true, false]);
        let mut calm: Vec<_> = (0..3).map(|_| slot(&wait_limit, "calm")).collect();
        assert_eq!(taken(&mut calm), [true, true, false], "each queue has half");
        assert_eq!(taken(&mut busy[..4]), [true, true, false, false]);
        let mut third = slot(&wait_limit, "third");
        assert!(third.try_take());
        assert_eq!(wait_limit.waiting(), 4);
        // Both queues have two waiters, so either may lose its last one.
        let kept = [taken(&mut busy[..2]), taken(&mut calm[..2])];
        assert!(kept.iter().all(|queue| queue[0]), "{kept:?}");
        assert_eq!(kept.iter().flatten().filter(|kept| **kept).count(), 3, "{kept:?}");
        drop(third);
        drop(calm);
        assert_eq!(
            taken(&mut busy[..2]),
            kept[0],
            "an evicted waiter takes no slot again"
        );
        drop(busy);
        assert_eq!(wait_limit.waiting(), 0);
        assert!(wait_limit.lock().queues.is_empty());
    }

    #[test]
    fn kept_slot_is_not_taken_over() {
        let wait_limit = WaitLimit::new(2);
        let mut busy = [(); 2].map(|()| slot(&wait_limit, "busy"));
        assert!(busy.iter_mut().all(WaitSlot::take_and_keep));
        assert!(!slot(&wait_limit, "calm").try_take());
        assert!(busy.iter_mut().all(WaitSlot::try_take));
    }
}
