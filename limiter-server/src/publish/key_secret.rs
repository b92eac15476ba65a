//! The secret of the fingerprints of keys, which all nodes of a namespace share.
//!
//! Redis contains it in a document beside the registry, which applications cannot read. The first
//! node creates it. The database keeps a copy: it survives a loss of Redis, and it is the only
//! place without Redis. Nodes compare both, so they agree within two intervals.

use std::time::Duration;

use limiter_core::registry::{RedisDocument, RegistryError};

use crate::publish::Publisher;
use crate::publish::database_mark::absent_if_damaged;
use crate::publish::error::PublishError;
use crate::secret::Secret;
use crate::secret::fingerprint::KeyFingerprints;

/// The name of the document in Redis.
pub(crate) const DOCUMENT: &str = "key-secret";
/// The interval between comparisons.
const INTERVAL: Duration = Duration::from_secs(5);

/// Follows the secret in Redis, and creates it if there is none, until the task is dropped.
pub(crate) async fn follow(fingerprints: KeyFingerprints, document: RedisDocument) {
    let mut has_failed = false;
    loop {
        let read = read_or_create(&fingerprints, &document).await;
        match &read {
            Ok(secret) => fingerprints.share(secret),
            Err(error) if !has_failed => {
                tracing::warn!(%error, "cannot read the secret of key fingerprints in Redis; trying again");
            }
            Err(_) => {}
        }
        has_failed = read.is_err();
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn read_or_create(
    fingerprints: &KeyFingerprints,
    document: &RedisDocument,
) -> Result<String, RegistryError> {
    loop {
        if let Some((_, secret)) = absent_if_damaged(document.read_after(0).await)? {
            return Ok(secret);
        }
        // Redis can have lost its data.
        let known = fingerprints.shared().map(|known| (*known).to_owned());
        let secret = known.unwrap_or_else(new_secret);
        match document.publish(&secret, 0).await {
            Ok(_) => return Ok(secret),
            // Another node was faster.
            Err(RegistryError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Compares the secret of the database with the one in Redis until the task is dropped.
pub(crate) async fn run(publisher: Publisher, fingerprints: KeyFingerprints) {
    let mut has_failed = false;
    loop {
        let compared = compare(&publisher).await;
        match &compared {
            Ok(secret) => fingerprints.share(secret),
            Err(error) if !has_failed => {
                let namespace = publisher.namespace();
                tracing::warn!(%error, namespace, "cannot share the secret of key fingerprints; trying again");
            }
            Err(_) => {}
        }
        has_failed = compared.is_err();
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Copies the secret of the database to Redis, or that in Redis to a database without one.
async fn compare(publisher: &Publisher) -> Result<String, PublishError> {
    let document = publisher.redis().map(|redis| redis.document(DOCUMENT));
    let in_redis = match &document {
        Some(document) => absent_if_damaged(document.read_after(0).await)?,
        None => None,
    };
    let (revision, found) = in_redis.unzip();
    let proposed = found.clone().unwrap_or_else(new_secret);
    let store = &publisher.0.store;
    let secret = store.key_secret(publisher.namespace(), &proposed).await?;
    if let Some(document) = document.filter(|_| found.as_ref() != Some(&secret)) {
        // After a conflict, the next comparison reads the text of the other node.
        match document.publish(&secret, revision.unwrap_or_default()).await {
            Ok(_) | Err(RegistryError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(secret)
}

fn new_secret() -> String {
    Secret::generate("").reveal().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::PublicationTarget;
    use crate::store::Store;

    #[tokio::test]
    async fn damaged_secret_in_redis_is_replaced() {
        let redis = limiter_testing::RedisServer::start();
        let url = format!("sqlite:{}", redis.dir().join("limiter.db").display());
        let limiter = limiter_core::Limiter::redis(redis.url())
            .namespace("prod")
            .build();
        let registry = limiter.unwrap().redis_registry().unwrap();
        let document = registry.document(DOCUMENT);
        let target = PublicationTarget::Redis(registry);
        let publisher = Publisher::new("prod", Store::open(&url).await.unwrap(), target);
        let secret = compare(&publisher).await.unwrap();
        let damage = || redis.command(&["SET", "prod|book|key-secret", "garbage"]);
        damage();
        assert_eq!(compare(&publisher).await.unwrap(), secret);
        let read = async || document.read_after(0).await.unwrap().unwrap().1;
        assert_eq!(read().await, secret);
        // A gateway without the database.
        damage();
        let fingerprints = KeyFingerprints::new(None);
        fingerprints.share(&secret);
        assert_eq!(read_or_create(&fingerprints, &document).await.unwrap(), secret);
        assert_eq!(read().await, secret);
    }
}
