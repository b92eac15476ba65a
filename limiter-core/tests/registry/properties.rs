//! The text of a registry represents every policy.

use limiter_core::registry::RateType;
use limiter_core::registry::{KeyOverride, PolicyEntry, PolicyRegistry, RegistryError};
use limiter_core::{Amount, Enforcement, Key, KeyList, OnDenial, OnStoreFailure, Policy, Timestamp};
use proptest::option;
use proptest::prelude::*;

use crate::support::micros;

/// Numbers that most policies may have, with a name.
fn numbers(name: String) -> impl Strategy<Value = Policy> {
    let thousandths = 1..1_000_000_000_u64;
    let period = 1..100_000_000_u64;
    (0..6, thousandths, 1..1_000_000_u64, period).prop_map(move |(kind, thousandths, permits, period)| {
        let rate = limiter_core::Rate::per(permits, micros(period)).unwrap();
        let capacity = Amount::from_thousandths(thousandths);
        match kind {
            0 => Policy::token_bucket(&name).capacity(capacity).rate(rate).build(),
            1 => Policy::funnel(&name).capacity(capacity).rate(rate).build(),
            2 => Policy::counter_window(&name)
                .limit(permits)
                .window(micros(period))
                .build(),
            3 => Policy::fixed_window(&name)
                .limit(permits)
                .window(micros(period))
                .build(),
            4 => Policy::concurrency(&name).max(permits).build(),
            _ => Policy::sliding_window(&name)
                .limit(permits)
                .window(micros(period))
                .build(),
        }
        .unwrap()
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z:]{1,8}",
        "\\PC{1,8}",
        proptest::string::string_regex("(?s).{1,8}").unwrap()
    ]
}

fn key() -> impl Strategy<Value = Key<'static>> {
    (
        text(),
        option::of(text()),
        option::of(prop::collection::vec(any::<u8>(), 0..4)),
    )
        .prop_map(|(plain, part, bytes)| {
            let key = match bytes {
                Some(bytes) => Key::from(&*bytes).into_owned(),
                None => Key::from(&plain).into_owned(),
            };
            match part {
                Some(part) => key.part(&part).in_group(Key::from(part).into_owned()),
                None => key,
            }
        })
}

type Extras = (Enforcement, OnDenial, Option<&'static str>, Option<KeyList>);

/// Rarely used options.
fn extras() -> impl Strategy<Value = Option<Extras>> {
    let modes = prop::sample::select(vec![Enforcement::Enforce, Enforcement::Shadow, Enforcement::Off]);
    let answers = prop::sample::select(vec![
        OnDenial::Reject,
        OnDenial::Degrade,
        OnDenial::Wait(micros(500_000)),
    ]);
    let penalties = prop::sample::select(vec!["10 in 1m: 15m", "1 in 1s: 7d"]);
    let keys = ["10.0.0.0/8", "2001:db8::/32", "user:*", "\u{e9}\"\\"];
    let lists = prop::sample::subsequence(keys.to_vec(), 1..4).prop_map(|keys| KeyList::parse(keys).unwrap());
    option::of((modes, answers, option::of(penalties), option::of(lists)))
}

fn entry() -> impl Strategy<Value = PolicyEntry> {
    let answers = prop::sample::select(vec![
        OnStoreFailure::Local,
        OnStoreFailure::FailOpen,
        OnStoreFailure::FailClosed,
        OnStoreFailure::Error,
    ]);
    let settings = (
        option::of(text()),
        1..3_600_000_000_u64,
        answers,
        option::of(10_000..3_600_000_000_u64),
        option::of(prop::collection::vec(text(), 1..4)),
        option::of(0..253_402_300_799_999_999_u64),
        prop::sample::select(vec![RateType::Overall, RateType::PerClient]),
        extras(),
    );
    (text(), 0..6, 1..1_000_000_u64, settings).prop_map(
        |(name, kind, permits, (group, deadline, answer, lease, apps, end, rate_type, extras))| {
            macro_rules! with_settings {
                ($builder:expr) => {{
                    let mut builder = $builder.deadline(micros(deadline)).on_store_failure(answer);
                    if let Some(group) = group {
                        builder = builder.group(group);
                    }
                    if let Some((mode, on_denial, penalty, keys)) = extras {
                        builder = builder.enforcement(mode);
                        // `Degrade` is invalid for a concurrency policy.
                        if kind < 5 || on_denial != OnDenial::Degrade {
                            builder = builder.on_denial(on_denial);
                        }
                        if let Some(keys) = keys {
                            builder = builder.allow_keys(keys.clone()).deny_keys(keys);
                        }
                        if let (Some(penalty), 1..=4) = (penalty, kind) {
                            builder = builder.penalty(penalty);
                        }
                    }
                    builder
                }};
            }
            let policy = match kind {
                0 => {
                    let mut builder =
                        with_settings!(Policy::token_bucket(name).capacity(permits).rate("7/3s"));
                    if let Some(lease) = lease {
                        builder = builder.lease(micros(lease));
                    }
                    builder.build()
                }
                1 => with_settings!(Policy::sliding_window(name).limit(permits).window("1h1us")).build(),
                2 => with_settings!(Policy::funnel(name).capacity(permits).rate("7/3s").paced()).build(),
                3 => with_settings!(
                    Policy::fixed_window(name)
                        .limit(permits)
                        .window("month")
                        .aligned("-02:30")
                )
                .build(),
                4 => with_settings!(
                    Policy::fixed_window(name)
                        .limit(permits)
                        .window("8h")
                        .aligned("utc")
                )
                .build(),
                _ => with_settings!(Policy::concurrency(name).max(permits).lease("7s")).build(),
            };
            let entry = PolicyEntry::new(policy.unwrap()).with_rate_type(rate_type);
            let entry = match end {
                Some(end) => entry.until(Timestamp::from_micros(end)),
                None => entry,
            };
            match apps {
                Some(apps) => entry.for_apps(apps).unwrap(),
                None => entry,
            }
        },
    )
}

fn registry() -> impl Strategy<Value = PolicyRegistry> {
    let named = text().prop_flat_map(numbers);
    let plain = prop::collection::vec((named, key(), option::of(0..253_402_300_799_999_999_u64)), 0..4);
    (prop::collection::vec(entry(), 0..4), plain).prop_map(|(entries, plain)| {
        let registry = PolicyRegistry::new();
        for (policy, key, end) in plain {
            registry.set(&policy);
            let own = KeyOverride::new(policy, key);
            let own = match end {
                Some(end) => own.until(Timestamp::from_micros(end)),
                None => own,
            };
            registry.set_override(own).unwrap();
        }
        entries.into_iter().for_each(|entry| registry.set(entry));
        registry
    })
}

fn all(registry: &PolicyRegistry) -> Vec<(PolicyEntry, Vec<KeyOverride>)> {
    let names = registry.names();
    let of = |name: &String| {
        let own = registry.overrides(name);
        let entry = registry.get(name).unwrap();
        ((*entry).clone(), own.iter().map(|own| (**own).clone()).collect())
    };
    names.iter().map(of).collect()
}

proptest! {
    #[test]
    fn written_registry_text_parses_back(registry in registry()) {
        let text = registry.to_toml();
        let read = PolicyRegistry::from_toml(&text);
        prop_assert!(read.is_ok(), "{text}\n{read:?}");
        let read = read.unwrap();
        prop_assert_eq!(all(&read), all(&registry), "{}", text);
        prop_assert_eq!(read.to_toml(), text);
    }

    /// Every error has a position inside the text.
    #[test]
    fn texts_are_parsed_or_rejected_without_panic(text in "(policy\\.|\\[\\[override\\]\\]|key|rate|capacity|algorithm|'funnel'|[=.\"\n é{}\\[\\]a-c0-9'-]){0,40}") {
        match PolicyRegistry::from_toml(&text) {
            Ok(registry) => prop_assert_eq!(all(&PolicyRegistry::from_toml(&registry.to_toml()).unwrap()), all(&registry)),
            Err(RegistryError::Parse { errors }) => {
                prop_assert!(!errors.is_empty());
                let lines: Vec<_> = text.split('\n').collect();
                for error in errors {
                    let line = lines.get(error.line() - 1);
                    prop_assert!(line.is_some_and(|line| error.column() <= line.chars().count() + 1), "{error}");
                }
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
