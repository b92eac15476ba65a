//! The requirements of the store on MariaDB.

mod support;

use support::databases::Database;
use support::store_suite;

#[test]
fn mariadb_meets_the_requirements() {
    store_suite::run(&Database::mariadb());
}
