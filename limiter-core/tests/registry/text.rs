//! Text form of registries.

use limiter_core::registry::RateType;
use limiter_core::registry::{KeyOverride, PolicyEntry, PolicyMetadata, PolicyRegistry, RegistryError};
use limiter_core::{Key, OnStoreFailure, Policy, Timestamp};

use crate::support::{millis, secs};
use crate::text_errors::result;

const ALL: &str = r#"# A comment.
revision = 7

[policy.search]
algorithm = "token_bucket"
capacity = 20
rate = "10/s"
group = "all"
deadline = "20ms"
on_store_failure = "fail_closed"
lease = "1s"
apps = ["mobile", "checkout"]
until = 2030-01-01T00:00:00Z
rate_type = "per_client"

[policy."mail out"]
algorithm = "sliding_window"
limit = 1_000
window = "1h30m"

[policy]
upload = { algorithm = "funnel", capacity = 2.5, rate = 0x10 }

[[override]]
policy = "search"
key = "user:7"
capacity = 100
rate = 50
until = 2030-01-01T00:00:00+01:00

[[override]]
policy = "mail out"
escaped_key = "user:a%3Ab"
group = "tenant 3"
limit = 5
window = "1s"
until = "2030-01-01 00:00:00.000001Z"
"#;

#[test]
fn text_covers_all_policy_options() {
    let registry = PolicyRegistry::from_toml(ALL).unwrap();
    assert_eq!(registry.names(), ["mail out", "search", "upload"]);
    let search = Policy::token_bucket("search").capacity(20).rate(10).group("all");
    let search = search
        .deadline(millis(20))
        .on_store_failure(OnStoreFailure::FailClosed);
    let search = search.lease("1s").build().unwrap();
    let entry = PolicyEntry::new(search).for_apps(["checkout", "mobile"]).unwrap();
    let entry = entry.until(Timestamp::from_micros(1_893_456_000_000_000));
    let entry = entry.with_rate_type(RateType::PerClient);
    assert_eq!(*registry.get("search").unwrap(), entry);
    let upload = Policy::funnel("upload").capacity(2.5).rate(16).build().unwrap();
    assert_eq!(*registry.get("upload").unwrap().policy(), upload);
    let mail = |limit: u32, window| {
        let mail = Policy::sliding_window("mail out").limit(limit).window(window);
        mail.build().unwrap()
    };
    assert_eq!(
        *registry.get("mail out").unwrap().policy(),
        mail(1_000, secs(5_400))
    );

    let own = registry.overrides("search");
    let numbers = Policy::token_bucket("search").capacity(100).rate(50);
    let end = Timestamp::from_micros(1_893_452_400_000_000);
    assert_eq!(
        *own[0],
        KeyOverride::new(numbers.build().unwrap(), "user:7").until(end)
    );
    let own = registry.overrides("mail out");
    let key = Key::from("user:").part("a:b").in_group("tenant 3");
    let end = Timestamp::from_micros(1_893_456_000_000_001);
    assert_eq!(*own[0], KeyOverride::new(mail(5, secs(1)), key).until(end));
}

#[test]
fn registry_text_round_trips() {
    let registry = PolicyRegistry::from_toml(ALL).unwrap();
    let text = registry.to_toml();
    assert_eq!(
        text,
        r#"format = 1
min_reader = 1

[policy."mail out"]
algorithm = "sliding_window"
limit = 1000
window = "1h30m"

[policy."search"]
algorithm = "token_bucket"
capacity = 20
rate = "10/s"
group = "all"
deadline = "20ms"
on_store_failure = "fail_closed"
lease = "1s"
apps = ["checkout", "mobile"]
until = 2030-01-01T00:00:00Z
rate_type = "per_client"

[policy."upload"]
algorithm = "funnel"
capacity = 2.5
rate = "16/s"

[[override]]
policy = "mail out"
escaped_key = "user:a%3Ab"
group = "tenant 3"
limit = 5
window = "1s"
until = 2030-01-01T00:00:00.000001Z

[[override]]
policy = "search"
key = "user:7"
capacity = 100
rate = "50/s"
until = 2029-12-31T23:00:00Z
"#
    );
    assert_eq!(PolicyRegistry::from_toml(&text).unwrap().to_toml(), text);
    let empty = PolicyRegistry::from_toml("").unwrap().to_toml();
    assert_eq!(empty, "format = 1\nmin_reader = 1\n");
}

#[test]
fn metadata_of_a_policy_is_read_and_written() {
    let text = "[policy.p]
algorithm = 'funnel'
capacity = 1
rate = 1
created_by = 'ann'
created_at = 2026-11-22T10:00:00Z
updated_by = 'bob <bob@example.org>'
updated_at = '2026-11-23 11:00:00+01:00'
note = \"\"\"first line
second \\\"line\\\"\"\"\"
";
    let registry = PolicyRegistry::from_toml(text).unwrap();
    let metadata = PolicyMetadata::new()
        .with_created_by("ann")
        .with_created_at(Timestamp::from_micros(1_795_341_600_000_000))
        .with_updated_by("bob <bob@example.org>")
        .with_updated_at(Timestamp::from_micros(1_795_428_000_000_000))
        .with_note("first line\nsecond \"line\"");
    let entry = registry.get("p").unwrap();
    assert_eq!(*entry.metadata(), metadata);
    let again = PolicyRegistry::from_toml(&registry.to_toml()).unwrap();
    assert_eq!(again.get("p").unwrap(), entry);
    let plain = PolicyEntry::new(entry.policy().clone());
    assert!(plain.metadata().is_empty() && plain != *entry);
    assert_eq!(plain.clone().with_metadata(PolicyMetadata::new()), plain);
    assert_eq!(
        result("policy.p = { algorithm = 'funnel', capacity = 1, rate = 1, note = 7, updated_at = 'now' }"),
        [
            "text:1:67: policy.p.note is 7, expected text, in quotes",
            "text:1:83: policy.p.updated_at is 'now', expected a time after 1970 with its offset, such as 2030-12-31T23:59:59Z",
        ]
    );
}

#[test]
fn parts_of_keys_are_declared() {
    let text = "[policy.p]\nalgorithm = 'funnel'\ncapacity = 1\nrate = 1\nkey = ['tenant', 'user']\n";
    let registry = PolicyRegistry::from_toml(text).unwrap();
    let entry = registry.get("p").unwrap();
    assert_eq!(entry.key_parts().collect::<Vec<_>>(), ["tenant", "user"]);
    let again = PolicyRegistry::from_toml(&registry.to_toml()).unwrap();
    assert_eq!(again.get("p").unwrap(), entry);
    assert_eq!(
        result("policy.p = { algorithm = 'funnel', capacity = 1, rate = 1, key = ['tenant', ''] }"),
        ["text:1:77: policy.p.key[1] is '', expected 1 to 256 bytes"]
    );
}

#[test]
fn text_for_newer_readers_is_rejected_as_a_whole() {
    let text = "format = 4\nmin_reader = 4\n[policy.p]\nalgorithm = 'quantum'\n";
    let error = PolicyRegistry::from_toml(text).unwrap_err();
    assert!(
        matches!(
            error,
            RegistryError::NewerFormat {
                min_reader: 4,
                reader: PolicyRegistry::FORMAT,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "text: the text needs a reader of format 4, and this program reads format 3: update the program"
    );
    assert!(PolicyRegistry::from_toml("format = 7\nmin_reader = 1").is_ok());
    let huge = PolicyRegistry::from_toml("min_reader = 99999999999");
    assert!(matches!(huge, Err(RegistryError::NewerFormat { .. })), "{huge:?}");
    assert_eq!(
        result("format = '1'\nmin_reader = 0"),
        [
            "text:1:10: format is '1', expected a whole number from 1",
            "text:2:14: min_reader is 0, expected a whole number from 1",
        ]
    );
}

#[test]
fn text_contains_previous_policy() {
    let text = "
        [policy.b]
        algorithm = 'token_bucket'
        capacity = 100
        rate = '10/s'
        generation = 3
        scaled = { capacity = 10, rate = 1, at = 2026-11-22T10:00:00Z }

        [policy.f]
        algorithm = 'fixed_window'
        limit = 5
        window = 'month'
        align = 'utc'
        scaled = { limit = 7, window = '1d', align = '+02:00', at = '2026-11-22 10:00:00.5Z' }
    ";
    let registry = PolicyRegistry::from_toml(text).unwrap();
    let at = Timestamp::from_micros(1_795_341_600_000_000);
    let bucket = |capacity: u32, rate: u32| Policy::token_bucket("b").capacity(capacity).rate(rate).build();
    let bucket = bucket(100, 10)
        .unwrap()
        .with_generation(3)
        .proportional_to(&bucket(10, 1).unwrap(), at);
    assert_eq!(*registry.get("b").unwrap().policy(), bucket.unwrap());
    let window = registry.get("f").unwrap();
    let (before, at) = window.policy().before().unwrap();
    assert_eq!(before.to_string(), "f (fixed window: 7 in each 1d of +02:00)");
    assert_eq!(at.as_micros(), 1_795_341_600_500_000);

    let written = registry.to_toml();
    let again = PolicyRegistry::from_toml(&written).unwrap();
    for name in ["b", "f"] {
        assert_eq!(again.get(name), registry.get(name), "{written}");
    }
}

#[test]
fn key_override_in_months_is_an_error() {
    let text = |window: &str| {
        format!(
            "policy.p = {{ algorithm = 'fixed_window', limit = 5, window = 'month', align = 'utc' }}\n\
             override = [{{ policy = 'p', key = 'k', limit = 9, window = '{window}' }}]\n"
        )
    };
    for window in ["1d", "7h", "30d"] {
        assert!(PolicyRegistry::from_toml(&text(window)).is_ok(), "{window}");
    }
    for (window, expected) in [
        ("month", "`align`"),
        ("1 month", "or `week`, or (for a fixed window) `month`"),
    ] {
        let result = PolicyRegistry::from_toml(&text(window)).unwrap_err().to_string();
        assert!(result.contains(expected), "{result}");
    }
}
