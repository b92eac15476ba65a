//! Database servers that a test starts and owns.

pub(crate) mod mysql;

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::server::{Directory, wait_until};
use mysql::MySqlServer;

/// A database server, or the directory of SQLite files.
#[derive(Debug)]
pub(crate) enum Database {
    Sqlite(Directory),
    Postgres(DatabaseServer),
    /// MariaDB or MySQL.
    MySql(MySqlServer),
}

/// A server process that is killed with its handle.
#[derive(Debug)]
pub(crate) struct DatabaseServer {
    child: Child,
    port: u16,
    directory: Directory,
    /// The stopped processes.
    paused: Vec<u32>,
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        // A stopped process of a connection does not notice the end of its server.
        self.resume();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Database {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(Directory::new())
    }

    pub(crate) fn postgres() -> Self {
        let programs = newest_postgres();
        let (directory, user) = (Directory::new(), unprivileged("postgres"));
        let data = directory.path().join("data");
        user.own(directory.path());
        let log = || std::fs::File::create(directory.path().join("log")).expect("a log file");
        let mut init = Command::new(programs.join("initdb"));
        init.args([
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--no-sync",
            "--pgdata",
        ]);
        user.run(init.arg(&data).stdout(log()).stderr(log()));
        let port = free_port();
        let child = serve_postgres(directory.path(), port);
        let server = DatabaseServer {
            child,
            port,
            directory,
            paused: Vec::new(),
        };
        Self::Postgres(server)
    }

    /// Stops PostgreSQL until [`start`](Self::start).
    pub(crate) fn stop(&mut self) {
        let Self::Postgres(server) = self else {
            panic!("only PostgreSQL can be stopped");
        };
        let interrupt = Command::new("kill")
            .args(["-INT", &server.child.id().to_string()])
            .status();
        assert!(interrupt.expect("kill").success());
        server.child.wait().expect("the end");
    }

    /// Starts PostgreSQL again, with its data.
    pub(crate) fn start(&mut self) {
        let Self::Postgres(server) = self else {
            panic!("only PostgreSQL can be started");
        };
        server.child = serve_postgres(server.directory.path(), server.port);
    }

    /// Stops all processes of PostgreSQL by a signal: its connections stay open without answers.
    pub(crate) fn pause(&mut self) {
        let Self::Postgres(server) = self else {
            panic!("only PostgreSQL can be paused");
        };
        server.pause();
    }

    /// Continues the processes that [`pause`](Self::pause) has stopped.
    pub(crate) fn resume(&mut self) {
        let Self::Postgres(server) = self else {
            panic!("only PostgreSQL can be resumed");
        };
        server.resume();
    }

    /// The URL of an empty database.
    pub(crate) fn create(&self, name: &str) -> String {
        match self {
            Self::Sqlite(directory) => format!("sqlite:{}", directory.path().join(name).display()),
            Self::Postgres(server) => {
                let url = |name: &str| format!("postgres://postgres@127.0.0.1:{}/{name}", server.port);
                execute_once(server, || async {
                    let options = url("postgres").parse().expect("a URL");
                    let mut connection =
                        <sqlx::PgConnection as sqlx::Connection>::connect_with(&options).await?;
                    let sql = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
                    sqlx::Executor::execute(&mut connection, sql).await.map(|_| ())
                });
                url(name)
            }
            Self::MySql(server) => server.create(name),
        }
    }
}

impl DatabaseServer {
    fn pause(&mut self) {
        let id = self.child.id();
        // The server itself first, so that it starts no further process.
        assert!(signal("STOP", id), "the server runs");
        let children = children_of(id);
        // A process of a connection may have ended meanwhile.
        self.paused = children
            .into_iter()
            .filter(|child| signal("STOP", *child))
            .collect();
        self.paused.push(id);
    }

    fn resume(&mut self) {
        for id in self.paused.drain(..) {
            signal("CONT", id);
        }
    }
}

/// Sends a signal. Returns false if the process does not exist.
fn signal(name: &str, process: u32) -> bool {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &process.to_string()])
        .stderr(Stdio::null())
        .status();
    sent.expect("kill").success()
}

/// The identities of the child processes.
fn children_of(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("processes");
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |id: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        line.is_some_and(|of| of.trim() == parent.to_string())
    };
    ids.filter(is_child).collect()
}

/// Runs a future to its end.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Calls a closure with a connection to the database of a URL, and returns its result.
macro_rules! with_connection {
    ($url:expr, $connection:ident => $body:expr) => {{
        block_on(async {
            let url: &str = $url;
            match url.split_once(':').expect("a scheme").0 {
                "sqlite" => {
                    let mut $connection = <sqlx::SqliteConnection as sqlx::Connection>::connect(url)
                        .await
                        .expect("a connection");
                    $body
                }
                "postgres" => {
                    let mut $connection = <sqlx::PgConnection as sqlx::Connection>::connect(url)
                        .await
                        .expect("a connection");
                    $body
                }
                _ => {
                    let mut $connection = <sqlx::MySqlConnection as sqlx::Connection>::connect(url)
                        .await
                        .expect("a connection");
                    $body
                }
            }
        })
    }};
}

/// Runs statements on the database of a URL. SQLite creates no file.
pub(crate) fn execute(url: &str, statements: &[String]) {
    with_connection!(url, connection => {
        for statement in statements {
            let sql = sqlx::AssertSqlSafe(statement.clone());
            let result = sqlx::Executor::execute(&mut connection, sql).await;
            result.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
    });
}

/// The texts in the first column of a query.
pub(crate) fn texts(url: &str, sql: &str) -> Vec<String> {
    with_connection!(url, connection => {
        let query = sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(sql.to_owned()));
        query.fetch_all(&mut connection).await.expect("a result")
    })
}

fn serve_postgres(directory: &Path, port: u16) -> Child {
    let log = std::fs::File::create(directory.join("log")).expect("a log file");
    let mut serve = Command::new(newest_postgres().join("postgres"));
    let port_text = port.to_string();
    serve
        .args(["-F", "-c", "listen_addresses=127.0.0.1", "-p", &port_text, "-k"])
        .arg(directory)
        .arg("-D")
        .arg(directory.join("data"));
    let child = unprivileged("postgres").spawn(serve.stdout(Stdio::null()).stderr(log));
    wait_until(
        || TcpStream::connect(("127.0.0.1", port)).is_ok(),
        || "PostgreSQL does not start".to_owned(),
    );
    child
}

/// Runs a statement on a new connection, again while the server starts.
fn execute_once<F: Future<Output = Result<(), sqlx::Error>>>(
    server: &DatabaseServer,
    statement: impl Fn() -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let last = std::cell::RefCell::default();
    wait_until(
        || {
            let result = runtime.block_on(statement());
            *last.borrow_mut() = format!("{result:?}");
            result.is_ok()
        },
        || {
            let log = std::fs::read_to_string(server.directory.path().join("log"));
            format!("{}\n{}", last.borrow(), log.unwrap_or_default())
        },
    );
}

/// A user without privileges, if the test runs as root: the servers refuse to run as root.
#[derive(Clone, Copy, Debug)]
struct Unprivileged(Option<(u32, u32)>);

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn unprivileged(name: &str) -> Unprivileged {
    if !is_root() {
        return Unprivileged(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("users");
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let ids = fields
        .filter(|fields| fields.first() == Some(&name))
        .find_map(|fields| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)));
    Unprivileged(Some(ids.expect("the user of the database package")))
}

impl Unprivileged {
    fn own(self, path: &Path) {
        if let Some((uid, gid)) = self.0 {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("owned");
        }
    }

    fn command(self, command: &mut Command) -> &mut Command {
        if let Some((uid, gid)) = self.0 {
            command.uid(uid).gid(gid);
        }
        command.stdin(Stdio::null())
    }

    fn run(self, command: &mut Command) {
        assert!(self.command(command).status().expect("it starts").success());
    }

    fn spawn(self, command: &mut Command) -> Child {
        self.command(command).spawn().expect("the database server starts")
    }
}

fn newest_postgres() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("install the package postgresql");
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.expect("readable").path()).collect();
    versions.sort();
    versions.pop().expect("a version").join("bin")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
