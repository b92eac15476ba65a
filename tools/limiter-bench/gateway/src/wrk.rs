//! The load of the independent generator wrk.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::load::{Load, Sample};
use crate::process::processor_time_of_children;

/// Chooses one of the keys of the other load for each request.
const SCRIPT: &str = r#"
request = function()
  local key = math.random(0, 9999)
  local address = string.format("10.0.%d.%d", math.floor(key / 256), key % 256)
  return wrk.format("POST", "/v1/check", { ["x-address"] = address })
end
"#;
const THREADS: &str = "2";

/// wrk with its script.
#[derive(Debug)]
pub(crate) struct Wrk {
    program: PathBuf,
    script: PathBuf,
}

impl Wrk {
    pub(crate) fn new(program: PathBuf) -> Self {
        let name = format!("gateway-bench-{}-wrk.lua", std::process::id());
        let script = std::env::temp_dir().join(name);
        std::fs::write(&script, SCRIPT).expect("a writable temporary directory");
        Self { program, script }
    }

    /// Sends requests to a server and measures them after the warm-up. wrk counts whole seconds.
    pub(crate) fn run(&self, load: &Load, address: SocketAddr, server_time: impl Fn() -> Duration) -> Sample {
        self.requests(load.callers, load.warm_up, address);
        let (server_before, client_before) = (server_time(), processor_time_of_children());
        let output = self.requests(load.callers, load.sample, address);
        let (server, client) = (server_time(), processor_time_of_children());
        let field = |label: &str| {
            let line = output.lines().find_map(|line| line.trim().strip_prefix(label));
            line.and_then(|rest| rest.trim().parse::<f64>().ok())
        };
        let per_second = field("Requests/sec:").unwrap_or_else(|| panic!("wrk reports no rate: {output}"));
        let requests = output.lines().find_map(|line| line.split_once(" requests in "));
        let requests = requests.and_then(|(number, _)| number.trim().parse::<f64>().ok());
        let requests = requests
            .unwrap_or_else(|| panic!("wrk reports no number: {output}"))
            .max(1.0);
        let micros = |later: Duration, earlier| later.saturating_sub(earlier).as_secs_f64() * 1e6 / requests;
        Sample {
            per_second,
            server_micros: micros(server, server_before),
            client_micros: micros(client, client_before),
            failed: failures(&output),
        }
    }

    fn requests(&self, connections: usize, time: Duration, address: SocketAddr) -> String {
        let seconds = time.as_secs().max(1);
        let ended = Command::new(&self.program)
            .args(["--threads", THREADS, "--connections", &connections.to_string()])
            .args(["--duration", &format!("{seconds}s"), "--script"])
            .arg(&self.script)
            .arg(format!("http://{address}/"))
            .output()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.program.display()));
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }
}

/// Answers other than 2xx, and errors of sockets.
fn failures(output: &str) -> u64 {
    let numbers = |line: &str| {
        let words = line.split(|character: char| !character.is_ascii_digit());
        words.filter_map(|word| word.parse::<u64>().ok()).sum::<u64>()
    };
    let lines = output.lines().map(str::trim);
    let failed = lines.filter_map(|line| {
        let rest = line.strip_prefix("Non-2xx or 3xx responses:");
        rest.or_else(|| line.strip_prefix("Socket errors:")).map(numbers)
    });
    failed.sum()
}

impl Drop for Wrk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.script);
    }
}

/// Returns the program wrk, from `WRK`.
pub(crate) fn from_environment() -> Option<Wrk> {
    let program = std::env::var_os("WRK")?;
    Some(Wrk::new(Path::new(&program).to_owned()))
}
