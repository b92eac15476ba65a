//! The tables: created by several nodes at once, and updated from each earlier version.
//!
//! `schemas/N.sql` are the statements of version N as they were released. A migration that was
//! released must not change, because databases that have run it do not run it again.

use limiter_server::store::{DocumentKind, NewStoredToken, Store};

use crate::support::databases::{self, Database};

use super::{account, author, save};

const NODES: usize = 6;
/// The statements of the earlier versions.
const EARLIER: [&str; 3] = [
    include_str!("schemas/1.sql"),
    include_str!("schemas/2.sql"),
    include_str!("schemas/3.sql"),
];
/// The statements of the newest version.
const NEWEST: &str = include_str!("../../../src/store/migrations/0004.sql");
/// Rows of a database of version 1.
const ROWS: [&str; 6] = [
    "INSERT INTO setting (name, content) VALUES ('database', 'the first one')",
    "INSERT INTO document VALUES ('prod', 'policy', 'search', 2, 1, 'pending', 0, 'ui', NULL, 'body', NULL, \
     'ann', 1, 'bob', 2)",
    "INSERT INTO revision VALUES ('prod', 'policy', 'search', 2, 0, 'pending', 'api', 'bob', NULL, 'body', 2)",
    "INSERT INTO outbox (namespace, kind, name, revision, created_at) VALUES ('prod', 'policy', 'search', 2, 2)",
    "INSERT INTO account VALUES ('root', 'hash', 1, 0, 'setup', 1)",
    "INSERT INTO token VALUES ('t', 'hash', 'ci', 'prod', 'check:*', 'root', 1, 100, NULL, 0, NULL)",
];

/// The tables with their columns.
fn columns(url: &str) -> Vec<String> {
    let sql = match url.split(':').next() {
        Some("sqlite") => {
            "SELECT t.name || '.' || c.name || ' ' || c.type FROM sqlite_master t JOIN pragma_table_info(t.name) c \
             WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%'"
        }
        Some("postgres") => {
            "SELECT CAST(table_name || '.' || column_name || ' ' || data_type AS TEXT) \
             FROM information_schema.columns WHERE table_schema = 'public'"
        }
        _ => {
            "SELECT CAST(CONCAT(table_name, '.', column_name, ' ', column_type, ' ', \
             COALESCE(collation_name, '')) AS CHAR) \
             FROM information_schema.columns WHERE table_schema = DATABASE()"
        }
    };
    let mut columns = databases::texts(url, sql);
    columns.sort();
    columns
}

fn versions(url: &str) -> Vec<String> {
    databases::texts(
        url,
        "SELECT CAST(version AS CHAR(1)) FROM schema_version ORDER BY version",
    )
}

/// The statements of a migration with the types of a database.
fn statements(database: &Database, migration: &str) -> Vec<String> {
    let (id, [name, short, text]) = match database {
        Database::Sqlite(_) => (
            "INTEGER PRIMARY KEY AUTOINCREMENT",
            [(); 3].map(|()| "TEXT".to_owned()),
        ),
        Database::Postgres(_) => ("BIGSERIAL PRIMARY KEY", [(); 3].map(|()| "TEXT".to_owned())),
        Database::MySql(server) => {
            let collation = server.product().collation();
            (
                "BIGINT AUTO_INCREMENT PRIMARY KEY",
                ["VARCHAR(255)", "VARCHAR(64)", "MEDIUMTEXT"]
                    .map(|of| format!("{of} CHARACTER SET utf8mb4 COLLATE {collation}")),
            )
        }
    };
    let lines = migration.lines().filter(|line| !line.starts_with("--"));
    let text_of = lines.collect::<Vec<_>>().join("\n");
    let typed = text_of
        .replace("$ID", id)
        .replace("$NAME", &name)
        .replace("$SHORT", &short)
        .replace("$TEXT", &text);
    let statements = typed.split(';').map(str::trim).filter(|text| !text.is_empty());
    statements.map(str::to_owned).collect()
}

/// Nodes that start together on an empty database agree on its schema and identity.
pub(super) fn nodes_create_the_tables_together(database: &Database) {
    let url = database.create("together");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let stores = runtime.expect("a runtime").block_on(async {
        let mut nodes = tokio::task::JoinSet::new();
        for _ in 0..NODES {
            let url = url.clone();
            nodes.spawn(async move { Store::open(&url).await });
        }
        nodes.join_all().await
    });
    let ids = stores
        .into_iter()
        .map(|store| store.expect("a store").id().to_owned());
    let mut ids: Vec<String> = ids.collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let versions = versions(&url);
    assert_eq!(
        versions.len(),
        EARLIER.len() + 1,
        "each version once: {versions:?}"
    );
}

/// A database of each earlier version has the tables of a new one after a start, and its rows.
pub(super) fn earlier_schemas_are_updated(database: &Database) {
    let new = database.create("new_schema");
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime")
    };
    runtime().block_on(async { Store::open(&new).await.expect("a store").close().await });
    let expected = (columns(&new), versions(&new));
    for version in 1..=EARLIER.len() {
        let url = database.create(&format!("schema_{version}"));
        if let Database::Sqlite(_) = database {
            // The connection of the test creates no file.
            std::fs::write(url.trim_start_matches("sqlite:"), "").expect("a file");
        }
        let create = "CREATE TABLE schema_version (version BIGINT NOT NULL)".to_owned();
        databases::execute(&url, &[create]);
        for (number, migration) in (1..).zip(EARLIER).take(version) {
            databases::execute(&url, &statements(database, migration));
            let insert = format!("INSERT INTO schema_version (version) VALUES ({number})");
            databases::execute(&url, &[insert]);
        }
        databases::execute(&url, &ROWS.map(str::to_owned));
        runtime().block_on(keeps_its_rows(&url));
        assert_eq!((columns(&url), versions(&url)), expected, "version {version}");
    }
}

/// A node is killed after some statements of a migration, before it records the version: the next
/// start completes the migration.
pub(super) fn interrupted_migration_is_completed(database: &Database) {
    let new = database.create("complete");
    databases::block_on(async { Store::open(&new).await.expect("a store").close().await });
    let expected = (columns(&new), versions(&new));
    let migrations: Vec<&str> = EARLIER.into_iter().chain([NEWEST]).collect();
    for (version, migration) in (1..).zip(&migrations) {
        for executed in 1..=statements(database, migration).len() {
            let url = database.create(&format!("interrupted_{version}_{executed}"));
            if let Database::Sqlite(_) = database {
                std::fs::write(url.trim_start_matches("sqlite:"), "").expect("a file");
            }
            let mut done = vec!["CREATE TABLE schema_version (version BIGINT NOT NULL)".to_owned()];
            for (earlier, text) in (1..version).zip(&migrations) {
                done.extend(statements(database, text));
                done.push(format!("INSERT INTO schema_version (version) VALUES ({earlier})"));
            }
            done.extend(statements(database, migration).into_iter().take(executed));
            databases::execute(&url, &done);
            databases::block_on(async { Store::open(&url).await.expect("a store").close().await });
            let found = (columns(&url), versions(&url));
            assert_eq!(found, expected, "version {version}, statement {executed}");
        }
    }
}

async fn keeps_its_rows(url: &str) {
    let store = Store::open(url).await.expect("a store");
    assert_eq!((store.id(), store.is_read_only()), ("the first one", false));
    let found = store.document("prod", DocumentKind::Policy, "search").await;
    let found = found.expect("readable").expect("a document");
    assert_eq!(
        (found.revision, found.published, found.updated_by.as_str()),
        (2, 1, "bob")
    );
    assert_eq!(store.publication("prod").await.expect("readable").pending, 1);
    let root = store
        .account("root")
        .await
        .expect("readable")
        .expect("an account");
    assert!(root.is_admin && root.password.as_deref() == Some("hash"));
    let token = store
        .token_by_hash("hash")
        .await
        .expect("readable")
        .expect("a token");
    assert!(token.is_valid_at(99));
    // The updated tables accept rows.
    store
        .save(&save("search", 2), &author("ann", 3))
        .await
        .expect("saved");
    store
        .add_account(&account("ann", false), "root", 3)
        .await
        .expect("added");
    let token = NewStoredToken {
        id: "u".to_owned(),
        hash: "another hash".to_owned(),
        label: "edge".to_owned(),
        namespace: "prod".to_owned(),
        scopes: "check:*".to_owned(),
        created_by: "root".to_owned(),
        issued_by: "root".to_owned(),
        created_at: 1,
        expires_at: 100,
    };
    store.add_token(&token, None).await.expect("added");
    store.close().await;
}
