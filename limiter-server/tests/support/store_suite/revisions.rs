//! The version of a document at a time.

use limiter_server::store::{DocumentKind, ImportedDocument, OutsideChange, SaveRequest, Store};

use super::{author, save};

/// The number of the version of a time.
async fn number_at(store: &Store, namespace: &str, document: (DocumentKind, &str), at: i64) -> Option<i64> {
    let found = store.revision_at(namespace, document, at).await;
    found.expect("readable").map(|of| of.number)
}

pub(super) async fn revision_of_a_time_is_found(store: Store, _: &str) {
    let search = (DocumentKind::Policy, "search");
    for (expected, at) in [(0, 10), (1, 20)] {
        let saved = store.save(&save("search", expected), &author("ann", at)).await;
        saved.expect("saved");
    }
    let deletion = SaveRequest {
        is_deletion: true,
        ..save("search", 2)
    };
    store.save(&deletion, &author("bob", 30)).await.expect("deleted");
    for (at, number) in [
        (9, None),
        (10, Some(1)),
        (19, Some(1)),
        (20, Some(2)),
        (i64::MAX, Some(3)),
    ] {
        assert_eq!(number_at(&store, "prod", search, at).await, number, "at {at}");
    }
    let found = store.revision_at("prod", search, 30).await.expect("readable");
    assert!(found.is_some_and(|of| of.is_deletion && of.author == "bob"));
    assert_eq!(number_at(&store, "staging", search, 30).await, None);
    assert_eq!(
        number_at(&store, "prod", (DocumentKind::Rules, "search"), 30).await,
        None
    );
}

/// An edit that another program replaced was never in force.
pub(super) async fn revision_of_a_time_has_no_conflict(store: Store, _: &str) {
    let saved = store.save(&save("search", 0), &author("ann", 10)).await;
    saved.expect("saved");
    let change = OutsideChange {
        expected: 0,
        registry_revision: 70,
        documents: vec![ImportedDocument {
            kind: DocumentKind::Policy,
            name: "search".to_owned(),
            body: "outside".to_owned(),
            is_deletion: false,
            apps: None,
            note: None,
            summary: None,
        }],
        restored: None,
    };
    let imported = store.import("prod", &change, &author("outside", 20)).await;
    assert!(imported.expect("imported"));
    let search = (DocumentKind::Policy, "search");
    assert_eq!(number_at(&store, "prod", search, 15).await, None);
    assert_eq!(number_at(&store, "prod", search, 20).await, Some(2));
}
