//! Commands and the server agree: one default namespace, and one form of the audit.

use std::collections::BTreeSet;

use limiter_testing::{RedisServer, RespValue};
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy_of_all, with_sqlite};
use crate::support::http;
use crate::support::server::{run, wait_until};

/// The lines of the audit in an output, after the addresses.
fn audit_of(output: &str) -> Vec<Value> {
    let lines = output.lines().map(serde_json::from_str);
    lines
        .map(|line| line.unwrap_or_else(|_| panic!("{output}")))
        .collect()
}

#[test]
fn each_change_is_one_json_line_on_standard_output() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 2)).status,
        409
    );
    let is_saved = |of: &Value| of["action"] == "policy.create";
    wait_until(
        || audit_of(&server.output()).iter().any(is_saved),
        || server.log(),
    );
    let lines = audit_of(&server.output());
    let saved: Vec<&Value> = lines.iter().filter(|of| is_saved(of)).collect();
    assert_eq!(saved.len(), 1, "a rejected change has no line: {lines:?}");
    assert!(saved[0]["at"].as_i64().unwrap() > 1_700_000_000_000_000);
    for (field, expected) in [
        ("namespace", json!("default")),
        ("actor", json!("root")),
        ("object", json!("search")),
        ("apps", Value::Null),
        ("detail", json!("revision 1 (api): a test")),
    ] {
        assert_eq!(saved[0][field], expected, "{field}");
    }
    assert!(!server.log().contains("policy.create"), "{}", server.log());
}

#[test]
fn commands_and_server_use_one_namespace_by_default() {
    let redis = RedisServer::start();
    let redis_url = redis.url();
    let server = with_sqlite(&["--redis", &redis_url]);
    let database = format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    );
    let file = server
        .directory()
        .write("applied.toml", &policy_of_all("search", 1));
    let file = file.to_str().unwrap();
    let (code, output, errors) = run(&["policy", "apply", "-f", file, "--database", &database]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(output.contains("create policy search"), "{output}");
    assert_eq!(audit_of(&errors)[0]["action"], "policy.create");
    let check = || {
        let body = json!({ "policy": "search", "key": "ann" }).to_string();
        http::post(server.http(), "/v1/check", &[], &body).unwrap().status
    };
    wait_until(|| check() == 429, || server.log());
    let end = [
        "kill",
        "policy:search",
        "--enforcement",
        "off",
        "--reason",
        "a test",
        "--redis",
        &redis_url,
    ];
    let (code, _, errors) = run(&end);
    assert_eq!(code, Some(0), "{errors}");
    wait_until(|| check() == 200, || server.log());
}

/// Without Redis, the namespace still selects the policies of the database.
#[test]
fn commands_and_server_without_redis_use_one_named_namespace() {
    let server = with_sqlite(&["--namespace", "prod"]);
    let directory = server.directory();
    let database = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let file = directory.write("applied.toml", &policy_of_all("search", 1));
    let file = file.to_str().unwrap();
    let apply = ["policy", "apply", "-f", file, "--database", &database];
    let (code, _, errors) = run(&[&apply[..], &["--namespace", "prod"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    let check = || {
        let body = json!({ "policy": "search", "key": "ann" }).to_string();
        http::post(server.http(), "/v1/check", &[], &body).unwrap().status
    };
    wait_until(|| check() == 429, || server.log());
}

/// The policies of a published text.
fn published_policies(redis: &RedisServer) -> usize {
    match redis.command(&["GET", "default|book"]) {
        RespValue::Nil => 0,
        text => text.text().matches("[policy.").count(),
    }
}

/// `apply` saves by one transaction, so a server never publishes a part of the file.
#[test]
fn thousand_policies_are_applied_and_published_at_once() {
    const POLICIES: usize = 1_000;
    let redis = RedisServer::start();
    let server = with_sqlite(&["--redis", &redis.url()]);
    let directory = server.directory();
    let database = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let text: String = (0..POLICIES)
        .map(|number| policy_of_all(&format!("p{number}"), 5))
        .collect();
    let file = directory.write("applied.toml", &text);
    let file = file.to_str().unwrap();
    let args = ["policy", "apply", "-f", file, "--database", &database];
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| {
        let applied = scope.spawn(|| run(&args));
        wait_until(
            || {
                seen.insert(published_policies(&redis));
                seen.contains(&POLICIES)
            },
            || server.log(),
        );
        let (code, _, errors) = applied.join().unwrap();
        assert_eq!(code, Some(0), "{errors}");
        // One entry for each policy, with the time of the transaction.
        let entries = audit_of(&errors);
        assert_eq!(entries.len(), POLICIES);
        assert!(entries.iter().all(|of| of["at"] == entries[0]["at"]), "{errors}");
    });
    assert!(seen.is_subset(&BTreeSet::from([0, POLICIES])), "{seen:?}");
}

/// `kill` needs no database, so the server that imports its change records scope and reason.
#[test]
fn audit_of_kill_names_scope_author_and_reason() {
    let redis = RedisServer::start();
    let server = with_sqlite(&["--redis", &redis.url()]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    wait_until(|| published_policies(&redis) == 1, || server.log());
    let file = server.directory().write("redis-url", &redis.url());
    let file = file.to_str().unwrap();
    let kill = |args: &[&str]| {
        let (code, _, errors) = run(&[&["kill", "policy:search", "--redis-file", file], args].concat());
        assert_eq!(code, Some(0), "{errors}");
    };
    let detail = |expected: &str| {
        let entries = root.get("/namespaces/default/audit").json();
        let entries = entries["entries"].as_array().unwrap().clone();
        let imports = entries.iter().filter(|of| of["action"] == "overlays.import");
        let details: Vec<&str> = imports.filter_map(|of| of["detail"].as_str()).collect();
        details.iter().any(|of| of.contains(expected))
    };
    kill(&[
        "--enforcement",
        "off",
        "--reason",
        "a broken client",
        "--author",
        "ann",
    ]);
    let suspended = "suspended policy:search (off), by command:ann: a broken client";
    wait_until(|| detail(suspended), || server.log());
    kill(&["--end"]);
    let ended = "ended the suspension of policy:search, by command:ann: a broken client";
    wait_until(|| detail(ended), || server.log());
    let (code, _, errors) = run(&["kill", "all", "--enforcement", "off", "--reason", "a test"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("--redis-file"), "{errors}");
}

/// The owner of a policy file is shown as a link if it is an address, and as text otherwise.
#[test]
fn policy_of_a_repository_links_to_its_source() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let directory = server.directory();
    let database = format!("sqlite:{}", directory.path().join("limiter.db").display());
    for (name, owner) in [
        ("linked", "https://git.example/limits"),
        ("named", "git"),
        ("script", "javascript:alert(1)"),
    ] {
        let file = directory.write("applied.toml", &policy_of_all(name, 1));
        let file = file.to_str().unwrap();
        let args = [
            "policy",
            "apply",
            "-f",
            file,
            "--database",
            &database,
            "--managed-by",
            owner,
        ];
        let (code, _, errors) = run(&args);
        assert_eq!(code, Some(0), "{errors}");
        let page = root.page(&format!("/e/default/policies/{name}")).body;
        assert!(page.contains("The policy is managed by"), "{page}");
        let link = format!("<a href=\"{owner}\"");
        assert_eq!(page.contains(&link), name == "linked", "{page}");
    }
    let path = "/namespaces/default/policies/linked";
    assert_eq!(root.get(path).json()["managed_by"], "https://git.example/limits");
    let refused = root.put_policy("linked", 1, &policy_of_all("linked", 2));
    assert_eq!(refused.status, 409, "{}", refused.body);
}

/// The command accepts the names that the API accepts: others could be taken for tokens.
#[test]
fn names_of_users_are_checked_by_the_command() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let database = format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    );
    for name in ["token:ci", "", " ann", "a\nb", &"a".repeat(256)] {
        let (code, _, errors) = run(&["user", "add", name, "--database", &database]);
        assert_eq!(code, Some(1), "{name}: {errors}");
        assert!(
            errors.contains("expected a name of 1 to 255 bytes"),
            "{name}: {errors}"
        );
    }
    let users = root.get("/users").json();
    assert_eq!(users["users"].as_array().unwrap().len(), 1, "{users}");
}

/// A suspension that ends at another time than the operator expects is an outage.
#[test]
fn kill_rejects_two_ends() {
    let until = [
        "--enforcement",
        "off",
        "--reason",
        "a test",
        "--until",
        "2030-01-01T00:00:00Z",
    ];
    for args in [&until[..], &["--end"]] {
        let redis = ["--for", "2h", "--redis", "redis://127.0.0.1:1"];
        let (code, _, errors) = run(&[&["kill", "all"], args, &redis].concat());
        assert_eq!(code, Some(2), "{errors}");
        assert!(errors.contains("'--for <DURATION>'"), "{errors}");
    }
}
