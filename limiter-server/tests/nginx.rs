//! nginx with the configuration of the guide.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use support::policies::EDGE;
use support::proxy::{ConfigFile, Proxy};
use support::server::Server;

const FILES: [ConfigFile; 1] = [("nginx.conf", include_str!("../../docs/guide/nginx.conf"))];

fn nginx(server: &Server, edits: &[(&str, &str)]) -> Proxy {
    // A loaded machine must not decide the outcome of a test.
    let patient = [
        ("connect_timeout 100ms", "connect_timeout 20s"),
        ("read_timeout 500ms", "read_timeout 20s"),
    ];
    let edits = [&patient, edits].concat();
    let args = ["-p", "DIRECTORY", "-c", "nginx.conf", "-g", "daemon off;"];
    Proxy::start("nginx", &args, &FILES, server.http(), &edits)
}

#[test]
fn nginx_limits_requests_and_explains_denials() {
    let text = format!("{EDGE}deny_keys = ['127.0.0.1:/denied']\n");
    let server = Server::with_policies(&text, &["--trusted-proxies", "127.0.0.1"]);
    let proxy = nginx(&server, &[]);
    for remaining in ["r=1", "r=0"] {
        let allowed = proxy.get("/a?x=1");
        assert_eq!(
            (allowed.status, allowed.body.as_str()),
            (200, "served\n"),
            "{}",
            server.log()
        );
        assert!(allowed.header("ratelimit").unwrap().contains(remaining));
        assert_eq!(allowed.header("ratelimit-policy"), Some(r#""edge";q=2;w=3600"#));
    }
    let denied = proxy.get("/a?x=2");
    assert_eq!(
        (denied.status, denied.body.as_str()),
        (429, "too many requests\n")
    );
    let seconds: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&seconds), "{seconds}");
    assert!(denied.header("ratelimit").unwrap().contains("r=0"));
    assert_eq!(proxy.get("/b").status, 200);
    let listed = proxy.get("/denied");
    assert_eq!((listed.status, listed.body.as_str()), (403, "forbidden\n"));
}

#[test]
fn nginx_serves_requests_whose_headers_exceed_those_of_the_server() {
    let server = Server::with_policies(EDGE, &["--trusted-proxies", "127.0.0.1"]);
    let proxy = nginx(&server, &[]);
    let part = "c".repeat(6_000);
    let headers = ["x-a", "x-b", "x-c"].map(|name| (name, part.as_str()));
    assert_eq!(proxy.get_with("/large", &headers).status, 200, "{}", server.log());
}

#[test]
fn nginx_applies_its_failure_mode_without_the_server() {
    let mut server = Server::with_policies(EDGE, &["--trusted-proxies", "127.0.0.1"]);
    let (closed, open) = (nginx(&server, &[]), nginx(&server, &[("#open ", "")]));
    for _ in 0..2 {
        assert_eq!(open.get("/a").status, 200);
    }
    assert_eq!(open.get("/a").status, 429);
    server.kill();
    assert_eq!(closed.get("/a").status, 500);
    assert_eq!(open.get("/a").status, 200);
}
