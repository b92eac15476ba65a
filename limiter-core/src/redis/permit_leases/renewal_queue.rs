//! Schedule of lease renewals and releases.
//!
//! Each permit held through Redis is a lease that must be renewed before it expires. This queue
//! decides which leases to renew or release in the next calls, batches them per key, and
//! reschedules failed ones. It performs no I/O; `housekeeper.rs` drives it.
//!
//! A task that stalled, and that another one has replaced, may still send its renewals: after the
//! release of a lease they create the lease again. The end of such a renewal therefore schedules
//! the release once more. A renewal that failed may still be executed, so a release that waited for
//! it is repeated.
//!
//! Invariants: a lease is not released while the current task renews it, and a lease that is
//! released during a renewal that fails or is replaced is released again afterwards. Tests: below,
//! `tests/concurrency.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::identity::Identity;
use crate::memory::permit_table::MAX_PERMIT_COST;
use crate::redis::permit_leases::store::PermitId;
use crate::redis::permit_leases::validity::{Validity, ends};
use crate::support::jitter::with_jitter;
use crate::units::{Timestamp, micros_ceil};

/// A lease is renewed after a sixth to a third of its length. All leases of one length in this
/// process are renewed at the same times, so that one call renews all leases of a key.
const RENEWED_AFTER: u64 = 3;
const STEPS: u64 = 6;
/// A failed call is retried after a twelfth of the lease, within these bounds.
const RETRIES_PER_LEASE: u32 = 12;
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(20);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pause before the repeated release of a lease of which the admission is unknown.
const REPEAT_RELEASE_AFTER: Duration = Duration::from_secs(1);

/// A lease that is renewed until it is released.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) key: Arc<str>,
    pub(crate) identity: Identity,
    pub(crate) permit: PermitId,
    pub(crate) validity: Arc<Validity>,
}

/// A lease that has to be released in Redis.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) key: Arc<str>,
    pub(crate) identity: Identity,
    pub(crate) permit: PermitId,
    /// After this time the lease has expired without a release.
    pub(crate) expires_at: u64,
    pub(crate) due: u64,
    /// Repeat the release: Redis may admit the permit after the first one.
    pub(crate) repeats: bool,
    /// Notify the first waiter after the release.
    pub(crate) notifies_next: bool,
}

/// The leases of one call, and the number of the task that renews them.
#[derive(Debug)]
pub(crate) struct RenewalBatch {
    pub(crate) leases: Vec<Renewal>,
    housekeeper: u64,
}

/// One call to Redis about permits of one key.
#[derive(Debug)]
pub(crate) enum RenewalCall {
    Renew(RenewalBatch),
    Release(Vec<Release>),
}

#[derive(Debug)]
pub(crate) struct RenewalQueue {
    /// Each lease with the time of its next renewal.
    renewals: HashMap<u64, (u64, Renewal)>,
    /// The renewal times in order, without the leases whose renewal is in flight.
    due: BTreeSet<(u64, u64)>,
    /// Leases whose renewal by the current task is in flight. They are not released before it ends,
    /// because a late renewal would create them again.
    renewals_in_flight: HashSet<u64>,
    /// Leases of which a renewal got no reply. Redis may execute it after their release.
    unanswered: HashSet<u64>,
    releases: BTreeMap<u64, Release>,
    /// Releases that were sent to Redis and have no reply yet.
    releases_in_flight: HashMap<u64, Release>,
    /// Offset of the renewal times, which differs between replicas.
    phase: u64,
    housekeeper: HousekeeperState,
}

/// State of the background task.
#[derive(Debug)]
struct HousekeeperState {
    /// Number of the task that was started last.
    number: u64,
    /// Time by which the task must renew this heartbeat, if there is a task.
    due: Option<Instant>,
}

impl RenewalQueue {
    pub(crate) fn new() -> Self {
        Self {
            renewals: HashMap::new(),
            due: BTreeSet::new(),
            renewals_in_flight: HashSet::new(),
            unanswered: HashSet::new(),
            releases: BTreeMap::new(),
            releases_in_flight: HashMap::new(),
            phase: micros_ceil(with_jitter(Duration::from_secs(3_600))),
            housekeeper: HousekeeperState { number: 0, due: None },
        }
    }

    /// Schedules the renewals of a lease; the first one at once if Redis does not know the lease.
    pub(crate) fn schedule_renewal(&mut self, renewal: Renewal, now: Timestamp) {
        let number = renewal.permit.number;
        let due = if renewal.validity.is_not_in_redis() {
            now.as_micros()
        } else {
            self.next_renewal(now, &renewal.permit)
        };
        self.renewals.insert(number, (due, renewal));
        self.due.insert((due, number));
    }

    /// Schedules the release of a lease and ends its renewals.
    pub(crate) fn schedule_release(&mut self, release: Release) {
        let number = release.permit.number;
        self.forget(number);
        let repeats = self.unanswered.remove(&number) || release.repeats;
        self.releases.insert(number, Release { repeats, ..release });
    }

    /// True if a renewal of the lease got no reply.
    pub(crate) fn is_unanswered(&self, number: u64) -> bool {
        self.unanswered.contains(&number)
    }

    /// True if a renewal of the lease is in flight.
    pub(crate) fn is_under_way(&self, number: u64) -> bool {
        self.renewals_in_flight.contains(&number)
    }

    /// Ends the renewals of a lease.
    pub(crate) fn forget(&mut self, number: u64) {
        if let Some((due, _)) = self.renewals.remove(&number) {
            self.due.remove(&(due, number));
        }
    }

    /// True if no release is pending.
    pub(crate) fn is_settled(&self) -> bool {
        self.releases.is_empty() && self.releases_in_flight.is_empty()
    }

    /// True if the queue contains no lease.
    fn is_idle(&self) -> bool {
        self.renewals.is_empty() && self.renewals_in_flight.is_empty() && self.is_settled()
    }

    /// Returns the calls that are due, at most `max_calls`, and the time of the next one. `None` if
    /// no lease is left: the task ends.
    pub(crate) fn due_calls(
        &mut self,
        housekeeper: u64,
        now: Timestamp,
        max_calls: usize,
    ) -> Option<(Vec<RenewalCall>, u64)> {
        if self.housekeeper.number != housekeeper {
            return None;
        }
        if self.is_idle() {
            self.housekeeper.due = None;
            return None;
        }
        let mut calls = Vec::new();
        if max_calls == 0 {
            return Some((calls, u64::MAX));
        }
        let at = now.as_micros();
        let is_due = |release: &&Release| {
            release.due <= at && !self.renewals_in_flight.contains(&release.permit.number)
        };
        let due = self.releases.values().filter(is_due).cloned();
        for batch in batches_by_key(due.collect(), |release| (&release.key, release.permit.terms.cost)) {
            if calls.len() < max_calls {
                for release in &batch {
                    self.releases.remove(&release.permit.number);
                    self.releases_in_flight
                        .insert(release.permit.number, release.clone());
                }
                calls.push(RenewalCall::Release(batch));
            }
        }
        let due = self.due.iter().take_while(|(due, _)| *due <= at);
        let due = due.filter_map(|(_, number)| self.renewals.get(number).cloned());
        for leases in batches_by_key(due.collect(), |(_, lease)| (&lease.key, lease.permit.terms.cost)) {
            if calls.len() < max_calls {
                for (due, lease) in &leases {
                    self.due.remove(&(*due, lease.permit.number));
                    self.renewals_in_flight.insert(lease.permit.number);
                }
                let leases = leases.into_iter().map(|(_, lease)| lease).collect();
                calls.push(RenewalCall::Renew(RenewalBatch { leases, housekeeper }));
            }
        }
        let next_renewal = self.due.first().map(|(due, _)| *due);
        // The end of a renewal in flight wakes the task, so its lease is not waited for.
        let waiting = |release: &&Release| !self.renewals_in_flight.contains(&release.permit.number);
        let next_release = self
            .releases
            .values()
            .filter(waiting)
            .map(|release| release.due)
            .min();
        let next = [next_renewal, next_release].into_iter().flatten().min();
        Some((calls, next.unwrap_or(u64::MAX)))
    }

    /// Reschedules leases after the reply to a renewal.
    pub(crate) fn on_renewed(
        &mut self,
        batch: &RenewalBatch,
        now: Timestamp,
        result: Result<(), &StoreError>,
    ) {
        for lease in &batch.leases {
            let number = lease.permit.number;
            if batch.housekeeper != self.housekeeper.number {
                // The current task renews the lease, unless it was released: then this renewal may
                // have created it again.
                if !self.renewals.contains_key(&number) {
                    self.schedule_release(lease.repeated_release(now));
                }
                continue;
            }
            self.renewals_in_flight.remove(&number);
            let next = if result.is_ok() {
                self.next_renewal(now, &lease.permit)
            } else {
                now.after(retry_pause(&lease.permit)).as_micros()
            };
            if let Some((due, _)) = self.renewals.get_mut(&number) {
                *due = next;
                self.due.insert((next, number));
                if result.is_err_and(StoreError::may_have_been_charged) {
                    self.unanswered.insert(number);
                }
            } else if result.is_err() {
                // Redis may execute the renewal after the release.
                self.releases
                    .entry(number)
                    .and_modify(|release| release.repeats = true)
                    .or_insert_with(|| lease.repeated_release(now.after(REPEAT_RELEASE_AFTER)));
            }
        }
    }

    /// Drops releases that succeeded and reschedules the others.
    pub(crate) fn on_released(
        &mut self,
        releases: Vec<Release>,
        now: Timestamp,
        result: Result<(), &StoreError>,
    ) {
        for release in releases {
            self.releases_in_flight.remove(&release.permit.number);
            let retry_pause = if result.is_ok() {
                REPEAT_RELEASE_AFTER
            } else {
                retry_pause(&release.permit)
            };
            let due = now.after(retry_pause).as_micros();
            if (release.repeats || result.is_err()) && due < release.expires_at {
                let repeats = release.repeats && result.is_err();
                self.releases.insert(
                    release.permit.number,
                    Release {
                        due,
                        repeats,
                        ..release
                    },
                );
            }
        }
    }

    /// Returns the number of a new task if one has to be started.
    pub(crate) fn start_housekeeper(&mut self, until: Instant, now: Instant) -> Option<u64> {
        let is_alive = self.housekeeper.due.is_some_and(|due| now < due);
        if is_alive || self.is_idle() {
            return None;
        }
        self.housekeeper.number += 1;
        self.housekeeper.due = Some(until);
        // The calls of the previous task may never have been sent.
        self.releases
            .append(&mut self.releases_in_flight.drain().collect());
        for number in self.renewals_in_flight.drain() {
            if let Some((due, _)) = self.renewals.get(&number) {
                self.due.insert((*due, number));
            }
            match self.releases.get_mut(&number) {
                Some(release) => release.repeats = true,
                None => _ = self.unanswered.insert(number),
            }
        }
        Some(self.housekeeper.number)
    }

    /// Records the heartbeat of a task.
    pub(crate) fn extend_housekeeper(&mut self, housekeeper: u64, until: Instant) {
        if self.housekeeper.number == housekeeper {
            self.housekeeper.due = Some(until);
        }
    }

    /// Records the end of a task.
    pub(crate) fn end_housekeeper(&mut self, housekeeper: u64) {
        if self.housekeeper.number == housekeeper {
            self.housekeeper.due = None;
        }
    }

    fn next_renewal(&self, now: Timestamp, permit: &PermitId) -> u64 {
        let lease = u64::from(permit.terms.lease_ms) * 1_000;
        let step = (lease / STEPS).max(1);
        let latest = now.as_micros() + lease / RENEWED_AFTER + self.phase % step;
        latest - latest % step - self.phase % step
    }
}

impl Renewal {
    /// Returns a release that is due at a time.
    fn repeated_release(&self, at: Timestamp) -> Release {
        Release {
            key: Arc::clone(&self.key),
            identity: self.identity,
            permit: self.permit,
            expires_at: ends(at, &self.permit.terms),
            due: at.as_micros(),
            repeats: false,
            notifies_next: true,
        }
    }
}

fn retry_pause(permit: &PermitId) -> Duration {
    let lease = Duration::from_millis(permit.terms.lease_ms.into());
    with_jitter((lease / RETRIES_PER_LEASE).clamp(MIN_RETRY_PAUSE, MAX_RETRY_PAUSE))
}

/// Groups items by key, with at most the permits that one call may contain.
fn batches_by_key<T>(mut items: Vec<T>, of: impl Fn(&T) -> (&Arc<str>, u64)) -> Vec<Vec<T>> {
    items.sort_by(|one, other| of(one).0.cmp(of(other).0));
    let mut calls: Vec<(u64, Vec<T>)> = Vec::new();
    for item in items {
        let (key, cost) = of(&item);
        match calls.last_mut() {
            Some((sum, call))
                if *sum + cost <= MAX_PERMIT_COST && call.last().is_some_and(|last| of(last).0 == key) =>
            {
                *sum += cost;
                call.push(item);
            }
            _ => calls.push((cost, vec![item])),
        }
    }
    calls.into_iter().map(|(_, call)| call).collect()
}

#[cfg(test)]
mod tests;
