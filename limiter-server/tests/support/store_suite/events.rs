//! The events of the webhook, which are read behind a position.

use limiter_server::store::{AuditEntry, Store};

use super::super::saves::author;
use super::save;

fn objects(events: &[AuditEntry]) -> Vec<&str> {
    events.iter().map(|of| of.object.as_str()).collect()
}

/// The clock of a node is ahead, or a save has waited for a lock since its time.
pub(super) async fn event_with_a_later_time_is_not_passed_over(store: Store, _: &str) {
    const SECOND: i64 = 1_000_000;
    const NOW: i64 = 1_800_000_000 * SECOND;
    let cursor = store.newest_change().await.expect("a number");
    for (name, at) in [
        ("first", NOW - 3 * SECOND),
        ("ahead", NOW),
        ("last", NOW - 3 * SECOND),
    ] {
        store
            .save(&save(name, 0), &author("ann", at))
            .await
            .expect("saved");
    }
    let read = |before| {
        let store = store.clone();
        async move { store.events_after(cursor, before, 10).await.expect("a list") }
    };
    assert_eq!(objects(&read(NOW - 2 * SECOND).await), ["first"]);
    assert_eq!(objects(&read(NOW).await), ["first"]);
    let all = ["first", "ahead", "last"];
    assert_eq!(objects(&read(NOW + SECOND).await), all);
    assert!(read(NOW - 3 * SECOND).await.is_empty());
    // The time of a clock that was far ahead delays no event.
    assert_eq!(objects(&read(NOW - 3_600 * SECOND).await), all);
}
