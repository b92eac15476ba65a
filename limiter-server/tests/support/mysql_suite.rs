//! Requirements of the store on MariaDB and MySQL, beside those of every database.

use std::time::{Duration, Instant};

use limiter_server::store::{DocumentKind, Store, StoreError};
use limiter_testing::tls::Authority;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};

use super::databases::block_on;
use super::databases::mysql::{MySqlServer, Product};
use super::saves::{author, policy_change};
use super::server::Directory;

/// The documented time until an answer, with a margin for a busy machine.
const WITHIN: Duration = Duration::from_secs(14);

pub(crate) async fn connect(url: &str) -> MySqlConnection {
    MySqlConnection::connect(url).await.expect("a connection")
}

pub(crate) async fn run(connection: &mut MySqlConnection, statements: &[&str]) -> Vec<MySqlRow> {
    let mut rows = Vec::new();
    for statement in statements {
        let result = connection.fetch_all(AssertSqlSafe((*statement).to_owned())).await;
        rows = result.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    rows
}

pub(crate) async fn save(store: &Store, expected: i64) -> Result<i64, StoreError> {
    let change = policy_change("search", expected, "body".to_owned());
    let saved = store.save(&change, &author("ann", 1)).await;
    saved.map(|saved| saved.revision)
}

/// Returns whether a request failed without changes, and may succeed later.
pub(crate) fn is_temporary<T: std::fmt::Debug>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(error) if error.is_unavailable() && !error.is_unconfirmed())
}

/// The mode verifies the certificate, and a connection without TLS fails.
pub(crate) fn connection_with_tls_verifies_the_server(product: Product) {
    let (authority, directory) = (Authority::new(), Directory::new());
    let server = MySqlServer::with_tls(product, &authority.server(&["localhost"]));
    server.create("secure");
    let url = |mode: &str, authority: &Authority| {
        let file = directory.write("authority.pem", authority.certificate());
        let base = server.url_on_port(product.login(), "secure");
        format!("{base}?ssl-mode={mode}&ssl-ca={}", file.display())
    };
    block_on(async {
        let verified = url("VERIFY_IDENTITY", &authority);
        let store = Store::open(&verified).await.expect("a store");
        store.ping().await.expect("an answer");
        let mut connection = connect(&verified).await;
        let rows = run(&mut connection, &["SHOW STATUS LIKE 'Ssl_cipher'"]).await;
        assert!(!rows[0].get::<String, _>(1).is_empty());
        let foreign = url("VERIFY_CA", &Authority::new());
        assert!(Store::open(&foreign).await.is_err(), "another authority");
        let plain = url("DISABLED", &authority);
        assert!(Store::open(&plain).await.is_err(), "without TLS");
    });
}

/// A node does not change the schema without the lock that another node holds.
pub(crate) fn migrations_wait_for_the_lock_of_another_node(product: Product) {
    let server = MySqlServer::start(product);
    let url = server.create("locked");
    block_on(async {
        let mut other = connect(&url).await;
        run(&mut other, &["SELECT GET_LOCK('limiter-server', 0)"]).await;
        let error = Store::open(&url).await.expect_err("locked");
        assert!(matches!(error, StoreError::Locked), "{error}");
        assert!(error.is_unavailable(), "the server tries again");
        let tables = run(&mut other, &["SHOW TABLES"]).await;
        assert_eq!(tables.len(), 0);

        let started = Instant::now();
        let (opened, ()) = tokio::join!(Store::open(&url), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            run(&mut other, &["SELECT RELEASE_LOCK('limiter-server')"]).await;
        });
        opened.expect("a store");
        assert!(started.elapsed() >= Duration::from_millis(500));
    });
}

/// The statement of a save waits for a lock that another transaction holds for longer than the
/// timeout of statements. Its changes are not made later.
pub(crate) fn save_that_waits_for_a_lock_fails_within_the_timeout(product: Product) {
    let server = MySqlServer::start(product);
    let url = server.create("waiting");
    block_on(async {
        let store = Store::open(&url).await.expect("a store");
        save(&store, 0).await.expect("saved");
        let mut other = connect(&url).await;
        run(&mut other, &["BEGIN", "SELECT * FROM document FOR UPDATE"]).await;
        let started = Instant::now();
        let refused = save(&store, 1).await;
        assert!(matches!(refused, Err(StoreError::Unavailable)), "{refused:?}");
        assert!(started.elapsed() < WITHIN, "{:?}", started.elapsed());
        run(&mut other, &["ROLLBACK"]).await;
        assert_eq!(save(&store, 1).await.expect("saved"), 2);
        let history = store.history("prod", DocumentKind::Policy, "search", i64::MAX, 10);
        assert_eq!(history.await.expect("a history").len(), 2);
    });
}

/// The database ends the wait of a statement: the row lock of another transaction, and the time of
/// a query. The operator has set these times.
pub(crate) fn timeout_of_the_database_is_temporary(product: Product) {
    let server = MySqlServer::start(product);
    let url = server.create("timeouts");
    let time_of_queries = match product {
        Product::MariaDb => "SET GLOBAL max_statement_time = 0.5",
        Product::MySql => "SET GLOBAL max_execution_time = 500",
    };
    block_on(async {
        let mut other = connect(&url).await;
        run(&mut other, &["SET GLOBAL innodb_lock_wait_timeout = 1"]).await;
        let store = Store::open(&url).await.expect("a store");
        save(&store, 0).await.expect("saved");
        run(&mut other, &["BEGIN", "SELECT * FROM document FOR UPDATE"]).await;
        let refused = save(&store, 1).await;
        assert!(is_temporary(&refused), "{refused:?}");
        assert!(
            !matches!(refused, Err(StoreError::Unavailable)),
            "the database answers"
        );
        run(&mut other, &["ROLLBACK", time_of_queries]).await;
        assert_eq!(save(&store, 1).await.expect("saved"), 2);

        let limited = Store::open(&url).await.expect("a store");
        run(&mut other, &["LOCK TABLES document WRITE"]).await;
        let refused = limited.document("prod", DocumentKind::Policy, "search").await;
        assert!(is_temporary(&refused), "{refused:?}");
        assert!(
            !matches!(refused, Err(StoreError::Unavailable)),
            "the database answers"
        );
        run(&mut other, &["UNLOCK TABLES"]).await;
        let found = limited.document("prod", DocumentKind::Policy, "search").await;
        assert!(found.expect("readable").is_some());
    });
}

/// The database rolls back the smaller one of two transactions that wait for each other.
pub(crate) fn save_in_a_deadlock_can_be_repeated(product: Product) {
    let server = MySqlServer::start(product);
    let url = server.create("deadlock");
    let many: Vec<String> = (0..200).map(|row| format!("('row {row}', '')")).collect();
    let many = format!("INSERT INTO setting (name, content) VALUES {}", many.join(", "));
    let same_revision = "INSERT INTO revision VALUES \
                         ('prod', 'policy', 'search', 2, 0, 'pending', 'api', 'bob', NULL, '', 2)";
    let waits = "SELECT trx_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    block_on(async {
        let store = Store::open(&url).await.expect("a store");
        save(&store, 0).await.expect("saved");
        let mut other = connect(&url).await;
        let mut observer = connect(&url).await;
        run(&mut other, &["BEGIN", &many, same_revision]).await;
        let (refused, ()) = tokio::join!(save(&store, 1), async {
            let started = Instant::now();
            while run(&mut observer, &[waits]).await.is_empty() {
                assert!(started.elapsed() < WITHIN, "the save does not wait");
                // InnoDB refreshes this table if it was not read for 0.1 s.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            run(&mut other, &["SELECT * FROM document FOR UPDATE"]).await;
        });
        assert!(is_temporary(&refused), "{refused:?}");
        assert!(
            !matches!(refused, Err(StoreError::Unavailable)),
            "the database answers"
        );
        run(&mut other, &["ROLLBACK"]).await;
        assert_eq!(save(&store, 1).await.expect("saved"), 2);
    });
}
