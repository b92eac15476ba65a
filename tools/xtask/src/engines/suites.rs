//! Selects the tests that start a Redis server.

use std::fs;
use std::path::Path;

use crate::commands::root;

/// The packages with such tests, and their folders. Their unit tests start servers, too.
const PACKAGES: [(&str, &str); 4] = [
    ("limiter-testing", "tools/limiter-testing"),
    ("limiter-core", "limiter-core"),
    ("limiter-redisson", "limiter-redisson"),
    ("limiter-tower", "limiter-tower"),
];

/// A test whose source contains none of these starts no server.
const SIGNS: [&str; 5] = [
    "RedisServer",
    "RedisCluster",
    "RedisSentinel",
    "Kind::",
    "Subject",
];

/// Returns the arguments of each call of cargo: those of the caller, or all tests that start a
/// server.
pub(super) fn commands(chosen: &[String]) -> Result<Vec<Vec<String>>, String> {
    let common = ["test", "--all-features", "--no-fail-fast"].map(str::to_owned);
    if !chosen.is_empty() {
        return Ok(vec![[&common[..], chosen].concat()]);
    }
    let of_package = |(package, folder): &(&str, &str)| {
        let mut args = common.to_vec();
        args.extend(["--package", package, "--lib"].map(str::to_owned));
        for target in targets(&root().join(folder).join("tests"))? {
            args.extend(["--test".to_owned(), target]);
        }
        Ok(args)
    };
    PACKAGES.iter().map(of_package).collect()
}

/// Returns the command with `--no-run`, which only compiles.
pub(super) fn build_only(command: &[String]) -> Vec<String> {
    let mut build: Vec<String> = command.iter().take_while(|arg| *arg != "--").cloned().collect();
    build.push("--no-run".to_owned());
    build
}

/// Returns the tests in a directory that start a server, in alphabetical order.
fn targets(tests: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for path in entries(tests)? {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let is_target = path.extension().is_some_and(|extension| extension == "rs");
        if is_target && (mentions_redis(&path)? || mentions_redis(&tests.join(&name))?) {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns whether a file, or a file of a directory, starts a server; false if the path does not
/// exist.
fn mentions_redis(path: &Path) -> Result<bool, String> {
    if path.is_dir() {
        let found: Result<Vec<_>, _> = entries(path)?.iter().map(|entry| mentions_redis(entry)).collect();
        return Ok(found?.contains(&true));
    }
    if !path.is_file() {
        return Ok(false);
    }
    let source = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let source = String::from_utf8_lossy(&source);
    Ok(SIGNS.iter().any(|sign| source.contains(sign)))
}

fn entries(directory: &Path) -> Result<Vec<std::path::PathBuf>, String> {
    let failed = |error| format!("cannot list {}: {error}", directory.display());
    let entries = fs::read_dir(directory).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_start_a_server_are_selected() {
        let commands = commands(&[]).unwrap_or_default();
        let args = commands.concat();
        for selected in ["contract", "cluster", "sentinel", "differential", "load"] {
            assert!(args.contains(&selected.to_owned()), "{selected}");
        }
        assert!(!args.contains(&"outside".to_owned()));
        assert_eq!(commands.len(), PACKAGES.len());
    }

    #[test]
    fn chosen_arguments_replace_the_selection() {
        let chosen = ["-p", "limiter-core", "--test", "contract", "--", "name"].map(str::to_owned);
        let commands = commands(&chosen).unwrap_or_default();
        let args = commands.concat();
        assert!(args.ends_with(&chosen));
        assert!(build_only(&args).ends_with(&["contract".to_owned(), "--no-run".to_owned()]));
    }
}
