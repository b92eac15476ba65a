//! Races between nodes, made deterministic by a lock in PostgreSQL.

use limiter_server::store::{DocumentKind, Store};
use limiter_testing::RedisServer;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::support::databases::Database;
use crate::{bucket, in_force, publisher_of, registry_of, save};

/// A node reads the registry, another node publishes and confirms, and then the first node reads
/// the confirmation, which is newer than its registry.
async fn publish_between_the_reads(url: &str) {
    let (redis, store) = (RedisServer::start(), Store::open(url).await.unwrap());
    let publisher = publisher_of(&store, &redis);
    let policy = DocumentKind::Policy;
    save(&store, policy, "search", 0, &bucket("search", ""), 1).await;
    publisher.publish().await.unwrap();
    save(&store, policy, "mail", 0, &bucket("mail", ""), 2).await;

    let connect = async || PgConnection::connect(url).await.unwrap();
    let (mut other, mut observer) = (connect().await, connect().await);
    let mut other = other.begin().await.unwrap();
    let lock = "LOCK TABLE publication IN ACCESS EXCLUSIVE MODE";
    other.execute(lock).await.unwrap();
    let late = publisher.clone();
    let late = tokio::spawn(async move { late.publish().await });
    // The node has read the registry, and waits for its first table.
    loop {
        let waiting = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted";
        let row = observer.fetch_one(waiting).await.unwrap();
        if row.get::<i64, _>(0) > 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    let registry = registry_of(&redis);
    let (revision, text) = registry.read().await.unwrap().unwrap();
    let published = registry.publish(&text, revision).await.unwrap();
    let confirm = format!("UPDATE publication SET registry_revision = {published}");
    other.execute(sqlx::AssertSqlSafe(confirm)).await.unwrap();
    other.commit().await.unwrap();
    late.await.unwrap().unwrap();

    let alerts = store.alerts("prod").await.unwrap();
    assert!(alerts.is_empty(), "{alerts:?}");
    assert!(in_force(&redis).await.get("mail").is_some());
    // A registry that is older at both reads has lost data.
    redis.command(&["DEL", "prod|book"]);
    publisher.publish().await.unwrap();
    let alerts = store.alerts("prod").await.unwrap();
    assert_eq!(alerts.len(), 1, "{alerts:?}");
    assert_eq!(alerts[0].kind, "registry_went_back");
}

#[test]
fn publication_of_another_node_between_the_reads_raises_no_alert() {
    let database = Database::postgres();
    let url = database.create("races");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.unwrap().block_on(publish_between_the_reads(&url));
}
