//! The requirements of the store on SQLite and PostgreSQL. `tests/store_mariadb.rs` runs them on
//! MariaDB.

mod support;

use support::databases::Database;
use support::store_suite;

#[test]
fn sqlite_meets_the_requirements() {
    store_suite::run(&Database::sqlite());
}

#[test]
fn postgres_meets_the_requirements() {
    store_suite::run(&Database::postgres());
}
