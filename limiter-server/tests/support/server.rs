//! A limiter-server process that is killed with its handle.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::access;
use super::http::{self, Response};

/// A directory that is removed with its handle.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("limiter-server-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file by renaming, as an editor does.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, draft) = (self.0.join(name), self.0.join(format!("{name}.new")));
        std::fs::write(&draft, text).expect("writable");
        std::fs::rename(&draft, &path).expect("renamed");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    addresses: BTreeMap<String, String>,
    directory: Directory,
}

/// The command, with the environment of the test removed.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiter-server"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LIMITER_")) {
        command.env_remove(name);
    }
    command
}

impl Server {
    /// Starts a server with a policy file on free ports.
    pub(crate) fn with_policies(text: &str, args: &[&str]) -> Self {
        let directory = Directory::new();
        let path = directory.write("policies.toml", text);
        let path = path.to_str().expect("an ASCII path").to_owned();
        Self::start(directory, &[&["--policies", &path], args].concat())
    }

    /// Starts a server with a policy file and a token of all scopes, [`access::TOKEN`].
    pub(crate) fn with_token(text: &str, args: &[&str]) -> Self {
        let settings = access::entry("test", access::TOKEN, &access::ALL_SCOPES);
        Self::with_settings(text, &settings, args)
    }

    /// Starts a server with a policy file and a settings file.
    pub(crate) fn with_settings(text: &str, settings: &str, args: &[&str]) -> Self {
        let directory = Directory::new();
        let path = directory.write("policies.toml", text);
        directory.write("limiter-server.toml", settings);
        let path = path.to_str().expect("an ASCII path").to_owned();
        Self::start(directory, &[&["--policies", &path], args].concat())
    }

    /// Starts a server on free ports.
    pub(crate) fn start(directory: Directory, args: &[&str]) -> Self {
        Self::start_command(command(), directory, args)
    }

    /// Starts a server with a variable of the environment.
    pub(crate) fn start_with_variable(
        directory: Directory,
        (name, value): (&str, &str),
        args: &[&str],
    ) -> Self {
        let mut command = command();
        command.env(name, value);
        Self::start_command(command, directory, args)
    }

    fn start_command(mut command: Command, directory: Directory, args: &[&str]) -> Self {
        let log = std::fs::File::create(directory.path().join("log")).expect("a log file");
        let usual = [["--grpc", "127.0.0.1:0"], ["--http", "127.0.0.1:0"]];
        let usual = usual.into_iter().filter(|[flag, _]| !args.contains(flag));
        let mut child = command
            .arg("serve")
            .args(usual.into_iter().flatten())
            .args(args)
            .current_dir(directory.path())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the server starts");
        let has_gateway = !args.windows(2).any(|pair| pair == ["--role", "admin"]);
        let listeners = 2 * usize::from(has_gateway)
            + usize::from(args.contains(&"--resp"))
            + usize::from(args.contains(&"--admin"));
        let output = child.stdout.take().expect("piped");
        let mut addresses = BTreeMap::new();
        let mut output = BufReader::new(output);
        for line in output.by_ref().lines().take(listeners) {
            let line = line.expect("text");
            let (protocol, address) = line.split_once(' ').expect("a protocol and an address");
            addresses.insert(protocol.to_owned(), address.to_owned());
        }
        let mut copy = std::fs::File::create(directory.path().join("output")).expect("a file");
        // Ends with the output of the process.
        std::thread::spawn(move || std::io::copy(&mut output, &mut copy));
        let server = Self {
            child,
            addresses,
            directory,
        };
        assert_eq!(server.addresses.len(), listeners, "{}", server.log());
        server
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.announced("http").parse().expect("a TCP address")
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        self.announced("grpc").parse().expect("a TCP address")
    }

    /// The address that the server printed for a protocol.
    pub(crate) fn announced(&self, protocol: &str) -> &str {
        self.addresses.get(protocol).expect("announced")
    }

    /// The memory that the process occupies.
    pub(crate) fn resident_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.expect("a size").parse().expect("a number")
    }

    pub(crate) fn resp(&self) -> SocketAddr {
        self.announced("resp").parse().expect("a TCP address")
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.announced("admin").parse().expect("a TCP address")
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The standard output after the addresses.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        http::get(self.http(), path, &[]).expect("an answer")
    }

    /// The value of a sample of `/metrics`, or 0 if it is missing.
    pub(crate) fn metric(&self, sample: &str) -> f64 {
        let metrics = self.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(sample));
        line.map_or(0.0, |value| value.trim().parse().expect("a number"))
    }

    /// Starts a server again in the directory of a killed one, with its database.
    pub(crate) fn restart(mut self, args: &[&str]) -> Self {
        let directory = std::mem::replace(&mut self.directory, Directory::new());
        let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
        Self::start(directory, &[&["--database", &url], args].concat())
    }

    /// Sends a signal by name, such as `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub(crate) fn stop(mut self) -> (ExitStatus, String) {
        self.signal("TERM");
        let status = self.child.wait().expect("the end");
        (status, self.log())
    }

    /// Waits until the log contains a text.
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_until(|| self.log().contains(text), || self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until a condition holds, for at most 30 seconds.
pub(crate) fn wait_until(mut condition: impl FnMut() -> bool, explain: impl Fn() -> String) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(30), "{}", explain());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs the command to its end: exit code, standard output, standard error.
pub(crate) fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = command().args(args).output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}
