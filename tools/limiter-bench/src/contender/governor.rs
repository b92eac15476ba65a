//! The crate `governor`, keyed, as it comes.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, RateLimiter};

use super::{DecideNow, Quota};

#[derive(Debug)]
pub(crate) struct Governor(DefaultKeyedRateLimiter<String>);

impl Governor {
    pub(crate) fn new(quota: Quota) -> Self {
        Self(RateLimiter::keyed(governor_quota(quota)))
    }
}

pub(crate) fn governor_quota(quota: Quota) -> governor::Quota {
    let permits = NonZeroU32::new(quota.permits).expect("a quota is not empty");
    let each = Duration::from_secs(quota.seconds) / quota.permits;
    let quota = governor::Quota::with_period(each).expect("a refill time above zero");
    quota.allow_burst(permits)
}

impl DecideNow for Governor {
    fn decide_now(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}
