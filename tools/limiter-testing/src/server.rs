//! One server.

mod clock;
mod replication;

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use crate::resp::{self, BRIEFLY, PATIENTLY};
use crate::watchdog::{ServerCommand, Watchdog};
use crate::{RespValue, acl, binary, port, wait, watchdog};

const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(5);
const PORT_ATTEMPTS: usize = 20;

/// The log line of a server that listens, and of a sentinel.
const READY: [&str; 2] = ["Ready to accept connections", "Sentinel ID is"];

/// The builder's arguments follow these, and override them: no persistence, loopback only, and no
/// delay of the replication for further replicas.
const DEFAULTS: [&str; 12] = [
    "--bind",
    "127.0.0.1",
    "--save",
    "",
    "--appendonly",
    "no",
    "--protected-mode",
    "yes",
    "--daemonize",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];

/// A Redis server that lives as long as this handle, and never longer than the process.
///
/// All methods take `&self`, so that a test may pause or kill a server that others hold on to.
#[derive(Debug)]
pub struct RedisServer {
    watchdog: Watchdog,
    port: u16,
}

impl RedisServer {
    /// Starts a server with the default configuration, without persistence.
    ///
    /// # Panics
    /// If there is no server program, or if it does not start; the message contains the end of its
    /// log.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder of a server.
    #[must_use]
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// Returns the server shared by all tests of this process. A test uses its own keys, and
    /// neither stops nor configures it.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Returns the URL for clients, with the user that has [the least permissions](crate::acl).
    #[must_use]
    pub fn url(&self) -> String {
        self.url_as(acl::LOGIN)
    }

    /// Returns the URL for another user: `name:password`, or an empty text for the default user.
    #[must_use]
    pub fn url_as(&self, login: &str) -> String {
        let at = if login.is_empty() { "" } else { "@" };
        format!("redis://{login}{at}127.0.0.1:{}/", self.port)
    }

    /// Returns the port on 127.0.0.1; the same after a [`restart`](Self::restart).
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the server's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.watchdog.dir()
    }

    /// Returns the log of the server since its last start.
    #[must_use]
    pub fn log(&self) -> String {
        self.watchdog.log()
    }

    /// Sends one command over a fresh connection.
    ///
    /// # Panics
    /// If the server cannot be reached within ten seconds, or replies with an error.
    #[track_caller]
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> RespValue {
        match self.try_command(args) {
            Ok(RespValue::Error(message)) => panic!("`{}` failed: {message}", shown(args)),
            Ok(value) => value,
            Err(error) => panic!("`{}` failed on port {}: {error}", shown(args), self.port),
        }
    }

    /// Sends one command over a fresh connection; an error reply is a value here.
    ///
    /// # Errors
    /// If the server cannot be reached, or does not reply within ten seconds.
    pub fn try_command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<RespValue> {
        resp::call(self.port, args, PATIENTLY)
    }

    /// As [`try_command`](Self::try_command), with a timeout of one second.
    pub(crate) fn query(&self, args: &[&str]) -> io::Result<RespValue> {
        resp::call(self.port, args, BRIEFLY)
    }

    /// Suspends the process of the server: the kernel still accepts connections, but the server
    /// sends no replies.
    ///
    /// # Panics
    /// If no server runs.
    #[track_caller]
    pub fn pause(&self) {
        let Some(pid) = self.execute(ServerCommand::Pause) else {
            panic!("there is no server to pause")
        };
        // The signal is delivered asynchronously; the server could reply to another command before.
        let stopped = wait::poll(STOP_LIMIT, || watchdog::state(pid).filter(|state| *state == 'T'));
        assert!(stopped.is_some(), "the server on port {} did not stop", self.port);
    }

    /// Resumes a paused server, which then replies to the commands received during the pause.
    ///
    /// # Panics
    /// If no server runs.
    #[track_caller]
    pub fn resume(&self) {
        assert!(
            self.execute(ServerCommand::Resume).is_some(),
            "there is no server to resume"
        );
    }

    /// Kills the server at once, as a crash would, paused or not; connections to it are then
    /// refused.
    ///
    /// The directory is kept for a [`restart`](Self::restart).
    #[track_caller]
    pub fn kill(&self) {
        self.execute(ServerCommand::Kill);
    }

    /// Starts the server again, on the same port and in the same directory, killing it first if it
    /// runs.
    ///
    /// The data is lost unless the server was built with persistence, such as `.arg("appendonly",
    /// "yes")`.
    ///
    /// # Panics
    /// If the server does not start.
    #[track_caller]
    pub fn restart(&self) {
        self.execute(ServerCommand::Kill);
        // Another process that received the port by chance is likely to release it soon.
        let up = wait::poll(STOP_LIMIT, || match launch(&self.watchdog, self.port) {
            Err(Failure::PortTaken) => None,
            other => Some(other),
        });
        match up {
            Some(Ok(())) => {}
            Some(Err(Failure::Other(message))) => panic!("{message}"),
            Some(Err(Failure::PortTaken)) | None => panic!("port {} is used by another process", self.port),
        }
    }

    /// Ends the server and removes its directory; the same as dropping the handle.
    pub fn stop(self) {
        drop(self);
    }

    /// Starts a program on a free port, in a directory that was prepared first.
    pub(crate) fn spawn<A: AsRef<OsStr>>(program: &Path, args: &[A], prepare: impl FnOnce(&Path)) -> Self {
        let watchdog = Watchdog::spawn(program, args)
            .unwrap_or_else(|error| panic!("no shell to watch over {}: {error}", program.display()));
        prepare(watchdog.dir());
        for _ in 0..PORT_ATTEMPTS {
            let port = port::free();
            match launch(&watchdog, port) {
                Ok(()) => return Self { watchdog, port },
                // Free a moment ago, but another process was quicker.
                Err(Failure::PortTaken) => {}
                Err(Failure::Other(message)) => panic!("{message}"),
            }
        }
        panic!("{PORT_ATTEMPTS} consecutive ports were in use; redis-server could not start");
    }

    /// Returns the last lines that the server has logged.
    pub(crate) fn log_tail(&self) -> String {
        tail(&self.watchdog)
    }

    #[track_caller]
    fn execute(&self, command: ServerCommand) -> Option<u32> {
        match self.watchdog.execute(command) {
            Ok(pid) => pid,
            Err(error) => panic!(
                "the watchdog of the server on port {} is gone: {error}",
                self.port
            ),
        }
    }
}

/// Prepares a [`RedisServer`].
#[derive(Debug, Clone, Default)]
pub struct RedisServerBuilder {
    args: Vec<String>,
    follows: bool,
    movable_clock: bool,
}

impl RedisServerBuilder {
    /// Adds a line of configuration, such as `.arg("maxmemory", "1mb")`; none by default.
    ///
    /// It overrides the configuration of this crate, except for the port and the directory. The log
    /// has to stay on standard output and at level `notice` or below, because it shows when the
    /// server is ready.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([format!("--{name}"), value.to_owned()]);
        self
    }

    /// Starts the server and waits until it accepts connections.
    ///
    /// # Panics
    /// If there is no server program, or if it does not start; the message contains the end of its
    /// log.
    #[must_use]
    pub fn start(self) -> RedisServer {
        let program = binary::find().unwrap_or_else(|message| panic!("{message}"));
        let args: Vec<&str> = DEFAULTS
            .into_iter()
            .chain(acl::user())
            .chain(self.args.iter().map(String::as_str))
            .collect();
        let server = match self.movable_clock {
            true => clock::spawn(&program, &args),
            false => RedisServer::spawn(&program, &args, |_| {}),
        };
        if self.follows {
            server.wait_for_replication();
        }
        server
    }
}

enum Failure {
    PortTaken,
    Other(String),
}

/// Starts a server and waits until it listens.
///
/// Reads the server's log and does not probe the port, which another process's server may use.
fn launch(watchdog: &Watchdog, port: u16) -> Result<(), Failure> {
    let failed = |why: &str| Failure::Other(format!("redis-server {why}; its log ends:\n{}", tail(watchdog)));
    let Ok(Some(pid)) = watchdog.execute(ServerCommand::Start(port)) else {
        return Err(failed("was not started"));
    };
    wait::poll(START_LIMIT, || {
        // Checked first, so that the log of a dead server is complete.
        let alive = watchdog::is_alive(pid);
        let log = watchdog.log();
        match alive {
            true if READY.iter().any(|sign| log.contains(sign)) => Some(Ok(())),
            true => None,
            false if log.contains("Address already in use") => Some(Err(Failure::PortTaken)),
            false => Some(Err(failed("ended at once"))),
        }
    })
    .unwrap_or_else(|| Err(failed("did not become ready")))
}

fn tail(watchdog: &Watchdog) -> String {
    let log = watchdog.log();
    let lines: Vec<&str> = log.lines().collect();
    let last = lines.get(lines.len().saturating_sub(20)..).unwrap_or_default();
    last.join("\n")
}

fn shown<A: AsRef<[u8]>>(args: &[A]) -> String {
    let words: Vec<_> = args
        .iter()
        .take(6)
        .map(|arg| arg.as_ref().escape_ascii().to_string())
        .collect();
    words.join(" ")
}
