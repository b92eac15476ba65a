//! Measures a replay of 1,000,000 lines in each format and compression, and one of 10,000,000 keys.
//!
//! `cargo run --release --example replay_speed`; `taskset -c 0` before the program bounds it to one
//! core. With the argument `keys`, one call of each of 10,000,000 keys is replayed.
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;
use limiter_server::replay::{DEFAULT_MAX_KEYS, KeyField, PolicyChoice, ReplayOptions, replay};

const LINES: u64 = 1_000_000;
const KEYS: u64 = 10_000_000;
const POLICIES: &str = "[policy.requests]\nalgorithm = 'token_bucket'\ncapacity = 20\nrate = '5/s'\n";

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

/// The options of a replay of a log.
fn options(directory: &Path, log: PathBuf) -> Result<ReplayOptions, String> {
    let policies = directory.join("policies.toml");
    std::fs::write(&policies, POLICIES).map_err(|error| error.to_string())?;
    Ok(ReplayOptions {
        policies: Some(policies),
        compare: None,
        logs: vec![log],
        format: None,
        key: vec!["remote_addr".parse::<KeyField>()?],
        cost: None,
        time: None,
        choice: PolicyChoice::Each,
        app: None,
        max_keys: DEFAULT_MAX_KEYS,
        suggest: None,
    })
}

/// The log in the form of a compression.
type Encode<'a> = &'a dyn Fn() -> std::io::Result<Vec<u8>>;

fn measure(directory: &Path, format: &str) -> Result<(), String> {
    let mut text = String::new();
    for number in 0..LINES {
        writeln!(text, "{}", line(format, number)).map_err(|error| error.to_string())?;
    }
    let gzip = || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes())?;
        encoder.finish()
    };
    let plain = || Ok(text.as_bytes().to_vec());
    let zstd = || zstd::encode_all(text.as_bytes(), 3);
    let compressions: [(&str, Encode<'_>); 3] = [("plain", &plain), ("gzip", &gzip), ("zstd", &zstd)];
    for (compression, encode) in compressions {
        let log = directory.join("access.log");
        let written = encode().and_then(|bytes| std::fs::write(&log, bytes));
        written.map_err(|error| error.to_string())?;
        let options = options(directory, log)?;
        let started = Instant::now();
        let report = replay(&options, |_| {})?;
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{format:>9} {compression:>6}: {} calls in {seconds:.2} s",
            report.calls
        );
    }
    Ok(())
}

/// Replays one call of each of many keys within the refill of their buckets.
fn measure_keys(directory: &Path) -> Result<(), String> {
    let log = directory.join("access.log");
    let file = std::fs::File::create(&log).map_err(|error| error.to_string())?;
    let mut file = std::io::BufWriter::new(file);
    for number in 0..KEYS {
        writeln!(file, "time=2026-01-01T00:00:00Z remote_addr=client-{number}")
            .map_err(|error| error.to_string())?;
    }
    file.flush().map_err(|error| error.to_string())?;
    let options = options(directory, log)?;
    let started = Instant::now();
    let report = replay(&options, |_| {})?;
    let seconds = started.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or("VmHWM: not known");
    println!("{KEYS} keys: {} calls in {seconds:.1} s; {peak}", report.calls);
    println!("{}", report.to_text());
    Ok(())
}

fn main() -> Result<(), String> {
    let directory = std::env::temp_dir().join(format!("replay-speed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let measured = match std::env::args().nth(1).as_deref() {
        Some("keys") => measure_keys(&directory),
        _ => ["combined", "json", "logfmt"]
            .iter()
            .try_for_each(|format| measure(&directory, format)),
    };
    let _ = std::fs::remove_dir_all(&directory);
    measured
}
