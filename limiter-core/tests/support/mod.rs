//! What the tests share: limiters on every store, under a clock that the test moves.
#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use limiter_core::{Limiter, ManualClock};
use limiter_testing::{RedisCluster, RedisServer};

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

/// Which store a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Standalone,
    Cluster,
}

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
        let namespace = namespace();
        let limits = match kind {
            Kind::Memory => Limiter::in_process().clock(&clock).build(),
            Kind::Standalone => {
                let builder = Limiter::redis(RedisServer::shared().url());
                builder.namespace(&namespace).clock(&clock).build().unwrap()
            }
            Kind::Cluster => {
                let builder = Limiter::redis_cluster(RedisCluster::shared().urls());
                builder.namespace(&namespace).clock(&clock).build().unwrap()
            }
        };
        Self {
            kind,
            limits,
            clock,
            namespace,
        }
    }
}
