//! Alerts that are raised repeatedly, and by several nodes.

use limiter_server::store::Store;

pub(super) async fn alerts_are_raised_once(store: Store, _: &str) {
    for _ in 0..2 {
        store
            .raise_alert("prod", "kind", "detail", 1)
            .await
            .expect("raised");
    }
    let alerts = store.alerts("prod").await.expect("a list");
    assert_eq!(alerts.len(), 1);
    store
        .clear_alert("prod", alerts[0].id, "ann", 2)
        .await
        .expect("cleared");
    assert!(store.alerts("prod").await.expect("a list").is_empty());
    store
        .raise_alert("prod", "kind", "detail", 3)
        .await
        .expect("raised");
    assert_eq!(store.alerts("prod").await.expect("a list").len(), 1);
}

pub(super) async fn alert_of_two_nodes_is_raised_once(store: Store, url: &str) {
    let other_node = Store::open(url).await.expect("a store");
    for round in 0..20 {
        let detail = format!("round {round}");
        let (first, second) = tokio::join!(
            store.raise_alert("test", "kind", &detail, round),
            other_node.raise_alert("test", "kind", &detail, round),
        );
        first.and(second).expect("raised");
    }
    assert_eq!(store.alerts("test").await.expect("a list").len(), 20);
}
