//! How many replicas share the limits: given by hand, or counted in Redis.

use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::Heartbeat;
use crate::support::clock::Clock;
use crate::support::deadline::within;
use crate::support::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::{Timestamp, micros_ceil};

/// While the count changes, it is taken often; later it is enough to stay in it.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long a replica counts after it was last heard: it may miss a few beats. A smaller count is
/// believed only after so long, too: a server that lost its data, or whose clock was set, knows of
/// fewer than there are.
const LIFE: Duration = Duration::from_secs(30);
/// A task that counts and has not shown itself for so long lives in a runtime that is gone, or that
/// nobody drives.
const ABANDONED_AFTER: Duration = Duration::from_secs(15);

/// The number of replicas, as far as it is known.
///
/// The first decision starts a task that counts until the limiter is dropped; one in another
/// runtime takes over when that is gone.
#[derive(Debug)]
pub(crate) struct Replicas {
    by_hand: Option<NonZeroU32>,
    shared: Arc<SharedReplicas>,
    /// Whether this replica has left. The task says goodbye then, and when this is dropped.
    left: watch::Sender<bool>,
}

#[derive(Debug)]
struct SharedReplicas {
    heart: Heartbeat,
    clock: Clock,
    counted: Mutex<ReplicaCount>,
    /// By when, in microseconds, the task that counts should have shown itself.
    due: AtomicU64,
    /// Which of the tasks counts: the last one that was started.
    task: AtomicU32,
}

#[derive(Debug, Default)]
struct ReplicaCount {
    count: u32,
    /// When so many, or more, were last heard.
    confirmed: Timestamp,
    last_heard: u32,
    failing: bool,
}

impl Replicas {
    pub(crate) fn new(by_hand: Option<NonZeroU32>, heart: Heartbeat, clock: Clock) -> Self {
        Self {
            by_hand,
            shared: Arc::new(SharedReplicas {
                heart,
                clock,
                counted: Mutex::default(),
                due: AtomicU64::new(0),
                task: AtomicU32::new(0),
            }),
            left: watch::Sender::new(false),
        }
    }

    /// At least 1: this one.
    pub(crate) fn count(&self) -> u32 {
        self.by_hand
            .map_or_else(|| self.shared.lock().count.max(1), NonZeroU32::get)
    }

    /// Sees to it that a task counts. To be called in a runtime.
    pub(crate) fn keep_counting(&self, now: Timestamp) {
        let (now, patience) = (now.as_micros(), micros_ceil(ABANDONED_AFTER));
        let due = self.shared.due.load(Ordering::Relaxed);
        // A test's clock may have been set back.
        let at_it = now < due && due - now <= patience;
        if at_it || self.by_hand.is_some() || *self.left.borrow() {
            return;
        }
        let next = now.saturating_add(patience);
        if self
            .shared
            .due
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            let task = self.shared.task.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            tokio::spawn(count_until_left(
                Arc::clone(&self.shared),
                task,
                self.left.subscribe(),
            ));
        }
    }

    /// Tells the others that this one is gone. The task does it, after its last beat.
    pub(crate) async fn deregister(&self) {
        self.left.send_replace(true);
        self.left.closed().await;
    }
}

async fn count_until_left(shared: Arc<SharedReplicas>, task: u32, mut left: watch::Receiver<bool>) {
    let mut pause = FIRST_PAUSE;
    while shared.task.load(Ordering::Relaxed) == task {
        let now = shared.clock.now();
        let due = now.after(ABANDONED_AFTER).as_micros();
        shared.due.store(due, Ordering::Relaxed);
        pause = match shared.count().await {
            Ok(true) => FIRST_PAUSE,
            Ok(false) => (pause * 2).min(LONGEST_PAUSE),
            Err(_) => PAUSE_AFTER_FAILURE,
        };
        let leaving = async {
            // An error says that the limiter was dropped.
            let _ = left.wait_for(|left| *left).await;
        };
        tokio::select! {
            biased;
            () = leaving => {
                // Who is not heard any more leaves by itself, only later.
                let _ = within(Heartbeat::PATIENCE, shared.heart.beat(Duration::ZERO)).await;
                return;
            }
            () = shared.clock.sleep(now, pause) => {}
        }
    }
}

impl SharedReplicas {
    /// Tells the others that this one is there, and hears how many there are: whether that has
    /// changed.
    async fn count(&self) -> Result<bool, StoreError> {
        let heard = within(Heartbeat::PATIENCE, self.heart.beat(LIFE)).await;
        let now = self.clock.now();
        let mut counted = self.lock();
        match heard {
            Ok(heard) => {
                let changed = std::mem::replace(&mut counted.last_heard, heard) != heard;
                if heard >= counted.count || now.since(counted.confirmed) >= LIFE {
                    (counted.count, counted.confirmed) = (heard, now);
                }
                counted.failing = false;
                crate::observe::replicas(counted.count.max(1));
                Ok(changed)
            }
            Err(error) => {
                // In an outage others say enough.
                let told = matches!(error.kind(), StoreErrorKind::Refused | StoreErrorKind::Protocol);
                if told && !std::mem::replace(&mut counted.failing, true) {
                    let (error, count) = (error.with_causes(), counted.count.max(1));
                    tracing::warn!(%error, count, "cannot count replicas; the local fallback uses the last count");
                }
                Err(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReplicaCount> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
