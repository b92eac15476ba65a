//! Samples of denials.

use limiter_server::store::{DenialFilter, DenialSample, Store};

const HOUR: i64 = 3_600_000_000;
const MINUTE: i64 = 60_000_000;

fn sample(key: &str, start_at: i64, denied: i64) -> DenialSample {
    DenialSample {
        policy: "search".to_owned(),
        start_at,
        node: "n1".to_owned(),
        app: None,
        key: key.to_owned(),
        rule: Some("edge: route".to_owned()),
        revision: Some(denied),
        origin: Some("memory".to_owned()),
        first_at: start_at + 1,
        last_at: start_at + denied,
        error: 0,
        denied,
    }
}

fn denials_of_ann() -> DenialFilter<'static> {
    DenialFilter {
        namespace: "prod",
        policy: None,
        key: Some("ann"),
        range: (HOUR, 2 * HOUR),
        limit: 100,
    }
}

/// Sums only grow, and processes are separate sources.
pub(super) async fn higher_samples_replace_lower_ones(store: Store, _: &str) {
    let filter = denials_of_ann();
    for denied in [2, 7, 5] {
        let samples = [sample("ann", HOUR, denied), sample("bob", HOUR, denied)];
        store
            .record_denials("prod", "process", &samples)
            .await
            .expect("an answer");
    }
    let of_other = [sample("ann", HOUR + MINUTE, 1)];
    store
        .record_denials("prod", "other", &of_other)
        .await
        .expect("an answer");
    let found = store.denials(filter).await.expect("an answer");
    assert_eq!(
        found,
        [
            sample("ann", HOUR, 7),
            DenialSample {
                start_at: HOUR,
                ..sample("ann", HOUR + MINUTE, 1)
            }
        ]
    );
    assert_eq!(store.prune_denials(HOUR).await.expect("an answer"), 0);
    assert_eq!(store.prune_denials(HOUR + 1).await.expect("an answer"), 3);
    assert_eq!(store.denials(filter).await.expect("an answer"), []);
}

/// The end of a long key is not stored, so several keys of clients can be one in the database.
pub(super) async fn samples_of_one_stored_key_are_summed(store: Store, _: &str) {
    let samples = [
        sample("ann", HOUR, 2),
        sample("bob", HOUR, 1),
        DenialSample {
            error: 1,
            first_at: HOUR,
            ..sample("ann", HOUR, 5)
        },
    ];
    for _ in 0..2 {
        let recorded = store.record_denials("prod", "process", &samples).await;
        recorded.expect("an answer");
    }
    let filter = denials_of_ann();
    let found = store.denials(filter).await.expect("an answer");
    let summed = DenialSample {
        denied: 7,
        error: 1,
        first_at: HOUR,
        ..sample("ann", HOUR, 5)
    };
    assert_eq!(found, [summed]);
}
