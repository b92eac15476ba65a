//! Tests of names and of the escaped text of keys.

use crate::key::*;

fn name(namespace: &str, policy: &str, group: Option<&str>, key: &Key<'_>) -> String {
    let key = &Key::from(key).bounded();
    let group = group.map(escape_part);
    Namespace::new("", namespace).redis_key("tb", &escape_part(policy), key.group(group.as_deref()), key)
}

#[test]
fn name_is_readable_and_tagged_by_key_or_group() {
    assert_eq!(
        name("prod:checkout", "search", None, &"user:7".into()),
        "prod:checkout|tb|search|{user:7}"
    );
    assert_eq!(
        name("prod", "search", None, &Key::from("user:7").in_group("tenant:3")),
        "prod|tb|search|{tenant:3}|user:7"
    );
    assert_eq!(
        name("prod", "search", Some("all"), &Key::global()),
        "prod|tb|search|{all}|"
    );
    assert_eq!(name("prod", "search", None, &Key::global()), "prod|tb|search|{%}");
}

#[test]
fn hostile_parts_never_collide() {
    let hostile = [
        "",
        "a",
        "a|b",
        "a}",
        "{a",
        "{a}",
        "a:b",
        "a%3Ab",
        "a\r\nb",
        "a\0b",
        "~a",
        "%",
        "é",
        "a b",
        "{}",
        "|{a}|",
        &"x".repeat(10_000),
        &"x".repeat(10_001),
        &format!("{}%", "x".repeat(10_000)),
    ];
    let mut names = std::collections::HashSet::new();
    let mut count = 0;
    for namespace in hostile {
        for policy in hostile {
            for key in hostile {
                for key in [Key::from(key), Key::from("k").in_group(key)] {
                    let name = name(namespace, policy, None, &key);
                    assert!(name.len() < 4 * (MAX_PART_BYTES + 10), "{name}");
                    assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
                    assert!(names.insert(name), "{namespace:?} {policy:?} {key:?}");
                    count += 1;
                }
            }
        }
    }
    assert_eq!(names.len(), count);
}

#[test]
fn key_parts_never_collide() {
    let joined = |a: &str, b: &str| Key::from("user:").part(a).text(":").part(b);
    assert_ne!(joined("x:y", "z"), joined("x", "y:z"));
    assert_eq!(joined("x", "y").as_str(), "user:x:y");
    assert_eq!(joined("x", "y"), Key::from("user:x:y"));
    assert_ne!(Key::global().part("a:b"), Key::from("a:b"));
    let nested = |a: &str, b: &str| Key::global().key(&a.into()).text(":").key(&b.into());
    assert_ne!(nested("x:y", "z"), nested("x", "y:z"));
    assert_ne!(nested("x:y", "z"), nested("x%3Ay", "z"));
    assert_eq!(nested("x", "y"), Key::from("x:y"));
    let grouped = Key::global().key(&Key::from("x").in_group("g:h"));
    assert_eq!(
        (grouped.as_str(), grouped.group(None)),
        ("g%3Ah%7Cx", Some("g:h"))
    );
    let long = "x".repeat(MAX_PART_BYTES);
    assert_eq!(
        Key::from(&long).text(&long).text("y").bounded(),
        Key::from(format!("{long}{long}y")).bounded()
    );
}

#[test]
fn plainness_is_independent_of_position() {
    for byte in 0..=u8::MAX {
        let graphic = byte.is_ascii_graphic() && !b"{}|%~".contains(&byte);
        for (colon, expected) in [(Colon::Plain, graphic), (Colon::Escaped, graphic && byte != b':')] {
            for len in 1..20 {
                for at in 0..len {
                    let mut bytes = vec![b'a'; len];
                    bytes[at] = byte;
                    assert_eq!(are_plain(&bytes, colon), expected, "{byte} at {at} of {len}");
                }
            }
        }
    }
    assert!(are_plain(b"", Colon::Escaped));
}
