//! A closed load: each caller sends its next call when the last one was answered.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::process::{Server, processor_time};
use crate::protocol::{Connection, Protocol};

/// The number of keys, chosen at random for each call.
const KEYS: u32 = 10_000;
/// A caller stops after this number of failed calls in a row, since its connection is then lost.
const MAX_FAILED_IN_A_ROW: u32 = 100;

/// The load on one contender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) callers: usize,
    /// The connections of a multiplexing protocol, which callers share; HTTP/1 has one per caller.
    pub(crate) connections: usize,
    pub(crate) warm_up: Duration,
    pub(crate) sample: Duration,
}

/// The result of one contender in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    /// Processor time of the server per call, in microseconds.
    pub(crate) server_micros: f64,
    /// Processor time of the load generator per call, in microseconds.
    pub(crate) client_micros: f64,
    /// Calls that were answered otherwise than allowed.
    pub(crate) failed: u64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            per_second,
            server_micros,
            client_micros,
            failed,
        } = self;
        write!(
            f,
            "{per_second:.0} calls/s, {server_micros:.1} µs of the server, "
        )?;
        write!(f, "{client_micros:.1} µs of the client, {failed} failed")
    }
}

impl Load {
    /// Sends calls to a server and measures them after the warm-up.
    pub(crate) fn run(&self, protocol: Protocol, server: &Server) -> Sample {
        self.run_on(protocol, server.address, || server.processor_time())
    }

    /// As [`run`](Self::run), with the processor time of a server that others started.
    pub(crate) fn run_on(
        &self,
        protocol: Protocol,
        address: SocketAddr,
        server_time: impl Fn() -> Duration,
    ) -> Sample {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let (answered, failures) = (Arc::new(AtomicU64::new(0)), Arc::<Failures>::default());
        let connections = runtime.block_on(protocol.connect(address, self.callers, self.connections));
        for connection in connections {
            let (answered, failures) = (Arc::clone(&answered), Arc::clone(&failures));
            runtime.spawn(call_forever(connection, answered, failures));
        }
        std::thread::sleep(self.warm_up);
        let read = || {
            let calls = answered.load(Ordering::Relaxed);
            (Instant::now(), calls, server_time(), processor_time("self"))
        };
        let (began, before, server_before, client_before) = read();
        std::thread::sleep(self.sample);
        let (ended, after, server_after, client_after) = read();
        runtime.shutdown_background();
        let calls = (after - before).max(1) as f64;
        let micros = |later: Duration, earlier: Duration| (later - earlier).as_secs_f64() * 1e6 / calls;
        Sample {
            per_second: calls / (ended - began).as_secs_f64(),
            server_micros: micros(server_after, server_before),
            client_micros: micros(client_after, client_before),
            failed: failures.report(),
        }
    }
}

/// The failed calls by reason.
#[derive(Debug, Default)]
struct Failures(Mutex<BTreeMap<String, u64>>);

impl Failures {
    fn add(&self, reason: String) {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *reasons.entry(reason).or_default() += 1;
    }

    /// Prints the reasons. Returns the number of failed calls.
    fn report(&self) -> u64 {
        let reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (reason, count) in reasons.iter() {
            eprintln!("  {count} failed: {reason}");
        }
        reasons.values().sum()
    }
}

async fn call_forever(mut connection: Connection, answered: Arc<AtomicU64>, failures: Arc<Failures>) {
    let mut random = fastrand::Rng::new();
    let mut failed_in_a_row = 0;
    while failed_in_a_row < MAX_FAILED_IN_A_ROW {
        let key = random.u32(0..KEYS);
        match connection.call(key).await {
            Ok(true) => {
                answered.fetch_add(1, Ordering::Relaxed);
                failed_in_a_row = 0;
            }
            answer => {
                failures.add(
                    answer
                        .err()
                        .map_or_else(|| "denied".to_owned(), |error| error.to_string()),
                );
                failed_in_a_row += 1;
            }
        }
    }
}
