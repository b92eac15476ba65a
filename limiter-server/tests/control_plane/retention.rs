//! Old records are removed, by the time that the test states.

use std::time::Duration;

use limiter_server::retention::{PrunedRecords, prune};
use limiter_server::settings::{RetentionSettings, Settings};
use limiter_server::store::{
    AuditFilter, DenialSample, DocumentKind, DocumentState, ImportedDocument, NewStoredToken, OVERLAYS,
    OutsideChange, Store, TokenChange, UsageKind, UsageSpan, UsageTotals,
};

use crate::support::databases::texts;
use crate::support::saves::author;
use crate::support::server::{Directory, Server, wait_until};
use crate::{bucket, open, save};

const DAY: i64 = 86_400_000_000;
/// 2030-01-01T00:00:00Z.
const END: i64 = 1_893_456_000_000_000;

async fn prune_at(store: &Store, settings: &RetentionSettings, now: i64) -> PrunedRecords {
    prune(store, settings, &["prod".to_owned()], now).await.unwrap()
}

async fn body_of(store: &Store, kind: DocumentKind, name: &str) -> String {
    store.document("prod", kind, name).await.unwrap().unwrap().body
}

#[tokio::test]
async fn ended_quotas_and_overlays_are_removed_thirty_days_after_their_end() {
    let directory = Directory::new();
    let store = open(&directory).await;
    let quotas = "[[override]]\npolicy = 'search'\nkey = 'ann'\ncapacity = 9\nrate = '9/s'\nuntil = 2030-01-01T00:00:00Z\n\
                  [[override]]\npolicy = 'search'\nkey = 'bob'\ncapacity = 9\nrate = '9/s'\n";
    save(
        &store,
        DocumentKind::Policy,
        "search",
        0,
        &bucket("search", quotas),
        1,
    )
    .await;
    let overlays = "[[suspend]]\nscope = 'all'\nenforcement = 'off'\nuntil = 2030-01-01T00:00:00Z\n\
                    [[block]]\nkey = 'eve'\nuntil = 2030-01-01T00:00:00Z\n[[block]]\nkey = 'mallory'\n";
    save(&store, DocumentKind::Overlays, OVERLAYS, 0, overlays, 1).await;
    let settings = RetentionSettings::default();
    let pruned = prune_at(&store, &settings, END + 30 * DAY - 1).await;
    assert_eq!(pruned, PrunedRecords::default());
    let pruned = prune_at(&store, &settings, END + 30 * DAY).await;
    assert_eq!(pruned.documents, 2);
    let policy = body_of(&store, DocumentKind::Policy, "search").await;
    assert!(policy.contains("bob") && !policy.contains("ann"), "{policy}");
    let overlays = body_of(&store, DocumentKind::Overlays, OVERLAYS).await;
    assert!(
        overlays.contains("mallory") && !overlays.contains("eve") && !overlays.contains("suspend"),
        "{overlays}"
    );
    // The revisions stay.
    let first = store.revision("prod", DocumentKind::Policy, "search", 1).await;
    assert!(first.unwrap().unwrap().body.contains("ann"));
    assert_eq!(prune_at(&store, &settings, END + 31 * DAY).await.documents, 0);
}

/// The author of an edit in conflict must still be asked to save it again.
#[tokio::test]
async fn ended_quotas_of_a_document_in_conflict_stay() {
    let directory = Directory::new();
    let store = open(&directory).await;
    let quota = "[[override]]\npolicy = 'search'\nkey = 'ann'\ncapacity = 9\nrate = '9/s'\n\
                 until = 2030-01-01T00:00:00Z\n";
    let policy = DocumentKind::Policy;
    save(&store, policy, "search", 0, &bucket("search", ""), 1).await;
    let published = [(policy, "search".to_owned(), 1)];
    store.confirm("prod", 7, &published, 1).await.unwrap();
    save(&store, policy, "search", 1, &bucket("search", "group = 'g'"), 2).await;
    let change = OutsideChange {
        expected: 7,
        registry_revision: 8,
        documents: vec![ImportedDocument {
            kind: policy,
            name: "search".to_owned(),
            body: bucket("search", quota),
            is_deletion: false,
            apps: None,
            note: None,
            summary: None,
        }],
        restored: None,
    };
    assert!(
        store
            .import("prod", &change, &author("outside", 3))
            .await
            .unwrap()
    );
    let pruned = prune_at(&store, &RetentionSettings::default(), END + 31 * DAY).await;
    assert_eq!(pruned.documents, 0);
    let found = store.document("prod", policy, "search").await.unwrap().unwrap();
    assert_eq!(found.state, DocumentState::Conflict);
}

#[tokio::test]
async fn counts_are_removed_by_settings() {
    let directory = Directory::new();
    directory.write(
        "limiter-server.toml",
        "database = 'sqlite:unused.db'\n[retention]\nusage_minutes = '1h'\nusage_hours = '2h'\n",
    );
    let settings = settings_of(&directory);
    assert_eq!(settings.audit, Duration::from_secs(400 * 86_400));
    let store = open(&directory).await;
    let totals = UsageTotals {
        allowed: 1,
        ..UsageTotals::default()
    };
    let counts = [("search".to_owned(), totals)];
    for kind in UsageKind::ALL {
        store.add_usage("prod", kind, END, &counts).await.unwrap();
    }
    let count = async |span| {
        let points = store.usage(("prod", "search"), UsageKind::Policy, span, (0, i64::MAX));
        points.await.unwrap().len()
    };
    assert_eq!(prune_at(&store, &settings, END + DAY / 24).await.counts, 0);
    assert_eq!(prune_at(&store, &settings, END + DAY / 24 + 1).await.counts, 4);
    assert_eq!(
        (count(UsageSpan::Minute).await, count(UsageSpan::Hour).await),
        (0, 1)
    );
    assert_eq!(prune_at(&store, &settings, END + DAY / 12 + 1).await.counts, 4);
    assert_eq!(count(UsageSpan::Hour).await, 0);
}

#[tokio::test]
async fn tokens_are_removed_thirty_days_after_their_end() {
    let directory = Directory::new();
    let store = open(&directory).await;
    for (id, expires_at) in [
        ("expired", END),
        ("revoked", END + 90 * DAY),
        ("valid", END + 90 * DAY),
    ] {
        let token = NewStoredToken {
            id: id.to_owned(),
            hash: id.to_owned(),
            label: id.to_owned(),
            namespace: "prod".to_owned(),
            scopes: "check:*".to_owned(),
            created_by: "ann".to_owned(),
            issued_by: "ann".to_owned(),
            created_at: 1,
            expires_at,
        };
        store.add_token(&token, None).await.unwrap();
    }
    let revoke = store.change_token("prod", "revoked", TokenChange::Revoke, "ann", END);
    revoke.await.unwrap();
    let settings = RetentionSettings::default();
    let pruned = prune_at(&store, &settings, END + 30 * DAY - 1).await;
    assert_eq!(pruned, PrunedRecords::default());
    assert_eq!(prune_at(&store, &settings, END + 30 * DAY).await.tokens, 2);
    let kept = store.tokens("prod").await.unwrap();
    assert!(matches!(&*kept, [token] if token.id == "valid"), "{kept:?}");
}

#[tokio::test]
async fn samples_of_denials_are_removed_after_thirty_days() {
    let directory = Directory::new();
    let store = open(&directory).await;
    let sample = DenialSample {
        policy: "search".to_owned(),
        start_at: END,
        node: "n1".to_owned(),
        app: None,
        key: "ann".to_owned(),
        rule: None,
        revision: None,
        origin: None,
        first_at: END,
        last_at: END,
        error: 0,
        denied: 1,
    };
    store.record_denials("prod", "process", &[sample]).await.unwrap();
    let settings = RetentionSettings::default();
    assert_eq!(prune_at(&store, &settings, END + 30 * DAY).await.denials, 0);
    assert_eq!(prune_at(&store, &settings, END + 30 * DAY + 1).await.denials, 1);
    directory.write(
        "limiter-server.toml",
        "database = 'sqlite:unused.db'\n[retention]\ndenials = '2h'\n",
    );
    assert_eq!(settings_of(&directory).denials, Duration::from_secs(7_200));
}

/// The settings of a directory's settings file.
fn settings_of(directory: &Directory) -> RetentionSettings {
    let path = directory.path().join("limiter-server.toml");
    let settings = Settings::of_file(&path).unwrap();
    settings.control.unwrap().retention
}

#[tokio::test]
async fn old_audit_is_moved_to_files_and_the_newest_entry_stays() {
    let directory = Directory::new();
    let store = open(&directory).await;
    for object in ["first", "second", "third"] {
        store
            .record("prod", "ann", "policy.create", object, END)
            .await
            .unwrap();
    }
    let mut settings = RetentionSettings::default();
    // Without a directory, nothing is removed.
    assert_eq!(prune_at(&store, &settings, END + 401 * DAY).await.audit, 0);
    settings.audit_export = Some(directory.path().join("audit"));
    assert_eq!(prune_at(&store, &settings, END + 400 * DAY).await.audit, 0);
    let newest = store.newest_change().await.unwrap();
    assert_eq!(prune_at(&store, &settings, END + 401 * DAY).await.audit, 2);
    assert_eq!(store.newest_change().await.unwrap(), newest);
    let filter = AuditFilter {
        namespace: "prod".to_owned(),
        object: None,
        actor: None,
        before: i64::MAX,
        limit: 10,
        includes_users: false,
    };
    let left = store.audit(&filter).await.unwrap();
    assert_eq!((left.len(), left[0].object.as_str()), (1, "third"));
    let exported = std::fs::read_to_string(directory.path().join("audit/audit-2030-01.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = exported
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&lines[0]["object"], &lines[1]["object"]),
        (&"first".into(), &"second".into())
    );
    assert_eq!(lines[0]["actor"], "ann");
}

#[tokio::test]
async fn one_node_at_a_time_runs_a_task() {
    let directory = Directory::new();
    let store = open(&directory).await;
    assert!(store.claim_task("prune", "one", 0, 10).await.unwrap());
    assert!(!store.claim_task("prune", "two", 5, 15).await.unwrap());
    assert!(store.claim_task("prune", "one", 5, 15).await.unwrap());
    assert!(!store.claim_task("prune", "two", 14, 24).await.unwrap());
    assert!(store.claim_task("prune", "two", 15, 25).await.unwrap());
    assert!(!store.claim_task("prune", "one", 16, 26).await.unwrap());
    assert!(store.claim_task("other", "one", 16, 26).await.unwrap());
}

#[test]
fn running_server_removes_old_records() {
    let directory = Directory::new();
    crate::support::databases::block_on(async {
        let store = open(&directory).await;
        let totals = UsageTotals {
            allowed: 1,
            ..UsageTotals::default()
        };
        let counts = [("search".to_owned(), totals)];
        store
            .add_usage("default", UsageKind::Policy, DAY, &counts)
            .await
            .unwrap();
        store.close().await;
    });
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let sql = format!("SELECT policy FROM usage_count WHERE start_at <= {DAY}");
    let old = || texts(&url, &sql).len();
    assert_eq!(old(), 2, "a minute and an hour");
    let server = Server::start(directory, &["--database", &url, "--admin", "127.0.0.1:0"]);
    wait_until(|| old() == 0, || server.log());
}
