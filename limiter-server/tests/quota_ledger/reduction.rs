//! A reduced policy applies to connected Envoys.

use limiter_server::gateway::quota::ledger::{HolderId, QuotaLedger};

use super::support::quota_bucket::EnvoyBucket;
use super::{APPLY_WITHIN, Bound, SECOND, Subject, TIME_TO_LIVE, demand};

/// Saturated Envoys under an old and a new policy, which are pairs of capacity and rate.
struct Fleet {
    subject: Subject,
    envoys: Vec<EnvoyBucket>,
}

impl Fleet {
    fn new((capacity, per_second): (u64, u64), envoys: usize) -> Self {
        Self {
            subject: Subject::new(capacity, per_second),
            envoys: vec![EnvoyBucket::default(); envoys],
        }
    }

    /// Runs for some seconds with a step in each. Returns the admitted calls and the last ledger.
    fn run(&mut self, seconds: u64, mut check: impl FnMut(u64, u64, u64) -> bool) -> (u64, QuotaLedger) {
        let holders: Vec<HolderId> = (0..).take(self.envoys.len()).collect();
        let (mut all, mut last) = (0, None);
        for tick in 0..seconds * 100 {
            let now = self.subject.now();
            if tick.is_multiple_of(100) {
                let (assignments, ledger) = self.subject.assign(|_| true, demand(&holders));
                for assignment in assignments {
                    let envoy = &mut self.envoys[usize::try_from(assignment.holder).unwrap()];
                    envoy.arriving.push((now + SECOND / 2, assignment.bucket));
                }
                last = Some(ledger);
            }
            let mut admitted = 0;
            for envoy in &mut self.envoys {
                envoy.advance(now);
                admitted += envoy.request(20);
            }
            all += admitted;
            let spendable: u64 = self.envoys.iter().map(|envoy| envoy.tokens).sum();
            assert!(
                check(now, admitted, spendable),
                "{admitted} admitted, {spendable} left"
            );
            self.subject.advance(SECOND / 100);
        }
        (all, last.unwrap())
    }
}

fn rate(ledger: &QuotaLedger) -> u64 {
    ledger.holders().values().map(|holder| holder.bucket.rate()).sum()
}

/// The reduced policy applies within seconds, is exceeded by the documented allowance only, and is
/// used afterwards.
#[track_caller]
fn assert_applied(old: (u64, u64), new: (u64, u64), envoys: usize) {
    let name = format!("{old:?} to {new:?} with {envoys}");
    let mut fleet = Fleet::new(old, envoys);
    let mut bound = Bound::new(fleet.subject.budget(), fleet.subject.now());
    fleet.run(20, |now, admitted, _| bound.spend(now, admitted));
    fleet.subject.put(new.0, new.1);
    bound.put(fleet.subject.now(), fleet.subject.budget());
    let (_, ledger) = fleet.run(3, |now, admitted, _| bound.spend(now, admitted));
    assert!(rate(&ledger) <= new.1 * 1_000_000, "{name}: {}", rate(&ledger));
    let rest = TIME_TO_LIVE + 3 * APPLY_WITHIN - 3 * SECOND;
    fleet.run(rest / SECOND, |now, admitted, _| bound.spend(now, admitted));
    // From now on the policy is exact: stored and assigned permits are within it as well.
    let mut exact = Bound::new(fleet.subject.budget(), fleet.subject.now());
    let (admitted, ledger) = fleet.run(30, |now, admitted, spendable| {
        exact.spend(now, admitted) && u128::from(spendable) * 1_000_000 <= exact.left
    });
    assert!(rate(&ledger) <= new.1 * 1_000_000, "{name}: {}", rate(&ledger));
    let held: u64 = ledger
        .holders()
        .values()
        .map(|of| u64::from(of.bucket.max_tokens))
        .sum();
    assert!(
        ledger.stored() + held <= new.0,
        "{name}: {} and {held}",
        ledger.stored()
    );
    assert!(admitted >= 30 * new.1 * 9 / 10, "{name}: {admitted}");
}

#[test]
fn reduced_policy_applies_to_connected_holders() {
    for envoys in [1, 3] {
        for new in [(500, 500), (100, 100), (950, 950), (1_000, 300), (200, 1_000)] {
            assert_applied((1_000, 1_000), new, envoys);
        }
    }
    assert_applied((200, 200), (100, 100), 1);
    assert_applied((3_600, 60), (1_200, 20), 2);
}

/// Other holders and callers use a reduced policy at once: the old buckets are no debt.
#[test]
fn new_holder_and_callers_receive_permits_of_reduced_policy() {
    let mut fleet = Fleet::new((1_000, 1_000), 1);
    fleet.run(20, |_, _, _| true);
    fleet.subject.put(100, 100);
    fleet.run(4, |_, _, _| true);
    assert_eq!(fleet.subject.call(1), 1);
    fleet.envoys.push(EnvoyBucket::default());
    let (_, ledger) = fleet.run(8, |_, _, _| true);
    let rates = [0, 1].map(|holder| ledger.assigned(&holder).map_or(0, |bucket| bucket.rate()));
    assert!(
        rates.iter().all(|rate| (40_000_000..=50_000_000).contains(rate)),
        "{rates:?}"
    );
}

/// The buckets of a node that does not step end by themselves.
#[test]
fn buckets_above_reduced_policy_of_stopped_node_end() {
    let mut subject = Subject::new(1_000, 1_000);
    subject.assign(|_| true, demand(&[0, 1]));
    subject.assign(|_| true, demand(&[0, 1]));
    subject.put(100, 100);
    let mut last = 0;
    for _ in 0..20 {
        let (_, ledger) = subject.assign(|holder| *holder == 1, demand(&[1]));
        last = rate(&ledger);
        subject.advance(SECOND);
    }
    assert!((80_000_000..=93_750_000).contains(&last), "{last}");
}

/// A bucket of one permit cannot be replaced by a smaller one. It ends and is assigned again.
#[test]
fn bucket_of_one_permit_above_reduced_policy_is_not_renewed() {
    let mut subject = Subject::new(2, 100);
    subject.assign(|_| true, demand(&[0]));
    subject.assign(|_| true, demand(&[0]));
    subject.put(1, 10);
    let mut rates = Vec::new();
    for _ in 0..16 {
        let (_, ledger) = subject.assign(|_| true, demand(&[0]));
        rates.push(rate(&ledger));
        subject.advance(SECOND);
    }
    assert!(rates.contains(&0), "{rates:?}");
    assert!((1..=10_000_000).contains(rates.last().unwrap()), "{rates:?}");
}
