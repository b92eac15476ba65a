//! Compiles the libraries with the oldest version of each direct dependency that their manifests
//! accept.
//!
//! A copy without dependencies of tests is resolved: users of the libraries do not compile them,
//! and they would raise the versions of shared dependencies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::{cargo, root, succeed, target_dir, text};

/// Checks these packages of the workspace.
pub(crate) fn check(packages: &[&str]) -> Result<(), String> {
    let copy = target_dir().join("minimal-versions");
    let manifest = read(&root().join("Cargo.toml"))?;
    write(&copy.join("Cargo.toml"), &with_members(&manifest, packages))?;
    for package in packages {
        for file in tracked(package)? {
            copy_file(&copy, &file)?;
        }
    }
    let _ = fs::remove_file(copy.join("Cargo.lock"));
    let mut resolve = cargo();
    resolve
        .args(["-Zdirect-minimal-versions", "generate-lockfile"])
        // The flag is unstable, and changes nothing but the choice of versions.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(&copy);
    succeed(resolve, "supply-chain")?;
    let mut check = cargo();
    check
        .args(["check", "--workspace", "--all-features", "--locked"])
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .current_dir(&copy);
    succeed(check, "supply-chain")
}

/// Returns the files of a package that git tracks, without tests.
fn tracked(package: &str) -> Result<Vec<PathBuf>, String> {
    let mut list = Command::new("git");
    list.args(["ls-files", package]).current_dir(root());
    let tests = Path::new(package).join("tests");
    let files = text(list)?;
    let files = files.lines().map(PathBuf::from);
    Ok(files.filter(|file| !file.starts_with(&tests)).collect())
}

fn copy_file(copy: &Path, file: &Path) -> Result<(), String> {
    let (from, to) = (root().join(file), copy.join(file));
    if file.ends_with("Cargo.toml") {
        return write(&to, &without_tests(&read(&from)?));
    }
    let bytes = fs::read(&from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
    write_bytes(&to, &bytes)
}

/// Returns the manifest of the workspace with these members alone.
fn with_members(manifest: &str, packages: &[&str]) -> String {
    let members: Vec<_> = packages.iter().map(|package| format!("\"{package}\"")).collect();
    let line = |line: &str| match line.split_once(" = ") {
        Some(("members", _)) => format!("members = [{}]\n", members.join(", ")),
        Some(("exclude", _)) => String::new(),
        _ => format!("{line}\n"),
    };
    manifest.lines().map(line).collect()
}

/// Returns the manifest of a package without the tables that only tests need.
fn without_tests(manifest: &str) -> String {
    let mut kept = String::new();
    let mut is_kept = true;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_kept = !line.contains("dev-dependencies]") && line != "[[test]]";
        }
        if is_kept {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn write(path: &Path, content: &str) -> Result<(), String> {
    write_bytes(path, content.as_bytes())
}

fn write_bytes(path: &Path, content: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = made.and_then(|()| fs::write(path, content));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_tables_are_removed() {
        let manifest = "[dependencies]\na = \"1\"\n\n[target.'cfg(x)'.dev-dependencies]\nb = \"1\"\n\n\
                        [[test]]\nname = \"t\"\n\n[lints]\nworkspace = true\n";
        let expected = "[dependencies]\na = \"1\"\n\n[lints]\nworkspace = true\n";
        assert_eq!(without_tests(manifest), expected);
    }

    #[test]
    fn other_members_are_removed() {
        let manifest = "[workspace]\nmembers = [\"a\", \"b\"]\nexclude = [\"c\"]\nresolver = \"3\"\n";
        let expected = "[workspace]\nmembers = [\"b\"]\nresolver = \"3\"\n";
        assert_eq!(with_members(manifest, &["b"]), expected);
    }
}
