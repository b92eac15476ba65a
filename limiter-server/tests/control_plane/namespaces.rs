//! Several namespaces of one server: the admin part manages all, the gateway serves one.

use limiter_server::settings::Settings;
use limiter_testing::{RedisServer, RespValue};
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, PASSWORD, policy, policy_of_all, with_database};
use crate::support::http::{self, Response};
use crate::support::server::{Directory, Server, wait_until};

/// A server with the namespaces `prod`, which its gateway serves, and `staging`.
struct Environments {
    server: Server,
    root: AdminClient,
    prod: RedisServer,
    staging: RedisServer,
}

impl Environments {
    fn start() -> Self {
        let (prod, staging) = (RedisServer::start(), RedisServer::start());
        let directory = Directory::new();
        let database = directory.path().join("limiter.db");
        directory.write(
            "limiter-server.toml",
            &format!(
                "gateway_namespace = 'prod'\n\
                 [namespace.prod]\nredis = '{}'\nlabel = 'PRODUCTION'\ncolour = 'red'\n\
                 [namespace.staging]\nredis = '{}'\n",
                prod.url(),
                staging.url()
            ),
        );
        let url = format!("sqlite:{}", database.display());
        let server = with_database(directory, &url, &[]);
        let root = AdminClient::set_up(&server);
        Self {
            server,
            root,
            prod,
            staging,
        }
    }

    fn save(&self, namespace: &str, name: &str, toml: &str) -> Response {
        let path = format!("/namespaces/{namespace}/policies/{name}");
        let body = json!({ "toml": toml });
        self.root.send("PUT", &path, &[("if-none-match", "*")], &body)
    }

    fn is_published(redis: &RedisServer, namespace: &str, policy: &str) -> bool {
        let key = format!("{namespace}|book");
        match redis.command(&["GET", &key]) {
            RespValue::Bulk(text) => {
                String::from_utf8_lossy(&text).contains(&format!("[policy.\"{policy}\"]"))
            }
            _ => false,
        }
    }

    fn check(&self, policy: &str) -> u16 {
        let body = json!({ "policy": policy, "key": "ann" }).to_string();
        http::post(self.server.http(), "/v1/check", &[], &body)
            .unwrap()
            .status
    }
}

#[test]
fn admin_manages_all_namespaces_and_gateway_serves_one() {
    let environments = Environments::start();
    assert_eq!(
        environments
            .save("prod", "search", &policy_of_all("search", 1))
            .status,
        200
    );
    assert_eq!(
        environments
            .save("staging", "trial", &policy_of_all("trial", 1))
            .status,
        200
    );
    let log = || environments.server.log();
    wait_until(
        || Environments::is_published(&environments.prod, "prod", "search"),
        log,
    );
    wait_until(
        || Environments::is_published(&environments.staging, "staging", "trial"),
        log,
    );
    assert!(!Environments::is_published(&environments.prod, "prod", "trial"));
    assert!(!Environments::is_published(
        &environments.staging,
        "staging",
        "search"
    ));
    // The gateway denies the second call by the policy of its namespace.
    wait_until(|| environments.check("search") == 429, log);
    assert_eq!(environments.check("trial"), 404);
}

#[test]
fn gateway_does_not_answer_for_a_foreign_namespace() {
    let environments = Environments::start();
    assert_eq!(
        environments
            .save("staging", "search", &policy_of_all("search", 1))
            .status,
        200
    );
    assert_eq!(
        environments
            .save("prod", "search", &policy_of_all("search", 1))
            .status,
        200
    );
    let log = || environments.server.log();
    wait_until(|| environments.check("search") == 429, log);
    let root = &environments.root;
    let get = |path: &str| root.get(&format!("/namespaces/{path}"));
    assert_eq!(get("prod/keys?key=ann").status, 200);
    assert_eq!(get("staging/keys?key=ann").status, 503);
    let send = |namespace: &str, action: &str, body: &Value| {
        let path = format!("/namespaces/{namespace}/policies/search/{action}");
        root.send("POST", &path, &[], body).status
    };
    assert_eq!(send("prod", "test-calls", &Value::Null), 200);
    assert_eq!(send("staging", "test-calls", &Value::Null), 503);
    assert_eq!(send("staging", "keys/reset", &json!({ "key": ["ann"] })), 503);
    assert!(get("prod/unmatched").json()["unmatched"].is_array());
    assert_eq!(get("staging/unmatched").json()["unmatched"], Value::Null);
    assert_eq!(get("staging/keys/activity").json()["keys"], Value::Null);
    let connect = get("staging/connect").json();
    assert_eq!(
        (&connect["sees_calls"], &connect["http"]),
        (&json!(false), &Value::Null)
    );
    assert!(get("prod/connect").json()["http"].is_string());
}

#[test]
fn roles_of_one_namespace_give_nothing_in_another() {
    let environments = Environments::start();
    let root = &environments.root;
    for namespace in ["prod", "staging"] {
        let saved = environments.save(namespace, "search", &policy("search", 5, "web"));
        assert_eq!(saved.status, 200, "{}", saved.body);
    }
    let user = json!({ "name": "ann", "password": PASSWORD });
    assert_eq!(root.send("POST", "/users", &[], &user).status, 201);
    let path = "/namespaces/staging/grants/user/ann/*";
    assert_eq!(
        root.send("PUT", path, &[], &json!({ "role": "admin" })).status,
        204
    );
    let ann = root.sign_in("ann");
    let names = |client: &AdminClient| {
        let list = client.get("/namespaces").json();
        let list = list["namespaces"].as_array().unwrap().clone();
        list.iter()
            .map(|of| of["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(root), ["prod", "staging"]);
    assert_eq!(names(&ann), ["staging"]);
    let document = root.get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    let mut tried = 0;
    for (path, methods) in paths.iter().filter(|(path, _)| path.contains("{namespace}")) {
        let path = path.trim_start_matches("/admin/v1");
        let values = [
            ("name", "search"),
            ("id", "1"),
            ("number", "1"),
            ("app", "web"),
            ("kind", "user"),
            ("subject", "ann"),
        ];
        let path = values.iter().fold(path.to_owned(), |path, (name, value)| {
            path.replace(&format!("{{{name}}}"), value)
        });
        for method in methods.as_object().unwrap().keys() {
            for foreign in ["prod", "absent"] {
                let path = path.replace("{namespace}", foreign);
                let headers = [("if-match", "\"1\"")];
                let body = match method.as_str() {
                    "get" => Value::Null,
                    _ => json!({}),
                };
                let status = ann.send(&method.to_uppercase(), &path, &headers, &body).status;
                // A body is read before the namespace is known.
                assert!(matches!(status, 400 | 404 | 422), "{method} {path}: {status}");
                assert!(!body.is_null() || status == 404, "{method} {path}: {status}");
                tried += 1;
            }
        }
    }
    assert!(tried > 80, "{tried}");
    assert_eq!(ann.get("/namespaces/staging/policies/search").status, 200);
}

#[test]
fn names_and_colours_of_the_settings_apply_until_an_administrator_changes_them() {
    let environments = Environments::start();
    let root = &environments.root;
    let look = |index: usize| {
        let list = root.get("/namespaces").json();
        let of = list["namespaces"][index].clone();
        (
            of["label"].as_str().unwrap().to_owned(),
            of["colour"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(look(0), ("PRODUCTION".to_owned(), "red".to_owned()));
    assert_eq!(look(1), (String::new(), "grey".to_owned()));
    let body = json!({ "label": "Live", "colour": "amber" });
    assert_eq!(root.send("PUT", "/namespaces/prod", &[], &body).status, 204);
    assert_eq!(look(0), ("Live".to_owned(), "amber".to_owned()));
}

#[test]
fn ambiguous_namespaces_are_rejected() {
    let two = "[namespace.a]\nredis = 'redis://h'\n[namespace.b]\nredis = 'redis://h'\n";
    for (text, expected) in [
        (two.to_owned(), "gateway_namespace"),
        (format!("gateway_namespace = 'c'\n{two}"), "[namespace.NAME]"),
        (
            format!("redis = 'redis://h'\ngateway_namespace = 'a'\n{two}"),
            "one of both",
        ),
        ("[namespace.a]\nlabel = 'A'\n".to_owned(), "names no Redis"),
        (
            "[namespace.a]\nredis = 'redis://h'\ncolour = 'pink'\n".to_owned(),
            "grey, blue",
        ),
        (
            "[namespace.a]\nredis = 'redis://h'\nunknown = 1\n".to_owned(),
            "[namespace.prod]",
        ),
    ] {
        let directory = Directory::new();
        let path = directory.write(
            "limiter-server.toml",
            &format!("database = 'sqlite:x.db'\n{text}"),
        );
        let error = Settings::of_file(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
