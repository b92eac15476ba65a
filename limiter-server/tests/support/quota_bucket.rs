//! The bucket of an assignment in Envoy.

use limiter_server::gateway::quota::bucket::AssignedBucket;

/// The time to live of an assignment in microseconds.
const TIME_TO_LIVE: u64 = 10_000_000;

/// A bucket as Envoy implements it: it refills continuously, and starts full when its capacity or
/// the tokens of a fill change; a change of the interval alone has no effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct EnvoyBucket {
    bucket: Option<AssignedBucket>,
    /// Millionths of permits, and the parts of the next one.
    pub(crate) tokens: u64,
    parts: u64,
    updated_at: u64,
    ends_at: u64,
    /// Assignments on the way: the time at which they arrive.
    pub(crate) arriving: Vec<(u64, AssignedBucket)>,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
}

impl EnvoyBucket {
    fn refill(&mut self, now: u64) {
        let Some(bucket) = self.bucket else { return };
        let seconds = u64::from(bucket.fill_seconds);
        let parts =
            u128::from(bucket.tokens_per_fill) * u128::from(now - self.updated_at) + u128::from(self.parts);
        self.parts = u64::try_from(parts % u128::from(seconds)).unwrap();
        let full = u64::from(bucket.max_tokens) * 1_000_000;
        self.tokens += u64::try_from(parts / u128::from(seconds)).unwrap();
        if self.tokens >= full {
            (self.tokens, self.parts) = (full, 0);
        }
        self.updated_at = now;
    }

    pub(crate) fn advance(&mut self, now: u64) {
        let (arrived, arriving) = self.arriving.iter().partition(|(at, _)| *at <= now);
        self.arriving = arriving;
        let mut arrived: Vec<(u64, AssignedBucket)> = arrived;
        arrived.sort_by_key(|(at, _)| *at);
        for (at, bucket) in arrived {
            self.end(at);
            self.refill(at);
            if !self.bucket.is_some_and(|known| known.is_same_for_envoy(&bucket)) {
                self.bucket = Some(bucket);
                (self.tokens, self.parts) = (u64::from(bucket.max_tokens) * 1_000_000, 0);
                self.updated_at = at;
            }
            self.ends_at = at + TIME_TO_LIVE;
        }
        self.end(now);
        self.refill(now);
    }

    fn end(&mut self, now: u64) {
        if now >= self.ends_at {
            self.bucket = None;
            self.tokens = 0;
        }
    }

    pub(crate) fn request(&mut self, requests: u64) -> u64 {
        let allowed = requests.min(self.tokens / 1_000_000);
        self.tokens -= allowed * 1_000_000;
        self.allowed += allowed;
        self.denied += requests - allowed;
        allowed
    }
}
