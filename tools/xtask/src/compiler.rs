//! Installs a compiler for C++ if none exists. The fuzzer is written in C++.

use std::env;

use crate::packages::{Package, on_path};

const CPLUSPLUS: Package = Package {
    name: "a compiler for C++",
    found,
    packages: |manager| match manager {
        "dnf" | "yum" | "zypper" => &["gcc-c++"],
        "pacman" | "brew" => &["gcc"],
        _ => &["g++"],
    },
    advice: "install one, or name it in CXX",
};

/// Finds a compiler or installs one.
pub(crate) fn ensure() -> Result<(), String> {
    CPLUSPLUS.ensure()
}

fn found() -> bool {
    env::var_os("CXX").is_some_and(|named| !named.is_empty()) || on_path("c++")
}
