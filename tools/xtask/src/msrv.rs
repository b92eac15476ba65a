//! Compiles the libraries with the oldest compiler that they declare in `rust-version`.
//!
//! They are compiled as dependencies of another crate, as users compile them: with the newest
//! dependencies that support this compiler, which the workspace's lock file does not contain, and
//! without dev-dependencies. The compiler that limiter-server declares is compared with those that
//! its dependencies declare.

mod compiler;
mod declared;

use std::fs;
use std::path::{Path, PathBuf};

use crate::commands::{Strictness, root, succeed, target_dir};
use compiler::Compiler;

/// The crates that users name in their manifests; they bring the macros along.
const LIBRARIES: [&str; 3] = ["limiter-core", "limiter-redisson", "limiter-tower"];
/// The crate with a workspace of its own, and its directory.
const SERVER: &str = "limiter-server";

/// The step `msrv`. It fails where there is no such compiler and none can be installed: a skipped
/// check proves nothing.
pub(crate) fn run(_: Strictness) -> Result<(), String> {
    declared::compare(SERVER, &root().join(SERVER))?;
    let manifest = read(&root().join("Cargo.toml"))?;
    let version = rust_version(&manifest).ok_or("the workspace declares no rust-version")?;
    let compiler = Compiler::ensure(version)?;
    println!("==> msrv: {compiler}");
    let user = target_dir().join("msrv");
    write(&user.join("Cargo.toml"), &user_manifest(version)?)?;
    write(&user.join("src").join("lib.rs"), "")?;
    for features in [["--no-default-features"].as_slice(), &["--features", "all"]] {
        let mut check = compiler.cargo();
        check
            .arg("check")
            .args(features)
            .current_dir(&user)
            .env("CARGO_TARGET_DIR", user.join("target"))
            // The workspace itself is resolved without regard to `rust-version`.
            .env("CARGO_RESOLVER_INCOMPATIBLE_RUST_VERSIONS", "fallback");
        succeed(check, "msrv")?;
    }
    Ok(())
}

/// Returns a crate that depends on the libraries: without features, or with all of them.
fn user_manifest(version: &str) -> Result<String, String> {
    let mut manifest = format!(
        "[workspace]\n\n[package]\nname = \"msrv\"\nversion = \"0.0.0\"\nedition = \"2024\"\nrust-version = \"{version}\"\n\
         publish = false\n\n[dependencies]\n"
    );
    let mut all = Vec::new();
    for library in LIBRARIES {
        let path = root().join(library);
        let features = features(&read(&path.join("Cargo.toml"))?);
        all.extend(features.iter().map(|feature| format!("\"{library}/{feature}\"")));
        let path = path.display();
        manifest.push_str(&format!(
            "{library} = {{ path = '{path}', default-features = false }}\n"
        ));
    }
    manifest.push_str(&format!("\n[features]\nall = [{}]\n", all.join(", ")));
    Ok(manifest)
}

/// `1.85` in the line `rust-version = "1.85"`.
fn rust_version(manifest: &str) -> Option<&str> {
    let value = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))?;
    Some(value.trim_matches('"'))
}

/// Returns the names in the table `[features]`.
fn features(manifest: &str) -> Vec<String> {
    let table = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
    let lines = table.take_while(|line| !line.starts_with('['));
    let names = lines
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(" = "));
    names.map(|(name, _)| name.to_owned()).collect()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Writes a file, unless it has this content: a newer file is compiled again.
fn write(path: &PathBuf, content: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let written = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = written.and_then(|()| fs::write(path, content));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_names_every_feature_of_the_libraries() {
        let manifest = user_manifest("1.85").unwrap_or_default();
        for feature in [
            "limiter-core/redis",
            "limiter-core/metrics",
            "limiter-redisson/redis",
            "limiter-tower/tonic",
        ] {
            assert!(manifest.contains(&format!("\"{feature}\"")), "{manifest}");
        }
    }

    #[test]
    fn version_is_read_from_the_workspace() {
        assert_eq!(
            rust_version("[workspace.package]\nrust-version = \"1.85\"\n"),
            Some("1.85")
        );
    }

    #[test]
    fn documents_state_the_declared_version() {
        let manifest = read(&root().join("Cargo.toml")).unwrap_or_default();
        let version = rust_version(&manifest).unwrap_or_default();
        let server = read(&root().join(SERVER).join("Cargo.toml")).unwrap_or_default();
        let server = rust_version(&server).unwrap_or_default();
        for (path, text) in [
            ("README.md", format!("Rust {version} or newer")),
            (
                "limiter-core/src/lib.rs",
                format!("The oldest supported compiler is {version}."),
            ),
            (
                "limiter-tower/src/lib.rs",
                format!("The oldest supported compiler is {version}."),
            ),
            ("limiter-server/README.md", format!("needs Rust {server}.")),
            (
                "docs/guide/operating-server.md",
                format!("The build needs Rust {server} and"),
            ),
        ] {
            assert!(
                read(&root().join(path)).is_ok_and(|content| content.contains(&text)),
                "{path}: {text}"
            );
        }
    }
}
