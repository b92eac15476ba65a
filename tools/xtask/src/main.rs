//! The chores of this workspace: `cargo xtask help`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line talks on the terminal"
)]

mod bench;
mod clients;
mod commands;
mod compiler;
mod docs;
mod engines;
mod faults;
mod fuzz;
mod gateway_bench;
mod instructions;
mod minimal_versions;
mod model;
mod msrv;
mod mysql;
mod packages;
mod python;
mod redis;
mod server;
mod steps;
mod supply_chain;
mod tidy;

use std::process::ExitCode;

use commands::Strictness;
use steps::STEPS;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), String> {
    match args.split_first().map(|(command, rest)| (command.as_str(), rest)) {
        Some(("test", rest)) => steps::run(&Options::parse(rest)?.plan(Strictness::Lenient)),
        Some(("ci", rest)) => steps::run(&Options::parse(rest)?.plan(Strictness::DenyWarnings)),
        Some(("faults", rest)) => faults::run(rest),
        Some(("bench", rest)) => bench::run(rest),
        Some(("fuzz", rest)) => fuzz::run(rest),
        Some(("model", rest)) => model::run(rest),
        Some(("supply-chain", rest)) => supply_chain::run(rest),
        Some(("clients", rest)) => clients::run(rest),
        Some(("tidy", rest)) => tidy::run(rest),
        Some(("docs", rest)) => docs::run(rest),
        Some(("engines", rest)) => engines::run(rest),
        Some(("server", rest)) => server::run(rest),
        Some(("help" | "--help" | "-h", _)) | None => {
            print!("{}", help());
            Ok(())
        }
        Some((other, _)) => Err(format!("no command `{other}`; see `cargo xtask help`")),
    }
}

fn help() -> String {
    let mut text = String::from(
        "cargo xtask <command>\n\n\
         test [--only <step>] [-- <args>]   check everything; <args> go to `cargo test`\n\
         ci   [--only <step>] [-- <args>]   the same, with every warning an error\n\
         faults [--quick] [--json] [--only <fault>] [--list]\n\
         \x20                                   cause faults of the limiter's servers, and measure its guarantees\n\
         bench [--quick] [--json] [--only <workload>] [--list] [--redis-cell <module>]\n\
         \x20                                   how fast decisions are, beside others'; without --quick it writes BENCHMARKS.md\n\
         bench --scaling                    growth with keys, callers, processes, nodes, limits and load\n\
         bench --instructions [--record | --against <file>]\n\
         \x20                                   count instructions of each path, and compare them with the baseline\n\
         bench --gateway [--require]        calls per second of limiter-server beside other servers; fails below a bound\n\
         fuzz [--seconds <n>] [<target>]    arbitrary input; <target> <file> tries one input again\n\
         model                              locks and queues, under the schedules of a model checker\n\
         supply-chain                       licences, duplicates, advisories, packages, oldest dependencies, the public API\n\
         clients                            call the examples with curl, wrk or oha, and grpcio\n\
         tidy [--update] [--list <check>[/<path>]]\n\
         \x20                                   layers, names, words and widths; --update lowers the baseline\n\
         docs                               check the links of all documents, and build docs with mdBook\n\
         engines [--only <engine>] [-- <args>]
         \x20                                   the Redis suites on Redis 6.2, 7, 8 and Valkey; <args> go to `cargo test`
         server [--all]                     limiter-server behind a real Envoy; --all: optimised, licences
         help                               this text\n\n\
         The tests start Redis servers of their own; redis-server is installed if it is missing.\n\n\
         Steps:\n",
    );
    for step in STEPS {
        text.push_str(&format!("  {:<12} {}\n", step.name, step.purpose));
    }
    text
}

/// The arguments after `test` or `ci`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    only: Vec<String>,
    test_args: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--only" => options
                    .only
                    .push(args.next().ok_or("--only expects a step")?.clone()),
                "--" => options.test_args = args.by_ref().cloned().collect(),
                other => return Err(format!("expected --only <step> or -- <args>, got `{other}`")),
            }
        }
        Ok(options)
    }

    fn plan(self, strictness: Strictness) -> steps::Plan {
        steps::Plan {
            only: self.only,
            test_args: self.test_args,
            strictness,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Options, String> {
        Options::parse(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_after_dashes_are_passed_to_cargo_test() {
        let expected = Options {
            only: vec!["test".into()],
            test_args: vec!["--only".into(), "--".into()],
        };
        assert_eq!(parse("--only test -- --only --"), Ok(expected));
    }

    #[test]
    fn several_steps_are_selected() {
        let only = parse("--only fmt --only tidy").map(|options| options.only);
        assert_eq!(only, Ok(vec!["fmt".into(), "tidy".into()]));
    }

    #[test]
    fn unknown_arguments_are_rejected() {
        assert!(parse("--olny test").is_err_and(|message| message.contains("--olny")));
        assert!(parse("--only").is_err());
    }
}
