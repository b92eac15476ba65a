//! Unpacks MySQL, which only the unstable release of Debian contains.
//!
//! apt resolves the program and all its libraries with lists and a status of its own, as for an
//! empty machine, and verifies the signature of the archive. `dpkg-deb` unpacks the packages into
//! one directory. A script runs the program by the loader of that directory, so that the libraries
//! of the system, which are older, are not used. Nothing is installed into the system.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::text;
use crate::packages::on_path;

/// The variable of the environment that names the program for the tests.
pub(crate) const VARIABLE: &str = "MYSQLD";

const PACKAGE: &str = "mysql-server-core";
/// The keys that sign all releases of Debian.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const ADVICE: &str = "name the program mysqld of MySQL 8 or later in MYSQLD";
/// The script beside the directory `root`.
const SCRIPT: &str = r#"#!/bin/sh
root=$(cd "$(dirname "$0")" && pwd)/root
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" \
    "$root/usr/sbin/mysqld" "$@"
"#;

/// Returns the path of the program that `MYSQLD` names, or of the one that is unpacked below
/// `into`.
pub(crate) fn program(into: &Path) -> Result<PathBuf, String> {
    if let Some(named) = env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return fs::canonicalize(&named)
            .map_err(|error| format!("{VARIABLE} is `{}`: {error}", named.display()));
    }
    let to = into.join("mysql");
    let program = to.join("mysqld");
    if !program.is_file() {
        unpack(&to).map_err(|why| format!("MySQL is missing, and {why}; {ADVICE}"))?;
    }
    Ok(program)
}

fn unpack(to: &Path) -> Result<(), String> {
    let is_supported = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    if !is_supported || !on_path("apt-get") || !Path::new(KEYS).is_file() {
        return Err("it is unpacked on x86-64 Debian alone".to_owned());
    }
    println!("==> {PACKAGE}, into {}", to.display());
    let failed = |error: std::io::Error| format!("cannot unpack it: {error}");
    let draft = to.with_extension("new");
    let _ = fs::remove_dir_all(&draft);
    let apt = Apt::new(draft.join("apt")).map_err(failed)?;
    let root = draft.join("root");
    fs::create_dir_all(&root).map_err(failed)?;
    for package in apt.download(PACKAGE)? {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(package).arg(&root);
        text(unpack)?;
    }
    fs::remove_dir_all(&apt.directory).map_err(failed)?;
    let script = draft.join("mysqld");
    fs::write(&script, SCRIPT).map_err(failed)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    let mut version = Command::new(&script);
    version.args(["--no-defaults", "--version"]);
    println!("==> {}", text(version)?.trim());
    let _ = fs::remove_dir_all(to);
    fs::rename(&draft, to).map_err(failed)
}

/// apt with a state of its own.
struct Apt {
    directory: PathBuf,
}

impl Apt {
    fn new(directory: PathBuf) -> std::io::Result<Self> {
        for cache in ["lists", "archives"] {
            fs::create_dir_all(directory.join(cache).join("partial"))?;
        }
        fs::write(directory.join("status"), "")?;
        Ok(Self { directory })
    }

    /// Returns the files of a package and of all packages that it needs.
    fn download(&self, package: &str) -> Result<Vec<PathBuf>, String> {
        let sources = self.directory.join("sources.list");
        let source = format!("deb [signed-by={KEYS}] {} unstable main\n", self.archive()?);
        fs::write(&sources, source).map_err(|error| format!("cannot write a list of sources: {error}"))?;
        for action in [&["update"][..], &["install", "--yes", "--download-only", package]] {
            let mut command = self.command();
            command
                .arg("-o")
                .arg(format!("Dir::Etc::SourceList={}", sources.display()))
                .args(["-o", "Dir::Etc::SourceParts=/dev/null"])
                .args(action);
            text(command)?;
        }
        let files = fs::read_dir(self.directory.join("archives"))
            .map_err(|error| format!("cannot read the packages: {error}"))?;
        let paths = files.filter_map(|file| Some(file.ok()?.path()));
        Ok(paths
            .filter(|path| path.extension().is_some_and(|of| of == "deb"))
            .collect())
    }

    /// Returns the address of Debian's archive in the sources of this machine.
    fn archive(&self) -> Result<String, String> {
        let mut update = self.command();
        update.arg("update");
        // A source of another archive may fail.
        let _ = text(update);
        let mut targets = self.command();
        targets.args([
            "indextargets",
            "--format=$(REPO_URI)",
            "Created-By: Packages",
            "Origin: Debian",
            "Label: Debian",
        ]);
        let addresses = text(targets)?;
        let address = addresses.lines().next().map(str::to_owned);
        address.ok_or_else(|| "the sources of apt name no archive of Debian".to_owned())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        for (option, name) in [
            ("Dir::State", ""),
            ("Dir::State::Lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", ""),
            ("Dir::Cache::archives", "archives"),
        ] {
            let path = self.directory.join(name);
            command.arg("-o").arg(format!("{option}={}", path.display()));
        }
        for option in [
            "Dir::Etc::Preferences=/dev/null",
            "Dir::Etc::PreferencesParts=/dev/null",
            "APT::Default-Release=",
            "APT::Install-Recommends=false",
            // The user of apt may have no access to the directory.
            "APT::Sandbox::User=root",
        ] {
            command.args(["-o", option]);
        }
        command
    }
}
