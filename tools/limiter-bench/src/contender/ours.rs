//! The limiter of this project, through its public API alone.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limiter_core::{Decision, Limiter, Origin, Policy};

use super::{Decide, DecideNow, Mode, Quota, Setup};

/// Long enough for a slow machine, so that Redis makes all decisions.
const DEADLINE: Duration = Duration::from_secs(10);
/// More than an open loop has while the machine is busy, so that Redis makes all decisions.
const MAX_IN_FLIGHT: u32 = 1_000_000;
/// For how long permits are borrowed.
const LEASE: Duration = Duration::from_secs(1);
/// More than any workload has.
const MAX_KEYS: usize = 4_000_000;

/// In Redis, with the settings that a program has that names none.
#[derive(Debug)]
pub(super) struct Ours {
    limiter: Limiter,
    policies: Vec<Policy>,
    keys: Arc<[String]>,
}

impl Ours {
    pub(super) async fn connect(setup: Setup) -> Self {
        let urls = setup.address.limited_user();
        let builder = match setup.address.is_cluster() {
            true => Limiter::redis_cluster(urls),
            false => Limiter::redis(&urls[0]),
        };
        let limiter = builder
            .namespace(&setup.prefix)
            .max_in_flight(MAX_IN_FLIGHT)
            .build()
            .expect("the settings are valid");
        limiter.ready().await.expect("Redis answers");
        let policies =
            (0..setup.limits).map(|place| policy(&format!("limit-{place}"), setup.quota, setup.mode));
        Self {
            limiter,
            policies: policies.collect(),
            keys: setup.keys,
        }
    }
}

impl Decide for Ours {
    async fn decide(&self, key: usize) -> bool {
        let key = self.keys[key].as_str();
        let decision = match self.policies.as_slice() {
            [policy] => self.limiter.check(policy, key).await,
            policies => {
                self.limiter
                    .check_all(policies.iter().map(|policy| (policy, key)))
                    .await
            }
        };
        by_the_store(&decision.expect("Redis decides"))
    }
}

/// Returns whether Redis allowed the call, directly, by a cached denial, or from a lease. Panics if
/// the local fallback decided.
fn by_the_store(decision: &Decision) -> bool {
    let origin = decision.origin();
    assert!(
        matches!(origin, Origin::Redis | Origin::DenyCache | Origin::Lease),
        "decided by {origin:?}: {:?}",
        decision.store_error()
    );
    decision.is_allowed()
}

/// Returns a policy in the mode that a workload's name implies.
pub(crate) fn policy(name: &str, quota: Quota, mode: Mode) -> Policy {
    let Quota { permits, seconds } = quota;
    let built = match mode {
        Mode::Window => Policy::sliding_window(name)
            .limit(permits)
            .window(Duration::from_secs(seconds))
            .deadline(DEADLINE)
            .build(),
        Mode::Bucket | Mode::Leased => {
            let bucket = Policy::token_bucket(name)
                .capacity(permits)
                .rate(format!("{permits}/{seconds}s").as_str())
                .deadline(DEADLINE);
            match mode {
                Mode::Leased => bucket.lease(LEASE).build(),
                _ => bucket.build(),
            }
        }
    };
    built.expect("the policy is valid")
}

/// In process.
#[derive(Debug)]
pub(crate) struct OursInProcess {
    limiter: Limiter,
    policy: Policy,
}

impl OursInProcess {
    pub(crate) fn new(quota: Quota) -> Self {
        Self {
            limiter: Limiter::in_process().max_keys(MAX_KEYS).build(),
            policy: policy("local", quota, Mode::Bucket),
        }
    }
}

impl DecideNow for OursInProcess {
    fn decide_now(&self, key: &String) -> bool {
        let asked = pin!(self.limiter.check(&self.policy, key.as_str()).into_future());
        match asked.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision.expect("memory decides").is_allowed(),
            Poll::Pending => unreachable!("in process, a decision is ready at once"),
        }
    }
}
