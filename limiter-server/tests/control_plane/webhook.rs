//! Events for the receiver that the settings file names.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use limiter_core::Limiter;
use limiter_core::registry::PolicyRegistry;
use limiter_testing::{Proxy, RedisServer};
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy_of_all, with_database};
use crate::support::databases::{execute, texts};
use crate::support::server::{Directory, Server, wait_until};

/// A receiver that answers with the statuses of a list, and with the last one from then on.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    fn start(answers: &[&str]) -> Self {
        Self::with_hook(answers, || {})
    }

    /// Runs a hook before each answer.
    fn with_hook(answers: &[&str], hook: impl Fn() + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            bodies: Arc::default(),
        };
        let (bodies, mut answers) = (
            Arc::clone(&receiver.bodies),
            answers.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(),
        );
        // The thread ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                bodies
                    .lock()
                    .unwrap()
                    .push(serde_json::from_slice(&body).unwrap_or(Value::Null));
                hook();
                let answer = match answers.len() {
                    1 => answers[0].clone(),
                    _ => answers.remove(0),
                };
                let _ = write!(
                    reader.get_mut(),
                    "HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
            }
        });
        receiver
    }

    fn bodies(&self) -> Vec<Value> {
        self.bodies.lock().unwrap().clone()
    }
}

/// A server that sends its events to a receiver.
fn server_with(receiver: &Receiver) -> (Server, AdminClient) {
    server_with_args(receiver, &[])
}

fn server_with_args(receiver: &Receiver, args: &[&str]) -> (Server, AdminClient) {
    let directory = Directory::new();
    let settings = format!("[webhook]\nurl = 'http://{}/events?key=k'\n", receiver.address);
    directory.write("limiter-server.toml", &settings);
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let server = with_database(directory, &url, args);
    let root = AdminClient::set_up(&server);
    (server, root)
}

#[test]
fn receiver_gets_saves_and_suspensions_again_after_failures() {
    let receiver = Receiver::start(&["500 Internal Server Error", "204 No Content"]);
    let (server, root) = server_with(&receiver);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 1));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let body = json!({ "scope": "all", "enforcement": "off", "for_seconds": 600 });
    let path = "/namespaces/default/suspensions";
    assert_eq!(root.send("POST", path, &[], &body).status, 200);
    wait_until(|| receiver.bodies().len() >= 3, || server.log());
    let bodies = receiver.bodies();
    assert_eq!(bodies[0], bodies[1], "the failed event is sent again");
    assert_eq!(
        (&bodies[0]["event"], &bodies[0]["object"], &bodies[0]["actor"]),
        (&json!("save"), &json!("search"), &json!("root"))
    );
    assert_eq!(bodies[2]["event"], "suspension");
    assert_eq!(bodies.len(), 3, "the sign-in is no event: {bodies:?}");
    let sample = "limiter_server_webhook_events_total{result=\"failed\"}";
    wait_until(|| server.metric(sample) > 0.5, || server.log());
    assert!(!server.log().contains("key=k"), "the URL is secret");
}

/// Adds entries of the audit with an old time, in one statement.
fn add_entries(url: &str, action: &str, count: u32) {
    let sql = format!(
        "INSERT INTO audit (namespace, created_at, actor, action, object) \
         WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) \
         SELECT 'default', 1, 'ann', '{action}', 'p' || n FROM numbers"
    );
    execute(url, &[sql]);
}

/// A slow receiver outlasts the claim of the task, and another node goes on.
#[test]
fn node_whose_position_another_node_has_moved_sends_no_further_events() {
    let directory = Directory::new();
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let moved = url.clone();
    let receiver = Receiver::with_hook(&["204 No Content"], move || {
        let newest = "UPDATE setting SET content = (SELECT MAX(id) FROM audit) WHERE name = 'webhook'";
        execute(&moved, &[newest.to_owned()]);
    });
    let settings = format!("[webhook]\nurl = 'http://{}/'\n", receiver.address);
    directory.write("limiter-server.toml", &settings);
    let server = with_database(directory, &url, &[]);
    let root = AdminClient::set_up(&server);
    add_entries(&url, "policy.update", 3);
    wait_until(|| !receiver.bodies().is_empty(), || server.log());
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    let objects = || {
        let bodies = receiver.bodies();
        bodies.iter().map(|of| of["object"].clone()).collect::<Vec<_>>()
    };
    wait_until(|| objects().contains(&json!("search")), || server.log());
    assert_eq!(objects(), [json!("p1"), json!("search")]);
}

/// Reads of keys are no events, and would be read again at each pass.
#[test]
fn position_moves_past_many_entries_that_are_no_events() {
    let receiver = Receiver::start(&["204 No Content"]);
    let (server, root) = server_with(&receiver);
    let url = format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    );
    add_entries(&url, "key.read", 1_500);
    let number = |sql: &str| texts(&url, sql)[0].parse::<i64>().unwrap();
    let newest = number("SELECT CAST(MAX(id) AS TEXT) FROM audit WHERE action = 'key.read'");
    let position = || number("SELECT content FROM setting WHERE name = 'webhook'");
    wait_until(|| position() >= newest, || server.log());
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    wait_until(|| !receiver.bodies().is_empty(), || server.log());
}

/// Another program publishes a policy while a save of the same policy waits for Redis.
#[test]
fn receiver_gets_the_conflict_of_a_save_with_a_change_outside() {
    let (receiver, redis) = (Receiver::start(&["204 No Content"]), RedisServer::start());
    let connection = Proxy::start(redis.port());
    let (server, root) = server_with_args(&receiver, &["--redis", &connection.url()]);
    let path = "/namespaces/default/policies/search";
    let state = || root.get(path).json()["state"].clone();
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 5)).status,
        200
    );
    wait_until(|| state() == "published", || server.log());
    connection.refuse(true);
    connection.drop_connections();
    assert_eq!(
        root.put_policy("search", 1, &policy_of_all("search", 6)).status,
        200
    );
    let outside = PolicyRegistry::from_toml(&policy_of_all("search", 50)).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let limiter = Limiter::redis(redis.url()).namespace("default").build().unwrap();
        let registry = limiter.redis_registry().unwrap();
        let edited = registry.edit(|draft| {
            draft.set((*outside.get("search").unwrap()).clone());
            Ok(())
        });
        edited.await.unwrap();
    });
    connection.refuse(false);
    let conflicts = || {
        let bodies = receiver.bodies().into_iter();
        bodies
            .filter(|body| body["event"] == "conflict")
            .collect::<Vec<_>>()
    };
    wait_until(|| !conflicts().is_empty(), || server.log());
    let [conflict] = &conflicts()[..] else {
        panic!("{:?}", receiver.bodies());
    };
    assert_eq!(
        (
            &conflict["action"],
            &conflict["object"],
            &conflict["actor"],
            &conflict["namespace"]
        ),
        (
            &json!("policy.conflict"),
            &json!("search"),
            &json!("root"),
            &json!("default")
        )
    );
    assert!(
        conflict["detail"]
            .as_str()
            .unwrap()
            .contains("revision 2 is not in force"),
        "{conflict}"
    );
    assert_eq!(state(), "conflict");
    let page = root.page("/e/default/policies/search").body;
    assert!(
        page.contains("Edit the policy to save your change again"),
        "{page}"
    );
}

#[test]
fn redirects_are_not_followed_and_refused_events_are_dropped() {
    let target = Receiver::start(&["204 No Content"]);
    let redirect = format!("302 Found\r\nlocation: http://{}/", target.address);
    let receiver = Receiver::start(&[&redirect]);
    let (server, root) = server_with(&receiver);
    root.put_policy("search", 0, &policy_of_all("search", 1));
    let sample = "limiter_server_webhook_events_total{result=\"dropped\"}";
    wait_until(|| server.metric(sample) > 0.5, || server.log());
    assert_eq!(receiver.bodies().len(), 5);
    assert_eq!(target.bodies(), Vec::<Value>::new());
}

/// A user who could set the receiver could reach hosts of the operator's network through the
/// server.
#[test]
fn receiver_is_not_settable_by_the_api() {
    let receiver = Receiver::start(&["204 No Content"]);
    let other = Receiver::start(&["204 No Content"]);
    let (server, root) = server_with(&receiver);
    let url = format!("http://{}/", other.address);
    let document = root.get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 20);
    // Every route that accepts a body receives the setting.
    let body = json!({ "webhook": { "url": url }, "webhook_url": url, "url": url });
    for (path, methods) in paths {
        let path = path
            .trim_start_matches("/admin/v1")
            .replace("{namespace}", "default");
        for method in methods.as_object().unwrap().keys() {
            if path == "/session" || method == "get" {
                continue;
            }
            root.send(&method.to_uppercase(), &path, &[("if-none-match", "*")], &body);
        }
    }
    let saved = root.put_policy("search", 0, &policy_of_all("search", 1));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let has_search = || receiver.bodies().iter().any(|body| body["object"] == "search");
    wait_until(has_search, || server.log());
    assert_eq!(other.bodies(), Vec::<Value>::new());
    assert!(!document.to_string().contains("webhook"));
}

#[test]
fn invalid_receivers_are_rejected_without_their_url() {
    for url in [
        "ftp://host/secret",
        "http://user:secret@host/",
        "/secret",
        "gopher://secret",
    ] {
        let directory = Directory::new();
        let settings = format!("database = 'sqlite:x.db'\n[webhook]\nurl = '{url}'\n");
        let path = directory.write("limiter-server.toml", &settings);
        let error = limiter_server::settings::Settings::of_file(&path).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("webhook.url") && !error.contains("secret"),
            "{error}"
        );
    }
}
