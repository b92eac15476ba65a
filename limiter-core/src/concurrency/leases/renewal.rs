//! What is to be renewed, and what is to be given back: when, and in which calls.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::concurrency::leases::validity::Validity;
use crate::concurrency::redis_store::PermitId;
use crate::concurrency::table::MOST_HELD_AT_ONCE;
use crate::identity::Identity;
use crate::support::jitter::varied;
use crate::units::{Timestamp, micros_ceil};

/// A lease is renewed when between a sixth and a third of it is over: those of one length that this
/// process holds at the same moments, so that one call renews all of a key.
const RENEWED_AFTER: u64 = 3;
const STEPS: u64 = 6;
/// After a failure a lease is tried again after a twelfth of it, and within these bounds.
const TRIED_AGAIN_AFTER: u32 = 12;
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// When that is left once more of which nobody knows whether it was admitted.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A lease that is renewed until it is given back.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) key: Arc<str>,
    pub(crate) permit: PermitId,
    pub(crate) term: Arc<Validity>,
}

/// A lease that Redis has to be told of that it is over.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) key: Arc<str>,
    pub(crate) identity: Identity,
    pub(crate) permit: PermitId,
    /// From this moment on the lease has ended by itself.
    pub(crate) moot_at: u64,
    pub(crate) due: u64,
    /// It may be admitted after it was left.
    pub(crate) again: bool,
    /// Who is next is told.
    pub(crate) tells: bool,
}

/// One call of Redis about permits of one key.
#[derive(Debug)]
pub(crate) enum RenewalCall {
    Renew(Vec<Renewal>),
    Leave(Vec<Release>),
}

#[derive(Debug)]
pub(crate) struct RenewalQueue {
    /// Each with the moment at which it is due.
    renewing: HashMap<u64, (u64, Renewal)>,
    /// The same moments in order, of those of which no call is under way.
    due: BTreeSet<(u64, u64)>,
    /// Those that are being renewed. Until that is over they are not given back, lest they be
    /// renewed afterwards.
    under_way: HashSet<u64>,
    leaving: BTreeMap<u64, Release>,
    /// Of those that are being given back, those of which Redis is being told.
    told: HashMap<u64, Release>,
    /// Sets the moments of renewal apart from other replicas'.
    phase: u64,
    keeper: Keeper,
}

/// The task that looks after all this.
#[derive(Debug)]
struct Keeper {
    /// Which one it is: the last that was started.
    number: u64,
    /// By when it should have shown itself, if there is one.
    due: Option<Instant>,
}

impl RenewalQueue {
    pub(crate) fn new() -> Self {
        Self {
            renewing: HashMap::new(),
            due: BTreeSet::new(),
            under_way: HashSet::new(),
            leaving: BTreeMap::new(),
            told: HashMap::new(),
            phase: micros_ceil(varied(Duration::from_secs(3_600))),
            keeper: Keeper { number: 0, due: None },
        }
    }

    /// Has a lease renewed from now on; at once, if Redis has not heard of it.
    pub(crate) fn schedule_renewal(&mut self, renewing: Renewal, now: Timestamp) {
        let number = renewing.permit.number;
        let due = if renewing.term.is_without_end() {
            now.as_micros()
        } else {
            self.next_renewal(now, &renewing.permit)
        };
        self.renewing.insert(number, (due, renewing));
        self.due.insert((due, number));
    }

    /// Has a lease given back, and not renewed any more.
    pub(crate) fn schedule_release(&mut self, leaving: Release) {
        self.forget(leaving.permit.number);
        self.leaving.insert(leaving.permit.number, leaving);
    }

    /// Whether a lease is being renewed this moment.
    pub(crate) fn is_under_way(&self, number: u64) -> bool {
        self.under_way.contains(&number)
    }

    /// Has a lease not renewed any more.
    pub(crate) fn forget(&mut self, number: u64) {
        if let Some((due, _)) = self.renewing.remove(&number) {
            self.due.remove(&(due, number));
        }
    }

    /// Whether nothing is being given back.
    pub(crate) fn is_settled(&self) -> bool {
        self.leaving.is_empty() && self.told.is_empty()
    }

    /// What is due, at most so many calls; and when there will be more. `None` if there is nothing
    /// to look after: the keeper ends.
    pub(crate) fn work(
        &mut self,
        keeper: u64,
        now: Timestamp,
        calls: usize,
    ) -> Option<(Vec<RenewalCall>, u64)> {
        if self.keeper.number != keeper {
            return None;
        }
        if self.renewing.is_empty() && self.is_settled() {
            self.keeper.due = None;
            return None;
        }
        let mut errands = Vec::new();
        if calls == 0 {
            return Some((errands, u64::MAX));
        }
        let at = now.as_micros();
        let is_due =
            |leaving: &&Release| leaving.due <= at && !self.under_way.contains(&leaving.permit.number);
        let due = self.leaving.values().filter(is_due).cloned();
        for leaving in gathered(due.collect(), |leaving| (&leaving.key, leaving.permit.terms.cost)) {
            if errands.len() < calls {
                for leaving in &leaving {
                    self.leaving.remove(&leaving.permit.number);
                    self.told.insert(leaving.permit.number, leaving.clone());
                }
                errands.push(RenewalCall::Leave(leaving));
            }
        }
        let due = self.due.iter().take_while(|(due, _)| *due <= at);
        let due = due.filter_map(|(_, number)| self.renewing.get(number).cloned());
        for leases in gathered(due.collect(), |(_, lease)| (&lease.key, lease.permit.terms.cost)) {
            if errands.len() < calls {
                for (due, lease) in &leases {
                    self.due.remove(&(*due, lease.permit.number));
                    self.under_way.insert(lease.permit.number);
                }
                errands.push(RenewalCall::Renew(
                    leases.into_iter().map(|(_, lease)| lease).collect(),
                ));
            }
        }
        let next_renewal = self.due.first().map(|(due, _)| *due);
        // What is under way wakes whoever waits for it.
        let waiting = |leaving: &&Release| !self.under_way.contains(&leaving.permit.number);
        let next_leave = self
            .leaving
            .values()
            .filter(waiting)
            .map(|leaving| leaving.due)
            .min();
        let next = [next_renewal, next_leave].into_iter().flatten().min();
        Some((errands, next.unwrap_or(u64::MAX)))
    }

    /// A renewal is over.
    pub(crate) fn on_renewed(&mut self, leases: &[Renewal], now: Timestamp, well: bool) {
        for lease in leases {
            let number = lease.permit.number;
            self.under_way.remove(&number);
            let next = if well {
                self.next_renewal(now, &lease.permit)
            } else {
                now.after(pause(&lease.permit)).as_micros()
            };
            if let Some((due, _)) = self.renewing.get_mut(&number) {
                // Another keeper may have put it there meanwhile.
                self.due.remove(&(*due, number));
                *due = next;
                self.due.insert((next, number));
            }
        }
    }

    /// Redis was told, or not.
    pub(crate) fn on_released(&mut self, leaving: Vec<Release>, now: Timestamp, well: bool) {
        for leaving in leaving {
            self.told.remove(&leaving.permit.number);
            let pause = if well { AGAIN_AFTER } else { pause(&leaving.permit) };
            let due = now.after(pause).as_micros();
            if (leaving.again || !well) && due < leaving.moot_at {
                let again = leaving.again && !well;
                self.leaving.insert(
                    leaving.permit.number,
                    Release {
                        due,
                        again,
                        ..leaving
                    },
                );
            }
        }
    }

    /// The number of a new keeper, if there has to be one.
    pub(crate) fn needs_keeper(&mut self, until: Instant, now: Instant) -> Option<u64> {
        let is_kept = self.keeper.due.is_some_and(|due| now < due);
        if is_kept || self.renewing.is_empty() && self.is_settled() {
            return None;
        }
        self.keeper.number += 1;
        self.keeper.due = Some(until);
        // What the last one was about may never have been done.
        self.leaving.append(&mut self.told.drain().collect());
        for number in self.under_way.drain() {
            if let Some((due, _)) = self.renewing.get(&number) {
                self.due.insert((*due, number));
            }
        }
        Some(self.keeper.number)
    }

    /// A keeper shows itself.
    pub(crate) fn is_kept_until(&mut self, keeper: u64, until: Instant) {
        if self.keeper.number == keeper {
            self.keeper.due = Some(until);
        }
    }

    /// A keeper has ended.
    pub(crate) fn is_not_kept(&mut self, keeper: u64) {
        if self.keeper.number == keeper {
            self.keeper.due = None;
        }
    }

    fn next_renewal(&self, now: Timestamp, permit: &PermitId) -> u64 {
        let lease = u64::from(permit.terms.lease_ms) * 1_000;
        let step = (lease / STEPS).max(1);
        let latest = now.as_micros() + lease / RENEWED_AFTER + self.phase % step;
        latest - latest % step - self.phase % step
    }
}

fn pause(permit: &PermitId) -> Duration {
    let lease = Duration::from_millis(permit.terms.lease_ms.into());
    varied((lease / TRIED_AGAIN_AFTER).clamp(SHORTEST_PAUSE, LONGEST_PAUSE))
}

/// Those of one key together, as many as one call may be about.
fn gathered<T>(mut items: Vec<T>, of: impl Fn(&T) -> (&Arc<str>, u64)) -> Vec<Vec<T>> {
    items.sort_by(|one, other| of(one).0.cmp(of(other).0));
    let mut calls: Vec<(u64, Vec<T>)> = Vec::new();
    for item in items {
        let (key, cost) = of(&item);
        match calls.last_mut() {
            Some((sum, call))
                if *sum + cost <= MOST_HELD_AT_ONCE && call.last().is_some_and(|last| of(last).0 == key) =>
            {
                *sum += cost;
                call.push(item);
            }
            _ => calls.push((cost, vec![item])),
        }
    }
    calls.into_iter().map(|(_, call)| call).collect()
}
