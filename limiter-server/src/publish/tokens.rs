//! Publishes the tokens of the database to the gateways of a namespace.
//!
//! Each node with the database reads the tokens, accepts them itself, and stores their hashes,
//! scopes and ends in Redis beside the registry, by compare-and-set. Gateways read them there, so a
//! token works without the database. Tests: `tests/issued_tokens.rs`.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use limiter_core::registry::{RedisDocument, RegistryError};

use crate::access::{Access, Expiry, Scope};
use crate::publish::Publisher;
use crate::publish::database_mark::{DatabaseMark, absent_if_damaged};
use crate::publish::error::PublishError;
use crate::store::{Store, StoredToken, now_micros};

/// The name of the text in Redis.
pub(crate) const DOCUMENT: &str = "tokens";
/// The interval of the passes, and of the reads of gateways. A change takes two of them.
pub(crate) const INTERVAL: Duration = Duration::from_millis(350);
/// After this many passes, the text is read even if it has no later revision: Redis can lose its
/// data.
pub(crate) const FULL_PASS: u64 = 10;
const MICROS_PER_DAY: i64 = 86_400_000_000;
/// A token is named as expired for this time, in microseconds; then it is unknown.
const NAMED_AFTER_END: i64 = MICROS_PER_DAY;

/// Publishes the tokens of one namespace.
#[derive(Debug)]
pub(crate) struct TokenPublisher {
    namespace: String,
    store: Store,
    document: Option<RedisDocument>,
    mark: Option<DatabaseMark>,
    /// The access of the gateway of this process, if it serves the namespace.
    access: Option<Access>,
    /// The hashes of accepted tokens without a record of the use yet.
    used: HashSet<String>,
    /// The revision and the text in Redis.
    published: (u64, String),
    /// True if the text in Redis is a publication that gateways accept. Before the first one of
    /// this process, Redis may have been restored with an older text, which gateways reject by its
    /// revision even if it is equal.
    is_current: bool,
    /// The highest revision that this process has read or published.
    newest: u64,
}

impl TokenPublisher {
    /// Creates a publisher beside that of the registry.
    pub(crate) fn new(publisher: &Publisher) -> Self {
        Self {
            namespace: publisher.namespace().to_owned(),
            store: publisher.0.store.clone(),
            document: publisher.redis().map(|redis| redis.document(DOCUMENT)),
            mark: DatabaseMark::new(publisher),
            access: None,
            used: HashSet::new(),
            published: (0, String::new()),
            is_current: false,
            newest: 0,
        }
    }

    /// Sets the gateway that accepts the tokens, and executes the first pass.
    pub(crate) async fn accept_at(&mut self, access: &Access) {
        self.access = Some(access.clone());
        if let Err(error) = self.pass(true).await {
            tracing::warn!(%error, "cannot publish the tokens; trying again");
        }
    }

    /// Publishes until the task is dropped.
    pub(crate) async fn run(mut self) {
        let mut reported: Option<String> = None;
        for pass in 1_u64.. {
            tokio::time::sleep(INTERVAL).await;
            let error = self.pass(pass % FULL_PASS == 0).await.err();
            let error = error.map(|error| error.to_string());
            if let Some(error) = error
                .as_deref()
                .filter(|error| reported.as_deref() != Some(error))
            {
                tracing::warn!(%error, "cannot publish the tokens; trying again");
            }
            reported = error;
        }
    }

    /// Copies the tokens of the database to the gateway and to Redis.
    async fn pass(&mut self, is_full: bool) -> Result<(), PublishError> {
        // Redis is read before the database: a publication between the two is then newer than the
        // revision that was read, and compare-and-set detects it.
        let read = self.read(is_full).await;
        // A restored copy of the database can contain revoked tokens.
        let compared = match &mut self.mark {
            Some(mark) => mark.pass(is_full).await,
            None => Ok(()),
        };
        let tokens = self.store.tokens(&self.namespace).await?;
        let text = issued_text(&tokens, now_micros());
        if let Some(access) = &self.access {
            match access.set_issued(&text) {
                Ok(()) => access.confirm_issued(),
                Err(reason) => {
                    tracing::error!(%reason, "the tokens of the database cannot be written as TOML");
                }
            }
        }
        // A database that refuses writes does not delay a revocation.
        let recorded = self.record_use(&tokens).await;
        read?;
        compared?;
        self.publish(text).await?;
        if let Some(mark) = &mut self.mark {
            mark.complete().await?;
        }
        recorded
    }

    /// Writes the text to Redis, unless Redis has it with a revision that gateways accept.
    async fn publish(&mut self, text: String) -> Result<(), RegistryError> {
        let has_text = self.is_current && self.published.1 == text;
        let Some(document) = self.document.as_ref().filter(|_| !has_text) else {
            return Ok(());
        };
        // The clock of a new Redis can be behind, and gateways reject a lower revision.
        match document.publish_above(&text, self.published.0, self.newest).await {
            Ok(revision) => {
                self.published = (revision, text);
                self.is_current = true;
                self.newest = revision;
            }
            // Another node has published; the next pass reads its text.
            Err(RegistryError::Conflict { .. }) => self.published.0 = 0,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Records the day on which the gateway of this process last accepted each token, with one
    /// statement per token and day.
    async fn record_use(&mut self, tokens: &[StoredToken]) -> Result<(), PublishError> {
        let Some(access) = self.access.as_ref().filter(|_| !self.store.is_read_only()) else {
            return Ok(());
        };
        let day = now_micros() / MICROS_PER_DAY;
        self.used
            .extend(access.take_used().iter().map(ToString::to_string));
        for token in tokens.iter().filter(|token| self.used.contains(&token.hash)) {
            if token.used_day != Some(day) {
                self.store.mark_token_used(&token.id, day).await?;
            }
        }
        self.used.clear();
        Ok(())
    }

    async fn read(&mut self, is_full: bool) -> Result<(), RegistryError> {
        let Some(document) = &self.document else {
            return Ok(());
        };
        let known = if is_full { 0 } else { self.published.0 };
        match absent_if_damaged(document.read_after(known).await)? {
            Some(found) => self.published = found,
            None if known == 0 => self.published = (0, String::new()),
            None => {}
        }
        // A text of a backup.
        self.is_current &= self.published.0 >= self.newest;
        self.newest = self.newest.max(self.published.0);
        Ok(())
    }
}

/// Returns the accepted tokens that a gateway knows, as `[[token]]` entries.
fn issued_text(tokens: &[StoredToken], now: i64) -> String {
    let mut text = String::new();
    for token in tokens {
        let end = token.expires_at.min(token.revoked_at.unwrap_or(i64::MAX));
        let is_revoked = token.revoked_at.is_some_and(|at| at <= now);
        // Other scopes are those of the admin API.
        let scopes = token
            .scopes
            .split(' ')
            .filter(|scope| scope.parse::<Scope>().is_ok());
        let scopes: Vec<toml::Value> = scopes.map(toml::Value::from).collect();
        if is_revoked || token.is_suspended || scopes.is_empty() || end < now.saturating_sub(NAMED_AFTER_END)
        {
            continue;
        }
        let [name, hash, scopes] = [
            token.label.as_str().into(),
            token.hash.as_str().into(),
            toml::Value::from(scopes),
        ];
        let expires = Expiry::at_micros(end);
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "[[token]]\nname = {name}\nsha256 = {hash}\nscopes = {scopes}\nexpires = {expires}\n\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Client;

    const NOW: i64 = 1_800_000_000_000_000;
    const HOUR: i64 = 3_600_000_000;

    fn token(label: &str, scopes: &str) -> StoredToken {
        StoredToken {
            id: label.to_owned(),
            hash: crate::secret::hash(label),
            label: label.to_owned(),
            namespace: "default".to_owned(),
            scopes: scopes.to_owned(),
            created_by: "root".to_owned(),
            created_at: NOW,
            expires_at: 4 * NOW,
            revoked_at: None,
            is_suspended: false,
            used_day: None,
        }
    }

    async fn publisher(redis: &limiter_testing::RedisServer) -> (TokenPublisher, RedisDocument) {
        let url = format!("sqlite:{}", redis.dir().join("limiter.db").display());
        let store = Store::open(&url).await.unwrap();
        let limiter = limiter_core::Limiter::redis(redis.url())
            .namespace("prod")
            .build();
        let registry = limiter.unwrap().redis_registry().unwrap();
        let document = registry.document(DOCUMENT);
        let target = crate::publish::PublicationTarget::Redis(registry);
        let tokens = TokenPublisher::new(&Publisher::new("prod", store, target));
        (tokens, document)
    }

    /// The clock of the new Redis is behind that of the previous one. Gateways reject a lower
    /// revision, so they would reject the tokens after some time.
    #[tokio::test]
    async fn tokens_of_an_emptied_redis_have_a_later_revision() {
        let redis = limiter_testing::RedisServer::start();
        let (mut tokens, document) = publisher(&redis).await;
        tokens.pass(true).await.unwrap();
        let (revision, text) = document.read_after(0).await.unwrap().unwrap();
        let later = document
            .publish_above(&text, revision, revision + 3_600_000)
            .await;
        tokens.pass(true).await.unwrap();
        redis.command(&["DEL", "prod|book|tokens"]);
        tokens.pass(true).await.unwrap();
        let (found, _) = document.read_after(0).await.unwrap().unwrap();
        assert!(found > later.unwrap(), "{found}");
        tokens.pass(true).await.unwrap();
        assert_eq!(document.read_after(found).await.unwrap(), None);
    }

    /// Gateways without the database would reject the tokens after some time.
    #[tokio::test]
    async fn damaged_texts_in_redis_are_replaced() {
        let redis = limiter_testing::RedisServer::start();
        let (mut tokens, document) = publisher(&redis).await;
        tokens.pass(true).await.unwrap();
        for name in ["tokens", "database"] {
            redis.command(&["SET", &format!("prod|book|{name}"), "garbage"]);
        }
        tokens.pass(true).await.unwrap();
        assert!(document.read_after(0).await.unwrap().is_some());
        let mark = redis.command(&["GET", "prod|book|database"]).text();
        assert!(mark.starts_with("revision = "), "{mark}");
    }

    #[test]
    fn text_has_accepted_tokens_with_scopes_of_the_gateway() {
        let revoked = |at| StoredToken {
            revoked_at: Some(at),
            ..token("revoked", "check:*")
        };
        let tokens = [
            token("\"quoted\"\n", "check:* admin:viewer refund:policy=search"),
            token("admin", "admin:viewer"),
            revoked(NOW),
            StoredToken {
                is_suspended: true,
                ..token("suspended", "check:*")
            },
            StoredToken {
                expires_at: NOW - 48 * HOUR,
                ..token("old", "check:*")
            },
        ];
        let text = issued_text(&tokens, NOW);
        let access = Access::default();
        access.set_issued(&text).unwrap();
        assert_eq!(access.table().len(), 1, "{text}");
        assert!(access.validate(&Client::of_secret("\"quoted\"\n")).is_ok());
        assert!(
            text.contains("scopes = [\"check:*\", \"refund:policy=search\"]"),
            "{text}"
        );
        // A rotated token is valid until its end.
        let rotated = issued_text(&[revoked(NOW + HOUR)], NOW);
        assert!(rotated.contains("expires = 2027-01-15T09:00:00Z"), "{rotated}");
    }
}
