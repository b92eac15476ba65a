//! The number of replicas that share the limits: configured, or counted in Redis.
//!
//! The local fallback divides each limit by this number. A task registers this replica with every
//! beat and reads the count; it starts with the first decision, and a decision in another runtime
//! continues it if its runtime ends.
//!
//! Invariants: the count is at least 1, and it decreases only if beats have succeeded for the
//! duration of a registration, without a long gap between two of them, and none of them has
//! confirmed it. Tests: below, `tests/local_fallback.rs`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::error_mapping::is_temporary;
use crate::redis::heartbeat::Heartbeat;
use crate::support::background_task::{BackgroundTask, TaskNumber};
use crate::support::clock::Clock;
use crate::support::real_time::with_deadline;
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::Timestamp;

/// Interval of the count: short while it changes, longer while it is stable, and longer the more
/// replicas there are. In a large fleet the count changes during the whole of a deployment, and on
/// all replicas after an outage.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const PAUSE_PER_REPLICA: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Duration of a registration, which covers several missed beats. A smaller count is accepted only
/// after this time without an outage, since a server reports too few after a loss of data, a change
/// of its clock, or an outage in which the registrations expired.
const LIFE: Duration = Duration::from_secs(30);
/// Time between two successful beats that counts as an outage. Single failed beats end no
/// registration.
const OUTAGE: Duration = Duration::from_secs(10);
/// Time after which a counting task without progress counts as abandoned with its runtime.
const ABANDONED_AFTER: Duration = Duration::from_secs(15);

/// The number of replicas.
///
/// The first decision starts a task that counts until the limiter is dropped. If the task's runtime
/// ends, a decision in another runtime starts the next task.
#[derive(Debug)]
pub(crate) struct Replicas {
    configured: Option<NonZeroU32>,
    shared: Arc<SharedReplicas>,
    /// Set when this replica leaves. The task then removes the registration, as it does on drop.
    left: watch::Sender<bool>,
}

#[derive(Debug)]
struct SharedReplicas {
    heartbeat: Heartbeat,
    clock: Clock,
    counted: Mutex<ReplicaCount>,
    task: BackgroundTask,
}

#[derive(Debug, Default)]
struct ReplicaCount {
    count: u32,
    /// The time at which at least this number was last reported, or an outage ended.
    confirmed: Timestamp,
    /// The time of the last successful beat.
    succeeded: Timestamp,
    last_reported: u32,
    failing: bool,
}

impl Replicas {
    pub(crate) fn new(configured: Option<NonZeroU32>, heartbeat: Heartbeat, clock: Clock) -> Self {
        Self {
            configured,
            shared: Arc::new(SharedReplicas {
                heartbeat,
                clock,
                counted: Mutex::default(),
                task: BackgroundTask::new(ABANDONED_AFTER),
            }),
            left: watch::Sender::new(false),
        }
    }

    /// Returns the number of replicas, at least 1 for this one.
    pub(crate) fn count(&self) -> u32 {
        self.configured
            .map_or_else(|| self.shared.lock().count.max(1), NonZeroU32::get)
    }

    /// Starts the counting task unless one is running. Must be called in a runtime.
    pub(crate) fn keep_counting(&self, now: Timestamp) {
        // The task first: the channel has a lock.
        if self.configured.is_some() || self.shared.task.is_running(now) || *self.left.borrow() {
            return;
        }
        if let Some(task) = self.shared.task.claim(now) {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(count_until_left(shared, task, self.left.subscribe()));
        }
    }

    /// Removes the registration of this replica. The task does this too, after its last beat; its
    /// runtime may have ended, or may not be driven.
    pub(crate) async fn deregister(&self) {
        self.left.send_replace(true);
        if self.shared.lock().last_reported > 0 {
            self.shared.leave().await;
        }
        self.left.closed().await;
    }
}

async fn count_until_left(shared: Arc<SharedReplicas>, task: TaskNumber, mut left: watch::Receiver<bool>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let now = shared.clock.now();
        if !shared.task.continues(task, now) {
            return;
        }
        pause = match shared.count().await {
            Ok(true) => shared.first_pause(),
            Ok(false) => (pause * 2).min(LONGEST_PAUSE),
            Err(_) => PAUSE_AFTER_FAILURE,
        };
        let shutdown = async {
            // An error means that the limiter was dropped.
            let _ = left.wait_for(|left| *left).await;
        };
        tokio::select! {
            biased;
            () = shutdown => {
                shared.leave().await;
                return;
            }
            () = shared.clock.sleep(now, pause) => {}
        }
    }
}

impl SharedReplicas {
    /// Renews the registration and updates the count. Returns whether the count has changed.
    async fn count(&self) -> Result<bool, StoreError> {
        let reported = with_deadline(Heartbeat::TIMEOUT, self.heartbeat.beat(LIFE)).await;
        let now = self.clock.now();
        let mut counted = self.lock();
        match reported {
            Ok(reported) => {
                let changed = std::mem::replace(&mut counted.last_reported, reported) != reported;
                let previous = std::mem::replace(&mut counted.succeeded, now);
                if now.since(previous) >= OUTAGE {
                    counted.confirmed = now;
                }
                if reported >= counted.count || now.since(counted.confirmed) >= LIFE {
                    (counted.count, counted.confirmed) = (reported, now);
                }
                counted.failing = false;
                crate::observe::replicas(counted.count.max(1));
                Ok(changed)
            }
            Err(error) => {
                // Other log messages report an outage.
                let is_rejected = matches!(error.kind(), StoreErrorKind::Refused | StoreErrorKind::Protocol);
                let is_permanent = is_rejected && !is_temporary(&error);
                if is_permanent && !std::mem::replace(&mut counted.failing, true) {
                    let (error, count) = (error.with_causes(), counted.count.max(1));
                    tracing::warn!(%error, count, "cannot count replicas; the local fallback uses the last count");
                }
                Err(error)
            }
        }
    }

    /// Returns the interval after a change of the count.
    fn first_pause(&self) -> Duration {
        let counted = self.lock();
        let replicas = counted.count.max(counted.last_reported);
        (PAUSE_PER_REPLICA * replicas).clamp(FIRST_PAUSE, LONGEST_PAUSE)
    }

    /// Removes the registration. Without this beat, it ends by itself, only later.
    async fn leave(&self) {
        let _ = with_deadline(Heartbeat::TIMEOUT, self.heartbeat.beat(Duration::ZERO)).await;
    }

    fn lock(&self) -> MutexGuard<'_, ReplicaCount> {
        self.counted.lock()
    }
}

#[cfg(test)]
mod tests {
    use limiter_testing::RedisServer;

    use super::*;
    use crate::redis::token_lease::leased_limit::tests::store_on;
    use crate::support::clock::ManualClock;

    /// A fleet was reduced, and each fourth beat of a remaining replica fails.
    #[tokio::test]
    async fn count_decreases_although_single_beats_fail() {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let store = store_on(&server, &clock);
        let (register, apart) = (store.namespace.replicas_key(), "apart");
        let other = store.heartbeat();
        other.beat(LIFE).await.unwrap();
        let replicas = Replicas::new(None, store.heartbeat(), Clock::Manual(clock.clone()));
        replicas.shared.count().await.unwrap();
        assert_eq!(replicas.count(), 2);
        other.beat(Duration::ZERO).await.unwrap();
        for beat in 1..=8 {
            clock.advance(LONGEST_PAUSE);
            if beat % 4 == 0 {
                server.command(&["RENAME", &register, apart]);
                server.command(&["RPUSH", &register, "of another program"]);
                replicas.shared.count().await.unwrap_err();
                server.command(&["RENAME", apart, &register]);
                clock.advance(PAUSE_AFTER_FAILURE);
            }
            replicas.shared.count().await.unwrap();
        }
        assert_eq!(replicas.count(), 1);
    }
}
