//! The clients in force.
//!
//! The configured clients and the tokens that the control plane issued are separate sources; a
//! change of one keeps the other. Both form one table, which each call reads. A table that loses
//! its last client does not accept anonymous ones: a revocation, an empty Redis or a mistake in a
//! file would open the listener otherwise. A restart does.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

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
}

impl Access {
    /// The access of these clients.
    #[must_use]
    pub fn new(table: AccessTable) -> Self {
        let access = Self::default();
        access.replace(table);
        access
    }

    /// The table in force.
    #[must_use]
    pub fn table(&self) -> Arc<AccessTable> {
        Arc::clone(&self.0.in_force.read().unwrap_or_else(PoisonError::into_inner))
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
        self.change(|sources| sources.issued = issued);
        self.0.issued.send_replace(text.into());
        Ok(())
    }

    /// The hashes of the tokens that calls have used since the last call of this method.
    pub(crate) fn take_used(&self) -> Vec<TokenHash> {
        self.table().take_used()
    }

    /// A receiver of the text of the issued tokens: `[[token]]` entries as in the settings file.
    #[must_use]
    pub fn issued(&self) -> watch::Receiver<Arc<str>> {
        self.0.issued.subscribe()
    }

    /// Changes the sources and puts their clients in force.
    fn change(&self, change: impl FnOnce(&mut AccessSources)) {
        let mut sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut sources);
        let table = sources.configured.with_issued(&sources.issued);
        let mut in_force = self.0.in_force.write().unwrap_or_else(PoisonError::into_inner);
        *in_force = Arc::new(table.after(&in_force));
    }

    /// Checks that a client is valid, without regard to its scopes.
    ///
    /// # Errors
    ///
    /// The reason why the client is not valid.
    pub fn validate(&self, client: &Client) -> Result<(), AccessDenial> {
        self.table().identify(client, SystemTime::now()).map(drop)
    }

    /// The name of a client, for logs.
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
        self.table().may(client, action, target, SystemTime::now())
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
