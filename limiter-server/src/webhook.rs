//! Sends saves, suspensions and conflicts to one receiver.
//!
//! The events are entries of the audit, so changes by the API, by commands and by other programs
//! are all sent. The nodes share the position of the last sent event in the database, and one node
//! at a time sends ([`Store::claim_task`]). An event is sent again until the receiver accepts it;
//! a receiver must therefore ignore a repeated `id`. Invariants: only the settings file names the
//! receiver; redirects are not followed; the backlog is bounded, and dropped events are counted.
//! Tests: `tests/control_plane/webhook.rs`.

mod client;

use std::time::Duration;

use serde_json::{Value, json};

use crate::settings::WebhookSettings;
use crate::store::{AuditEntry, Store, StoreError, micros, now_micros};
use crate::webhook::client::{DeliveryError, WebhookClient};

/// The name of the task.
const TASK: &str = "webhook";
/// The interval between looks for events.
const INTERVAL: Duration = Duration::from_millis(500);
/// The time for which a node is the one that sends. It looks more often.
const CLAIM: Duration = Duration::from_secs(60);
/// The longest pause after failed attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// The largest number of events that wait. The oldest ones are dropped beyond it.
const MAX_BACKLOG: i64 = 1_000;
/// The number of entries of the audit that are no events from which the position moves past them.
const MAX_OTHERS: i64 = 1_000;
/// The age of an event that is sent. An event that a longer transaction can precede waits longer:
/// [`Store::events_after`].
const SETTLED: Duration = Duration::from_secs(2);
/// The number of events that are read at once.
const BATCH: i64 = 50;
/// An event that the receiver has refused this many times is dropped.
const MAX_REFUSALS: u32 = 5;

/// The name of the counter of events, by result.
const EVENTS: &str = "limiter_server_webhook_events_total";
const BACKLOG: &str = "limiter_server_webhook_backlog";

/// Sends the events of one database.
#[derive(Debug)]
struct WebhookSender {
    store: Store,
    client: WebhookClient,
    node: String,
    instance: String,
    /// The event that the receiver has refused, and how often.
    refused: (i64, u32),
}

/// Sends events until the task is dropped.
pub(crate) async fn run(store: Store, settings: WebhookSettings, node: String, instance: String) {
    let client = match WebhookClient::new(&settings) {
        Ok(client) => client,
        Err(reason) => {
            tracing::error!(%reason, "the webhook cannot be used; no events are sent");
            return;
        }
    };
    for result in ["delivered", "failed", "dropped"] {
        count(result, 0);
    }
    let mut sender = WebhookSender {
        store,
        client,
        node,
        instance,
        refused: (0, 0),
    };
    let mut failures = 0_u32;
    loop {
        let result = sender.pass().await;
        failures = match result {
            Ok(()) => 0,
            Err(reason) => {
                if failures == 0 {
                    tracing::warn!(%reason, "the webhook does not accept events; trying again");
                }
                failures.saturating_add(1)
            }
        };
        let pause = INTERVAL.saturating_mul(1 << failures.min(6));
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
    }
}

impl WebhookSender {
    /// Sends all events that wait, if this node is the one that sends.
    async fn pass(&mut self) -> Result<(), String> {
        let failed = |error: StoreError| error.to_string();
        let now = now_micros();
        let until = now.saturating_add(micros(CLAIM));
        let claimed = self.store.claim_task(TASK, &self.instance, now, until).await;
        if !claimed.map_err(failed)? {
            metrics::gauge!(BACKLOG).set(0.0);
            return Ok(());
        }
        let mut cursor = self.store.event_cursor().await.map_err(failed)?;
        let before = now.saturating_sub(micros(SETTLED));
        cursor = self.skip(cursor, before).await.map_err(failed)?;
        let events = self.store.events_after(cursor, before, BATCH).await;
        for event in events.map_err(failed)? {
            match self.client.send(event.id, &self.body(&event)).await {
                Ok(()) => count("delivered", 1),
                Err(error) => {
                    count("failed", 1);
                    if !self.is_dropped(event.id, &error) {
                        return Err(error.to_string());
                    }
                    tracing::warn!(event = event.id, %error, "the webhook refuses an event; it is dropped");
                    count("dropped", 1);
                }
            }
            // A slow receiver can outlast the claim. The node that moves the position goes on.
            let moved = self.store.move_event_cursor(cursor, event.id).await;
            if !moved.map_err(failed)? {
                return Ok(());
            }
            cursor = event.id;
        }
        Ok(())
    }

    /// Counts a refusal of an event. Returns whether the receiver has refused the event too often.
    fn is_dropped(&mut self, event: i64, error: &DeliveryError) -> bool {
        if !matches!(error, DeliveryError::Refused(_)) {
            return false;
        }
        self.refused = match self.refused {
            (refused, times) if refused == event => (event, times + 1),
            _ => (event, 1),
        };
        self.refused.1 >= MAX_REFUSALS
    }

    /// Drops the oldest events beyond the largest backlog, and skips other entries of the audit,
    /// such as reads of keys, that would be read at each pass. Returns the new position.
    async fn skip(&self, cursor: i64, before: i64) -> Result<i64, StoreError> {
        let backlog = self.store.count_events_after(cursor).await?;
        let excess = backlog.saturating_sub(MAX_BACKLOG);
        let waiting = i32::try_from(backlog.min(MAX_BACKLOG)).unwrap_or_default();
        metrics::gauge!(BACKLOG).set(f64::from(waiting));
        if backlog == 0 {
            let settled = self.store.settled_entry(cursor, before).await?;
            let is_far = settled.saturating_sub(cursor) >= MAX_OTHERS;
            return match is_far && self.store.move_event_cursor(cursor, settled).await? {
                true => Ok(settled),
                false => Ok(cursor),
            };
        }
        if excess <= 0 {
            return Ok(cursor);
        }
        let oldest = self.store.events_after(cursor, i64::MAX, excess).await?;
        let Some(last) = oldest.last() else {
            return Ok(cursor);
        };
        if !self.store.move_event_cursor(cursor, last.id).await? {
            return Ok(cursor);
        }
        count("dropped", u64::try_from(oldest.len()).unwrap_or_default());
        tracing::warn!(
            events = oldest.len(),
            "the webhook has too large a backlog; the oldest events are dropped"
        );
        Ok(last.id)
    }

    fn body(&self, entry: &AuditEntry) -> Value {
        let mut body = entry.to_json();
        if let Some(fields) = body.as_object_mut() {
            fields.insert("event".to_owned(), json!(event_of(&entry.action)));
            fields.insert("node".to_owned(), json!(self.node));
        }
        body
    }
}

/// Returns the kind of an event: `save`, `suspension` (also blocks) or `conflict`.
fn event_of(action: &str) -> &'static str {
    match action.split_once('.') {
        Some((_, "conflict")) => "conflict",
        Some(("overlays", _)) => "suspension",
        _ => "save",
    }
}

fn count(result: &'static str, events: u64) {
    metrics::counter!(EVENTS, "result" => result).increment(events);
}

#[cfg(test)]
mod tests {
    use super::event_of;

    #[test]
    fn actions_have_kinds() {
        for (action, event) in [
            ("policy.create", "save"),
            ("rules.update", "save"),
            ("overlays.update", "suspension"),
            ("policy.conflict", "conflict"),
            ("overlays.conflict", "conflict"),
        ] {
            assert_eq!(event_of(action), event, "{action}");
        }
    }
}
