//! What holders and store grant together, whatever becomes of what they say to each other.

use crate::algorithm::leased_level::tests::*;

/// What one holder has, of one loan.
pub(super) struct Held {
    /// Under which policy it was lent; a report comes under the same.
    pub(super) limit: usize,
    pub(super) epoch: u32,
    pub(super) left: u64,
    pub(super) spent: u64,
    /// By the time that passes, which no clock changes.
    pub(super) until: u64,
}

#[derive(Default)]
pub(super) struct Holder(pub(super) Vec<Held>);

impl Holder {
    /// Says what became of one loan of a limit, whole or in part.
    pub(super) fn report(&mut self, rng: &mut Rng, limit: usize) -> UsageReport {
        let of_it = self.0.iter_mut().filter(|held| held.limit == limit);
        let mut of_it: Vec<_> = of_it.collect();
        if of_it.is_empty() || rng.u8(0..4) == 0 {
            return UsageReport::default();
        }
        let number = rng.usize(0..of_it.len());
        let held = &mut of_it[number];
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

/// Costs by the time at which they were granted: from any grant on, no more than the capacity and
/// what has come since.
fn assert_kept(grants: &[(u64, u64)], capacity: u64, rate: Rate) {
    let (per, amount) = (i128::from(rate.micros), i128::from(rate.thousandths));
    let (mut sum, mut least) = (0, i128::MAX);
    for (at, cost) in grants {
        let f = sum * per - amount * i128::from(*at);
        least = least.min(f);
        sum += i128::from(*cost);
        assert!(
            f + i128::from(*cost) * per <= i128::from(capacity) * per + least,
            "{} of {per} too much at {at}: {grants:?}",
            f + i128::from(*cost) * per - i128::from(capacity) * per - least
        );
    }
}

/// One history; what was granted, by the time that has passed. `refunds` may be made of what was
/// granted by the store.
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
                let ask = LeaseRequest {
                    cost,
                    want: rng.u64(0..=*capacity),
                    epoch: epochs[limit],
                    report: holder.report(rng, limit),
                };
                // The question is lost, or the answer, or neither.
                let lost = rng.u8(0..12);
                if lost == 0 {
                    continue;
                }
                let (outcome, loan) = algorithm::grant_lease(algorithm, &mut state, &ask, time.now);
                if outcome.fits && cost > 0 {
                    grants.push((time.passed, cost));
                }
                if loan.amount > 0 && lost != 1 {
                    assert!(loan.life > epochs[limit] || limits.len() > 1 && loan.life > 0);
                    holder.0.push(Held {
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
            limits.len() > 1 || outcome.remaining + lent_at(algorithm, &state, time.now) <= *capacity,
            "{state:?}"
        );
        let held: u64 = holders
            .iter()
            .flat_map(|holder| &holder.0)
            .filter(|held| time.passed < held.until)
            .map(|held| held.left)
            .sum();
        let lent = lent_at(algorithm, &state, time.now);
        assert!(
            held <= lent,
            "{held} are held, {lent} lent: {} {state:?}",
            time.now
        );
    }
    grants
}

#[test]
fn holders_and_store_together_keep_the_promise() {
    each(fastrand::u64(..), 2_000, |rng| {
        let funnel = rng.bool();
        let limit = limit(rng, funnel);
        let grants = play(rng, &[limit], rng.clone().bool());
        assert_kept(&grants, limit.1, limit.2);
    });
}

/// Of two policies that take turns, the larger capacity and the faster rate bound what is granted.
#[test]
fn a_policy_that_changes_while_something_is_lent_mints_nothing() {
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
        assert_kept(&grants, old.1.max(new.1), faster);
    });
}
