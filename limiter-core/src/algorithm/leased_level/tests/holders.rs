//! Bound on the permits admitted by holders and store together, with lost requests and replies.

use crate::algorithm::leased_level::tests::*;

/// Leased tokens of one holder.
pub(super) struct HeldLease {
    /// Index of the policy of the lease; its report uses the same policy.
    pub(super) limit: usize,
    pub(super) epoch: u32,
    pub(super) left: u64,
    pub(super) spent: u64,
    /// In monotonic time.
    pub(super) until: u64,
}

#[derive(Default)]
pub(super) struct Holder(pub(super) Vec<HeldLease>);

impl Holder {
    /// Reports the usage of one lease of a limit, in whole or in part.
    pub(super) fn report(&mut self, rng: &mut Rng, limit: usize) -> UsageReport {
        let own_leases = self.0.iter_mut().filter(|held| held.limit == limit);
        let mut own_leases: Vec<_> = own_leases.collect();
        if own_leases.is_empty() || rng.u8(0..4) == 0 {
            return UsageReport::default();
        }
        let number = rng.usize(0..own_leases.len());
        let held = &mut own_leases[number];
        let returned = if rng.bool() {
            held.left
        } else {
            rng.u64(0..=held.left)
        };
        held.left -= returned;
        UsageReport {
            epoch: held.epoch,
            spent: std::mem::take(&mut held.spent),
            returned,
        }
    }

    fn spend(&mut self, rng: &mut Rng, passed: u64) -> u64 {
        self.0.retain(|held| passed < held.until || held.spent > 0);
        let alive: Vec<_> = self.0.iter_mut().filter(|held| passed < held.until).collect();
        let Some(held) = alive.into_iter().next() else {
            return 0;
        };
        let cost = rng.u64(0..=held.left);
        held.left -= cost;
        held.spent += cost;
        cost
    }
}

/// Asserts that from any grant on, the granted costs stay within the capacity plus the refill.
fn assert_within_bound(grants: &[(u64, u64)], capacity: u64, rate: Rate) {
    let (per, amount) = (i128::from(rate.micros), i128::from(rate.thousandths));
    let (mut sum, mut min) = (0, i128::MAX);
    for (at, cost) in grants {
        let f = sum * per - amount * i128::from(*at);
        min = min.min(f);
        sum += i128::from(*cost);
        assert!(
            f + i128::from(*cost) * per <= i128::from(capacity) * per + min,
            "{} of {per} too much at {at}: {grants:?}",
            f + i128::from(*cost) * per - i128::from(capacity) * per - min
        );
    }
}

/// Plays one history and returns the granted costs by monotonic time.
fn play(rng: &mut Rng, limits: &[(Algorithm, u64, Rate)], steps_back: bool) -> Vec<(u64, u64)> {
    let mut state = StepState::Absent;
    let mut holders: [Holder; 3] = Default::default();
    let mut time = Time { now: NOW, passed: 0 };
    let mut grants = Vec::new();
    let epochs: Vec<_> = limits.iter().map(|_| rng.u64(1..5) * 250_000).collect();
    for _ in 0..120 {
        time.pass(rng, steps_back);
        let limit = rng.usize(0..limits.len());
        let (algorithm, capacity, _) = &limits[limit];
        let holder = &mut holders[rng.usize(0..3)];
        let cost = if rng.bool() { 0 } else { rng.u64(0..=*capacity) };
        match rng.u8(0..10) {
            0..2 => {
                let outcome = algorithm::step(algorithm, &mut state, cost, time.now, Mode::Charge);
                if outcome.fits && cost > 0 {
                    grants.push((time.passed, cost));
                }
            }
            2..5 => {
                let request = LeaseRequest {
                    cost,
                    want: rng.u64(0..=*capacity),
                    epoch: epochs[limit],
                    report: holder.report(rng, limit),
                };
                // The request is lost, the reply is lost, or neither.
                let lost = rng.u8(0..12);
                if lost == 0 {
                    continue;
                }
                let (outcome, loan) = algorithm::grant_lease(algorithm, &mut state, &request, time.now);
                if outcome.fits && cost > 0 {
                    grants.push((time.passed, cost));
                }
                if loan.amount > 0 && lost != 1 {
                    assert!(loan.life > epochs[limit] || limits.len() > 1 && loan.life > 0);
                    holder.0.push(HeldLease {
                        limit,
                        epoch: loan.epoch,
                        left: loan.amount,
                        spent: 0,
                        until: time.passed + loan.life,
                    });
                }
            }
            5..9 => {
                let spent = holder.spend(rng, time.passed);
                if spent > 0 {
                    grants.push((time.passed, spent));
                }
            }
            _ if rng.u8(0..4) == 0 => *holder = Holder::default(),
            _ => {}
        }
        let outcome = algorithm::step(algorithm, &mut state.clone(), 0, time.now, Mode::Peek);
        assert!(
            limits.len() > 1 || outcome.remaining + leased_at(algorithm, &state, time.now) <= *capacity,
            "{state:?}"
        );
        let held: u64 = holders
            .iter()
            .flat_map(|holder| &holder.0)
            .filter(|held| time.passed < held.until)
            .map(|held| held.left)
            .sum();
        let leased = leased_at(algorithm, &state, time.now);
        assert!(
            held <= leased,
            "{held} are held, {leased} leased: {} {state:?}",
            time.now
        );
    }
    grants
}

#[test]
fn holders_and_store_stay_within_bound() {
    each(fastrand::u64(..), 2_000, |rng| {
        let funnel = rng.bool();
        let limit = limit(rng, funnel);
        let grants = play(rng, &[limit], rng.clone().bool());
        assert_within_bound(&grants, limit.1, limit.2);
    });
}

/// With two alternating policies, the larger capacity and the faster rate bound the grants.
#[test]
fn policy_change_with_leased_tokens_creates_no_permits() {
    each(fastrand::u64(..), 2_000, |rng| {
        let funnel = rng.bool();
        let (old, new) = (limit(rng, funnel), limit(rng, funnel));
        let grants = play(rng, &[old, new], false);
        let faster = if u128::from(old.2.thousandths) * u128::from(new.2.micros)
            > u128::from(new.2.thousandths) * u128::from(old.2.micros)
        {
            old.2
        } else {
            new.2
        };
        assert_within_bound(&grants, old.1.max(new.1), faster);
    });
}
