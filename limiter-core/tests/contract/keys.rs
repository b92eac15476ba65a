//! Keys, groups and names of users and attackers.

use limiter_core::{Key, LimitRequest};

use crate::support::{KEY, Subject, bucket, funnel, key, window};

/// Keys that would collide, break a name or fill a server if they were not escaped.
fn hostile() -> Vec<Vec<u8>> {
    let long = |last: u8| {
        let mut long = vec![b'x'; 1 << 20];
        long.push(last);
        long
    };
    let mut keys: Vec<Vec<u8>> = [
        "",
        " ",
        "%",
        "%%",
        "%25",
        "~",
        ":",
        "a:b",
        "a",
        "a:",
        ":a",
        "{",
        "}",
        "{}",
        "{a}",
        "{a",
        "a}",
        "|",
        "a|b",
        "|{a}|",
        "}|{",
        "a%3Ab",
        "%7Ba%7D",
        "\r\n",
        "\n",
        "\r\nSET x y\r\n",
        "\0",
        "a\0",
        "\0a",
        "é",
        "e\u{301}",
        "日本",
        "*",
        "?",
        "[a]",
        "\\",
        "'",
        "\"",
        "$1",
        "\u{7f}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    keys.extend([
        vec![0xff],
        vec![0xfe],
        vec![0xc3],
        vec![0xc3, 0x28],
        vec![0x80; 40],
    ]);
    keys.extend([
        long(b'1'),
        long(b'2'),
        long(b'|'),
        long(0xff),
        vec![b'x'; 1 << 20],
    ]);
    keys
}

pub(crate) async fn hostile_keys_have_separate_budgets(subject: Subject) {
    let policy = window("p", 1, "1h");
    let keys = hostile();
    for bytes in &keys {
        let decision = subject.limits.check(&policy, key(bytes)).await.unwrap();
        assert!(
            decision.is_allowed(),
            "{:?} shares the budget of another key",
            key(bytes)
        );
    }
    for bytes in &keys {
        let decision = subject.limits.check(&policy, key(bytes)).await.unwrap();
        assert!(!decision.is_allowed(), "{:?} has lost its usage", key(bytes));
    }
    for name in subject.redis_keys() {
        assert!(
            name.len() < 300 && name.bytes().all(|byte| byte.is_ascii_graphic()),
            "{name:?}"
        );
    }
}

/// Groups, which a cluster interprets: each has its own budgets, and the limits of one group are
/// decided together.
pub(crate) async fn hostile_groups_have_separate_budgets(subject: Subject) {
    let (first, second) = (bucket("first", 1, "1/h"), funnel("second", 1, "1/h"));
    let groups = hostile();
    for expected in [true, false] {
        for group in &groups {
            let request = |policy| LimitRequest::new(policy, Key::from(KEY).in_group(key(group)));
            let decision = subject
                .limits
                .check_all([request(&first), request(&second)])
                .await
                .unwrap();
            assert_eq!(decision.is_allowed(), expected, "{:?}", key(group));
        }
    }
}

pub(crate) async fn hostile_policy_names_have_separate_budgets(subject: Subject) {
    let names: Vec<String> = hostile()
        .into_iter()
        .filter_map(|name| String::from_utf8(name).ok())
        .filter(|name| (1..=256).contains(&name.len()))
        .chain(["x".repeat(256), "é".repeat(128), "x".repeat(255) + "y"])
        .collect();
    for expected in [true, false] {
        for name in &names {
            let decision = subject.call(&bucket(name, 1, "1/h")).await;
            assert_eq!(decision.is_allowed(), expected, "{name:?}");
        }
    }
}
