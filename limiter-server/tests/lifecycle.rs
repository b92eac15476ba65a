//! Edits of the policy file without a signal, leases, calls and unfinished requests at the end, and
//! listeners for other machines.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use limiter_server::gateway::envoy::messages::{Code, RateLimitRequest};
use limiter_testing::RedisServer;
use limiter_testing::tls::Authority;
use prost::Message as _;
use support::access::{self, TOKEN, entry};
use support::calls::{limit, post, remaining, succeed};
use support::descriptors::{DescriptorExt as _, descriptor, request};
use support::http;
use support::policies::search_per_hour;
use support::rls::{RlsClient, frame};
use support::server::{Directory, Server, wait_until};
use support::sockets;

fn capacity(server: &Server) -> u64 {
    let peeked = succeed(server, "/v1/peek", &limit("search", "ann", 0));
    peeked["limits"][0]["limit"].as_u64().unwrap()
}

/// A request with a descriptor of this cost.
fn search(hits: u64) -> RateLimitRequest {
    request(&[descriptor("search", "ann").hits(hits)])
}

#[test]
fn edited_file_applies_without_a_signal() {
    let server = Server::with_token(&search_per_hour(10), &[]);
    assert_eq!(capacity(&server), 10);
    succeed(&server, "/v1/check", &limit("search", "ann", 4));
    server.directory().write("policies.toml", &search_per_hour(25));
    wait_until(|| capacity(&server) == 25, || server.log());
    assert_eq!(remaining(&server, "search", "ann"), 21, "the usage is kept");
}

#[test]
fn invalid_edit_changes_nothing() {
    let server = Server::with_token(&search_per_hour(10), &[]);
    succeed(&server, "/v1/check", &limit("search", "ann", 4));
    let client = RlsClient::connect(server.grpc()).with_token(TOKEN);
    for (signals, edit, reason) in [
        // One policy of the text is valid, and may not apply alone.
        (
            true,
            "[policy.search]\nalgorithm = 'sliding_window'\nlimit = 99\nwindow = '1h'\n[policy.other]\nalgorithm = 'leaky'\n",
            "policy.other.algorithm",
        ),
        (
            false,
            "[policy.search]\nalgorithm = 'sliding_window'\nlimit = 99\nwindow = '1h'\n[[rule]]\nmatch = []\npolicy = 'search'\n",
            "rule[0]",
        ),
    ] {
        server.directory().write("policies.toml", edit);
        if signals {
            server.signal("HUP");
        }
        server.wait_for_log(reason);
        assert!(server.log().contains("policy file rejected"), "{}", server.log());
        assert_eq!(capacity(&server), 10, "{reason}");
        assert_eq!(remaining(&server, "search", "ann"), 6, "{reason}");
        assert_eq!(post(&server, "/v1/check", &limit("search", "ann", 7)).status, 429);
        let status = &client.decide(&search(0)).unwrap().statuses[0];
        let limit = status.current_limit.as_ref().expect("the rules are kept");
        assert_eq!(limit.requests_per_unit, 10, "{reason}");
    }
    server.directory().write("policies.toml", &search_per_hour(25));
    wait_until(|| capacity(&server) == 25, || server.log());
}

/// The remaining permits stay whole numbers for the time of a test.
const LEASED: &str = "[policy.search]\nalgorithm = 'token_bucket'\ncapacity = 10000\nrate = '1/d'\n\
                      deadline = '30s'\n";
/// The log line of an end with requests in flight.
const UNFINISHED: &str = "requests were still in flight at the end of the drain time";

/// A server that has leased permits and used some of them: their number, and a server without
/// leases on the same Redis.
fn start_with_lease(redis: &RedisServer, args: &[&str]) -> (Server, u64, Server) {
    let url = redis.url();
    let args = [&["--redis", &url], args].concat();
    let first = Server::with_token(&format!("{LEASED}lease = '60s'\n"), &args);
    let second = Server::with_token(LEASED, &["--redis", &url]);
    let mut used = 0;
    let is_leased = || {
        used += 1;
        succeed(&first, "/v1/check", &limit("search", "ann", 1))["origin"] == "lease"
    };
    wait_until(is_leased, || first.log());
    let left = remaining(&second, "search", "ann");
    assert!(left < 10_000 - used, "{left} left of which {used} are used");
    (first, used, second)
}

#[test]
fn terminated_server_returns_its_leases() {
    let redis = RedisServer::start();
    let (first, used, second) = start_with_lease(&redis, &[]);
    let (status, log) = first.stop();
    assert!(status.success(), "{log}");
    // Before the leases end by themselves.
    assert_eq!(remaining(&second, "search", "ann"), 10_000 - used, "{log}");
}

/// Ends a server with an unfinished request and a drain time of 5 seconds.
fn stop_within_the_drain_time(server: Server) -> String {
    let begun = Instant::now();
    let (status, log) = server.stop();
    let took = begun.elapsed();
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains(UNFINISHED), "{log}");
    let expected = Duration::from_secs(3)..Duration::from_secs(15);
    assert!(expected.contains(&took), "{took:?}: {log}");
    log
}

#[test]
fn unfinished_request_ends_with_the_drain_time_and_keeps_no_lease() {
    let redis = RedisServer::start();
    let args = ["--drain", "5s", "--read-timeout", "60s"];
    let (first, used, second) = start_with_lease(&redis, &args);
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n";
    let bearer = access::bearer(TOKEN);
    let part = format!("{head}authorization: {bearer}\r\n\r\n{{");
    let mut unfinished = sockets::send(first.http(), part);
    // The return of the lease then takes two round trips, for which the server has to wait.
    redis.command(&["SCRIPT", "FLUSH"]);
    let log = stop_within_the_drain_time(first);
    assert_eq!(sockets::read_to_end(&mut unfinished), "");
    assert_eq!(remaining(&second, "search", "ann"), 10_000 - used, "{log}");
}

#[test]
fn call_that_waits_for_redis_ends_with_the_drain_time() {
    let redis = RedisServer::start();
    let args = ["--redis", &redis.url(), "--drain", "5s"];
    let server = Server::with_token(&format!("{LEASED}on_store_failure = 'error'\n"), &args);
    let search = limit("search", "ann", 1);
    wait_until(
        || post(&server, "/v1/check", &search).status == 200,
        || server.log(),
    );
    let in_flight = || server.metric("limiter_server_calls_in_flight ");
    wait_until(|| in_flight() == 0.0, || server.log());
    redis.pause();
    let body = search.to_string();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: {}\r\n\
         content-length: {}\r\n\r\n{body}",
        access::bearer(TOKEN),
        body.len()
    );
    let mut waiting = sockets::send(server.http(), request);
    wait_until(|| in_flight() == 1.0, || server.log());
    stop_within_the_drain_time(server);
    assert_eq!(sockets::read_to_end(&mut waiting), "");
    redis.resume();
}

#[test]
fn unfinished_request_of_the_admin_listener_ends_with_the_drain_time() {
    let directory = Directory::new();
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let server = Server::start(
        directory,
        &[
            "--database",
            &url,
            "--admin",
            "127.0.0.1:0",
            "--drain",
            "5s",
            "--read-timeout",
            "60s",
        ],
    );
    let is_ready = || http::get(server.admin(), "/healthz", &[]).is_ok_and(|answer| answer.status == 200);
    wait_until(is_ready, || server.log());
    let mut unfinished = sockets::send(server.admin(), "GET /healthz HTTP/1.1\r\nhost: localhost\r\n");
    // The listener accepts connections in order, so the request is read before these answers.
    assert!((0..3).all(|_| is_ready()));
    stop_within_the_drain_time(server);
    assert_eq!(sockets::read_to_end(&mut unfinished), "");
}

#[test]
fn ending_server_is_not_ready_and_finishes_calls_in_flight() {
    let server = Server::with_token(&search_per_hour(10), &["--drain", "20s"]);
    let client = RlsClient::connect(server.grpc()).with_token(TOKEN);
    assert!(client.is_serving("envoy.service.ratelimit.v3.RateLimitService"));
    assert_eq!(server.get("/readyz").status, 200);
    // A request on each listener that is incomplete when the shutdown begins.
    let mut readiness = sockets::send(server.http(), "GET /readyz HTTP/1.1\r\nhost: localhost\r\n");
    let body = limit("search", "bob", 1).to_string();
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: {}\r\n\
         content-length: {}\r\n\r\n",
        access::bearer(TOKEN),
        body.len()
    );
    let mut check = sockets::send(server.http(), head);
    // The listener accepts connections in order, so both are accepted after this answer.
    assert_eq!(server.get("/readyz").status, 200);
    let mut health = RlsClient::connect(server.grpc()).watch_health("");
    assert_eq!(health.next(), Some(true));
    let message = frame(&search(1).encode_to_vec());
    let (first, rest) = message.split_at(6);
    let answer = client.send_around([first, rest], || {
        server.signal("TERM");
        server.wait_for_log("shutting down");
        check.write_all(body.as_bytes()).unwrap();
        readiness.write_all(b"\r\n").unwrap();
    });
    let answer = answer.expect("a call in flight is decided");
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!([health.next(), health.next()], [Some(false), None]);
    let text = sockets::read_to_end(&mut readiness);
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    assert!(text.contains("shutting down"), "{text}");
    let text = sockets::read_to_end(&mut check);
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    // Their runtimes are not driven any more, so they would not answer the last ping.
    drop((client, health));
    let begun = Instant::now();
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    assert!(!log.contains("still in flight"), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{log}");
}

#[test]
fn open_stream_of_reflection_does_not_delay_the_end() {
    let server = Server::with_policies(&search_per_hour(10), &["--drain", "25s"]);
    let client = RlsClient::connect(server.grpc());
    let mut answers = client.open_reflection();
    let begun = Instant::now();
    server.signal("TERM");
    let status = client.end_of(&mut answers);
    // The service can end its stream first.
    let ends = [tonic::Code::Unavailable, tonic::Code::Ok];
    assert!(ends.contains(&status.code()), "{status:?}");
    let (ended, log) = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| server.stop());
        // The connection answers the pings of the server.
        while !stopped.is_finished() {
            client.run_for(Duration::from_millis(10));
        }
        stopped.join().unwrap()
    });
    assert!(ended.success(), "{log}");
    assert!(!log.contains(UNFINISHED), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{log}");
}

/// A server with TLS on all listeners.
fn start_with_tls(args: &[&str]) -> Server {
    let directory = Directory::new();
    let identity = Authority::new().server(&["localhost"]);
    directory.write("server.pem", &identity.certificate);
    directory.write("server.key", &identity.key);
    directory.write("policies.toml", &search_per_hour(10));
    let usual = ["--policies", "policies.toml", "--resp", "127.0.0.1:0"];
    let tls = ["--tls-cert-file", "server.pem", "--tls-key-file", "server.key"];
    Server::start(directory, &[&usual, &tls, args].concat())
}

#[test]
fn unfinished_handshake_does_not_delay_the_end() {
    let server = start_with_tls(&["--drain", "25s", "--read-timeout", "60s"]);
    let addresses = [server.http(), server.grpc(), server.resp()];
    // The first byte of a handshake.
    let _silent = addresses.map(|address| sockets::send(address, [22]));
    let begun = Instant::now();
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    assert!(!log.contains(UNFINISHED), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{log}");
}

/// Opens a pipe without waiting for its reader: an error if there is none.
const WITHOUT_WAITING: i32 = 0o4000;

/// The files of TLS are read by threads that may block.
#[test]
fn file_that_cannot_be_read_does_not_delay_the_end() {
    end_without_file(start_with_tls(&["--drain", "5s"]), "server.key", &[]);
}

/// SIGHUP reads the policy file, too.
#[test]
fn policy_file_that_cannot_be_read_does_not_delay_the_end() {
    let server = Server::with_policies(&search_per_hour(10), &["--drain", "5s"]);
    end_without_file(server, "policies.toml", &["HUP"]);
}

/// Replaces a file by a pipe without bytes, sends these signals and ends the server.
fn end_without_file(server: Server, file: &str, signals: &[&str]) {
    let pipe = server.directory().path().join(file);
    std::fs::remove_file(&pipe).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // The reader waits for bytes until the writer is closed.
    let mut writer: Option<File> = None;
    let opens = || {
        let opened = OpenOptions::new()
            .write(true)
            .custom_flags(WITHOUT_WAITING)
            .open(&pipe);
        writer = opened.ok();
        writer.is_some()
    };
    wait_until(opens, || server.log());
    signals.iter().for_each(|name| server.signal(name));
    let begun = Instant::now();
    let (took, (status, log)) = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| server.stop());
        while !stopped.is_finished() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let took = begun.elapsed();
        drop(writer);
        (took, stopped.join().unwrap())
    });
    assert!(status.success(), "{log}");
    assert!(took < Duration::from_secs(15), "{took:?}: {log}");
}

#[test]
fn permitted_listener_serves_other_machines_with_a_warning() {
    let any = ["--http", "0.0.0.0:0", "--grpc", "0.0.0.0:0"];
    let server = Server::with_policies(
        &search_per_hour(10),
        &[&any[..], &["--allow-unauthenticated"]].concat(),
    );
    for setting in ["http", "grpc"] {
        let line = format!("setting=\"{setting}\"");
        let log = server.log();
        let warning = log.lines().find(|of| of.contains(&line)).expect("a warning");
        assert!(
            warning.contains("WARN")
                && warning.contains("accepts unauthenticated clients from other machines"),
            "{warning}"
        );
    }
    let address = (std::net::Ipv4Addr::LOCALHOST, server.http().port()).into();
    let search = limit("search", "ann", 1).to_string();
    assert_eq!(
        http::post(address, "/v1/check", &[], &search).unwrap().status,
        200
    );
    // Changes need credentials nevertheless.
    let refused = http::post(address, "/v1/refund", &[], &search).unwrap();
    assert_eq!(refused.status, 401, "{}", refused.body);
    drop(server);

    // With a client there is no warning of unauthenticated clients.
    let server = Server::with_settings(&search_per_hour(10), &entry("test", TOKEN, &["check:*"]), &any);
    let log = server.log();
    assert!(!log.contains("unauthenticated"), "{log}");
    assert!(log.contains("receives tokens in plain text"), "{log}");
    let address = (std::net::Ipv4Addr::LOCALHOST, server.http().port()).into();
    let refused = http::post(address, "/v1/check", &[], &search).unwrap();
    assert_eq!(refused.status, 401, "{}", refused.body);
    assert!(refused.json()["detail"].is_string());
}
