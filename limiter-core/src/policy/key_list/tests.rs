//! Key lists: matching and error messages.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::policy::key_list::*;
use crate::units::Timestamp;

const NOW: Timestamp = Timestamp::from_micros(1);

fn list(entries: &[&str]) -> KeyList {
    KeyList::parse(entries).unwrap()
}

#[test]
fn list_matches_only_its_entries() {
    let list = list(&[
        "ann",
        "user:*",
        "10.0.0.0/8",
        "192.168.1.7",
        "2001:db8::/32",
        "a b*",
    ]);
    for key in [
        "ann",
        "user:",
        "user:7",
        "10.0.0.0",
        "10.255.255.255",
        "192.168.1.7",
    ] {
        assert!(list.contains(key), "{key}");
    }
    for key in ["2001:db8::1", "2001:0DB8:0::0001", "::ffff:10.1.1.1", "a bc"] {
        assert!(list.contains(key), "{key}");
    }
    for key in [
        "",
        "an",
        "anna",
        "Ann",
        "user",
        "11.0.0.0",
        "9.255.255.255",
        "192.168.1.70",
    ] {
        assert!(!list.contains(key), "{key}");
    }
    for key in [
        "2001:db9::1",
        "10.0.0",
        "10.0.0.0/7",
        "a%20bc",
        "%3A",
        "fe%",
        "ééé",
    ] {
        assert!(!list.contains(key), "{key}");
    }
}

#[test]
fn colon_of_value_matches_colon_of_entry() {
    let list = list(&["user:2001:db8::1", "user:urn:*", "a:b"]);
    let user = |value: &str| Key::from("user:").part(value);
    assert!(list.allows(&user("2001:db8::1"), NOW) && list.denies(&user("2001:db8::1"), NOW));
    assert!(list.denies(&user("urn:bad"), NOW) && list.denies(&user("urn:"), NOW));
    assert!(
        !list.allows(&user("urn:bad"), NOW),
        "a client cannot choose a value that is on an allow list"
    );
    assert!(list.allows(&Key::from("user:urn:7"), NOW) && list.allows(&Key::global().part("a:b"), NOW));
    let of_tenant = |tenant: &str, user: &str| Key::global().part(tenant).text(":").part(user);
    let vip = crate::policy::key_list::KeyList::parse(["acme:vip:1"]).unwrap();
    assert!(vip.allows(&of_tenant("acme", "vip:1"), NOW) && !vip.allows(&of_tenant("acme:vip", "1"), NOW));
    assert!(vip.denies(&of_tenant("acme:vip", "1"), NOW));
    // An escaped percent sign does not form an escaped colon.
    assert!(!list.denies(&user("2001%3Adb8::1"), NOW) && !list.denies(&Key::from("a%3Ab"), NOW));
    assert!(!list.denies(&user("2001:db8::2"), NOW) && !list.denies(&user("ur:n"), NOW));
}

#[test]
fn address_matches_in_every_key_form() {
    let list = list(&["2001:db8::/32", "10.0.0.0/8"]);
    let address: IpAddr = "2001:db8::7".parse().unwrap();
    assert!(list.contains(address) && list.allows(&Key::global().part(address), NOW));
    assert!(list.allows(&Key::from("10.1.2.3").in_group("tenant"), NOW));
    assert!(
        !list.allows(&Key::from("ip:").part(address), NOW),
        "a part of a key is not the key"
    );
    let long = "%3A".repeat(100);
    assert!(!list.allows(&Key::global().part(&long), NOW));
    assert_eq!(
        count_parts_of_address("2001:db8:1111:2222:3333:4444:255.255.255.255"),
        9
    );
}

/// Number of parts of the longest address, which has to match too.
fn count_parts_of_address(text: &str) -> usize {
    let list = KeyList::parse([text]).unwrap();
    assert!(list.allows(&Key::global().part(text), NOW));
    text.split([':', '.']).count() - 1
}

#[test]
fn network_key_matches_each_entry_that_contains_it() {
    let entries = list(&["2001:db8::/64", "2001:db9::/32", "192.0.2.0/24", "10.0.0.0/8"]);
    let keys = [
        "2001:db8::/64",
        "2001:db8::/65",
        "2001:DB8::/64",
        "2001:db9:1::/48",
    ];
    for key in keys
        .into_iter()
        .chain(["192.0.2.0/24", "192.0.2.128/25", "::ffff:10.1.0.0/112"])
    {
        assert!(entries.contains(key), "{key}");
        let address = key.split('/').next().unwrap();
        let part = Key::global().part(key);
        assert!(entries.denies(&part, NOW), "{part:?}");
        assert!(entries.contains(address), "{address}");
    }
    let longest = "2001:0db8:0000:0000:0000:ffff:255.255.255.255/128";
    assert!(entries.contains(longest) && entries.denies(&Key::global().part(longest), NOW));
    for key in [
        "2001:db8::/63",
        "2001:db9::/31",
        "192.0.2.0/23",
        "10.0.0.0/7",
        "2001:db8:0:1::/64",
    ] {
        assert!(!entries.contains(key), "{key} is larger, or elsewhere");
    }
    for key in [
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/+8",
        "10.0.0.0/8/8",
        "/8",
        "::/129",
        "a/8",
    ] {
        assert!(!entries.contains(key), "{key} is not a network");
    }
    assert!(list(&["0.0.0.0/0"]).contains("192.0.2.0/24"));
    assert!(!list(&["0.0.0.0/0"]).contains("2001:db8::/64"));
}

#[test]
fn network_of_each_length_contains_its_addresses() {
    for len in 0..=32_u8 {
        let bits = leading_v4(u32::from_be_bytes([203, 0, 113, 77]), len);
        let list = list(&[&format!("{}/{len}", Ipv4Addr::from_bits(bits))]);
        assert!(list.contains("203.0.113.77"), "{len}");
        if let Some(bit) = len.checked_sub(1) {
            let other = Ipv4Addr::from_bits(bits ^ (1 << (31 - bit)));
            assert!(!list.contains(other), "{len}");
        }
    }
    for len in 0..=128_u8 {
        let bits = leading_v6("2001:db8:ffff::1:2:3".parse::<Ipv6Addr>().unwrap().to_bits(), len);
        let list = list(&[&format!("{}/{len}", Ipv6Addr::from_bits(bits))]);
        assert!(list.contains("2001:db8:ffff::1:2:3"), "{len}");
        if let Some(bit) = len.checked_sub(1) {
            let other = Ipv6Addr::from_bits(bits ^ (1 << (127 - bit)));
            assert!(!list.contains(other), "{len}");
        }
    }
}

#[test]
fn all_invalid_entries_are_reported() {
    let error = KeyList::parse(["ann", "", "10.0.0.7/8", "a*b", "::/129"]).unwrap_err();
    let ConfigError::Several { errors } = &error else {
        unreachable!("{error:?}")
    };
    assert_eq!(errors.len(), 4);
    let text = error.to_string();
    for entry in ["``", "`10.0.0.7/8`", "`a*b`", "`::/129`"] {
        assert!(
            text.contains(&format!("entry of a key list is {entry}, expected ")),
            "{text}"
        );
    }
    let many = KeyList::parse(vec!["a*b"; 1_000]).unwrap_err().to_string();
    assert!(
        many.ends_with("; and 980 more errors") && many.len() < 3_000,
        "{many}"
    );
}

#[test]
fn error_names_entry() {
    for entry in [
        "",
        "a*b",
        "**",
        "10.0.0.0/33",
        "10.0.0.1/8",
        "::/129",
        "10.0.0.0/",
        "::ffff:1.2.3.4/95",
        "ip:10.0.0.0/8",
        "user:ip:2001:db8::/32",
    ] {
        let error = KeyList::parse(["fine", entry]).unwrap_err();
        assert!(error.to_string().contains(&format!("`{entry}`")), "{error}");
    }
    // The text before the slash is not an address, so the entry is an ordinary key.
    assert!(list(&["GET /search"]).contains("GET /search"));
    assert!(list(&["path:/v1/7"]).contains("path:/v1/7"));
    assert!(list(&["::ffff:10.0.0.0/104"]).contains("10.2.3.4"));
    assert!(list(&["*"]).contains("anything") && !list(&[]).contains(""));
}
