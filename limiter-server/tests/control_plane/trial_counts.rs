//! The decisions of a trial that is older than the counts by minute.

use std::time::Duration;

use limiter_server::retention::prune;
use limiter_server::settings::RetentionSettings;
use limiter_server::store::{SaveRequest, UsageKind, UsageTotals, now_micros};
use serde_json::json;

use crate::support::admin::{AdminClient, with_database};
use crate::support::saves::{author, policy_change};
use crate::support::server::Directory;
use crate::{bucket, open};

const HOUR: i64 = 3_600_000_000;

fn denied(count: i64) -> [(String, UsageTotals); 1] {
    let totals = UsageTotals {
        denied: count,
        ..UsageTotals::default()
    };
    [("search".to_owned(), totals)]
}

#[test]
fn trial_counts_decisions_from_before_the_kept_minutes() {
    let directory = Directory::new();
    directory.write("limiter-server.toml", "[retention]\nusage_minutes = '1h'\n");
    let now = now_micros();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open(&directory).await;
        let trial = "trial = { capacity = 9, rate = '9/h', until = 2100-01-01T00:00:00Z }";
        let saved = SaveRequest {
            namespace: "default".to_owned(),
            ..policy_change("search", 0, bucket("search", trial))
        };
        store.save(&saved, &author("ann", now - 4 * HOUR)).await.unwrap();
        for (kind, count) in [(UsageKind::Policy, 5), (UsageKind::Trial, 3)] {
            let counts = denied(count);
            let added = store.add_usage("default", kind, now - 3 * HOUR, &counts);
            added.await.unwrap();
        }
        let mut settings = RetentionSettings::default();
        settings.usage_minutes = Duration::from_secs(3_600);
        prune(&store, &settings, &[], now).await.unwrap();
        store.close().await;
    });
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let server = with_database(directory, &url, &[]);
    let root = AdminClient::set_up(&server);
    let trial = root.get("/namespaces/default/policies/search/trial").json();
    let counts = (&trial["policy"]["denied"], &trial["trial"]["denied"]);
    assert_eq!(counts, (&json!(5), &json!(3)), "{trial}");
    // A short range in an earlier hour, which is whole.
    let range = format!("from={}&to={}", now - 3 * HOUR, now - 3 * HOUR + 1);
    let sums = root.get(&format!("/namespaces/default/usage?{range}")).json();
    assert_eq!(sums["policies"][0]["denied"], 5, "{sums}");
    let path = "/namespaces/default/usage?from=-9223372036854775808";
    assert_eq!(root.get(path).status, 200);
}
