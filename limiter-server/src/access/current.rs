//! The clients in force.
//!
//! The configured clients and the tokens that the control plane issued are separate sources; a
//! change of one keeps the other. Both form one table, which each call reads. Issued tokens are
//! rejected after a time without a confirmation by their source, because the node may have missed a
//! revocation. A table that loses its last client does not accept anonymous ones: a revocation, an
//! empty Redis or a mistake in a file would open the listener otherwise. A restart does. Tests:
//! below.

use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use crate::access::issued::parse_issued;
use crate::access::{AccessDenial, AccessTable, Action, Client, Target, Token, TokenHash};

/// The table in force, which a reload replaces. Cheap to clone; clones share the table.
#[derive(Clone, Debug, Default)]
pub struct Access(Arc<AccessState>);

#[derive(Debug, Default)]
struct AccessState {
    in_force: RwLock<Arc<AccessTable>>,
    sources: Mutex<AccessSources>,
    /// The text of the issued tokens.
    issued: watch::Sender<Arc<str>>,
}

#[derive(Debug, Default)]
struct AccessSources {
    configured: AccessTable,
    issued: Vec<Token>,
    /// The time at which the source of the issued tokens confirmed them last; `None` before the
    /// first time.
    confirmed_at: Option<Instant>,
    /// True if the issued tokens are not accepted.
    is_unconfirmed: bool,
}

impl Access {
    /// Creates the access of these clients.
    #[must_use]
    pub fn new(table: AccessTable) -> Self {
        let access = Self::default();
        access.replace(table);
        access
    }

    /// Returns the table in force.
    #[must_use]
    pub fn table(&self) -> Arc<AccessTable> {
        Arc::clone(&self.read())
    }

    fn read(&self) -> RwLockReadGuard<'_, Arc<AccessTable>> {
        self.0.in_force.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the configured clients.
    pub fn replace(&self, table: AccessTable) {
        self.change(|sources| sources.configured = table);
    }

    /// Replaces the tokens that the control plane issued by those of a [text](Self::issued). A text
    /// that is not TOML changes nothing, and a token that this version cannot read is left out.
    ///
    /// # Errors
    ///
    /// The reason why the text is not TOML.
    pub fn set_issued(&self, text: &str) -> Result<(), String> {
        if **self.0.issued.borrow() == *text {
            return Ok(());
        }
        let issued = parse_issued(text)?;
        self.change(|sources| {
            sources.confirmed_at.get_or_insert_with(Instant::now);
            sources.issued = issued;
        });
        self.0.issued.send_replace(text.into());
        Ok(())
    }

    /// Records that the source of the issued tokens has answered, so that they are the valid ones.
    pub(crate) fn confirm_issued(&self) {
        let mut sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.confirmed_at = Some(Instant::now());
        let was_unconfirmed = std::mem::take(&mut sources.is_unconfirmed);
        drop(sources);
        if was_unconfirmed {
            tracing::info!("the issued tokens are confirmed; accepting them again");
            self.change(|_| ());
        }
    }

    /// Rejects the issued tokens if the last confirmation by their source is older than this time.
    pub(crate) fn expire_unconfirmed(&self, after: Duration) {
        let mut sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let is_late = sources.confirmed_at.is_some_and(|at| at.elapsed() >= after);
        if !is_late || sources.is_unconfirmed || sources.issued.is_empty() {
            return;
        }
        sources.is_unconfirmed = true;
        drop(sources);
        tracing::warn!(
            ?after,
            "neither Redis nor the database confirms the issued tokens; rejecting them until one answers"
        );
        self.change(|_| ());
    }

    /// Returns the hashes of the tokens that calls have used since the last call of this method.
    pub(crate) fn take_used(&self) -> Vec<TokenHash> {
        self.table().take_used()
    }

    /// Returns a receiver of the text of the issued tokens: `[[token]]` entries as in the settings
    /// file.
    #[must_use]
    pub fn issued(&self) -> watch::Receiver<Arc<str>> {
        self.0.issued.subscribe()
    }

    /// Changes the sources and puts their clients in force.
    fn change(&self, change: impl FnOnce(&mut AccessSources)) {
        let mut sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut sources);
        let table = match sources.is_unconfirmed {
            true => sources.configured.unconfirmed(),
            false => sources.configured.with_issued(&sources.issued),
        };
        let mut in_force = self.0.in_force.write().unwrap_or_else(PoisonError::into_inner);
        *in_force = Arc::new(table.after(&in_force));
    }

    /// Checks that a client is valid, without regard to its scopes.
    ///
    /// # Errors
    ///
    /// The reason why the client is not valid.
    pub fn validate(&self, client: &Client) -> Result<(), AccessDenial> {
        self.read().identify(client, SystemTime::now()).map(drop)
    }

    /// Returns the name of a client, for logs.
    #[must_use]
    pub fn name_of(&self, client: &Client) -> String {
        let table = self.table();
        let name = table.identify(client, SystemTime::now());
        name.unwrap_or("unknown").to_owned()
    }

    /// Decides whether a client may take an action on a target, by [`AccessTable::may`].
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn may(&self, client: &Client, action: Action, target: &Target<'_>) -> Result<(), AccessDenial> {
        self.read().may(client, action, target, SystemTime::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(secret: &str) -> String {
        let hash = TokenHash::of(secret);
        format!("[[token]]\nname = 't'\nsha256 = '{hash}'\nscopes = ['check:*']\nexpires = 2100-01-01\n")
    }

    #[test]
    fn change_of_one_source_keeps_the_other() {
        let access = Access::default();
        let is_valid = |secret| access.validate(&Client::of_secret(secret)).is_ok();
        let configured = parse_issued(&entry("configured")).unwrap();
        access
            .set_issued(&[entry("issued"), entry("other")].concat())
            .unwrap();
        access.replace(AccessTable::new(configured, Vec::new()).unwrap());
        assert!(is_valid("configured") && is_valid("issued") && is_valid("other"));
        access.set_issued(&entry("issued")).unwrap();
        assert!(is_valid("configured") && is_valid("issued") && !is_valid("other"));
        assert!(access.set_issued("[[token").is_err());
        assert!(is_valid("issued"), "an invalid text changes nothing");
        access.replace(AccessTable::default());
        assert!(!is_valid("configured") && is_valid("issued"));
        assert!(access.validate(&Client::Anonymous).is_err());
    }

    #[test]
    fn unconfirmed_tokens_are_rejected_until_they_are_confirmed() {
        let configured = parse_issued(&entry("configured")).unwrap();
        let access = Access::new(AccessTable::new(configured, Vec::new()).unwrap());
        let validate = |secret| access.validate(&Client::of_secret(secret));
        access.set_issued(&entry("issued")).unwrap();
        access.expire_unconfirmed(Duration::from_secs(3_600));
        assert_eq!(validate("issued"), Ok(()));
        for _ in 0..2 {
            access.expire_unconfirmed(Duration::ZERO);
            assert_eq!(validate("issued"), Err(AccessDenial::TokensUnconfirmed));
            assert_eq!(
                validate("configured"),
                Ok(()),
                "a configured token needs no source"
            );
        }
        // A new text of the source is one of the confirmations.
        access
            .set_issued(&[entry("issued"), entry("other")].concat())
            .unwrap();
        access.confirm_issued();
        assert_eq!((validate("issued"), validate("other")), (Ok(()), Ok(())));
        assert_eq!(validate("unknown"), Err(AccessDenial::UnknownToken));
        access.expire_unconfirmed(Duration::ZERO);
        access.confirm_issued();
        assert_eq!(validate("issued"), Ok(()), "the same text");
    }

    #[test]
    fn used_tokens_are_returned_once() {
        let access = Access::default();
        access
            .set_issued(&[entry("used"), entry("idle")].concat())
            .unwrap();
        for secret in ["used", "used", "unknown"] {
            let _ = access.validate(&Client::of_secret(secret));
        }
        assert_eq!(access.take_used(), [TokenHash::of("used")]);
        assert_eq!(access.take_used(), []);
        access.validate(&Client::of_secret("idle")).unwrap();
        assert_eq!(access.take_used(), [TokenHash::of("idle")]);
    }

    #[test]
    fn end_of_the_last_client_does_not_accept_anonymous_ones() {
        let access = Access::default();
        assert!(access.validate(&Client::Anonymous).is_ok());
        access.set_issued(&entry("issued")).unwrap();
        access.set_issued("").unwrap();
        assert!(access.table().is_empty());
        assert_eq!(
            access.validate(&Client::Anonymous),
            Err(AccessDenial::CredentialsMissing)
        );
        let access = Access::new(AccessTable::new(parse_issued(&entry("a")).unwrap(), Vec::new()).unwrap());
        access.replace(AccessTable::default());
        access.replace(AccessTable::default());
        assert!(access.validate(&Client::Anonymous).is_err());
    }

    #[test]
    fn unreadable_token_does_not_affect_the_others() {
        let newer = entry("newer").replace("check:*", "check:region=eu");
        let access = Access::default();
        access.set_issued(&[newer, entry("issued")].concat()).unwrap();
        assert!(access.validate(&Client::of_secret("issued")).is_ok());
        assert!(access.validate(&Client::of_secret("newer")).is_err());
    }
}
