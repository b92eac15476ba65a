//! Over gRPC: the client library that Python uses.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Server;
use crate::commands::{root, succeed_silently, text};
use crate::python;

/// Returns a Python interpreter with the libraries, in a virtual environment in the target
/// directory.
pub(super) fn python() -> Result<PathBuf, String> {
    let python = python::environment("clients")?;
    let mut install = python::pip_install(&python);
    install.arg("--requirement").arg(script("requirements.txt"));
    println!("==> clients: the libraries of grpcio");
    text(install)?;
    Ok(python)
}

/// Runs the script's calls; the script prints the replies and fails on an unexpected one.
pub(super) fn check(python: &Path, greeter: &Server) -> Result<(), String> {
    println!("==> clients: grpcio");
    let mut client = Command::new(python);
    client.arg(script("grpc_client.py")).arg(&greeter.address);
    succeed_silently(client, "the client of grpcio")
}

fn script(name: &str) -> PathBuf {
    root().join("tools/xtask/clients").join(name)
}
