//! `cargo xtask tidy`: rules about the source text that no compiler checks.
//!
//! Each check returns numbers: violations by file (or by crate and name).
//! `tools/xtask/tidy/baseline.txt` lists the numbers of today, one line each. A number that rises
//! fails. A number that falls fails too, until `cargo xtask tidy --update` has lowered the
//! baseline; it refuses to raise the total of a check in a crate, so that files may move.

mod baseline;
mod commits;
mod layers;
mod lexer;
mod modules;
mod names;
mod prose;
mod roots;
mod tree;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use baseline::{Baseline, Key};
use tree::Tree;

/// A violation with its place and description.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    key: Key,
    line: usize,
    message: String,
}

/// Runs `cargo xtask tidy [--update | --list <check>]`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match *args.as_slice() {
        [] => check(),
        ["--update"] => update(),
        ["--list", name] => list(name),
        _ => Err("expected nothing, --update or --list <check>[/<part of a path>]".to_owned()),
    }
}

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().find(|path| path.join("Cargo.lock").exists());
    root.unwrap_or(manifest).to_owned()
}

fn settings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tidy")
}

fn setting(name: &str) -> Result<String, String> {
    let path = settings().join(name);
    fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Returns all findings of all checks, and lines for the summary.
fn findings() -> Result<(Vec<Finding>, Vec<String>), String> {
    let tree = Tree::read(&root())?;
    let table = layers::Table::parse(&setting("layers.txt")?)?;
    let list = words::List::parse(&setting("words.txt")?)?;
    let mut all = Vec::new();
    all.extend(layers::check(&tree, &table)?);
    all.extend(names::check(&tree));
    all.extend(words::check(&tree, &list));
    let (headless, rates) = prose::headless(&tree);
    all.extend(headless);
    all.extend(prose::openings(&tree));
    all.extend(prose::headers(&tree));
    all.extend(roots::check(&tree));
    all.extend(prose::width(&tree));
    all.extend(prose::length(&tree));
    Ok((all, rates))
}

fn counts(findings: &[Finding]) -> BTreeMap<Key, usize> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry(finding.key.clone()).or_default() += 1;
    }
    counts
}

fn check() -> Result<(), String> {
    commits::check(&root())?;
    let (findings, rates) = findings()?;
    let baseline = Baseline::parse(&setting("baseline.txt").unwrap_or_default());
    let counts = counts(&findings);
    let (raised, lowered) = baseline.compare(&counts);
    for line in rates {
        println!("{line}");
    }
    for (check, total) in baseline::totals_by_check(&counts) {
        println!("tidy: {check}: {total} violations");
    }
    for (key, allowed, found) in &raised {
        eprintln!("tidy: {key}: {found}, and the baseline allows {allowed}");
        for finding in findings.iter().filter(|finding| finding.key == *key) {
            eprintln!("    {}:{}: {}", key.subject, finding.line, finding.message);
        }
    }
    if !raised.is_empty() {
        return Err(format!(
            "{} numbers rose. Fix the new violations; `cargo xtask tidy --update` accepts moved files",
            raised.len()
        ));
    }
    if lowered.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} numbers fell: lower the baseline with `cargo xtask tidy --update` and commit it",
        lowered.len()
    ))
}

fn update() -> Result<(), String> {
    let (findings, rates) = findings()?;
    for line in rates {
        println!("{line}");
    }
    let counts = counts(&findings);
    let path = settings().join("baseline.txt");
    if let Ok(old) = fs::read_to_string(&path) {
        let raised = Baseline::parse(&old).raised_totals(&counts);
        if !raised.is_empty() {
            let lines: Vec<_> = raised
                .iter()
                .map(|(group, old, new)| format!("  {group}: {old} -> {new}"))
                .collect();
            return Err(format!(
                "these totals would rise:\n{}\nsee `cargo xtask tidy` or `cargo xtask tidy --list <check>`",
                lines.join("\n")
            ));
        }
    }
    fs::write(&path, Baseline::from(counts).to_string())
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn list(name: &str) -> Result<(), String> {
    let (check, part) = name.split_once('/').unwrap_or((name, ""));
    let (findings, _) = findings()?;
    for finding in findings
        .iter()
        .filter(|finding| finding.key.check == check && finding.key.subject.contains(part))
    {
        println!("{}:{}: {}", finding.key.subject, finding.line, finding.message);
    }
    Ok(())
}
