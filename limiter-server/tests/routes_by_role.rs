//! Every route with every role: the answer follows from the list of routes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use limiter_server::admin::api::routes::{ROUTES, Route, RouteAccess};
use serde_json::{Value, json};
use support::admin::{AdminClient, Credentials, PASSWORD, policy, with_sqlite};
use support::databases;
use support::server::Server;

const SEARCH: &str = "/namespaces/default/policies/search";

/// Apps and roles.
type Grants = &'static [(&'static str, &'static str)];

/// The callers, the weakest first. The app of the policy is `checkout`.
const CALLERS: [(&str, Grants, RouteAccess); 8] = [
    ("anonymous", &[], RouteAccess::Open),
    ("stranger", &[], RouteAccess::SignedIn),
    ("foreign", &[("mobile", "owner")], RouteAccess::SignedIn),
    ("viewer", &[("checkout", "viewer")], RouteAccess::Viewer),
    ("editor", &[("checkout", "editor")], RouteAccess::Editor),
    ("owner", &[("checkout", "owner")], RouteAccess::Owner),
    ("admin", &[("*", "admin")], RouteAccess::NamespaceAdmin),
    ("root", &[], RouteAccess::ServerAdmin),
];

/// A body that the route accepts.
fn body(route: &Route) -> Value {
    match (route.method, route.path.rsplit('/').next().unwrap()) {
        ("DELETE", "quotas") => json!({ "key": "eve" }),
        ("GET" | "DELETE", _) => Value::Null,
        (_, "setup") => json!({ "token": "x", "user": "x", "password": PASSWORD }),
        (_, "session") => json!({ "user": "x", "password": PASSWORD }),
        (_, "{name}") if route.path.starts_with("/users") => json!({ "admin": false, "disabled": false }),
        // A change that is no change of numbers.
        (_, "preview") if route.path.ends_with("rules/preview") => json!({ "toml": "" }),
        (_, "{name}" | "preview") => {
            json!({ "toml": policy("search", 5, "checkout").replace("token_bucket", "funnel") })
        }
        (_, "reset") => json!({ "key": ["ann"] }),
        (_, "match") => json!({ "domain": "edge", "entries": [["route", "a"]] }),
        (_, "restore") => json!({ "revision": 1 }),
        (_, "rules") => json!({ "toml": "" }),
        (_, "tokens") => json!({ "name": "x", "scopes": ["admin:viewer"] }),
        (_, "{app}") if route.path.contains("grants") => json!({ "role": "viewer" }),
        (_, "{app}") => json!({ "bounds": { "max_capacity": 10 } }),
        (_, "quotas") => json!({ "key": "eve", "capacity": 7, "rate": "1/h" }),
        (_, "trial") => json!({ "capacity": 7, "rate": "1/h", "for_seconds": 60 }),
        (_, "suspensions") => {
            json!({ "scope": "policy:search", "enforcement": "shadow", "for_seconds": 60 })
        }
        (_, "blocks") => json!({ "key": "eve", "app": "checkout", "for_seconds": 60 }),
        (_, "{id}") => json!({ "for_seconds": 60 }),
        (_, "users") => json!({ "name": "x", "password": PASSWORD }),
        (_, "password") => json!({ "password": PASSWORD }),
        _ => json!({}),
    }
}

/// A path with the names of the test and an identity.
fn path(route: &Route, id: &str) -> String {
    let name = if route.path.starts_with("/users") {
        "spare"
    } else {
        "search"
    };
    route
        .path
        .replace("{namespace}", "default")
        .replace("{app}", "checkout")
        .replace("{name}", name)
        .replace("{number}", "1")
        .replace("{kind}", "user")
        .replace("{subject}", "absent")
        .replace("{id}", id)
}

/// Returns whether an answer refuses the caller.
fn is_refused(status: u16) -> bool {
    matches!(status, 401 | 403)
}

/// A server with the policy `search` of the app `checkout`, and the callers that prepare objects.
struct Setup {
    server: Server,
    root: AdminClient,
    proposer: AdminClient,
}

impl Setup {
    fn new() -> Self {
        let server = with_sqlite(&[]);
        let root = AdminClient::set_up(&server);
        let proposer = root.add_user("proposer", &[("checkout", "editor")]);
        let setup = Self {
            server,
            root,
            proposer,
        };
        let created = setup
            .root
            .put_policy("search", 0, &policy("search", 5, "checkout"));
        assert_eq!(created.status, 200, "{}", created.body);
        setup.prepare(
            "PUT",
            "/apps/checkout",
            "",
            &json!({ "bounds": { "max_capacity": 10 } }),
        );
        let trial = json!({ "capacity": 7, "rate": "1/h", "for_seconds": 3_600 });
        setup.prepare("PUT", "/policies/search/trial", "1", &trial);
        let quota = json!({ "key": "eve", "capacity": 7, "rate": "1/h" });
        setup.prepare("POST", "/policies/search/quotas", "2", &quota);
        setup.prepare("PUT", "/rules", "0", &json!({ "toml": "" }));
        setup
    }

    /// Sends a request of the administrator, which succeeds.
    fn prepare(&self, method: &str, path: &str, revision: &str, body: &Value) -> Value {
        let path = match path.starts_with("/users") {
            true => path.to_owned(),
            false => format!("/namespaces/default{path}"),
        };
        let answer = self.root.send(method, &path, &[("if-match", revision)], body);
        let is_prepared = answer.status < 300 || answer.status == 409 && path == "/users";
        assert!(is_prepared, "{method} {path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap_or_default()
    }

    fn execute(&self, statement: &str) {
        let database = self.server.directory().path().join("limiter.db");
        databases::execute(&format!("sqlite:{}", database.display()), &[statement.to_owned()]);
    }

    /// Has the object of a route exist, as no earlier request has changed it. Returns its identity.
    fn object_of(&self, route: &Route) -> String {
        let id = |created: Value| created["id"].as_str().unwrap().to_owned();
        let path = route.path.trim_start_matches("/namespaces/{namespace}");
        match path.split('/').nth(1).unwrap_or_default() {
            "suspensions" => id(self.prepare(
                "POST",
                "/suspensions",
                "",
                &json!({ "scope": "policy:search", "enforcement": "shadow", "for_seconds": 60 }),
            )),
            "blocks" => id(self.prepare(
                "POST",
                "/blocks",
                "",
                &json!({ "key": "eve", "app": "checkout", "for_seconds": 60 }),
            )),
            "tokens" if path.contains("{id}") => {
                let token = json!({ "name": "x", "scopes": ["check:*"] });
                let id = id(self.prepare("POST", "/tokens", "", &token));
                if path.ends_with("confirm") {
                    self.execute(&format!("UPDATE token SET suspended = 1 WHERE id = '{id}'"));
                }
                id
            }
            "alerts" => {
                let columns = "(id, namespace, kind, detail, created_at)";
                self.execute(&format!(
                    "INSERT OR REPLACE INTO alert {columns} VALUES (1, 'default', 'kind', 'detail', 1)"
                ));
                "1".to_owned()
            }
            "proposals" if path.contains("{id}") => {
                let revision = self.root.get(SEARCH).json()["revision"].as_i64().unwrap();
                let text = self.root.get(SEARCH).json()["toml"].as_str().unwrap().to_owned();
                let (before, rest) = text.split_once("capacity = ").unwrap();
                let (_, after) = rest.split_once('\n').unwrap();
                let changed = format!("{before}capacity = {}\n{after}", 50 + revision);
                let proposed = self.proposer.put_policy("search", revision, &changed);
                assert_eq!(proposed.status, 202, "{}", proposed.body);
                proposed.json()["proposal"].as_str().unwrap().to_owned()
            }
            "grants" if route.method == "DELETE" => {
                let role = json!({ "role": "viewer" });
                self.prepare("PUT", "/grants/user/absent/checkout", "", &role);
                String::new()
            }
            "users" if path.contains("{name}") => {
                let user = json!({ "name": "spare" });
                self.prepare("POST", "/users", "", &user);
                String::new()
            }
            _ => String::new(),
        }
    }

    /// Sends every route as one caller, and compares the answers with its access.
    fn assert_answers(&self, name: &str, caller: &AdminClient, access: RouteAccess) {
        for route in ROUTES {
            // The session ends otherwise. Sign-ins and passwords are limited.
            let is_sign_out = (route.method, route.path) == ("DELETE", "/session");
            if route.access == RouteAccess::Open || is_sign_out && name != "anonymous" {
                continue;
            }
            let path = path(&route, &self.object_of(&route));
            // The condition does not hold, so that an accepted change answers 409 or 412.
            let headers = [("if-match", "\"999\"")];
            let answer = caller.send(route.method, &path, &headers, &body(&route));
            let (status, shown) = (answer.status, format!("{name}: {} {path}", route.method));
            assert!(status < 500, "{shown}: {status} {}", answer.body);
            if access >= route.access {
                // The object exists, so a caller with access finds it.
                let is_accepted = !is_refused(status) && status != 404;
                assert!(is_accepted, "{shown}: {status} {}", answer.body);
            } else if access == RouteAccess::Open {
                assert_eq!(status, 401, "{shown}");
            } else {
                let is_outsider = access < RouteAccess::Viewer;
                let is_hidden = is_outsider && status == 404;
                let is_empty_list = is_outsider && status == 200 && !answer.body.contains("search");
                let is_denied = status == 403 || is_hidden || is_empty_list;
                assert!(is_denied, "{shown}: {status} {}", answer.body);
            }
        }
    }
}

#[test]
fn every_route_answers_by_role() {
    let setup = Setup::new();
    for (name, roles, access) in CALLERS {
        let caller = match name {
            "anonymous" => AdminClient::new(setup.server.admin(), Credentials::None),
            "root" => setup.root.clone(),
            name => setup.root.add_user(name, roles),
        };
        setup.assert_answers(name, &caller, access);
    }
    let history = setup.root.get(&format!("{SEARCH}/history")).json();
    let mut authors = history["revisions"].as_array().unwrap().iter();
    let proposals = authors.clone().filter(|of| of["origin"] == "proposal");
    let approvers: Vec<&Value> = proposals.map(|of| &of["author"]).collect();
    assert_eq!(
        approvers,
        ["root", "admin", "owner"],
        "each of them approved a proposal"
    );
    assert!(authors.all(|of| of["author"] != "editor" && of["author"] != "foreign"));
}

/// The roles of a token are those of its scopes.
#[test]
fn every_route_answers_by_the_scope_of_a_token() {
    let setup = Setup::new();
    for (scope, access) in [
        ("check:*", RouteAccess::SignedIn),
        ("admin:owner:mobile", RouteAccess::SignedIn),
        ("admin:viewer:checkout", RouteAccess::Viewer),
        ("admin:editor:checkout", RouteAccess::Editor),
        ("admin:owner:checkout", RouteAccess::Owner),
        ("admin:admin", RouteAccess::NamespaceAdmin),
    ] {
        let body = json!({ "name": "caller", "scopes": [scope] });
        let token = setup.prepare("POST", "/tokens", "", &body);
        let secret = token["secret"].as_str().unwrap().to_owned();
        let caller = AdminClient::new(setup.server.admin(), Credentials::Token(secret));
        setup.assert_answers(scope, &caller, access);
    }
}

/// Alerts name policies, also those of other apps.
#[test]
fn alerts_hide_the_policies_of_other_apps() {
    let setup = Setup::new();
    let secret = setup.root.put_policy("secret", 0, &policy("secret", 5, "bank"));
    assert_eq!(secret.status, 200, "{}", secret.body);
    for (kind, detail) in [
        ("database_restored", "policy `search` differs"),
        ("database_restored", "policy `secret` differs"),
        ("registry_went_back", "Redis lost the registry"),
    ] {
        let columns = "(namespace, kind, detail, created_at)";
        setup.execute(&format!(
            "INSERT INTO alert {columns} VALUES ('default', '{kind}', '{detail}', 1)"
        ));
    }
    let details = |client: &AdminClient| {
        let status = client.get("/namespaces/default/status").json();
        let alerts = status["alerts"].as_array().unwrap().clone();
        alerts
            .iter()
            .map(|of| of["detail"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let all = details(&setup.root);
    assert!(all.iter().any(|of| of.contains("`secret`")), "{all:?}");
    let reader = setup.root.add_user("reader", &[("*", "viewer")]);
    assert_eq!(details(&reader), all, "a reader of all apps");
    let viewer = setup.root.add_user("viewer", &[("checkout", "viewer")]);
    let own = details(&viewer);
    assert_eq!(own.len(), all.len(), "{own:?}");
    assert!(own.contains(&"policy `search` differs".to_owned()), "{own:?}");
    assert!(own.contains(&"Redis lost the registry".to_owned()), "{own:?}");
    for path in ["/e/default/status", "/e/default/now"] {
        let page = viewer.page(path);
        assert_eq!(page.status, 200, "{}", page.body);
        assert!(
            page.body.contains("a policy that you may not read"),
            "{}",
            page.body
        );
        assert!(!page.body.contains("secret"), "{}", page.body);
    }
    assert!(!own.iter().any(|of| of.contains("secret")), "{own:?}");
}

#[test]
fn openapi_lists_every_route_and_the_router_has_each() {
    let server = with_sqlite(&[]);
    let anonymous = AdminClient::new(server.admin(), Credentials::None);
    let document = anonymous.get("/openapi.json").json();
    for route in ROUTES {
        let item = &document["paths"][format!("/admin/v1{}", route.path)];
        assert!(
            item[route.method.to_lowercase()].is_object(),
            "{} {}",
            route.method,
            route.path
        );
        let answer = anonymous.send(route.method, &path(&route, "0"), &[], &body(&route));
        let is_routed = answer.status != 405 && !answer.body.contains("no such route");
        assert!(is_routed, "{} {}: {}", route.method, route.path, answer.body);
    }
}

/// Bodies that are too large or no JSON are refused by every route that reads a body.
#[test]
fn oversized_and_malformed_bodies_are_refused() {
    let setup = Setup::new();
    let oversized = json!({ "reason": "x".repeat(3 << 20) }).to_string();
    let nested = "[".repeat(10_000);
    let malformed: [&[u8]; 4] = [b"{", b"[]", nested.as_bytes(), b"{\"reason\":\"\xff\"}"];
    let changes = ROUTES.iter().filter(|route| route.method != "GET");
    for route in changes.filter(|route| route.path != "/session" && !body(route).is_null()) {
        // The object does not exist, so that no route changes one.
        let path = path(route, "0")
            .replace("/search", "/absent")
            .replace("/spare", "/absent");
        let send = |body: &[u8]| {
            let answer = setup
                .root
                .send_text(route.method, &path, &[("if-match", "1")], body);
            assert!(answer.status < 500, "{} {path}: {}", route.method, answer.body);
            answer.status
        };
        // A route without a body does not read it.
        let reads_body = body(route) != json!({});
        let status = send(oversized.as_bytes());
        assert!(status == 413 || !reads_body, "{} {path}: {status}", route.method);
        for text in malformed {
            let status = send(text);
            let is_refused = (400..500).contains(&status);
            assert!(is_refused || !reads_body, "{} {path}: {status}", route.method);
        }
    }
    let search = setup.root.get(SEARCH);
    assert_eq!(search.status, 200, "{}", search.body);
}

#[test]
fn foreign_namespace_is_hidden() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    for route in ROUTES.iter().filter(|route| route.path.contains("{namespace}")) {
        let path = path(route, "0").replace("/default", "/staging");
        let answer = root.send(route.method, &path, &[("if-match", "1")], &body(route));
        assert_eq!(answer.status, 404, "{} {path}: {}", route.method, answer.body);
    }
}
