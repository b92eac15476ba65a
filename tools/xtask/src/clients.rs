//! Calls the examples with independent clients: curl and a load generator over HTTP, grpcio of PyPI
//! over gRPC.

mod grpc;
mod http;

use std::env::consts::EXE_SUFFIX;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::commands::{self, cargo, root, target_dir};

/// `cargo xtask clients`. Missing tools are installed, or named in the failure; no client is
/// skipped.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(other) = args.first() {
        return Err(format!("`clients` takes no arguments, got `{other}`"));
    }
    http::ensure()?;
    let python = grpc::python()?;
    let mut build = cargo();
    build
        .args(["build", "--package", "examples", "--all-features"])
        .args(["--bin", "axum_api", "--bin", "tonic_greeter"])
        .current_dir(root());
    commands::succeed(build, "clients")?;
    http::check(&Server::start("axum_api", &[])?)?;
    grpc::check(&python, &Server::start("tonic_greeter", &["server"])?)
}

/// An example that serves on a free port of this machine, until this is dropped.
#[derive(Debug)]
struct Server {
    process: Child,
    /// `HOST:PORT`.
    address: String,
    /// Open as long as it may print.
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(example: &str, args: &[&str]) -> Result<Self, String> {
        let program = target_dir().join("debug").join(format!("{example}{EXE_SUFFIX}"));
        let mut process = Command::new(&program)
            .args(args)
            .env("PORT", "0")
            .env_remove("REDIS_URL")
            .env_remove("LIMITER_ENFORCEMENT")
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let output = process.stdout.take().ok_or("an example without an output")?;
        let mut server = Self {
            process,
            address: String::new(),
            output: BufReader::new(output),
        };
        let mut line = String::new();
        server
            .output
            .read_line(&mut line)
            .map_err(|error| format!("cannot read the output of {example}: {error}"))?;
        line.trim()
            .strip_prefix("listening on http://")
            .ok_or_else(|| format!("{example} does not start"))?
            .clone_into(&mut server.address);
        Ok(server)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already, if that fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
