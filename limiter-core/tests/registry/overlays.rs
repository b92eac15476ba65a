//! Overlays in texts: suspensions, blocks, entries that end.

use std::time::{Duration, SystemTime};

use limiter_core::registry::{
    Block, BlockTarget, PolicyRegistry, Suspension, SuspensionMode, SuspensionScope,
};
use limiter_core::{Enforcement, Inheritance, Limiter, ManualClock, Origin, Policy, Timestamp};

const POLICY: &str = "[policy.\"p\"]\nalgorithm = \"token_bucket\"\ncapacity = 2\nrate = \"1/s\"\n";

const OVERLAYS: &str = r#"
[[suspend]]
scope = "policy:p"
enforcement = "shadow"
until = 2030-01-01T00:00:00Z
by = "ann"
reason = "false denials"

[[suspend]]
scope = "all"
enforcement = "deny"
until = 2030-01-01T00:00:00.000001Z

[[block]]
part = "tenant=acme"
app = "checkout"
until = 2030-01-01T00:00:00Z
by = "bob"
reason = "abuse"

[[block]]
key = "user:*"

[[block]]
network = "10.0.0.0/8"
"#;

fn errors_of(text: &str) -> Vec<String> {
    let errors = PolicyRegistry::from_toml(text).unwrap_err().to_string();
    errors.lines().map(str::to_owned).collect()
}

#[test]
fn overlays_round_trip_and_raise_min_reader() {
    let text = format!("format = 2\nmin_reader = 2\n\n{POLICY}{OVERLAYS}");
    let registry = PolicyRegistry::from_toml(&text).unwrap();
    assert_eq!(registry.to_toml(), text);
    let suspensions = registry.suspensions();
    assert_eq!(suspensions[0].mode(), SuspensionMode::Shadow);
    assert_eq!(
        (suspensions[0].author(), suspensions[0].reason()),
        (Some("ann"), Some("false denials"))
    );
    assert_eq!(suspensions[1].scope().to_string(), "all");
    let blocks = registry.blocks();
    assert_eq!(blocks[0].target(), &BlockTarget::part("tenant=acme").unwrap());
    assert_eq!((blocks[0].app(), blocks[1].end()), (Some("checkout"), None));

    assert!(registry.end_suspension(suspensions[0].scope()));
    assert!(registry.end_suspension(suspensions[1].scope()));
    for block in &blocks {
        assert!(registry.unblock(block.target(), block.app()));
    }
    assert_eq!(
        registry.to_toml(),
        format!("format = 1\nmin_reader = 1\n\n{POLICY}")
    );
}

#[test]
fn planned_suspension_is_active_from_its_start() {
    let planned = "\n[[suspend]]\nscope = \"all\"\nenforcement = \"deny\"\nfrom = 2029-01-01T00:00:00Z\n\
                   until = 2030-01-01T00:00:00Z\n";
    let text = format!("format = 3\nmin_reader = 3\n\n{POLICY}{planned}");
    let registry = PolicyRegistry::from_toml(&text).unwrap();
    assert_eq!(registry.to_toml(), text);
    let suspension = &registry.suspensions()[0];
    let (start, end) = (suspension.start().unwrap(), suspension.end());
    assert!(!suspension.is_active_at(Timestamp::from_micros(start.as_micros() - 1)));
    assert!(suspension.is_active_at(start) && !suspension.has_ended_at(start));
    assert!(!suspension.is_active_at(end) && suspension.has_ended_at(end));
}

#[test]
fn key_list_entries_with_an_end_round_trip() {
    let lists = "deny_keys = [\"eve\", { key = \"10.0.0.0/8\", until = 2030-01-01T00:00:00Z }]\n";
    let text = format!("format = 2\nmin_reader = 2\n\n{POLICY}{lists}");
    let registry = PolicyRegistry::from_toml(&text).unwrap();
    assert_eq!(registry.to_toml(), text);
    assert_eq!(
        errors_of(&format!(
            "{POLICY}allow_keys = [{{ until = 1 }}, {{ key = 'a', til = 1 }}, 7]"
        )),
        [
            "text:5:15: policy.p.allow_keys[0].key is missing",
            "text:5:43: policy.p.allow_keys[1].til is unknown, expected key or until",
            "text:5:54: policy.p.allow_keys[2] is 7, expected a key, in quotes",
        ][..]
    );
}

#[test]
fn invalid_overlays_are_named() {
    let suspension = |fields: &str| errors_of(&format!("[[suspend]]\n{fields}"));
    let block = |fields: &str| errors_of(&format!("[[block]]\n{fields}"));
    let until = "until = 2030-01-01T00:00:00Z";
    assert_eq!(
        suspension("scope = 'p'\nenforcement = 'enforce'\nuntil = 'soon'\nextra = 1"),
        [
            "text:2:9: suspend[0].scope is 'p', expected `all`, `app:NAME` or `policy:NAME`",
            "text:3:15: suspend[0].enforcement is 'enforce', expected `off`, `shadow` or `deny`",
            "text:4:9: suspend[0].until is 'soon', expected a time after 1970 with its offset, such as \
             2030-12-31T23:59:59Z",
            "text:5:1: suspend[0].extra is unknown, expected scope, enforcement, from, until, by or reason",
        ]
    );
    assert_eq!(suspension(until).len(), 2, "two fields are missing");
    let again = format!(
        "scope = 'all'\nenforcement = 'off'\n{until}\n[[suspend]]\nscope = 'all'\nenforcement = 'deny'\n{until}"
    );
    assert_eq!(
        suspension(&again),
        ["text:5:1: suspend[1] repeats the scope of an earlier suspension"]
    );
    for (fields, expected) in [
        (
            "app = 'a'",
            "block[0]: expected exactly one of key, network and part",
        ),
        (
            "key = 'a'\npart = 'b=c'",
            "block[0]: expected exactly one of key, network and part",
        ),
        (
            "key = '*'",
            "block[0].key is '*', expected a key; use a suspension to deny all calls",
        ),
        (
            "network = 'ann'",
            "block[0].network is 'ann', expected an address, or a network such as",
        ),
        (
            "network = '10.0.0.7/8'",
            "block[0].network is '10.0.0.7/8', expected no bits beyond the prefix",
        ),
        ("part = 'acme'", "block[0].part is 'acme', expected NAME=VALUE"),
        (
            "key = 'a'\n[[block]]\nkey = 'a'",
            "block[1] repeats the keys and the app of an earlier block",
        ),
    ] {
        let found = block(fields);
        assert!(
            found.len() == 1 && found[0].contains(expected),
            "{fields}: {found:?}"
        );
    }
    assert_eq!(
        errors_of("suspend = 7"),
        ["text:1:11: suspend is 7, expected tables such as [[suspend]]"]
    );
}

/// A limiter that was built before the first overlay, one that was built after it, and a limiter
/// with another registry.
#[tokio::test]
async fn overlay_reaches_all_limiters_of_its_registry() {
    let registry = PolicyRegistry::from_toml(POLICY).unwrap();
    let early = Limiter::in_process().registry(&registry).build();
    let other = Limiter::in_process().build();
    let end = std::time::SystemTime::now() + std::time::Duration::from_secs(3_600);
    let deny = Suspension::new("all".parse().unwrap(), SuspensionMode::Deny, end);
    registry.suspend(deny).unwrap();
    let late = Limiter::in_process().registry(&registry).build();
    let policy = registry.get("p").unwrap();
    for (limits, is_suspended) in [(&early, true), (&late, true), (&other, false)] {
        let decision = limits.check(policy.policy(), "ann").await.unwrap();
        assert_eq!(decision.origin() == Origin::Suspension, is_suspended);
    }
}

/// The overlays of all sources apply together.
#[tokio::test]
async fn overlays_of_files_and_code_are_joined() {
    let dir = std::env::temp_dir().join(format!("overlays-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("limits.toml");
    std::fs::write(&path, format!("{POLICY}[[block]]\nkey = 'ann'\n")).unwrap();
    let registry = PolicyRegistry::new();
    let source = limiter_core::registry::FileSource::follow(&registry, &path).unwrap();
    let bob = Block::new(BlockTarget::Key("bob".into()));
    registry.block(bob).unwrap();
    let limits = Limiter::in_process().registry(&registry).build();
    for (key, is_blocked) in [("ann", true), ("bob", true), ("eve", false)] {
        let decision = limits.named("p").check(key).await.unwrap();
        assert_eq!(decision.origin() == Origin::Block, is_blocked, "{key}");
    }
    assert!(
        !registry.unblock(&BlockTarget::Key("ann".into()), None),
        "it belongs to the file"
    );
    drop(source);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The block of a file and the suspension of a file have ended, those of code have not.
#[tokio::test]
async fn text_of_several_sources_contains_effective_overlays() {
    let ended = "until = 2020-01-01T00:00:00Z\n";
    let dir = std::env::temp_dir().join(format!("effective-overlays-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("limits.toml");
    let suspension = format!("[[suspend]]\nscope = 'all'\nenforcement = 'deny'\n{ended}");
    let block = format!("[[block]]\nkey = 'ann'\n{ended}");
    std::fs::write(&path, format!("{POLICY}{suspension}{block}")).unwrap();
    let registry = PolicyRegistry::new();
    let source = limiter_core::registry::FileSource::follow(&registry, &path).unwrap();
    registry
        .block(Block::new(BlockTarget::Key("ann".into())))
        .unwrap();
    let end = Timestamp::from(SystemTime::now() + Duration::from_secs(3_600));
    let shadow = Suspension::new(SuspensionScope::All, SuspensionMode::Shadow, end);
    registry.suspend(shadow).unwrap();

    let ends: Vec<_> = registry.blocks().iter().map(Block::end).collect();
    assert_eq!(ends, [None], "the keys are denied without an end");
    let read = PolicyRegistry::from_toml(&registry.to_toml()).unwrap();
    for registry in [&registry, &read] {
        let limits = Limiter::in_process()
            .clock(&ManualClock::new())
            .registry(registry)
            .build();
        let in_shadow = limits.named("p").check("bob").cost(2).await.unwrap();
        assert!(in_shadow.is_allowed());
        let in_shadow = limits.named("p").check("bob").cost(2).await.unwrap();
        assert!(in_shadow.is_allowed() && in_shadow.would_deny());
        assert!(registry.end_suspension(&SuspensionScope::All));
        let blocked = limits.named("p").check("ann").await.unwrap();
        assert_eq!(blocked.origin(), Origin::Block);
    }
    drop(source);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The environment is that of a child process, which runs this test again.
#[tokio::test]
async fn environment_takes_precedence_over_suspensions() {
    const NAME: &str = "overlays::environment_takes_precedence_over_suspensions";
    let Ok(mode) = std::env::var(Enforcement::ENV) else {
        for mode in ["enforce", "shadow", "off"] {
            let program = std::env::current_exe().unwrap();
            let mut child = std::process::Command::new(program);
            let child = child.args(["--exact", NAME]).env(Enforcement::ENV, mode);
            let output = child.output().unwrap();
            assert!(output.status.success(), "{mode}: {output:?}");
        }
        return;
    };
    let registry = PolicyRegistry::from_toml(POLICY).unwrap();
    let end = std::time::SystemTime::now() + std::time::Duration::from_secs(3_600);
    registry
        .block(Block::new(BlockTarget::Key("eve".into())))
        .unwrap();
    for suspended in [SuspensionMode::Off, SuspensionMode::Shadow, SuspensionMode::Deny] {
        let suspension = Suspension::new("all".parse().unwrap(), suspended, end);
        registry.suspend(suspension).unwrap();
        // A mode in the code takes the place of the environment.
        let coded = Limiter::in_process()
            .registry(&registry)
            .enforcement(Enforcement::Enforce)
            .build();
        let limits = Limiter::in_process().registry(&registry).build();
        let outcome = async |limits: &Limiter, key: &str| {
            for _ in 0..2 {
                let _ = limits.named("p").check(key).await.unwrap();
            }
            let third = limits.named("p").check(key).await.unwrap();
            (third.is_allowed(), third.would_deny(), third.origin())
        };
        let (ann, eve) = match mode.as_str() {
            "enforce" => ((false, false, Origin::Memory), (false, false, Origin::Block)),
            "shadow" => ((true, true, Origin::Memory), (true, true, Origin::Block)),
            _ => ((true, false, Origin::Off), (true, false, Origin::Off)),
        };
        assert_eq!(outcome(&limits, "ann").await, ann, "{suspended}");
        assert_eq!(outcome(&limits, "eve").await, eve, "{suspended}");
        let of_suspension = match suspended {
            SuspensionMode::Deny => (false, false, Origin::Suspension),
            SuspensionMode::Shadow => (true, true, Origin::Memory),
            _ => (true, false, Origin::Off),
        };
        assert_eq!(outcome(&coded, "ann").await, of_suspension, "{suspended}");
    }
}

#[test]
fn trial_round_trips_and_needs_no_newer_reader() {
    let trial = "trial = { capacity = 5, rate = \"3/s\", until = 2030-01-01T00:00:00Z }\n";
    let text = format!("format = 1\nmin_reader = 1\n\n{POLICY}{trial}");
    assert_eq!(PolicyRegistry::from_toml(&text).unwrap().to_toml(), text);
    assert_eq!(
        errors_of(&format!(
            "{POLICY}trial = {{ capacity = 0, rate = '1/s', at = 1 }}"
        )),
        [
            "text:5:1: policy.p.trial.until is missing",
            "text:5:22: policy.p.trial.capacity is 0, expected more than zero and at most 4503599627370.496",
            "text:5:39: policy.p.trial.at is unknown, expected capacity, rate, until",
        ]
    );
}

#[test]
fn changed_policy_with_trial_round_trips() {
    let sized = |capacity: u32| Policy::token_bucket("p").capacity(capacity).rate("1/s").build();
    let end = Timestamp::from_micros(1_893_456_000_000_000);
    let tried = sized(9).unwrap().with_trial(&sized(5).unwrap(), end).unwrap();
    for inheritance in [Inheritance::AsIs, Inheritance::Reset, Inheritance::Proportional] {
        let registry = PolicyRegistry::new().with(sized(2).unwrap());
        registry.change(&tried, inheritance).unwrap();
        for _ in 0..2 {
            let read = PolicyRegistry::from_toml(&registry.to_toml()).unwrap();
            assert_eq!(read.get("p"), registry.get("p"), "{inheritance:?}");
            // Keeps the conversion.
            registry.set(&tried);
        }
    }
}

#[tokio::test]
async fn overlays_of_an_app_apply_in_a_limiter_of_all_apps_to_policies_of_this_app() {
    let policies = r#"
[policy.of_all]
algorithm = "sliding_window"
limit = 10
window = "1h"

[policy.of_checkout]
algorithm = "sliding_window"
limit = 10
window = "1h"
apps = ["checkout"]

[policy.of_both]
algorithm = "sliding_window"
limit = 10
window = "1h"
apps = ["billing", "checkout"]

[[block]]
key = "eve"
app = "checkout"
"#;
    let text = format!("format = 2\nmin_reader = 2\n{policies}");
    let registry = PolicyRegistry::from_toml(&text).unwrap();
    let limiter = |app: &str| Limiter::in_process().registry(&registry).app(app).build();
    let (gateway, checkout) = (limiter("*"), limiter("checkout"));
    let origin = async |limiter: &Limiter, policy: &str, key: &str| {
        limiter.named(policy).check(key).await.unwrap().origin()
    };
    let suspend = |scope: &str, mode| {
        let end = SystemTime::now() + Duration::from_secs(600);
        let suspension = Suspension::new(scope.parse().unwrap(), mode, end);
        registry.suspend(suspension).unwrap();
    };
    assert_eq!(origin(&gateway, "of_checkout", "ann").await, Origin::Memory);
    assert_eq!(origin(&gateway, "of_checkout", "eve").await, Origin::Block);
    suspend("app:checkout", SuspensionMode::Deny);
    assert_eq!(origin(&gateway, "of_checkout", "ann").await, Origin::Suspension);
    for policy in ["of_all", "of_both"] {
        assert_eq!(origin(&gateway, policy, "eve").await, Origin::Memory);
        assert_eq!(origin(&checkout, policy, "eve").await, Origin::Suspension);
    }
    suspend("policy:of_checkout", SuspensionMode::Off);
    assert_eq!(origin(&gateway, "of_checkout", "ann").await, Origin::Off);
}

/// `a=b=c` is the text of the name `a` and the value `b=c`.
#[test]
fn name_of_a_blocked_part_without_a_text_form_is_rejected() {
    let part = |name: &str, value: &str| BlockTarget::Part {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let registry = PolicyRegistry::new();
    let error = registry
        .block(Block::new(part("a=b", "c")))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`a=b`") && error.contains("without `=`"),
        "{error}"
    );
    registry.block(Block::new(part("a", "b=c"))).unwrap();
    let read = PolicyRegistry::from_toml(&registry.to_toml()).unwrap();
    assert_eq!(read.blocks(), registry.blocks());
}
