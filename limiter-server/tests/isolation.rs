//! The control plane does not delay decisions: 50 sign-ins per second and 20 previews at once
//! beside calls of the gateway, in one process with both parts. Run by `cargo xtask server --all`,
//! which optimises the server; the bound applies there only.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic, and prints its measurements"
)]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use support::admin::{AdminClient, Credentials, policy, with_sqlite};
use support::http;
use support::server::wait_until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::interval;

const CALLS_PER_SECOND: u64 = 500;
const CALLS: usize = 3_000;
const SIGN_INS_PER_SECOND: u64 = 50;
/// An address may try to sign in 30 times at once.
const SIGN_INS_PER_ADDRESS: u32 = 25;
const PREVIEWS: usize = 20;
const ROUNDS: usize = 5;
const BOUND: Duration = Duration::from_millis(1);

/// Sends a request on a connection and reads the status of its answer.
async fn status(connection: &mut TcpStream, request: &str) -> u16 {
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::with_capacity(4_096);
    loop {
        let read = connection.read_buf(&mut answer).await.unwrap();
        assert!(read > 0, "the server closed the connection");
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if length.is_none_or(|length: usize| body.len() >= length) {
            return head.split(' ').nth(1).unwrap().parse().unwrap();
        }
    }
}

fn request(line: &str, host: SocketAddr, headers: &str, body: &str) -> String {
    format!(
        "POST {line} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The 99th percentile of calls that are due at a fixed rate, each from the time when it is due.
async fn gateway_p99(address: SocketAddr) -> Duration {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.set_nodelay(true).unwrap();
    let body = json!({ "policy": "search", "key": "ann" }).to_string();
    let call = request("/v1/check", address, "", &body);
    let mut times = Vec::with_capacity(CALLS);
    let mut due = interval(Duration::from_micros(1_000_000 / CALLS_PER_SECOND));
    for _ in 0..CALLS {
        let at = due.tick().await;
        assert_eq!(status(&mut connection, &call).await, 200);
        times.push(at.elapsed());
    }
    times.sort_unstable();
    times[CALLS * 99 / 100]
}

/// Signs in with unknown names, from changing addresses, until it is aborted.
async fn sign_in(admin: SocketAddr, computed: Arc<AtomicU32>) {
    let mut due = interval(Duration::from_micros(1_000_000 / SIGN_INS_PER_SECOND));
    for attempt in 0_u32.. {
        due.tick().await;
        let computed = Arc::clone(&computed);
        tokio::spawn(async move {
            let number = attempt / SIGN_INS_PER_ADDRESS;
            let [_, _, high, low] = number.to_be_bytes();
            let source = Ipv4Addr::new(127, 7, high, low.saturating_add(1));
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from((source, 0))).unwrap();
            let mut connection = socket.connect(admin).await.unwrap();
            let body = json!({ "user": format!("user-{attempt}"), "password": "correct horse batterz" });
            let call = request("/admin/v1/session", admin, "", &body.to_string());
            if status(&mut connection, &call).await == 401 {
                computed.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// Sends previews at once, every second, until it is aborted.
async fn preview(admin: SocketAddr, cookie: String, previewed: Arc<AtomicU32>) {
    let mut due = interval(Duration::from_secs(1));
    loop {
        due.tick().await;
        for _ in 0..PREVIEWS {
            let (cookie, previewed) = (cookie.clone(), Arc::clone(&previewed));
            tokio::spawn(async move {
                let mut connection = TcpStream::connect(admin).await.unwrap();
                let body = json!({ "toml": policy("search", 9, "shop") }).to_string();
                let headers = format!("cookie: {cookie}\r\nsec-fetch-site: same-origin\r\n");
                let line = "/admin/v1/namespaces/default/policies/search/preview";
                if status(&mut connection, &request(line, admin, &headers, &body)).await == 200 {
                    previewed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sign_ins_and_previews_do_not_delay_decisions() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let text = policy("search", 1_000_000, "shop");
    assert_eq!(root.put_policy("search", 0, &text).status, 200);
    let body = json!({ "policy": "search", "key": "ann" }).to_string();
    let is_in_force =
        || http::post(server.http(), "/v1/check", &[], &body).is_ok_and(|answer| answer.status == 200);
    wait_until(is_in_force, || server.log());
    let Credentials::Session(cookie) = &root.credentials else {
        panic!("a session");
    };
    let (computed, previewed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut differences = Vec::new();
    let started = Instant::now();
    for _ in 0..ROUNDS {
        let alone = gateway_p99(server.http()).await;
        let load = [
            tokio::spawn(sign_in(server.admin(), Arc::clone(&computed))),
            tokio::spawn(preview(server.admin(), cookie.clone(), Arc::clone(&previewed))),
        ];
        let loaded = gateway_p99(server.http()).await;
        load.iter().for_each(tokio::task::JoinHandle::abort);
        println!("p99 {alone:?} alone, {loaded:?} beside sign-ins and previews");
        differences.push(loaded.saturating_sub(alone));
    }
    let (computed, previewed) = (
        computed.load(Ordering::Relaxed),
        previewed.load(Ordering::Relaxed),
    );
    println!(
        "{computed} sign-ins computed and {previewed} previews in {:?}",
        started.elapsed() / 2
    );
    assert!(computed > 0 && previewed > 0);
    differences.sort_unstable();
    let median = differences[ROUNDS / 2];
    println!("difference of the p99: median {median:?}");
    if cfg!(not(debug_assertions)) {
        assert!(median < BOUND, "{differences:?}");
    }
}
