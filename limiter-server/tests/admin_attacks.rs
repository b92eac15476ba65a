//! Attacks on sign-ins, password changes and imports of the admin part.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic"
)]

mod support;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Instant;

use serde_json::json;
use support::admin::{AdminClient, Credentials, PASSWORD, policy, with_sqlite};
use support::browser::Browser;
use support::http::Response;
use support::server::{Directory, Server, command, wait_until};

const NEW_PASSWORD: &str = "another long password";

/// A password that the server rejects without a computation, so that many guesses take no time in
/// which a limit refills.
fn guess() -> String {
    "x".repeat(2_000)
}

/// An attempt to sign in, as the client that a proxy names.
fn attempt(server: &Server, forwarded: Option<&str>, user: &str, password: &str) -> Response {
    let anonymous = AdminClient::new(server.admin(), Credentials::None);
    let header = forwarded.map(|address| ("x-forwarded-for", address));
    let body = json!({ "user": user, "password": password });
    anonymous.send("POST", "/session", header.as_slice(), &body)
}

/// A name is not revealed by the time or the text of the answer.
#[test]
fn sign_ins_of_known_and_unknown_names_are_alike() {
    const ATTEMPTS: usize = 12;
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    for number in 0..ATTEMPTS {
        let body = json!({ "name": format!("known{number}"), "password": PASSWORD });
        assert_eq!(root.send("POST", "/users", &[], &body).status, 201);
    }
    let mut times = [Vec::new(), Vec::new()];
    let mut bodies = Vec::new();
    for number in 0..ATTEMPTS {
        for (kind, times) in ["known", "other"].into_iter().zip(&mut times) {
            let started = Instant::now();
            let answer = attempt(&server, None, &format!("{kind}{number}"), "wrong password");
            times.push(started.elapsed());
            assert_eq!(answer.status, 401, "{}", answer.body);
            bodies.push((answer.body, answer.headers.len()));
        }
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    let [known, unknown] = times.map(|mut times| {
        times.sort();
        times[ATTEMPTS / 2].as_secs_f64()
    });
    let ratio = known / unknown;
    println!("median of known names {known:.4} s, of unknown names {unknown:.4} s, ratio {ratio:.2}");
    assert!((0.6..1.7).contains(&ratio), "{known} s, {unknown} s");
}

#[test]
fn guesses_do_not_lock_the_user_out() {
    let server = with_sqlite(&["--trusted-proxies", "127.0.0.1"]);
    let root = AdminClient::set_up(&server);
    let ann = root.add_user("ann", &[]);
    let home = "192.0.2.1";
    assert_eq!(attempt(&server, Some(home), "ann", PASSWORD).status, 201);
    // One address guesses.
    let mut refused = 0;
    for _ in 0..40 {
        refused += u32::from(attempt(&server, Some("203.0.113.1"), "ann", &guess()).status == 429);
    }
    assert!(refused >= 20, "{refused}");
    assert_eq!(attempt(&server, Some(home), "ann", PASSWORD).status, 201);
    // A known password does not pass the limit.
    assert_eq!(attempt(&server, Some("203.0.113.1"), "ann", PASSWORD).status, 429);
    // The page forwards the address too.
    let fields = format!("user=ann&password={}", PASSWORD.replace(' ', "+"));
    let browser = Browser::new(server.admin());
    let same_origin = ("sec-fetch-site", "same-origin");
    let page = |address| {
        let headers = [same_origin, ("x-forwarded-for", address)];
        browser.send("POST", "/signin", &headers, &fields).status
    };
    assert_eq!((page("203.0.113.1"), page(home)), (429, 303));
    // Many addresses guess.
    let mut refused = 0;
    for number in 0..60 {
        let address = format!("203.0.113.{}", number + 2);
        refused += u32::from(attempt(&server, Some(&address), "ann", &guess()).status == 429);
    }
    assert!(refused >= 20, "{refused}");
    assert_eq!(attempt(&server, Some(home), "ann", PASSWORD).status, 201);
    assert_eq!(ann.get("/session").status, 200, "sessions have no limit");
    assert_eq!(attempt(&server, Some(home), "root", PASSWORD).status, 201);
}

/// Without a configured proxy, the header is the client's own text.
#[test]
fn forwarded_addresses_of_untrusted_peers_are_ignored() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let mut refused = 0;
    for number in 0..40 {
        let address = format!("203.0.113.{number}");
        refused += u32::from(attempt(&server, Some(&address), "ann", &guess()).status == 429);
    }
    assert!(refused >= 20, "{refused}");
}

#[test]
fn guesses_of_the_current_password_are_limited_by_user() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let (ann, bob) = (root.add_user("ann", &[]), root.add_user("bob", &[]));
    let change = |client: &AdminClient, user: &str, current: &str| {
        let body = json!({ "current": current, "password": NEW_PASSWORD });
        client.send("PUT", &format!("/users/{user}/password"), &[], &body)
    };
    let statuses: Vec<u16> = (0..20).map(|_| change(&ann, "ann", &guess()).status).collect();
    assert_eq!(statuses[0], 403);
    assert!(statuses.ends_with(&[429, 429]), "{statuses:?}");
    let limited = change(&ann, "ann", PASSWORD);
    assert_eq!(limited.status, 429, "{}", limited.body);
    assert!(limited.header("retry-after").is_some());
    assert_eq!(ann.get("/session").status, 200, "the session is valid");
    assert_eq!(change(&bob, "bob", PASSWORD).status, 204);
    let body = json!({ "password": NEW_PASSWORD });
    assert_eq!(root.send("PUT", "/users/ann/password", &[], &body).status, 204);
}

/// Imports contain texts only: no URL in them is read.
#[test]
fn imports_read_no_url() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/secret", listener.local_addr().unwrap());
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let noted = policy("noted", 5, "shop") + &format!("note = '{url}'\n");
    for (name, toml) in [("noted", noted), (&*url, policy("noted", 5, "shop"))] {
        for rules in [json!(null), json!({ "toml": url })] {
            let body = json!({ "policies": [{ "name": name, "toml": toml }], "rules": rules, "reason": url });
            let answer = root.send("POST", "/namespaces/default/import", &[], &body);
            assert!(answer.status < 500, "{}", answer.body);
        }
    }
    let saved = root.get("/namespaces/default/policies/noted").json();
    assert_eq!(saved["note"], json!(url));
    let yaml = [
        url.clone(),
        format!(
            "domain: {url}\ndescriptors:\n  - key: {url}\n    rate_limit: {{unit: minute, requests_per_unit: 5}}\n"
        ),
        format!("domain: !include {url}\ndescriptors: []\n"),
        format!("<<: {url}\ndomain: edge\ndescriptors: []\n"),
        format!("%TAG ! {url}\n---\ndomain: !x edge\ndescriptors: []\n"),
    ];
    let mut browser = Browser::signed_in(&server, "root");
    let directory = Directory::new();
    for text in yaml {
        for path in ["/setup/import", "/setup/import/save"] {
            let answer = browser.post(path, &[("yaml", &text)]);
            assert!(answer.status < 500, "{path} {text}: {}", answer.body);
        }
        let file = directory.write("ratelimit.yaml", &text);
        let mut import = command();
        import.args(["import", "envoy"]).arg(file);
        assert!(import.output().unwrap().status.code().is_some());
        // A URL in place of a file is a path that does not exist.
        let mut import = command();
        let output = import.args(["import", "envoy", &url]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
    }
    // Tasks of the server have run since.
    wait_until(
        || root.get("/namespaces/default/status").status == 200,
        || server.log(),
    );
    listener.set_nonblocking(true).unwrap();
    let accepted = listener.accept().map(|(_, peer)| peer);
    assert_eq!(accepted.unwrap_err().kind(), ErrorKind::WouldBlock);
}
