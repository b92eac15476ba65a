//! Feeds arbitrary input to the targets in `tools/fuzz/` and `limiter-server/fuzz/`.
//!
//! The flags are those of `cargo fuzz run -s none`, which works here too. Setting them here means
//! that CI need not build that tool. They work on the stable toolchain, because no sanitizer is
//! used: the library has no unsafe code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::commands::{Strictness, cargo, root, target_dir};
use crate::{commands, compiler};

/// A crate of targets.
struct Project {
    directory: &'static str,
    targets: &'static [&'static str],
}

const PROJECTS: [Project; 2] = [
    Project {
        directory: "tools/fuzz",
        targets: &[
            "resp",
            "reply",
            "name",
            "policy",
            "trace",
            "registry",
            "forwarded",
        ],
    },
    Project {
        directory: "limiter-server/fuzz",
        targets: &["resp_command", "rules", "descriptors"],
    },
];

/// Returns the names of all targets.
fn targets() -> impl Iterator<Item = &'static str> {
    PROJECTS
        .iter()
        .flat_map(|project| project.targets.iter().copied())
}

const SECONDS: u32 = 60;
const SECONDS_IN_CI: u32 = 4;
/// Input that takes longer than this hangs.
const TIMEOUT_SECONDS: u32 = 10;

const FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Ccodegen-units=1",
    "--cfg=fuzzing",
];

/// The arguments after `fuzz`.
#[derive(Debug, PartialEq, Eq)]
struct FuzzOptions {
    seconds: u32,
    target: Option<String>,
    /// One input, to be tried again.
    input: Option<PathBuf>,
}

/// `cargo xtask fuzz`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let options = FuzzOptions::parse(args)?;
    let is_selected = |name: &str| options.target.as_deref().is_none_or(|only| only == name);
    for project in &PROJECTS {
        let selected: Vec<_> = project.targets.iter().filter(|name| is_selected(name)).collect();
        if selected.is_empty() {
            continue;
        }
        let fuzzer = Fuzzer::build(project, Strictness::Lenient)?;
        for target in selected {
            match &options.input {
                Some(input) => fuzzer.repeat(target, input)?,
                None => fuzzer.search(target, options.seconds)?,
            }
        }
    }
    Ok(())
}

/// The short form tries the same inputs in every run: it detects regressions and leaves the search
/// for old defects to the long form.
pub(crate) fn run_in_ci(strictness: Strictness) -> Result<(), String> {
    for project in &PROJECTS {
        let mut fuzzer = Fuzzer::build(project, strictness)?;
        fuzzer.seed = Some(1);
        for target in project.targets {
            fuzzer.search(target, SECONDS_IN_CI)?;
        }
    }
    Ok(())
}

impl FuzzOptions {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            seconds: SECONDS,
            target: None,
            input: None,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if arg == "--seconds" {
                let seconds = args.next().and_then(|seconds| seconds.parse().ok());
                options.seconds = seconds
                    .filter(|seconds| *seconds > 0)
                    .ok_or("--seconds expects a number")?;
            } else if options.target.is_some() && options.input.is_none() {
                options.input = Some(arg.into());
            } else if targets().any(|target| target == arg) && options.target.is_none() {
                options.target = Some(arg.clone());
            } else {
                return Err(format!(
                    "expected --seconds <n> or one of {}, got `{arg}`",
                    targets().collect::<Vec<_>>().join(", ")
                ));
            }
        }
        Ok(options)
    }
}

/// The targets, built.
struct Fuzzer {
    programs: PathBuf,
    /// Inputs that earlier runs found.
    found: PathBuf,
    /// Manually written inputs and dictionary words.
    seeds: PathBuf,
    dictionaries: PathBuf,
    /// The start of the choice of inputs; random without one.
    seed: Option<u32>,
}

impl Fuzzer {
    fn build(project: &Project, strictness: Strictness) -> Result<Self, String> {
        compiler::ensure()?;
        let (project, built) = (root().join(project.directory), target_dir().join("fuzz"));
        let triple = host()?;
        let mut flags = FLAGS.to_vec();
        if strictness == Strictness::DenyWarnings {
            flags.push("-Dwarnings");
        }
        let mut command = cargo();
        command
            .args([
                "build",
                "--release",
                "--bins",
                "--target",
                &triple,
                "--manifest-path",
            ])
            .arg(project.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&built)
            // In this form a flag may contain spaces; and it wins over RUSTFLAGS, which are for the
            // other steps.
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        commands::succeed(command, "fuzz")?;
        Ok(Self {
            programs: built.join(triple).join("release"),
            found: built.join("found"),
            seeds: project.join("seeds"),
            dictionaries: project.join("dictionaries"),
            seed: None,
        })
    }

    /// Fuzzes for a number of seconds, starting with the known inputs.
    fn search(&self, target: &str, seconds: u32) -> Result<(), String> {
        let (corpus, culprits) = (self.found.join(target), self.found.join("culprits"));
        let (seeds, dictionary) = (self.seeds.join(target), self.dictionaries.join(target));
        for dir in [&corpus, &culprits] {
            fs::create_dir_all(dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        }
        println!("==> fuzz: {target}, {seconds} s");
        let mut command = self.program(target);
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg("-print_final_stats=1");
        command.arg(format!("-artifact_prefix={}/{target}-", culprits.display()));
        command.args(self.seed.map(|seed| format!("-seed={seed}")));
        if dictionary.is_file() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        command
            .arg(&corpus)
            .args(Some(&seeds).filter(|seeds| seeds.is_dir()));
        // The message of a panic matters; the fuzzer's own frames would hide it.
        command.env("RUST_BACKTRACE", "0");
        let output = output(command)?;
        let report = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            let runs = report
                .lines()
                .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
            println!("    {} inputs, all well", runs.unwrap_or("?").trim());
            return Ok(());
        }
        let last: Vec<_> = report
            .lines()
            .filter(|line| !line.starts_with(['#', '\t']))
            .collect();
        let shown = last
            .get(last.len().saturating_sub(40)..)
            .unwrap_or_default()
            .join("\n");
        let advice = "repeat it with `cargo xtask fuzz";
        Err(format!(
            "{shown}\n{target} fails; {advice} {target} <the file named above>`"
        ))
    }

    fn repeat(&self, target: &str, input: &Path) -> Result<(), String> {
        let mut command = self.program(target);
        command.arg(input);
        commands::succeed(command, "fuzz")
    }

    fn program(&self, target: &str) -> Command {
        let mut command = Command::new(self.programs.join(target));
        command.arg(format!("-timeout={TIMEOUT_SECONDS}"));
        command
    }
}

fn output(mut command: Command) -> Result<Output, String> {
    command
        .output()
        .map_err(|error| format!("cannot run {command:?}: {error}"))
}

/// Naming a target, even the own one, keeps the flags away from build scripts.
fn host() -> Result<String, String> {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.arg("-vV");
    let report = output(command)?.stdout;
    let host = String::from_utf8_lossy(&report)
        .lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned));
    host.ok_or_else(|| "rustc does not print its host".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<FuzzOptions, String> {
        FuzzOptions::parse(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn only_target_time_and_input_are_accepted() {
        let (target, input) = (Some("name".to_owned()), None);
        assert_eq!(
            parse("--seconds 5 name"),
            Ok(FuzzOptions {
                seconds: 5,
                target,
                input
            })
        );
        assert!(parse("name file").is_ok_and(|options| options.input == Some("file".into())));
        for refused in [
            "names",
            "--seconds",
            "--seconds 0",
            "name file more",
            "--second 1",
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn each_fuzz_target_is_a_program() {
        let manifests = [
            include_str!("../../fuzz/Cargo.toml"),
            include_str!("../../../limiter-server/fuzz/Cargo.toml"),
        ];
        for (manifest, project) in manifests.iter().zip(&PROJECTS) {
            for target in project.targets {
                assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
            }
            assert_eq!(manifest.matches("[[bin]]").count(), project.targets.len());
        }
    }
}
