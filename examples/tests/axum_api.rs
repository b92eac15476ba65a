//! The API, over plain sockets.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;

/// A running server, which ends with the test.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        Self::start_with("AT_ONCE", "100")
    }

    /// A server with this variable in its environment.
    fn start_with(variable: &str, value: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_axum_api"))
            .env_remove("REDIS_URL")
            .env("PORT", "0")
            .env(variable, value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .unwrap()
            .to_owned();
        Self { process, address }
    }

    /// The status, and the whole response, to a request with these headers.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (address, length) = (&self.address, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let status = response.split(' ').nth(1).unwrap().parse().unwrap();
        (status, response)
    }

    fn get(&self, path: &str, headers: &str) -> (u16, String) {
        self.ask("GET", path, headers, "")
    }

    fn log_in(&self, headers: &str, password: &str) -> u16 {
        self.ask("POST", "/login", headers, password).0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

const ANN: &str = "X-Api-Key: ann-secret\r\n";
const BOB: &str = "X-Api-Key: bob-secret\r\n";
const FORGED: &str = "X-Api-Key: forged\r\n";
const ELSEWHERE: &str = "X-Forwarded-For: 198.51.100.7\r\n";

fn has(response: &str, part: &str) {
    assert!(response.contains(part), "no {part} in {response}");
}

#[test]
fn tier_determines_limit_of_client() {
    let server = Server::start();
    assert_eq!(server.get("/search", FORGED).0, 401);

    let (status, response) = server.get("/search", ANN);
    assert_eq!(status, 200);
    has(&response, "ratelimit-policy: \"pro\";q=20;w=2\r\n");
    has(&response, "ratelimit: \"pro\";r=19");
    has(&response, "found something for ann; 19 more at once\n");

    let (status, response) = server.get("/search", BOB);
    assert_eq!(status, 200);
    has(&response, "ratelimit-policy: \"free\";q=5;w=5\r\n");
    has(&response, "found something for bob; 4 more at once\n");
}

/// No server listens on port 1.
#[cfg(feature = "redis")]
#[test]
fn server_starts_without_redis() {
    let server = Server::start_with("REDIS_URL", "redis://127.0.0.1:1/");
    assert_eq!(server.get("/healthz", "").0, 200);
    assert_eq!(server.get("/search", ANN).0, 200);
}

#[test]
fn route_and_annotated_handler_have_separate_limits() {
    let server = Server::start();
    let upload = |client| server.ask("POST", "/upload", client, "data");
    assert_eq!(upload(ANN).0, 200);
    let (status, response) = upload(ANN);
    assert_eq!(status, 429);
    has(&response, "retry-after: 10\r\n");
    has(&response, "content-type: application/problem+json\r\n");
    has(&response, "\"violated-policies\":[\"upload\"]");
    assert_eq!(upload(BOB).0, 200);

    assert_eq!(server.get("/reports/sales", ANN).0, 200);
    assert_eq!(server.get("/reports/sales", BOB).0, 200);
    let (status, response) = server.get("/reports/sales", BOB);
    assert_eq!(status, 429);
    has(&response, "retry-after: 60\r\n");
    assert_eq!(server.get("/reports/costs", BOB).0, 200);
}

#[test]
fn address_is_charged_for_failed_logins_only() {
    let server = Server::start();
    for _ in 0..5 {
        assert_eq!(server.log_in(ELSEWHERE, "correct horse"), 200);
    }
    for _ in 0..3 {
        assert_eq!(server.log_in(ELSEWHERE, "guess"), 401);
    }
    assert_eq!(server.log_in(ELSEWHERE, "another guess"), 429);
    assert_eq!(server.log_in(ELSEWHERE, "correct horse"), 429);
    let forged = "X-Forwarded-For: 203.0.113.9, 198.51.100.7\r\n";
    assert_eq!(server.log_in(forged, "correct horse"), 429);
    assert_eq!(server.log_in("", "correct horse"), 200);
}

#[test]
fn anonymous_client_has_daily_quota_and_probes_have_none() {
    let server = Server::start();
    for left in (0..100).rev() {
        let (status, response) = server.get("/trial", ELSEWHERE);
        assert_eq!(status, 200, "{left} left: {response}");
    }
    let (status, response) = server.get("/trial", ELSEWHERE);
    assert_eq!(status, 429);
    has(&response, "\"violated-policies\":[\"trial\"]");
    assert_eq!(server.get("/trial", "").0, 200);

    let (status, response) = server.get("/healthz", "");
    assert_eq!(status, 200);
    assert!(!response.contains("ratelimit"), "{response}");
    has(&server.get("/elsewhere", "").1, "ratelimit: \"address\";r=");
}

#[test]
fn completion_is_charged_by_used_tokens() {
    let server = Server::start();
    let complete = |client, prompt: &str| server.ask("POST", "/complete", client, prompt);
    let (status, response) = complete("", "hello");
    assert_eq!(status, 401);
    has(&response, "www-authenticate: ApiKey\r\n");

    // 500 of 1,000 tokens are charged first.
    for _ in 0..5 {
        let (status, response) = complete(ANN, "hello there");
        assert_eq!(status, 200, "{response}");
        has(&response, "an answer of 10 tokens\n");
    }
    assert_eq!(complete(ANN, &"word ".repeat(592)).0, 200);
    let (status, response) = complete(ANN, "hello again");
    assert_eq!(status, 429);
    has(&response, "content-type: application/json\r\n");
    has(
        &response,
        "{\"error\":{\"type\":\"out_of_tokens\",\"retry_after\":",
    );
    assert_eq!(complete(BOB, "hello").0, 200);
}

/// Returns true if an export of ann, or a request sent during it, gets the status `denied`.
fn is_denied_during_export(server: &Server, path: &str, client: &str, denied: u16) -> bool {
    thread::scope(|scope| {
        let export = scope.spawn(|| server.get("/export", ANN).0);
        let mut is_denied = false;
        while !is_denied && !export.is_finished() {
            is_denied = server.get(path, client).0 == denied;
        }
        export.join().unwrap() == denied || is_denied
    })
}

#[test]
fn second_concurrent_export_is_denied() {
    let server = Server::start();
    assert_eq!(server.get("/export", "").0, 401);
    assert!(is_denied_during_export(&server, "/export", ANN, 429));
    assert!(!is_denied_during_export(&server, "/export", BOB, 429));
}

#[test]
fn busy_process_reserves_capacity_for_logins() {
    let server = Server::start_with("AT_ONCE", "2");
    assert!(is_denied_during_export(&server, "/elsewhere", "", 503));
    thread::scope(|scope| {
        scope.spawn(|| server.get("/export", ANN));
        assert_eq!(
            server.log_in("", "correct horse"),
            200,
            "logins have reserved capacity"
        );
    });
    assert_eq!(server.get("/healthz", "").0, 200);
}
