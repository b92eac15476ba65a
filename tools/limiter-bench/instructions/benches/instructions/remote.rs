//! The client's side of decisions in Redis, on the thread of the callers.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use gungraun::{library_benchmark, library_benchmark_group};
use limiter_core::{Limiter, Origin, Policy};
use limiter_instructions::DECISIONS;
use limiter_testing::RedisServer;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::setup::{ample, names, spent};

const ONE: usize = 1;
const MANY: usize = 64;
/// Longer than the measurement, which would otherwise query Redis again.
const DENIALS_LAST: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
pub(crate) struct Limits {
    runtime: Runtime,
    limiter: Limiter,
    policy: Policy,
    keys: Arc<[String]>,
    // Dropped last: the limiter must not see an outage.
    _server: RedisServer,
}

impl Limits {
    fn new(policy: Policy) -> Self {
        let server = RedisServer::start();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be built");
        let limiter = {
            let _guard = runtime.enter();
            let builder = Limiter::redis(server.url())
                .namespace("instructions")
                .deny_cache(DENIALS_LAST);
            builder.build().expect("the settings are valid")
        };
        runtime.block_on(limiter.ready()).expect("Redis answers");
        Self {
            runtime,
            limiter,
            policy,
            keys: names(MANY),
            _server: server,
        }
    }

    /// Makes the decisions in rounds of `calls` concurrent calls.
    #[inline]
    fn check(&self, calls: usize, expected: Expected) {
        self.runtime.block_on(async {
            for round in 0..DECISIONS as usize / calls {
                if calls == ONE {
                    decide(&self.limiter, &self.policy, &self.keys[round % MANY], expected).await;
                    continue;
                }
                let mut tasks = JoinSet::new();
                for key in 0..calls {
                    let (limiter, policy) = (self.limiter.clone(), self.policy.clone());
                    let keys = Arc::clone(&self.keys);
                    tasks.spawn(async move { decide(&limiter, &policy, &keys[key], expected).await });
                }
                tasks.join_all().await;
            }
        });
    }
}

async fn decide(limiter: &Limiter, policy: &Policy, key: &str, expected: Expected) {
    let decision = black_box(limiter.check(policy, black_box(key)).await).expect("Redis decides");
    assert_eq!((decision.is_allowed(), decision.origin()), expected);
}

type Expected = (bool, Origin);
const ALLOWED: Expected = (true, Origin::Redis);
const DENIED: Expected = (false, Origin::DenyCache);

fn allowed() -> Limits {
    let limits = Limits::new(ample("allowed"));
    // The second time, all keys exist and all buffers have their final size.
    for _ in 0..2 {
        limits.check(MANY, ALLOWED);
        limits.check(ONE, ALLOWED);
    }
    limits
}

fn denied() -> Limits {
    let limits = Limits::new(spent("denied"));
    limits.runtime.block_on(async {
        for _ in 0..2 {
            for key in &*limits.keys {
                // The first is allowed, the second is denied by Redis.
                let decision = limits.limiter.check(&limits.policy, key.as_str()).await;
                assert_eq!(decision.expect("Redis decides").origin(), Origin::Redis);
            }
        }
    });
    limits.check(ONE, DENIED);
    limits
}

#[library_benchmark]
#[bench::first(allowed())]
#[bench::second(allowed())]
#[bench::third(allowed())]
fn single(limits: Limits) -> Limits {
    limits.check(ONE, ALLOWED);
    limits
}

#[library_benchmark]
#[bench::first(allowed())]
#[bench::second(allowed())]
#[bench::third(allowed())]
fn batch(limits: Limits) -> Limits {
    limits.check(MANY, ALLOWED);
    limits
}

#[library_benchmark]
#[bench::first(denied())]
#[bench::second(denied())]
#[bench::third(denied())]
fn denied_again(limits: Limits) -> Limits {
    limits.check(ONE, DENIED);
    limits
}

library_benchmark_group!(name = redis, benchmarks = [single, batch, denied_again]);
