//! Measures a replay of 1,000,000 lines in each format.
//!
//! `cargo run --release --example replay_speed`
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use limiter_server::replay::{DEFAULT_MAX_KEYS, KeyField, PolicyChoice, ReplayOptions, replay};

const LINES: u64 = 1_000_000;
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

fn measure(directory: &Path, format: &str) -> Result<(), String> {
    let mut text = String::new();
    for number in 0..LINES {
        writeln!(text, "{}", line(format, number)).map_err(|error| error.to_string())?;
    }
    let (policies, log) = (directory.join("policies.toml"), directory.join("access.log"));
    std::fs::write(&policies, POLICIES).map_err(|error| error.to_string())?;
    std::fs::write(&log, text).map_err(|error| error.to_string())?;
    let options = ReplayOptions {
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
    };
    let started = Instant::now();
    let report = replay(&options, |_| {})?;
    let elapsed = started.elapsed();
    println!(
        "{format:>9}: {} calls in {:.2} s",
        report.calls,
        elapsed.as_secs_f64()
    );
    Ok(())
}

fn main() -> Result<(), String> {
    let directory = std::env::temp_dir().join(format!("replay-speed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let formats = ["combined", "json", "logfmt"];
    let measured = formats.iter().try_for_each(|format| measure(&directory, format));
    let _ = std::fs::remove_dir_all(&directory);
    measured
}
