//! Counts the instructions of the decision paths, and compares them with the committed counts.
//!
//! The program that is measured and the list of its paths are in
//! `tools/limiter-bench/instructions`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use limiter_instructions::{Baseline, Conditions, Counts, PATHS};
use serde_json::Value;

use crate::commands::{self, cargo, root, target_dir};
use crate::packages::{Package, on_path};
use crate::redis;

/// The program that the crate `gungraun` starts, and the version of both.
const RUNNER: &str = "gungraun-runner";
const RUNNER_VERSION: &str = "0.20.0";

const VALGRIND: Package = Package {
    name: "valgrind",
    found: || on_path("valgrind"),
    packages: |_| &["valgrind"],
    advice: "install valgrind",
};

/// Returns the counts of the last run, for the report of the benchmark.
pub(crate) fn file() -> PathBuf {
    target_dir().join("instructions.tsv")
}

/// `cargo xtask bench --instructions`: `--record` makes the counts the baseline of this compiler
/// and processor, `--against <file>` compares with that file instead of the committed baseline.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (record, against) = match args[..] {
        [] => (false, None),
        ["--record"] => (true, None),
        ["--against", file] => (false, Some(file)),
        _ => {
            return Err(format!(
                "expected --record or --against <file>, got `{}`",
                args.join(" ")
            ));
        }
    };
    let counts = measure()?;
    println!("Instructions per decision; {}", counts.conditions);
    let baseline = match against {
        Some(file) => Some(Baseline::new(read(Path::new(file))?)),
        None => Baseline::choose(&counts, committed()?),
    };
    let verdict = baseline.map(|baseline| baseline.compare(&counts));
    match &verdict {
        Some(verdict) => print!("{}", verdict.to_text()),
        None => print!("{}", counts.to_text()),
    }
    if record {
        let file = directory().join(name(&counts.conditions));
        fs::create_dir_all(directory()).map_err(|error| format!("cannot create the directory: {error}"))?;
        println!("Recorded as {}", file.display());
        return write(&file, &counts);
    }
    verdict.map_or(Ok(()), |verdict| verdict.judge())
}

/// Measures all paths, and keeps the counts in a file.
pub(crate) fn measure() -> Result<Counts, String> {
    redis::ensure()?;
    VALGRIND.ensure()?;
    let runner = runner()?;
    let conditions = conditions()?;
    let mut bench = cargo();
    bench
        .args([
            "bench",
            "--quiet",
            "--package",
            "limiter-instructions",
            "--bench",
            "instructions",
        ])
        .arg("--manifest-path")
        .arg(root().join("tools/limiter-bench/Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir())
        .args(["--", "--output-format=json"])
        .env("GUNGRAUN_RUNNER", runner)
        .stderr(Stdio::inherit());
    let output = bench
        .output()
        .map_err(|error| format!("cannot run the measurement: {error}"))?;
    if !output.status.success() {
        return Err(format!("the measurement failed, {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| line.starts_with('{'));
    let counts = Counts::new(conditions, lines.map(count).collect::<Result<Vec<_>, _>>()?);
    write(&file(), &counts)?;
    Ok(counts)
}

/// Returns the runner in the target directory, where it is built unless it has the right version.
fn runner() -> Result<PathBuf, String> {
    let tools = target_dir().join("tools");
    let runner = tools.join("bin").join(RUNNER);
    let expected = format!("{RUNNER} {RUNNER_VERSION}");
    if version(Command::new(&runner)).is_ok_and(|version| version == expected) {
        return Ok(runner);
    }
    let mut install = cargo();
    // Without optimisations: it only starts valgrind.
    install
        .args(["install", "--locked", "--debug", "--force", "--root"])
        .arg(&tools)
        .args([RUNNER, "--version", RUNNER_VERSION]);
    commands::succeed(install, "instructions").map(|()| runner)
}

/// Returns the path and the instructions of one line of the runner's report.
fn count(line: &str) -> Result<(String, u64), String> {
    let unexpected = || format!("the runner reported no instruction count: {line}");
    let summary: Value = serde_json::from_str(line).map_err(|_| unexpected())?;
    let text = |field| summary.get(field).and_then(Value::as_str);
    let path = text("group").zip(text("function_name"));
    let count = summary.pointer("/profiles/0/data/total/metrics/Ir/values/new");
    match (path, count.and_then(Value::as_u64)) {
        (Some((group, function)), Some(count)) => {
            let name = format!("{group}::{function}");
            match PATHS.iter().any(|path| path.name == name) {
                true => Ok((name, count)),
                false => Err(format!("the function {name} has no entry in PATHS: add its work")),
            }
        }
        _ => Err(unexpected()),
    }
}

fn conditions() -> Result<Conditions, String> {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Ok(Conditions {
        compiler: version(Command::new(rustc))?,
        processor: model.map_or("unknown", |(_, model)| model.trim()).to_owned(),
        valgrind: version(Command::new("valgrind"))?,
    })
}

fn version(mut program: Command) -> Result<String, String> {
    let output = program
        .arg("--version")
        .output()
        .map_err(|error| format!("cannot run {program:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

fn directory() -> PathBuf {
    root().join("benchmarks/instructions")
}

/// One file for each release of the compiler and each model of a processor.
fn name(conditions: &Conditions) -> String {
    let release = conditions.compiler.split(' ').nth(1).unwrap_or("unknown");
    let slug: String = conditions
        .processor
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(|word| format!("-{}", word.to_ascii_lowercase()))
        .collect();
    format!("rustc-{release}{slug}.tsv")
}

fn committed() -> Result<Vec<Counts>, String> {
    let Ok(entries) = fs::read_dir(directory()) else {
        return Ok(Vec::new());
    };
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files.iter().map(|file| read(file)).collect()
}

fn read(file: &Path) -> Result<Counts, String> {
    let text =
        fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Counts::parse(&text).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, counts: &Counts) -> Result<(), String> {
    fs::write(file, counts.to_text()).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runner_has_version_of_library() {
        let manifest = root().join("tools/limiter-bench/instructions/Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap_or_default();
        assert!(manifest.contains(&format!("gungraun = \"={RUNNER_VERSION}\"")));
    }

    #[test]
    fn count_is_read_from_report_of_runner() {
        let line = r#"{"group":"layer","function_name":"plain","profiles":[{"data":{"total":{"metrics":
            {"Ir":{"values":{"new":1024,"old":2048}}}}}}]}"#;
        assert_eq!(count(line), Ok(("layer::plain".to_owned(), 1_024)));
        assert!(count("{}").is_err());
        let unlisted = count(&line.replace("plain", "unlisted"));
        assert!(unlisted.is_err_and(|error| error.contains("layer::unlisted")));
    }

    #[test]
    fn baseline_file_is_named_after_compiler_and_processor() {
        let conditions = Conditions {
            compiler: "rustc 1.95.0 (59807616e 2026-04-14)".to_owned(),
            processor: "Intel(R) Xeon(R) Processor @ 2.50GHz".to_owned(),
            valgrind: "valgrind-3.19.0".to_owned(),
        };
        let expected = "rustc-1.95.0-intel-r-xeon-r-processor-2-50ghz.tsv";
        assert_eq!(name(&conditions), expected);
    }
}
