//! Policies from other formats than TOML, by serde.

use limiter_core::Policy;
use limiter_core::registry::{PolicyEntry, PolicyRegistry};

fn policy(json: &str) -> Result<Policy, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

#[test]
fn each_policy_of_text_has_equal_map() {
    let pairs = [
        (
            r#"{"name":"a b","algorithm":"token_bucket","capacity":20,"rate":"10/s","deadline":"20ms","on_store_failure":"fail_open","lease":null}"#,
            "algorithm = \"token_bucket\"\ncapacity = 20\nrate = \"10/s\"\ndeadline = \"20ms\"\non_store_failure = \"fail_open\"",
        ),
        (
            r#"{"name":"a b","algorithm":"funnel","capacity":2.5,"rate":0.5,"paced":true,"group":"g\"\n"}"#,
            "algorithm = \"funnel\"\ncapacity = 2.5\nrate = 0.5\npaced = true\ngroup = \"g\\\"\\n\"",
        ),
        (
            r#"{"name":"a b","algorithm":"sliding_window","limit":5,"window":"1m","penalty":"10 in 1m: 15m","deny_keys":["10.0.0.0/8","user:*"]}"#,
            "algorithm = \"sliding_window\"\nlimit = 5\nwindow = \"1m\"\npenalty = \"10 in 1m: 15m\"\ndeny_keys = [\"10.0.0.0/8\", \"user:*\"]",
        ),
        (
            r#"{"name":"a b","algorithm":"fixed_window","limit":5,"window":"month","align":"+02:00","enforcement":"shadow"}"#,
            "algorithm = \"fixed_window\"\nlimit = 5\nwindow = \"month\"\nalign = \"+02:00\"\nenforcement = \"shadow\"",
        ),
        (
            r#"{"name":"a b","algorithm":"concurrency","max":4,"lease":"30s","generation":3}"#,
            "algorithm = \"concurrency\"\nmax = 4\nlease = \"30s\"\ngeneration = 3",
        ),
    ];
    for (json, text) in pairs {
        let registry = PolicyRegistry::from_toml(&format!("[policy.\"a b\"]\n{text}")).unwrap();
        let read = PolicyRegistry::new().with(PolicyEntry::new(policy(json).unwrap()));
        assert_eq!(read.to_toml(), registry.to_toml(), "{json}");
    }
}

/// The crate `toml` represents a time by a map with one field.
#[test]
fn time_of_toml_equals_text() {
    let toml = |time: &str| serde_json::json!({ "$__toml_private_datetime": time });
    let of = |time: &dyn Fn(&str) -> serde_json::Value| {
        let json = serde_json::json!({
            "name": "p", "algorithm": "token_bucket", "capacity": 2, "rate": "1/s",
            "deny_keys": ["eve", { "key": "bob", "until": time("2030-01-01T00:00:00Z") }],
            "trial": { "capacity": 5, "rate": "3/s", "until": time("2031-01-01T01:00:00+01:00") },
            "scaled": { "capacity": 1, "rate": "1/s", "at": time("2026-11-22T10:00:00Z") },
        });
        serde_json::from_value::<Policy>(json)
    };
    let text = |time: &str| serde_json::Value::from(time);
    assert_eq!(of(&toml).unwrap(), of(&text).unwrap());
    let error = of(&|_| toml("2030-01-01")).unwrap_err().to_string();
    assert!(
        error.contains("expected a time after 1970 with its offset"),
        "{error}"
    );
}

#[test]
fn invalid_map_is_rejected_with_all_errors() {
    for (json, expected) in [
        (r#"{"algorithm":"funnel"}"#, "missing field `name`"),
        (r#"{"name":null}"#, "missing field `name`"),
        (r#"{"name":7}"#, "the policy's name is 7, expected a text"),
        (
            r#"{"name":"p","algorithm":"token_bucket","capacity":0,"rate":"x","burst":1}"#,
            "policy.p.",
        ),
        (
            r#"{"name":"p","algorithm":"funnel","apps":["a"]}"#,
            "policy.p.apps is a field of a registry entry",
        ),
        (
            r#"{"name":"p","algorithm":"funnel","capacity":18446744073709551615}"#,
            "a number is too large",
        ),
        (
            r#"{"name":"p","deny_keys":[null]}"#,
            "a list contains null, expected values",
        ),
        (r#"{"name":"p"}"#, "policy.p.algorithm is missing"),
        (
            r#"{"name":"p","algorithm":"sliding_window","limit":5,"window":"1m","limit":5000}"#,
            "duplicate field `limit`",
        ),
        (
            r#"{"name":"p","trial":{"capacity":1,"capacity":2}}"#,
            "duplicate field `capacity`",
        ),
        (r#""p""#, "invalid type: string \"p\", expected a map"),
    ] {
        let error = policy(json).unwrap_err();
        assert!(error.contains(expected), "{json}: {error}");
    }
    let several = policy(r#"{"name":"p","algorithm":"token_bucket","capacity":0,"rate":"x","burst":1}"#);
    let several = several.unwrap_err();
    for field in ["capacity", "rate", "burst"] {
        assert!(several.contains(&format!("policy.p.{field}")), "{several}");
    }
}

#[test]
fn text_of_field_cannot_add_fields() {
    let name = "p]\nenforcement = \"off\"\n[policy.q";
    let json = serde_json::json!({
        "name": name, "algorithm": "funnel", "capacity": 1, "rate": "1/s", "group": "g\"\nenforcement = \"off",
    });
    let policy: Policy = serde_json::from_value(json).unwrap();
    assert_eq!(policy.name(), name);
    assert_eq!(policy.enforcement(), limiter_core::Enforcement::Enforce);
}
