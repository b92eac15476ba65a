//! Tokens and scopes of real server processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::process::Command;

use limiter_server::gateway::envoy::messages::RateLimitDescriptor;
use serde_json::{Value, json};
use support::access::{TOKEN, bearer, entry};
use support::calls::post_as;
use support::descriptors::{DescriptorExt as _, descriptor, request_in};
use support::http::{self, Response};
use support::resp::encode;
use support::rls::RlsClient;
use support::server::{Directory, Server, run, wait_until};
use support::sockets;
use tonic::Code;

const POLICIES: &str = r#"
[policy.search]
algorithm = "sliding_window"
limit = 1000
window = "1h"

[policy.export]
algorithm = "concurrency"
max = 2
lease = "10m"

[[rule]]
match = ["search"]
policy = "search"
"#;

fn detail(response: &Response) -> String {
    response.json()["detail"].as_str().expect("a detail").to_owned()
}

fn search() -> Value {
    json!({"policy": "search", "key": "ann"})
}

#[test]
fn anonymous_client_checks_and_peeks_only() {
    let server = Server::with_policies(POLICIES, &[]);
    assert_eq!(post_as(&server, None, "/v1/check", &search()).status, 200);
    assert_eq!(post_as(&server, None, "/v1/peek", &search()).status, 200);
    // The credentials of a service behind a proxy are no credentials of the server.
    let foreign = http::post(
        server.http(),
        "/v1/check",
        &[("authorization", "Bearer eyJhbGciOi")],
        &search().to_string(),
    );
    assert_eq!(foreign.unwrap().status, 200);
    let id = json!({"id": format!("p00.{}", hex(r#"[["search","ann"]]"#))});
    for (path, body) in [
        ("/v1/acquire", json!({"policy": "export"})),
        ("/v1/renew", id.clone()),
        ("/v1/release", id.clone()),
        ("/v1/reserve", search()),
        ("/v1/settle", json!({"id": id["id"], "actual": 1})),
        ("/v1/refund", search()),
        ("/v1/reset", search()),
    ] {
        let refused = post_as(&server, None, path, &body);
        assert_eq!(refused.status, 401, "{path}: {}", refused.body);
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        assert!(detail(&refused).contains("[[token]]"), "{path}: {}", refused.body);
    }
    assert_eq!(post_as(&server, Some(TOKEN), "/v1/check", &search()).status, 401);
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn token_permits_its_scopes_only() {
    let settings = entry("ann", TOKEN, &["refund:policy=se*", "acquire:policy=export"]);
    let server = Server::with_settings(POLICIES, &settings, &[]);
    assert_eq!(post_as(&server, Some(TOKEN), "/v1/refund", &search()).status, 200);
    let export = json!({"policy": "export", "key": "7"});
    let acquired = post_as(&server, Some(TOKEN), "/v1/acquire", &export);
    assert_eq!(acquired.status, 200, "{}", acquired.body);
    for (path, body, needed) in [
        ("/v1/check", search(), "check:policy=search"),
        ("/v1/reset", search(), "reset:policy=search"),
        ("/v1/refund", export, "refund:policy=export"),
        // A policy that does not exist is not disclosed.
        ("/v1/refund", json!({"policy": "x"}), "refund:policy=x"),
        (
            "/v1/check",
            json!({"limits": [search(), {"policy": "export"}]}),
            "check:policy=search",
        ),
    ] {
        let refused = post_as(&server, Some(TOKEN), path, &body);
        assert_eq!(refused.status, 403, "{path}: {}", refused.body);
        assert_eq!(
            detail(&refused),
            format!("the client `ann` lacks the scope `{needed}`")
        );
    }
    let anonymous = post_as(&server, None, "/v1/check", &search());
    assert_eq!(anonymous.status, 401, "{}", anonymous.body);
    assert!(detail(&anonymous).contains("authorization"));
    let unknown = TOKEN.replace('1', "2");
    assert_eq!(
        post_as(&server, Some(&unknown), "/v1/refund", &search()).status,
        401
    );
    // Health checks of an orchestrator have no token.
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn unmatched_descriptors_of_all_domains_need_a_scope_for_all() {
    let status = |scopes: &[&str]| {
        let server = Server::with_settings(POLICIES, &entry("test", TOKEN, scopes), &[]);
        let token = bearer(TOKEN);
        let headers = [("authorization", token.as_str())];
        http::get(server.http(), "/v1/unmatched", &headers)
            .unwrap()
            .status
    };
    assert_eq!(status(&["check:domain=edge", "refund:*"]), 403);
    assert_eq!(status(&["peek:*"]), 200);
    assert_eq!(status(&["check:*"]), 200);
}

#[test]
fn expired_token_is_refused() {
    let settings = entry("ann", TOKEN, &["check:*"]).replace("2100", "2020");
    let server = Server::with_settings(POLICIES, &settings, &[]);
    let refused = post_as(&server, Some(TOKEN), "/v1/check", &search());
    assert_eq!(refused.status, 401);
    assert!(detail(&refused).contains("expired"), "{}", refused.body);
}

/// A descriptor of the rule.
fn ann() -> RateLimitDescriptor {
    descriptor("search", "ann")
}

#[test]
fn descriptors_need_the_scopes_of_their_domain_and_operation() {
    let server = Server::with_policies(POLICIES, &[]);
    let anonymous = RlsClient::connect(server.grpc());
    let code = |client: &RlsClient, request| {
        client
            .decide(&request)
            .map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!(code(&anonymous, request_in("edge", &[ann()])), Code::Ok);
    assert_eq!(code(&anonymous, request_in("edge", &[ann().hits(0)])), Code::Ok);
    assert_eq!(
        code(&anonymous, request_in("edge", &[ann().negative()])),
        Code::Unauthenticated
    );

    let [peeker, unknown] = [TOKEN.replace('1', "2"), TOKEN.replace('1', "3")];
    let settings = [
        entry("edge", TOKEN, &["check:domain=edge", "refund:domain=edge"]),
        entry("peeker", &peeker, &["peek:policy=search"]),
    ];
    let server = Server::with_settings(POLICIES, &settings.concat(), &[]);
    let connect = || RlsClient::connect(server.grpc());
    let edge = connect().with_token(TOKEN);
    assert_eq!(code(&edge, request_in("edge", &[ann()])), Code::Ok);
    assert_eq!(code(&edge, request_in("edge", &[ann().negative()])), Code::Ok);
    assert_eq!(code(&edge, request_in("other", &[ann()])), Code::PermissionDenied);
    let peeker = connect().with_token(&peeker);
    assert_eq!(code(&peeker, request_in("other", &[ann().hits(0)])), Code::Ok);
    assert_eq!(
        code(&peeker, request_in("other", &[ann()])),
        Code::PermissionDenied
    );
    for client in [connect(), connect().with_token(&unknown)] {
        assert_eq!(code(&client, request_in("edge", &[ann()])), Code::Unauthenticated);
        assert!(client.is_serving(""));
    }
}

#[test]
fn edited_tokens_apply_without_a_restart() {
    let server = Server::with_settings(POLICIES, &entry("ann", TOKEN, &["check:*"]), &[]);
    let status = |token: &str| post_as(&server, Some(token), "/v1/check", &search()).status;
    let other = TOKEN.replace('1', "2");
    assert_eq!([status(TOKEN), status(&other)], [200, 401]);
    // A change of the file is followed.
    server
        .directory()
        .write("limiter-server.toml", &entry("bob", &other, &["check:*"]));
    wait_until(|| [status(TOKEN), status(&other)] == [401, 200], || server.log());
    server.wait_for_log("tokens and clients reloaded");
    // A file with errors changes nothing, and SIGHUP reads it at once.
    server
        .directory()
        .write("limiter-server.toml", &entry("ann", TOKEN, &["fly:*"]));
    server.signal("HUP");
    server.wait_for_log("keeping the last tokens and clients");
    assert!(server.log().contains("fly:*"), "{}", server.log());
    assert_eq!([status(TOKEN), status(&other)], [401, 200]);
}

#[test]
fn settings_file_that_blocks_keeps_server_and_clients() {
    let server = Server::with_settings(POLICIES, &entry("ann", TOKEN, &["check:*"]), &[]);
    let file = server.directory().path().join("limiter-server.toml");
    std::fs::remove_file(&file).unwrap();
    let made = Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    server.signal("HUP");
    server.wait_for_log("keeping the last tokens and clients");
    assert_eq!(post_as(&server, Some(TOKEN), "/v1/check", &search()).status, 200);
}

/// `HELLO` with an invalid option has no effect, as in Redis.
#[test]
fn rejected_hello_keeps_the_client() {
    let tokens = [("numbers", "namespace"), ("login", "check:policy=login")];
    let entries = tokens.map(|(name, scope)| entry(name, &format!("lim_{name}"), &[scope]));
    let server = Server::with_settings(POLICIES, &entries.concat(), &["--resp", "127.0.0.1:0"]);
    let hello = |option: &'static str| {
        let hello = ["HELLO", "3", "AUTH", "default", "lim_login", option];
        let commands = [
            encode(&["AUTH", "lim_numbers"]),
            encode(&hello),
            encode(&["CL.THROTTLE", "ann", "15", "30", "60"]),
            encode(&["QUIT"]),
        ];
        sockets::read_to_end(&mut sockets::send(server.resp(), commands.concat()))
    };
    for option in ["NOPE", "SETNAME", "AUTH"] {
        let answer = hello(option);
        assert!(answer.starts_with("+OK\r\n-ERR option of HELLO is"), "{answer}");
        assert!(answer.contains("*5\r\n:0\r\n:16\r\n"), "{option}: {answer}");
    }
}

#[test]
fn scope_of_an_app_permits_ids_of_a_removed_policy() {
    let rest = "[policy.rest]\nalgorithm = 'sliding_window'\nlimit = 5\nwindow = '1h'\n";
    let of_billing = "[policy.invoice]\nalgorithm = 'concurrency'\nmax = 1\nlease = '10m'\napps = ['billing']\n\
                      [policy.mail]\nalgorithm = 'sliding_window'\nlimit = 5\nwindow = '1h'\napps = ['billing']\n";
    let other = TOKEN.replace('1', "2");
    let settings = [
        entry("billing", TOKEN, &["acquire:app=billing", "reserve:app=billing"]),
        entry("shop", &other, &["acquire:app=shop", "reserve:app=shop"]),
    ];
    let server = Server::with_settings(&format!("{of_billing}{rest}"), &settings.concat(), &[]);
    let call = |token: &str, path: &str, body: &Value| post_as(&server, Some(token), path, body);
    let acquired = call(TOKEN, "/v1/acquire", &json!({"policy": "invoice", "key": "7"}));
    assert_eq!(acquired.status, 200, "{}", acquired.body);
    let permit = json!({"id": acquired.json()["id"]});
    let reserved = call(
        TOKEN,
        "/v1/reserve",
        &json!({"policy": "mail", "key": "7", "cost": 2}),
    );
    assert_eq!(reserved.status, 200, "{}", reserved.body);
    let settle = json!({"id": reserved.json()["id"], "actual": 1});
    server.directory().write("policies.toml", rest);
    server.signal("HUP");
    server.wait_for_log("policy file read again");
    for (path, body) in [
        ("/v1/renew", &permit),
        ("/v1/release", &permit),
        ("/v1/settle", &settle),
    ] {
        let refused = call(&other, path, body);
        assert_eq!(refused.status, 403, "{path}: {}", refused.body);
        let done = call(TOKEN, path, body);
        assert_eq!(done.status, 200, "{path}: {}", done.body);
    }
    assert_eq!(call(TOKEN, "/v1/release", &permit).json()["released"], false);
    // The policy itself is not configured any more.
    let again = call(TOKEN, "/v1/acquire", &json!({"policy": "invoice", "key": "7"}));
    assert_eq!(again.status, 403, "{}", again.body);
}

#[test]
fn listener_for_other_machines_keeps_its_clients() {
    let settings = entry("ann", TOKEN, &["check:*"]);
    let server = Server::with_settings(POLICIES, &settings, &["--grpc", "0.0.0.0:0"]);
    server.directory().write("limiter-server.toml", "# nothing\n");
    server.signal("HUP");
    server.wait_for_log("other machines reach a listener");
    assert_eq!(post_as(&server, None, "/v1/check", &search()).status, 401);
    assert_eq!(post_as(&server, Some(TOKEN), "/v1/check", &search()).status, 200);
}

#[test]
fn printed_token_works_with_its_printed_entry() {
    let scope = ["--scope", "check:domain=edge", "--scope", "refund:policy=search"];
    let args = [&["token", "new", "--name", "edge \"1\""], &scope[..]].concat();
    let (code, output, errors) = run(&args);
    assert_eq!(code, Some(0), "{errors}");
    let (secret, entry) = output.split_once("\n\n").expect("a secret and an entry");
    assert!(
        secret.starts_with("lim_") && secret.len() == 68,
        "{} bytes",
        secret.len()
    );
    assert!(!entry.contains(secret) && !errors.contains(secret));
    let server = Server::with_settings(POLICIES, entry, &[]);
    assert_eq!(
        post_as(&server, Some(secret), "/v1/refund", &search()).status,
        200
    );
    assert_eq!(post_as(&server, Some(secret), "/v1/reset", &search()).status, 403);
    assert_ne!(run(&args).1, output, "each token is a new one");
    let (code, _, errors) = run(&["token", "new", "--name", "x", "--scope", "all"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("scope `all`"), "{errors}");
    let (code, _, errors) = run(&["token", "new", "--name", "x", "--scope", "admin:viewer"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("use `token issue`"), "{errors}");
}

#[test]
fn invalid_tokens_do_not_start_the_server() {
    for (settings, expected) in [
        (entry("a", TOKEN, &["check"]), "names no target"),
        (
            entry("a", TOKEN, &["check:*"]).replace("sha256", "token"),
            "unknown field `token`",
        ),
        (
            entry("a", TOKEN, &["check:*"]).replace("expires = 2100-01-01", ""),
            "missing field `expires`",
        ),
        (entry("a", TOKEN, &["check:*"]).repeat(2), "two clients"),
    ] {
        let directory = Directory::new();
        let config = directory.write("limiter-server.toml", &settings);
        let (code, _, errors) = run(&["serve", "--example", "--config", config.to_str().unwrap()]);
        assert_eq!(code, Some(1));
        assert!(errors.contains(expected), "{errors}");
    }
}
