//! The JSON interface of real server processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use serde_json::json;
use support::calls::{limit, post, remaining};
use support::http;
use support::server::{Server, wait_until};
use support::stores::{in_process, on_redis, on_two_servers};

const POLICIES: &str = r#"
[policy.search]
algorithm = "sliding_window"
limit = 10
window = "1h"

[policy.daily]
algorithm = "sliding_window"
limit = 3
window = "1d"

[policy.export]
algorithm = "concurrency"
max = 2
lease = "10m"

[policy.trial]
algorithm = "sliding_window"
limit = 1
window = "1h"
enforcement = "shadow"

[policy.listed]
algorithm = "sliding_window"
limit = 10
window = "1h"
deny_keys = ["eve"]
"#;

/// A server with the arguments of a store.
fn start(store: &[&str]) -> Server {
    Server::with_token(POLICIES, store)
}

#[test]
fn check_charges_and_explains_denials() {
    let server = Server::with_token(POLICIES, &["--node", "n1"]);
    let allowed = post(&server, "/v1/check", &limit("search", "ann", 8));
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    assert_eq!(
        allowed.header("ratelimit-policy"),
        Some(r#""search";q=10;w=3600"#)
    );
    assert!(
        allowed
            .header("ratelimit")
            .unwrap()
            .starts_with(r#""search";r=2;"#)
    );
    let body = allowed.json();
    assert_eq!(body["allowed"], true);
    assert_eq!((&body["node"], &body["origin"]), (&json!("n1"), &json!("memory")));
    let charged = &body["limits"][0];
    assert_eq!(
        (&charged["limit"], &charged["remaining"]),
        (&json!(10), &json!(2))
    );

    let denied = post(&server, "/v1/check", &limit("search", "ann", 3));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    let seconds: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_590..=3_600).contains(&seconds), "{seconds}");
    let body = denied.json();
    assert_eq!(
        (&body["allowed"], &body["policy"]),
        (&json!(false), &json!("search"))
    );
    assert_eq!((&body["node"], &body["origin"]), (&json!("n1"), &json!("memory")));
    assert_eq!(body["limits"][0]["remaining"], 2);
    assert_eq!(remaining(&server, "search", "ann"), 2, "a denial charges nothing");
    assert_eq!(remaining(&server, "search", "bob"), 10);
}

#[test]
fn limits_are_charged_atomically() {
    let server = Server::with_token(POLICIES, &[]);
    let limits = |daily: u64| {
        json!({"limits": [
            limit("search", "ann", 2),
            {"policy": "daily", "key": ["tenant", "a:b"], "cost": daily},
        ]})
    };
    let allowed = post(&server, "/v1/check", &limits(2));
    assert_eq!(allowed.json()["limits"].as_array().unwrap().len(), 2);
    let denied = post(&server, "/v1/check", &limits(2));
    assert_eq!((denied.status, &denied.json()["policy"]), (429, &json!("daily")));
    assert_eq!(
        remaining(&server, "search", "ann"),
        8,
        "the first limit is refunded"
    );
    let same_key = json!({"limits": [{"policy": "search", "key": "x"}, limit("daily", "x", 4)]});
    assert_eq!(post(&server, "/v1/check", &same_key).status, 429);
    assert_eq!(remaining(&server, "search", "x"), 10);
}

/// Limits with different keys are separate decisions, of which the first denial ends the call.
#[test]
fn retry_time_is_that_of_the_last_denial() {
    let server = Server::with_token(POLICIES, &[]);
    for used in [limit("search", "ann", 10), limit("daily", "bob", 3)] {
        assert_eq!(post(&server, "/v1/check", &used).status, 200);
    }
    let (hour, day) = (limit("search", "ann", 1), limit("daily", "bob", 1));
    for limits in [[hour.clone(), day.clone()], [day, hour.clone()]] {
        let denied = post(&server, "/v1/check", &json!({ "limits": limits }));
        assert_eq!(denied.status, 429, "{}", denied.body);
        let wait = denied.header("retry-after").expect("a time");
        let seconds: u64 = wait.parse().unwrap();
        assert!((86_000..=86_400).contains(&seconds), "{seconds}");
        let expected = format!("rate limit reached, retry after {wait} seconds");
        assert_eq!(denied.json()["detail"], expected, "{}", denied.body);
    }
    let never = limit("daily", "eve", 4);
    for limits in [[hour.clone(), never.clone()], [never, hour]] {
        let denied = post(&server, "/v1/check", &json!({ "limits": limits }));
        assert_eq!(denied.status, 429, "{}", denied.body);
        assert_eq!(denied.header("retry-after"), None, "{}", denied.body);
        let detail = denied.json()["detail"].to_string();
        assert!(!detail.contains("retry after"), "{detail}");
    }
}

#[test]
fn headers_show_the_limits_that_are_closest_to_a_denial() {
    let server = Server::with_token(POLICIES, &[]);
    let limits = (0..100).map(|key| {
        let cost = if key == 70 { 9 } else { 1 };
        json!({"policy": "search", "key": key.to_string(), "cost": cost})
    });
    let limits: Vec<_> = limits.collect();
    let allowed = post(&server, "/v1/check", &json!({"limits": limits}));
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    assert_eq!(allowed.json()["limits"].as_array().unwrap().len(), 100);
    for name in ["ratelimit", "ratelimit-policy"] {
        let lines = allowed.headers.iter().filter(|(of, _)| of == name);
        let lines: Vec<_> = lines.map(|(_, value)| value.split(", ").count()).collect();
        assert_eq!(lines, [16], "{name}: {:?}", allowed.headers);
    }
    let shown = allowed.header("ratelimit").unwrap();
    assert!(shown.starts_with(r#""search";r=1;"#), "{shown}");
}

#[test]
fn costs_above_a_capacity_keep_the_numbers_of_all_limits() {
    let server = Server::with_token(POLICIES, &[]);
    assert_eq!(post(&server, "/v1/check", &limit("search", "ann", 8)).status, 200);
    for first in [100, 8] {
        let limits = json!({"limits": [
            limit("search", "ann", first),
            limit("search", "bob", 100),
            limit("search", "eve", 1),
        ]});
        let denied = post(&server, "/v1/check", &limits);
        assert_eq!(denied.status, 429, "{}", denied.body);
        let allowed = denied.json()["limits"].as_array().unwrap().clone();
        let allowed: Vec<_> = allowed.iter().map(|of| of["allowed"] == true).collect();
        assert_eq!(allowed, [false, false, true], "{}", denied.body);
    }
}

#[test]
fn cost_above_a_capacity_is_denied_by_enforced_limits_alone() {
    let server = Server::with_token(POLICIES, &[]);
    let limits = json!({"limits": [limit("trial", "ann", 5), limit("search", "ann", 100)]});
    let denied = post(&server, "/v1/check", &limits);
    assert_eq!((denied.status, &denied.json()["policy"]), (429, &json!("search")));
    let allowed = denied.json()["limits"].as_array().unwrap().clone();
    let allowed: Vec<_> = allowed.iter().map(|of| of["allowed"] == true).collect();
    assert_eq!(allowed, [true, false], "{}", denied.body);
}

/// A server with the policies `p0` to `p39` in one group.
fn start_with_many(store: &[&str]) -> Server {
    let one = |number: usize| {
        format!("[policy.p{number}]\nalgorithm = 'sliding_window'\nlimit = 2\nwindow = '1h'\n")
    };
    let policies: String = (0..40).map(one).collect();
    Server::with_token(&policies, store)
}

fn more_limits_than_an_atomic_decision_are_decided(server: &Server) {
    let limits = |cost: u64| {
        let limits = (0..40).map(|number| {
            let cost = if number == 39 { cost } else { 1 };
            json!({"policy": format!("p{number}"), "key": "ann", "cost": cost})
        });
        json!({"limits": limits.collect::<Vec<_>>()})
    };
    let allowed = post(server, "/v1/check", &limits(2));
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    assert_eq!(allowed.json()["limits"].as_array().unwrap().len(), 40);
    let denied = post(server, "/v1/check", &limits(1));
    assert_eq!((denied.status, &denied.json()["policy"]), (429, &json!("p39")));
    assert_eq!(remaining(server, "p0", "ann"), 1, "the other sets are refunded");
    let numbers = denied.json()["limits"].as_array().unwrap().clone();
    let policies: Vec<_> = numbers
        .iter()
        .map(|of| of["policy"].as_str().unwrap().to_owned())
        .collect();
    let expected: Vec<_> = (0..40).map(|number| format!("p{number}")).collect();
    assert_eq!(policies, expected, "{}", denied.body);
    let allowed = numbers.iter().filter(|of| of["allowed"] == true).count();
    assert_eq!(allowed, numbers.len() - 1, "{}", denied.body);
    let reserved = post(server, "/v1/reserve", &limits(1));
    assert_eq!(reserved.status, 429, "{}", reserved.body);
    assert_eq!(remaining(server, "p0", "ann"), 1, "the other sets are refunded");
}

#[test]
fn more_limits_than_an_atomic_decision_are_decided_in_process() {
    in_process(start_with_many, more_limits_than_an_atomic_decision_are_decided);
}

#[test]
fn more_limits_than_an_atomic_decision_are_decided_on_redis() {
    on_redis(start_with_many, more_limits_than_an_atomic_decision_are_decided);
}

#[test]
fn repeated_limit_is_charged_the_sum_of_its_costs() {
    let server = Server::with_token(POLICIES, &[]);
    let limits = |second: f64| {
        json!({"limits": [
            {"policy": "daily", "key": "ann"},
            {"policy": "search", "key": "bob"},
            {"policy": "daily", "key": ["ann"], "cost": second},
        ]})
    };
    let allowed = post(&server, "/v1/check", &limits(2.0));
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    assert_eq!(remaining(&server, "daily", "ann"), 0);
    assert_eq!(post(&server, "/v1/check", &limits(1.0)).status, 429);
    assert_eq!(remaining(&server, "search", "bob"), 9);
}

fn reservation_of_several_keys_is_settled(first: &Server, second: &Server) {
    let limits = json!({"limits": [
        limit("search", "ann", 6),
        limit("search", "bob", 4),
        limit("daily", "ann", 2),
        limit("search", "ann", 2),
    ]});
    let reserved = post(first, "/v1/reserve", &limits);
    assert_eq!(reserved.status, 200, "{}", reserved.body);
    let left = |policy, key| remaining(first, policy, key);
    assert_eq!(
        [left("search", "ann"), left("search", "bob"), left("daily", "ann")],
        [2, 6, 1]
    );
    // The reservation of the second key is refused, and that of the first one is refunded.
    let refused = post(first, "/v1/reserve", &limits);
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!([left("search", "ann"), left("search", "bob")], [2, 6]);
    let id = reserved.json()["id"].clone();
    let settle = json!({"id": id, "actuals": [1, 2, 3, 4]});
    for expected in [true, false] {
        let settled = post(second, "/v1/settle", &settle);
        assert_eq!(
            (settled.status, &settled.json()["settled"]),
            (200, &json!(expected))
        );
        assert_eq!(
            [left("search", "ann"), left("search", "bob"), left("daily", "ann")],
            [5, 8, 0]
        );
    }
}

#[test]
fn reservation_of_several_keys_is_settled_in_process() {
    in_process(start, |server| {
        reservation_of_several_keys_is_settled(server, server)
    });
}

#[test]
fn reservation_of_several_keys_is_settled_on_another_node() {
    on_two_servers(start, reservation_of_several_keys_is_settled);
}

#[test]
fn rejections_of_other_kinds_of_policies_name_the_path() {
    let server = Server::with_token(POLICIES, &[]);
    for (path, policy, expected) in [
        ("/v1/check", "export", "use /v1/acquire"),
        ("/v1/peek", "export", "use /v1/acquire"),
        ("/v1/reserve", "export", "use /v1/acquire"),
        ("/v1/acquire", "search", "use /v1/check"),
    ] {
        let rejected = post(&server, path, &json!({"policy": policy, "key": "ann"}));
        assert_eq!(rejected.status, 400, "{path}: {}", rejected.body);
        assert!(rejected.body.contains(expected), "{path}: {}", rejected.body);
    }
}

#[test]
fn id_with_long_key_is_usable_or_not_issued() {
    let server = Server::with_token(POLICIES, &[]);
    let acquire = |bytes| {
        let body = json!({"policy": "export", "key": "k".repeat(bytes)});
        post(&server, "/v1/acquire", &body)
    };
    for (path, policy) in [("/v1/acquire", "export"), ("/v1/reserve", "search")] {
        let body = json!({"policy": policy, "key": "k".repeat(33 * 1_024)});
        let rejected = post(&server, path, &body);
        assert_eq!(rejected.status, 400, "{}", rejected.body);
        assert!(
            rejected.body.contains("expected at most 32768"),
            "{}",
            rejected.body
        );
    }
    let acquired = acquire(32_700);
    assert_eq!(acquired.status, 200, "{}", acquired.body);
    let released = post(&server, "/v1/release", &json!({"id": acquired.json()["id"]}));
    assert_eq!(released.json()["released"], true, "{}", released.body);
}

#[test]
fn invalid_requests_have_their_status_and_name_the_error() {
    let server = Server::with_token(POLICIES, &[]);
    for (body, status, detail) in [
        (
            json!({"policy": "unknown", "key": "ann"}),
            404,
            "no policy `unknown`",
        ),
        (json!({"policy": "listed", "key": "eve"}), 403, "not permitted"),
        (
            json!({"policy": "search", "key": "ann", "cost": -1}),
            400,
            "`cost`: amount is `-1`, expected",
        ),
        (
            json!({"policy": "search", "key": "ann", "cost": 1.5}),
            400,
            "cost",
        ),
        (json!({"policy": "search", "key": 7}), 400, "JSON"),
        (json!({"policy": "search", "kye": "ann"}), 400, "kye"),
        (json!({"limits": []}), 400, "empty"),
        (json!({"policy": "search", "limits": []}), 400, "either"),
        (json!([]), 400, "JSON"),
    ] {
        let answer = post(&server, "/v1/check", &body);
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        let problem = answer.json();
        assert!(
            problem["detail"].as_str().unwrap().contains(detail),
            "{body}: {problem}"
        );
        assert_eq!(problem["status"], status);
    }
    let never_fits = post(&server, "/v1/check", &json!({"policy": "search", "cost": 11}));
    assert_eq!((never_fits.status, never_fits.header("retry-after")), (429, None));
    let shown = &never_fits.json()["limits"][0];
    assert_eq!(shown["retry_after_ms"], json!(null), "no retry succeeds: {shown}");
    let large = post(
        &server,
        "/v1/check",
        &json!({"policy": "search", "key": "x".repeat(300_000)}),
    );
    assert_eq!(large.status, 413);
}

#[test]
fn requests_of_web_pages_are_rejected() {
    let server = Server::with_token(POLICIES, &[]);
    let body = json!({"policy": "search", "key": "ann"}).to_string();
    let rebound = http::post(server.http(), "/v1/check", &[("host", "evil.example")], &body).unwrap();
    assert_eq!(rebound.status, 400);
    let simple = http::post(
        server.http(),
        "/v1/check",
        &[("content-type", "text/plain")],
        &body,
    )
    .unwrap();
    assert_eq!(simple.status, 400);
    let expected = "the header `content-type` is `text/plain`, expected `application/json`";
    assert!(simple.body.contains(expected), "{}", simple.body);
    assert_eq!(remaining(&server, "search", "ann"), 10);
}

fn holds_renews_and_releases(first: &Server, second: &Server) {
    let acquire = json!({"policy": "export", "key": ["tenant", "7"], "cost": 2});
    let acquired = post(first, "/v1/acquire", &acquire);
    assert_eq!(acquired.status, 200, "{}", acquired.body);
    let id = json!({"id": acquired.json()["id"]});
    assert!(acquired.json()["expires_at"].as_u64().unwrap() > 1_600_000_000_000);
    assert_eq!(post(second, "/v1/acquire", &acquire).status, 429);
    for _ in 0..2 {
        let renewed = post(second, "/v1/renew", &id);
        assert_eq!(renewed.status, 200, "{}", renewed.body);
    }
    for expected in [true, false] {
        let released = post(second, "/v1/release", &id);
        assert_eq!(
            (released.status, &released.json()["released"]),
            (200, &json!(expected))
        );
    }
    assert_eq!(post(first, "/v1/renew", &id).status, 404);
    let again = post(first, "/v1/acquire", &acquire);
    assert_eq!(again.status, 200, "{}", again.body);
    assert_eq!(
        post(first, "/v1/release", &json!({"id": again.json()["id"]})).status,
        200
    );
    for forged in ["", "p00", "p00.5b5d", "x"] {
        let refused = post(first, "/v1/release", &json!({"id": forged}));
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
}

fn reserves_and_settles(first: &Server, second: &Server) {
    let reserved = post(first, "/v1/reserve", &limit("search", "llm", 8));
    assert_eq!(reserved.status, 200, "{}", reserved.body);
    let id = reserved.json()["id"].clone();
    assert_eq!(remaining(first, "search", "llm"), 2);
    let wrong = post(second, "/v1/settle", &json!({"id": id, "actuals": [1, 2]}));
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    for expected in [true, false] {
        let settled = post(second, "/v1/settle", &json!({"id": id, "actual": 3}));
        assert_eq!(
            (settled.status, &settled.json()["settled"]),
            (200, &json!(expected))
        );
        assert_eq!(remaining(first, "search", "llm"), 7);
    }
}

#[test]
fn permits_and_reservations_are_held_by_id() {
    in_process(start, |server| {
        holds_renews_and_releases(server, server);
        reserves_and_settles(server, server);
    });
}

#[test]
fn another_node_on_one_redis_releases_and_settles() {
    on_two_servers(start, |first, second| {
        holds_renews_and_releases(first, second);
        reserves_and_settles(first, second);
    });
}

#[test]
fn another_node_without_redis_rejects_an_id() {
    let [first, second] = [(); 2].map(|()| Server::with_token(POLICIES, &[]));
    let acquired = post(&first, "/v1/acquire", &json!({"policy": "export", "key": "7"}));
    let id = json!({"id": acquired.json()["id"]});
    assert_eq!(post(&second, "/v1/release", &id).status, 400);
    assert_eq!(post(&first, "/v1/release", &id).status, 200);
}

#[test]
fn printed_commands_work() {
    let directory = support::server::Directory::new();
    let server = Server::start(directory, &["--example"]);
    server.wait_for_log("/v1/check");
    let log = server.log();
    let commands: Vec<&str> = log
        .lines()
        .filter_map(|line| line.trim().strip_prefix("curl "))
        .collect();
    assert!(commands.len() >= 3, "{log}");
    for command in commands {
        let line = format!("curl --silent --fail --max-time 20 {command}");
        let ended = std::process::Command::new("sh")
            .args(["-c", &line])
            .output()
            .unwrap();
        assert!(
            ended.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&ended.stderr)
        );
    }
}

#[test]
fn ids_stay_valid_after_their_policy_was_removed() {
    let server = Server::with_token(POLICIES, &[]);
    let permit = json!({"policy": "export", "key": "ann"});
    let permit = json!({"id": post(&server, "/v1/acquire", &permit).json()["id"]});
    let reservation = limit("search", "ann", 4);
    let reservation = post(&server, "/v1/reserve", &reservation).json()["id"].clone();
    let rest = "policy.other = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n";
    server.directory().write("policies.toml", rest);
    server.signal("HUP");
    server.wait_for_log("policy file read again");
    let removed = post(&server, "/v1/check", &json!({"policy": "search", "key": "ann"}));
    assert_eq!(removed.status, 404, "{}", removed.body);
    let renewed = post(&server, "/v1/renew", &permit);
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    let released = post(&server, "/v1/release", &permit);
    assert_eq!(released.json()["released"], true, "{}", released.body);
    let settled = post(&server, "/v1/settle", &json!({"id": reservation, "actual": 1}));
    assert_eq!(settled.json()["settled"], true, "{}", settled.body);
}

/// The policies are removed, and their names are used for policies of the other kind.
#[test]
fn ids_stay_valid_after_their_policies_changed_their_kinds() {
    let server = Server::with_token(POLICIES, &[]);
    let permit = json!({"policy": "export", "key": "ann"});
    let permit = json!({"id": post(&server, "/v1/acquire", &permit).json()["id"]});
    let reservation = post(&server, "/v1/reserve", &limit("search", "ann", 4)).json()["id"].clone();
    let other = "policy.other = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n";
    let kinds = "policy.export = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n\
                 policy.search = { algorithm = 'concurrency', max = 1 }\n";
    let check = || post(&server, "/v1/check", &limit("export", "ann", 1)).status;
    for (text, expected) in [(other, 404), (kinds, 200)] {
        server.directory().write("policies.toml", text);
        server.signal("HUP");
        wait_until(|| check() == expected, || server.log());
    }
    let reserved = post(&server, "/v1/reserve", &limit("export", "ann", 1));
    assert_eq!(reserved.status, 200, "{}", reserved.body);
    let renewed = post(&server, "/v1/renew", &permit);
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    let released = post(&server, "/v1/release", &permit);
    assert_eq!(released.json()["released"], true, "{}", released.body);
    let settled = post(&server, "/v1/settle", &json!({"id": reservation, "actual": 1}));
    assert_eq!(settled.json()["settled"], true, "{}", settled.body);
}

#[test]
fn id_of_a_policy_that_was_removed_names_the_reason_on_another_node() {
    on_two_servers(start, |first, second| {
        let permit = json!({"policy": "export", "key": "ann"});
        let permit = json!({"id": post(first, "/v1/acquire", &permit).json()["id"]});
        let reserved = post(first, "/v1/reserve", &limit("search", "ann", 4)).json()["id"].clone();
        let rest = "policy.other = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n";
        for server in [first, second] {
            server.directory().write("policies.toml", rest);
            server.signal("HUP");
            server.wait_for_log("policy file read again");
        }
        let settle = json!({"id": reserved, "actual": 1});
        for (path, body, policy) in [
            ("/v1/renew", &permit, "export"),
            ("/v1/release", &permit, "export"),
            ("/v1/settle", &settle, "search"),
        ] {
            let refused = post(second, path, body);
            assert_eq!(refused.status, 404, "{path}: {}", refused.body);
            let expected = format!("the policy `{policy}` of the id was removed");
            assert!(refused.body.contains(&expected), "{path}: {}", refused.body);
            assert_eq!(post(first, path, body).status, 200, "{path}");
        }
    });
}

#[test]
fn invalid_lifetime_of_a_reservation_charges_nothing() {
    let server = Server::with_token(POLICIES, &[]);
    for millis in [0, 604_800_001, u64::MAX] {
        let body = json!({"policy": "search", "key": "ann", "cost": 10, "expires_in_ms": millis});
        let refused = post(&server, "/v1/reserve", &body);
        assert_eq!(refused.status, 400, "{}", refused.body);
        let expected = format!("`expires_in_ms` is {millis}, expected 1 to 604800000");
        assert!(refused.body.contains(&expected), "{}", refused.body);
    }
    assert_eq!(remaining(&server, "search", "ann"), 10);
    let week = json!({"policy": "search", "key": "ann", "expires_in_ms": 604_800_000});
    assert_eq!(post(&server, "/v1/reserve", &week).status, 200);
}
