//! Waiting on Redis: one command each time permits become available, and no permit lost with a
//! cancelled waiter.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "how many commands it took is worth knowing")]

mod support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use limiter_core::__private::{LayerWait, WaitLimit, admit_waiting};
use limiter_core::{
    Allowed, Amount, Decision, Limiter, ManualClock, OnStoreFailure, Origin, Policy, Rejection,
};
use limiter_testing::{Proxy, RedisServer};
use support::{KEY, PATIENT, bucket, funnel, left, millis, namespace, secs, window};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

/// Number of executions of the script.
fn script_calls(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text().to_owned();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    line.and_then(|line| line.split_once("calls=")?.1.split_once(',')?.0.parse().ok())
        .unwrap_or_default()
}

async fn ready(builder: limiter_core::RedisBuilder) -> Limiter {
    let limits = builder.namespace(namespace()).build().unwrap();
    limits.ready().await.unwrap();
    limits
}

async fn use_up(limits: &Limiter, policy: &Policy) {
    let all = limits.check(policy, KEY).cost(policy.quota()).await;
    assert!(all.unwrap().is_allowed());
}

async fn remaining(limits: &Limiter, policy: &Policy) -> Amount {
    left(&limits.peek(policy, KEY).await.unwrap())
}

fn waiter(limits: &Limiter, policy: &Policy, cost: u32) -> JoinHandle<Result<Decision, Rejection>> {
    let (limits, policy) = (limits.clone(), policy.clone());
    let wait = async move {
        let acquire = limits.acquire(&policy, KEY).cost(cost);
        acquire.await.map(Allowed::into_decision)
    };
    tokio::spawn(wait)
}

/// Waiters that report their numbers as they are served.
fn crowd(limits: &Limiter, policy: &Policy, count: usize) -> (Vec<JoinHandle<()>>, UnboundedReceiver<usize>) {
    let (served, order) = unbounded_channel();
    let waiters = (0..count).map(|number| {
        let (limits, policy, served) = (limits.clone(), policy.clone(), served.clone());
        tokio::spawn(async move {
            let _ = limits.acquire(&policy, KEY).await.unwrap();
            served.send(number).unwrap();
        })
    });
    (waiters.collect(), order)
}

async fn next(order: &mut UnboundedReceiver<usize>) -> usize {
    let next = tokio::time::timeout(PATIENT, order.recv()).await;
    next.unwrap().unwrap()
}

/// Runs all tasks until they wait for a reply of the server.
async fn run_tasks() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn thousand_waiters_cost_one_command_per_grant() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = ready(Limiter::redis(server.url()).clock(&clock)).await;
    for policy in [
        bucket("b", 1, "100/s"),
        funnel("f", 1, "100/s"),
        window("w", 1, "10ms"),
    ] {
        use_up(&limits, &policy).await;
        let before = script_calls(&server);
        let (_waiters, mut order) = crowd(&limits, &policy, 1_000);
        while script_calls(&server) == before {
            run_tasks().await;
        }
        for expected in 0..1_000 {
            assert!(order.try_recv().is_err(), "{policy}: too early");
            clock.advance(millis(10));
            assert_eq!(next(&mut order).await, expected, "{policy}");
        }
        let script_calls = script_calls(&server) - before;
        assert!(
            script_calls <= 1_010,
            "{policy}: {script_calls} commands for 1,000 grants"
        );
    }
}

/// Results of a thousand waiters on one key at 100 a second, by the server's own clock.
struct Crowd {
    served: u64,
    /// Duration from the use of the whole quota until it is refilled.
    took: Duration,
}

/// After each grant some of the next waiters are cancelled, at most half of all, with or without a
/// query in flight for them.
async fn serve_thousand_waiters(policy: &Policy, some_leave: bool) -> Crowd {
    let server = RedisServer::start();
    let limits = ready(Limiter::redis(server.url())).await;
    let used_up = limits.check(policy, KEY).cost(policy.quota()).await.unwrap();
    assert!(used_up.is_allowed());
    let before = script_calls(&server);
    let (waiters, mut order) = crowd(&limits, policy, 1_000);
    let (mut served, mut gone) = (Vec::new(), HashSet::new());
    // Until all are gone.
    while let Some(number) = tokio::time::timeout(PATIENT, order.recv()).await.unwrap() {
        assert!(
            served.last() < Some(&number),
            "{policy}: {number} is out of order"
        );
        served.push(number);
        for next in [number + 1, number + 8, number + 9] {
            if some_leave && gone.len() < 500 && next < 1_000 {
                waiters.get(next).unwrap().abort();
                gone.insert(next);
            }
        }
    }
    let starves = |number: &usize| !served.contains(number) && !gone.contains(number);
    assert_eq!((0..1_000).find(starves), None, "{policy}");
    let served = u64::try_from(served.len()).unwrap();
    let script_calls = script_calls(&server) - before;
    assert!(
        2 * script_calls <= 3 * served,
        "{policy}: {script_calls} commands for {served} grants"
    );
    let charged = millis(10 * (policy.quota().whole() + served));
    let patient_until = Instant::now() + PATIENT;
    let took = loop {
        let peeked = limits.peek(policy, KEY).cost(0).await.unwrap();
        let whole_at = peeked.decided_at().after(peeked.reset_after());
        let took = whole_at.since(used_up.decided_at());
        // A grant for a waiter that has just left is refunded in the background.
        let is_to_come_back = some_leave && took >= charged + millis(1);
        if !is_to_come_back || Instant::now() > patient_until {
            break took;
        }
    };
    println!("{policy}: {served} grants, {script_calls} commands, all back after {took:?}");
    Crowd { served, took }
}

#[tokio::test]
async fn thousand_waiters_are_served_in_order_by_server_clock() {
    let (bucket, window) = (bucket("b", 10, "100/s"), window("w", 10, "100ms"));
    let both = tokio::join!(
        serve_thousand_waiters(&bucket, false),
        serve_thousand_waiters(&window, false),
    );
    for Crowd { served, took } in <[Crowd; 2]>::from(both) {
        assert_eq!(served, 1_000);
        assert!(took >= secs(10), "{took:?}");
    }
}

/// Charges refill by the server's clock alone: those of the served waiters, and no others.
#[tokio::test]
async fn waiter_cancelled_by_server_clock_leaves_no_charge() {
    let (bucket, funnel) = (bucket("b", 500, "100/s"), funnel("f", 500, "100/s"));
    let both = tokio::join!(
        serve_thousand_waiters(&bucket, true),
        serve_thousand_waiters(&funnel, true),
    );
    for Crowd { served, took } in <[Crowd; 2]>::from(both) {
        let charged = millis(10 * (500 + served));
        assert!(
            (charged..charged + millis(1)).contains(&took),
            "{took:?} for {served}"
        );
        assert!(
            served < 800,
            "too few waiters were cancelled: {served} were served"
        );
    }
}

/// A refund by another process, or a reset by the server, is noticed within seconds, even if the
/// permits were due too late.
#[tokio::test]
async fn waiter_is_woken_by_remote_refund() {
    let (server, clock, shared) = (RedisServer::start(), ManualClock::new(), namespace());
    let limiter = || {
        Limiter::redis(server.url())
            .namespace(&*shared)
            .clock(&clock)
            .build()
    };
    let (limits, elsewhere) = (limiter().unwrap(), limiter().unwrap());
    for policy in [bucket("b", 1_000, "1/h"), window("w", 1_000, "1h")] {
        for lost in [false, true] {
            let reserved = elsewhere.reserve(&policy, KEY).cost(1_000).await.unwrap();
            let waiting = [100, 1].map(|cost| {
                let (limits, policy) = (limits.clone(), policy.clone());
                tokio::spawn(async move {
                    let acquire = limits.acquire(&policy, KEY).cost(cost).timeout(secs(30));
                    acquire.await.map(Allowed::into_decision)
                })
            });
            let before = script_calls(&server);
            while script_calls(&server) == before {
                run_tasks().await;
            }
            if lost {
                server.command(&[
                    "DEL",
                    server
                        .command(&["KEYS", "*"])
                        .items()
                        .first()
                        .unwrap()
                        .text()
                        .as_str(),
                ]);
            } else {
                reserved.settle(10).await.unwrap();
            }
            for waiter in waiting {
                let moved = async {
                    while !waiter.is_finished() {
                        clock.advance(millis(100));
                        tokio::time::sleep(millis(1)).await;
                    }
                };
                let began = clock.now();
                tokio::time::timeout(PATIENT, moved).await.unwrap();
                assert!(waiter.await.unwrap().unwrap().is_allowed(), "{policy}");
                println!("{policy}: served after {:?}", clock.now().since(began));
            }
            limits.reset(&policy, KEY).await.unwrap();
        }
    }
}

/// A queue that is served far too late queries once a second; and once, at the end, for each of the
/// waiters behind, whose timeout reports a retry time.
#[tokio::test]
async fn unsuccessful_waiter_queries_once_a_second() {
    let server = RedisServer::start();
    let limits = ready(Limiter::redis(server.url())).await;
    let policy = bucket("b", 1, "1/h");
    use_up(&limits, &policy).await;
    let (before, began) = (script_calls(&server), Instant::now());
    let wait = || limits.acquire(&policy, KEY).timeout(millis(2_300)).into_future();
    let result = tokio::join!(wait(), wait(), wait());
    for result in <[_; 3]>::from(result) {
        assert!(matches!(result, Err(Rejection::TimedOut { .. })), "{result:?}");
    }
    assert!(began.elapsed() >= millis(2_300));
    assert!(
        script_calls(&server) - before <= 4 + 2,
        "{}",
        script_calls(&server) - before
    );
}

/// A waiter that becomes first long after the denial of its predecessor is not rejected, since the
/// permit is due before its timeout.
#[tokio::test]
async fn outdated_denial_does_not_reject_next_waiter() {
    let limits = Limiter::in_process().build();
    let policy = bucket("b", 1_000, "1000/s");
    // One permit is due after 1.2 seconds.
    limits.charge(&policy, KEY).cost(2_199).await.unwrap();
    let first = limits.acquire(&policy, KEY).timeout(millis(900)).into_future();
    let waits = LayerWait {
        timeout: Some(millis(2_050)),
        wait_limit: &WaitLimit::new(1),
        expects_refunds: false,
    };
    let next = admit_waiting(limits.check(&policy, KEY), Some(waits), None);
    let (first, next) = tokio::join!(first, next);
    assert!(matches!(first, Err(Rejection::TimedOut { .. })), "{first:?}");
    assert!(next.unwrap().is_allowed());
}

/// Half of the waiters are cancelled during the Redis query for them, the first one included.
#[tokio::test]
async fn cancelled_waiters_leave_no_charge() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = ready(Limiter::redis(server.url()).clock(&clock)).await;
    for policy in [
        bucket("b", 1_000, "1000/s"),
        funnel("f", 1_000, "1000/s"),
        window("w", 1_000, "1s"),
    ] {
        use_up(&limits, &policy).await;
        let before = script_calls(&server);
        let (waiters, mut order) = crowd(&limits, &policy, 200);
        while script_calls(&server) == before {
            run_tasks().await;
        }
        server.pause();
        clock.advance(policy.window());
        run_tasks().await;
        for waiter in waiters.iter().step_by(2) {
            waiter.abort();
        }
        run_tasks().await;
        server.resume();
        for expected in (1..200).step_by(2) {
            assert_eq!(next(&mut order).await, expected, "{policy}");
        }
        let granted = Amount::from(900_u32);
        assert_eq!(remaining(&limits, &policy).await, granted, "{policy}");
    }
}

/// All waiters are cancelled during the Redis query for them, so no waiter is left for a grant.
#[tokio::test]
async fn unused_grants_are_refunded() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = ready(Limiter::redis(server.url()).clock(&clock)).await;
    for policy in [bucket("b", 50, 50), funnel("f", 50, 50), window("w", 50, "1s")] {
        let before = script_calls(&server);
        server.pause();
        let (waiters, _order) = crowd(&limits, &policy, 20);
        run_tasks().await;
        for waiter in &waiters {
            waiter.abort();
        }
        run_tasks().await;
        server.resume();
        // The query, and the refund of its grants.
        while script_calls(&server) < before + 2 {
            run_tasks().await;
        }
        assert_eq!(remaining(&limits, &policy).await, policy.quota(), "{policy}");
    }
}

/// A grant that does not fit the next waiter is refunded before that waiter queries.
#[tokio::test]
async fn unusable_grant_is_refunded_to_other_waiter() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = ready(Limiter::redis(server.url()).clock(&clock)).await;
    for policy in [bucket("b", 5, 1), funnel("f", 5, 1), window("w", 5, "5s")] {
        server.pause();
        let first = waiter(&limits, &policy, 2);
        run_tasks().await;
        let other = waiter(&limits, &policy, 5);
        run_tasks().await;
        first.abort();
        run_tasks().await;
        server.resume();
        let other = tokio::time::timeout(PATIENT, other).await.unwrap().unwrap();
        assert!(other.unwrap().is_allowed(), "{policy}: at once");
        assert_eq!(remaining(&limits, &policy).await, Amount::ZERO, "{policy}");
    }
}

/// The timeout of a waiter ends during the Redis query for it: a late grant goes to the next
/// waiter.
#[tokio::test]
async fn late_grant_goes_to_next_waiter() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = ready(Limiter::redis(proxy.url())).await;
    let policy = bucket("p", 1, "1/h");
    let before = script_calls(&server);
    proxy.set_delay(millis(300));
    let hasty = {
        let (limits, policy) = (limits.clone(), policy.clone());
        tokio::spawn(async move {
            let acquire = limits.acquire(&policy, KEY).timeout(millis(50));
            acquire.await.map(Allowed::into_decision)
        })
    };
    run_tasks().await;
    let patient = waiter(&limits, &policy, 1);
    let hasty = hasty.await.unwrap();
    assert!(
        matches!(hasty, Err(Rejection::TimedOut { decision: None, .. })),
        "{hasty:?}"
    );
    let patient = tokio::time::timeout(PATIENT, patient).await.unwrap().unwrap();
    assert!(patient.unwrap().is_allowed());
    assert_eq!(script_calls(&server) - before, 1, "one script call serves both");
}

/// The first waiter has less time than the shared query: the local share decides for it alone, and
/// grants of Redis go to the others.
#[tokio::test]
async fn short_timeout_of_first_does_not_shorten_shared_query() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = ready(Limiter::redis(proxy.url())).await;
    let policy = Policy::token_bucket("p").capacity(100).rate("1/h");
    let policy = policy
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Local)
        .build()
        .unwrap();
    limits.check(&policy, KEY).await.unwrap().require().unwrap();
    let before = script_calls(&server);
    proxy.set_delay(millis(300));
    // The first query is for one waiter, the next for all that arrived during it.
    let first = waiter(&limits, &policy, 1);
    run_tasks().await;
    let hasty = {
        let (limits, policy) = (limits.clone(), policy.clone());
        tokio::spawn(async move {
            let acquire = limits.acquire(&policy, KEY).timeout(millis(900));
            acquire.await.map(Allowed::into_decision)
        })
    };
    run_tasks().await;
    let (waiters, mut order) = crowd(&limits, &policy, 20);
    let first = tokio::time::timeout(PATIENT, first).await.unwrap().unwrap();
    assert_eq!(first.unwrap().origin(), Origin::Redis);
    let hasty = hasty.await.unwrap().unwrap();
    assert_eq!(
        (hasty.is_allowed(), hasty.origin()),
        (true, Origin::LocalFallback)
    );
    for expected in 0..waiters.len() {
        assert_eq!(next(&mut order).await, expected);
    }
    // The grant for the timed-out waiter is refunded.
    while script_calls(&server) - before < 3 {
        run_tasks().await;
    }
    proxy.set_delay(millis(0));
    assert_eq!(remaining(&limits, &policy).await, Amount::from(78_u32));
}

/// The runtime of the query is not driven, so its reply is never received.
#[tokio::test]
async fn undriven_runtime_blocks_others_briefly() {
    let server = RedisServer::start();
    let limits = ready(Limiter::redis(server.url())).await;
    let policy = Policy::token_bucket("p").capacity(5).rate("1/h");
    let policy = policy
        .deadline(millis(200))
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap();
    server.pause();
    let (idle, own) = (std::sync::mpsc::channel::<()>(), (limits.clone(), policy.clone()));
    let (done, is_idle) = tokio::sync::oneshot::channel();
    let (until, idles) = idle;
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (limits, policy) = own;
        let waited =
            runtime.block_on(async { tokio::time::timeout(millis(10), limits.acquire(&policy, KEY)).await });
        assert!(waited.is_err());
        done.send(()).unwrap();
        let _ = idles.recv();
        drop(runtime);
    });
    is_idle.await.unwrap();
    server.resume();
    for _ in 0..2 {
        let second = waiter(&limits, &policy, 1);
        let second = tokio::time::timeout(PATIENT, second).await.unwrap().unwrap();
        assert!(second.unwrap().is_allowed());
    }
    drop(until);
    thread.join().unwrap();
}

/// The runtime of the query ends: the reply is unknown, and another waiter queries for itself.
#[tokio::test]
async fn ended_runtime_blocks_no_other() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = ready(Limiter::redis(server.url()).clock(&clock)).await;
    let policy = bucket("p", 5, 1);
    server.pause();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let first = runtime.spawn({
        let (limits, policy) = (limits.clone(), policy.clone());
        async move { limits.acquire(&policy, KEY).await.map(Allowed::into_decision) }
    });
    // This waiter is first in the queue before the other one arrives.
    let polled = runtime.spawn(async { tokio::task::yield_now().await });
    polled.await.unwrap();
    let second = waiter(&limits, &policy, 1);
    run_tasks().await;
    runtime.shutdown_background();
    assert!(first.await.is_err());
    server.resume();
    let second = tokio::time::timeout(PATIENT, second).await.unwrap().unwrap();
    assert!(second.unwrap().is_allowed());
}

/// During an outage of Redis each waiter follows its policy's failure mode, without waiting for the
/// others.
#[tokio::test]
async fn waiter_in_outage_follows_failure_mode() {
    let server = RedisServer::start();
    let limits = ready(Limiter::redis(server.url())).await;
    let policy = |answer| {
        let policy = Policy::token_bucket("p").capacity(2).rate("1/h");
        policy.on_store_failure(answer).build().unwrap()
    };
    server.kill();
    for answer in [
        OnStoreFailure::Error,
        OnStoreFailure::FailClosed,
        OnStoreFailure::FailOpen,
        OnStoreFailure::Local,
    ] {
        let policy = policy(answer);
        let waiters = [(); 2].map(|()| waiter(&limits, &policy, 1));
        for waiter in waiters {
            let result = tokio::time::timeout(PATIENT, waiter).await.unwrap().unwrap();
            let is_allowed = matches!(&result, Ok(decision) if decision.is_allowed());
            let expected = matches!(answer, OnStoreFailure::FailOpen | OnStoreFailure::Local);
            assert_eq!(is_allowed, expected, "{answer:?}: {result:?}");
        }
    }
}

/// A call that does not wait is decided behind a waiter, and cancelled before the reply.
#[tokio::test]
async fn cancelled_check_behind_waiter_leaves_no_charge() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = ready(Limiter::redis(proxy.url()).replicas(1)).await;
    let policy = window("w", 10, "1h");
    assert_eq!(remaining(&limits, &policy).await, Amount::from(10_u32));
    proxy.set_delay(millis(100));
    let before = script_calls(&server);
    let mut waiting = limits.acquire(&policy, KEY).into_future();
    assert!(tokio::time::timeout(secs(0), &mut waiting).await.is_err());
    let mut check = limits.acquire(&policy, KEY).timeout(secs(0)).into_future();
    // The query of the waiter, the estimate behind it, and the decision.
    let decided = async {
        while script_calls(&server) < before + 3 {
            tokio::time::sleep(millis(1)).await;
        }
    };
    tokio::select! {
        biased;
        result = &mut check => unreachable!("{result:?}"),
        () = decided => {}
    }
    drop(check);
    proxy.set_delay(secs(0));
    assert!(waiting.await.is_ok());
    let started = Instant::now();
    while remaining(&limits, &policy).await != Amount::from(9_u32) && started.elapsed() < secs(10) {
        tokio::time::sleep(millis(1)).await;
    }
    assert_eq!(remaining(&limits, &policy).await, Amount::from(9_u32));
}
