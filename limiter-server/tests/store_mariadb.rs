//! The requirements of the store on MariaDB, over a unix socket and over TLS.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::time::{Duration, Instant};

use limiter_server::store::{Store, StoreError};
use limiter_testing::tls::Authority;
use sqlx::{Connection as _, Executor as _, Row as _};
use support::databases::{Database, block_on};
use support::server::Directory;
use support::store_suite;

#[test]
fn mariadb_meets_the_requirements() {
    store_suite::run(&Database::mariadb());
}

/// The mode verifies the certificate, and a connection without TLS fails.
#[test]
fn connection_with_tls_verifies_the_server() {
    let (authority, directory) = (Authority::new(), Directory::new());
    let identity = authority.server(&["localhost"]);
    let (database, port) = Database::mariadb_with_tls(&identity.certificate, &identity.key);
    database.create("secure");
    let url = |mode: &str, authority: &Authority| {
        let file = directory.write("authority.pem", authority.certificate());
        let file = file.display().to_string();
        format!("mysql://root@localhost:{port}/secure?ssl-mode={mode}&ssl-ca={file}")
    };
    block_on(async {
        let verified = url("VERIFY_IDENTITY", &authority);
        let store = Store::open(&verified).await.unwrap();
        store.ping().await.unwrap();
        let mut connection = sqlx::MySqlConnection::connect(&verified).await.unwrap();
        let cipher = connection
            .fetch_one("SHOW STATUS LIKE 'Ssl_cipher'")
            .await
            .unwrap();
        assert!(!cipher.get::<String, _>(1).is_empty());
        let foreign = url("VERIFY_CA", &Authority::new());
        assert!(Store::open(&foreign).await.is_err(), "another authority");
        let plain = url("DISABLED", &authority);
        assert!(Store::open(&plain).await.is_err(), "without TLS");
    });
}

/// A node does not change the schema without the lock that another node holds.
#[test]
fn migrations_wait_for_the_lock_of_another_node() {
    let database = Database::mariadb();
    let url = database.create("locked");
    block_on(async {
        let mut other = sqlx::MySqlConnection::connect(&url).await.unwrap();
        other
            .execute("SELECT GET_LOCK('limiter-server', 0)")
            .await
            .unwrap();
        let error = Store::open(&url).await.unwrap_err();
        assert!(matches!(error, StoreError::Locked), "{error}");
        assert!(error.is_unavailable(), "the server tries again");
        let tables = other.fetch_all("SHOW TABLES").await.unwrap();
        assert_eq!(tables.len(), 0);

        let started = Instant::now();
        let (opened, ()) = tokio::join!(Store::open(&url), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            other
                .execute("SELECT RELEASE_LOCK('limiter-server')")
                .await
                .unwrap();
        });
        opened.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(500));
    });
}
