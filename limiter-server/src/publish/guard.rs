//! Keeps back documents that a process which follows the registry cannot read.
//!
//! A process rejects a text whose `min_reader` is above the format that it reads, and keeps its
//! last policies. Publication of such a document would therefore end all further changes on this
//! process, without an error at its author. Suspensions and blocks are published nevertheless: they
//! must reach the processes that obey them, and the API lists the others. Tests: below.

use std::collections::BTreeMap;
use std::fmt;

use limiter_core::registry::{RedisRegistry, RegistryError, Subscriber};

use crate::publish::reconcile::{DocumentId, KnownDocument, KnownState};
use crate::publish::{PublicationTarget, Publisher};
use crate::store::{DocumentKind, StoredDocument};

/// The format that all versions read.
const FIRST_FORMAT: u32 = 1;

/// The pending documents that some processes cannot read, with the reasons.
#[derive(Debug, Default)]
pub(super) struct UnreadableDocuments(BTreeMap<DocumentId, String>);

impl UnreadableDocuments {
    pub(super) fn contains(&self, document: &StoredDocument) -> bool {
        self.0.contains_key(&(document.kind, document.name.clone()))
    }
}

impl fmt::Display for UnreadableDocuments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons: Vec<&str> = self.0.values().map(String::as_str).collect();
        f.write_str(&reasons.join("; "))
    }
}

/// Returns the pending documents that a listed process cannot read.
pub(super) async fn unreadable(
    redis: &RedisRegistry,
    known: &KnownState,
) -> Result<UnreadableDocuments, RegistryError> {
    let guarded = |of: &&KnownDocument| of.is_pending() && of.document.kind == DocumentKind::Policy;
    let demanding: Vec<(&StoredDocument, u32)> = known
        .documents
        .values()
        .filter(guarded)
        .map(|of| (&of.document, format_of(&of.document.body)))
        .filter(|(_, format)| *format > FIRST_FORMAT)
        .collect();
    if demanding.is_empty() {
        return Ok(UnreadableDocuments::default());
    }
    let subscribers = redis.subscribers().await?;
    let refused = demanding.into_iter().filter_map(|(document, format)| {
        let reason = refusal(&document.name, format, &subscribers)?;
        Some(((document.kind, document.name.clone()), reason))
    });
    Ok(UnreadableDocuments(refused.collect()))
}

/// Returns the lowest format that a reader of a text must know. The library writes it into each
/// text.
fn format_of(text: &str) -> u32 {
    let stated = text.lines().find_map(|line| line.strip_prefix("min_reader = "));
    stated
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(FIRST_FORMAT)
}

/// Returns the reason for which a policy is not published; `None` if all processes read it.
fn refusal(name: &str, format: u32, subscribers: &[Subscriber]) -> Option<String> {
    let old = subscribers.iter().filter(|of| of.format < format);
    let mut hosts: Vec<String> = old.map(described).collect();
    hosts.sort();
    hosts.dedup();
    (!hosts.is_empty()).then(|| {
        format!(
            "policy `{name}` needs readers of format {format}, which these processes are not: {}; update them, or \
             remove the newer fields",
            hosts.join(", ")
        )
    })
}

/// Returns the host, app and version of a process.
fn described(subscriber: &Subscriber) -> String {
    let app = subscriber.app.as_deref().unwrap_or("no app");
    format!("{} ({app}, limiter-core {})", subscriber.host, subscriber.version)
}

impl Publisher {
    /// Returns the reason why a policy with this text would not be published: a process that
    /// follows the registry cannot read it. `None` without Redis, and while Redis does not answer.
    pub async fn refusal(&self, name: &str, text: &str) -> Option<String> {
        let PublicationTarget::Redis(redis) = &self.0.target else {
            return None;
        };
        let format = format_of(text);
        if format <= FIRST_FORMAT {
            return None;
        }
        refusal(name, format, &redis.subscribers().await.ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_read_from_the_header() {
        assert_eq!(format_of("format = 2\nmin_reader = 2\n[policy.p]\n"), 2);
        assert_eq!(format_of("[policy.p]\n"), 1);
    }
}
