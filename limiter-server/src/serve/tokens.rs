//! The tokens that the control plane issued: from Redis, and from the cache of an earlier run.
//!
//! A node without the database reads the tokens beside the registry in Redis. Each change is
//! written to the directory of the cached policies, so a node that finds neither Redis nor the
//! database accepts the last tokens. While neither confirms them, the last tokens stay in force for
//! [`Settings::unconfirmed_tokens`](crate::settings::Settings::unconfirmed_tokens), because a
//! revocation cannot be read. A text with a lower revision comes from a backup or from a server
//! that lost its data, so it can contain revoked tokens: it is neither accepted nor a confirmation.
//! A node with the database publishes the tokens again with a higher revision. Tests:
//! `tests/issued_tokens.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use limiter_core::registry::RedisDocument;

use crate::access::Access;
use crate::publish::tokens::{FULL_PASS, INTERVAL};

const FILE: &str = "tokens.toml";

/// Accepts the tokens of an earlier run, and writes each change.
pub(super) fn cache(access: &Access, directory: &Path) {
    let path = directory.join(FILE);
    if let Ok(text) = std::fs::read_to_string(&path)
        && let Err(error) = access.set_issued(&text)
    {
        tracing::warn!(path = %path.display(), %error, "cached tokens rejected; starting without them");
    }
    tokio::spawn(write_changes(access.clone(), directory.to_owned()));
}

/// Rejects the tokens that no source has confirmed for this time, until the task is dropped.
pub(super) async fn expire(access: Access, after: Duration) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        access.expire_unconfirmed(after);
    }
}

async fn write_changes(access: Access, directory: PathBuf) {
    let mut issued = access.issued();
    while issued.changed().await.is_ok() {
        let (directory, text) = (directory.clone(), issued.borrow_and_update().clone());
        let shown = directory.display().to_string();
        let written = tokio::task::spawn_blocking(move || super::cache::write(&directory, FILE, &text)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(directory = %shown, %error, "cannot write the cached tokens; check state_dir");
        }
    }
}

/// Follows the tokens in Redis. Waits for the first read, so that the first calls are not those of
/// unknown clients.
pub(super) async fn follow(access: &Access, document: RedisDocument) {
    let mut follower = TokenFollower {
        access: access.clone(),
        document,
        revision: 0,
        is_confirmed: false,
        has_failed: false,
    };
    follower.read(true).await;
    tokio::spawn(async move {
        for pass in 1_u64.. {
            tokio::time::sleep(INTERVAL).await;
            follower.read(pass % FULL_PASS == 0).await;
        }
    });
}

struct TokenFollower {
    access: Access,
    document: RedisDocument,
    /// The highest revision of a text that was read.
    revision: u64,
    /// True if the last full read found the accepted tokens. A read of later texts alone does not
    /// show whether Redis still has them.
    is_confirmed: bool,
    has_failed: bool,
}

impl TokenFollower {
    /// Reads the text; a full read finds out whether Redis still has it.
    async fn read(&mut self, is_full: bool) {
        let known = if is_full || !self.is_confirmed {
            0
        } else {
            self.revision
        };
        let read = self.document.read_after(known).await;
        let has_failed = read.is_err();
        match read {
            // Redis has no text, or has lost it: it cannot confirm the tokens of a cache.
            Ok(None) if known == 0 => self.is_confirmed = false,
            Ok(None) => self.access.confirm_issued(),
            Ok(Some((revision, _))) if revision < self.revision => {
                if std::mem::take(&mut self.is_confirmed) {
                    tracing::warn!(
                        revision,
                        known = self.revision,
                        "tokens in Redis are older than those in force; waiting for a node with the database to \
                         publish them again"
                    );
                }
            }
            Ok(Some((revision, text))) => {
                let has_changed = std::mem::replace(&mut self.revision, revision) != revision;
                let accepted = self.access.set_issued(&text);
                self.is_confirmed = accepted.is_ok();
                match accepted {
                    Ok(()) => {
                        self.access.confirm_issued();
                        if has_changed {
                            tracing::info!(revision, "tokens in Redis changed");
                        }
                    }
                    Err(_) if !has_changed => {}
                    Err(error) => {
                        tracing::warn!(revision, %error, "tokens in Redis rejected; keeping the last tokens");
                    }
                }
            }
            Err(error) if !self.has_failed => {
                tracing::warn!(%error, "cannot read the tokens in Redis; keeping the last tokens");
            }
            Err(_) => {}
        }
        self.has_failed = has_failed;
    }
}
