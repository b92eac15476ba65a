//! The API, over plain sockets.
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A running server, which ends with the test.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_axum_api"))
            .env("PORT", "0")
            .env_remove("REDIS_URL")
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

    /// The status, and the whole response.
    fn ask(&self, method: &str, path: &str, api_key: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let address = &self.address;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nX-Api-Key: {api_key}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let status = response.split(' ').nth(1).unwrap().parse().unwrap();
        (status, response)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[test]
fn limits_each_client_each_route_and_the_annotated_handler() {
    let server = Server::start();
    assert_eq!(server.ask("GET", "/search", "forged").0, 401);

    let (status, response) = server.ask("GET", "/search", "ann-secret");
    assert_eq!(status, 200);
    assert!(
        response.ends_with("found something for ann; 9 more at once\n"),
        "{response}"
    );

    assert_eq!(server.ask("POST", "/upload", "ann-secret").0, 200);
    let (status, response) = server.ask("POST", "/upload", "ann-secret");
    assert_eq!(status, 429);
    assert!(response.contains("retry-after: 10\r\n"), "{response}");
    assert_eq!(server.ask("POST", "/upload", "bob-secret").0, 200);

    assert_eq!(server.ask("GET", "/reports/sales", "ann-secret").0, 200);
    assert_eq!(server.ask("GET", "/reports/sales", "bob-secret").0, 200);
    let (status, response) = server.ask("GET", "/reports/sales", "bob-secret");
    assert_eq!(status, 429);
    assert!(response.contains("retry-after: 60\r\n"), "{response}");
    assert_eq!(server.ask("GET", "/reports/costs", "bob-secret").0, 200);
}
