//! One connection through the proxy.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Network;
use super::pipe::{Piece, Pipe};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const READ_SIZE: usize = 64 * 1024;

/// The two sockets of a connection, and the data in transit between them.
#[derive(Debug)]
pub(super) struct Link {
    client: TcpStream,
    server: OnceLock<TcpStream>,
    requests: Pipe,
    replies: Pipe,
    /// Something was thrown away, so that nothing that follows would make sense.
    silenced: AtomicBool,
    closed: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

impl Link {
    pub(super) fn new(client: TcpStream) -> Self {
        Self {
            client,
            server: OnceLock::new(),
            requests: Pipe::default(),
            replies: Pipe::default(),
            silenced: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Forwards until one end closes, or until the link is closed.
    pub(super) fn run(&self, network: &Network) {
        let Some(server) = self.connect(network) else {
            if network.is_black_hole() {
                // The client was accepted and does not learn that the server is absent.
                self.silenced.store(true, Ordering::SeqCst);
                self.read(&self.client, &self.requests, Direction::Request, network);
            }
            return self.close();
        };
        // Two threads for each direction: the thread that delays data must not keep the other from
        // recording the arrival time of the next data.
        thread::scope(|scope| {
            scope.spawn(|| self.read(server, &self.replies, Direction::Reply, network));
            scope.spawn(|| self.write(&self.client, &self.replies, Direction::Reply, network));
            scope.spawn(|| self.write(server, &self.requests, Direction::Request, network));
            self.read(&self.client, &self.requests, Direction::Request, network);
        });
    }

    /// Ends the connection at both ends, and so the threads that run it.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // A closed socket needs no further action.
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = self.server.get() {
            let _ = server.shutdown(Shutdown::Both);
        }
        self.requests.close();
        self.replies.close();
    }

    fn connect(&self, network: &Network) -> Option<&TcpStream> {
        let stream = TcpStream::connect_timeout(&network.target(), CONNECT_LIMIT).ok()?;
        stream.set_nodelay(true).ok()?;
        self.client.set_nodelay(true).ok()?;
        let server = self.server.get_or_init(|| stream);
        // A concurrent close of the link could not see this socket.
        if self.closed.load(Ordering::SeqCst) {
            self.close();
        }
        Some(server)
    }

    fn read(&self, mut from: &TcpStream, pipe: &Pipe, direction: Direction, network: &Network) {
        let mut buffer = vec![0; READ_SIZE];
        loop {
            let length = from.read(&mut buffer).unwrap_or(0);
            let due = Instant::now() + network.delay();
            match buffer.get(..length) {
                Some(bytes) if length > 0 => {
                    if !self.discards(network) {
                        pipe.push(due, Piece::Bytes(bytes.to_vec()));
                    }
                }
                // No peer is connected.
                _ if direction == Direction::Request && self.discards(network) => return self.close(),
                _ => return pipe.push(due, Piece::End),
            }
        }
    }

    fn write(&self, mut to: &TcpStream, pipe: &Pipe, direction: Direction, network: &Network) {
        while let Some(piece) = pipe.pop() {
            if self.discards(network) {
                if direction == Direction::Request && piece == Piece::End {
                    self.close();
                }
                continue;
            }
            let Piece::Bytes(bytes) = piece else {
                return self.close();
            };
            let cut = match direction {
                Direction::Request => None,
                Direction::Reply => network.cut(),
            };
            if direction == Direction::Reply {
                thread::sleep(network.transfer_time(bytes.len()));
            }
            let allowed = bytes.get(..cut.unwrap_or(bytes.len())).unwrap_or(&bytes);
            if to.write_all(allowed).is_err() || cut.is_some() {
                return self.close();
            }
        }
    }

    /// Returns whether received data is discarded; called only after data was received.
    fn discards(&self, network: &Network) -> bool {
        if network.is_black_hole() {
            self.silenced.store(true, Ordering::SeqCst);
        }
        self.silenced.load(Ordering::SeqCst)
    }
}
