//! A recorder that is installed after the first decisions receives all later ones.
#![cfg(all(feature = "metrics", feature = "redis"))]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::pin::pin;
use std::task::{Context, Waker};

use limiter_core::{Limiter, OnStoreFailure, Policy};
use limiter_testing::recorder::Ledger;
use support::PATIENT;

#[tokio::test]
async fn late_recorder_receives_later_events() {
    let nowhere = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let node = nowhere.local_addr().unwrap();
    drop(nowhere);
    let in_redis = Limiter::redis(format!("redis://{node}/"))
        .namespace("late")
        .build()
        .unwrap();
    let in_process = Limiter::in_process().build();
    let policy = Policy::token_bucket("late").capacity(1_000_000_000).rate(1);
    let policy = policy.on_store_failure(OnStoreFailure::Error).build().unwrap();

    for _ in 0..10 {
        assert!(in_redis.check(&policy, "k").await.is_err());
        let _ = in_process.check(&policy, "k").await.unwrap();
    }
    let silent = allocation_counter::measure(|| {
        let mut decided = pin!(in_process.check(&policy, "k").into_future());
        assert!(
            decided
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        );
    });
    assert_eq!(silent.count_total, 0, "no metric is created without a recorder");

    let ledger = Ledger::default();
    metrics::set_global_recorder(ledger.clone()).unwrap();
    let shown = async {
        let mut since = 0.0;
        loop {
            let _ = in_process.check(&policy, "k").await.unwrap();
            assert!(in_redis.check(&policy, "k").await.is_err());
            since += 1.0;
            let counted = ledger.get("limiter_decisions_total{policy=late,outcome=allowed,origin=memory}");
            assert_eq!(counted, Some(since));
            // The breaker opened before the recorder was installed.
            if let Some(state) = ledger.get(&format!("limiter_breaker_state{{node={node}}}")) {
                assert!(state >= 1.0);
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENT, shown).await.unwrap();
}
