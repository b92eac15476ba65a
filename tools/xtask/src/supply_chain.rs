//! Checks of the published crates: licences, duplicates, advisories, packages, the docs of docs.rs,
//! the public API, unsafe code.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::{self, cargo, root, target_dir, text};
use crate::minimal_versions;
use crate::packages::on_path;

/// The published crates in the order of their dependencies.
const PUBLISHED: [&str; 4] = [
    "limiter-macros",
    "limiter-core",
    "limiter-redisson",
    "limiter-tower",
];

/// The result of a check that did not fail: the reason why it was skipped, if it was.
type Findings = Result<Option<&'static str>, String>;
type Check = fn() -> Findings;

const CHECKS: [(&str, Check); 7] = [
    ("licences, duplicates, sources", licences),
    ("advisories", advisories),
    ("unsafe code", unsafe_code),
    ("packages", packages),
    ("docs.rs build", docs_rs),
    ("oldest dependencies", oldest_dependencies),
    ("public API", public_api),
];

/// `cargo xtask supply-chain`. Runs every check, also after one that failed.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(arg) = args.first() {
        return Err(format!("supply-chain takes no arguments, got `{arg}`"));
    }
    let (mut failed, mut summary) = (Vec::new(), String::new());
    for (name, check) in CHECKS {
        println!("==> supply-chain: {name}");
        let found = match check() {
            Ok(None) => "ok".to_owned(),
            Ok(Some(why)) => format!("NOT CHECKED: {why}"),
            Err(why) => {
                failed.push(name);
                format!("FAILED: {why}")
            }
        };
        summary.push_str(&format!("    {name}: {found}\n"));
    }
    print!("==> supply-chain:\n{summary}");
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

fn licences() -> Findings {
    let mut deny = tool("cargo-deny")?;
    deny.args(["--all-features", "check", "licenses", "bans", "sources"]);
    commands::succeed(deny, "supply-chain").map(|()| None)
}

/// The advisory database is on a separate git host, which some machines cannot reach.
fn advisories() -> Findings {
    let mut fetch = tool("cargo-deny")?;
    fetch.args(["fetch", "db"]);
    if commands::succeed(fetch, "supply-chain").is_err() {
        return Ok(Some("the database of advisories cannot be reached from here"));
    }
    let mut deny = tool("cargo-deny")?;
    deny.args(["--all-features", "check", "--disable-fetch", "advisories"]);
    commands::succeed(deny, "supply-chain").map(|()| None)
}

/// A source cannot relax `forbid`, so it suffices that every crate inherits it; a crate with its
/// own workspace sets it itself.
fn unsafe_code() -> Findings {
    if !read(&root().join("Cargo.toml"))?.contains("\nunsafe_code = \"forbid\"\n") {
        return Err("the workspace does not forbid it".to_owned());
    }
    for member in members()? {
        if !read(&member.join("Cargo.toml"))?.contains("\n[lints]\nworkspace = true\n") {
            return Err(format!(
                "{} does not inherit the workspace's lints",
                member.display()
            ));
        }
    }
    let fuzz = read(&root().join("tools/fuzz/src/lib.rs"))?;
    if fuzz.contains("#![forbid(unsafe_code)]") {
        Ok(None)
    } else {
        Err("fuzz does not forbid it".to_owned())
    }
}

/// Returns the directories with a manifest, except other workspaces.
fn members() -> Result<Vec<PathBuf>, String> {
    let list = |folder: PathBuf| {
        fs::read_dir(&folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))
    };
    let entries = list(root().to_owned())?.chain(list(root().join("tools"))?);
    let dirs = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let with_manifest = dirs.filter(|dir| dir.join("Cargo.toml").is_file());
    with_manifest
        .map(|dir| Ok((read(&dir.join("Cargo.toml"))?, dir)))
        .filter(|member| !matches!(member, Ok((manifest, _)) if manifest.contains("\n[workspace]\n")))
        .map(|member| member.map(|(_, dir)| dir))
        .collect()
}

/// The packages build from their own content and contain all required files.
fn packages() -> Findings {
    let target = target_dir().join("packages");
    // Cargo does not compile a package again if its version is unchanged and its content is not.
    remove(&target)?;
    for earlier in extracted_packages() {
        remove(&earlier)?;
    }
    let mut package = cargo();
    package
        .args(["package", "--allow-dirty"])
        .args(PUBLISHED.iter().flat_map(|name| ["-p", name]))
        .arg("--target-dir")
        .arg(&target)
        .current_dir(root());
    commands::succeed(package, "supply-chain")?;
    PUBLISHED
        .iter()
        .try_for_each(|name| contents(name))
        .map(|()| None)
}

/// Returns the sources that Cargo has extracted from earlier packages, to compile those that depend
/// on them. It extracts a version once, into the directory of a registry without a host.
fn extracted_packages() -> Vec<PathBuf> {
    let default = || Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"));
    let Some(home) = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(default) else {
        return Vec::new();
    };
    let begins = |path: &Path, start: &str| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(start))
    };
    let entries = |dir: &Path| {
        let listed = fs::read_dir(dir).into_iter().flatten().flatten();
        listed.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let local = entries(&home.join("registry/src")).into_iter();
    let local = local.filter(|registry| begins(registry, "-"));
    local
        .flat_map(|registry| entries(&registry))
        .filter(|package| PUBLISHED.iter().any(|name| begins(package, &format!("{name}-"))))
        .collect()
}

fn remove(directory: &Path) -> Result<(), String> {
    match directory.exists() {
        true => fs::remove_dir_all(directory)
            .map_err(|error| format!("cannot remove {}: {error}", directory.display())),
        false => Ok(()),
    }
}

/// The docs build as on docs.rs, which compiles the `doc(cfg)` attributes with a nightly compiler.
/// The stable compiler accepts their feature with `RUSTC_BOOTSTRAP`.
fn docs_rs() -> Findings {
    let mut doc = cargo();
    doc.args(["doc", "--no-deps", "--all-features"])
        .args(PUBLISHED.iter().flat_map(|name| ["-p", name]))
        .arg("--target-dir")
        .arg(target_dir().join("docs-rs"))
        .env("RUSTDOCFLAGS", "--cfg docsrs")
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(root());
    commands::succeed(doc, "supply-chain").map(|()| None)
}

/// The lower bounds of the dependencies are true.
fn oldest_dependencies() -> Findings {
    minimal_versions::check(&PUBLISHED).map(|()| None)
}

fn contents(name: &str) -> Result<(), String> {
    let mut list = cargo();
    list.args(["package", "--allow-dirty", "--list", "-p", name])
        .current_dir(root());
    let listed = text(list)?;
    let listed: Vec<_> = listed.lines().map(|line| line.replace('\\', "/")).collect();
    let lua = scripts(&root().join(name))?;
    let needed = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"].map(str::to_owned);
    for file in needed.into_iter().chain(lua) {
        if !listed.contains(&file) {
            return Err(format!("{name} lacks {file}"));
        }
    }
    // Sources and texts. Tests need crates that are not published.
    let known = ["src/", "Cargo.", "LICENSE-", "README.md", ".cargo_vcs_info.json"];
    match listed
        .iter()
        .find(|file| !known.iter().any(|known| file.starts_with(known)))
    {
        Some(foreign) => Err(format!("{name} ships {foreign}")),
        None => {
            println!("    {name}: {} files", listed.len());
            Ok(())
        }
    }
}

/// Scripts that the sources include, as a package names them.
fn scripts(dir: &Path) -> Result<Vec<String>, String> {
    let mut list = Command::new("git");
    list.args(["ls-files", "*.lua"]).current_dir(dir);
    Ok(text(list)?.lines().map(str::to_owned).collect())
}

/// The version reflects the changes since the last tag.
fn public_api() -> Findings {
    let mut describe = Command::new("git");
    describe
        .args(["describe", "--tags", "--abbrev=0"])
        .current_dir(root());
    let Ok(tag) = text(describe) else {
        return Ok(Some("no version is tagged yet, with which to compare"));
    };
    let mut compare = tool("cargo-semver-checks")?;
    // The arguments of attributes are no API that it could see; their tests compare messages and
    // expansions.
    let libraries = PUBLISHED
        .iter()
        .filter(|name| **name != "limiter-macros")
        .flat_map(|name| ["-p", name]);
    compare
        .args(["semver-checks", "--baseline-rev", tag.trim()])
        .args(libraries);
    commands::succeed(compare, "supply-chain").map(|()| None)
}

/// Returns a tool that is installed, or else is built into the target directory.
pub(crate) fn tool(name: &str) -> Result<Command, String> {
    let tools = target_dir().join("tools");
    let ours = tools.join("bin").join(name);
    let program = if on_path(name) { name.into() } else { ours.clone() };
    if !on_path(&program.to_string_lossy()) {
        let mut install = cargo();
        install
            .args(["install", "--locked", "--root"])
            .arg(&tools)
            .arg(name);
        commands::succeed(install, "supply-chain")?;
    }
    let mut command = Command::new(program);
    command.current_dir(root());
    Ok(command)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_members_forbid_unsafe_code() {
        let members = members().map(|members| members.len());
        assert!(members.is_ok_and(|members| members >= 6));
        assert_eq!(unsafe_code(), Ok(None));
    }
}
