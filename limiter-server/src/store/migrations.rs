//! Creates and updates the tables.
//!
//! Each migration is repeatable, since MySQL commits after each statement, and only adds: a program
//! of the previous version runs on the new schema. One source serves all databases; the types are
//! inserted per database. Tests: below.

use std::time::{Duration, Instant};

use crate::store::StoreError;
use crate::store::sql::{Dialect, SqlPool, SqlTransaction, TABLE_TIMEOUT, binds};

/// The migrations, in order. The position is the version.
const MIGRATIONS: [&str; 4] = [
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
];
/// The key of the lock of PostgreSQL that serializes the migrations of several nodes.
const LOCK: i64 = 0x6c69_6d69_7465_7201;

/// The time for which MySQL waits for the lock of its migrations.
const LOCK_SECONDS: i64 = 10;
/// The time for which a node waits for another one that creates the file of SQLite, and the time
/// between two attempts.
const FILE_TIMEOUT: Duration = Duration::from_secs(5);
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(10);

/// The newest version that this program knows.
pub(super) const NEWEST: i64 = {
    // The list is short.
    #[expect(clippy::cast_possible_wrap, reason = "the list is short")]
    let newest = MIGRATIONS.len() as i64;
    newest
};

/// Updates the schema. Returns its version, which is higher than [`NEWEST`] if a newer program has
/// updated it.
pub(super) async fn run(pool: &SqlPool) -> Result<i64, StoreError> {
    let started = Instant::now();
    loop {
        match run_once(pool).await {
            // SQLite does not wait for another node that switches a new file to WAL.
            Err(error) if error.is_busy_file() && started.elapsed() < FILE_TIMEOUT => {
                tokio::time::sleep(ATTEMPT_INTERVAL).await;
            }
            result => return result,
        }
    }
}

async fn run_once(pool: &SqlPool) -> Result<i64, StoreError> {
    let mut transaction = pool.begin().await?;
    transaction.set_timeout(TABLE_TIMEOUT);
    match transaction.dialect() {
        // A write transaction locks the database.
        Dialect::Sqlite => {}
        Dialect::Postgres => {
            let sql = "SELECT CAST(pg_advisory_xact_lock(?) AS TEXT)";
            transaction.rows(sql, binds![LOCK]).await?;
        }
        Dialect::MySql => {
            let sql = "SELECT CAST(GET_LOCK('limiter-server', ?) AS SIGNED)";
            let locked = transaction.row(sql, binds![LOCK_SECONDS]).await?;
            // 0 after the timeout, NULL after an error.
            if locked.map_or(Ok(0), |row| row.int(0))? != 1 {
                return Err(StoreError::Locked);
            }
        }
    }
    let found = migrate(&mut transaction).await;
    if transaction.dialect() == Dialect::MySql {
        let sql = "SELECT RELEASE_LOCK('limiter-server')";
        transaction.rows(sql, Vec::new()).await?;
    }
    let found = found?;
    transaction.commit().await?;
    Ok(found)
}

async fn migrate(transaction: &mut SqlTransaction) -> Result<i64, StoreError> {
    let dialect = transaction.dialect();
    // MySQL can be configured to reject tables without a primary key.
    let create = "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL, PRIMARY KEY (version))";
    transaction.execute(create, Vec::new()).await?;
    let newest = transaction.row("SELECT MAX(version) FROM schema_version", Vec::new());
    let found = newest.await?.map_or(Ok(0), |row| row.int(0))?;
    let collation = match dialect {
        Dialect::MySql => collation(transaction).await?,
        Dialect::Sqlite | Dialect::Postgres => "",
    };
    for (version, migration) in (1..).zip(MIGRATIONS) {
        if version <= found {
            continue;
        }
        for statement in statements(migration, dialect, collation) {
            transaction.execute(&statement, Vec::new()).await?;
        }
        let insert = "INSERT INTO schema_version (version) VALUES (?)";
        transaction.execute(insert, binds![version]).await?;
    }
    Ok(found.max(NEWEST))
}

/// Returns the collation that compares all bytes. `utf8mb4_bin` ignores spaces at the end.
async fn collation(transaction: &mut SqlTransaction) -> Result<&'static str, StoreError> {
    let version = transaction.row("SELECT VERSION()", Vec::new()).await?;
    let version = version.map_or(Ok(String::new()), |row| row.text(0))?;
    Ok(collation_of(&version))
}

fn collation_of(version: &str) -> &'static str {
    match version.contains("MariaDB") {
        true => "utf8mb4_nopad_bin",
        false => "utf8mb4_0900_bin",
    }
}

/// Returns the statements of a migration with the types of a database.
fn statements(migration: &str, dialect: Dialect, collation: &str) -> Vec<String> {
    let (id, name, short, text) = match dialect {
        Dialect::Sqlite => ("INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT", "TEXT", "TEXT"),
        Dialect::Postgres => ("BIGSERIAL PRIMARY KEY", "TEXT", "TEXT", "TEXT"),
        Dialect::MySql => (
            "BIGINT AUTO_INCREMENT PRIMARY KEY",
            "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE $COLLATION",
            "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE $COLLATION",
            "MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE $COLLATION",
        ),
    };
    let without_comments: Vec<&str> = migration.lines().filter(|line| !line.starts_with("--")).collect();
    let statements = without_comments.join("\n");
    let statements = statements
        .split(';')
        .map(str::trim)
        .filter(|text| !text.is_empty());
    statements
        .map(|statement| {
            let statement = statement.replace("$ID", id).replace("$NAME", name);
            let statement = statement.replace("$SHORT", short).replace("$TEXT", text);
            statement.replace("$COLLATION", collation)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collation_of_the_product_compares_all_bytes() {
        assert_eq!(collation_of("10.11.6-MariaDB-0+deb12u1"), "utf8mb4_nopad_bin");
        assert_eq!(collation_of("5.5.5-10.6.12-MariaDB"), "utf8mb4_nopad_bin");
        assert_eq!(collation_of("8.0.36"), "utf8mb4_0900_bin");
        assert_eq!(collation_of("8.4.0-commercial"), "utf8mb4_0900_bin");
    }

    #[test]
    fn statements_have_the_types_of_the_database() {
        for migration in MIGRATIONS {
            for dialect in [Dialect::Sqlite, Dialect::Postgres, Dialect::MySql] {
                let statements = statements(migration, dialect, "utf8mb4_0900_bin");
                assert!(!statements.is_empty());
                for statement in statements {
                    assert!(!statement.contains('$'), "{statement}");
                    let has_text = statement.contains("VARCHAR") || statement.contains("MEDIUMTEXT");
                    let has_collation = statement.contains("COLLATE utf8mb4_0900_bin");
                    assert_eq!(has_text, has_collation, "{statement}");
                    assert_eq!(has_text, dialect == Dialect::MySql, "{statement}");
                }
            }
        }
    }
}
