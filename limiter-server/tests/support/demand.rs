//! Requests at a rate that a test changes, and the measurement of those that were served.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of connections of a source.
const CONNECTIONS: u32 = 4;
/// The longest pause of a connection without demand.
const PAUSE: Duration = Duration::from_millis(5);

/// A source of requests for one proxy.
#[derive(Debug)]
pub(crate) struct Demand {
    state: Arc<DemandState>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct DemandState {
    per_second: AtomicU32,
    sent: AtomicU64,
    served: AtomicU64,
    lost: AtomicU64,
    failures: Mutex<Vec<Failure>>,
    ended: AtomicBool,
}

/// An answer with a status of server errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    /// The time of the answer.
    pub(crate) at: Instant,
    /// The time from the request to the answer.
    pub(crate) took: Duration,
}

impl Demand {
    /// Starts a source without demand.
    pub(crate) fn start(address: SocketAddr, path: &'static str) -> Self {
        Self::with_connections(CONNECTIONS, address, path)
    }

    /// Starts a source without demand, whose requests are spread evenly over these connections.
    pub(crate) fn with_connections(connections: u32, address: SocketAddr, path: &'static str) -> Self {
        let state = Arc::new(DemandState::default());
        let started = Instant::now();
        let threads = (0..connections).map(|number| {
            let state = Arc::clone(&state);
            let schedule = Schedule {
                started,
                number,
                connections,
            };
            std::thread::spawn(move || {
                while !state.ended.load(Ordering::Relaxed) {
                    // A killed proxy ends its connections.
                    if state.send_requests(address, path, schedule).is_err() {
                        state.lost.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(PAUSE);
                }
            })
        });
        Self {
            threads: threads.collect(),
            state,
        }
    }

    /// Changes the demand.
    pub(crate) fn set(&self, per_second: u32) {
        self.state.per_second.store(per_second, Ordering::Relaxed);
    }

    /// The number of requests that were answered.
    pub(crate) fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }

    /// The number of answers with the status 200.
    pub(crate) fn served(&self) -> u64 {
        self.state.served.load(Ordering::Relaxed)
    }

    /// The number of connections that failed.
    pub(crate) fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::Relaxed)
    }

    /// The answers with a status of server errors.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        let failures = self.state.failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Demand {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The requests of one connection among those of its source.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    started: Instant,
    number: u32,
    connections: u32,
}

impl Schedule {
    /// The time of the next request at the beginning of a demand, with the requests of all
    /// connections evenly spread.
    fn first_due(self, interval: Duration) -> Instant {
        let now = Instant::now();
        let period = interval.as_nanos().max(1);
        let offset = (interval * self.number / self.connections).as_nanos();
        let passed = now.saturating_duration_since(self.started).as_nanos() % period;
        let wait = (offset + period - passed) % period;
        now + Duration::from_nanos(u64::try_from(wait).unwrap_or_default())
    }
}

impl DemandState {
    /// Sends requests on one connection, each when it is due.
    fn send_requests(&self, address: SocketAddr, path: &str, schedule: Schedule) -> std::io::Result<()> {
        let mut connection = Connection::open(address)?;
        let mut due = None;
        while !self.ended.load(Ordering::Relaxed) {
            let rate = self.per_second.load(Ordering::Relaxed);
            if rate == 0 {
                std::thread::sleep(PAUSE);
                due = None;
                continue;
            }
            let interval = Duration::from_secs(1) * schedule.connections / rate;
            let next = *due.get_or_insert_with(|| schedule.first_due(interval));
            let wait = next.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                std::thread::sleep(wait.min(PAUSE));
                continue;
            }
            // A slow machine sends fewer requests, and no burst afterwards.
            due = Some((next + interval).max(Instant::now() - Duration::from_millis(200)));
            let sent = Instant::now();
            match connection.request(path)? {
                200 => {
                    self.served.fetch_add(1, Ordering::Relaxed);
                }
                500.. => {
                    let at = Instant::now();
                    let failures = self.failures.lock();
                    failures
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(Failure { at, took: at - sent });
                }
                _ => {}
            }
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
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

    /// Sends a request and reads the answer: its status.
    pub(crate) fn request(&mut self, path: &str) -> std::io::Result<u16> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.stream.write_all(request.as_bytes())?;
        read_answer(&mut self.answers)
    }
}

/// Reads one answer with a stated length: its status.
fn read_answer(answers: &mut impl BufRead) -> std::io::Result<u16> {
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if answers.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if line == "\r\n" {
            break;
        }
        if status.is_none() {
            status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    std::io::copy(&mut answers.take(length), &mut std::io::sink())?;
    status.ok_or_else(|| Error::from(ErrorKind::InvalidData))
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
