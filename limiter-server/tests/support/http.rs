//! One HTTP/1.1 request on a connection of its own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// A response whose body may be compressed.
#[derive(Debug)]
pub(crate) struct RawResponse {
    /// The status line and the headers, with names as sent.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// The value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(of, _)| of == name);
        header.map(|(_, value)| value.as_str())
    }

    /// The JSON of the body.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Sends a GET request with these headers.
pub(crate) fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> io::Result<Response> {
    let is_host = |(name, _): &(&str, &str)| *name == "host";
    let mut headers = headers.to_vec();
    if !headers.iter().any(is_host) {
        headers.push(("host", "localhost"));
    }
    send(address, &format!("GET {path}"), &headers, "")
}

/// Sends a POST request with a JSON body. These headers replace those of the same name.
pub(crate) fn post(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Response> {
    let (host, length) = (address.to_string(), body.len().to_string());
    let usual = [
        ("host", host.as_str()),
        ("content-type", "application/json"),
        ("content-length", length.as_str()),
    ];
    let is_replaced = |(name, _): &(&str, &str)| headers.iter().any(|(given, _)| given == name);
    let mut all: Vec<_> = usual.into_iter().filter(|header| !is_replaced(header)).collect();
    all.extend(headers);
    send(address, &format!("POST {path}"), &all, body)
}

pub(crate) fn send(
    address: SocketAddr,
    line: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> io::Result<Response> {
    send_within(Duration::from_secs(20), address, line, headers, body)
}

/// Sends a request whose answer may be compressed.
pub(crate) fn send_raw(
    timeout: Duration,
    address: SocketAddr,
    line: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> io::Result<RawResponse> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut request = format!("{line} HTTP/1.1\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    let request = [request.as_bytes(), body.as_ref()].concat();
    // A server can answer and close before it has read a body that is too large.
    let sent = stream.write_all(&request);
    let mut bytes = Vec::new();
    let read = read_answer(&mut stream, &mut bytes);
    if bytes.is_empty() {
        sent?;
        read?;
    }
    let end = bytes.windows(4).position(|of| of == b"\r\n\r\n");
    let body = bytes.split_off(end.ok_or(io::ErrorKind::UnexpectedEof)? + 4);
    Ok(RawResponse {
        head: String::from_utf8_lossy(&bytes).trim_end().to_owned(),
        body,
    })
}

pub(crate) fn send_within(
    timeout: Duration,
    address: SocketAddr,
    line: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> io::Result<Response> {
    let RawResponse { head, body } = send_raw(timeout, address, line, headers, body)?;
    let body = String::from_utf8(body).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status
        .and_then(|status| status.parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    Ok(Response {
        status,
        headers,
        body,
    })
}

/// Reads to the end of the body, or of the connection. Some servers keep it open.
fn read_answer(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 64 << 10];
    while !is_complete(bytes) {
        match stream.read(&mut buffer)? {
            0 => break,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(())
}

/// Returns whether the bytes are an answer with a length and contain its body.
fn is_complete(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|of| of == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse::<usize>().ok());
    length.is_some_and(|length| bytes.len() >= end + 4 + length)
}
