//! The classes of the states on all pages. `tests/browser/environments.rs` verifies their colours:
//! grey off, blue shadow, green enforced, amber waiting, red suspended or denying.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::admin::pages::layout::Health;
use crate::admin::pages::overlays::{BlockView, SuspensionView};
use crate::admin::pages::policy_mode::PolicyMode;
use crate::admin::pages::publication;
use crate::admin::pages::status_views::StatusView;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::trials::TrialView;
use crate::admin::pages::views::{PolicyView, TokenView};

fn read<T: DeserializeOwned>(view: Value) -> T {
    serde_json::from_value(view).unwrap()
}

fn mode(enforcement: &str) -> (&'static str, String) {
    let policy: PolicyView = read(json!({
        "name": "search", "enforcement": enforcement, "toml": "", "revision": 1, "managed_by": "ui",
        "state": "published", "updated_by": "ann", "updated_at": 0,
    }));
    let (class, word) = PolicyMode::of(&policy, &[]).own.unwrap();
    (class, word.to_owned())
}

fn published(state: &str) -> (&'static str, String) {
    (publication::class(state), publication::word(state).to_owned())
}

fn suspension(active: bool, from: i64) -> (&'static str, String) {
    let view: SuspensionView = read(json!({
        "id": "1", "scope": "all", "enforcement": "deny", "from": from, "until": i64::MAX, "active": active,
    }));
    (view.class(), view.word().to_owned())
}

fn block(active: bool) -> (&'static str, String) {
    let view: BlockView = read(json!({ "id": "1", "key": "eve", "active": active }));
    (view.class(), view.word().to_owned())
}

fn token(state: &str) -> (&'static str, String) {
    let view: TokenView = read(json!({
        "id": "1", "name": "ci", "scopes": [], "state": state, "created_by": "ann", "expires_at": 0,
    }));
    (view.class(), view.word().to_owned())
}

fn trial(active: bool) -> (&'static str, String) {
    let none = json!({ "allowed": 0, "denied": 0 });
    let view: TrialView = read(json!({
        "sentence": "", "since": 0, "until": 0, "active": active, "policy": none, "trial": none,
    }));
    (view.class(), view.word().to_owned())
}

fn status(pending: i64, error: Option<&str>) -> StatusView {
    read(json!({
        "read_only": false, "registry_revision": 1, "pending": pending, "publisher_error": error,
        "alerts": [], "nodes": [], "database": "sqlite", "redis": "available", "now": 60_000_000,
    }))
}

fn node(seen: i64) -> (&'static str, String) {
    let (class, word) = status(0, None).node_state(PageTime(seen));
    (class, word.to_owned())
}

fn health(pending: i64, error: Option<&str>) -> (&'static str, String) {
    let health = Health::of(&status(pending, error));
    (health.class, health.text)
}

#[test]
fn states_have_the_class_of_their_meaning() {
    for ((class, word), expected) in [
        (mode("enforce"), ("ok", "Enforced")),
        (mode("shadow"), ("shadow", "Shadow")),
        (mode("off"), ("off", "Off")),
        (published("published"), ("ok", "In force")),
        (published("pending"), ("waiting", "Publishing")),
        (published("conflict"), ("bad", "Conflict")),
        (suspension(true, 0), ("bad", "Suspended")),
        (suspension(false, i64::MAX), ("waiting", "Planned")),
        (suspension(false, 0), ("off", "Ended")),
        (block(true), ("bad", "Blocked")),
        (block(false), ("off", "Ended")),
        (token("valid"), ("ok", "Valid")),
        (token("suspended"), ("waiting", "Suspended")),
        (token("revoked"), ("off", "Revoked")),
        (token("expired"), ("off", "Expired")),
        (trial(true), ("shadow", "Trial")),
        (trial(false), ("waiting", "Trial ended")),
        (node(59_000_000), ("ok", "Running")),
        (node(0), ("bad", "Late")),
        (health(0, None), ("ok", "All changes in force")),
        (health(1, None), ("waiting", "1 change not in force yet")),
        (health(1, Some("no Redis")), ("bad", "Cannot publish: no Redis")),
    ] {
        assert_eq!((class, word.as_str()), expected);
    }
}
