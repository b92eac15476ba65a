//! Compares the compiler that limiter-server declares with those of its dependencies.
//!
//! Debian ships no package of the declared compiler, so the server is not compiled with it. cargo
//! refuses to compile a dependency whose `rust-version` is newer than the compiler. Therefore the
//! `rust-version` of the server must not be older than that of any dependency in its lock file.

use std::path::Path;

use serde_json::Value;

use crate::commands::{cargo, text};

/// The platform of the dependencies. Dependencies of other systems can declare newer compilers.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// The major, minor and patch number of a compiler.
type Version = [u32; 3];

/// Fails if a dependency of the package in a directory needs a newer compiler than the package
/// declares.
pub(super) fn compare(package: &str, directory: &Path) -> Result<(), String> {
    let mut list = cargo();
    list.args(["metadata", "--locked", "--all-features", "--format-version", "1"])
        .args(["--filter-platform", PLATFORM])
        .current_dir(directory);
    let metadata: Value = serde_json::from_str(&text(list)?)
        .map_err(|error| format!("cannot read cargo's metadata: {error}"))?;
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.ok_or("cargo's metadata contains no packages")?;
    let (declared, newer) = newer_dependencies(package, packages)?;
    if newer.is_empty() {
        println!("==> msrv: the dependencies of {package} allow Rust {declared}");
        return Ok(());
    }
    Err(format!(
        "{package} declares Rust {declared}, and its dependencies need a newer one: {}",
        newer.join(", ")
    ))
}

/// Returns the compiler that a package declares, and the packages that need a newer one.
fn newer_dependencies<'a>(package: &str, packages: &'a [Value]) -> Result<(&'a str, Vec<String>), String> {
    let own = packages.iter().find(|of| of["name"] == package);
    let declared = own.and_then(|own| own["rust_version"].as_str());
    let declared = declared.ok_or_else(|| format!("{package} declares no rust-version"))?;
    let limit = parse(declared)?;
    let mut newer = Vec::new();
    for of in packages {
        let Some(needed) = of["rust_version"].as_str() else {
            continue;
        };
        if parse(needed)? > limit {
            let (name, version) = (&of["name"], &of["version"]);
            newer.push(format!(
                "{} {} (Rust {needed})",
                name.as_str().unwrap_or_default(),
                version.as_str().unwrap_or_default()
            ));
        }
    }
    Ok((declared, newer))
}

/// `1.94` and `1.94.0` are equal.
fn parse(text: &str) -> Result<Version, String> {
    let mut version = Version::default();
    for (place, part) in version.iter_mut().zip(text.split('.')) {
        *place = part
            .parse()
            .map_err(|_| format!("rust-version is `{text}`, expected a version such as 1.94"))?;
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, rust_version: Option<&str>) -> Value {
        json!({"name": name, "version": "0.3.0", "rust_version": rust_version})
    }

    #[test]
    fn dependency_with_a_newer_compiler_is_found() {
        let packages = [
            package("server", Some("1.94")),
            package("same", Some("1.94.0")),
            package("old", Some("1.9")),
            package("silent", None),
            package("patch", Some("1.94.1")),
            package("newer", Some("1.100")),
        ];
        let expected = ["patch 0.3.0 (Rust 1.94.1)", "newer 0.3.0 (Rust 1.100)"];
        let expected = expected.map(str::to_owned).to_vec();
        assert_eq!(newer_dependencies("server", &packages), Ok(("1.94", expected)));
        assert!(newer_dependencies("silent", &packages).is_err());
    }
}
