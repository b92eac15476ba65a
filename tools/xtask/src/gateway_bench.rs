//! Builds the servers of the gateway benchmark and runs it.

use std::path::PathBuf;

use crate::commands::{self, cargo, root, target_dir};
use crate::packages::{Package, on_path};
use crate::{redis, server};

/// A server that decides over gRPC and HTTP, which the benchmark compares ours with.
const THROTTLECRAB: (&str, &str) = ("throttlecrab-server", "0.4.40");

/// Needed to build throttlecrab-server.
const PROTOC: Package = Package {
    name: "protoc",
    found: || on_path("protoc"),
    packages: |manager| match manager {
        "apt-get" => &["protobuf-compiler"],
        "apk" => &["protoc"],
        _ => &["protobuf"],
    },
    advice: "install the compiler of protocol buffers",
};

/// An independent load generator.
const WRK: Package = Package {
    name: "wrk",
    found: || on_path("wrk"),
    packages: |_| &["wrk"],
    advice: "install the load generator wrk",
};

/// `cargo xtask bench --gateway`; with `--require`, a documented bound that is missed is an error.
/// The settings are environment variables (`GATEWAY_ROUNDS` and
/// others), listed in the program's main.rs.
pub(crate) fn run(requires_bounds: bool) -> Result<(), String> {
    redis::ensure()?;
    WRK.ensure()?;
    let mut bench = cargo();
    bench
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "limiter-gateway-bench",
            "--manifest-path",
        ])
        .arg(root().join("tools/limiter-bench/Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir())
        .env("LIMITER_SERVER", limiter_server()?)
        .env("THROTTLECRAB", throttlecrab()?)
        .env("WRK", "wrk")
        .env("ENVOY", server::envoy()?);
    if requires_bounds {
        bench.args(["--", "--require"]);
    }
    commands::succeed_silently(bench, "the gateway benchmark")
}

fn limiter_server() -> Result<PathBuf, String> {
    let target = target_dir();
    let mut build = cargo();
    build
        .args([
            "build",
            "--quiet",
            "--release",
            "--bin",
            "limiter-server",
            "--manifest-path",
        ])
        .arg(root().join("limiter-server/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    commands::succeed(build, "bench")?;
    Ok(target.join("release/limiter-server"))
}

fn throttlecrab() -> Result<PathBuf, String> {
    let (name, version) = THROTTLECRAB;
    let directory = target_dir().join("bench-servers");
    let program = directory.join("bin").join(name);
    if !program.is_file() {
        PROTOC.ensure()?;
        let mut install = cargo();
        install.args(["install", "--quiet", name, "--version", version, "--root"]);
        install.arg(&directory);
        commands::succeed(install, "bench")?;
    }
    Ok(program)
}
