//! Suspensions and blocks: by the API, by `limiter-server kill`, and at the gateway.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use limiter_core::Limiter;
use limiter_core::registry::{PolicyRegistry, RedisRegistry, SuspensionMode};
use limiter_server::gateway::envoy::messages::Code;
use limiter_server::publish::{PublicationTarget, Publisher};
use limiter_server::store::{DocumentKind, OVERLAYS, Store};
use limiter_testing::RedisServer;
use serde_json::{Value, json};
use support::access::{TOKEN, entry};
use support::admin::{AdminClient, policy_of_all, with_sqlite};
use support::calls::{post, post_as};
use support::descriptors::{descriptor, request};
use support::rls::RlsClient;
use support::server::{Directory, Server, run, wait_until};

const SUSPENSIONS: &str = "/namespaces/default/suspensions";
const BLOCKS: &str = "/namespaces/default/blocks";
const TEXT: &str = "[policy.search]\nalgorithm = 'token_bucket'\ncapacity = 1\nrate = '1/h'\n";

fn check(server: &Server, key: &str) -> (u16, Value) {
    let body = json!({ "policy": "search", "key": key });
    let answer = post_as(server, None, "/v1/check", &body);
    (answer.status, answer.json())
}

/// A server with the policy `search` in force.
fn with_policy() -> (Server, AdminClient) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 1));
    assert_eq!(saved.status, 200, "{}", saved.body);
    wait_until(|| check(&server, "first").0 == 200, || server.log());
    (server, root)
}

#[test]
fn suspension_by_the_api_applies_at_the_gateway_and_ends() {
    let (server, root) = with_policy();
    let body =
        json!({ "scope": "policy:search", "enforcement": "deny", "for_seconds": 600, "reason": "broken" });
    let created = root.send("POST", SUSPENSIONS, &[], &body);
    assert_eq!(created.status, 200, "{}", created.body);
    let created = created.json();
    assert_eq!(
        (&created["scope"], &created["active"]),
        (&json!("policy:search"), &json!(true))
    );
    wait_until(|| check(&server, "ann").0 == 403, || server.log());
    assert_eq!(check(&server, "ann").1["origin"], "suspension");

    let listed = root.get(SUSPENSIONS).json();
    assert_eq!(listed["suspensions"][0]["reason"], "broken");
    assert_eq!(listed["suspensions"][0]["by"], "root");
    let path = format!("{SUSPENSIONS}/{}", created["id"].as_str().unwrap());
    let extended = root.send("PUT", &path, &[], &json!({ "for_seconds": 7_200 }));
    assert!(
        extended.json()["until"].as_u64() > created["until"].as_u64(),
        "{}",
        extended.body
    );
    assert_eq!(root.send("DELETE", &path, &[], &Value::Null).status, 204);
    wait_until(|| check(&server, "bob").0 == 200, || server.log());
    assert_eq!(root.send("DELETE", &path, &[], &Value::Null).status, 404);
    let audit = root.get("/namespaces/default/audit?object=overlays").body;
    assert!(audit.contains("suspend (deny) policy:search: broken"), "{audit}");
    assert!(audit.contains("end the suspension of policy:search"), "{audit}");
}

/// A client can choose its key, and the page offers to block it.
#[test]
fn key_that_denotes_all_addresses_is_not_blocked() {
    let (server, root) = with_policy();
    for (key, status) in [("0.0.0.0/0", 422), ("::/0", 422), ("10.1.0.0/16", 200)] {
        let created = root.send("POST", BLOCKS, &[], &json!({ "key": key, "for_seconds": 600 }));
        assert_eq!(created.status, status, "{key}: {}", created.body);
        assert!(status == 200 || created.body.contains(key), "{}", created.body);
    }
    wait_until(|| check(&server, "10.1.2.3").0 == 403, || server.log());
    assert_eq!(check(&server, "10.2.0.1").0, 200);
    let network = root.send(
        "POST",
        BLOCKS,
        &[],
        &json!({ "network": "0.0.0.0/0", "for_seconds": 600 }),
    );
    assert_eq!(
        network.status, 200,
        "a network is chosen on purpose: {}",
        network.body
    );
}

#[test]
fn block_by_the_api_survives_a_restart() {
    let (mut server, root) = with_policy();
    let body = json!({ "part": "tenant=acme", "reason": "abuse" });
    let created = root.send("POST", BLOCKS, &[], &body);
    assert_eq!(created.status, 200, "{}", created.body);
    let created = created.json();
    assert_eq!(
        (&created["part"], &created["until"]),
        (&json!("tenant=acme"), &Value::Null)
    );
    wait_until(|| check(&server, "tenant:acme").0 == 403, || server.log());
    assert_eq!(check(&server, "tenant:acme:user:7").1["origin"], "block");
    assert_eq!(check(&server, "tenant:other").0, 200);
    server.kill();
    let server = server.restart(&["--admin", "127.0.0.1:0"]);
    wait_until(|| server.get("/readyz").status == 200, || server.log());
    wait_until(|| check(&server, "tenant:acme").0 == 403, || server.log());
    let client = AdminClient::new(server.admin(), root.credentials);
    let path = format!("{BLOCKS}/{}", created["id"].as_str().unwrap());
    wait_until(|| client.get(BLOCKS).status == 200, || server.log());
    assert_eq!(client.send("DELETE", &path, &[], &Value::Null).status, 204);
    wait_until(|| check(&server, "tenant:acme").0 == 200, || server.log());
}

#[test]
fn invalid_overlays_are_rejected() {
    let (_server, root) = with_policy();
    for (path, body, expected) in [
        (
            SUSPENSIONS,
            json!({ "scope": "search", "enforcement": "deny", "for_seconds": 1 }),
            "scope is `search`",
        ),
        (
            SUSPENSIONS,
            json!({ "scope": "all", "enforcement": "enforce", "for_seconds": 1 }),
            "`off`, `shadow` or `deny`",
        ),
        (
            SUSPENSIONS,
            json!({ "scope": "all", "enforcement": "deny" }),
            "expected `until`",
        ),
        (
            SUSPENSIONS,
            json!({ "scope": "all", "enforcement": "deny", "until": 5 }),
            "not in the future",
        ),
        (BLOCKS, json!({ "for_seconds": 1 }), "exactly one of"),
        (BLOCKS, json!({ "key": "a", "part": "b=c" }), "exactly one of"),
        (
            BLOCKS,
            json!({ "network": "10.0.0.7/8" }),
            "no bits beyond the prefix",
        ),
        (BLOCKS, json!({ "key": "*" }), "use a suspension"),
    ] {
        let answer = root.send("POST", path, &[], &body);
        assert!(
            answer.status == 422 && answer.body.contains(expected),
            "{body}: {}",
            answer.body
        );
    }
}

/// A text has times until the year 9999: nanoseconds in place of microseconds are beyond them, and
/// the stored text of all suspensions and blocks must stay readable.
#[test]
fn overlays_that_no_text_can_contain_are_rejected() {
    let (_server, root) = with_policy();
    let late = 253_402_300_800_000_000_i64;
    for (path, body) in [
        (
            SUSPENSIONS,
            json!({ "scope": "policy:search", "enforcement": "off", "from": late, "until": late + 1 }),
        ),
        (BLOCKS, json!({ "key": "eve", "until": late })),
    ] {
        let answer = root.send("POST", path, &[], &body);
        assert!(
            answer.status == 422 && answer.body.contains("year 9999"),
            "{}: {}",
            answer.status,
            answer.body
        );
    }
    let reason = "x".repeat(1_900_000);
    let mut statuses = Vec::new();
    for key in ["a", "b", "c"] {
        let body = json!({ "key": key, "reason": reason });
        statuses.push(root.send("POST", BLOCKS, &[], &body).status);
    }
    assert_eq!(statuses, [200, 200, 422]);
    let body = json!({ "scope": "policy:search", "enforcement": "off", "for_seconds": 60 });
    let suspended = root.send("POST", SUSPENSIONS, &[], &body);
    assert_eq!(suspended.status, 200, "{}", suspended.body);
}

/// All documents of a namespace are published as one text of at most 4 MiB.
#[test]
fn blocks_that_do_not_fit_beside_the_policies_are_rejected() {
    let (_server, root) = with_policy();
    let text = format!("{}note = '{}'\n", policy_of_all("long", 5), "n".repeat(900_000));
    assert_eq!(root.put_policy("long", 0, &text).status, 200);
    let block = |key: &str| {
        let body = json!({ "key": key, "reason": "x".repeat(1_900_000) });
        root.send("POST", BLOCKS, &[], &body)
    };
    assert_eq!(block("a").status, 200);
    let refused = block("b");
    assert!(
        refused.status == 422 && refused.body.contains("expected at most 4194304"),
        "{}: {}",
        refused.status,
        refused.body
    );
}

/// A change of the end and the end itself at one time: a suspension that has ended stays ended.
#[test]
fn extension_does_not_bring_an_ended_suspension_back() {
    let (_server, root) = with_policy();
    for round in 0..40 {
        let body = json!({ "scope": "policy:search", "enforcement": "off", "for_seconds": 600 });
        let created = root.send("POST", SUSPENSIONS, &[], &body).json();
        let path = format!("{SUSPENSIONS}/{}", created["id"].as_str().unwrap());
        let statuses = std::thread::scope(|scope| {
            let extension = || {
                root.send("PUT", &path, &[], &json!({ "for_seconds": 900 }))
                    .status
            };
            let extended = [scope.spawn(extension), scope.spawn(extension)];
            let ended = root.send("DELETE", &path, &[], &Value::Null).status;
            (ended, extended.map(|of| of.join().unwrap()))
        });
        assert_eq!(statuses.0, 204);
        let listed = root.get(SUSPENSIONS).json();
        assert_eq!(listed["suspensions"], json!([]), "round {round}: {statuses:?}");
    }
}

/// Only an administrator suspends all policies, an editor blocks in its app.
#[test]
fn roles_limit_the_scope_of_overlays() {
    let (_server, root) = with_policy();
    let owner = root.add_user("owner", &[("checkout", "owner")]);
    let editor = root.add_user("editor", &[("checkout", "editor")]);
    let suspend = |caller: &AdminClient, scope: &str| {
        let body = json!({ "scope": scope, "enforcement": "shadow", "for_seconds": 60 });
        caller.send("POST", SUSPENSIONS, &[], &body).status
    };
    let block = |caller: &AdminClient, app: Option<&str>| {
        caller
            .send("POST", BLOCKS, &[], &json!({ "key": "eve", "app": app }))
            .status
    };
    assert_eq!(
        (suspend(&owner, "all"), suspend(&owner, "app:checkout")),
        (403, 200)
    );
    assert_eq!(suspend(&owner, "policy:search"), 403, "a policy of all apps");
    assert_eq!(
        (suspend(&editor, "app:checkout"), suspend(&root, "all")),
        (403, 200)
    );
    assert_eq!(
        (block(&editor, Some("checkout")), block(&editor, None)),
        (200, 403)
    );
    assert_eq!(block(&owner, Some("mobile")), 404);
}

/// A suspension of the name of a deleted policy would apply to the policy of the next app.
#[test]
fn owner_of_a_deleted_policy_does_not_suspend_its_name() {
    let (_server, root) = with_policy();
    let owner = root.add_user("owner", &[("checkout", "owner")]);
    let text = format!("{}apps = ['checkout']\n", policy_of_all("mail", 5));
    assert_eq!(root.put_policy("mail", 0, &text).status, 200);
    let suspend = |caller: &AdminClient| {
        let body = json!({ "scope": "policy:mail", "enforcement": "off", "for_seconds": 600 });
        caller.send("POST", SUSPENSIONS, &[], &body)
    };
    let suspended = suspend(&owner);
    assert_eq!(suspended.status, 200, "{}", suspended.body);
    let path = "/namespaces/default/policies/mail";
    let deleted = owner.send("DELETE", path, &[("if-match", "1")], &Value::Null);
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    assert_eq!(suspend(&owner).status, 403);
    let extended = format!("{SUSPENSIONS}/{}", suspended.json()["id"].as_str().unwrap());
    let extended = owner.send("PUT", &extended, &[], &json!({ "for_seconds": 900 }));
    assert_eq!(extended.status, 403, "{}", extended.body);
    assert_eq!(suspend(&root).status, 200);
}

fn registry_of(redis: &RedisServer) -> RedisRegistry {
    let limiter = Limiter::redis(redis.url()).namespace("prod").build().unwrap();
    limiter.redis_registry().unwrap()
}

fn kill(redis: &RedisServer, args: &[&str]) -> (Option<i32>, String, String) {
    let url = redis.url();
    run(&[&["kill"], args, &["--redis", url.as_str(), "--namespace", "prod"]].concat())
}

async fn in_force(redis: &RedisServer) -> PolicyRegistry {
    let (_, text) = registry_of(redis).read().await.unwrap().unwrap();
    PolicyRegistry::from_toml(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_needs_redis_only() {
    let redis = RedisServer::start();
    let deny = [
        "policy:search",
        "--enforcement",
        "deny",
        "--reason",
        "broken client",
    ];
    let (code, _, errors) = kill(&redis, &deny);
    assert!(
        code == Some(1) && errors.contains("prod of Redis has no registry") && errors.contains("--namespace"),
        "{errors}"
    );
    registry_of(&redis).publish(TEXT, 0).await.unwrap();
    let (code, output, errors) = kill(&redis, &[&deny[..], &["--for", "10m"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    assert!(output.starts_with("policy:search: deny until 20"), "{output}");
    let registry = in_force(&redis).await;
    let suspension = registry.suspensions().remove(0);
    assert_eq!(
        (suspension.mode(), suspension.reason()),
        (SuspensionMode::Deny, Some("broken client"))
    );
    assert!(registry.get("search").is_some(), "the policies stay");

    let (code, _, errors) = kill(&redis, &["policy:search", "--end"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(in_force(&redis).await.suspensions().is_empty());
    let until = ["all", "--enforcement", "off", "--reason", "x", "--until"];
    let (code, _, errors) = kill(&redis, &[&until[..], &["2040-01-01T00:00:00Z"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    for (time, expected) in [
        ("soon", "expected a time"),
        ("2001-01-01T00:00:00Z", "expected an end in the future"),
    ] {
        let (code, _, errors) = kill(&redis, &[&until[..], &[time]].concat());
        assert!(code == Some(1) && errors.contains(expected), "{errors}");
    }
    assert_eq!(kill(&redis, &["search", "--end"]).0, Some(2), "not a scope");
    let (code, _, errors) = kill(&redis, &["policy:serch", "--end"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("no suspension of `policy:serch`"), "{errors}");
    let mistaken = ["policy:serch", "--enforcement", "off", "--reason", "a mistake"];
    let (code, _, errors) = kill(&redis, &mistaken);
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("no policy `serch`"), "{errors}");
}

/// A program has published a policy with an error: the suspension takes effect beside it, and the
/// policy stays.
#[tokio::test(flavor = "multi_thread")]
async fn kill_works_beside_an_unreadable_policy() {
    let redis = RedisServer::start();
    let broken = format!("revision = 7\n{TEXT}[policy.b]\nalgorithm = 'of_the_future'\nunknown = 1\n");
    redis.command(&["SET", "prod|book", &broken]);
    let text = || redis.command(&["GET", "prod|book"]).text();
    let deny = ["policy:search", "--enforcement", "deny", "--reason", "incident"];
    let (code, output, errors) = kill(&redis, &deny);
    assert_eq!(code, Some(0), "{errors}");
    assert!(output.contains("deny until 20"), "{output}");
    let follower = Limiter::redis(redis.url()).namespace("prod").build().unwrap();
    let source = follower.redis_registry().unwrap().follow();
    // The unreadable policy remains an error.
    source.synced().await.unwrap_err();
    let suspension = follower.registry().suspensions().remove(0);
    assert_eq!(
        (suspension.mode(), suspension.reason()),
        (SuspensionMode::Deny, Some("incident"))
    );
    assert!(follower.registry().get("search").is_some());
    assert!(
        text().contains("of_the_future") && text().contains("unknown = 1"),
        "{}",
        text()
    );

    let (code, _, errors) = kill(&redis, &["all", "--end"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("expected one of: policy:search"), "{errors}");
    let (code, _, errors) = kill(&redis, &["policy:search", "--end"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(
        !text().contains("suspend") && text().contains("of_the_future"),
        "{}",
        text()
    );
    redis.command(&["SET", "prod|book", "revision = 9\nmin_reader = 99\n"]);
    let (code, _, errors) = kill(&redis, &deny);
    assert!(
        code == Some(1) && errors.contains("needs a reader of format 99"),
        "{errors}"
    );
}

/// Another program replaces the suspension before its publication.
#[test]
fn suspension_in_conflict_was_not_in_force() {
    let redis = RedisServer::start();
    let proxy = limiter_testing::Proxy::start(redis.port());
    let server = with_sqlite(&["--redis", &proxy.url(), "--namespace", "default"]);
    let root = AdminClient::set_up(&server);
    proxy.refuse(true);
    proxy.drop_connections();
    let body = json!({ "scope": "all", "enforcement": "deny", "for_seconds": 600 });
    let saved = root.send("POST", SUSPENSIONS, &[], &body);
    assert_eq!(saved.status, 200, "{}", saved.body);
    let at = limiter_server::store::now_micros();
    let url = redis.url();
    let suspend = [
        "kill",
        "all",
        "--enforcement",
        "shadow",
        "--reason",
        "r",
        "--create",
    ];
    let (code, _, errors) = run(&[&suspend[..], &["--redis", &url, "--namespace", "default"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    proxy.refuse(false);
    let history = || root.get("/namespaces/default/audit").body;
    wait_until(|| history().contains("overlays.conflict"), || server.log());
    let listed = |query: &str| root.get(&format!("{SUSPENSIONS}{query}")).json()["suspensions"].clone();
    assert_eq!(listed("")[0]["enforcement"], "shadow");
    assert_eq!(listed(&format!("?at={at}")), json!([]));
}

/// A suspension by `kill` becomes a revision of the database, and is published again after Redis
/// has lost its data.
#[tokio::test(flavor = "multi_thread")]
async fn suspension_from_outside_is_imported_and_restored() {
    let (directory, redis) = (Directory::new(), RedisServer::start());
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let store = Store::open(&url).await.unwrap();
    let target = PublicationTarget::Redis(registry_of(&redis));
    let publisher = Publisher::new("prod", store.clone(), target);
    registry_of(&redis).publish(TEXT, 0).await.unwrap();
    publisher.publish().await.unwrap();
    let args = ["all", "--enforcement", "shadow", "--reason", "incident"];
    assert_eq!(kill(&redis, &args).0, Some(0));
    publisher.publish().await.unwrap();
    let document = store.document("prod", DocumentKind::Overlays, OVERLAYS).await;
    let document = document.unwrap().unwrap();
    assert!(
        document.body.contains("reason = \"incident\""),
        "{}",
        document.body
    );
    assert_eq!((document.revision, document.updated_by.as_str()), (1, "outside"));
    redis.command(&["FLUSHALL"]);
    publisher.publish().await.unwrap();
    let restored = in_force(&redis).await;
    assert_eq!(restored.suspensions()[0].reason(), Some("incident"));
    assert!(restored.get("search").is_some());
}

/// The gateway of the server follows the registry and is listed.
#[test]
fn subscribers_are_listed() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = with_sqlite(&["--redis", &url, "--namespace", "prod"]);
    let root = AdminClient::set_up(&server);
    let path = "/namespaces/prod/subscribers";
    wait_until(
        || {
            !root.get(path).json()["subscribers"]
                .as_array()
                .unwrap()
                .is_empty()
        },
        || server.log(),
    );
    let listed = root.get(path).json();
    assert_eq!(listed["subscribers"][0]["supports_overlays"], true, "{listed}");
    let suspensions = root.get("/namespaces/prod/suspensions").json();
    assert_eq!(suspensions["unsupported_by"], json!([]), "{suspensions}");
}

/// A quota with an end, and a trial that is adopted, are revisions of the policy.
#[test]
fn quotas_and_trials_change_the_policy() {
    let (server, root) = with_policy();
    let path = "/namespaces/default/policies/search";
    let send = |method: &str, of: &str, revision: &str, body: &Value| {
        root.send(method, &format!("{path}/{of}"), &[("if-match", revision)], body)
    };
    let toml = || root.get(path).json()["toml"].as_str().unwrap().to_owned();
    let quota = json!({ "key": "ann", "capacity": 7, "rate": "5/s", "for_seconds": 600, "reason": "sale" });
    let saved = send("POST", "quotas", "1", &quota);
    assert_eq!(saved.status, 200, "{}", saved.body);
    let text = toml();
    assert!(
        text.contains("key = \"ann\"\ncapacity = 7\nrate = \"5/s\"\nuntil = 20"),
        "{text}"
    );
    // The gateway decides by the quota of the key; other keys keep the policy.
    let limit_of = |key: &str| {
        let body = json!({ "policy": "search", "key": key });
        let peeked = post_as(&server, None, "/v1/peek", &body);
        peeked.json()["limits"][0]["limit"].as_i64()
    };
    wait_until(|| limit_of("ann") == Some(7), || server.log());
    assert_eq!(limit_of("bob"), Some(1));
    assert_eq!([check(&server, "ann").0, check(&server, "ann").0], [200, 200]);
    assert_eq!(send("POST", "quotas", "1", &quota).status, 409, "a conflict");
    let invalid = send(
        "POST",
        "quotas",
        "2",
        &json!({ "key": "ann", "limit": 7, "window": "1s" }),
    );
    assert_eq!(invalid.status, 422, "{}", invalid.body);
    assert_eq!(
        send("DELETE", "quotas", "2", &json!({ "key": "bob" })).status,
        404
    );
    assert_eq!(
        send("DELETE", "quotas", "2", &json!({ "key": "ann" })).status,
        200
    );
    assert!(!toml().contains("override"));

    assert_eq!(send("POST", "trial/adopt", "3", &json!({})).status, 404);
    let trial = json!({ "capacity": 9, "rate": "9/s", "for_seconds": 600 });
    assert_eq!(send("PUT", "trial", "3", &trial).status, 200);
    assert!(
        toml().contains("trial = { capacity = 9, rate = \"9/s\", until = 20"),
        "{}",
        toml()
    );
    assert_eq!(send("DELETE", "trial", "4", &Value::Null).status, 200);
    assert!(!toml().contains("trial"));
    assert_eq!(send("PUT", "trial", "5", &trial).status, 200);
    assert_eq!(send("POST", "trial/adopt", "6", &json!({})).status, 200);
    let text = toml();
    assert!(
        text.contains("capacity = 9\nrate = \"9/s\"") && !text.contains("trial"),
        "{text}"
    );
}

/// A policy with a rule for the descriptor of its name.
fn policy_of(name: &str, apps: &str) -> String {
    format!(
        "[policy.{name}]\nalgorithm = 'sliding_window'\nlimit = 100\nwindow = '1h'\n{apps}\n\n\
         [[rule]]\nmatch = ['{name}']\npolicy = '{name}'\n\n"
    )
}

/// A server whose policies belong to `checkout`, to two apps, and to all.
fn with_apps(overlay: &str) -> Server {
    let policies = [
        policy_of("search", "apps = ['checkout']"),
        policy_of("shared", "apps = ['billing', 'checkout']"),
        policy_of("open", ""),
    ];
    let text = format!("format = 2\nmin_reader = 2\n{}{overlay}", policies.concat());
    let scopes = ["check:app=checkout", "check:policy=shared", "check:policy=open"];
    Server::with_settings(&text, &entry("edge", TOKEN, &scopes), &[])
}

/// The origin of the denial over HTTP, and whether Envoy's protocol denies.
fn denial(server: &Server, policy: &str, key: &str) -> (Option<String>, bool) {
    let body = json!({ "policy": policy, "key": key });
    let answer = post(server, "/v1/check", &body);
    assert!([200, 403].contains(&answer.status), "{}", answer.body);
    let origin = answer.json()["origin"].as_str().map(str::to_owned);
    let client = RlsClient::connect(server.grpc()).with_token(TOKEN);
    let code = client.decide(&request(&[descriptor(policy, key)]));
    let code = code.unwrap().overall_code();
    (origin.filter(|_| answer.status == 403), code == Code::OverLimit)
}

#[test]
fn overlays_of_an_app_apply_at_the_gateway_to_policies_of_this_app() {
    let server = with_apps("[[block]]\nkey = 'eve'\napp = 'checkout'\n");
    let blocked = (Some("block".to_owned()), true);
    assert_eq!(denial(&server, "search", "eve"), blocked);
    assert_eq!(denial(&server, "search", "ann"), (None, false));
    for policy in ["shared", "open"] {
        assert_eq!(denial(&server, policy, "eve"), (None, false), "{policy}");
    }
    let suspended =
        "[[suspend]]\nscope = 'app:checkout'\nenforcement = 'deny'\nuntil = 2100-01-01T00:00:00Z\n";
    let server = with_apps(suspended);
    let denied = (Some("suspension".to_owned()), true);
    assert_eq!(denial(&server, "search", "ann"), denied);
    for policy in ["shared", "open"] {
        assert_eq!(denial(&server, policy, "ann"), (None, false), "{policy}");
    }
}
