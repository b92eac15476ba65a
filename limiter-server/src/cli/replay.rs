//! `limiter-server replay`: the decisions of policies for recorded traffic.
//!
//! The command converts its arguments to `ReplayOptions`, runs the replay of `crate::replay`, and
//! writes the report as text, JSON or HTML. A progress bar is shown on standard error if that is a
//! terminal, so that the output can be redirected.
//!
//! Tests: below for the line of progress, `tests/replay/command.rs`, `tests/replay/progress.rs`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::cli::print_text;
use crate::replay::suggest::{DenialTarget, Percent};
use crate::replay::{DEFAULT_MAX_KEYS, KeyField, LogFormat, PolicyChoice, Progress, ReplayOptions, replay};

/// The time between two updates of the progress.
const UPDATE_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// The policy file.
    #[arg(
        long,
        value_name = "FILE",
        env = "LIMITER_POLICIES",
        required_unless_present = "suggest"
    )]
    policies: Option<PathBuf>,
    /// A second policy file to compare with the first.
    #[arg(long, value_name = "FILE", requires = "policies")]
    compare: Option<PathBuf>,
    /// The log files, plain or compressed by gzip or zstd; `-` is standard input. Their lines are
    /// merged by time.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    log: Vec<PathBuf>,
    /// The format: combined, json or logfmt. Default: detected in each file.
    #[arg(long)]
    format: Option<LogFormat>,
    /// The fields of the key. With --rules they form the descriptor; ENTRY=FIELD renames a field.
    #[arg(
        long,
        value_name = "FIELD,…",
        value_delimiter = ',',
        default_value = "remote_addr"
    )]
    key: Vec<KeyField>,
    /// The field of the cost. Default: each call costs 1.
    #[arg(long, value_name = "FIELD")]
    cost: Option<String>,
    /// The field of the time. Default: time, timestamp, ts, and similar names.
    #[arg(long, value_name = "FIELD")]
    time: Option<String>,
    /// The policy of all lines. Default: each policy of the file decides each line on its own.
    #[arg(long, value_name = "NAME", conflicts_with = "rules", requires = "policies")]
    policy: Option<String>,
    /// Select the policy of each line by the rules of the file.
    #[arg(long, requires = "policies")]
    rules: bool,
    /// The domain for the rules.
    #[arg(long, requires = "rules", default_value = "")]
    domain: String,
    /// The app for which policies are looked up.
    #[arg(long)]
    app: Option<String>,
    /// The largest number of keys of one policy.
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_MAX_KEYS)]
    max_keys: usize,
    /// Suggest the capacity of a token bucket for each of 20 rates.
    #[arg(long)]
    suggest: bool,
    /// Accept this percentage of denied calls in a suggestion. Default: 0.1.
    #[arg(long, value_name = "PERCENT", requires = "suggest")]
    max_denied_calls: Option<Percent>,
    /// Accept denied calls of this percentage of keys in a suggestion, and of no other key.
    #[arg(
        long,
        value_name = "PERCENT",
        requires = "suggest",
        conflicts_with = "max_denied_calls"
    )]
    max_denied_keys: Option<Percent>,
    /// Write the report to this file, as one HTML page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Replays and prints the report.
pub(super) fn run(args: ReplayArgs) -> Result<(), String> {
    let target = match (args.max_denied_calls, args.max_denied_keys) {
        (_, Some(Percent(part))) => DenialTarget::DeniedKeysPerMillion(part),
        (Some(Percent(part)), None) => DenialTarget::DeniedCallsPerMillion(part),
        (None, None) => DenialTarget::default(),
    };
    let options = ReplayOptions {
        policies: args.policies,
        compare: args.compare,
        logs: args.log,
        format: args.format,
        key: args.key,
        cost: args.cost,
        time: args.time,
        choice: match args.policy {
            Some(name) => PolicyChoice::Named(name),
            None if args.rules => PolicyChoice::Rules { domain: args.domain },
            None => PolicyChoice::Each,
        },
        app: args.app,
        max_keys: args.max_keys,
        suggest: args.suggest.then_some(target),
    };
    let mut bar = ProgressBar::new();
    let report = replay(&options, |progress| bar.show(progress));
    bar.end();
    let report = report?;
    if let Some(path) = &args.html {
        std::fs::write(path, report.to_html())
            .map_err(|error| format!("cannot write the report {}: {error}", path.display()))?;
    }
    if args.json {
        let json = serde_json::to_string_pretty(&report);
        let json = json.map_err(|error| format!("cannot write JSON: {error}"))?;
        print_text(&format!("{json}\n"))
    } else {
        print_text(&report.to_text())
    }
}

/// One line on a terminal that shows the progress.
struct ProgressBar {
    is_shown: bool,
    started: Instant,
    shown_at: Option<Instant>,
}

impl ProgressBar {
    fn new() -> Self {
        Self {
            is_shown: std::io::stderr().is_terminal(),
            started: Instant::now(),
            shown_at: None,
        }
    }

    fn show(&mut self, progress: Progress) {
        let is_due = self.shown_at.is_none_or(|at| at.elapsed() >= UPDATE_EVERY);
        if !self.is_shown || !is_due {
            return;
        }
        self.shown_at = Some(Instant::now());
        let line = progress_line(progress, self.started.elapsed());
        let mut to = std::io::stderr().lock();
        // A terminal that is gone ends the command elsewhere.
        let _ = write!(to, "\r{line}\x1b[K");
        let _ = to.flush();
    }

    fn end(&self) {
        if self.shown_at.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

fn progress_line(progress: Progress, elapsed: Duration) -> String {
    const WIDTH: u64 = 24;
    let speed = u128::from(progress.calls) * 1_000 / elapsed.as_millis().max(1);
    let Some(of_bytes) = progress.of_bytes.filter(|bytes| *bytes > 0) else {
        return format!("{} calls, {speed}/s", progress.calls);
    };
    let read = progress.bytes.min(of_bytes);
    let filled = (0..WIDTH).map(|part| {
        if part * of_bytes < read * WIDTH {
            '█'
        } else {
            '░'
        }
    });
    let bar: String = filled.collect();
    format!(
        "{bar} {:3} %  {} calls, {speed}/s",
        read * 100 / of_bytes,
        progress.calls
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::cli::replay::progress_line;
    use crate::replay::Progress;

    #[test]
    fn progress_shows_share_and_speed() {
        let progress = Progress {
            bytes: 50,
            of_bytes: Some(100),
            calls: 3_000,
        };
        let line = progress_line(progress, Duration::from_secs(2));
        assert_eq!(line, "████████████░░░░░░░░░░░░  50 %  3000 calls, 1500/s");
        let unknown = Progress {
            of_bytes: None,
            ..progress
        };
        assert_eq!(
            progress_line(unknown, Duration::from_secs(2)),
            "3000 calls, 1500/s"
        );
    }
}
