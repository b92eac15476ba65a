//! Peeks, refunds, resets, settlements, lifetimes of ids, delays and failures over HTTP, on limits
//! in the process and in Redis.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use limiter_testing::RedisServer;
use serde_json::json;
use support::access::TOKEN;
use support::calls::{limit, post, remaining, succeed};
use support::descriptors::{descriptor, request};
use support::resp::encode;
use support::rls::RlsClient;
use support::server::{Server, wait_until};
use support::sockets;
use support::stores::{on_each_store, redis_args};
use support::time::now_ms;

/// A loaded machine must not decide the outcome of a test, so the deadlines are long.
const POLICIES: &str = r#"
[policy.search]
algorithm = "sliding_window"
limit = 10
window = "1h"
deadline = "30s"

[policy.daily]
algorithm = "token_bucket"
capacity = 3
rate = "1/d"
deadline = "30s"

[policy.export]
algorithm = "concurrency"
max = 1
lease = "2s"
deadline = "30s"

[policy.paced]
algorithm = "funnel"
capacity = 3
rate = "1/m"
paced = true
deadline = "30s"
"#;
const LEASE: Duration = Duration::from_secs(2);

/// A server with the arguments of a store.
fn start(store: &[&str]) -> Server {
    Server::with_token(POLICIES, store)
}

#[test]
fn peek_charges_nothing_and_reports_a_denial() {
    on_each_store(start, |server| {
        for _ in 0..3 {
            let peeked = post(server, "/v1/peek", &limit("search", "ann", 10));
            assert_eq!(peeked.status, 200, "{}", peeked.body);
            assert_eq!(peeked.json()["limits"][0]["remaining"], 10);
            assert!(peeked.header("ratelimit").unwrap().contains("r=10;"));
        }
        succeed(server, "/v1/check", &limit("search", "ann", 8));
        let denied = post(server, "/v1/peek", &limit("search", "ann", 3));
        assert_eq!(denied.status, 429, "{}", denied.body);
        assert_eq!(denied.header("content-type"), Some("application/problem+json"));
        let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
        assert!((3_500..=3_600).contains(&wait), "{wait}");
        let problem = denied.json();
        assert_eq!(
            (&problem["allowed"], &problem["policy"]),
            (&json!(false), &json!("search"))
        );
        assert_eq!(problem["limits"][0]["remaining"], 2);
        // A limit that denies makes the whole peek a denial.
        let both = json!({"limits": [limit("daily", "ann", 1), limit("search", "ann", 3)]});
        assert_eq!(post(server, "/v1/peek", &both).status, 429);
        assert_eq!(remaining(server, "search", "ann"), 2);
        assert_eq!(remaining(server, "daily", "ann"), 3);
        succeed(server, "/v1/check", &limit("search", "ann", 2));
    });
}

#[test]
fn refund_returns_permits_up_to_the_usage() {
    on_each_store(start, |server| {
        succeed(server, "/v1/check", &limit("search", "ann", 8));
        succeed(server, "/v1/check", &limit("daily", "bob", 2));
        assert_eq!(
            succeed(server, "/v1/refund", &limit("search", "ann", 3)),
            json!({})
        );
        assert_eq!(remaining(server, "search", "ann"), 5);
        assert_eq!(post(server, "/v1/check", &limit("search", "ann", 6)).status, 429);
        succeed(server, "/v1/check", &limit("search", "ann", 5));
        let both = json!({"limits": [limit("search", "ann", 1_000), limit("daily", "bob", 1)]});
        succeed(server, "/v1/refund", &both);
        assert_eq!(remaining(server, "search", "ann"), 10, "no permits are created");
        assert_eq!(remaining(server, "daily", "bob"), 2);
        succeed(server, "/v1/check", &limit("search", "ann", 10));
    });
}

#[test]
fn amount_that_a_limit_cannot_count_changes_no_limit() {
    on_each_store(start, |server| {
        let both = |key| json!({"limits": [limit("daily", key, 2), limit("search", "bob", 2)]});
        succeed(server, "/v1/check", &both("ann"));
        let half = json!({"policy": "search", "key": "bob", "cost": 0.5});
        let refund = json!({"limits": [limit("daily", "ann", 1), half]});
        let refused = post(server, "/v1/refund", &refund);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert_eq!(remaining(server, "daily", "ann"), 1);
        let id = succeed(server, "/v1/reserve", &both("eve"))["id"].clone();
        let refused = post(server, "/v1/settle", &json!({"id": id, "actuals": [0, 0.5]}));
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert_eq!(remaining(server, "daily", "eve"), 1);
        succeed(server, "/v1/settle", &json!({"id": id, "actuals": [1, 1]}));
        assert_eq!(remaining(server, "daily", "eve"), 2);
        assert_eq!(remaining(server, "search", "bob"), 7);
    });
}

#[test]
fn failed_refund_of_several_limits_names_the_number_of_refunded_ones() {
    let redis = RedisServer::start();
    let server = start(&redis_args(&redis.url()));
    let all =
        json!({"limits": [limit("search", "ann", 4), limit("daily", "bad", 2), limit("search", "eve", 4)]});
    succeed(&server, "/v1/check", &all);
    let keys = redis.command(&["KEYS", "*daily*bad*"]);
    let key = keys.items().first().expect("a key").text();
    redis.command(&["DEL", &key]);
    redis.command(&["LPUSH", &key, "x"]);
    let failed = post(&server, "/v1/refund", &all);
    assert_eq!(failed.status, 503, "{}", failed.body);
    assert_eq!(failed.json()["refunded"], 1, "{}", failed.body);
    let left = ["ann", "eve"].map(|key| remaining(&server, "search", key));
    assert_eq!(left, [10, 6]);
}

#[test]
fn client_that_leaves_does_not_refund_a_part_of_its_limits() {
    let redis = RedisServer::start();
    let server = start(&["--redis", &redis.url()]);
    let all = json!({"limits": [limit("search", "ann", 4), limit("search", "eve", 4)]});
    succeed(&server, "/v1/check", &all);
    let body = all.to_string();
    redis.pause();
    let refund = format!(
        "POST /v1/refund HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let client = sockets::send(server.http(), refund);
    let in_flight = || server.metric("limiter_server_calls_in_flight ");
    wait_until(|| in_flight() > 0.0, || server.log());
    leave(client);
    assert!(in_flight() > 0.0, "the call goes on");
    redis.resume();
    let left = || ["ann", "eve"].map(|key| remaining(&server, "search", key));
    wait_until(
        || left() == [10, 10],
        || format!("{:?}: {}", left(), server.log()),
    );
}

/// Ends a connection, and waits until the server has ended it.
fn leave(mut client: TcpStream) {
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(sockets::read_to_end(&mut client), "");
}

/// A check of two limits, as the bytes of a request.
fn check_of_two_limits() -> String {
    let body = json!({"limits": [limit("search", "ann", 4), limit("search", "eve", 4)]}).to_string();
    format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Otherwise clients that leave at once would have any number of calls in flight.
#[test]
fn call_of_a_client_that_has_left_keeps_its_place() {
    let redis = RedisServer::start();
    let server = start(&["--redis", &redis.url(), "--max-in-flight", "1"]);
    succeed(&server, "/v1/check", &limit("search", "ann", 1));
    redis.pause();
    let client = sockets::send(server.http(), check_of_two_limits());
    let in_flight = || server.metric("limiter_server_calls_in_flight ");
    wait_until(|| in_flight() > 0.0, || server.log());
    leave(client);
    let other = post(&server, "/v1/acquire", &json!({"policy": "export", "key": "ann"}));
    assert_eq!(other.status, 503, "{}", other.body);
    redis.resume();
    wait_until(|| in_flight() < 1.0, || server.log());
    assert_eq!(remaining(&server, "search", "eve"), 6);
}

#[test]
fn ending_server_waits_for_the_call_of_a_client_that_has_left() {
    let redis = RedisServer::start();
    let server = start(&["--redis", &redis.url(), "--drain", "5s"]);
    succeed(&server, "/v1/check", &limit("search", "ann", 1));
    redis.pause();
    let client = sockets::send(server.http(), check_of_two_limits());
    wait_until(
        || server.metric("limiter_server_calls_in_flight ") > 0.0,
        || server.log(),
    );
    leave(client);
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    // Redis does not answer within the drain time.
    assert!(log.contains("still in flight"), "{log}");
}

#[test]
fn reset_deletes_the_usage_of_one_key() {
    on_each_store(start, |server| {
        for key in ["ann", "bob"] {
            succeed(server, "/v1/check", &limit("search", key, 10));
        }
        succeed(server, "/v1/check", &limit("daily", "ann", 3));
        assert_eq!(post(server, "/v1/check", &limit("search", "ann", 1)).status, 429);
        assert_eq!(
            succeed(server, "/v1/reset", &json!({"policy": "search", "key": "ann"})),
            json!({})
        );
        assert_eq!(remaining(server, "search", "ann"), 10);
        succeed(server, "/v1/check", &limit("search", "ann", 10));
        assert_eq!(remaining(server, "search", "bob"), 0, "another key");
        assert_eq!(remaining(server, "daily", "ann"), 0, "another policy");
    });
}

#[test]
fn reservation_of_several_limits_is_settled_by_amounts() {
    on_each_store(start, |server| {
        let estimate = json!({"limits": [limit("search", "ann", 6), limit("daily", "ann", 2)]});
        let reserved = succeed(server, "/v1/reserve", &estimate);
        assert_eq!(reserved["limits"].as_array().unwrap().len(), 2);
        assert_eq!(
            [
                remaining(server, "search", "ann"),
                remaining(server, "daily", "ann")
            ],
            [4, 1]
        );
        // The second limit denies, so the first is not charged.
        assert_eq!(post(server, "/v1/reserve", &estimate).status, 429);
        assert_eq!(remaining(server, "search", "ann"), 4);
        let id = &reserved["id"];
        for wrong in [
            json!({"id": id, "actual": 1}),
            json!({"id": id, "actuals": [1, 1, 1]}),
            json!({"id": id, "actual": 1, "actuals": [1, 1]}),
            json!({"id": id}),
        ] {
            let refused = post(server, "/v1/settle", &wrong);
            assert_eq!(refused.status, 400, "{wrong}: {}", refused.body);
        }
        let settle = json!({"id": id, "actuals": [1, 3]});
        assert_eq!(succeed(server, "/v1/settle", &settle), json!({"settled": true}));
        assert_eq!(succeed(server, "/v1/settle", &settle), json!({"settled": false}));
        assert_eq!(
            [
                remaining(server, "search", "ann"),
                remaining(server, "daily", "ann")
            ],
            [9, 0],
            "each limit has its own amount"
        );
    });
}

#[test]
fn settled_amount_above_the_capacity_is_debt() {
    on_each_store(start, |server| {
        let reserved = succeed(server, "/v1/reserve", &limit("daily", "ann", 1));
        let settle = json!({"id": reserved["id"], "actual": 5});
        assert_eq!(succeed(server, "/v1/settle", &settle)["settled"], true);
        let denied = post(server, "/v1/check", &limit("daily", "ann", 1));
        assert_eq!(denied.status, 429);
        // Two permits of debt and the one of this call, at one per day.
        let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
        assert!((2 * 86_400 + 86_000..=3 * 86_400).contains(&wait), "{wait}");
    });
}

#[test]
fn expired_reservation_stays_charged_and_is_not_found() {
    on_each_store(start, |server| {
        let begun = now_ms();
        let mut body = limit("search", "ann", 8);
        body["expires_in_ms"] = json!(500);
        let reserved = succeed(server, "/v1/reserve", &body);
        let expires_at = reserved["expires_at"].as_u64().unwrap();
        assert!(
            (begun + 499..=now_ms() + 501).contains(&expires_at),
            "{expires_at}"
        );
        wait_until(|| now_ms() > expires_at + 100, || server.log());
        let late = post(server, "/v1/settle", &json!({"id": reserved["id"], "actual": 1}));
        assert_eq!(late.status, 404, "{}", late.body);
        assert!(late.body.contains("expired"), "{}", late.body);
        assert_eq!(remaining(server, "search", "ann"), 2);
    });
}

#[test]
fn reservation_with_an_invalid_lifetime_is_refused_and_refunded() {
    on_each_store(start, |server| {
        for lifetime in [0_u64, 8 * 86_400_000, u64::MAX] {
            let mut body = limit("search", "ann", 8);
            body["expires_in_ms"] = json!(lifetime);
            let refused = post(server, "/v1/reserve", &body);
            assert_eq!(refused.status, 400, "{lifetime}: {}", refused.body);
            let is_refunded = || remaining(server, "search", "ann") == 10;
            wait_until(is_refunded, || format!("{lifetime}: {}", server.log()));
        }
    });
}

#[test]
fn permit_expires_without_renewal_by_its_client() {
    on_each_store(start, |server| {
        let export = json!({"policy": "export", "key": "ann"});
        let acquired = Instant::now();
        let id = succeed(server, "/v1/acquire", &export)["id"].clone();
        // The server does not renew the permit, and other calls do not either.
        wait_until(
            || post(server, "/v1/acquire", &export).status == 200,
            || server.log(),
        );
        let held = acquired.elapsed();
        assert!(held >= LEASE - Duration::from_millis(100), "{held:?}");
        let expired = post(server, "/v1/renew", &json!({ "id": id }));
        assert_eq!(expired.status, 404, "{}", expired.body);
        let released = succeed(server, "/v1/release", &json!({ "id": id }));
        assert_eq!(released["released"], false);
    });
}

#[test]
fn renewed_permit_is_held_after_its_first_lease() {
    on_each_store(start, |server| {
        let export = json!({"policy": "export", "key": "ann"});
        let acquired = succeed(server, "/v1/acquire", &export);
        let id = json!({"id": acquired["id"]});
        let first_end = acquired["expires_at"].as_u64().unwrap();
        let is_extended = || {
            let renewed = succeed(server, "/v1/renew", &id);
            assert_eq!(renewed["id"], acquired["id"]);
            assert!(renewed["expires_at"].as_u64().unwrap() > now_ms());
            assert_eq!(post(server, "/v1/acquire", &export).status, 429);
            now_ms() > first_end + 500
        };
        wait_until(is_extended, || server.log());
    });
}

#[test]
fn paced_policy_reports_the_delay_before_the_work() {
    on_each_store(start, |server| {
        let delays = [(); 3].map(|()| {
            let allowed = succeed(server, "/v1/check", &limit("paced", "ann", 1));
            allowed["delay_ms"].as_u64().unwrap()
        });
        assert_eq!(delays[0], 0);
        assert!((59_000..=60_000).contains(&delays[1]), "{delays:?}");
        assert!((119_000..=120_000).contains(&delays[2]), "{delays:?}");
    });
}

#[test]
fn call_without_a_decision_of_the_store_is_unavailable() {
    let redis = RedisServer::start();
    let undecided = POLICIES.replace(
        "deadline = \"30s\"",
        "deadline = \"100ms\"\non_store_failure = \"error\"",
    );
    let rules = "[[rule]]\nmatch = ['search']\npolicy = 'search'\n\
                 [policy.closed]\nalgorithm = 'sliding_window'\nlimit = 10\nwindow = '1h'\non_store_failure = 'fail_closed'\n";
    let server = Server::with_token(&format!("{undecided}{rules}"), &["--redis", &redis.url()]);
    let search = limit("search", "ann", 1);
    wait_until(
        || post(&server, "/v1/check", &search).status == 200,
        || server.log(),
    );
    let reserved = succeed(&server, "/v1/reserve", &search)["id"].clone();
    let held = json!({"policy": "export", "key": "ann"});
    let held = succeed(&server, "/v1/acquire", &held)["id"].clone();
    redis.kill();
    let descriptor = json!({"entries": [{"key": "search", "value": "ann"}]});
    for (path, body) in [
        ("/v1/check", search.clone()),
        (
            "/v1/check",
            json!({"limits": [search.clone(), limit("daily", "bob", 1)]}),
        ),
        ("/v1/peek", search.clone()),
        ("/v1/refund", search.clone()),
        ("/v1/reset", search.clone()),
        ("/v1/reserve", search.clone()),
        ("/v1/settle", json!({"id": reserved, "actual": 1})),
        ("/v1/acquire", json!({"policy": "export", "key": "bob"})),
        ("/v1/renew", json!({ "id": held })),
        ("/v1/release", json!({ "id": held })),
        ("/json", json!({"domain": "edge", "descriptors": [descriptor]})),
    ] {
        let answer = post(&server, path, &body);
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json"),
            "{path}"
        );
        assert_eq!(answer.json()["status"], 503, "{path}: {}", answer.body);
    }
    let closed = post(&server, "/v1/check", &limit("closed", "ann", 1));
    assert_eq!(closed.status, 503, "{}", closed.body);
    assert_eq!(closed.json()["origin"], "failed_closed", "{}", closed.body);
}

/// Without a common deadline, each of the sets would wait for Redis.
#[test]
fn sets_of_a_request_share_its_deadline() {
    let redis = RedisServer::start();
    let late = POLICIES.replace("deadline = \"30s\"", "deadline = \"1s\"");
    let server = Server::with_token(&late, &["--redis", &redis.url()]);
    let keys = ["ann", "bob", "eve", "zoe"];
    let body = json!({"limits": keys.map(|key| limit("search", key, 1))});
    let decided = |path: &str| {
        let answer = post(&server, path, &body);
        (answer.status == 200).then(|| answer.json()["origin"].clone())
    };
    wait_until(|| decided("/v1/check") == Some(json!("redis")), || server.log());
    for path in ["/v1/check", "/v1/peek"] {
        redis.pause();
        let begun = Instant::now();
        let origin = decided(path);
        let took = begun.elapsed();
        redis.resume();
        assert_eq!(origin, Some(json!("local_fallback")), "{path}");
        assert!(took < Duration::from_secs(2), "{path}: {took:?}");
        wait_until(|| decided("/v1/check") == Some(json!("redis")), || server.log());
    }
}

#[test]
fn failed_calls_write_one_line_for_each_change_of_the_store() {
    let redis = RedisServer::start();
    let undecided = POLICIES.replace(
        "deadline = \"30s\"",
        "deadline = \"100ms\"\non_store_failure = \"error\"",
    );
    let args = ["--redis", &redis.url(), "--resp", "127.0.0.1:0"];
    let server = Server::with_token(&undecided, &args);
    let search = limit("search", "ann", 1);
    let client = RlsClient::connect(server.grpc()).with_token(TOKEN);
    let entry = json!({"key": "generic_key", "value": "search"});
    let descriptors = json!({"domain": "edge", "descriptors": [{ "entries": [entry] }]});
    let call = request(&[descriptor("generic_key", "search")]);
    let is_decided = || post(&server, "/v1/check", &search).status == 200;
    wait_until(is_decided, || server.log());
    let before = server.log().lines().count();
    redis.kill();
    let commands = [
        encode(&["AUTH", TOKEN]),
        encode(&["CL.THROTTLE", "policy:search:ann", "0", "1", "1"]),
        encode(&["QUIT"]),
    ];
    let commands = commands.concat();
    for _ in 0..50 {
        assert_eq!(post(&server, "/v1/check", &search).status, 503);
        assert_eq!(post(&server, "/json", &descriptors).status, 503);
        let status = client.decide(&call).unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
        let replies = sockets::read_to_end(&mut sockets::send(server.resp(), &commands));
        assert!(replies.contains("-UNAVAILABLE"), "{replies}");
    }
    let log = server.log();
    let lines: Vec<&str> = log.lines().skip(before).collect();
    for text in ["circuit breaker opened", "Redis made no decision"] {
        let count = lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!(count, 1, "{text}: {log}");
    }
    // The followers of the registry and of the tokens report the outage as well.
    assert!(lines.len() <= 6, "{log}");
    redis.restart();
    wait_until(is_decided, || server.log());
    let closed = server.log().matches("circuit breaker closed").count();
    assert_eq!(closed, 1, "{}", server.log());
}
