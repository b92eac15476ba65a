//! Errors of texts of registries, with their positions.

use limiter_core::registry::{PolicyRegistry, RegistryError};

/// Returns the errors of a text.
pub(crate) fn result(text: &str) -> Vec<String> {
    match PolicyRegistry::from_toml(text) {
        Err(RegistryError::Parse { errors }) => errors.iter().map(ToString::to_string).collect(),
        other => unreachable!("{text}: {other:?}"),
    }
}

/// One error for each case, in an otherwise valid policy or override.
#[test]
fn error_has_position_and_expectation() {
    const RATE: &str = "permits per time, such as 10/s, 100/min, 7/3s or 1/30d";
    const DURATION: &str = "a number with a unit, such as 500ms, 10s, 1m, 1h30m or 7d";
    const AMOUNT: &str = "a number such as 20, 1_000 or 0.5, with at most three decimals";
    const SETTINGS: &str = "group, deadline, on_store_failure, lease, enforcement, on_denial, penalty, allow_keys, deny_keys, apps, key, \
                            until, rate_type, generation, scaled, trial, created_by, created_at, updated_by, updated_at, note";
    const APPS: &str = "a list of apps, such as [\"checkout\"]";
    const END: &str = "a time after 1970 with its offset, such as 2030-12-31T23:59:59Z";
    let bucket = |line: &str, is: &str, expected: &str| {
        let lines = ["algorithm = 'token_bucket'", "capacity = 2", "rate = '1/s'"];
        let field = line.split(' ').next().unwrap();
        let kept = lines.iter().filter(|kept| !kept.starts_with(field));
        let lines: Vec<&str> = std::iter::once(line).chain(kept.copied()).collect();
        let text = format!("[policy.p]\n{}", lines.join("\n"));
        let column = if is.contains("unknown") {
            1
        } else {
            field.len() + 4
        };
        let message = format!("text:2:{column}: policy.p.{field} is {is}, expected {expected}");
        assert_eq!(result(&text), [message], "{text}");
    };
    let same = |line: &str, expected: &str| {
        let value = line.split_once(" = ").unwrap().1;
        bucket(line, value, expected);
    };
    same("rate = \"10\"", RATE);
    same("rate = '10/fortnight'", RATE);
    same("rate = true", RATE);
    same("rate = 0", "more than zero permits in more than zero time");
    same("rate = -1", AMOUNT);
    same("rate = nan", AMOUNT);
    same("capacity = '20'", AMOUNT);
    same("capacity = -1", AMOUNT);
    same("capacity = 0.0001", AMOUNT);
    same("capacity = inf", AMOUNT);
    same("capacity = 1e3", AMOUNT);
    same("capacity = 0", "more than zero and at most 4503599627370.496");
    same("capacity = 99999999999999999999", AMOUNT);
    same(
        "algorithm = 'leaky'",
        "one of \"token_bucket\", \"funnel\", \"sliding_window\", \"counter_window\", \"fixed_window\", \"concurrency\"",
    );
    same(
        "algorithm = 3",
        "one of \"token_bucket\", \"funnel\", \"sliding_window\", \"counter_window\", \"fixed_window\", \"concurrency\"",
    );
    same("group = 3", "text, in quotes");
    same("group = ''", "1 to 256 bytes");
    same("deadline = 50", DURATION);
    same("deadline = '50'", DURATION);
    same("deadline = '0s'", "more than zero and at most an hour");
    same("lease = '1ms'", "10 ms to an hour");
    same(
        "on_store_failure = 'panic'",
        "one of \"local\", \"fail_open\", \"fail_closed\", \"error\"",
    );
    same(
        "on_store_failure = ['local']",
        "one of \"local\", \"fail_open\", \"fail_closed\", \"error\"",
    );
    same("apps = 'checkout'", APPS);
    same("apps = []", "at least one, or no list for all");
    same("until = 2030-01-01", END);
    same("rate_type = 'each'", "\"overall\" or \"per_client\"");
    same("rate_type = 3", "\"overall\" or \"per_client\"");
    let fields = format!("algorithm, capacity, rate, {SETTINGS}");
    bucket("capcity = 2", "unknown", &fields);
    bucket("window = '1s'", "unknown", &fields);

    for (text, message) in [
        (
            "policy = 3",
            "1:10: policy is 3, expected tables such as [policy.search]",
        ),
        ("policy.p = 3", "1:12: policy.p is 3, expected a table"),
        (
            "[polcy.p]",
            "1:2: polcy is unknown, expected policy, override, rule, suspend, block, revision, format or min_reader",
        ),
        ("revision = '7'", "1:12: revision is '7', expected a whole number"),
        (
            "[[policy]]",
            "1:1: policy is [[policy]], expected tables such as [policy.search]",
        ),
        (
            "override = 3",
            "1:12: override is 3, expected tables such as [[override]]",
        ),
        ("[policy.p]", "1:9: policy.p.algorithm is missing"),
        ("[policy.\"a b\"]", "1:9: policy.\"a b\".algorithm is missing"),
        (
            "[policy.p]\nalgorithm = 'funnel'\ncapacity = 1",
            "1:9: policy.p.rate is missing",
        ),
        (
            "policy.p = { algorithm = 'sliding_window', limit = 0.5, window = '1s' }",
            "1:52: policy.p.limit is 0.5, expected whole permits from 1 to 1048576",
        ),
        (
            "policy.p = { algorithm = 'sliding_window', limit = 1, window = '1s', lease = '1s' }",
            "1:78: policy.p.lease is '1s', expected none for an exact window, which needs the time of each permit",
        ),
        (
            "policy.p = { algorithm = 'funnel', capacity = 1, rate = 1, apps = ['a', 2] }",
            "1:73: policy.p.apps[1] is 2, expected the name of an app, in quotes",
        ),
        (
            "policy.p = { algorithm = 'funnel', capacity = 1, rate = 1, apps = ['a', ''] }",
            "1:73: policy.p.apps[1] is '', expected 1 to 256 bytes",
        ),
        (
            "policy.'' = { algorithm = 'funnel', capacity = 1, rate = 1 }",
            "1:8: policy.\"\": policy name, expected 1 to 256 bytes",
        ),
        ("[policy.p]\n[policy.p]", "2:9: duplicate key"),
        (
            "[policy.p]\nalgorithm = token_bucket # unquoted",
            "2:13: token_bucket is not a value, expected text in quotes: \"token_bucket\"",
        ),
        (
            "policy.p = { rate = 10/s, capacity = 2 }",
            "1:21: 10/s is not a value, expected text in quotes: \"10/s\"",
        ),
        (
            "policy.p.deny_keys = [ 10.0.0.0/8 ]",
            "1:24: 10.0.0.0/8 is not a value, expected text in quotes: \"10.0.0.0/8\"",
        ),
        (
            "policy.p.align = +02:00",
            "1:18: +02:00 is not a value, expected text in quotes: \"+02:00\"",
        ),
        (
            "policy.p.paced = True",
            "1:18: True is not a value, expected true in lower case",
        ),
        (
            "policy.p.rate =",
            "1:16: a value is missing, expected text in quotes, a number, true or false, a list or a table",
        ),
        (
            "[policy.p]\nalgorithm = 'funnel",
            "2:20: invalid literal string, expected `'`",
        ),
    ] {
        assert_eq!(result(text), [format!("text:{message}")], "{text}");
    }

    let own = |lines: &str, message: &str| {
        let policy = "policy.p = { algorithm = 'funnel', capacity = 1, rate = 1 }";
        let text = format!("{policy}\n[[override]]\n{lines}");
        assert_eq!(result(&text), [format!("text:{message}")], "{text}");
    };
    let numbers = "capacity = 2\nrate = 2";
    let place = "override[0]";
    own(
        &format!("policy = 'p'\n{numbers}"),
        "2:1: override[0].key is missing",
    );
    own(
        &format!("key = 'k'\n{numbers}"),
        "2:1: override[0].policy is missing",
    );
    own(
        "policy = 'p'\nkey = 'k'\ncapacity = 2",
        "2:1: override[0].rate is missing",
    );
    own(
        &format!("policy = 'q'\nkey = 'k'\n{numbers}"),
        &format!("3:10: {place}.policy is 'q', expected the name of a policy of the same text"),
    );
    let right = format!("policy = 'p'\nkey = 'k'\n{numbers}\n");
    own(
        &format!("{right}until = 2030-01-01T00:00:00"),
        &format!("7:9: {place}.until is 2030-01-01T00:00:00, expected {END}"),
    );
    own(
        &format!("{right}until = '1969-01-01T00:00:00Z'"),
        &format!("7:9: {place}.until is '1969-01-01T00:00:00Z', expected {END}"),
    );
    own(
        &format!("{right}limit = 3"),
        &format!(
            "7:1: {place}.limit is unknown, expected policy, key, escaped_key, group, escaped_group, capacity, rate, until"
        ),
    );
    own(
        &format!("{right}escaped_key = 'k'"),
        &format!("7:15: {place}.escaped_key is 'k', expected either this field or the plain one"),
    );
    own(
        &format!("{right}escaped_group = 'a b'"),
        &format!(
            "7:17: {place}.escaped_group is 'a b', expected a percent-encoded key as in Redis, such as %20 for a space"
        ),
    );
    own(
        &format!("{right}[[override]]\n{right}"),
        "7:1: override[1] repeats the policy and key of an earlier override",
    );
}

#[test]
fn all_invalid_entries_of_key_list_are_reported() {
    let text = "[policy.p]
algorithm = 'funnel'
capacity = 1
rate = 1
deny_keys = ['ann', '', '10.0.0.7/8', 'a*b',
    7, '10.0.0.0/8']
";
    let expected = [
        "text:5:21: policy.p.deny_keys[1] is '', expected a key",
        "text:5:25: policy.p.deny_keys[2] is '10.0.0.7/8', expected no bits beyond the prefix: `10.0.0.0/8` for the network, \
         or `10.0.0.7` for the address",
        "text:5:39: policy.p.deny_keys[3] is 'a*b', expected `*` only as the last character",
        "text:6:5: policy.p.deny_keys[4] is 7, expected a key, in quotes",
    ];
    assert_eq!(result(text), expected);
}

#[test]
fn setting_that_does_not_suit_the_algorithm_is_reported_once() {
    let text = "\
[policy.export]
algorithm = 'concurrency'
max = 0
on_denial = 'degrade'
penalty = '1 in 1m: 1m'
";
    assert_eq!(
        result(text),
        [
            "text:3:7: policy.export.max is 0, expected whole permits from 1 to 1048576",
            "text:4:13: policy.export.on_denial is 'degrade', expected `reject` or a wait for a concurrency policy: a denied \
             call holds no permit",
            "text:5:11: policy.export.penalty is '1 in 1m: 1m', expected none for a concurrency policy: its denials do not \
             indicate excessive calls",
        ]
    );
}

#[test]
fn all_errors_are_reported_in_order() {
    let text = "\
[policy.search]
algorithm = 'token_bucket'
capacity = 0
rate = '10'
deadline = '2h'
lease = '1ms'
aps = ['a']
[policy.mail]
algorithm = 'window'
limit = 'é' # operation it may be depends on the algorithm
[[override]]
policy = 'mail'
[[override]]
policy = 'serch'
key = 3
";
    let lines: Vec<String> = result(text)
        .iter()
        .map(|entry_error| {
            let mut parts = entry_error.splitn(5, [':', ' ']);
            let place: Vec<&str> = parts.by_ref().take(3).collect();
            let field = parts.last().unwrap().split(' ').next().unwrap();
            format!("{}:{} {field}", place[1], place[2])
        })
        .collect();
    assert_eq!(
        lines,
        [
            "3:12 policy.search.capacity",
            "4:8 policy.search.rate",
            "5:12 policy.search.deadline",
            "6:9 policy.search.lease",
            "7:1 policy.search.aps",
            "9:13 policy.mail.algorithm",
            "11:1 override[0].key",
            "14:10 override[1].policy",
            "15:7 override[1].key",
        ]
    );
    assert_eq!(result(&"x = 1\n[".repeat(1_000)).len(), 50, "the first fifty");
}

#[test]
fn columns_are_counted_in_characters() {
    assert_eq!(
        result("policy.'é' = { algorithm = 'ü' }"),
        [
            "text:1:28: policy.\"é\".algorithm is 'ü', expected one of \"token_bucket\", \"funnel\", \"sliding_window\", \"counter_window\", \"fixed_window\", \"concurrency\""
        ]
    );
}

#[test]
fn overlong_values_are_rejected_or_truncated() {
    let long = result(&format!("x = '{}'", "y".repeat(5 << 20)));
    assert_eq!(
        long,
        ["text:1:1: the text has 5242886 bytes, expected at most 4194304"]
    );
    let name = "x".repeat(300);
    let [result] = &*result(&format!("policy.{name} = {{ algorithm = '{name}' }}")) else {
        unreachable!()
    };
    assert!(result.len() < 300, "{result}");
    let line = "[[override]]\npolicy = 'p'\ncapacity = 1\nrate = 1\n";
    let mut text = String::from("policy.p = { algorithm = 'funnel', capacity = 1, rate = 1 }\n");
    for key in 0..=PolicyRegistry::MAX_OVERRIDES {
        text += &format!("{line}key = 'k{key}'\n");
    }
    let refused = PolicyRegistry::from_toml(&text).unwrap_err().to_string();
    assert!(
        refused.ends_with(": override[10000] is one too many, expected at most 10000"),
        "{refused}"
    );
}

#[test]
fn duplicate_key_override_is_rejected() {
    let quota = "policy = 'p'\nkey = 'k'\ncapacity = 2\nrate = 2\n";
    let text = |policy: &str, one: &str, other: &str| {
        format!(
            "policy.p = {{ algorithm = 'funnel', capacity = 1, rate = 1{policy} }}\n[[override]]\n{quota}{one}[[override]]\n{quota}{other}"
        )
    };
    let of_group = ", group = 'g'";
    for (one, other) in [("", "group = 'g'\n"), ("group = 'g'\n", "")] {
        let [result] = &*result(&text(of_group, one, other)) else {
            unreachable!()
        };
        assert!(
            result.ends_with("override[1] repeats the policy and key of an earlier override"),
            "{result}"
        );
        assert!(PolicyRegistry::from_toml(&text("", one, other)).is_ok());
        assert!(PolicyRegistry::from_toml(&text(", group = 'h'", one, other)).is_ok());
    }
}

#[test]
fn invalid_inheritance_is_reported_with_position() {
    let text = "
[policy.b]
algorithm = 'funnel'
capacity = 1
rate = 1
generation = -1
scaled = { capacity = 0, rate = 1, limit = 3 }
[policy.w]
algorithm = 'sliding_window'
limit = 1
window = '1s'
scaled = { limit = 2, window = '1s', at = 2026-11-22T10:00:00Z }
";
    let result = PolicyRegistry::from_toml(text).unwrap_err().to_string();
    assert_eq!(
        result,
        "text:6:14: policy.b.generation is -1, expected a whole number from 0 to 4294967295\n\
         text:7:1: policy.b.scaled.at is missing\n\
         text:7:23: policy.b.scaled.capacity is 0, expected more than zero and at most 4503599627370.496\n\
         text:7:36: policy.b.scaled.limit is unknown, expected capacity, rate, at\n\
         text:12:10: policy.w.scaled is { limit = 2, window = '1s', at = 2026-11-22T10:00:00Z }, expected a token bucket, a funnel, a counter window or a fixed window"
    );
}
