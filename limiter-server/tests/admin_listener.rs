//! TLS and limits of the admin listener.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;

use limiter_testing::tls::Authority;
use support::server::{Directory, Server, wait_until};

const SETTINGS: &str =
    "[tls]\ncert_file = 'server.pem'\nkey_file = 'server.key'\n[limits]\nmax_connections = 3\n";

fn start(admin: &str) -> Server {
    let directory = Directory::new();
    let authority = Authority::new();
    let identity = authority.server(&["localhost"]);
    directory.write("ca.pem", authority.certificate());
    directory.write("server.pem", &identity.certificate);
    directory.write("server.key", &identity.key);
    directory.write("limiter-server.toml", SETTINGS);
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    Server::start(directory, &["--database", &url, "--admin", admin])
}

/// The status of the page for signing in.
fn status(server: &Server, scheme: &str) -> String {
    let url = format!("{scheme}://localhost:{}/signin", server.admin().port());
    let ended = Command::new("curl")
        .args([
            "--silent",
            "--max-time",
            "20",
            "--output",
            "/dev/null",
            "--cacert",
            "ca.pem",
        ])
        .args(["--write-out", "%{http_code}", &url])
        .current_dir(server.directory().path())
        .output()
        .expect("curl");
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

#[test]
fn listener_for_other_machines_uses_tls() {
    let server = start("0.0.0.0:0");
    wait_until(|| status(&server, "https") == "200", || server.log());
    assert_eq!(status(&server, "http"), "000");
    assert!(server.log().contains("https://0.0.0.0:"), "{}", server.log());
}

#[test]
fn listener_for_a_proxy_on_loopback_uses_plain_text_and_refuses_excess_connections() {
    let server = start("127.0.0.1:0");
    wait_until(|| status(&server, "http") == "200", || server.log());
    let connect = || TcpStream::connect(server.admin()).unwrap();
    // The connections of curl may not have ended yet.
    let (mut open, mut answer) = (Vec::new(), String::new());
    while !answer.starts_with("HTTP/1.1 503 ") {
        assert!(open.len() <= 3, "no connection is refused");
        let mut next = connect();
        next.set_read_timeout(Some(std::time::Duration::from_millis(200)))
            .unwrap();
        // An accepted connection sends nothing.
        let _ = next.read_to_string(&mut answer);
        open.push(next);
    }
    drop(open);
    wait_until(|| status(&server, "http") == "200", || server.log());
}
