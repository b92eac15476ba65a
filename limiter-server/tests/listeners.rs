//! Unix sockets, names of hosts, and the connection limit for Redis clients.
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
use support::resp::encode;
use support::server::{Directory, Server, run, wait_until};
use support::sockets;

fn check(socket: &Path) -> String {
    let body = r#"{"policy":"search","key":"ann"}"#;
    send(
        socket,
        "POST /v1/check",
        "content-type: application/json\r\n",
        body,
    )
}

fn send(socket: &Path, line: &str, headers: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
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
    // The peer of a unix socket has no address that could be a trusted proxy.
    let forwarded = "x-forwarded-for: 192.0.2.1\r\n";
    let answer = send(&http, "GET /forward-auth?policy=search", forwarded, "");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(
        answer.contains("from a unix socket is not read, expected a TCP connection"),
        "{answer}"
    );
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
        if status == 400 {
            let named = format!("the `Host` is `{host}`, expected");
            assert!(answer.body.contains(&named), "{}", answer.body);
        }
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let metrics = support::http::get(server.http(), "/metrics", &[("host", "evil.example")]).unwrap();
    assert_eq!(metrics.status, 400);
}

#[test]
fn body_in_several_chunks_is_read() {
    let server = Server::with_policies(SEARCH, &[]);
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                connection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut stream = sockets::send(server.http(), head);
    for part in [r#"{"policy":"#, r#""search","#, r#""key":"ann"}"#, ""] {
        write!(stream, "{:x}\r\n{part}\r\n", part.len()).unwrap();
    }
    let answer = sockets::read_to_end(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(r#""remaining":4"#), "{answer}");
}

#[test]
fn other_methods_pass_the_checks_of_their_path() {
    let server = Server::with_policies(SEARCH, &[]);
    let get = |host| support::http::get(server.http(), "/v1/check", &[("host", host)]).unwrap();
    let rejected = get("localhost");
    assert_eq!((rejected.status, rejected.header("allow")), (405, Some("POST")));
    assert_eq!(get("evil.example").status, 400);
}

#[test]
fn redis_client_above_the_connection_limit_receives_an_error() {
    let limit = ["--resp", "127.0.0.1:0", "--max-connections", "3"];
    let server = Server::with_policies(SEARCH, &limit);
    let ping = |stream: &mut std::net::TcpStream| {
        stream.write_all(&encode(&["PING"])).unwrap();
        let mut pong = [0; 7];
        stream.read_exact(&mut pong).unwrap();
        assert_eq!(&pong, b"+PONG\r\n");
    };
    let mut held: Vec<_> = (0..3).map(|_| sockets::send(server.resp(), "")).collect();
    held.iter_mut().for_each(ping);
    let refused = sockets::read_to_end(&mut sockets::send(server.resp(), ""));
    assert_eq!(refused, "-ERR max number of clients reached\r\n");
    let count = server.metric("limiter_server_refused_connections_total{protocol=\"resp\"}");
    assert_eq!(count, 1.0, "the HTTP listener has a limit of its own");
    let is_served = || {
        let client = redis::Client::open(format!("redis://{}", server.resp())).unwrap();
        let connection = client.get_connection();
        connection.is_ok_and(|mut connection| {
            redis::cmd("PING")
                .query(&mut connection)
                .is_ok_and(|pong: String| pong == "PONG")
        })
    };
    assert!(!is_served());
    // Clients within the limit are not affected.
    held.iter_mut().for_each(ping);
    held.pop();
    wait_until(is_served, || server.log());
}

/// The timer of the server's side of a connection, as the kernel describes it: `02` is keepalive.
#[cfg(target_os = "linux")]
fn timer_of(connection: &std::net::TcpStream) -> Option<String> {
    let hex = |address: std::net::SocketAddr| format!(":{:04X}", address.port());
    let (server, client) = (
        hex(connection.peer_addr().unwrap()),
        hex(connection.local_addr().unwrap()),
    );
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let mut rows = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_server_side = |row: &Vec<&str>| {
        row.get(1).is_some_and(|local| local.ends_with(&server))
            && row.get(2).is_some_and(|remote| remote.ends_with(&client))
    };
    let row = rows.find(is_server_side)?;
    row.get(5)
        .and_then(|timer| timer.split(':').next())
        .map(str::to_owned)
}

/// A client whose machine has lost its power sends nothing, and a Redis client may be silent for
/// any time: only probes end its connection.
#[cfg(target_os = "linux")]
#[test]
fn silent_redis_clients_are_probed() {
    let server = Server::with_policies(SEARCH, &["--resp", "127.0.0.1:0"]);
    let mut client = sockets::send(server.resp(), encode(&["PING"]));
    let mut pong = [0; 7];
    client.read_exact(&mut pong).unwrap();
    // The timer of the reply ends with its acknowledgement.
    let is_probed = || timer_of(&client).as_deref() == Some("02");
    wait_until(is_probed, || format!("{:?}", timer_of(&client)));
}
