//! HTTP clients: curl reads the API's responses, and a load generator counts the grants.

use std::process::Command;
use std::time::{Duration, Instant};

use super::Server;
use crate::commands::text;
use crate::packages::{Package, on_path};

const CURL: Package = Package {
    name: "curl",
    found: || on_path("curl"),
    packages: |_| &["curl"],
    advice: "install it",
};

const LOAD: Package = Package {
    name: "a load generator",
    found: || on_path("oha") || on_path("wrk"),
    packages: |_| &["wrk"],
    advice: "install oha or wrk",
};

/// The daily quota of an address at `GET /trial`.
const TRIAL: u64 = 100;
/// After which time the example admits another upload, in seconds.
const UPLOAD_EVERY: u64 = 10;

pub(super) fn ensure() -> Result<(), String> {
    CURL.ensure()?;
    LOAD.ensure()
}

pub(super) fn check(api: &Server) -> Result<(), String> {
    let version = text(command("curl", &["--version"]))?;
    println!("==> clients: {}", version.lines().next().unwrap_or("curl"));
    let upload = api.url("/upload");
    let upload = ["--header", "x-api-key: ann-secret", "--data", "text", &upload];

    let anonymous = Answer::of(&[&api.url("/search")])?;
    anonymous.expect(401, &[])?;
    let allowed = Answer::of(&["--header", "x-api-key: ann-secret", &api.url("/search")])?;
    let expected = [
        ("ratelimit-policy", "\"pro\";q=20;w=2"),
        ("ratelimit", "\"pro\";r=19"),
    ];
    allowed.expect(200, &expected)?;

    Answer::of(&upload)?.expect(200, &[])?;
    let denied = Answer::of(&upload)?;
    let expected = [
        ("ratelimit", "\"upload\";r=0;t="),
        ("content-type", "application/problem+json"),
    ];
    denied.expect(429, &expected)?;
    let wait = denied
        .header("retry-after")
        .and_then(|seconds| seconds.parse().ok());
    let Some(wait @ 1..=UPLOAD_EVERY) = wait else {
        return Err(denied.complaint("a Retry-After of at most ten seconds"));
    };
    for part in ["\"status\":429", "\"violated-policies\":[\"upload\"]"] {
        if !denied.body.contains(part) {
            return Err(denied.complaint(part));
        }
    }
    denied.show();

    honours_retry_after(&upload, wait)?;
    let probe = Answer::of(&[&api.url("/healthz")])?;
    probe.expect(200, &[])?;
    if probe.header("ratelimit").is_some() {
        return Err(probe.complaint("no RateLimit, since probes are not limited"));
    }
    count(&api.url("/trial"))
}

/// curl retries after a second, or after `Retry-After`: the first attempt is denied, the second
/// admitted.
fn honours_retry_after(upload: &[&str], at_most: u64) -> Result<(), String> {
    let started = Instant::now();
    let retried = Answer::of(&[&["--retry", "1"], upload].concat())?;
    let took = started.elapsed();
    retried.expect(200, &[])?;
    // A second may have passed since the response.
    if took < Duration::from_secs(at_most.saturating_sub(2)) {
        return Err(format!("curl waited for {took:.1?}, expected about {at_most} s"));
    }
    println!("    curl --retry 1: 200 after {took:.1?}, after Retry-After");
    Ok(())
}

/// A load generator with 16 connections in closed loops.
struct Load {
    program: &'static str,
    args: &'static [&'static str],
    /// The number of admitted requests, by its report.
    admitted: fn(&str) -> Option<u64>,
}

const OHA: Load = Load {
    program: "oha",
    args: &["--no-tui", "-n", "2000", "-c", "16"],
    admitted: admitted_by_oha,
};

const WRK: Load = Load {
    program: "wrk",
    args: &["--threads", "2", "--connections", "16", "--duration", "2s"],
    admitted: admitted_by_wrk,
};

/// Exactly the quota is admitted, for any number of concurrent requests.
fn count(url: &str) -> Result<(), String> {
    let Load {
        program,
        args,
        admitted,
    } = if on_path(OHA.program) { OHA } else { WRK };
    let report = text(command(program, &[args, &[url]].concat()))?;
    match admitted(&report) {
        Some(TRIAL) => {}
        Some(other) => return Err(format!("{program}: {other} admitted, expected {TRIAL}\n{report}")),
        None => {
            return Err(format!(
                "{program} does not report the number of admitted requests\n{report}"
            ));
        }
    }
    let request_line = request_line(&report).unwrap_or_default();
    println!("    {program}: {TRIAL} admitted of a quota of {TRIAL}; {request_line}");
    Answer::of(&[url])?.expect(429, &[])
}

/// Returns the line of a report with the number of requests.
fn request_line(report: &str) -> Option<&str> {
    let expected = |line: &&str| line.contains("requests in") || line.contains("[429]");
    report.lines().find(expected).map(str::trim)
}

/// Returns the number of requests without an error; `None` if a request was lost.
fn admitted_by_wrk(report: &str) -> Option<u64> {
    let all = report
        .lines()
        .find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok());
    let refused = report.lines().find_map(|line| {
        let refused = line.trim().strip_prefix("Non-2xx or 3xx responses:")?;
        refused.trim().parse().ok()
    });
    let lost = report.contains("Socket errors:");
    let admitted = u64::checked_sub(all?, refused.unwrap_or(0))?;
    (!lost).then_some(admitted)
}

fn admitted_by_oha(report: &str) -> Option<u64> {
    let lost = report.contains("Error distribution:");
    let admitted = report.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("[200] ")?;
        rest.strip_suffix(" responses")?.parse().ok()
    });
    admitted.filter(|_| !lost)
}

fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// A response, as curl shows it.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// Returns the last one that curl gets.
    fn of(args: &[&str]) -> Result<Self, String> {
        let mut curl = command("curl", &["--silent", "--show-error", "--include"]);
        curl.args(["--noproxy", "*", "--max-time", "60"]).args(args);
        Self::read(&text(curl)?)
    }

    fn read(shown: &str) -> Result<Self, String> {
        // With retries, the output contains the earlier responses first.
        let last = shown.rfind("HTTP/1.1 ").unwrap_or_default();
        let (head, body) = shown
            .get(last..)
            .and_then(|last| last.split_once("\r\n\r\n"))
            .ok_or_else(|| format!("no response in {shown}"))?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(Self {
            status: status.ok_or_else(|| format!("no status in {head}"))?,
            head: head.to_owned(),
            body: body.to_owned(),
        })
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// Has this status, and these headers, each with these words.
    fn expect(&self, status: u16, headers: &[(&str, &str)]) -> Result<(), String> {
        if self.status != status {
            return Err(self.complaint(&format!("the status {status}")));
        }
        for (name, words) in headers {
            if !self.header(name).is_some_and(|value| value.contains(words)) {
                return Err(self.complaint(&format!("{name}: {words}")));
            }
        }
        Ok(())
    }

    fn complaint(&self, expected: &str) -> String {
        format!("expected {expected}, got\n{}\n\n{}", self.head, self.body)
    }

    fn show(&self) {
        println!("    {}", self.status);
        for name in ["retry-after", "ratelimit-policy", "ratelimit", "content-type"] {
            println!("    {name}: {}", self.header(name).unwrap_or_default());
        }
        println!("    {}", self.body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_parsed_from_both_reports() {
        let wrk = "Running 2s test @ http://127.0.0.1:1/trial\n  100 requests in 2.00s, 16KB read\n";
        assert_eq!(admitted_by_wrk(wrk), Some(100));
        let refused = format!("{wrk}  Non-2xx or 3xx responses: 60\nRequests/sec: 50\n");
        assert_eq!(admitted_by_wrk(&refused), Some(40));
        let lost = format!("{wrk}  Socket errors: connect 0, read 1, write 0, timeout 0\n");
        assert_eq!(admitted_by_wrk(&lost), None);

        let oha = "Status code distribution:\n  [429] 1900 responses\n  [200] 100 responses\n";
        assert_eq!(admitted_by_oha(oha), Some(100));
        let lost = format!("{oha}Error distribution:\n  [3] connection closed\n");
        assert_eq!(admitted_by_oha(&lost), None);
        assert_eq!(admitted_by_wrk("").or(admitted_by_oha("")), None);
    }

    #[test]
    fn last_response_of_retried_call_counts() {
        let shown =
            "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\n\r\n{}HTTP/1.1 200 OK\r\nA: b\r\n\r\nstored";
        let answer = Answer::read(shown).unwrap_or_else(|why| unreachable!("{why}"));
        assert_eq!((answer.status, answer.body.as_str()), (200, "stored"));
        assert_eq!(
            (answer.header("a"), answer.header("retry-after")),
            (Some("b"), None)
        );
        assert!(answer.expect(200, &[("A", "b")]).is_ok() && answer.expect(200, &[("a", "c")]).is_err());
        assert!(Answer::read("").is_err());
    }
}
