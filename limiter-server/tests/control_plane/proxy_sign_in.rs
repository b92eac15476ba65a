//! Sign-in by the headers of a trusted proxy: peers, roles of groups, and requests of other
//! origins.

use limiter_server::settings::Settings;
use serde_json::{Value, json};

use crate::support::admin::{
    AdminClient, Credentials, policy, with_database, with_sign_in_proxy, with_sqlite,
};
use crate::support::http::{self, Response};
use crate::support::server::{Directory, Server};

const USER: &str = "x-forwarded-user";
const GROUPS: &str = "x-forwarded-groups";
const SEARCH: &str = "/namespaces/default/policies/search";

/// A server that accepts the headers from a peer, with a policy of the app `shop`.
fn server_behind(peer: &str) -> (Server, AdminClient) {
    let server = with_sign_in_proxy(peer);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy("search", 5, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    (server, root)
}

/// Calls the API with headers alone.
fn call(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
    AdminClient::new(server.admin(), Credentials::None).send(method, path, headers, body)
}

fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Response {
    call(server, "GET", path, headers, &Value::Null)
}

fn page(server: &Server, path: &str, headers: &[(&str, &str)]) -> Response {
    let host = server.admin().to_string();
    http::get(
        server.admin(),
        path,
        &[&[("host", host.as_str())], headers].concat(),
    )
    .unwrap()
}

fn grant(root: &AdminClient, (kind, subject): (&str, &str), role: &str) {
    let path = format!("/namespaces/default/grants/{kind}/{subject}/shop");
    let granted = root.send("PUT", &path, &[], &json!({ "role": role }));
    assert_eq!(granted.status, 204, "{}", granted.body);
}

#[test]
fn user_of_a_proxy_has_own_roles_and_those_of_the_groups() {
    let (server, root) = server_behind("127.0.0.1");
    grant(&root, ("group", "shop-team"), "viewer");
    grant(&root, ("user", "bob"), "editor");
    let ann = [(USER, "ann")];
    let session = get(&server, "/session", &ann).json();
    assert_eq!(session, json!({ "user": "ann", "admin": false, "roles": [] }));
    assert_eq!(get(&server, SEARCH, &ann).status, 404);
    // A group of the name of a user, and a user of the name of a group.
    assert_eq!(
        get(&server, SEARCH, &[(USER, "ann"), (GROUPS, "bob")]).status,
        404
    );
    assert_eq!(get(&server, SEARCH, &[(USER, "shop-team")]).status, 404);

    let of_team = [(USER, "ann"), (GROUPS, "others, shop-team ,")];
    assert_eq!(get(&server, SEARCH, &of_team).status, 200);
    let shown = page(&server, "/e/default/policies/search", &of_team);
    assert_eq!(shown.status, 200, "{}", shown.body);
    let numbers = json!({ "toml": policy("search", 6, "shop") });
    let put = |headers: &[(&str, &str)]| {
        let headers = [&[("if-match", "1")], headers].concat();
        call(&server, "PUT", SEARCH, &headers, &numbers)
    };
    assert_eq!(put(&of_team).status, 403, "a viewer changes nothing");
    let saved = put(&[(USER, "bob"), (GROUPS, "shop-team")]);
    assert_eq!(saved.status, 200, "{}", saved.body);
    assert_eq!(root.get(SEARCH).json()["updated_by"], "bob");

    // The header of a user with an account gives the rights of the account.
    let session = get(&server, "/session", &[(USER, "root")]).json();
    assert_eq!(session["admin"], true);
}

/// Proxies name groups such as `organisation:team` or `role:admin`.
#[test]
fn group_with_a_colon_has_roles() {
    let (server, root) = server_behind("127.0.0.1");
    for group in ["acme:shop-team", "setup"] {
        grant(&root, ("group", group), "viewer");
        let of_group = [(USER, "ann"), (GROUPS, group)];
        assert_eq!(get(&server, SEARCH, &of_group).status, 200, "{group}");
    }
    for group in ["a%2Cb", "%20a", "%2E%2E"] {
        let path = format!("/namespaces/default/grants/group/{group}/shop");
        let refused = root.send("PUT", &path, &[], &json!({ "role": "viewer" }));
        assert_eq!(refused.status, 422, "{group}: {}", refused.body);
    }
}

#[test]
fn user_and_group_of_a_proxy_have_letters_of_any_language() {
    let (server, root) = server_behind("127.0.0.1");
    grant(&root, ("group", "%C3%A9quipe"), "viewer");
    let headers = [(USER, "josé"), (GROUPS, "équipe")];
    let session = get(&server, "/session", &headers).json();
    assert_eq!(session["user"], json!("josé"), "{session}");
    assert_eq!(get(&server, SEARCH, &headers).status, 200);
}

#[test]
fn headers_of_other_peers_identify_no_user() {
    let (server, _root) = server_behind("192.0.2.1");
    let headers = [(USER, "root"), (GROUPS, "shop-team")];
    assert_eq!(get(&server, "/session", &headers).status, 401);
    assert_eq!(get(&server, SEARCH, &headers).status, 401);
    let page = page(&server, "/e/default/apps", &headers);
    assert_eq!(page.status, 303);
    assert!(page.header("location").unwrap().starts_with("/signin"));
}

#[test]
fn headers_without_configuration_identify_no_user() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    assert_eq!(get(&server, "/session", &[(USER, "root")]).status, 401);
}

#[test]
fn headers_without_proxies_do_not_start_the_server() {
    let directory = Directory::new();
    let user = "proxy_user_header = 'X-User'\n";
    let groups = "proxy_groups_header = 'X-Groups'\n";
    let proxies = "sign_in_proxies = ['127.0.0.1']\n";
    for (lines, expected) in [
        (&[user][..], "without sign_in_proxies"),
        (&[groups], "without sign_in_proxies"),
        (
            &[user, groups, "sign_in_proxies = []\n"],
            "without sign_in_proxies",
        ),
        (&[groups, proxies], "without proxy_user_header"),
        (&[proxies], "without proxy_user_header"),
    ] {
        let settings = format!("database = 'sqlite:limiter.db'\n{}", lines.concat());
        let path = directory.write("limiter-server.toml", &settings);
        let error = Settings::of_file(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{settings}: {error}");
    }
}

/// The addresses of the file apply to the header of the command line.
#[test]
fn proxies_of_the_file_apply_to_the_header_of_a_flag() {
    let directory = Directory::new();
    directory.write("limiter-server.toml", "sign_in_proxies = ['127.0.0.1']\n");
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let server = with_database(directory, &url, &["--proxy-user-header", "X-Forwarded-User"]);
    let _root = AdminClient::set_up(&server);
    assert_eq!(get(&server, "/session", &[(USER, "root")]).status, 200);
}

/// A client that reaches the proxy can add a header beside that of the proxy.
#[test]
fn repeated_header_identifies_no_user_and_no_group() {
    let (server, root) = server_behind("127.0.0.1");
    grant(&root, ("group", "shop-team"), "viewer");
    for users in [
        &[(USER, "ann"), (USER, "root")][..],
        &[(USER, "root"), (USER, "root")],
        &[(USER, "")],
        &[(USER, "  ")],
        &[(GROUPS, "shop-team")],
    ] {
        assert_eq!(get(&server, "/session", users).status, 401, "{users:?}");
    }
    let repeated = [(USER, "ann"), (GROUPS, "shop-team"), (GROUPS, "shop-team")];
    assert_eq!(get(&server, "/session", &repeated).status, 200);
    assert_eq!(get(&server, SEARCH, &repeated).status, 404);
}

/// The names of tokens and commands in the history contain a colon.
#[test]
fn user_of_a_proxy_cannot_have_the_name_of_another_kind_of_actor() {
    let (server, _root) = server_behind("127.0.0.1");
    let long = "x".repeat(256);
    for name in ["token:ci", "command:root", &long] {
        assert_eq!(get(&server, "/session", &[(USER, name)]).status, 401, "{name}");
    }
}

#[test]
fn disabled_account_is_refused_by_its_header() {
    let (server, root) = server_behind("127.0.0.1");
    root.add_user("ann", &[("shop", "viewer")]);
    grant(&root, ("group", "shop-team"), "viewer");
    let ann = [(USER, "ann"), (GROUPS, "shop-team")];
    assert_eq!(get(&server, SEARCH, &ann).status, 200);
    let set = |is_disabled: bool| {
        let body = json!({ "admin": false, "disabled": is_disabled });
        assert_eq!(root.send("PUT", "/users/ann", &[], &body).status, 204);
    };
    set(true);
    assert_eq!(get(&server, "/session", &ann).status, 401);
    assert_eq!(get(&server, SEARCH, &ann).status, 401);
    set(false);
    assert_eq!(get(&server, SEARCH, &ann).status, 200);
}

/// The browser adds the credentials of the proxy to requests that a foreign page causes.
#[test]
fn page_of_another_origin_changes_nothing_for_a_user_of_a_proxy() {
    let (server, root) = server_behind("127.0.0.1");
    let host = format!("http://{}", server.admin());
    let body = json!({ "toml": policy("search", 6, "shop") });
    let put = |site: (&str, &str)| {
        let headers = [(USER, "root"), ("if-match", "1"), site];
        call(&server, "PUT", SEARCH, &headers, &body).status
    };
    for site in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
    ] {
        assert_eq!(put(site), 403, "{site:?}");
    }
    let form = "scope=all&enforcement=off&hours=1&confirmed=true";
    let (address, length) = (server.admin().to_string(), form.len().to_string());
    let headers = [
        ("host", address.as_str()),
        ("content-length", length.as_str()),
        ("content-type", "application/x-www-form-urlencoded"),
        (USER, "root"),
        ("sec-fetch-site", "cross-site"),
    ];
    let sent = http::send(server.admin(), "POST /e/default/suspended", &headers, form).unwrap();
    assert_eq!(sent.status, 403, "{}", sent.body);
    assert_eq!(root.get(SEARCH).json()["revision"], 1);
    assert_eq!(put(("origin", &host)), 200);
}

/// A proxy that authenticates by `Basic` forwards the header, too.
#[test]
fn credentials_of_the_proxy_are_no_credentials_of_the_server() {
    let (server, _root) = server_behind("127.0.0.1");
    let with = |credentials| {
        get(
            &server,
            "/session",
            &[(USER, "root"), ("authorization", credentials)],
        )
    };
    for foreign in ["Basic cm9vdDpzZWNyZXQ=", "Bearer eyJhbGciOiJSUzI1NiJ9.e30.c2ln"] {
        let session = with(foreign);
        assert_eq!(session.status, 200, "{foreign}: {}", session.body);
    }
    // An invalid token of this server is not replaced by the user of the header.
    assert_eq!(with(&format!("Bearer lim_{}", "0".repeat(64))).status, 401);
    let alone = get(
        &server,
        "/session",
        &[("authorization", "Basic cm9vdDpzZWNyZXQ=")],
    );
    assert_eq!(alone.status, 401);
}
