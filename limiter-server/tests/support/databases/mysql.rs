//! MariaDB and MySQL servers that a test starts and owns.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use limiter_testing::tls::Identity;

use crate::support::databases::{
    Database, DatabaseServer, Unprivileged, execute_once, free_port, is_root, unprivileged,
};
use crate::support::server::{Directory, wait_until};

/// The variable of the environment that names the program of MySQL.
const MYSQLD: &str = "MYSQLD";

/// Installations at the same time failed on a machine under load.
static INSTALLATION: Mutex<()> = Mutex::new(());

/// A product that is reached by URLs of MySQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    MariaDb,
    MySql,
}

/// A server with a unix socket and, if selected, a TCP port.
#[derive(Debug)]
pub(crate) struct MySqlServer {
    product: Product,
    server: DatabaseServer,
}

impl Database {
    pub(crate) fn mariadb() -> Self {
        Self::MySql(MySqlServer::start(Product::MariaDb))
    }

    pub(crate) fn mysql() -> Self {
        Self::MySql(MySqlServer::start(Product::MySql))
    }
}

impl Product {
    /// The user and the password of URLs.
    pub(crate) fn login(self) -> &'static str {
        match self {
            Self::MariaDb => "root",
            Self::MySql => "root:secret",
        }
    }

    /// The collation that compares all bytes.
    pub(crate) fn collation(self) -> &'static str {
        match self {
            Self::MariaDb => "utf8mb4_nopad_bin",
            Self::MySql => "utf8mb4_0900_bin",
        }
    }

    /// The user of the process. MySQL was unpacked where other users may have no access.
    fn user(self) -> Unprivileged {
        match self {
            Self::MariaDb => unprivileged("mysql"),
            Self::MySql => Unprivileged(None),
        }
    }

    fn program(self) -> Command {
        let mut command = match self {
            Self::MariaDb => Command::new("/usr/sbin/mariadbd"),
            Self::MySql => Command::new(mysqld()),
        };
        command.arg("--no-defaults");
        if self == Self::MySql && is_root() {
            command.arg("--user=root");
        }
        command
    }

    /// The command that creates the files of a server.
    fn installation(self) -> Command {
        match self {
            Self::MariaDb => {
                let mut command = Command::new("mariadb-install-db");
                command.args([
                    "--no-defaults",
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                ]);
                command
            }
            Self::MySql => {
                let mut command = self.program();
                command.arg("--initialize-insecure");
                command
            }
        }
    }
}

fn mysqld() -> std::ffi::OsString {
    let named = std::env::var_os(MYSQLD).filter(|named| !named.is_empty());
    named.unwrap_or_else(|| {
        panic!("set {MYSQLD} to the program of MySQL 8 or later, as `cargo xtask server --all` does")
    })
}

impl MySqlServer {
    /// Starts a server on a unix socket.
    pub(crate) fn start(product: Product) -> Self {
        Self::start_with(product, &["--skip-networking"], 0, |_| {})
    }

    /// Starts a server that has a TCP port as well, for connections with TLS and without.
    pub(crate) fn with_port(product: Product) -> Self {
        let port = free_port();
        let args = ["--bind-address=127.0.0.1", &format!("--port={port}")];
        Self::start_with(product, &args, port, |_| {})
    }

    /// Starts a server whose TCP port accepts connections with TLS only, and has this certificate.
    pub(crate) fn with_tls(product: Product, identity: &Identity) -> Self {
        let port = free_port();
        let args = [
            "--bind-address=127.0.0.1",
            &format!("--port={port}"),
            "--require-secure-transport=ON",
            "--ssl-cert=certificate.pem",
            "--ssl-key=key.pem",
        ];
        let files = [
            ("certificate.pem", &identity.certificate),
            ("key.pem", &identity.key),
        ];
        Self::start_with(product, &args, port, |data| {
            for (name, text) in files {
                let path = data.join(name);
                std::fs::write(&path, text).expect("writable");
                product.user().own(&path);
            }
        })
    }

    fn start_with(product: Product, args: &[&str], port: u16, prepare: impl FnOnce(&Path)) -> Self {
        let (directory, user) = (Directory::new(), product.user());
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("a directory");
        user.own(directory.path());
        user.own(&data);
        let log = || std::fs::File::create(directory.path().join("log")).expect("a log file");
        let data_argument = format!("--datadir={}", data.display());
        let installation = INSTALLATION.lock().unwrap_or_else(PoisonError::into_inner);
        let mut install = product.installation();
        user.run(install.arg(&data_argument).stdout(log()).stderr(log()));
        drop(installation);
        prepare(&data);
        let socket = directory.path().join("socket");
        let mut serve = product.program();
        serve
            .args(["--innodb-flush-log-at-trx-commit=0", &data_argument])
            .arg(format!("--socket={}", socket.display()))
            .args(args);
        if product == Product::MySql {
            let password = "ALTER USER root@localhost IDENTIFIED BY 'secret';\n";
            let statements = directory.write("init.sql", password);
            serve
                .args(["--mysqlx=OFF", "--sync-binlog=0", "--secure-file-priv=NULL"])
                .arg(format!("--init-file={}", statements.display()));
        }
        let child = user.spawn(serve.stdout(Stdio::null()).stderr(log()));
        let server = DatabaseServer {
            child,
            port,
            directory,
            paused: Vec::new(),
        };
        wait_until(
            || UnixStream::connect(&socket).is_ok(),
            || {
                let log = std::fs::read_to_string(server.directory.path().join("log"));
                format!("{product:?} does not start\n{}", log.unwrap_or_default())
            },
        );
        Self { product, server }
    }

    pub(crate) fn product(&self) -> Product {
        self.product
    }

    /// The URL of a database, over the unix socket.
    pub(crate) fn url(&self, name: &str) -> String {
        let tls = match self.product {
            Product::MariaDb => "",
            Product::MySql => "&ssl-mode=REQUIRED",
        };
        self.url_on_socket(self.product.login(), name) + tls
    }

    /// The URL of a database over the unix socket, for this user and password.
    pub(crate) fn url_on_socket(&self, login: &str, name: &str) -> String {
        let socket = self.server.directory.path().join("socket");
        format!("mysql://{login}@localhost/{name}?socket={}", socket.display())
    }

    /// The URL of a database over TCP, for this user and password.
    pub(crate) fn url_on_port(&self, login: &str, name: &str) -> String {
        format!("mysql://{login}@localhost:{}/{name}", self.server.port)
    }

    /// The URL of an empty database.
    pub(crate) fn create(&self, name: &str) -> String {
        execute_once(&self.server, || async {
            let options = self.url("mysql").parse().expect("a URL");
            let mut connection = <sqlx::MySqlConnection as sqlx::Connection>::connect_with(&options).await?;
            let sql = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
            sqlx::Executor::execute(&mut connection, sql).await.map(|_| ())
        });
        self.url(name)
    }
}
