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
use support::admin::{AdminClient, Credentials, PASSWORD, json_of, policy, with_sqlite};

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

/// The path with names that exist or do not exist, so that no request changes the state of others.
fn path(route: &Route, proposal: &str) -> String {
    let path = route.path.replace("{app}", "checkout");
    let id = if path.contains("/proposals/") {
        proposal
    } else {
        "0"
    };
    let name = if path.starts_with("/users") {
        "absent"
    } else {
        "search"
    };
    path.replace("{namespace}", "default")
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

#[test]
fn every_route_answers_by_role() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let created = root.put_policy("search", 0, &policy("search", 5, "checkout"));
    assert_eq!(created.status, 200, "{}", created.body);
    let bounds = json!({ "bounds": { "max_capacity": 10 } });
    root.send("PUT", "/namespaces/default/apps/checkout", &[], &bounds);
    let proposer = root.add_user("proposer", &[("checkout", "editor")]);
    let proposed = proposer.put_policy("search", 1, &policy("search", 50, "checkout"));
    let proposal = json_of(&proposed)["proposal"].as_str().unwrap().to_owned();

    for (name, roles, access) in CALLERS {
        for route in ROUTES {
            // A fresh session, since one of the routes ends it. Sign-ins are limited per name.
            let caller = match name {
                "anonymous" => AdminClient::new(server.admin(), Credentials::None),
                "root" => root.clone(),
                name => server_caller(&root, name, roles),
            };
            if (route.method, route.path) == ("DELETE", "/session") && name != "anonymous" {
                continue;
            }
            // The condition does not hold, so that an accepted change answers 409 or 412.
            let headers = [("if-match", "\"999\"")];
            let answer = caller.send(route.method, &path(&route, &proposal), &headers, &body(&route));
            let (status, shown) = (answer.status, format!("{name}: {} {}", route.method, route.path));
            assert!(status < 500, "{shown}: {status} {}", answer.body);
            if route.access == RouteAccess::Open {
                continue;
            }
            if access >= route.access {
                assert!(!is_refused(status), "{shown}: {status} {}", answer.body);
            } else if name == "anonymous" {
                assert_eq!(status, 401, "{shown}");
            } else {
                let is_hidden = status == 404;
                let is_empty_list = status == 200 && !answer.body.contains("search");
                let is_denied = is_refused(status) || is_hidden || (name == "foreign" && is_empty_list);
                assert!(is_denied, "{shown}: {status} {}", answer.body);
            }
        }
    }
    let current = json_of(&root.get("/namespaces/default/policies/search"));
    let change = (&current["revision"], &current["updated_by"]);
    assert_eq!(
        change,
        (&json!(2), &json!("owner")),
        "the owner approved the proposal"
    );
}

/// The session of a user, which is created on the first call.
fn server_caller(root: &AdminClient, name: &str, roles: &[(&str, &str)]) -> AdminClient {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    thread_local! {
        static SESSIONS: RefCell<BTreeMap<String, AdminClient>> = RefCell::default();
    }
    SESSIONS.with_borrow_mut(|sessions| {
        let session = sessions
            .entry(name.to_owned())
            .or_insert_with(|| root.add_user(name, roles));
        session.clone()
    })
}

#[test]
fn openapi_lists_every_route_and_the_router_has_each() {
    let server = with_sqlite(&[]);
    let anonymous = AdminClient::new(server.admin(), Credentials::None);
    let document = json_of(&anonymous.get("/openapi.json"));
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
