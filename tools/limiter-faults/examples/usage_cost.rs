//! Measures the time and the memory that the usage of a fleet takes in Redis.
//!
//! `cargo run --release -p limiter-faults --example usage_cost -- [processes] [policies] [minutes]`
//!
//! `cargo xtask server --all` runs it. It fails if the reports after the first minute take more
//! than 1 % of one core, or if their keys take more than 100 MB. The time that Redis takes with the
//! same connections before the first report is measured in the same run and subtracted.
//!
//! Each limiter of this process plays the part of a process of the fleet. It makes an allowed and a
//! denied call of each policy every few seconds. Key lists decide these calls, so Redis receives
//! reports only.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program that prints its results"
)]

use std::time::{Duration, Instant};

use limiter_core::usage::UsageReporting;
use limiter_core::{KeyList, Limiter, Policy};
use limiter_testing::RedisServer;

const NAMESPACE: &str = "prod:checkout";
/// Every process has decided each policy in each of these intervals.
const ROUND: Duration = Duration::from_secs(20);
/// The rounds in which processes report every few seconds, before they know the size of the fleet.
const FIRST_ROUNDS: u64 = 3;
/// The largest share of one core, in percent.
const MAX_PERCENT: f64 = 1.0;
/// The largest size of all keys in megabytes.
const MAX_MEGABYTES: u64 = 100;
const COUNT_MINUTES: u64 = 120;
const DENIED_MINUTES: u64 = 24 * 60;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let mut next = |default: u64| args.next().unwrap_or(default);
    let (processes, policies, minutes) = (next(200), next(1_000), next(4));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime
        .expect("a runtime")
        .block_on(measure(processes, policies, minutes));
}

async fn measure(processes: u64, policies: u64, minutes: u64) {
    let server = RedisServer::start();
    let list = |pattern: &str| KeyList::parse([pattern]).expect("a pattern");
    let policies: Vec<Policy> = (0..policies)
        .map(|number| {
            let policy = Policy::token_bucket(format!("policy-{number:04}"))
                .capacity(10)
                .rate("1/s");
            let policy = policy.allow_keys(list("good*")).deny_keys(list("bad*"));
            policy.build().expect("a policy")
        })
        .collect();
    let fleet: Vec<Limiter> = (0..processes)
        .map(|_| {
            let builder = Limiter::redis(server.url())
                .namespace(NAMESPACE)
                .app("checkout")
                .connections(1);
            let builder = builder.usage(UsageReporting::CountsAndDeniedKeys);
            builder.build().expect("a limiter")
        })
        .collect();
    for limits in &fleet {
        limits.ready().await.expect("a connection");
    }
    let idle = Tick::new(&server);
    tokio::time::sleep(ROUND).await;
    let idle = idle.percent_until(&Tick::new(&server));
    println!("{idle:.2} % of one core without reports");
    let (mut tick, mut settled) = (Tick::new(&server), Tick::new(&server));
    for round in 0..minutes * 60 / ROUND.as_secs() {
        let start = Instant::now();
        for (process, limits) in (0_u64..).zip(&fleet) {
            for (number, policy) in (0_u64..).zip(&policies) {
                let _ = limits.check(policy, "good").await;
                // More keys than a list stores.
                let key = format!("bad:user:{}", (process * 7 + number * 13 + round) % 40);
                let _ = limits.check(policy, key.as_str()).await;
            }
            // The processes of a fleet do not start at one moment.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(ROUND.saturating_sub(start.elapsed())).await;
        tick.print(&server);
        if round < FIRST_ROUNDS {
            settled = Tick::new(&server);
        }
    }
    let percent = settled.percent_until(&Tick::new(&server)) - idle;
    println!("{percent:.2} % of one core for the reports after the first minute");
    let megabytes = print_memory(&server);
    assert!(
        percent <= MAX_PERCENT,
        "{percent:.2} % is more than {MAX_PERCENT} %"
    );
    assert!(
        megabytes <= MAX_MEGABYTES,
        "{megabytes} MB is more than {MAX_MEGABYTES} MB"
    );
}

/// The CPU time of the server since the last line.
struct Tick {
    at: Instant,
    cpu: f64,
}

impl Tick {
    fn new(server: &RedisServer) -> Self {
        Self {
            at: Instant::now(),
            cpu: cpu_seconds(server),
        }
    }

    /// Returns the share of one core until a later time, in percent.
    fn percent_until(&self, later: &Self) -> f64 {
        100.0 * (later.cpu - self.cpu) / (later.at - self.at).as_secs_f64()
    }

    fn print(&mut self, server: &RedisServer) {
        let now = Self::new(server);
        let (cpu, span) = (now.cpu - self.cpu, now.at - self.at);
        println!(
            "{:.2} % of one core, {:.0} ms in {:.1} s; {} bytes used",
            self.percent_until(&now),
            1_000.0 * cpu,
            span.as_secs_f64(),
            info(server, "memory", "used_memory:")
        );
        *self = now;
    }
}

/// Prints the size of each key. Returns that of all keys that are kept, in megabytes.
fn print_memory(server: &RedisServer) -> u64 {
    let keys = server.command(&["KEYS", "*{usage}*"]);
    let (mut counts, mut denied) = (0, 0);
    for key in keys.items() {
        let key = key.text();
        let bytes = server
            .command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"])
            .integer();
        let fields = server.command(&["HLEN", &key]).integer();
        println!("{key}: {bytes} bytes, {fields} fields");
        let largest = if key.contains("denied") {
            &mut denied
        } else {
            &mut counts
        };
        *largest = bytes.max(*largest);
    }
    let bytes = |bytes: i64, minutes: u64| bytes.unsigned_abs() * minutes / 1_000_000;
    let (counts, denied) = (bytes(counts, COUNT_MINUTES), bytes(denied, DENIED_MINUTES));
    println!("counts of two hours: {counts} MB; denied keys of 24 hours: {denied} MB");
    counts + denied
}

/// Returns the CPU time of the server, in user mode and in the kernel.
fn cpu_seconds(server: &RedisServer) -> f64 {
    let seconds = |name: &str| -> f64 { info(server, "cpu", name).parse().expect("seconds") };
    seconds("used_cpu_user:") + seconds("used_cpu_sys:")
}

fn info(server: &RedisServer, section: &str, name: &str) -> String {
    let info = server.command(&["INFO", section]).text();
    let value = info.lines().find_map(|line| line.strip_prefix(name));
    value.expect("a field").trim().to_owned()
}
