//! `limiter-server replay` on large logs: the processor time of 1,000,000 lines in each format and
//! compression, and the memory of 10,000,000 keys. Prints the figures of the guide. Run by
//! `cargo xtask server --all`.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic, and prints its measurements"
)]

mod support;

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use support::server::{Directory, command};

const LINES: u64 = 1_000_000;
const KEYS: u64 = 10_000_000;
/// The longest processor time for a million lines. A build without optimisation is slower.
const LONGEST: Duration = Duration::from_secs(if cfg!(debug_assertions) { 90 } else { 3 });
const POLICIES: &str = "[policy.requests]\nalgorithm = 'token_bucket'\ncapacity = 20\nrate = '5/s'\n";
/// One replay at a time: their memory and time are measured.
static MACHINE: Mutex<()> = Mutex::new(());

/// A replay that has ended.
struct Measured {
    report: Value,
    processor_time: Duration,
    peak_kb: u64,
}

/// Replays the log that `write` sends to standard input.
fn replay(args: &[&str], write: impl FnOnce(&mut dyn std::io::Write) + Send) -> Measured {
    let directory = Directory::new();
    let policies = directory.write("policies.toml", POLICIES);
    let mut child = command()
        .args(["replay", "--json", "--log", "-", "--policies"])
        .arg(policies)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut log, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let path = |file| format!("/proc/{}/{file}", child.id());
    let (mut text, mut peak_kb) = (String::new(), 0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffered = std::io::BufWriter::with_capacity(1 << 16, &mut log);
            write(&mut buffered);
            buffered.flush().unwrap();
        });
        scope.spawn(|| output.read_to_string(&mut text).unwrap());
        // The memory of a process is known until it ends, and its time until it is waited for.
        let started = Instant::now();
        loop {
            let status = std::fs::read_to_string(path("status")).unwrap();
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let peak = peak.and_then(|peak| peak.split_whitespace().next());
            peak_kb = peak.map_or(peak_kb, |peak| peak.parse().unwrap());
            if status.contains("State:\tZ") {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(1_200), "{status}");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let stat = std::fs::read_to_string(path("stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    assert!(child.wait().unwrap().success());
    Measured {
        report: serde_json::from_str(&text).unwrap(),
        // Linux counts hundredths of a second.
        processor_time: Duration::from_millis(ticks * 10),
        peak_kb,
    }
}

fn line(format: &str, number: u64) -> String {
    let second = number / 300;
    let (hour, minute, second, milli) = (second / 3_600, second / 60 % 60, second % 60, number % 1_000);
    let client = number.wrapping_mul(number) % 9_973;
    let address = format!("10.0.{}.{}", client / 256, client % 256);
    match format {
        "combined" => format!(
            "{address} - - [01/Jan/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET /search?page={client} \
             HTTP/1.1\" 200 5120 \"-\" \"Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0\""
        ),
        "json" => format!(
            "{{\"time\":\"2026-01-01T{hour:02}:{minute:02}:{second:02}.{milli:03}Z\",\"remote_addr\":\"{address}\",\
             \"method\":\"GET\",\"uri\":\"/search?page={client}\",\"status\":200,\"bytes\":5120}}"
        ),
        _ => format!(
            "time=2026-01-01T{hour:02}:{minute:02}:{second:02}.{milli:03}Z remote_addr={address} method=GET \
             uri=\"/search?page={client}\" status=200 bytes=5120"
        ),
    }
}

#[test]
fn million_lines_take_three_seconds_of_one_core() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    for format in ["combined", "json", "logfmt"] {
        let mut text = String::new();
        for number in 0..LINES {
            writeln!(text, "{}", line(format, number)).unwrap();
        }
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(text.as_bytes()).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(text.as_bytes(), 3).unwrap();
        for (compression, log) in [("plain", text.as_bytes()), ("gzip", &gzip), ("zstd", &zstd)] {
            let measured = replay(&[], |to| to.write_all(log).unwrap());
            let took = measured.processor_time;
            println!("{format:>9} {compression:>6}: {took:.2?} of processor time");
            assert_eq!(measured.report["calls"], LINES);
            assert!(took <= LONGEST, "{format} {compression}: {took:?}");
        }
    }
}

/// One call of each key, within the refill of the buckets.
fn keys(to: &mut dyn std::io::Write) {
    for number in 0..KEYS {
        writeln!(to, "time=2026-01-01T00:00:00Z remote_addr=client-{number}").unwrap();
    }
}

#[test]
fn ten_million_keys_are_counted_in_bounded_memory() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let all = replay(&[], keys);
    println!("{KEYS} keys: {:?}, {} kB", all.processor_time, all.peak_kb);
    let result = &all.report["results"][0];
    assert_eq!(
        (&result["admitted"], &result["undecided"]),
        (&KEYS.into(), &0.into())
    );
    assert_eq!(result["policies"][0]["keys"], KEYS);
    assert!(all.peak_kb < 1_700_000, "{} kB", all.peak_kb);

    let bounded = replay(&["--max-keys", "1000000"], keys);
    println!("bounded: {:?}, {} kB", bounded.processor_time, bounded.peak_kb);
    let result = &bounded.report["results"][0];
    let counts = (&result["admitted"], &result["undecided"]);
    assert_eq!(counts, (&1_000_000.into(), &9_000_000.into()));
    assert_eq!(result["policies"][0]["keys"], 1_000_000);
    assert!(bounded.peak_kb < 250_000, "{} kB", bounded.peak_kb);
}
