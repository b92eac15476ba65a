//! A running `limiter-server demo`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use super::admin::{AdminClient, Credentials};
use super::http;
use super::server::{Directory, command, wait_until};

/// The demonstration on free ports. It ends with its handle.
#[derive(Debug)]
pub(crate) struct Demo {
    child: Child,
    pub(crate) admin: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) password: String,
    /// The temporary directory of the process.
    temporary: Directory,
}

impl Demo {
    pub(crate) fn start() -> Self {
        let temporary = Directory::new();
        let log = std::fs::File::create(temporary.path().join("log")).expect("a log file");
        let mut child = command()
            .args([
                "demo",
                "--admin",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--grpc",
                "127.0.0.1:0",
            ])
            .env("TMPDIR", temporary.path())
            // The demonstration does not read settings of real servers.
            .env("LIMITER_REDIS", "redis://127.0.0.1:1")
            .current_dir(temporary.path())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the demonstration starts");
        let output = child.stdout.take().expect("piped");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let mut value_of = |prefix: &str| {
            let line = lines.find_map(|line| line.strip_prefix(prefix).map(str::to_owned));
            let log = || std::fs::read_to_string(temporary.path().join("log")).unwrap_or_default();
            line.unwrap_or_else(|| panic!("no line `{prefix}`: {}", log()))
        };
        let http = value_of("http ").parse().expect("an address");
        let admin = value_of("admin ").parse().expect("an address");
        let password = value_of("Password of ");
        let (_, password) = password.rsplit_once(": ").expect("a password");
        let demo = Self {
            child,
            admin,
            http,
            password: password.to_owned(),
            temporary,
        };
        let is_ready = || http::get(admin, "/healthz", &[]).is_ok_and(|answer| answer.status == 200);
        wait_until(is_ready, || "the admin listener is not ready".to_owned());
        demo
    }

    /// Signs one of the users in.
    pub(crate) fn sign_in(&self, user: &str) -> AdminClient {
        AdminClient::new(self.admin, Credentials::None).sign_in_with(user, &self.password)
    }

    /// The URL of a page.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }

    /// Ends the demonstration. Returns the directory that it used.
    pub(crate) fn stop(mut self) -> PathBuf {
        let entries = std::fs::read_dir(self.temporary.path()).expect("a directory");
        let entries = entries.map(|entry| entry.expect("an entry").path());
        let used = entries
            .into_iter()
            .find(|path| path.is_dir())
            .expect("a directory of the demo");
        let id = self.child.id().to_string();
        let sent = std::process::Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.expect("kill").success());
        self.child.wait().expect("the end");
        used
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
