//! An Envoy process with the configuration of the guide, in front of a service of the test.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use tokio::runtime::Runtime;

use super::http::{self, Response};
use super::server::{Directory, wait_until};

const CONFIGURATION: &str = include_str!("../../../docs/guide/envoy.yaml");

/// True if the proxy and the server use their documented times. `cargo xtask server --all` runs
/// optimised programs alone on the machine; elsewhere a loaded machine must not decide the outcome
/// of a test.
pub(crate) const HAS_DOCUMENTED_TIMES: bool = !cfg!(debug_assertions);

/// The arguments of the server for the times of [`Envoy::start`].
pub(crate) fn deadline_args() -> &'static [&'static str] {
    match HAS_DOCUMENTED_TIMES {
        true => &[],
        false => &["--decision-deadline", "5s"],
    }
}

/// The variable that names the program.
const VARIABLE: &str = "ENVOY";

/// The service behind the proxy. It reports tokens where the path says so.
#[derive(Debug)]
struct Service {
    _runtime: Runtime,
    address: SocketAddr,
    calls: Arc<AtomicU32>,
}

impl Service {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let answer = move |headers: HeaderMap| {
            counted.fetch_add(1, Ordering::Relaxed);
            let tokens = headers.get("x-use").cloned();
            async move {
                let mut answer = "served\n".into_response();
                if let Some(tokens) = tokens {
                    answer.headers_mut().insert("x-tokens", tokens);
                }
                answer
            }
        };
        let app = Router::new().fallback(answer);
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self {
            _runtime: runtime,
            address,
            calls,
        }
    }
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Envoy {
    child: Child,
    service: Service,
    admin: SocketAddr,
    address: SocketAddr,
    directory: Directory,
}

impl Envoy {
    /// Starts the proxy in front of a service, with its rate limit service at this address. Each
    /// edit replaces one text of the configuration by another.
    ///
    /// With [`HAS_DOCUMENTED_TIMES`] the timeout is that of the guide.
    pub(crate) fn start(limiter: SocketAddr, edits: &[(&str, &str)]) -> Self {
        let patient: &[(&str, &str)] = match HAS_DOCUMENTED_TIMES {
            true => &[],
            false => &[("timeout: 0.02s", "timeout: 5s")],
        };
        Self::start_with(CONFIGURATION, limiter, &[patient, edits].concat())
    }

    /// Starts the proxy with a configuration of the guide.
    pub(crate) fn start_with(configuration: &str, limiter: SocketAddr, edits: &[(&str, &str)]) -> Self {
        let (service, directory) = (Service::start(), Directory::new());
        let mut text = configuration
            .replace("port_value: 10000", "port_value: 0")
            .replace("port_value: 9901", "port_value: 0")
            .replace("port_value: 8081", &format!("port_value: {}", limiter.port()))
            .replace(
                "port_value: 9000",
                &format!("port_value: {}", service.address.port()),
            );
        for (from, to) in edits {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let path = directory.write("envoy.yaml", &text);
        let admin_file = directory.path().join("admin");
        let log = std::fs::File::create(directory.path().join("log")).expect("a log file");
        let access = std::fs::File::create(directory.path().join("access")).expect("a log file");
        let child = Command::new(program())
            .args(["--config-path", path.to_str().expect("ASCII")])
            .args(["--admin-address-path", admin_file.to_str().expect("ASCII")])
            .args([
                "--disable-hot-restart",
                "--concurrency",
                "1",
                "--log-level",
                "warn",
            ])
            .stdin(Stdio::null())
            .stdout(access)
            .stderr(log)
            .spawn()
            .expect("Envoy starts");
        let mut envoy = Self {
            child,
            admin: service.address,
            address: service.address,
            service,
            directory,
        };
        let admin = || std::fs::read_to_string(&admin_file).ok()?.trim().parse().ok();
        wait_until(|| admin().is_some(), || envoy.log());
        envoy.admin = admin().expect("written");
        wait_until(
            || envoy.admin("/ready").is_some_and(|answer| answer.status == 200),
            || envoy.log(),
        );
        let listeners = envoy.admin("/listeners").expect("listeners").body;
        let address = listeners.lines().find_map(|line| line.strip_prefix("edge::"));
        envoy.address = address.expect("the listener").trim().parse().expect("an address");
        envoy
    }

    fn admin(&self, path: &str) -> Option<Response> {
        http::get(self.admin, path, &[]).ok()
    }

    pub(crate) fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        http::get(self.address, path, headers).expect("an answer")
    }

    /// The address of its listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills the process. Its service keeps its count.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The number of requests that reached the service.
    pub(crate) fn served(&self) -> u32 {
        self.service.calls.load(Ordering::Relaxed)
    }

    /// A counter of the proxy.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let stats = self.admin(&format!("/stats?filter={name}")).expect("stats").body;
        let values = stats.lines().filter_map(|line| line.rsplit_once(": "));
        values
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum()
    }

    pub(crate) fn access_log(&self) -> String {
        // The proxy writes its log in intervals.
        let _ = self.admin("/reopen_logs");
        std::fs::read_to_string(self.directory.path().join("access")).unwrap_or_default()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    named.expect("set ENVOY to the program of Envoy 1.40, or run `cargo xtask server`, which installs it")
}
