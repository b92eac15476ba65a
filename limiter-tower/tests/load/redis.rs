//! Permits that Redis counts, for several processes.
#![cfg(unix)]
#![expect(clippy::print_stdout, reason = "a child process reports its progress")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body_util::BodyExt;
use limiter_core::{Limiter, OnStoreFailure, Policy};
use limiter_testing::RedisServer;
use limiter_tower::typestate::WithKey;
use limiter_tower::{ConcurrencyLimit, ConcurrencyLimitLayer, PermitBody, key};
use tower::{Layer, Service, ServiceExt};

use super::{Sent, Streams, poll_once, remaining};
use crate::support::request;

const PATIENT: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_millis(900);

fn replica(url: &str) -> Limiter {
    Limiter::redis(url).namespace("in-flight").build().unwrap()
}

fn policy(max: u32) -> Policy {
    Policy::concurrency("flights")
        .max(max)
        .lease(LEASE)
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

fn layer(limits: &Limiter, max: u32) -> ConcurrencyLimitLayer<WithKey<key::Header>> {
    ConcurrencyLimitLayer::new(limits, policy(max)).key(key::header("x-api-key"))
}

async fn send(service: &mut ConcurrencyLimit<Streams, key::Header>) -> Response<PermitBody<Sent>> {
    service.ready().await.unwrap().call(request("ann")).await.unwrap()
}

async fn await_remaining(limits: &Limiter, expected: u64) {
    let reached = async {
        while remaining(limits, &policy(3), "ann").await != expected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENT, reached).await.unwrap();
}

#[tokio::test]
async fn replicas_share_concurrency() {
    let server = RedisServer::start();
    let replicas = [(); 2].map(|()| replica(&server.url()));
    let mut services = replicas
        .each_ref()
        .map(|limits| layer(limits, 3).layer(Streams::default()));
    let mut held = Vec::new();
    let mut statuses = Vec::new();
    for _ in 0..3 {
        for service in &mut services {
            let response = send(service).await;
            statuses.push(response.status().as_u16());
            held.push(response);
        }
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
    assert!(held.first().unwrap().body().held().unwrap().permit().is_valid());
    held.clear();
    await_remaining(&replicas[0], 3).await;
    assert_eq!(send(&mut services[1]).await.status(), 200);
}

#[tokio::test]
async fn timed_out_wait_names_policy() {
    let server = RedisServer::start();
    let limits = replica(&server.url());
    limits.ready().await.unwrap();
    let mut service = layer(&limits, 1)
        .max_wait(Duration::from_millis(300))
        .layer(Streams::default());
    let _held = send(&mut service).await;
    let waiting = [(); 3].map(|()| service.clone().oneshot(request("ann")));
    let [first, second, third] = waiting;
    let (first, second, third) = tokio::join!(first, second, third);
    for denied in [first, second, third].map(Result::unwrap) {
        assert_eq!(denied.status(), 429);
        assert_eq!(denied.headers()["ratelimit"], r#""flights";r=0"#);
        let problem = denied.into_body().collect().await.unwrap().to_bytes();
        let problem = String::from_utf8_lossy(&problem);
        assert!(
            problem.contains(r#""violated-policies":["flights"]"#),
            "{problem}"
        );
    }
}

/// Cancelled before, during and after the query to Redis.
#[tokio::test]
async fn cancelled_requests_leak_nothing() {
    let server = RedisServer::start();
    let limits = replica(&server.url());
    limits.ready().await.unwrap();
    let mut service = layer(&limits, 3).max_wait(PATIENT).layer(Streams::default());
    for round in 0..50 {
        let mut started = Vec::new();
        for polls in 0..10 {
            let mut response = Box::pin(service.ready().await.unwrap().call(request("ann")));
            for _ in 0..polls % 4 {
                if poll_once(response.as_mut()).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            started.push(response);
        }
        if round % 5 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    await_remaining(&limits, 3).await;
    let all = [
        send(&mut service).await,
        send(&mut service).await,
        send(&mut service).await,
    ];
    assert!(all.iter().all(|response| response.status() == 200));
    drop(all);
    limits.shutdown(PATIENT).await;
    let keys = server.command(&["KEYS", "in-flight|*ann*"]);
    assert_eq!(keys.items().len(), 0);
}

/// Environment variable with the address of Redis for the child.
const HOLDER: &str = "LIMITER_TOWER_TEST_HOLDER";

/// The body of the child process; the parent skips it.
#[tokio::test]
async fn child_process_holds_permit() {
    let Ok(url) = std::env::var(HOLDER) else {
        return;
    };
    let response = send(&mut layer(&replica(&url), 1).layer(Streams::default())).await;
    println!("\n{}", response.status());
    response.body().held().unwrap().permit().lost().await;
}

struct Holder(Child);

impl Holder {
    fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "redis::child_process_holds_permit", "--nocapture"])
            .env(HOLDER, url)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "200 OK"));
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // On Unix this is SIGKILL, which the process cannot handle.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn permits_of_killed_process_expire_with_lease() {
    let server = RedisServer::start();
    let limits = replica(&server.url());
    let holder = Holder::start(&server.url());
    let service = layer(&limits, 1).layer(Streams::default());
    let mut other = service.clone();
    let started = Instant::now();
    while started.elapsed() < 2 * LEASE {
        assert_eq!(
            send(&mut other).await.status(),
            429,
            "the child is alive and renews its lease"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(holder);
    let killed = Instant::now();
    assert_eq!(send(&mut other).await.status(), 429);
    let patient = layer(&limits, 1).max_wait(PATIENT).layer(Streams::default());
    let response = patient.oneshot(request("ann")).await.unwrap();
    assert_eq!(response.status(), 200);
    // A third of the lease may be over when it is renewed.
    let waited = killed.elapsed();
    assert!(
        waited > LEASE / 2 && waited < LEASE + Duration::from_secs(2),
        "{waited:?}"
    );
}

/// A handler that continues without Redis may exceed the limit; its permit reports that.
#[tokio::test]
async fn lost_permit_is_reported_by_body() {
    let server = RedisServer::start();
    let limits = replica(&server.url());
    let response = send(&mut layer(&limits, 1).layer(Streams::default())).await;
    let permit = response.body().held().unwrap().permit();
    assert!(permit.is_valid());
    server.kill();
    tokio::time::timeout(PATIENT, permit.lost()).await.unwrap();
    assert!(!permit.is_valid());
}

#[tokio::test]
async fn outage_follows_failure_mode_of_policy() {
    let server = RedisServer::start();
    let limits = replica(&server.url());
    limits.ready().await.unwrap();
    let send = async |on_store_failure| {
        let policy = Policy::concurrency("flights")
            .max(1)
            .deadline(Duration::from_millis(200))
            .on_store_failure(on_store_failure)
            .build()
            .unwrap();
        let service = ConcurrencyLimitLayer::new(&limits, policy)
            .key(key::global())
            .layer(Streams::default());
        service.oneshot(Request::new(String::new())).await.unwrap()
    };
    server.kill();
    assert_eq!(send(OnStoreFailure::Error).await.status(), 503);
    assert_eq!(send(OnStoreFailure::FailClosed).await.status(), 503);
    assert_eq!(send(OnStoreFailure::FailOpen).await.status(), 200);
    let (first, second) = (
        send(OnStoreFailure::Local).await,
        send(OnStoreFailure::Local).await,
    );
    assert_eq!(
        (first.status().as_u16(), second.status().as_u16()),
        (200, 429),
        "its share is 1"
    );
}
