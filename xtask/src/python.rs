//! Makes Python environments for the commands that install packages from PyPI.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::commands::{target_dir, text};
use crate::packages::{Wanted, on_path};

const PYTHON: Wanted = Wanted {
    name: "python3",
    found: || on_path("python3"),
    packages: |manager| match manager {
        "apt-get" => &["python3-venv"],
        "pacman" => &["python"],
        _ => &["python3"],
    },
    advice: "install Python 3.9 or later, with its module venv",
};

/// The interpreter of a virtual environment in `target/<owner>/venv`, which is made if it does not
/// exist.
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
