//! The requirements of the store on SQLite and PostgreSQL. `tests/store_mariadb.rs` and
//! `tests/store_mysql.rs` run them on MariaDB and MySQL.
#![allow(clippy::expect_used, reason = "a test may panic")]

mod support;

use limiter_server::store::Store;
use support::databases::Database;
use support::mysql_login::{serve_tcp, serve_unix};
use support::server::Directory;
use support::store_suite;

#[test]
fn sqlite_meets_the_requirements() {
    store_suite::run(&Database::sqlite());
}

#[test]
fn postgres_meets_the_requirements() {
    store_suite::run(&Database::postgres());
}

/// SQLite does not wait for a node that switches the new file to WAL, so nodes repeat the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_create_a_file_together_start() {
    let database = Database::sqlite();
    for round in 0..50 {
        let url = database.create(&format!("round_{round}"));
        let mut nodes = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let url = url.clone();
            nodes.spawn(async move { Store::open(&url).await.map(drop) });
        }
        for started in nodes.join_all().await {
            started.expect("a store");
        }
    }
}

/// A login without TLS, over the network and over a unix socket, fails with the setting that is
/// missing.
#[tokio::test]
async fn login_of_mysql_without_tls_names_the_missing_setting() {
    let directory = Directory::new();
    let socket = directory.path().join("mysql.sock");
    serve_unix(&socket);
    for url in [
        format!("mysql://root:secret@{}/limiter", serve_tcp()),
        format!(
            "mysql://root:secret@localhost/limiter?socket={}",
            socket.display()
        ),
    ] {
        let error = Store::open(&url).await.expect_err("no RSA").to_string();
        assert!(error.contains("needs TLS, also over a unix socket"), "{error}");
        assert!(error.contains("?ssl-mode=REQUIRED"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
