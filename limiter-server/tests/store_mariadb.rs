//! The requirements of the store on MariaDB, over a unix socket and over TLS.

mod support;

use support::databases::Database;
use support::databases::mysql::Product::MariaDb;
use support::{mysql_suite, store_suite};

#[test]
fn mariadb_meets_the_requirements() {
    store_suite::run(&Database::mariadb());
}

#[test]
fn connection_with_tls_verifies_the_server() {
    mysql_suite::connection_with_tls_verifies_the_server(MariaDb);
}

#[test]
fn migrations_wait_for_the_lock_of_another_node() {
    mysql_suite::migrations_wait_for_the_lock_of_another_node(MariaDb);
}

#[test]
fn save_that_waits_for_a_lock_fails_within_the_timeout() {
    mysql_suite::save_that_waits_for_a_lock_fails_within_the_timeout(MariaDb);
}

#[test]
fn timeout_of_the_database_is_temporary() {
    mysql_suite::timeout_of_the_database_is_temporary(MariaDb);
}

#[test]
fn save_in_a_deadlock_can_be_repeated() {
    mysql_suite::save_in_a_deadlock_can_be_repeated(MariaDb);
}
