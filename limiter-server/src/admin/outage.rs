//! The admin part while the database does not answer.
//!
//! The first failed request begins an outage, and a task ends it when the database answers again.
//! Meanwhile no request waits for the database. Sessions that the database has confirmed in the
//! last 15 minutes are remembered, so their users can read the policies in force; everyone else
//! sees a static page. A session that ends at this node is forgotten. Tests: below, and
//! `tests/control_plane/outage_pages.rs`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::admin::permissions::Actor;
use crate::store::Store;

/// A session is remembered for this time after the database has confirmed it.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// The largest number of remembered sessions. Ended ones are removed when it is reached.
const MAX_SESSIONS: usize = 10_000;
/// The interval between attempts to reach the database.
const PROBE: Duration = Duration::from_millis(500);

/// The state of an outage of the database, and the sessions that the database has confirmed. Cheap
/// to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Outage(Arc<OutageState>);

#[derive(Debug, Default)]
struct OutageState {
    is_active: AtomicBool,
    /// By the hash of the credentials.
    sessions: Mutex<HashMap<String, ConfirmedSession>>,
}

#[derive(Debug)]
struct ConfirmedSession {
    actor: Actor,
    at: Instant,
}

impl Outage {
    /// Returns whether the database does not answer.
    pub(super) fn is_active(&self) -> bool {
        self.0.is_active.load(Ordering::Relaxed)
    }

    /// Begins an outage, which ends when the database answers.
    pub(super) fn begin(&self, store: &Store) {
        if self.0.is_active.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!("the database does not answer; pages are read-only until it does");
        let (outage, store) = (self.clone(), store.clone());
        tokio::spawn(async move {
            while store.ping().await.is_err() {
                tokio::time::sleep(PROBE).await;
            }
            outage.0.is_active.store(false, Ordering::Relaxed);
            tracing::info!("the database answers again");
        });
    }

    /// Remembers a session that the database has confirmed.
    pub(super) fn remember(&self, session: String, actor: &Actor, now: Instant) {
        let mut sessions = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= MAX_SESSIONS {
            sessions.retain(|_, of| now.duration_since(of.at) < REMEMBERED);
        }
        if sessions.len() < MAX_SESSIONS || sessions.contains_key(&session) {
            let actor = actor.clone();
            sessions.insert(session, ConfirmedSession { actor, at: now });
        }
    }

    /// Forgets a session that has ended.
    pub(super) fn forget(&self, session: &str) {
        let mut sessions = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(session);
    }

    /// Returns the user of a remembered session.
    pub(super) fn actor(&self, session: &str, now: Instant) -> Option<Actor> {
        let sessions = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(session);
        let session = session.filter(|of| now.duration_since(of.at) < REMEMBERED);
        session.map(|of| of.actor.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_remembered_for_15_minutes_after_its_last_confirmation() {
        let (outage, start) = (Outage::default(), Instant::now());
        let after = |minutes: u64| start + Duration::from_secs(minutes * 60);
        let actor = Actor::new("ann", false, &[]);
        outage.remember("a".to_owned(), &actor, start);
        outage.remember("b".to_owned(), &actor, start);
        outage.remember("a".to_owned(), &actor, after(10));
        assert!(outage.actor("b", after(14)).is_some());
        assert!(outage.actor("b", after(15)).is_none());
        assert!(outage.actor("a", after(24)).is_some());
        outage.forget("a");
        assert!(outage.actor("a", after(24)).is_none());
        assert!(outage.actor("c", start).is_none());
    }

    #[test]
    fn number_of_sessions_is_bounded() {
        let (outage, start) = (Outage::default(), Instant::now());
        let actor = Actor::new("ann", false, &[]);
        for number in 0..=MAX_SESSIONS {
            outage.remember(number.to_string(), &actor, start);
        }
        assert!(outage.actor(&MAX_SESSIONS.to_string(), start).is_none());
        let later = start + REMEMBERED;
        outage.remember("new".to_owned(), &actor, later);
        assert!(outage.actor("new", later).is_some());
    }
}
