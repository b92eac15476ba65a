//! Denials of a penalty, charged to a sliding window in Redis at the moments of the denials.
//!
//! Replicas report their denials late and in any order. A report names the ages of the denials,
//! because the clocks of replica and server need not agree, and `lua/token_lease.lua` inserts them
//! into the ring of the window in order.
//!
//! Invariant: the key is blocked if the blocking number of denials lies within one window, even if
//! the first of them have left it at the time of the report. Tests: below, against a sorted list;
//! `tests/penalties.rs`.

use crate::algorithm::{LeaseRequest, Mode};
use crate::error::StoreError;
use crate::penalty::denial_counts::DatedDenials;
use crate::redis::RedisStore;
use crate::redis::script::reply::LimitReply;
use crate::redis::token_lease::leased_limit::{self, LeaseScriptReply};
use crate::request::DecisionRequest;
use crate::units::micros_ceil;

const CHARGE_DATED: u8 = 4;

impl RedisStore {
    /// Counts denials in the window of a penalty, which is the request's only limit. Returns the
    /// number of further denials until the key has to be blocked; 0 if the blocking number lies
    /// within one window, even if the first of them have left it by now.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the denials are counted.
    pub(crate) async fn count_denials(
        &self,
        counting: &DecisionRequest<'_>,
        denials: &[DatedDenials],
    ) -> Result<u64, StoreError> {
        let [limit] = &*counting.limits else {
            return Ok(u64::MAX);
        };
        let (algorithm, now) = (limit.policy.algorithm(), self.clock.now());
        let request = LeaseRequest {
            want: denials.len() as u64,
            ..LeaseRequest::default()
        };
        let mut plan = leased_limit::plan(CHARGE_DATED, algorithm, &request, self.clock.injected());
        for denials in denials {
            // Ages, since the server's clock need not agree with this process's.
            let age = micros_ceil(now.since(denials.at));
            plan.extend_from_slice(&age.to_le_bytes());
            plan.extend_from_slice(&denials.number.to_le_bytes());
        }
        let key = leased_limit::key(limit, &self.namespace);
        let call = leased_limit::call(key, plan, limit.policy.deadline());
        let reply = self.route.run(&call).await?;
        let reply = LeaseScriptReply::read(&reply)?;
        let outcome =
            LimitReply::read(reply.piece, algorithm)?.outcome(algorithm, 0, 0, reply.now, Mode::Peek);
        Ok(if reply.granted == 1 { 0 } else { outcome.remaining })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::Key;
    use crate::policy::Policy;
    use crate::redis::token_lease::leased_limit::tests::store;
    use crate::support::clock::ManualClock;
    use crate::units::Timestamp;

    /// The window as a list of moments, oldest first.
    #[derive(Debug, Default)]
    struct Model(Vec<u64>);

    impl Model {
        fn count(&mut self, denials: &[DatedDenials], (limit, window): (usize, u64), now: u64) -> u64 {
            let first = denials[0].at.as_micros();
            let moments = denials
                .iter()
                .flat_map(|denials| vec![denials.at.as_micros(); denials.number as usize]);
            self.0.extend(moments);
            self.0.sort_unstable();
            let fills = |times: &[u64]| times[limit - 1] >= first && times[limit - 1] - times[0] < window;
            let fills = self.0.windows(limit).any(fills);
            let excess = self.0.len().saturating_sub(limit);
            self.0.drain(..excess);
            let live = self.0.iter().filter(|at| **at + window > now).count();
            if fills { 0 } else { (limit - live) as u64 }
        }
    }

    /// A policy that blocks a key after `number` denials in two seconds.
    fn penalized(number: usize) -> Policy {
        Policy::token_bucket("p")
            .capacity(1)
            .rate(1)
            .penalty(&*format!("{number} in 2s: 1m"))
            .deadline(Duration::from_secs(30))
            .build()
            .unwrap()
    }

    #[tokio::test]
    async fn late_report_finds_denials_of_its_window() {
        let clock = ManualClock::new();
        let store = store(&clock);
        let (policy, key) = (penalized(2), Key::from("k"));
        let counting = DecisionRequest::counting(policy.penalty_limits().unwrap(), &key, 0);
        let mut left = Vec::new();
        for age in [0, 1_000_000] {
            clock.advance(Duration::from_millis(2_100));
            let at = Timestamp::from_micros(clock.now().as_micros() - age);
            let denials = [DatedDenials { at, number: 1 }];
            left.push(store.count_denials(&counting, &denials).await.unwrap());
        }
        assert_eq!(left, [1, 0], "the denials are 1.1 seconds apart");
    }

    /// Replicas report late and in any order, and the ring wraps around.
    #[tokio::test]
    async fn dated_denials_equal_sorted_list() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..60 {
            let clock = ManualClock::new();
            let store = store(&clock);
            let (number, window) = (random.usize(1..40), 2_000_000);
            let policy = penalized(number);
            let key = Key::from("k");
            let counting = DecisionRequest::counting(policy.penalty_limits().unwrap(), &key, 0);
            let mut model = Model::default();
            for step in 0..60 {
                clock.advance(Duration::from_micros(random.u64(..2_400_000 / number as u64)));
                let now = clock.now().as_micros();
                let mut moments: Vec<u64> = (0..random.usize(1..4))
                    .map(|_| now - random.u64(..1_000_000))
                    .collect();
                moments.sort_unstable();
                let denials: Vec<DatedDenials> = moments
                    .iter()
                    .map(|at| DatedDenials {
                        at: Timestamp::from_micros(*at),
                        number: random.u32(1..3),
                    })
                    .collect();
                let expected = model.count(&denials, (number, window), now);
                let left = store.count_denials(&counting, &denials).await.unwrap();
                assert_eq!(left, expected, "seed {seed}, round {round}, step {step}");
                if left == 0 && random.bool() {
                    store.reset(&counting).await.unwrap();
                    model = Model::default();
                }
            }
        }
    }
}
