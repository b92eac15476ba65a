//! A TCP relay before a Redis server that keeps all commands with their replies.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// The bytes of one connection, in both directions.
#[derive(Default)]
struct Connection {
    commands: Vec<u8>,
    replies: Vec<u8>,
}

/// Relays connections until the process ends.
pub(super) struct Tap {
    port: u16,
    connections: Arc<Mutex<Vec<Arc<Mutex<Connection>>>>>,
}

/// One call of a script.
pub(super) struct ScriptCall {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) argument: Vec<u8>,
    pub(super) reply: String,
}

impl Tap {
    pub(super) fn start(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<Mutex<Vec<_>>>::default();
        let all = Arc::clone(&connections);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { break };
                let Ok(server) = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, target))) else {
                    break;
                };
                let connection = Arc::<Mutex<Connection>>::default();
                all.lock().unwrap().push(Arc::clone(&connection));
                let (client_again, server_again) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let seen = Arc::clone(&connection);
                thread::spawn(move || {
                    relay(client, server, |bytes| {
                        seen.lock().unwrap().commands.extend_from_slice(bytes);
                    });
                });
                thread::spawn(move || {
                    relay(server_again, client_again, |bytes| {
                        connection.lock().unwrap().replies.extend_from_slice(bytes);
                    });
                });
            }
        });
        Self { port, connections }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// All script calls with a reply, in the order of each connection, without calls that failed
    /// with `NOSCRIPT`.
    pub(super) fn script_calls(&self) -> Vec<ScriptCall> {
        let mut calls = Vec::new();
        for connection in self.connections.lock().unwrap().iter() {
            let connection = connection.lock().unwrap();
            let (mut commands, mut replies) = (&connection.commands[..], &connection.replies[..]);
            while let (Some(command), Some(reply)) = (Value::read(&mut commands), Value::read(&mut replies)) {
                let Value::Array(parts) = command else { continue };
                let parts: Vec<Vec<u8>> = parts.into_iter().map(Value::into_bytes).collect();
                let is_script =
                    parts[0].eq_ignore_ascii_case(b"EVALSHA") || parts[0].eq_ignore_ascii_case(b"EVAL");
                if !is_script || matches!(&reply, Value::Error(text) if text.starts_with("NOSCRIPT")) {
                    continue;
                }
                let number: usize = String::from_utf8_lossy(&parts[2]).parse().unwrap();
                calls.push(ScriptCall {
                    keys: parts[3..3 + number].to_vec(),
                    argument: parts.get(3 + number).cloned().unwrap_or_default(),
                    reply: reply.render(),
                });
            }
        }
        calls
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, mut keep: impl FnMut(&[u8])) {
    let mut buffer = [0; 16 << 10];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 {
            break;
        }
        // Recorded before it is sent, so that the record is complete when the client has the reply.
        keep(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

enum Value {
    Bytes(Vec<u8>),
    Line(String),
    Error(String),
    Array(Vec<Value>),
}

impl Value {
    /// The next value, or none if it is not there yet in full.
    fn read(input: &mut &[u8]) -> Option<Self> {
        let end = input.windows(2).position(|pair| pair == b"\r\n")?;
        let line = String::from_utf8_lossy(&input[1..end]).into_owned();
        let kind = input[0];
        let mut rest = &input[end + 2..];
        let number = || line.parse::<usize>().ok();
        let value = match kind {
            b'$' => match number() {
                Some(length) => {
                    let bytes = rest.get(..length)?.to_vec();
                    rest = rest.get(length + 2..)?;
                    Self::Bytes(bytes)
                }
                None => Self::Line("nil".to_owned()),
            },
            b'*' | b'>' | b'~' | b'%' => {
                let count = number().unwrap_or_default() * if kind == b'%' { 2 } else { 1 };
                let values = (0..count).map(|_| Self::read(&mut rest)).collect::<Option<_>>()?;
                Self::Array(values)
            }
            b'-' => Self::Error(line),
            _ => Self::Line(line),
        };
        *input = rest;
        Some(value)
    }

    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Line(line) | Self::Error(line) => line.into_bytes(),
            Self::Array(_) => Vec::new(),
        }
    }

    fn render(&self) -> String {
        match self {
            Self::Bytes(bytes) => hex(bytes),
            Self::Line(line) => line.clone(),
            Self::Error(line) => format!("error {line}"),
            Self::Array(values) => {
                let values: Vec<_> = values.iter().map(Self::render).collect();
                format!("[{}]", values.join(" | "))
            }
        }
    }
}

/// Bytes as hexadecimal digits, in groups of four bytes.
pub(super) fn hex(bytes: &[u8]) -> String {
    let group = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(4).map(group).collect::<Vec<_>>().join(" ")
}
