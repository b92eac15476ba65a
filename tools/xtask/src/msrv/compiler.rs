//! Finds or installs a compiler of a specific version.

use std::env;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::commands::text;
use crate::packages;

/// The packages with Rust 1.85, by the code name of the Debian release. A newer `rust-version`
/// needs a new table.
const DEBIAN: [(&str, [&str; 2]); 2] = [
    ("bookworm", ["rustc-web", "cargo-web"]),
    ("trixie", ["rustc", "cargo"]),
];

/// A compiler with the cargo of the same version.
#[derive(Debug)]
pub(super) enum Compiler {
    /// A toolchain of rustup, by name.
    Toolchain(String),
    /// Programs that a package installed.
    Programs { cargo: PathBuf, rustc: PathBuf },
}

impl Compiler {
    /// Finds a compiler of this version (`1.85`), or installs one with the system's package
    /// manager. Toolchains of rustup are used and never installed.
    pub(super) fn ensure(version: &str) -> Result<Self, String> {
        if let Some(found) = Self::find(version) {
            return Ok(found);
        }
        let advice = format!("run `rustup toolchain install {version} --profile minimal`");
        let release = release().unwrap_or_default();
        let Some((_, packages)) = DEBIAN.iter().find(|(name, _)| *name == release) else {
            return Err(format!("Rust {version} is missing; {advice}"));
        };
        packages::install_from(&release, packages)
            .map_err(|why| format!("Rust {version} is missing, and {why}; {advice}"))?;
        Self::find(version).ok_or_else(|| {
            format!(
                "{} of {release} are not Rust {version}; {advice}",
                packages.join(" and ")
            )
        })
    }

    fn find(version: &str) -> Option<Self> {
        Self::toolchain(version).or_else(|| Self::programs(version))
    }

    fn toolchain(version: &str) -> Option<Self> {
        let mut list = Command::new("rustup");
        list.args(["toolchain", "list"]).stderr(Stdio::null());
        let list = text(list).ok()?;
        let names = list.lines().filter_map(|line| line.split_whitespace().next());
        let is_wanted = |name: &&str| {
            let rest = name.strip_prefix(version);
            rest.is_some_and(|rest| rest.starts_with(['.', '-']))
        };
        names
            .into_iter()
            .find(is_wanted)
            .map(|name| Self::Toolchain(name.to_owned()))
    }

    fn programs(version: &str) -> Option<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let directories = env::split_paths(&path).chain([PathBuf::from("/usr/bin")]);
        let pairs = directories.flat_map(|directory| {
            // Distributions that ship several versions add the version to the name.
            let names = [format!("-{version}"), String::new()];
            names.map(|suffix| {
                let program = |name: &str| directory.join(format!("{name}{suffix}"));
                (program("cargo"), program("rustc"))
            })
        });
        let start = format!("rustc {version}.");
        let mut matching = pairs.filter(|(cargo, rustc)| {
            let mut ask = Command::new(rustc);
            ask.arg("--version");
            cargo.is_file() && rustc.is_file() && text(ask).is_ok_and(|reported| reported.starts_with(&start))
        });
        matching
            .next()
            .map(|(cargo, rustc)| Self::Programs { cargo, rustc })
    }

    /// Returns its cargo, without arguments yet.
    pub(super) fn cargo(&self) -> Command {
        let mut command = match self {
            Self::Toolchain(name) => {
                let mut command = Command::new("rustup");
                command.args(["run", name, "cargo"]);
                command
            }
            Self::Programs { cargo, rustc } => {
                let mut command = Command::new(cargo);
                command.env("RUSTC", rustc);
                command
            }
        };
        // Set by the cargo that runs this program, for its own compiler.
        command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
        command
    }
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Toolchain(name) => write!(f, "the toolchain {name}"),
            Self::Programs { rustc, .. } => write!(f, "{}", rustc.display()),
        }
    }
}

/// Returns the code name of the Debian release that this machine runs.
fn release() -> Option<String> {
    let system = fs::read_to_string("/etc/os-release").ok()?;
    let name = system
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(name.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiler_of_another_version_is_not_taken() {
        assert!(Compiler::find("1.0").is_none());
    }
}
