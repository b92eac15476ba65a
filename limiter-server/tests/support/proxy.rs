//! A proxy with the configuration of the guide, in front of a service of the test.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use tokio::runtime::Runtime;

use super::http::{self, Response};
use super::server::Directory;

/// The number of further ports that are tried, because a port that was free can be taken before the
/// proxy listens.
const ATTEMPTS: u32 = 5;

/// A file of the configuration: its name and its text.
pub(crate) type ConfigFile = (&'static str, &'static str);

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    child: Child,
    _service: Runtime,
    address: SocketAddr,
    _directory: Directory,
}

impl Proxy {
    /// Starts a program with its configuration, in which the ports of the guide are replaced. Each
    /// edit replaces one text by another.
    pub(crate) fn start(
        program: &str,
        args: &[&str],
        files: &[ConfigFile],
        limiter: SocketAddr,
        edits: &[(&str, &str)],
    ) -> Self {
        let service = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = service.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let service_address = listener.local_addr().expect("an address");
        let app = Router::new().fallback(async || "served\n");
        service.spawn(async move { axum::serve(listener, app).await });

        let mut log = String::new();
        for _ in 0..ATTEMPTS {
            let directory = Directory::new();
            let address = free_address();
            for (name, text) in files {
                let mut text = (*text).to_owned();
                for (from, to) in edits {
                    text = text.replace(from, to);
                }
                let text = text
                    .replace(":10000", &format!(":{}", address.port()))
                    .replace("127.0.0.1:8080", &limiter.to_string())
                    .replace("127.0.0.1:9000", &service_address.to_string());
                directory.write(name, &text);
            }
            let path = directory.path().to_str().expect("an ASCII path").to_owned();
            let args = args.iter().map(|arg| arg.replace("DIRECTORY", &path));
            let log_path = directory.path().join("log");
            let output = File::create(&log_path).expect("a log file");
            let mut child = Command::new(program)
                .args(args)
                .env("HOME", &path)
                .current_dir(&path)
                .stdin(Stdio::null())
                .stdout(output.try_clone().expect("a file"))
                .stderr(output)
                .spawn()
                .unwrap_or_else(|error| {
                    panic!("cannot start {program}, which `cargo xtask server` installs: {error}")
                });
            if listens(&mut child, address) {
                return Self {
                    child,
                    _service: service,
                    address,
                    _directory: directory,
                };
            }
            let _ = child.kill();
            let _ = child.wait();
            log = std::fs::read_to_string(&log_path).unwrap_or_default();
        }
        panic!("{program} does not listen: {log}");
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.get_with(path, &[])
    }

    /// Sends a GET request with these headers.
    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        http::get(self.address, path, headers).expect("an answer")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A signal lets a proxy with processes of its own end them.
        let _ = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

/// Waits until the process listens. Returns false if the process ends first.
fn listens(child: &mut Child, address: SocketAddr) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        if TcpStream::connect(address).is_ok() {
            return true;
        }
        if child.try_wait().expect("a process").is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
