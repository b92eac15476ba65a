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
use support::admin::{AdminClient, Credentials, PASSWORD, policy, with_sqlite};
use support::http;
use support::server::wait_until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::interval;

const CALLS_PER_SECOND: u64 = 500;
/// The calls of one measurement, which takes a second.
const CALLS: usize = 500;
const SIGN_INS_PER_SECOND: u32 = 50;
/// An address may try to sign in 30 times at once.
const SIGN_INS_PER_ADDRESS: u32 = 25;
/// The accounts. Each may be tried 30 times a minute from unknown addresses.
const ACCOUNTS: u32 = 20;
const PREVIEWS: u32 = 20;
/// Measurements alone and under load, in turn. They are short, so that a stall of the machine
/// affects few of them, and the median none.
const ROUNDS: usize = 30;
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

/// The attempts to sign in and the previews, by their results.
#[derive(Debug, Default)]
struct LoadCounts {
    /// Sent attempts.
    offered: AtomicU32,
    /// Attempts whose password was computed.
    computed: AtomicU32,
    /// Attempts that were rejected because too many computations waited.
    busy: AtomicU32,
    /// Sent previews.
    requested: AtomicU32,
    /// Previews that were computed.
    previewed: AtomicU32,
}

/// Signs in with a wrong password, every fifth time with the name of an account, from changing
/// addresses, until it is aborted.
async fn sign_in(admin: SocketAddr, counts: Arc<LoadCounts>) {
    let mut due = interval(Duration::from_micros(1_000_000 / u64::from(SIGN_INS_PER_SECOND)));
    loop {
        due.tick().await;
        let attempt = counts.offered.fetch_add(1, Ordering::Relaxed);
        let counts = Arc::clone(&counts);
        tokio::spawn(async move {
            let number = attempt / SIGN_INS_PER_ADDRESS;
            let [_, _, high, low] = number.to_be_bytes();
            let source = Ipv4Addr::new(127, 7, high, low.saturating_add(1));
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from((source, 0))).unwrap();
            let mut connection = socket.connect(admin).await.unwrap();
            let user = match attempt % 5 {
                0 => format!("account-{}", attempt / 5 % ACCOUNTS),
                _ => format!("unknown-{attempt}"),
            };
            let body = json!({ "user": user, "password": "correct horse batterz" });
            let call = request("/admin/v1/session", admin, "", &body.to_string());
            match status(&mut connection, &call).await {
                401 => counts.computed.fetch_add(1, Ordering::Relaxed),
                503 => counts.busy.fetch_add(1, Ordering::Relaxed),
                status => panic!("{user}: {status}"),
            };
        });
    }
}

/// Sends previews at once, every second, until it is aborted.
async fn preview(admin: SocketAddr, cookie: String, counts: Arc<LoadCounts>) {
    let mut due = interval(Duration::from_secs(1));
    loop {
        due.tick().await;
        for _ in 0..PREVIEWS {
            let (cookie, counts) = (cookie.clone(), Arc::clone(&counts));
            counts.requested.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut connection = TcpStream::connect(admin).await.unwrap();
                let body = json!({ "toml": policy("search", 9, "shop") }).to_string();
                let headers = format!("cookie: {cookie}\r\nsec-fetch-site: same-origin\r\n");
                let line = "/admin/v1/namespaces/default/policies/search/preview";
                if status(&mut connection, &request(line, admin, &headers, &body)).await == 200 {
                    counts.previewed.fetch_add(1, Ordering::Relaxed);
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
    for number in 0..ACCOUNTS {
        let account = json!({ "name": format!("account-{number}"), "password": PASSWORD });
        assert_eq!(root.send("POST", "/users", &[], &account).status, 201);
    }
    let counts = Arc::<LoadCounts>::default();
    let load_of = |number: &AtomicU32| number.load(Ordering::Relaxed);
    // An attempt waits at most five seconds for its computation.
    let is_answered = || {
        let answered = load_of(&counts.computed) + load_of(&counts.busy);
        answered == load_of(&counts.offered) && load_of(&counts.previewed) == load_of(&counts.requested)
    };
    let (mut alone, mut loaded, mut under_load) = (Vec::new(), Vec::new(), Duration::ZERO);
    for _ in 0..ROUNDS {
        alone.push(gateway_p99(server.http()).await);
        let started = Instant::now();
        let load = [
            tokio::spawn(sign_in(server.admin(), Arc::clone(&counts))),
            tokio::spawn(preview(server.admin(), cookie.clone(), Arc::clone(&counts))),
        ];
        loaded.push(gateway_p99(server.http()).await);
        under_load += started.elapsed();
        load.iter().for_each(tokio::task::JoinHandle::abort);
        wait_until(is_answered, || format!("{counts:?}"));
    }
    println!("{counts:?} in {under_load:?}");
    let offered = load_of(&counts.offered);
    let due = under_load.as_secs_f64() * f64::from(SIGN_INS_PER_SECOND);
    assert!(f64::from(offered) > due * 0.9, "{offered} of {due} attempts");
    assert!(load_of(&counts.computed) > 0, "{counts:?}");
    let due = under_load.as_secs_f64() * f64::from(PREVIEWS);
    assert!(f64::from(load_of(&counts.previewed)) > due * 0.9, "{counts:?}");
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[ROUNDS / 2]
    };
    let [alone, loaded] = [&mut alone, &mut loaded].map(median);
    println!("p99, median of {ROUNDS}: {alone:?} alone, {loaded:?} beside sign-ins and previews");
    if cfg!(not(debug_assertions)) {
        // Rejected attempts are cheap: without computations, the load would be none.
        assert!(load_of(&counts.computed) * 2 >= offered, "{counts:?}");
        assert!(loaded.saturating_sub(alone) < BOUND, "{alone:?} {loaded:?}");
    }
}
