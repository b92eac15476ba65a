//! The pages of the admin UI: content by role, and attacks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic"
)]

#[path = "pages/attacks.rs"]
mod attacks;
#[path = "pages/client_keys.rs"]
mod client_keys;
#[path = "pages/edit.rs"]
mod edit;
#[path = "pages/explain.rs"]
mod explain;
#[path = "pages/facts.rs"]
mod facts;
#[path = "pages/injection.rs"]
mod injection;
#[path = "pages/key_parts.rs"]
mod key_parts;
#[path = "pages/numbers.rs"]
mod numbers;
#[path = "pages/overlays.rs"]
mod overlays;
#[path = "pages/people.rs"]
mod people;
#[path = "pages/preview.rs"]
mod preview;
#[path = "pages/replicas.rs"]
mod replicas;
#[path = "pages/roles.rs"]
mod roles;
#[path = "pages/saves.rs"]
mod saves;
#[path = "pages/snippets.rs"]
mod snippets;
#[path = "pages/start.rs"]
mod start;
#[path = "pages/statements.rs"]
mod statements;
mod support;
#[path = "pages/tabs.rs"]
mod tabs;
#[path = "pages/tasks.rs"]
mod tasks;
#[path = "pages/truth.rs"]
mod truth;
#[path = "pages/undo.rs"]
mod undo;

use support::admin::{AdminClient, PASSWORD, policy, setup_token, with_sqlite};
use support::browser::Browser;

/// The pages of a server with the policy `search` of the app `shop`.
const PAGES: &[&str] = &[
    "/signin",
    "/setup?token=0",
    "/setup/start",
    "/e/default/now",
    "/e/default/customers?key=acme",
    "/e/default/rules?domain=edge&entries=route%3Dsearch",
    "/e/default/explain?policy=search&key=acme",
    "/e/default/changes",
    "/e/default/status",
    "/e/default/suspended",
    "/e/default/suspended/confirm?scope=all&enforcement=off&hours=1",
    "/e/default/apps",
    "/e/default/apps/shop",
    "/e/default/apps/shop/connect",
    "/e/default/apps/shop/people",
    "/e/default/apps/shop/tokens",
    "/e/default/apps/shop/changes",
    "/e/default/apps/*/people",
    "/e/default/tokens",
    "/settings",
    "/account",
    "/e/default/search?q=s",
    "/e/default/new",
    "/e/default/policies/search",
    "/e/default/policies/search/edit",
    "/e/default/policies/search/edit?as=toml",
    "/e/default/policies/search/delete",
    "/e/default/policies/search/history/1",
];

#[test]
fn first_run_signs_the_administrator_in() {
    let server = with_sqlite(&[]);
    let mut browser = Browser::new(server.admin());
    let token = setup_token(&server);
    let page = browser.get(&format!("/setup?token={token}"));
    assert_eq!(page.status, 200);
    let fields = [
        ("token", token.as_str()),
        ("user", "root"),
        ("password", PASSWORD),
        ("repeated", "another password"),
    ];
    let refused = browser.post("/setup", &fields);
    assert_eq!(refused.status, 422);
    assert!(refused.body.contains("passwords differ"), "{}", refused.body);
    let fields = [&fields[..3], &[("repeated", PASSWORD)]].concat();
    let created = browser.post("/setup", &fields);
    assert_eq!(created.status, 303, "{}", created.body);
    assert_eq!(browser.get("/e/default/apps").status, 200);
    let again = Browser::new(server.admin()).post("/setup", &fields);
    assert_eq!(again.status, 401);
}

#[test]
fn sign_in_leads_to_pages_of_this_server_only() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let mut browser = Browser::new(server.admin());
    let page = browser.get("/e/default/apps?a=b");
    assert_eq!(page.status, 303);
    assert_eq!(
        page.header("location"),
        Some("/signin?next=%2Fe%2Fdefault%2Fapps%3Fa%3Db")
    );
    for (next, expected) in [
        ("/e/default/apps", "/e/default/apps"),
        ("//evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
    ] {
        let fields = [("user", "root"), ("password", PASSWORD), ("next", next)];
        let answer = browser.post("/signin", &fields);
        assert_eq!(
            (answer.status, answer.header("location")),
            (303, Some(expected)),
            "{next}"
        );
    }
    let wrong = browser.post("/signin", &[("user", "root"), ("password", "wrong password")]);
    assert_eq!(wrong.status, 401);
    assert!(wrong.header("set-cookie").is_none());
}

#[test]
fn sign_out_ends_the_session() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let mut browser = Browser::signed_in(&server, "root");
    let page = browser.get("/e/default/apps");
    assert_eq!(page.header("cache-control"), Some("no-store"));
    let kept = browser.clone();
    assert_eq!(browser.post("/signout", &[]).status, 303);
    assert!(browser.cookie.is_none());
    assert_eq!(kept.get("/e/default/apps").status, 303);
}

#[test]
fn requests_of_other_origins_are_rejected() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let browser = Browser::signed_in(&server, "root");
    for header in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "http://evil.example"),
        ("origin", "null"),
    ] {
        let answer = browser.send("POST", "/signout", &[header], "");
        assert_eq!(answer.status, 403, "{header:?}");
        let fields = format!("user=root&password={PASSWORD}");
        assert_eq!(browser.send("POST", "/signin", &[header], &fields).status, 403);
    }
    assert_eq!(browser.get("/e/default/apps").status, 200);
    let foreign = browser.send("GET", "/signin", &[("host", "evil.example")], "");
    assert_eq!(foreign.status, 400);
}

#[test]
fn session_of_another_party_is_not_adopted() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let mut browser = Browser::new(server.admin());
    browser.cookie = Some("limiter=0123456789abcdef".to_owned());
    let fields = [("user", "root"), ("password", PASSWORD)];
    let answer = browser.post("/signin", &fields);
    let cookie = answer.header("set-cookie").unwrap();
    assert!(!cookie.contains("0123456789abcdef"), "{cookie}");
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"),
        "{cookie}"
    );
    // A cookie without the prefix can be set by another subdomain.
    let Some(session) = Browser::signed_in(&server, "root").cookie else {
        panic!("no session");
    };
    let secure = session.replacen("limiter=", "__Host-limiter=", 1);
    let named = Browser::new(server.admin());
    for (host, cookie, expected) in [
        ("127.0.0.1", &session, 200),
        ("10.0.0.1", &session, 303),
        ("10.0.0.1", &secure, 200),
    ] {
        let answer = named.send(
            "GET",
            "/e/default/apps",
            &[("host", host), ("cookie", cookie)],
            "",
        );
        assert_eq!(answer.status, expected, "{host} {cookie}");
    }
}

#[test]
fn pages_have_headers_that_protect_them() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let browser = Browser::signed_in(&server, "root");
    for path in ["/e/default/apps", "/signin", "/absent"] {
        let page = browser.get(path);
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'self'"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(page.header("cache-control"), Some("no-store"), "{path}");
        for inline in [" style=", "<style", " onclick=", "javascript:"] {
            assert!(!page.body.contains(inline), "{path}: {inline}");
        }
    }
}

#[test]
fn assets_are_kept_and_other_files_are_not_served() {
    let server = with_sqlite(&[]);
    let browser = Browser::new(server.admin());
    let page = browser.get("/signin").body;
    let (_, rest) = page.split_once("href=\"/assets/").unwrap();
    let path = format!("/assets/{}", rest.split('"').next().unwrap());
    let style = browser.get(&path);
    assert_eq!(style.status, 200);
    assert!(style.header("cache-control").unwrap().contains("immutable"));
    for path in [
        "/assets/style.css",
        "/assets/..%2f..%2fCargo.toml",
        "/assets/../admin.rs",
        "/assets/%2e%2e/%2e%2e/etc/passwd",
        "/assets/",
    ] {
        assert_eq!(browser.get(path).status, 404, "{path}");
    }
}

#[test]
fn pages_show_apps_of_the_user_only() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    for (name, app) in [("search", "shop"), ("login", "bank")] {
        assert_eq!(root.put_policy(name, 0, &policy(name, 5, app)).status, 200);
    }
    root.add_user("vera", &[("shop", "viewer")]);
    let browser = Browser::signed_in(&server, "vera");
    let apps = browser.get("/e/default/apps");
    assert!(
        apps.body.contains("shop") && !apps.body.contains("bank"),
        "{}",
        apps.body
    );
    assert!(!apps.body.contains("New policy"), "a viewer creates no policy");
    let shop = browser.get("/e/default/apps/shop");
    let sentence = "Each key may make 1 request an hour, with bursts of 5.";
    assert!(shop.body.contains(sentence), "{}", shop.body);
    for path in [
        "/e/default/apps/bank",
        "/e/staging/apps",
        "/e/default/apps/absent",
    ] {
        assert_eq!(browser.get(path).status, 404, "{path}");
    }
    let found = browser.get("/e/default/search?q=o");
    assert!(!found.body.contains("login"), "{}", found.body);
}
