//! Caddy and HAProxy with the configurations of the guide.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use support::policies::EDGE;
use support::proxy::Proxy;
use support::server::Server;

/// A loaded machine must not decide the outcome of a test. The client of the test waits for 20 s.
const PATIENT: [(&str, &str); 3] = [
    ("dial_timeout 100ms", "dial_timeout 5s"),
    ("response_header_timeout 500ms", "response_header_timeout 5s"),
    ("timeout = 500,", "timeout = 2000,"),
];
/// The variable that names the program of Caddy.
const CADDY: &str = "CADDY";

/// Two requests are admitted, the third is denied with its retry time, and another path is free.
fn check_limits(proxy: &Proxy, server: &Server) {
    for _ in 0..2 {
        let allowed = proxy.get("/a?x=1");
        let answer = (allowed.status, allowed.body.as_str());
        assert_eq!(answer, (200, "served\n"), "{}", server.log());
        assert_eq!(allowed.header("ratelimit-policy"), Some(r#""edge";q=2;w=3600"#));
    }
    let denied = proxy.get("/a?x=2");
    assert_eq!(denied.status, 429, "{}", denied.body);
    let seconds: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&seconds), "{seconds}");
    assert!(denied.header("ratelimit").unwrap().contains("r=0"));
    assert_eq!(proxy.get("/b").status, 200);
}

fn limiter() -> Server {
    let text = format!("{EDGE}deny_keys = ['127.0.0.1:/denied']\n");
    Server::with_policies(&text, &["--trusted-proxies", "127.0.0.1"])
}

#[test]
fn caddy_limits_requests_and_explains_denials() {
    let mut server = limiter();
    let program = std::env::var(CADDY)
        .expect("set CADDY to the program of Caddy 2, or run `cargo xtask server --all`, which installs it");
    let files = [("Caddyfile", include_str!("../../docs/guide/Caddyfile"))];
    let args = ["run", "--config", "Caddyfile"];
    let proxy = Proxy::start(&program, &args, &files, server.http(), &PATIENT);
    check_limits(&proxy, &server);
    server.signal("STOP");
    assert_eq!(proxy.get("/c").status, 504);
    server.kill();
    assert_eq!(proxy.get("/c").status, 502);
}

#[test]
fn haproxy_limits_requests_and_explains_denials() {
    let mut server = limiter();
    let files = [
        ("haproxy.cfg", include_str!("../../docs/guide/haproxy.cfg")),
        ("haproxy.lua", include_str!("../../docs/guide/haproxy.lua")),
    ];
    let args = ["-db", "-C", "DIRECTORY", "-f", "haproxy.cfg"];
    let proxy = Proxy::start("haproxy", &args, &files, server.http(), &PATIENT);
    check_limits(&proxy, &server);
    let closed = ("http-request deny deny_status 503", "# ");
    let edits = [&PATIENT[..], &[closed]].concat();
    let open = Proxy::start("haproxy", &args, &files, server.http(), &edits);
    for proxy in [&proxy, &open] {
        assert_eq!(proxy.get("/denied").status, 403, "the key is on a list");
    }
    server.signal("STOP");
    assert_eq!(proxy.get("/c").status, 503);
    server.kill();
    assert_eq!(proxy.get("/c").status, 503);
    assert_eq!(open.get("/c").status, 200);
}
