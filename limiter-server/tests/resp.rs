//! `CL.THROTTLE` with redis-cli, redis-py and redis-rs, on limits in the process and in Redis.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;

use serde_json::json;
use sha2::{Digest, Sha256};
use support::http;
use support::resp::encode;
use support::server::{Directory, Server, run};
use support::sockets;
use support::stores::on_each_store;

const POLICIES: &str = r#"
[policy.login]
algorithm = "sliding_window"
limit = 3
window = "1h"
deadline = "30s"

[policy.listed]
algorithm = "sliding_window"
limit = 3
window = "1h"
deny_keys = ["eve"]

[policy.export]
algorithm = "concurrency"
max = 2
lease = "10m"
"#;

/// The variable that names a Python with the packages of `tests/clients/requirements.txt`.
const PYTHON: &str = "RLS_PYTHON";

/// A server with the arguments of a store, and a deadline that does not end on a loaded machine.
fn start(store: &[&str]) -> Server {
    let args = ["--resp", "127.0.0.1:0", "--resp-deadline", "30s"];
    Server::with_policies(POLICIES, &[&args, store].concat())
}

fn in_process() -> Server {
    Server::with_policies(POLICIES, &["--resp", "127.0.0.1:0"])
}

/// Sends bytes, closes the sending half and returns all replies of the server.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.resp()).unwrap();
    // The server can close before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn numbers(numbers: [i64; 5]) -> String {
    let numbers: String = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
    format!("*5\r\n{numbers}")
}

#[test]
fn throttle_replies_the_numbers_of_redis_cell() {
    on_each_store(start, |server| {
        // One pipeline, so that little time passes between its commands.
        let commands = [
            ("one", "1"),
            ("all", "17"),
            ("all", "16"),
            ("all", "1"),
            ("all", "0"),
        ];
        let commands =
            commands.map(|(key, quantity)| encode(&["CL.THROTTLE", key, "15", "30", "60", quantity]));
        let expected = [
            [0, 16, 15, -1, 2],
            [1, 16, 16, -1, 0],
            [0, 16, 0, -1, 32],
            [1, 16, 0, 2, 32],
            [0, 16, 0, -1, 32],
        ];
        let replies = exchange(server, &commands.concat());
        assert_eq!(replies, expected.map(numbers).concat(), "{}", server.log());
    });
}

#[test]
fn changed_numbers_keep_the_usage_of_a_key() {
    on_each_store(start, |server| {
        let commands = [("9", "4"), ("4", "0"), ("19", "0")];
        let commands =
            commands.map(|(burst, quantity)| encode(&["CL.THROTTLE", "ann", burst, "1", "3600", quantity]));
        let expected = [
            [0, 10, 6, -1, 14_400],
            [0, 5, 1, -1, 14_400],
            [0, 20, 16, -1, 14_400],
        ];
        let replies = exchange(server, &commands.concat());
        assert_eq!(replies, expected.map(numbers).concat(), "{}", server.log());
    });
}

#[test]
fn policy_key_selects_a_registered_policy_and_shares_its_usage() {
    on_each_store(start, |server| {
        let body = json!({"policy": "login", "key": "10.0.0.1:ann"}).to_string();
        let checked = http::post(server.http(), "/v1/check", &[], &body).unwrap();
        assert_eq!(checked.status, 200, "{}", checked.body);
        let throttle = |quantity: &str| {
            exchange(
                server,
                &encode(&[
                    "cl.throttle",
                    "policy:login:10.0.0.1:ann",
                    "0",
                    "1",
                    "1",
                    quantity,
                ]),
            )
        };
        let allowed = throttle("2");
        assert!(
            allowed.starts_with("*5\r\n:0\r\n:3\r\n:0\r\n:-1\r\n"),
            "{allowed}"
        );
        let denied = throttle("1");
        assert!(denied.starts_with("*5\r\n:1\r\n:3\r\n:0\r\n:3"), "{denied}");
        assert!(throttle("4").starts_with("*5\r\n:1\r\n:3\r\n:0\r\n:-1\r\n"));
        // The same text as a plain key of redis-cell has a separate state.
        let own = exchange(server, &encode(&["CL.THROTTLE", "ann", "2", "1", "60"]));
        assert_eq!(own, numbers([0, 3, 2, -1, 60]));
    });
}

#[test]
fn denied_key_is_limited_without_a_retry() {
    let server = in_process();
    let reply = exchange(
        &server,
        &encode(&["CL.THROTTLE", "policy:listed:eve", "0", "1", "1"]),
    );
    assert_eq!(reply, numbers([1, 3, 0, -1, 0]));
}

#[test]
fn bad_input_gets_an_error_and_keeps_the_connection_open() {
    let server = in_process();
    let long = "x".repeat(2_000);
    for (arguments, expected) in [
        (&["CL.THROTTLE", "k"][..], "-ERR wrong number of arguments"),
        (
            &["CL.THROTTLE", "k", "-3", "30", "60"],
            "-ERR max_burst is `-3`, expected a whole number of at least 0",
        ),
        (
            &["CL.THROTTLE", "k", "15", "30", "a\r\nb"],
            "-ERR period is `a\\r\\nb`, expected",
        ),
        (
            &["CL.THROTTLE", "k", "9007199254740993", "30", "60"],
            "-ERR policy `CL.THROTTLE`: capacity is `9007199254740994`, expected",
        ),
        (
            &["CL.THROTTLE", "policy:login", "1", "1", "1"],
            "-ERR key is `policy:login`, expected policy:NAME:KEY",
        ),
        (
            &["CL.THROTTLE", "policy:nope:ann", "1", "1", "1"],
            "-ERR policy is `nope`, expected a configured policy",
        ),
        (
            &["CL.THROTTLE", "policy:export:ann", "1", "1", "1"],
            "-ERR policy `export` limits concurrent requests, expected a rate policy: use POST /v1/acquire",
        ),
        (&[&long], "-ERR unknown command `xxx"),
        (
            &["HELLO", "4"],
            "-NOPROTO protocol version is `4`, expected 2 or 3",
        ),
        (&["AUTH", "secret"], "-ERR AUTH called without any password"),
        (&["SELECT", "1"], "-ERR database is `1`, expected 0"),
    ] {
        let command = [encode(arguments), encode(&["PING"])].concat();
        let answer = exchange(&server, &command);
        assert!(answer.starts_with(expected), "{arguments:?}: {answer}");
        assert!(answer.ends_with("\r\n+PONG\r\n"), "{arguments:?}: {answer}");
        assert_eq!(answer.lines().count(), 2, "{answer}");
    }
    let invalid = [
        &b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\n\xff\r\n"[..],
        &b"$1\r\n1\r\n".repeat(3),
    ]
    .concat();
    let answer = exchange(&server, &[invalid, encode(&["PING"])].concat());
    assert!(answer.starts_with("-ERR key is"), "{answer}");
    assert!(answer.ends_with("+PONG\r\n"), "{answer}");
}

#[test]
fn invalid_framing_closes_its_connection_only() {
    let server = in_process();
    let mut other = redis::Client::open(format!("redis://{}", server.resp()))
        .unwrap()
        .get_connection()
        .unwrap();
    for bytes in [
        &b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"[..],
        b"*1\r\n$100000000\r\n",
        b"*1000000\r\n",
        b"*1\r\n$-1\r\n",
    ] {
        let answer = exchange(&server, &[bytes, &encode(&["PING"])].concat());
        assert!(answer.starts_with("-ERR Protocol error: "), "{answer}");
        assert!(!answer.contains("PONG"), "{answer}");
    }
    let pong: String = redis::cmd("PING").query(&mut other).unwrap();
    assert_eq!(pong, "PONG");
}

#[test]
fn pipeline_replies_arrive_in_order() {
    on_each_store(start, |server| {
        let mut commands = Vec::new();
        let mut expected = String::new();
        // More than run at once, and more than one read.
        for number in 0..500 {
            commands.extend(encode(&["CL.THROTTLE", "ann", "199", "1", "3600"]));
            commands.extend(encode(&["ECHO", &number.to_string()]));
            let denied = number >= 200;
            expected.push_str(&format!("{}{number}\n", u8::from(denied)));
        }
        let answer = exchange(server, &commands);
        let mut shown = String::new();
        for reply in answer.split("*5\r\n").skip(1) {
            let lines: Vec<&str> = reply.lines().collect();
            shown.push_str(&format!("{}{}\n", lines[0].trim_start_matches(':'), lines[6]));
        }
        assert_eq!(shown, expected);
    });
}

#[test]
fn redis_cli_runs_commands() {
    on_each_store(start, |server| {
        let cli = |arguments: &[&str]| {
            let output = Command::new("redis-cli")
                .args(["-p", &server.resp().port().to_string()])
                .args(arguments)
                .output()
                .expect("redis-cli, which is part of redis-tools");
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            format!("{}{errors}", String::from_utf8_lossy(&output.stdout))
        };
        assert_eq!(cli(&["PING"]), "PONG\n");
        let replied = cli(&["CL.THROTTLE", "ann", "15", "30", "60"]);
        assert_eq!(replied, "0\n16\n15\n-1\n2\n");
        assert_eq!(
            cli(&["-3", "CL.THROTTLE", "bob", "15", "30", "60", "16"]),
            "0\n16\n0\n-1\n32\n"
        );
        assert_eq!(cli(&["QUIT"]), "OK\n");
        assert_eq!(cli(&["COMMAND", "COUNT"]), "9\n");
        assert!(cli(&["COMMAND"]).contains("cl.throttle"));
        assert!(cli(&["CL.THROTTLE", "ann"]).starts_with("ERR wrong number"));
    });
}

#[test]
fn redis_py_connects_and_pipelines() {
    let python =
        std::env::var_os(PYTHON).expect("set RLS_PYTHON to a Python with redis, or run `cargo xtask server`");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/resp_client.py");
    on_each_store(start, |server| {
        let output = Command::new(&python)
            .arg(script)
            .arg(server.resp().port().to_string())
            .output()
            .expect("Python starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}{}", server.log());
    });
}

#[test]
fn redis_rs_connects_and_pipelines() {
    on_each_store(start, |server| {
        for query in ["", "?protocol=resp3"] {
            let key = format!("ann{query}");
            let client = redis::Client::open(format!("redis://{}/{query}", server.resp())).unwrap();
            let mut connection = client.get_connection().unwrap();
            let mut pipeline = redis::pipe();
            for _ in 0..20 {
                pipeline.cmd("CL.THROTTLE").arg(&key).arg(15).arg(30).arg(36_000);
            }
            let replies: Vec<[i64; 5]> = pipeline.query(&mut connection).unwrap();
            let limited: i64 = replies.iter().map(|reply| reply[0]).sum();
            assert_eq!((replies.len(), limited), (20, 4), "{replies:?}");
            let invalid = redis::cmd("CL.THROTTLE").arg(&key).exec(&mut connection);
            let error = invalid.unwrap_err();
            assert!(error.to_string().contains("wrong number"), "{error}");
            let pong: String = redis::cmd("PING").query(&mut connection).unwrap();
            assert_eq!(pong, "PONG");
        }
    });
}

#[test]
fn configured_tokens_restrict_commands_to_their_scopes() {
    let directory = Directory::new();
    directory.write("policies.toml", POLICIES);
    let entry = |name: &str, secret: &str, scopes: &str| {
        let hash = Sha256::digest(secret);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[[token]]\nname = '{name}'\nsha256 = '{hash}'\nscopes = [{scopes}]\nexpires = 2999-01-01\n")
    };
    let settings = [
        "policies = 'policies.toml'\n".to_owned(),
        entry("numbers", "lim_numbers", "'namespace'"),
        entry("login", "lim_login", "'check:policy=login'"),
    ];
    directory.write("limiter-server.toml", &settings.concat());
    let server = Server::start(directory, &["--resp", "127.0.0.1:0"]);
    let send = |commands: &[&[&str]]| {
        let commands: Vec<Vec<u8>> = commands.iter().map(|command| encode(command)).collect();
        exchange(&server, &commands.concat())
    };
    let numbers = ["CL.THROTTLE", "ann", "15", "30", "60"];
    let policy = ["CL.THROTTLE", "policy:login:ann", "0", "1", "1"];
    assert!(send(&[&numbers, &["PING"]]).starts_with("-NOAUTH Authentication required"));
    assert!(send(&[&["PING"]]).starts_with("-NOAUTH"));
    assert!(send(&[&["HELLO", "3"]]).starts_with("-NOAUTH"));
    assert!(send(&[&["AUTH", "lim_other"]]).starts_with("-WRONGPASS the token is not configured"));
    let answer = send(&[&["AUTH", "lim_numbers"], &numbers, &policy]);
    assert!(
        answer.starts_with("+OK\r\n*5\r\n:0\r\n:16\r\n:15\r\n"),
        "{answer}"
    );
    assert!(
        answer.ends_with("-NOPERM the client `numbers` lacks the scope `check:policy=login`\r\n"),
        "{answer}"
    );
    let answer = send(&[
        &["HELLO", "3", "AUTH", "default", "lim_login", "SETNAME", "n"],
        &policy,
        &numbers,
    ]);
    assert!(answer.starts_with('%'), "{answer}");
    assert!(answer.contains("*5\r\n:0\r\n:3\r\n:2\r\n"), "{answer}");
    assert!(
        answer.ends_with("-NOPERM the client `login` lacks the scope `namespace`\r\n"),
        "{answer}"
    );
}

#[test]
fn terminated_server_closes_idle_connections() {
    let server = in_process();
    let mut idle = sockets::send(server.resp(), encode(&["PING"]));
    let mut pong = [0; 7];
    idle.read_exact(&mut pong).unwrap();
    server.signal("TERM");
    assert_eq!(sockets::read_to_end(&mut idle), "");
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    assert!(!log.contains("still in flight"), "{log}");
}

/// Sends signals to a stopped process, so that they arrive together with the bytes before them.
fn end_after(server: &Server, arrive: impl FnOnce()) {
    server.signal("STOP");
    arrive();
    server.signal("TERM");
    server.signal("CONT");
}

#[test]
fn connections_that_arrived_before_the_end_are_served() {
    let server = in_process();
    let mut clients = Vec::new();
    end_after(&server, || {
        let ping = encode(&["PING"]);
        clients.extend((0..100).map(|_| sockets::send(server.resp(), &ping)));
    });
    for client in &mut clients {
        assert_eq!(sockets::read_to_end(client), "+PONG\r\n");
    }
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
}

#[test]
fn pipeline_that_arrived_before_the_end_is_served() {
    let server = in_process();
    let mut client = sockets::send(server.resp(), encode(&["PING"]));
    let mut pong = [0; 7];
    client.read_exact(&mut pong).unwrap();
    end_after(&server, || {
        // More than one read.
        let command = encode(&["CL.THROTTLE", "ann", "9999", "1", "3600"]);
        client.write_all(&command.repeat(800)).unwrap();
    });
    let replies = sockets::read_to_end(&mut client);
    assert_eq!(replies.matches("*5\r\n:0\r\n").count(), 800);
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    assert!(!log.contains("still in flight"), "{log}");
}

#[test]
fn configured_limits_close_connections() {
    let limits = [
        "--resp",
        "127.0.0.1:0",
        "--resp-idle-timeout",
        "300ms",
        "--max-command-bytes",
        "100",
    ];
    let server = Server::with_policies(POLICIES, &limits);
    let answer = sockets::read_to_end(&mut sockets::send(server.resp(), encode(&["PING"])));
    assert_eq!(answer, "+PONG\r\n", "the idle connection ends");
    assert_eq!(exchange(&server, &encode(&["ECHO", &"x".repeat(70)])).len(), 77);
    let answer = exchange(&server, &encode(&["ECHO", &"x".repeat(100)]));
    assert!(answer.contains("expected at most 100"), "{answer}");
}

#[test]
fn incomplete_command_ends_its_connection_and_is_counted() {
    let limits = ["--resp", "127.0.0.1:0", "--read-timeout", "300ms"];
    let server = Server::with_policies(POLICIES, &limits);
    let mut incomplete = sockets::send(server.resp(), "*1\r\n$4\r\nPI");
    assert_eq!(sockets::read_to_end(&mut incomplete), "");
    let counted = server.metric("limiter_server_closed_connections_total{reason=\"read_timeout\"}");
    assert!((1.0..2.0).contains(&counted), "{counted}");
}

#[test]
fn listener_for_other_machines_needs_permission() {
    let (code, _, errors) = run(&["serve", "--example", "--resp", "0.0.0.0:0"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("setting resp is `0.0.0.0:0`"), "{errors}");
}
