//! The requirements of the store on MySQL, over a unix socket with TLS and over TCP.
//!
//! MySQL keeps a hash of a password in memory after a login with TLS, and accepts later logins of
//! the user by that hash. The tests of logins therefore create users without an earlier login.
#![allow(clippy::expect_used, reason = "a test may panic")]

mod support;

use limiter_server::store::Store;
use support::databases::mysql::{MySqlServer, Product::MySql};
use support::databases::{self, Database, block_on};
use support::mysql_suite::{self, connect, is_temporary, run, save};
use support::store_suite;

#[test]
fn mysql_meets_the_requirements() {
    store_suite::run(&Database::mysql());
}

#[test]
fn connection_with_tls_verifies_the_server() {
    mysql_suite::connection_with_tls_verifies_the_server(MySql);
}

#[test]
fn migrations_wait_for_the_lock_of_another_node() {
    mysql_suite::migrations_wait_for_the_lock_of_another_node(MySql);
}

#[test]
fn save_that_waits_for_a_lock_fails_within_the_timeout() {
    mysql_suite::save_that_waits_for_a_lock_fails_within_the_timeout(MySql);
}

#[test]
fn timeout_of_the_database_is_temporary() {
    mysql_suite::timeout_of_the_database_is_temporary(MySql);
}

#[test]
fn save_in_a_deadlock_can_be_repeated() {
    mysql_suite::save_in_a_deadlock_can_be_repeated(MySql);
}

/// A login without TLS fails with the setting that is missing, over TCP and over a unix socket. The
/// user has the privileges of one database.
#[test]
fn login_needs_tls() {
    let server = MySqlServer::with_port(MySql);
    let root = server.create("limited");
    databases::execute(
        &root,
        &[
            "CREATE USER ann@localhost IDENTIFIED BY 'word of ann'".to_owned(),
            "GRANT ALL ON limited.* TO ann@localhost".to_owned(),
        ],
    );
    let login = "ann:word%20of%20ann";
    let on_port = server.url_on_port(login, "limited") + "?";
    let on_socket = server.url_on_socket(login, "limited") + "&";
    block_on(async {
        for url in [&on_port, &on_socket] {
            let refused = Store::open(&format!("{url}ssl-mode=DISABLED")).await;
            let error = refused.expect_err("no TLS").to_string();
            assert!(error.contains("needs TLS, also over a unix socket"), "{error}");
            assert!(error.contains("?ssl-mode=REQUIRED"), "{error}");
            assert!(!error.contains("word of ann"), "{error}");
        }
        let mut administrator = connect(&root).await;
        for url in [&on_port, &on_socket] {
            // The driver uses TLS without the setting as well, if the server has it.
            for mode in ["ssl-mode=REQUIRED", ""] {
                run(&mut administrator, &["FLUSH PRIVILEGES"]).await;
                let store = Store::open(&format!("{url}{mode}")).await.expect("a store");
                store.ping().await.expect("an answer");
                store.close().await;
            }
        }
    });
}

/// Servers in a cluster accept tables with a primary key only.
#[test]
fn every_table_has_a_primary_key() {
    let server = MySqlServer::start(MySql);
    let url = server.create("clustered");
    block_on(async {
        let mut administrator = connect(&url).await;
        run(&mut administrator, &["SET GLOBAL sql_require_primary_key = ON"]).await;
        Store::open(&url).await.expect("a store").close().await;
    });
}

/// A node that keeps its connections to a former primary server cannot write.
#[test]
fn read_only_server_is_unavailable() {
    let server = MySqlServer::start(MySql);
    let url = server.create("replica");
    block_on(async {
        let store = Store::open(&url).await.expect("a store");
        save(&store, 0).await.expect("saved");
        let mut administrator = connect(&url).await;
        run(&mut administrator, &["SET GLOBAL super_read_only = ON"]).await;
        let refused = save(&store, 1).await;
        assert!(is_temporary(&refused), "{refused:?}");
        run(&mut administrator, &["SET GLOBAL super_read_only = OFF"]).await;
        assert_eq!(save(&store, 1).await.expect("saved"), 2);
    });
}
