//! Key lists: values that form an address, and warnings about entries that never match.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends that way"
)]

mod support;

use limiter_core::registry::{KeyOverride, PolicyEntry, PolicyRegistry};
use limiter_core::{Enforcement, Key, Limiter, ManualClock, Origin, Policy};

use limiter_testing::log::Warnings;

fn policy(capacity: u32, denied: &[&str]) -> Policy {
    let policy = Policy::token_bucket("api").capacity(capacity).rate("1/s");
    let allowed = ["2001:db8:a::/48", "198.51.100.7"];
    policy.allow_keys(allowed).deny_keys(denied).build().unwrap()
}

struct Fixture {
    warnings: Warnings,
    registry: PolicyRegistry,
    limits: Limiter,
    _default: tracing::subscriber::DefaultGuard,
}

fn fixture(denied: &[&str]) -> Fixture {
    let warnings = Warnings::default();
    let _default = tracing::subscriber::set_default(warnings.clone());
    let registry = PolicyRegistry::new().with(policy(5, denied));
    let limits = Limiter::in_process()
        .clock(&ManualClock::new())
        .registry(&registry)
        .build();
    Fixture {
        warnings,
        registry,
        limits,
        _default,
    }
}

impl Fixture {
    /// The warnings about unmatchable entries that decisions about these keys cause.
    async fn warnings_of(&self, keys: &[&str]) -> Vec<String> {
        let before = self.warnings.all().len();
        for key in keys {
            let _ = self.limits.named("api").check(*key).await.unwrap();
        }
        let all = self.warnings.all().split_off(before);
        assert!(
            all.iter().all(|warning| warning.contains("never match")),
            "{all:?}"
        );
        all
    }
}

#[tokio::test]
async fn entries_longer_than_key_prefix_warn_once_per_version() {
    let fixture = fixture(&["2001:db8::7", "2001:db8:1::/80", "192.0.2.9", "eve*"]);
    let none: Vec<String> = Vec::new();
    assert_eq!(
        fixture
            .warnings_of(&["192.0.2.1", "2001:db8::7", "a/b", "eve"])
            .await,
        none
    );
    let warned = fixture.warnings_of(&["2001:db8:5::/64", "2001:db8:6::/64"]).await;
    let [warning] = &*warned else {
        unreachable!("{warned:?}")
    };
    for part in [
        r#"policy="api""#,
        r#"list="deny_keys""#,
        r#"entries="2001:db8::7, 2001:db8:1::/80""#,
        "prefix=64",
    ] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    assert_eq!(
        fixture.warnings_of(&["2001:db8:7::/64", "2001:db8:7::/72"]).await,
        none
    );

    // The other family, and both lists.
    let warned = fixture.warnings_of(&["192.0.2.0/24", "198.51.100.0/24"]).await;
    assert_eq!(warned.len(), 2, "{warned:?}");
    assert!(warned[0].contains(r#"entries="192.0.2.9""#) && warned[1].contains(r#"list="allow_keys""#));

    // A quota of a single key is not another version.
    let numbers = Policy::token_bucket("api")
        .capacity(9)
        .rate("1/s")
        .build()
        .unwrap();
    fixture
        .registry
        .set_override(KeyOverride::new(numbers, "2001:db8:8::/64"))
        .unwrap();
    assert_eq!(fixture.warnings_of(&["2001:db8:8::/64"]).await, none);

    // A change of the policy, also one of other fields.
    fixture.registry.set(policy(6, &["2001:db8::7"]));
    assert_eq!(
        fixture
            .warnings_of(&["2001:db8:5::/64", "2001:db8:6::/64"])
            .await
            .len(),
        1
    );
    fixture
        .registry
        .set(PolicyEntry::new(policy(6, &["2001:db8::/64"])));
    assert_eq!(
        fixture.warnings_of(&["2001:db8:5::/64", "2001:db8:6::/64"]).await,
        none
    );
    let shorter = fixture.warnings_of(&["2001:db8::/56"]).await;
    assert!(
        shorter.len() == 1 && shorter[0].contains("prefix=56"),
        "{shorter:?}"
    );
}

#[tokio::test]
async fn concurrency_and_shadow_policies_warn_of_long_entries() {
    let fixture = fixture(&["2001:db8::7"]);
    let held = Policy::concurrency("export")
        .max(2)
        .deny_keys(["2001:db8::7"])
        .build()
        .unwrap();
    fixture.limits.set_enforcement(Enforcement::Shadow);
    let _permit = fixture
        .limits
        .acquire_concurrency(&held, "2001:db8::/64")
        .await
        .unwrap();
    let warnings = fixture.warnings.all();
    assert!(
        warnings.len() == 1 && warnings[0].contains(r#"policy="export""#),
        "{warnings:?}"
    );
    assert_eq!(fixture.warnings_of(&["2001:db8::/64"]).await.len(), 1);
}

/// A client that chooses both values must not choose an address of an allow list.
#[tokio::test]
async fn values_that_form_an_address_together_are_denied_and_not_allowed() {
    let limits = Limiter::in_process().build();
    let networks = ["10.0.0.0/8", "2001:db8::/32"];
    let bucket = |name: &str| Policy::token_bucket(name).capacity(1).rate("1/h");
    let allow = bucket("allow").allow_keys(networks).build().unwrap();
    let deny = bucket("deny").deny_keys(networks).build().unwrap();
    for (tenant, user) in [("::ffff", "10.1.2.3"), ("2001", "db8::7"), ("2001:db8:", "7")] {
        let key = Key::global().part(tenant).text(":").part(user);
        assert!(limits.check(&allow, &key).await.unwrap().is_allowed());
        assert!(!limits.check(&allow, &key).await.unwrap().is_allowed(), "{key:?}");
        let denied = limits.check(&deny, &key).await.unwrap();
        assert_eq!(denied.origin(), Origin::KeyList, "{key:?}");
    }
    for address in [
        Key::global().part("2001:db8::7"),
        Key::from("2001:db8::7"),
        Key::from("10.1.2.3"),
    ] {
        let allowed = limits.check(&allow, &address).await.unwrap();
        assert_eq!(
            (allowed.is_allowed(), allowed.origin()),
            (true, Origin::KeyList),
            "{address:?}"
        );
    }
}
