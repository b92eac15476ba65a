//! Requests at a rate that a test changes, and the measurement of those that were served.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of connections of a source.
const CONNECTIONS: u32 = 4;
/// The longest pause of a connection without demand.
const PAUSE: Duration = Duration::from_millis(5);

/// A source of requests for one proxy.
#[derive(Debug)]
pub(crate) struct Demand {
    per_second: Arc<AtomicU32>,
    sent: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Demand {
    /// Starts a source without demand.
    pub(crate) fn start(address: SocketAddr, path: &'static str) -> Self {
        let (per_second, sent) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
        let ended = Arc::new(AtomicBool::new(false));
        let threads = (0..CONNECTIONS).map(|_| {
            let (per_second, sent, ended) = (Arc::clone(&per_second), Arc::clone(&sent), Arc::clone(&ended));
            std::thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    // A killed proxy ends its connections.
                    let _ = send_requests(address, path, &per_second, &sent, &ended);
                    std::thread::sleep(PAUSE);
                }
            })
        });
        Self {
            threads: threads.collect(),
            per_second,
            sent,
            ended,
        }
    }

    /// Changes the demand.
    pub(crate) fn set(&self, per_second: u32) {
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    /// The number of requests that were answered.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Demand {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sends requests on one connection, each when it is due.
fn send_requests(
    address: SocketAddr,
    path: &str,
    per_second: &AtomicU32,
    sent: &AtomicU64,
    ended: &AtomicBool,
) -> std::io::Result<()> {
    let mut connection = Connection::open(address)?;
    let mut due = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        let rate = per_second.load(Ordering::Relaxed);
        if rate == 0 || due > Instant::now() {
            let wait = due.saturating_duration_since(Instant::now());
            std::thread::sleep(if rate == 0 { PAUSE } else { wait.min(PAUSE) });
            due = if rate == 0 { Instant::now() } else { due };
            continue;
        }
        let interval = Duration::from_secs(1) * CONNECTIONS / rate;
        // A slow machine sends fewer requests, and no burst afterwards.
        due = (due + interval).max(Instant::now() - Duration::from_millis(200));
        connection.request(path)?;
        sent.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// A connection that stays open between requests.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let answers = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, answers })
    }

    /// Sends a request and reads the answer.
    pub(crate) fn request(&mut self, path: &str) -> std::io::Result<()> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.stream.write_all(request.as_bytes())?;
        read_answer(&mut self.answers)
    }
}

/// Reads one answer with a stated length.
fn read_answer(answers: &mut impl BufRead) -> std::io::Result<()> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if answers.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    std::io::copy(&mut answers.take(length), &mut std::io::sink()).map(|_| ())
}

/// A count at a time: the time before it was read, the count, and the time after.
type Sample = (Duration, u64, Duration);

/// Samples of a growing count.
#[derive(Debug)]
pub(crate) struct Meter {
    started: Instant,
    samples: Vec<Sample>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            samples: Vec::new(),
        }
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Samples a count for some time.
    pub(crate) fn run(&mut self, time: Duration, count: impl Fn() -> u64) {
        let end = self.now() + time;
        while self.now() < end {
            let before = self.now();
            let served = count();
            self.samples.push((before, served, self.now()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The largest number by which any time T exceeds `capacity + rate · T`; negative if none does.
    pub(crate) fn excess(&self, capacity: f64, rate: f64) -> f64 {
        let (mut lowest, mut worst) = (f64::INFINITY, f64::NEG_INFINITY);
        for (before, served, after) in &self.samples {
            let served = *served as f64;
            lowest = lowest.min(served - rate * before.as_secs_f64());
            worst = worst.max(served - rate * after.as_secs_f64() - lowest - capacity);
        }
        worst
    }

    /// The mean rate between two times since the start.
    pub(crate) fn rate(&self, from: Duration, to: Duration) -> f64 {
        let within = |(before, ..): &&Sample| *before >= from && *before <= to;
        let within: Vec<&Sample> = self.samples.iter().filter(within).collect();
        let ((start, first, _), (end, last, _)) = (within[0], within[within.len() - 1]);
        (last - first) as f64 / (*end - *start).as_secs_f64()
    }
}
