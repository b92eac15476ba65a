//! Installs missing tools with the machine's package manager.

use std::env;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A tool that xtask installs.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// Returns whether the tool is installed.
    pub(crate) found: fn() -> bool,
    /// The packages that contain it, in order of preference, by package manager.
    pub(crate) packages: fn(&str) -> &'static [&'static str],
    /// Manual alternative to the installation.
    pub(crate) advice: &'static str,
}

/// A package manager and its commands.
struct PackageManager {
    program: &'static str,
    /// Runs first, because images contain no package lists.
    refresh: &'static [&'static str],
    install: &'static [&'static str],
    as_root: bool,
}

const MANAGERS: [PackageManager; 7] = [
    PackageManager {
        refresh: &["update"],
        ..PackageManager::with("apt-get", &["install", "--yes", "--no-install-recommends"])
    },
    PackageManager::with("dnf", &["install", "-y"]),
    PackageManager::with("yum", &["install", "-y"]),
    PackageManager::with("apk", &["add", "--no-cache"]),
    PackageManager::with("pacman", &["-Sy", "--noconfirm"]),
    PackageManager::with("zypper", &["--non-interactive", "install"]),
    PackageManager {
        as_root: false,
        ..PackageManager::with("brew", &["install"])
    },
];

impl Package {
    /// Installs the package unless its program exists.
    pub(crate) fn ensure(&self) -> Result<(), String> {
        if (self.found)() {
            return Ok(());
        }
        let Self { name, advice, .. } = self;
        let manager = MANAGERS
            .iter()
            .find(|manager| on_path(manager.program))
            .ok_or_else(|| format!("{name} is missing, and no package manager is known here; {advice}"))?;
        let prefix = privileges(manager).ok_or_else(|| {
            format!(
                "{name} is missing, and {} needs root or sudo; {advice}",
                manager.program
            )
        })?;
        manager
            .install(prefix, self)
            .map_err(|why| format!("{name} is missing, and {why}; {advice}"))
    }
}

/// Returns the prefix of a command that needs root; `None` if root is unavailable.
fn privileges(manager: &PackageManager) -> Option<&'static [&'static str]> {
    let user = Command::new("id")
        .arg("-u")
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    if !manager.as_root || user.trim_ascii() == b"0" {
        Some(&[])
    } else if !on_path("sudo") {
        None
    } else if env::var_os("CI").is_some() {
        // No user is present to type a password.
        Some(&["sudo", "-n"])
    } else {
        Some(&["sudo"])
    }
}

/// Installs packages in the version of this Debian release, also where an update has a newer one.
pub(crate) fn install_from(release: &str, packages: &[&str]) -> Result<(), String> {
    let manager = MANAGERS
        .iter()
        .find(|manager| manager.program == "apt-get" && on_path(manager.program));
    let manager = manager.ok_or("apt-get is missing")?;
    let prefix = privileges(manager).ok_or("apt-get needs root or sudo")?;
    let command = |args: &[&[&str]]| [prefix, &[manager.program], &args.concat()].concat().join(" ");
    let install = command(&[manager.install, &["-t", release], packages]);
    println!("==> installing {} with `{install}`", packages.join(" and "));
    // A stale list may suffice: only a failed installation is an error.
    let _ = quietly(&command(&[manager.refresh]).split(' ').collect::<Vec<_>>());
    quietly(&install.split(' ').collect::<Vec<_>>())
}

impl PackageManager {
    const fn with(program: &'static str, install: &'static [&'static str]) -> Self {
        Self {
            program,
            refresh: &[],
            install,
            as_root: true,
        }
    }

    fn install(&self, prefix: &[&'static str], package_to_install: &Package) -> Result<(), String> {
        let command = |args: &[&'static str]| [prefix, &[self.program], args].concat();
        let mut failures = Vec::new();
        for package in (package_to_install.packages)(self.program) {
            let install = [command(self.install), vec![*package]].concat();
            println!(
                "==> {} is missing: installing it with `{}`",
                package_to_install.name,
                install.join(" ")
            );
            if failures.is_empty() && !self.refresh.is_empty() {
                // An outdated list may still suffice; only the installation must succeed.
                let _ = quietly(&command(self.refresh));
            }
            match quietly(&install) {
                Ok(()) if (package_to_install.found)() => return Ok(()),
                Ok(()) => failures.push(format!("the package {package} brought none")),
                Err(why) => failures.push(why),
            }
        }
        Err(failures.join(", "))
    }
}

/// Runs a command without showing its output; on failure, the last line is the reason.
fn quietly(words: &[&str]) -> Result<(), String> {
    let (program, args) = words.split_first().ok_or("nothing to run")?;
    let output = Command::new(program)
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    let Output { status, stderr, .. } = output;
    let text = String::from_utf8_lossy(&stderr);
    let last = text
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("no reason given");
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{}` failed: {}", words.join(" "), last.trim()))
    }
}

/// Returns whether a program can be run.
pub(crate) fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    // A name with a directory in it is not searched for.
    if Path::new(program).components().count() > 1 {
        return Path::new(program).is_file();
    }
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        assert!(on_path("sh") && on_path("/bin/sh"));
        assert!(!on_path("no-such-program") && !on_path("/no/such/program"));
    }

    #[test]
    fn failed_command_reports_its_last_output_line() {
        let failed = quietly(&["sh", "-c", "echo first >&2; echo 'the end' >&2; exit 3"]);
        assert!(failed.is_err_and(|why| why.ends_with("failed: the end")));
        assert_eq!(quietly(&["true"]), Ok(()));
    }

    #[test]
    fn only_brew_runs_without_root() {
        assert!(
            MANAGERS
                .iter()
                .all(|manager| manager.as_root != (manager.program == "brew"))
        );
    }
}
