//! A server is there when it should be, and is not when it should not.
#![cfg(unix)]
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a failed assumption is a failed test"
)]

mod support;

use std::env;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use limiter_testing::{RedisServer, RespValue};
use support::{eventually, is_refused};

/// Environment variable of the process that is killed while it owns a server.
const OWNER: &str = "LIMITER_TESTING_OWNER";

#[test]
fn started_server_replies() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["PING"]).text(), "PONG");
    assert_eq!(server.url_as(""), format!("redis://127.0.0.1:{}/", server.port()));
    assert_eq!(
        server.url(),
        format!("redis://limiter:limits@127.0.0.1:{}/", server.port())
    );
    assert!(server.log().contains("Ready to accept connections"));
}

#[test]
fn server_applies_configuration() {
    let server = RedisServer::builder()
        .arg("maxmemory", "1mb")
        .arg("maxmemory-policy", "noeviction")
        .start();
    assert_eq!(
        server.command(&["CONFIG", "GET", "maxmemory"]).items()[1].integer(),
        1 << 20
    );
}

#[test]
#[should_panic(expected = "maxmemory-policy")]
fn failed_start_shows_log_of_server() {
    let _server = RedisServer::builder().arg("maxmemory-policy", "invalid").start();
}

#[test]
fn raw_bytes_round_trip() {
    let server = RedisServer::shared();
    let value: Vec<u8> = (0..=255).collect();
    server.command(&[b"SET", &b"raw\xff\r\n"[..], &value]);
    assert_eq!(server.command(&[&b"GET"[..], b"raw\xff\r\n"]).bytes(), value);
    assert!(server.command(&["GET", "missing"]).is_nil());
}

#[test]
fn try_command_returns_errors_as_values() {
    let server = RedisServer::shared();
    server.command(&["SET", "string", "x"]);
    let reply = server.try_command(&["HGET", "string", "field"]).unwrap();
    assert!(matches!(reply, RespValue::Error(message) if message.starts_with("WRONGTYPE")));
}

#[test]
#[should_panic(expected = "`HGET other-string field` failed: WRONGTYPE")]
fn command_panics_on_error_reply() {
    let server = RedisServer::shared();
    server.command(&["SET", "other-string", "x"]);
    server.command(&["HGET", "other-string", "field"]);
}

#[test]
fn dropped_server_ends() {
    let server = RedisServer::start();
    let (port, dir) = (server.port(), server.dir().to_owned());
    assert!(dir.exists());
    drop(server);
    assert!(is_refused(port));
    assert!(!dir.exists());
}

#[test]
fn server_dropped_while_paused_ends() {
    let server = RedisServer::start();
    let (port, dir) = (server.port(), server.dir().to_owned());
    server.pause();
    server.stop();
    assert!(is_refused(port) && !dir.exists());
}

#[test]
fn paused_server_sends_no_reply() {
    let server = RedisServer::start();
    server.pause();
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    let error = stream.read(&mut reply).unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut
    ));

    server.resume();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn killed_server_refuses_connections_and_restarts_empty() {
    let server = RedisServer::start();
    let port = server.port();
    server.command(&["SET", "key", "value"]);
    server.kill();
    assert!(is_refused(port));
    server.kill();
    server.restart();
    assert_eq!(server.port(), port);
    assert!(server.command(&["GET", "key"]).is_nil());
}

#[test]
fn server_is_ready_after_each_restart() {
    let server = RedisServer::start();
    for _ in 0..20 {
        server.restart();
        assert_eq!(server.command(&["PING"]).text(), "PONG");
    }
}

#[test]
fn persistent_server_restarts_with_its_data() {
    let server = RedisServer::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .start();
    server.command(&["SET", "key", "value"]);
    server.restart();
    assert_eq!(server.command(&["GET", "key"]).text(), "value");
}

#[test]
fn servers_run_side_by_side() {
    let start = || thread::spawn(RedisServer::start);
    let servers: Vec<_> = [start(), start(), start(), start()]
        .map(|thread| thread.join().unwrap())
        .into();
    for server in &servers {
        let dir = server.command(&["CONFIG", "GET", "dir"]).items()[1].text();
        assert_eq!(Path::new(&dir), server.dir());
    }
}

#[test]
fn server_ends_when_its_owner_is_killed() {
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["child_owns_server_until_killed", "--exact", "--nocapture"])
        .env(OWNER, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines: Vec<String> = BufReader::new(owner.stderr.take().unwrap())
        .lines()
        .take(2)
        .map(Result::unwrap)
        .collect();
    let (port, dir) = (lines[0].parse().unwrap(), PathBuf::from(&lines[1]));
    assert!(!is_refused(port) && dir.exists());

    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually(|| is_refused(port));
    eventually(|| !dir.exists());
}

/// The body of the child process; does nothing in a plain run of the tests.
#[test]
fn child_owns_server_until_killed() {
    if env::var_os(OWNER).is_some() {
        // Static and paused: neither a destructor nor the server itself can help.
        let server = RedisServer::shared();
        server.pause();
        let message = format!("{}\n{}\n", server.port(), server.dir().display());
        std::io::stderr().write_all(message.as_bytes()).unwrap();
        loop {
            thread::park();
        }
    }
}
