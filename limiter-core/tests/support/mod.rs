//! Shared helpers of the tests: limiters on every store, under a clock that the test moves.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod promise;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use limiter_core::{
    Amount, ConfigError, Decision, Key, LimitOutcome, Limiter, ManualClock, OnStoreFailure, Policy, Rate,
    RedisBuilder,
};
use limiter_testing::{RedisCluster, RedisServer, RespValue};

/// A namespace that no other test has.
pub(crate) fn namespace() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    format!(
        "test:{}:{started}:{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// The store of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Standalone,
    Cluster,
}

/// The default settings of a limiter.
const DENY_CACHE: Duration = secs(1);

/// A limiter with the clock that drives it.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) limits: Limiter,
    pub(crate) clock: ManualClock,
    pub(crate) namespace: String,
}

impl Subject {
    pub(crate) fn new(kind: Kind) -> Self {
        Self::with_clock(kind, ManualClock::new())
    }

    pub(crate) fn with_clock(kind: Kind, clock: ManualClock) -> Self {
        Self::with(kind, clock, DENY_CACHE)
    }

    /// A limiter without a deny cache, which sends every call to Redis.
    pub(crate) fn without_deny_cache(kind: Kind, clock: ManualClock) -> Self {
        Self::with(kind, clock, Duration::ZERO)
    }

    /// A limiter with this lifetime of cached denials.
    pub(crate) fn with_deny_cache(kind: Kind, clock: ManualClock, deny_cache: Duration) -> Self {
        Self::with(kind, clock, deny_cache)
    }

    fn with(kind: Kind, clock: ManualClock, deny_cache: Duration) -> Self {
        let namespace = namespace();
        let configured = |builder: RedisBuilder| {
            let builder = builder.namespace(&namespace).clock(&clock);
            builder.deny_cache(deny_cache).build().unwrap()
        };
        let limits = match kind {
            Kind::Memory => Limiter::in_process().clock(&clock).build(),
            Kind::Standalone => configured(Limiter::redis(RedisServer::shared().url())),
            Kind::Cluster => configured(Limiter::redis_cluster(RedisCluster::shared().urls())),
        };
        Self {
            kind,
            limits,
            clock,
            namespace,
        }
    }
}

/// The key of the tests that need only one.
pub(crate) const KEY: &str = "k";

impl Subject {
    /// Two handles of one store: clones in process, separate limiters with Redis.
    pub(crate) fn two_handles(&self) -> [Limiter; 2] {
        let configured = |builder: RedisBuilder| {
            let builder = builder.namespace(&self.namespace).clock(&self.clock);
            builder.build().unwrap()
        };
        let second = match self.kind {
            Kind::Memory => self.limits.clone(),
            Kind::Standalone => configured(Limiter::redis(RedisServer::shared().url())),
            Kind::Cluster => configured(Limiter::redis_cluster(RedisCluster::shared().urls())),
        };
        [self.limits.clone(), second]
    }

    /// Makes one call with a cost of 1.
    pub(crate) async fn call(&self, policy: &Policy) -> Decision {
        self.limits.check(policy, KEY).await.unwrap()
    }

    /// Makes one call with this cost.
    pub(crate) async fn call_of<C>(&self, policy: &Policy, cost: C) -> Decision
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        self.limits.check(policy, KEY).cost(cost).await.unwrap()
    }

    /// Many calls at one moment, each a letter: `P` passed, `D` denied.
    pub(crate) async fn calls(&self, policy: &Policy, count: usize) -> String {
        let mut letters = String::new();
        for _ in 0..count {
            letters.push(if self.call(policy).await.is_allowed() {
                'P'
            } else {
                'D'
            });
        }
        letters
    }

    /// Uses all remaining permits.
    pub(crate) async fn use_up(&self, policy: &Policy) {
        let left = left(&self.peek(policy).await);
        assert!(self.call_of(policy, left).await.is_allowed(), "{policy}");
    }

    pub(crate) async fn peek(&self, policy: &Policy) -> Decision {
        self.limits.peek(policy, KEY).await.unwrap()
    }

    /// The remaining permits, without a charge.
    pub(crate) async fn remaining(&self, policy: &Policy) -> Amount {
        left(&self.peek(policy).await)
    }

    /// Runs a command on the node that owns the key.
    pub(crate) fn command(&self, key: &str, command: &[&str]) -> RespValue {
        match self.kind {
            Kind::Memory => unreachable!("no server keeps `{key}`"),
            Kind::Standalone => RedisServer::shared().command(command),
            Kind::Cluster => {
                let holds = |server: &&RedisServer| server.command(&["KEYS", key]).items().len() == 1;
                let mut nodes = RedisCluster::shared().nodes().iter();
                nodes.find(holds).unwrap().command(command)
            }
        }
    }

    /// The Redis keys with the state of this subject; empty in process.
    pub(crate) fn redis_keys(&self) -> Vec<String> {
        let pattern = format!("{}*", self.namespace);
        let keys = |server: &RedisServer| -> Vec<String> {
            let reply = server.command(&["KEYS", &pattern]);
            reply.items().iter().map(RespValue::text).collect()
        };
        match self.kind {
            Kind::Memory => Vec::new(),
            Kind::Standalone => keys(RedisServer::shared()),
            Kind::Cluster => RedisCluster::shared().nodes().iter().flat_map(keys).collect(),
        }
    }
}

/// The outcome of a decision's only limit.
pub(crate) fn only(decision: &Decision) -> &LimitOutcome {
    let [limit] = decision.limits() else {
        unreachable!("the request has one limit: {decision:?}")
    };
    limit
}

/// The remaining permits under a decision's only limit.
pub(crate) fn left(decision: &Decision) -> Amount {
    only(decision).remaining()
}

/// Returns the retry time of a denied call.
pub(crate) fn wait_of(decision: &Decision) -> Duration {
    assert!(!decision.is_allowed(), "{decision:?}");
    decision.retry_after().unwrap()
}

/// The allowance of a loaded machine in addition to a deadline.
pub(crate) const SLACK: Duration = Duration::from_millis(500);

/// Waits until the recovered server decides a call, at most for this time.
pub(crate) async fn answers_again(limits: &Limiter, within: Duration) {
    let policy = policy(OnStoreFailure::Error);
    let answered = async {
        while limits.check(&policy, KEY).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(within + SLACK, answered).await.unwrap();
}

/// Far above the duration of a decision on a busy machine: a test about permits must not fail for
/// want of time.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);

pub(crate) fn bucket<C, R>(name: &str, capacity: C, rate: R) -> Policy
where
    C: TryInto<Amount, Error: Into<ConfigError>>,
    R: TryInto<Rate, Error: Into<ConfigError>>,
{
    let policy = Policy::token_bucket(name).capacity(capacity).rate(rate);
    policy
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

pub(crate) fn funnel<C, R>(name: &str, capacity: C, rate: R) -> Policy
where
    C: TryInto<Amount, Error: Into<ConfigError>>,
    R: TryInto<Rate, Error: Into<ConfigError>>,
{
    let policy = Policy::funnel(name).capacity(capacity).rate(rate);
    policy
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

pub(crate) fn window(name: &str, limit: u64, window: &str) -> Policy {
    let policy = Policy::sliding_window(name).limit(limit).window(window);
    policy
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

/// One policy of each algorithm: five permits at once, and five permits in five seconds.
pub(crate) fn one_of_each() -> [Policy; 3] {
    [
        bucket("bucket", 5, 1),
        funnel("funnel", 5, 1),
        window("window", 5, "5s"),
    ]
}

pub(crate) const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

pub(crate) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A key of bytes, textual or not.
pub(crate) fn key(bytes: &[u8]) -> Key<'_> {
    bytes.into()
}

/// A bucket of 100, refilled at 1/s, with this failure mode.
pub(crate) fn policy(answer: OnStoreFailure) -> Policy {
    Policy::token_bucket("p")
        .capacity(100)
        .rate(1)
        .on_store_failure(answer)
        .build()
        .unwrap()
}

/// For calls that must succeed, even on a busy machine.
pub(crate) fn patient() -> Policy {
    Policy::token_bucket("p")
        .capacity(100)
        .rate(1)
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

/// A limiter on the server's own clock, in a namespace that no other test has.
pub(crate) fn limiter(url: impl Into<String>) -> Limiter {
    Limiter::redis(url).namespace(namespace()).build().unwrap()
}
