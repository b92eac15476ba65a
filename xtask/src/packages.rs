//! Sees to it that the tests find a Redis server.

use std::env;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The names `limiter-testing` looks for, too.
const NAMES: [&str; 2] = ["redis-server", "valkey-server"];

/// A package manager, and what to tell it.
struct Manager {
    program: &'static str,
    /// Run first, for images come without the lists of packages.
    refresh: &'static [&'static str],
    install: &'static [&'static str],
    /// In order of preference: some distributions have replaced the one with the other.
    packages: &'static [&'static str],
    as_root: bool,
}

const MANAGERS: [Manager; 7] = [
    Manager {
        program: "apt-get",
        refresh: &["update"],
        install: &["install", "--yes", "--no-install-recommends"],
        packages: &["redis-server", "valkey-server"],
        as_root: true,
    },
    Manager::with("dnf", &["install", "-y"]),
    Manager::with("yum", &["install", "-y"]),
    Manager::with("apk", &["add", "--no-cache"]),
    Manager::with("pacman", &["-Sy", "--noconfirm"]),
    Manager::with("zypper", &["--non-interactive", "install"]),
    Manager {
        as_root: false,
        ..Manager::with("brew", &["install"])
    },
];

/// Finds a server program or installs one.
pub(crate) fn ensure() -> Result<(), String> {
    if let Some(named) = env::var_os("REDIS_SERVER").filter(|named| !named.is_empty()) {
        return if on_path(&named.to_string_lossy()) {
            Ok(())
        } else {
            Err(format!(
                "REDIS_SERVER is `{}`, which does not exist",
                named.display()
            ))
        };
    }
    if found() {
        return Ok(());
    }
    let advice = "install Redis 6.2 or later, or name its server program in REDIS_SERVER";
    let manager = MANAGERS
        .iter()
        .find(|manager| on_path(manager.program))
        .ok_or_else(|| format!("redis-server is missing, and no package manager is known here; {advice}"))?;
    let prefix = privileges(manager).ok_or_else(|| {
        format!(
            "redis-server is missing, and {} needs root or sudo; {advice}",
            manager.program
        )
    })?;
    manager
        .install_server(prefix)
        .map_err(|why| format!("redis-server is missing, and {why}; {advice}"))
}

/// What to put in front of a command that needs root; `None` if there is no way to become it.
fn privileges(manager: &Manager) -> Option<&'static [&'static str]> {
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
        // Nobody is there to type a password.
        Some(&["sudo", "-n"])
    } else {
        Some(&["sudo"])
    }
}

impl Manager {
    const fn with(program: &'static str, install: &'static [&'static str]) -> Self {
        Self {
            program,
            refresh: &[],
            install,
            packages: &["redis", "valkey"],
            as_root: true,
        }
    }

    fn install_server(&self, prefix: &[&'static str]) -> Result<(), String> {
        let command = |args: &[&'static str]| [prefix, &[self.program], args].concat();
        let mut failures = Vec::new();
        for package in self.packages {
            let install = [command(self.install), vec![*package]].concat();
            println!(
                "==> redis-server is missing: installing it with `{}`",
                install.join(" ")
            );
            if failures.is_empty() && !self.refresh.is_empty() {
                // A list that is stale in part may still do; the installation is what counts.
                let _ = quietly(&command(self.refresh));
            }
            match quietly(&install) {
                Ok(()) if found() => return Ok(()),
                Ok(()) => failures.push(format!("the package {package} brought none")),
                Err(why) => failures.push(why),
            }
        }
        Err(failures.join(", "))
    }
}

/// Runs a command without showing what it prints; on failure, the last line is the reason.
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

fn found() -> bool {
    NAMES.iter().any(|name| on_path(name))
}

fn on_path(program: &str) -> bool {
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
    fn finds_programs_by_name_and_by_path() {
        assert!(on_path("sh") && on_path("/bin/sh"));
        assert!(!on_path("no-such-program") && !on_path("/no/such/program"));
    }

    #[test]
    fn a_failed_command_tells_its_last_words() {
        let failed = quietly(&["sh", "-c", "echo first >&2; echo 'the end' >&2; exit 3"]);
        assert!(failed.is_err_and(|why| why.ends_with("failed: the end")));
        assert_eq!(quietly(&["true"]), Ok(()));
    }

    #[test]
    fn no_root_is_needed_where_it_would_be_refused() {
        assert!(
            MANAGERS
                .iter()
                .all(|manager| manager.as_root != (manager.program == "brew"))
        );
    }
}
