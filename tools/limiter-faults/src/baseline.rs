//! A minimal client that detects when a server accepts writes: the baseline for the recovery of
//! limiters.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use limiter_testing::RedisServer;

const PATIENCE: Duration = Duration::from_millis(100);
const GIVE_UP: Duration = Duration::from_secs(30);

const PING: &str = "PING\r\n";

/// Sends writes repeatedly until the server behind this port accepts one. A read would not suffice,
/// because a decision needs a write.
pub(crate) fn until_writable(port: u16) -> Waiting {
    until_writable_at(port, "bare")
}

/// Waits for a cluster node that owns the slot of this tag to accept writes.
pub(crate) fn until_writable_at(port: u16, tag: &str) -> Waiting {
    // The key expires at once.
    until(port, format!("SET {{{tag}}}limiter-faults 1 PX 1\r\n"))
}

/// Returns the time for a connection and one reply.
pub(crate) fn dial(port: u16) -> Option<Duration> {
    let started = Instant::now();
    answers(port, PING).then(|| started.elapsed())
}

/// A wait for a server.
#[derive(Debug)]
#[must_use]
pub(crate) struct Waiting(JoinHandle<Option<Instant>>);

impl Waiting {
    /// Returns the time of its first reply.
    ///
    /// # Panics
    /// If there is no reply within half a minute.
    pub(crate) fn answered_at(self) -> Instant {
        let answered = self.0.join().ok().flatten();
        answered.expect("the store recovers")
    }
}

/// Returns the process of a server that runs.
pub(crate) fn pid(server: &RedisServer) -> Option<u32> {
    let info = server.try_command(&["INFO", "server"]).ok()?.text();
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix("process_id:")?.trim().parse().ok())
}

fn until(port: u16, command: String) -> Waiting {
    Waiting(thread::spawn(move || {
        let started = Instant::now();
        while started.elapsed() < GIVE_UP {
            if answers(port, &command) {
                return Some(Instant::now());
            }
            thread::sleep(Duration::from_millis(1));
        }
        None
    }))
}

fn answers(port: u16, command: &str) -> bool {
    let query = || -> std::io::Result<bool> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(command.as_bytes())?;
        let mut first = [0];
        stream.read_exact(&mut first)?;
        Ok(first == *b"+")
    };
    query().unwrap_or(false)
}
