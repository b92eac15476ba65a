//! Over gRPC: the client library that Python uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Server, output};
use crate::packages::{Wanted, on_path};
use crate::steps::{root, succeed_silently, target_dir};

const PYTHON: Wanted = Wanted {
    what: "python3",
    found: || on_path("python3"),
    packages: |manager| match manager {
        "apt-get" => &["python3-venv"],
        "pacman" => &["python"],
        _ => &["python3"],
    },
    advice: "install Python 3.9 or later, with its module venv",
};

/// A Python that has the libraries, in an environment of its own below where cargo builds.
pub(super) fn python() -> Result<PathBuf, String> {
    PYTHON.ensure()?;
    let environment = target_dir().join("clients").join("venv");
    let python = environment.join("bin").join("python");
    if !python.is_file() {
        fs::create_dir_all(&environment)
            .map_err(|error| format!("cannot make {}: {error}", environment.display()))?;
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(&environment);
        output(make).map_err(|why| format!("{why}; {}", PYTHON.advice))?;
    }
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .arg("--requirement")
        .arg(script("requirements.txt"));
    println!(
        "==> clients: the libraries of grpcio, in {}",
        environment.display()
    );
    output(install)?;
    Ok(python)
}

/// Has the script ask; it shows what it gets, and fails where that is not what it must be.
pub(super) fn ask(python: &Path, greeter: &Server) -> Result<(), String> {
    println!("==> clients: grpcio");
    let mut client = Command::new(python);
    client.arg(script("grpc_client.py")).arg(&greeter.address);
    succeed_silently(client, "the client of grpcio")
}

fn script(name: &str) -> PathBuf {
    root().join("xtask").join("clients").join(name)
}
