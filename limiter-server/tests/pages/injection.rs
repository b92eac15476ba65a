//! SQL in every text input of the pages and of the API, on each database.

use limiter_server::admin::api::routes::{ROUTES, Route};
use serde_json::{Value, json};

use super::attacks::{PARAMETERS, send_in_every_field};
use crate::support::admin::{AdminClient, Credentials, PASSWORD, policy};
use crate::support::browser::{Browser, encode};
use crate::support::databases::Database;
use crate::support::http;
use crate::support::server::{Directory, Server, wait_until};

/// Texts that change a statement if it contains them.
const ATTACKS: [&str; 4] = [
    "' OR '1'='1",
    "x'); DELETE FROM account; DROP TABLE document; --",
    "search' UNION SELECT name, password, 1, 1, 1, 1, 1, 1 FROM account --",
    "%' ESCAPE '\\' OR $1 = ? /*",
];
/// PostgreSQL stores no NUL in a text.
const NUL: &str = "a\0b";

fn server_on(database: &Database) -> (Server, AdminClient) {
    let url = database.create("injection");
    let server = Server::start(Directory::new(), &["--database", &url, "--admin", "127.0.0.1:0"]);
    wait_until(
        || http::get(server.admin(), "/healthz", &[]).is_ok_and(|answer| answer.status == 200),
        || server.log(),
    );
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy("search", 5, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    (server, root)
}

/// The requests of the API with a text in every place of a text: method, path, body.
fn requests(text: &str) -> Vec<(&'static str, String, Value)> {
    let (base, part) = ("/namespaces/default", encode(text));
    let toml = policy("attack", 5, "shop");
    let mut requests = vec![
        (
            "PUT",
            format!("{base}/policies/{part}"),
            json!({ "toml": toml, "reason": text }),
        ),
        (
            "PUT",
            format!("{base}/policies/attack"),
            json!({ "toml": toml, "reason": text }),
        ),
        ("PUT", format!("{base}/policies/attack"), json!({ "toml": text })),
        (
            "POST",
            format!("{base}/policies/search/preview"),
            json!({ "toml": text }),
        ),
        (
            "POST",
            format!("{base}/policies/search/keys/reset"),
            json!({ "key": [text] }),
        ),
        (
            "POST",
            format!("{base}/policies/search/quotas"),
            json!({ "key": [text], "capacity": 9, "rate": "1/s", "reason": text }),
        ),
        (
            "PUT",
            format!("{base}/rules"),
            json!({ "toml": text, "reason": text }),
        ),
        (
            "POST",
            format!("{base}/rules/match"),
            json!({ "domain": text, "entries": [[text, text]] }),
        ),
        (
            "POST",
            format!("{base}/import"),
            json!({ "policies": [{ "name": text, "toml": toml }], "reason": text }),
        ),
        (
            "POST",
            format!("{base}/suspensions"),
            json!({ "scope": format!("app:{text}"), "enforcement": "off", "for_seconds": 60, "reason": text }),
        ),
        (
            "POST",
            format!("{base}/blocks"),
            json!({ "key": text, "for_seconds": 60, "reason": text }),
        ),
        ("DELETE", format!("{base}/suspensions/{part}"), Value::Null),
        ("DELETE", format!("{base}/blocks/{part}"), Value::Null),
        (
            "PUT",
            format!("{base}/apps/{part}"),
            json!({ "bounds": { "max_capacity": 5 } }),
        ),
        (
            "PUT",
            format!("{base}/grants/user/{part}/shop"),
            json!({ "role": "viewer" }),
        ),
        (
            "PUT",
            format!("{base}/grants/group/{part}/{part}"),
            json!({ "role": "viewer" }),
        ),
        ("DELETE", format!("{base}/grants/user/{part}/{part}"), Value::Null),
        (
            "POST",
            format!("{base}/tokens"),
            json!({ "name": text, "scopes": ["check:*"], "days": 1 }),
        ),
        ("DELETE", format!("{base}/tokens/{part}"), Value::Null),
        (
            "POST",
            format!("{base}/proposals/{part}/approve"),
            json!({ "reason": text }),
        ),
        ("PUT", base.to_owned(), json!({ "label": text, "colour": "grey" })),
        (
            "POST",
            "/users".to_owned(),
            json!({ "name": text, "password": PASSWORD }),
        ),
        (
            "PUT",
            format!("/users/{part}"),
            json!({ "admin": true, "disabled": false }),
        ),
        (
            "PUT",
            format!("/users/{part}/password"),
            json!({ "password": PASSWORD }),
        ),
        ("DELETE", format!("/users/{part}"), Value::Null),
        (
            "POST",
            "/session".to_owned(),
            json!({ "user": text, "password": text }),
        ),
    ];
    let lists = [
        "policies",
        "policies/search/history",
        "policies/search/usage",
        "keys",
        "keys/activity",
        "denials",
    ];
    let lists = lists.into_iter().chain([
        "usage",
        "suspensions",
        "blocks",
        "apps",
        "grants",
        "tokens",
        "proposals",
        "audit",
    ]);
    let parameters = "after limit app q before object actor users policy key from to hours";
    for list in lists {
        for name in parameters.split(' ') {
            requests.push(("GET", format!("{base}/{list}?{name}={part}"), Value::Null));
        }
    }
    requests.push(("GET", format!("/audit?object={part}&actor={part}"), Value::Null));
    requests.push(("GET", format!("{base}/policies/{part}"), Value::Null));
    requests.push(("GET", format!("{base}/policies/{part}/history"), Value::Null));
    requests.extend(unlisted(&requests, text));
    requests
}

/// Requests of the routes that a list lacks, with a text in each part of the path and as reason.
fn unlisted(listed: &[(&'static str, String, Value)], text: &str) -> Vec<(&'static str, String, Value)> {
    let is_of = |route: &Route, path: &str| {
        let segments = path.split('?').next().unwrap_or_default().split('/');
        let pattern: Vec<&str> = route.path.split('/').collect();
        let segments: Vec<&str> = segments.collect();
        let mut pairs = pattern.iter().zip(&segments);
        pattern.len() == segments.len() && pairs.all(|(part, of)| part.starts_with('{') || part == of)
    };
    let is_listed = |route: &&Route| {
        let mut requests = listed.iter();
        requests.any(|(method, path, _)| *method == route.method && is_of(route, path))
    };
    // The session of the test stays.
    let is_sign_out = |route: &&Route| (route.method, route.path) == ("DELETE", "/session");
    let routes = ROUTES
        .iter()
        .filter(|route| !is_listed(route) && !is_sign_out(route));
    let requests = routes.filter_map(|route| {
        let segments = route.path.split('/').map(|part| match part {
            "{namespace}" => "default".to_owned(),
            part if part.starts_with('{') => encode(text),
            part => part.to_owned(),
        });
        let path = segments.collect::<Vec<_>>().join("/");
        let has_text = path.contains(&encode(text));
        match route.method {
            "GET" => has_text.then_some((route.method, path, Value::Null)),
            method => Some((method, path, json!({ "reason": text }))),
        }
    });
    requests.collect()
}

/// Nothing but the accepted texts has changed.
fn assert_intact(root: &AdminClient, created: &[&str]) {
    let users = root.get("/users").json();
    let users = users["users"].as_array().unwrap().iter();
    let users = users.map(|of| of["name"].as_str().unwrap());
    let users: Vec<&str> = users.filter(|name| !created.contains(name)).collect();
    assert_eq!(users, ["root"]);
    let search = root.get("/namespaces/default/policies/search").json();
    assert_eq!(search["name"], "search", "{search}");
}

fn attack(database: &Database) {
    let (server, root) = server_on(database);
    // Later sign-ins are limited.
    let mut browser = Browser::signed_in(&server, "root");
    for text in ATTACKS.into_iter().chain([NUL]) {
        for (method, path, body) in requests(text) {
            let conditions = [("if-none-match", "*")];
            let answer = root.send(method, &path, &conditions, &body);
            assert!(answer.status < 500, "{method} {path}: {}", answer.body);
            if text == NUL && path != "/session" {
                assert!(
                    (400..500).contains(&answer.status),
                    "{method} {path}: {}",
                    answer.body
                );
            }
            assert!(!answer.body.contains("argon2"), "{path}: {}", answer.body);
        }
        assert_intact(&root, &ATTACKS);
        // Filters compare the whole text.
        let part = encode(text);
        for path in [
            format!("/namespaces/default/audit?object={part}%20none"),
            format!("/namespaces/default/policies?q={part}%20none"),
            format!("/namespaces/default/denials?key={part}"),
        ] {
            let answer = root.get(&path);
            match text {
                NUL => {
                    assert_eq!(answer.status, 422, "{path}");
                    let field = if path.contains("?q=") {
                        "`q`"
                    } else {
                        "the parameter"
                    };
                    assert!(answer.body.contains(field), "{}", answer.body);
                }
                _ => {
                    let found = answer.json();
                    let lists = found.as_object().unwrap().values().filter_map(Value::as_array);
                    assert_eq!(lists.map(Vec::len).sum::<usize>(), 0, "{path}: {found}");
                }
            }
        }
        let anonymous = AdminClient::new(server.admin(), Credentials::None);
        for user in [format!("root{text}"), text.to_owned()] {
            let body = json!({ "user": user, "password": PASSWORD });
            let answer = anonymous.send("POST", "/session", &[], &body);
            assert!(matches!(answer.status, 201 | 401 | 422 | 429), "{}", answer.body);
            assert!(answer.status != 201 || user == text, "{user}");
        }
    }
    let note =
        "[policy.noted]\nalgorithm = 'token_bucket'\ncapacity = 5\nrate = '1/h'\nnote = \"a\\u0000b\"\n";
    let saved = root.put_policy("noted", 0, note);
    assert_eq!(saved.status, 422, "{}", saved.body);
    assert!(
        saved
            .body
            .contains("the note of the policy contains the character NUL"),
        "{}",
        saved.body
    );
    let named = root.send(
        "POST",
        "/users",
        &[],
        &json!({ "name": NUL, "password": PASSWORD }),
    );
    assert_eq!(named.status, 422, "{}", named.body);
    assert!(
        named.body.contains("the field `name` contains the character NUL"),
        "{}",
        named.body
    );

    // The pages call the API, so two texts are enough.
    for text in [ATTACKS[0], NUL] {
        let tried = send_in_every_field(&mut browser, text, |_, _| {});
        assert!(tried > 100, "{tried} fields");
        for page in crate::PAGES {
            let path = page.split('?').next().unwrap_or_default();
            for name in PARAMETERS.split_whitespace() {
                let answer = browser.get(&format!("{path}?{name}={}", encode(text)));
                assert!(answer.status < 500, "{path} {name}: {}", answer.body);
                assert!(!answer.body.contains("argon2"), "{path} {name}: {}", answer.body);
            }
        }
    }
    assert_intact(&root, &ATTACKS);
}

#[test]
fn statements_in_texts_are_data_in_sqlite() {
    attack(&Database::sqlite());
}

#[test]
fn statements_in_texts_are_data_in_postgres() {
    attack(&Database::postgres());
}

#[cfg(feature = "slow-tests")]
#[test]
fn statements_in_texts_are_data_in_mariadb() {
    attack(&Database::mariadb());
}

#[cfg(feature = "slow-tests")]
#[test]
fn statements_in_texts_are_data_in_mysql() {
    attack(&Database::mysql());
}
