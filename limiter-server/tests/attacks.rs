//! Clients that are slow, large or malformed do not affect others, and the memory stays bounded.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use limiter_server::gateway::envoy::messages::RateLimitRequest;
use serde_json::json;
use support::calls::post_as;
use support::descriptors::{descriptor, request};
use support::http;
use support::policies::search_per_hour;
use support::rls::RlsClient;
use support::server::{Server, wait_until};
use support::sockets::send;
use tonic::Code;

/// The largest growth of the process during an attack.
const MAX_GROWTH_KB: u64 = 64 * 1_024;

/// A policy that allows all calls of a test.
fn policies() -> String {
    search_per_hour(100_000)
}

fn start(args: &[&str]) -> Server {
    Server::with_policies(&policies(), args)
}

fn check(server: &Server) -> u16 {
    let body = json!({"policy": "search", "key": "ann"});
    post_as(server, None, "/v1/check", &body).status
}

fn repeated(count: usize) -> RateLimitRequest {
    RateLimitRequest {
        descriptors: vec![descriptor("search", "ann"); count],
        ..request(&[])
    }
}

/// Clients without bad intentions are served on both listeners.
fn assert_others_are_served(server: &Server) {
    assert_eq!(check(server), 200);
    let answer = RlsClient::connect(server.grpc()).decide(&repeated(1));
    assert!(answer.is_ok(), "{answer:?}");
}

/// Reads until the peer ends or resets the connection.
fn read_until_closed(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection stays open: {error}"),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends one byte in each interval until the peer ends the connection: the answer.
fn drip(mut stream: TcpStream, mut byte: impl FnMut() -> u8) -> String {
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut answer = Vec::new();
    let started = std::time::Instant::now();
    loop {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "the connection stays open"
        );
        let mut bytes = [0; 1_024];
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(bytes.get(..read).unwrap()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
        if stream.write_all(&[byte()]).is_err() {
            let _ = stream.read_to_end(&mut answer);
            break;
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn slow_headers_end_with_the_read_timeout() {
    let server = start(&["--read-timeout", "1s"]);
    let slow: Vec<_> = (0..200)
        .map(|_| send(server.http(), b"POST /v1/check HTTP/1.1\r\nx-slow: "))
        .collect();
    assert_others_are_served(&server);
    for (number, mut stream) in slow.into_iter().enumerate() {
        // Some of them send bytes all the time.
        let answer = match number % 50 {
            0 => drip(stream, || b'x'),
            _ => read_until_closed(&mut stream),
        };
        assert!(answer.starts_with("HTTP/1.1 408"), "{number}: {answer}");
    }
    assert_others_are_served(&server);
}

#[test]
fn slow_body_ends_with_the_read_timeout() {
    let server = start(&["--read-timeout", "1s", "--max-in-flight", "1"]);
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 60000\r\n\r\n";
    let slow = send(server.http(), head.as_bytes());
    // A call takes its place when its body has arrived.
    assert_others_are_served(&server);
    let answer = drip(slow, || b' ');
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("read timeout"), "{answer}");
    assert_others_are_served(&server);
}

#[test]
fn slow_message_ends_with_the_read_timeout() {
    let server = start(&["--read-timeout", "1s", "--max-in-flight", "1"]);
    std::thread::scope(|scope| {
        // The prefix of a message of 100 bytes, and one of them.
        let slow = scope.spawn(|| RlsClient::connect(server.grpc()).send_unfinished(&[0, 0, 0, 0, 100, 7]));
        // A call takes its place when its message has arrived.
        assert_others_are_served(&server);
        let status = slow.join().unwrap().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        assert!(status.message().contains("read timeout"), "{status:?}");
    });
    assert_others_are_served(&server);
}

#[test]
fn slow_command_ends_with_the_read_timeout() {
    let args = ["--resp", "127.0.0.1:0", "--read-timeout", "1s"];
    let server = start(&args);
    let start = b"*5\r\n$11\r\nCL.THROTTLE\r\n$3000\r\n";
    let slow: Vec<_> = (0..100).map(|_| send(server.resp(), start)).collect();
    let mut idle = send(server.resp(), b"");
    let ping = |stream: &mut TcpStream| {
        stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
    };
    ping(&mut idle);
    assert_others_are_served(&server);
    for (number, mut stream) in slow.into_iter().enumerate() {
        let answer = match number % 50 {
            // Some of them send bytes all the time.
            0 => drip(stream, || b'x'),
            _ => read_until_closed(&mut stream),
        };
        assert_eq!(answer, "", "{number}");
    }
    // A client without an incomplete command keeps its connection.
    ping(&mut idle);
    ping(&mut send(server.resp(), b""));
    assert_others_are_served(&server);
}

#[test]
fn half_open_connections_end_with_the_idle_timeout() {
    let server = start(&["--read-timeout", "1s", "--idle-timeout", "1s"]);
    let silent: Vec<_> = [server.http(), server.grpc()]
        .into_iter()
        .flat_map(|address| (0..50).map(move |_| send(address, b"")))
        .collect();
    let idle = send(server.http(), b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    // An HTTP/2 client that answers no pings.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let deaf = send(server.grpc(), preface);
    assert_others_are_served(&server);
    for mut stream in silent.into_iter().chain([idle, deaf]) {
        read_until_closed(&mut stream);
    }
    assert_others_are_served(&server);
}

#[test]
fn idle_client_that_answers_pings_stays_connected() {
    let server = start(&["--idle-timeout", "200ms"]);
    let client = RlsClient::connect(server.grpc());
    client.decide(&repeated(1)).unwrap();
    client.run_for(Duration::from_millis(1_000));
    client.decide(&repeated(1)).unwrap();
    assert!(server.metric("limiter_server_closed_connections_total{reason=\"idle_timeout\"}") < 1.0);
}

#[test]
fn connections_above_the_limit_are_closed() {
    let server = start(&["--max-connections", "10"]);
    let held: Vec<_> = (0..10).map(|_| send(server.grpc(), b"")).collect();
    let mut refused = send(server.grpc(), b"");
    assert_eq!(read_until_closed(&mut refused), "");
    server.wait_for_log("connection limit reached");
    // The limit of one listener does not affect the other.
    assert_eq!(check(&server), 200);
    drop(held);
    let is_served = || {
        let mut stream = send(
            server.grpc(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        );
        matches!(stream.read(&mut [0; 9]), Ok(read) if read > 0)
    };
    wait_until(is_served, || server.log());
    server.wait_for_log("accepting connections again");
}

#[test]
fn http_connections_above_the_limit_are_answered_503() {
    let server = start(&["--max-connections", "10"]);
    let held: Vec<_> = (0..10).map(|_| send(server.http(), b"")).collect();
    let mut refused = send(server.http(), b"");
    let answer = read_until_closed(&mut refused);
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    drop(held);
    let is_served = || http::get(server.http(), "/healthz", &[]).is_ok_and(|answer| answer.status == 200);
    wait_until(is_served, || server.log());
}

#[test]
fn large_body_is_refused_with_bounded_memory() {
    let server = start(&[]);
    assert_others_are_served(&server);
    let before = server.resident_kb();
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    for framing in [
        "content-length: 104857600\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n6400000\r\n",
    ] {
        let mut stream = send(server.http(), format!("{head}{framing}").as_bytes());
        let block = vec![b' '; 1 << 20];
        // The server answers before it has read everything.
        let _ = (0..100).try_for_each(|_| stream.write_all(&block));
        let answer = read_until_closed(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 413"), "{framing}: {answer}");
        assert!(answer.contains("at most 262144 bytes"), "{answer}");
    }
    let status = RlsClient::connect(server.grpc()).decide(&repeated(2_000_000));
    assert_eq!(status.unwrap_err().code(), Code::OutOfRange);
    assert_others_are_served(&server);
    let growth = server.resident_kb().saturating_sub(before);
    assert!(growth < MAX_GROWTH_KB, "{growth} kB");
}

/// Clients choose the names of policies that do not exist.
#[test]
fn long_name_of_a_policy_is_truncated_in_the_log_and_the_answer() {
    let server = start(&[]);
    for first in 'a'..='e' {
        let body = json!({"policy": format!("{first}{}", "é".repeat(100_000))});
        let answer = post_as(&server, None, "/v1/check", &body);
        assert_eq!(answer.status, 404, "{}", answer.body);
        assert!(answer.body.len() < 1_000, "{} bytes", answer.body.len());
    }
    let log = server.log();
    let longest = log.lines().map(str::len).max();
    assert!(log.contains("no policy of this name"), "{longest:?} bytes");
    assert!(longest < Some(1_000), "{longest:?} bytes");
}

/// These services have no access check, and their bodies have no common bound.
#[test]
fn large_message_of_health_and_reflection_is_rejected_by_its_length() {
    let server = start(&[]);
    for (path, expected) in [
        ("/grpc.health.v1.Health/Check", Code::OutOfRange),
        ("/grpc.health.v1.Health/Watch", Code::OutOfRange),
        // Reflection ends its stream without an error.
        (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            Code::Ok,
        ),
    ] {
        let client = RlsClient::connect(server.grpc());
        // The prefix of a message of 65,536 bytes.
        let status = client.send_prefix(path, &[0, 0, 1, 0, 0]).unwrap_err();
        assert_eq!(status.code(), expected, "{path}: {status:?}");
    }
    assert_others_are_served(&server);
}

#[test]
fn unfinished_bodies_of_many_clients_are_bounded_together() {
    let server = start(&["--read-timeout", "20s"]);
    assert_others_are_served(&server);
    let before = server.resident_kb();
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 250000\r\n\r\n";
    let body = [head.as_bytes(), &vec![b' '; 240_000]].concat();
    let held: Vec<_> = (0..400).map(|_| send(server.http(), &body)).collect();
    let rejected = "limiter_server_rejected_calls_total{reason=\"memory\"}";
    wait_until(|| server.metric(rejected) > 0.0, || server.log());
    let growth = server.resident_kb().saturating_sub(before);
    assert!(growth < 3 * MAX_GROWTH_KB, "{growth} kB");
    let is_refused = |mut stream: &TcpStream| {
        let mut start = [0; 12];
        stream.set_nonblocking(true).unwrap();
        matches!(stream.read(&mut start), Ok(12) if &start == b"HTTP/1.1 503")
    };
    assert!(held.iter().any(is_refused));
    drop(held);
    wait_until(|| check(&server) == 200, || server.log());
}

#[test]
fn malformed_requests_have_clear_errors() {
    let server = start(&[]);
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                content-type: application/json\r\n";
    let body = b"{\"policy\":\"search\",\"key\":\"\xff\xfe\"}";
    let length = format!("content-length: {}\r\n\r\n", body.len());
    let invalid = [head.as_bytes(), length.as_bytes(), body].concat();
    let answer = read_until_closed(&mut send(server.http(), &invalid));
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("cannot read the JSON body"), "{answer}");
    let deep = "[".repeat(100_000);
    assert_eq!(
        http::post(server.http(), "/v1/check", &[], &deep).unwrap().status,
        400
    );
    let long = format!("{head}x-long: {}\r\n\r\n", "x".repeat(100_000));
    let answer = read_until_closed(&mut send(server.http(), long.as_bytes()));
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let limits: Vec<_> = (0..10_000).map(|_| json!({"policy": "search"})).collect();
    let answer = post_as(&server, None, "/v1/check", &json!({"limits": limits}));
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.body.contains("10000 entries"), "{}", answer.body);

    let client = RlsClient::connect(server.grpc());
    let status = client.decide(&repeated(10_000)).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().contains("10000 descriptors"), "{status:?}");
    // The domain is a field of text.
    let status = client.send_encoded(b"\x0a\x02\xff\xfe".to_vec()).unwrap_err();
    assert!(
        matches!(status.code(), Code::Internal | Code::InvalidArgument),
        "{status:?}"
    );
    assert!(status.message().contains("UTF-8"), "{status:?}");
    let mut garbage = send(server.grpc(), b"GET / HTTP/1.1\r\n\r\n");
    read_until_closed(&mut garbage);
    assert_others_are_served(&server);
}

#[test]
fn calls_above_the_limit_are_unavailable_and_counted() {
    // Redis does not answer, so calls stay in flight until their deadline.
    let redis = limiter_testing::RedisServer::start();
    let slow = format!(
        "{}[policy.slow]\nalgorithm = \"sliding_window\"\nlimit = 5\nwindow = \"1h\"\ndeadline = \"20s\"\n",
        policies()
    );
    let server = Server::with_policies(&slow, &["--redis", &redis.url(), "--max-in-flight", "1"]);
    let body = json!({"policy": "slow", "key": "ann"}).to_string();
    let call = || http::post(server.http(), "/v1/check", &[], &body);
    assert_eq!(call().unwrap().status, 200);
    redis.pause();
    std::thread::scope(|scope| {
        let first = scope.spawn(call);
        wait_until(
            || server.metric("limiter_server_calls_in_flight") > 0.0,
            || server.log(),
        );
        let answer = call().unwrap();
        assert_eq!(answer.status, 503);
        assert!(answer.body.contains("too many calls"), "{}", answer.body);
        let status = RlsClient::connect(server.grpc())
            .decide(&repeated(1))
            .unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("too many calls"), "{status:?}");
        let rejected = "limiter_server_rejected_calls_total{reason=\"in_flight\"}";
        assert!(server.metric(rejected) >= 2.0);
        redis.resume();
        assert!(first.join().unwrap().is_ok());
    });
    wait_until(|| call().unwrap().status == 200, || server.log());
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length.get(1..).unwrap().to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Reads one frame: its kind, flags and payload.
fn read_frame(stream: &mut TcpStream) -> std::io::Result<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [high, middle, low, kind, flags, ..] = head;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap()];
    stream.read_exact(&mut payload)?;
    Ok((kind, flags, payload))
}

#[test]
fn http2_client_without_a_request_stays_connected() {
    let server = start(&["--read-timeout", "1s"]);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let (start, rest) = preface.split_at(7);
    let mut idle = send(server.http(), start);
    idle.write_all(&[rest, &frame(4, 0, 0, &[])].concat()).unwrap();
    // The read timeout of a later connection ends.
    let mut slow = send(server.http(), b"POST /v1/check HTTP/1.1\r\nx-slow: ");
    assert!(read_until_closed(&mut slow).starts_with("HTTP/1.1 408"));
    idle.write_all(&frame(6, 0, 0, &[7; 8])).unwrap();
    loop {
        let (kind, flags, payload) = read_frame(&mut idle).expect("the connection stays open");
        if (kind, flags) == (6, 1) {
            assert_eq!(payload, [7; 8]);
            break;
        }
    }
}

#[test]
fn client_that_answers_pings_and_accepts_no_response_is_disconnected() {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACK: u8 = 1;
    let server = start(&["--idle-timeout", "1s"]);
    let mut stream = send(server.http(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    // SETTINGS_INITIAL_WINDOW_SIZE = 0: no byte of a body may be sent.
    stream
        .write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]))
        .unwrap();
    // GET http /openapi.json with the authority `localhost`, in HPACK: two indexed fields, and two
    // literals with indexed names.
    let mut fields = vec![0x82, 0x86, 0x04, 13];
    fields.extend(b"/openapi.json");
    fields.extend([0x01, 9]);
    fields.extend(b"localhost");
    for number in 0..50 {
        // END_STREAM and END_HEADERS.
        stream
            .write_all(&frame(HEADERS, 5, 2 * number + 1, &fields))
            .unwrap();
    }
    let mut responses = 0;
    // The read timeout of the stream fails the test if the connection stays open without a ping.
    let started = std::time::Instant::now();
    let error = loop {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "the connection stays open"
        );
        match read_frame(&mut stream) {
            Ok((PING, flags, payload)) if flags & ACK == 0 => {
                if let Err(error) = stream.write_all(&frame(PING, ACK, 0, &payload)) {
                    break error;
                }
            }
            Ok((HEADERS, ..)) => responses += 1,
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(
        !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        "{error}"
    );
    assert_eq!(responses, 50);
    let metrics = http::get(server.http(), "/metrics", &[]).unwrap().body;
    let closed = "limiter_server_closed_connections_total{reason=\"unread_response\"} 1";
    assert!(metrics.contains(closed), "{metrics}");
    assert_others_are_served(&server);
}
