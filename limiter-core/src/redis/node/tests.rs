use std::future::poll_fn;
use std::task::Poll;

use limiter_testing::{Proxy, RedisServer};
use tokio::time::timeout_at;

use crate::algorithm::Mode;
use crate::key::Namespace;
use crate::policy::Policy;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::tls::Certificates;
use crate::redis::node::*;
use crate::redis::script::wire::Operation;
use crate::request::{DecisionRequest, LimitRequest};

/// A node of this server with one connection and one slot for calls.
pub(crate) fn node_of(server: &RedisServer) -> Node {
    node_at(&server.url(), 1)
}

/// A node at this URL with one connection and this number of slots for calls.
pub(crate) fn node_at(url: &str, max_in_flight: u32) -> Node {
    let endpoint = Endpoint::parse(&url.into(), &Certificates::default()).unwrap();
    let settings = NodeSettings {
        connections: 1,
        max_in_flight,
    };
    Node::new(Dialer::To(endpoint), settings, Clock::System)
}

/// Another node may have redirected the call after most of its deadline.
#[tokio::test]
async fn deadline_counts_from_start_of_call() {
    let server = RedisServer::start();
    let node = node_of(&server);
    let empty = wire::call(&[], None, Duration::from_secs(5));
    node.prepare(&empty).await.unwrap();
    server.pause();

    let policy = Policy::token_bucket("p").capacity(1).rate(1).build().unwrap();
    let request = DecisionRequest::new([LimitRequest::new(&policy, "k")], Mode::Charge, false).unwrap();
    let namespace = Namespace::new("", "n");
    let input = InputDraft::new(&request, Operation::Check, &namespace);
    for _ in 0..5 {
        let started = Instant::now().checked_sub(Duration::from_millis(45)).unwrap();
        let wait = CallDeadline::since(started, Duration::from_millis(50));
        let decision = node.decide(BatchPart::default(), &input, &wait);
        assert!(timeout_at(wait.ends().into(), decision).await.is_err());
    }
    let wait = CallDeadline::after(Duration::from_millis(50));
    assert!(node.admit(&wait).is_err(), "five calls timed out");
}

#[tokio::test]
async fn prepared_node_admits_calls_after_an_outage() {
    const DEADLINE: Duration = Duration::from_secs(60);
    let server = RedisServer::start();
    let node = node_of(&server);
    let wait = CallDeadline::after(DEADLINE);
    while node.admit(&wait).is_ok() {
        node.on_timeout(&wait);
    }
    node.prepare(&wire::call(&[], None, DEADLINE)).await.unwrap();
    assert!(node.admit(&wait).is_ok());
}

/// Opens the breaker by calls with this deadline, and starts a probe. Returns such a call.
async fn start_probe(node: &Node, deadline: Duration) -> CallDeadline {
    let started = Instant::now().checked_sub(deadline).unwrap();
    let overdue = CallDeadline::since(started, deadline);
    while node.admit(&overdue).is_ok() {
        node.on_timeout(&overdue);
    }
    // The task that waits for calls.
    drop(node.0.probe_task.lock().take());
    while node.0.probe_task.lock().is_none() {
        assert!(node.admit(&overdue).is_err());
        tokio::task::yield_now().await;
    }
    overdue
}

/// The probe would wait for a minute.
#[tokio::test]
async fn probe_ends_with_node() {
    const DEADLINE: Duration = Duration::from_secs(60);
    let server = RedisServer::start();
    let node = node_of(&server);
    node.prepare(&wire::call(&[], None, Duration::from_secs(5)))
        .await
        .unwrap();
    server.pause();
    let overdue = start_probe(&node, DEADLINE).await;
    tokio::task::yield_now().await;
    assert!(node.admit(&overdue).is_err());
    drop(node);
    let tasks = tokio::runtime::Handle::current();
    let ended = async {
        while tasks.metrics().num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout_at((Instant::now() + DEADLINE / 2).into(), ended)
        .await
        .unwrap();
}

/// The shortest deadline of the five calls opens the breaker, and the last call has a longer one.
#[tokio::test]
async fn opening_fails_only_waiting_calls_that_breaker_rejects() {
    let server = RedisServer::start();
    let node = node_of(&server);
    let [brief, long] = [10, 60_000].map(Duration::from_millis);
    let policy = Policy::token_bucket("p").capacity(9).rate(1).build().unwrap();
    let namespace = Namespace::new("", "n");
    let batch_queue = Arc::clone(&node.local().unwrap().batch_queue);
    let enter = |key: &str, deadline| {
        let request = DecisionRequest::new([LimitRequest::new(&policy, key)], Mode::Charge, false).unwrap();
        let input = InputDraft::new(&request, Operation::Check, &namespace);
        batch_queue.enter(BatchPart::default(), &input, CallDeadline::after(deadline))
    };
    // The batch does not start, since its task does not run.
    let _alone = enter("alone", long);
    let waiting = [("brief", brief), ("long", long)].map(|(key, deadline)| match enter(key, deadline) {
        Admission::Waits(reply) => reply,
        Admission::Alone(_) => unreachable!("the node is busy"),
    });
    for deadline in [brief, brief, brief, brief, long] {
        node.on_timeout(&CallDeadline::after(deadline));
    }
    let admits = |deadline| node.admit(&CallDeadline::after(deadline)).is_ok();
    assert!(!admits(brief) && admits(long));
    let [failed, waits] = waiting.map(|mut reply| reply.try_recv());
    assert!(matches!(failed, Ok(Err(Failure::Unreachable(_)))), "{failed:?}");
    let is_empty = matches!(waits, Err(tokio::sync::oneshot::error::TryRecvError::Empty));
    assert!(is_empty, "{waits:?}");
}

/// The callers of a batch are polled again after the batch has given up.
#[tokio::test]
async fn batch_without_reply_is_timeout_of_late_callers() {
    const DEADLINE: Duration = Duration::from_millis(50);
    let server = RedisServer::start();
    let node = node_at(&server.url(), 8);
    node.prepare(&wire::call(&[], None, Duration::from_secs(5)))
        .await
        .unwrap();
    server.pause();
    let policy = Policy::token_bucket("p").capacity(9).rate(1).build().unwrap();
    let request = DecisionRequest::new([LimitRequest::new(&policy, "k")], Mode::Charge, false).unwrap();
    let namespace = Namespace::new("", "n");
    let input = InputDraft::new(&request, Operation::Check, &namespace);
    let patient = CallDeadline::after(Duration::from_secs(60));
    let mut alone = pin!(node.decide(BatchPart::default(), &input, &patient));
    let waits = [CallDeadline::after(DEADLINE); 5];
    let mut batched = waits
        .each_ref()
        .map(|wait| Box::pin(node.decide(BatchPart::default(), &input, wait)));
    poll_fn(|context| {
        assert!(alone.as_mut().poll(context).is_pending());
        for call in &mut batched {
            assert!(call.as_mut().poll(context).is_pending());
        }
        Poll::Ready(())
    })
    .await;
    // The task of the batch ends.
    let tasks = tokio::runtime::Handle::current().metrics();
    let others = tasks.num_alive_tasks() - 1;
    while tasks.num_alive_tasks() > others {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for call in batched {
        let error = StoreError::from(call.await.unwrap_err());
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");
        assert!(error.may_have_been_charged());
    }
    assert!(node.admit(&waits[0]).is_err(), "five calls timed out");
}

/// The reply to the probe is lost, and its deadline ends in a minute.
#[tokio::test]
async fn probe_leaves_broken_connection_before_its_deadline() {
    const DEADLINE: Duration = Duration::from_secs(60);
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let node = node_at(&proxy.url(), 1);
    node.prepare(&wire::call(&[], None, Duration::from_secs(5)))
        .await
        .unwrap();
    let connection = node.connection(DEADLINE).await.unwrap();
    proxy.set_black_hole(true);
    let overdue = start_probe(&node, DEADLINE).await;
    // The proxy receives the probe.
    tokio::time::sleep(Duration::from_millis(20)).await;
    proxy.set_black_hole(false);
    // As after a failover that Sentinel reports.
    connection.health().upgrade().unwrap().mark_broken();
    drop(connection);
    let began = Instant::now();
    while node.admit(&overdue).is_err() {
        assert!(began.elapsed() < DEADLINE / 4, "the breaker closes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
