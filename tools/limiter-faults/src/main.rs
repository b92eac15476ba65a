//! The fault suite: measures the guarantees of the limiter under faults of its servers.
//!
//! `cargo xtask faults` builds it with optimisations and runs it. Each fault has its own servers.
//! Gates in milliseconds exclude the time for which the machine delayed the limiter.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a fault whose setup fails has failed; the results are printed"
)]

mod audit;
mod baseline;
mod event;
mod faults;
mod ledger;
mod load;
mod process;
mod report;
mod run;
mod scheduler_delay;
mod trial;

use std::process::ExitCode;
use std::time::Instant;

use faults::FAULTS;
use trial::Fault;

const USAGE: &str = "limiter-faults [--quick] [--json] [--only <fault>]… [--seed <number>] [--list]";

/// The faults to run, and the output format.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    quick: bool,
    json: bool,
    list: bool,
    only: Vec<String>,
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(ended) = faults::worker(&args) {
        return ended;
    }
    match Options::parse(&args).and_then(|options| options.run()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => options.quick = true,
                "--json" => options.json = true,
                "--list" => options.list = true,
                "--only" => options
                    .only
                    .push(args.next().ok_or("--only expects a fault")?.clone()),
                "--seed" => {
                    let seed = args.next().and_then(|seed| seed.parse().ok());
                    options.seed = Some(seed.ok_or("--seed expects a number")?);
                }
                other => return Err(format!("unexpected `{other}`")),
            }
        }
        Ok(options)
    }

    /// Tries the faults; whether every gate held.
    fn run(&self) -> Result<bool, String> {
        let faults = self.selected()?;
        if self.list {
            faults
                .iter()
                .for_each(|fault| println!("{:<18} {}", fault.name, fault.description));
            return Ok(true);
        }
        let (started, mut failed, mut judged) = (Instant::now(), 0, 0);
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        trial::count_panics();
        for fault in faults {
            let rows = trial::run(fault, self.quick, seed);
            for row in &rows {
                println!("{}", if self.json { row.json() } else { row.line() });
            }
            judged += rows.len();
            failed += rows.iter().filter(|row| !row.ok).count();
        }
        let seconds = started.elapsed().as_secs();
        eprintln!("{failed} of {judged} gates failed; seed {seed}; {seconds} s");
        Ok(failed == 0)
    }

    fn selected(&self) -> Result<Vec<&'static Fault>, String> {
        let known = |name: &&String| !FAULTS.iter().any(|fault| fault.name == name.as_str());
        if let Some(unknown) = self.only.iter().find(known) {
            let names: Vec<_> = FAULTS.iter().map(|fault| fault.name).collect();
            return Err(format!(
                "no fault `{unknown}`, expected one of {}",
                names.join(", ")
            ));
        }
        let is_selected =
            |fault: &&Fault| self.only.is_empty() || self.only.iter().any(|name| name == fault.name);
        Ok(FAULTS.iter().filter(is_selected).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Options, String> {
        Options::parse(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn unknown_fault_lists_known_faults() {
        let selected = parse("--only klil").and_then(|options| options.selected().map(|_| ()));
        assert!(selected.is_err_and(|message| message.contains("`klil`") && message.contains("kill")));
    }

    #[test]
    fn all_faults_run_unless_selected() {
        let count = |args| parse(args).and_then(|options| options.selected().map(|faults| faults.len()));
        assert_eq!(count("--quick --seed 7"), Ok(FAULTS.len()));
        assert_eq!(count("--only kill --only stop"), Ok(2));
        assert!(parse("--sed 7").is_err() && parse("--seed x").is_err());
    }
}
