//! Unix sockets and names of hosts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use support::policies::SEARCH;
use support::server::{Directory, Server, run};

fn check(socket: &Path) -> String {
    let body = r#"{"policy":"search","key":"ann"}"#;
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn unix_socket_serves_and_is_removed() {
    let directory = Directory::new();
    let policies = directory.write("policies.toml", SEARCH);
    let [http, grpc] = ["http.sock", "grpc.sock"].map(|name| directory.path().join(name));
    let address = |path: &Path| format!("unix:{}", path.display());
    let args = [
        "--policies",
        policies.to_str().unwrap(),
        "--http",
        &address(&http),
        "--grpc",
        &address(&grpc),
    ]
    .map(str::to_owned);
    let args = args.each_ref().map(String::as_str);
    // A socket file that a killed process has left behind is replaced.
    drop(std::os::unix::net::UnixListener::bind(&http).unwrap());
    let server = Server::start(directory, &args);
    assert_eq!(server.announced("http"), address(&http));
    assert!(check(&http).starts_with("HTTP/1.1 200"));
    let mode = std::fs::metadata(&http).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert!(UnixStream::connect(&grpc).is_ok());
    // The socket of a running server is not replaced.
    let (code, _, errors) = run(&[&["serve"], &args[..]].concat());
    assert_eq!(code, Some(1));
    assert!(errors.contains("in use"), "{errors}");
    assert!(check(&http).starts_with("HTTP/1.1 200"));
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    assert!(!http.exists() && !grpc.exists());
}

#[test]
fn configured_host_is_allowed() {
    let server = Server::with_policies(SEARCH, &["--allowed-hosts", "limits.example,other.example"]);
    let body = r#"{"policy":"search","key":"ann"}"#;
    for (host, status) in [
        ("limits.example", 200),
        ("LIMITS.example:8080", 200),
        ("other.example", 200),
        ("localhost:80", 200),
        ("evil.example", 400),
        ("limits.example.evil.example", 400),
        ("", 400),
    ] {
        let answer = support::http::post(server.http(), "/v1/check", &[("host", host)], body).unwrap();
        assert_eq!(answer.status, status, "{host}: {}", answer.body);
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let metrics = support::http::get(server.http(), "/metrics", &[("host", "evil.example")]).unwrap();
    assert_eq!(metrics.status, 400);
}
