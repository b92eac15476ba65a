//! Registries in files. Time is Tokio's paused time, which advances when all tasks are idle.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use limiter_core::registry::{FileSource, KeyOverride, PolicyRegistry, RegistryError};
use limiter_core::{Limiter, ManualClock, Timestamp};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{bucket, millis, secs};

/// A separate directory of the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("registry-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("limits.toml")
    }

    fn write(&self, text: &str) -> PathBuf {
        fs::write(self.file(), text).unwrap();
        self.file()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sized(capacity: u64) -> String {
    format!("policy.p = {{ algorithm = 'token_bucket', capacity = {capacity}, rate = 1 }}\n")
}

fn capacity(registry: &PolicyRegistry) -> u64 {
    registry.get("p").unwrap().policy().quota().whole()
}

/// Waits until a read of the file has the expected effect.
async fn until(operation: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(millis(10)).await;
        }
    };
    assert!(timeout(secs(3), waiting).await.is_ok(), "{operation}");
}

/// The next change of the registry, and how long it took.
async fn changed(registry: &PolicyRegistry, revision: u64) -> Duration {
    let started = Instant::now();
    timeout(secs(3), registry.changed(revision)).await.unwrap();
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn file_is_read_immediately_and_followed() {
    let (dir, registry) = (
        Dir::new("followed"),
        PolicyRegistry::new().with(bucket("p", 1, 1)),
    );
    let followed = FileSource::follow(&registry, dir.write(&sized(2))).unwrap();
    assert_eq!((capacity(&registry), followed.path()), (2, &*dir.file()));
    for capacity_now in [3, 4] {
        let revision = registry.revision();
        dir.write(&sized(capacity_now));
        assert!(changed(&registry, revision).await <= millis(1_200));
        assert_eq!(capacity(&registry), capacity_now);
    }
    let revision = registry.revision();
    registry.set(bucket("p", 9, 1));
    registry.set(bucket("q", 9, 1));
    assert_eq!(
        capacity(&registry),
        4,
        "policies of the file precede policies of the code"
    );
    assert_eq!(registry.names(), ["p", "q"]);
    dir.write(&sized(4).replace("policy.p", "policy.r"));
    changed(&registry, revision + 2).await;
    assert_eq!(capacity(&registry), 9, "the file no longer contains the policy");
    assert_eq!(registry.names(), ["p", "q", "r"]);
    assert!(followed.last_error().is_none());
}

/// Kubernetes replaces files in this way: a new directory, and a symbolic link renamed over the old
/// one.
#[tokio::test(start_paused = true)]
async fn swapped_config_map_is_detected() {
    let (dir, registry) = (Dir::new("swapped"), PolicyRegistry::new());
    let mount = |version: &str, capacity| {
        let (data, link) = (dir.0.join(version), dir.0.join("..data_tmp"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("limits.toml"), sized(capacity)).unwrap();
        symlink(version, &link).unwrap();
        fs::rename(&link, dir.0.join("..data")).unwrap();
    };
    mount("..2026_01", 2);
    symlink("..data/limits.toml", dir.file()).unwrap();
    let _followed = FileSource::follow(&registry, dir.file()).unwrap();
    assert_eq!(capacity(&registry), 2);
    let revision = registry.revision();
    mount("..2026_02", 3);
    fs::remove_dir_all(dir.0.join("..2026_01")).unwrap();
    assert!(changed(&registry, revision).await <= millis(1_200));
    assert_eq!(capacity(&registry), 3);
}

#[tokio::test(start_paused = true)]
async fn invalid_file_is_ignored_and_reported_repeatedly() {
    let (dir, registry) = (Dir::new("wrong"), PolicyRegistry::new());
    let followed = FileSource::follow(&registry, dir.write(&sized(2))).unwrap();
    let file = dir.file();
    let result = || {
        let error = followed.last_error()?;
        Some(error.to_string().replace(&*file.to_string_lossy(), "FILE"))
    };
    let revision = registry.revision();
    for (text, message) in [
        (
            sized(3).replace("rate = 1", "rate = '10'"),
            "FILE:1:63: policy.p.rate is '10', expected permits per time, such as 10/s, 100/min, 7/3s or 1/30d",
        ),
        (String::new(), "FILE:1:1: no policy, expected at least one"),
        (
            sized(3).replace("}", ""),
            "FILE:1:64: unclosed inline table, expected `}`",
        ),
    ] {
        dir.write(&text);
        until(message, || result().as_deref() == Some(message)).await;
    }
    fs::remove_file(&file).unwrap();
    until("gone", || {
        matches!(followed.last_error(), Some(RegistryError::File { .. }))
    })
    .await;
    fs::write(&file, b"\xff").unwrap();
    until("no text", || {
        let error = followed.last_error();
        matches!(error, Some(RegistryError::File { error, .. }) if error.kind() == std::io::ErrorKind::InvalidData)
    })
    .await;
    assert_eq!((registry.revision(), capacity(&registry)), (revision, 2));
    dir.write(&sized(2));
    until("as before", || result().is_none()).await;
    assert_eq!(registry.revision(), revision);
    dir.write(&sized(3));
    changed(&registry, revision).await;
    assert_eq!(capacity(&registry), 3);
}

/// A file that is written in parts is read when it is complete.
#[tokio::test(start_paused = true)]
async fn partially_written_file_is_not_applied() {
    let (dir, registry) = (Dir::new("pieces"), PolicyRegistry::new());
    let all = sized(2) + "policy.q = { algorithm = 'token_bucket', capacity = 1, rate = 1 }\n";
    let _followed = FileSource::follow(&registry, dir.write(&all)).unwrap();
    let revision = registry.revision();
    // The file is read after 1 s and, if it has changed, again after another 0.1 s.
    dir.write(&sized(3));
    sleep(millis(1_050)).await;
    dir.write(&all.replace("capacity = 2", "capacity = 3"));
    changed(&registry, revision).await;
    assert_eq!(
        (capacity(&registry), registry.names()),
        (3, vec!["p".to_owned(), "q".to_owned()])
    );
    assert_eq!(registry.revision(), revision + 1, "no revision is between them");
}

#[tokio::test(start_paused = true)]
async fn file_is_followed_until_stop_or_drop_of_registry() {
    let (dir, registry) = (Dir::new("ends"), PolicyRegistry::new());
    let missing = FileSource::follow(&registry, dir.file()).unwrap_err();
    assert!(matches!(missing, RegistryError::File { ref path, .. } if *path == dir.file()));
    assert!(FileSource::follow(&registry, dir.write("")).is_err() && registry.names().is_empty());

    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let followed = FileSource::follow(&registry, dir.write(&sized(2))).unwrap();
    assert_eq!(tasks(), before + 1);
    followed.stop();
    until("the task ends when it is stopped", || tasks() == before).await;
    assert_eq!(capacity(&registry), 2, "the policies remain");

    let _ = FileSource::follow(&registry, dir.file()).unwrap();
    let revision = registry.revision();
    dir.write(&sized(3));
    changed(&registry, revision).await;
    drop(registry);
    until("the task ends with the registry", || tasks() == before).await;
}

#[tokio::test(start_paused = true)]
async fn code_overrides_of_file_policy_can_be_removed() {
    let (dir, registry) = (Dir::new("removed"), PolicyRegistry::new());
    let _followed = FileSource::follow(&registry, dir.write(&sized(2))).unwrap();
    registry
        .set_override(KeyOverride::new(bucket("p", 7, 1), "k"))
        .unwrap();
    let revision = registry.revision();
    assert!(!registry.remove("p"), "the policy belongs to the file");
    assert!(registry.overrides("p").is_empty() && registry.revision() > revision);
    let limits = Limiter::in_process().registry(&registry).build();
    assert_eq!(limits.policy("p", "k").unwrap().quota().whole(), 2);
}

#[tokio::test(start_paused = true)]
async fn expired_file_override_restores_code_override() {
    let (dir, registry, clock) = (Dir::new("over"), PolicyRegistry::new(), ManualClock::new());
    let text = format!(
        "{}[[override]]\npolicy = 'p'\nkey = 'k'\ncapacity = 7\nrate = 1\nuntil = 2031-01-01T00:00:00Z\n",
        sized(2)
    );
    let [before, end] = [1_924_991_999_000_000, 1_924_992_000_000_000].map(Timestamp::from_micros);
    let _followed = FileSource::follow(&registry, dir.write(&text)).unwrap();
    let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
    let counts = || limits.policy("p", "k").unwrap().quota().whole();
    let own = |capacity| KeyOverride::new(bucket("p", capacity, 1), "k");
    // Overrides of code, which that of the file hides: one without an end, one with a later end.
    for given in [own(5), own(6).until(end.after(secs(1)))] {
        clock.set(before);
        registry.set_override(given.clone()).unwrap();
        assert_eq!((counts(), registry.overrides("p").len()), (7, 1));
        clock.set(end);
        assert_eq!(counts(), given.policy().quota().whole());
        registry.set(bucket("p", 1, 1));
        assert_eq!(
            counts(),
            given.policy().quota().whole(),
            "the policy is applied again"
        );
    }
    clock.set(end.after(secs(1)));
    assert_eq!(counts(), 2);
    registry.remove_override("p", "k");
    clock.set(before);
    assert_eq!(counts(), 7);
    clock.set(end);
    assert_eq!(counts(), 2);
}

#[test]
fn oversized_file_is_rejected() {
    const MOST: usize = 4 << 20;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let dir = Dir::new("long");
    for (first, rest) in [("", "\n"), ("revision = 7\n", "\n"), ("revision = 7\n", "é")] {
        let head = format!("{first}{}#", sized(2));
        // A character that the length limit splits is not a separate error.
        let text = format!("{head}{}", rest.repeat(MOST / rest.len()));
        let refused = FileSource::follow(&PolicyRegistry::new(), dir.write(&text)).unwrap_err();
        let result = refused.to_string();
        assert!(
            result.ends_with(":1:1: the file is too long, expected at most 4194304 bytes"),
            "{result}"
        );
        let registry = PolicyRegistry::new();
        let fits = format!("{head}{}", "x".repeat(MOST - head.len()));
        let _followed = FileSource::follow(&registry, dir.write(&fits)).unwrap();
        assert_eq!(capacity(&registry), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn change_of_limit_kind_is_rejected() {
    let (dir, registry) = (Dir::new("turned"), PolicyRegistry::new());
    let followed = FileSource::follow(&registry, dir.write(&sized(2))).unwrap();
    let held = "policy.p = { algorithm = 'concurrency', max = 3 }\npolicy.q = { algorithm = 'concurrency', max = 3 }\n";
    dir.write(held);
    until("it is refused", || followed.last_error().is_some()).await;
    let result = followed.last_error().unwrap().to_string();
    assert!(
        result.contains("policy `p` changes from p (token bucket"),
        "{result}"
    );
    assert_eq!((capacity(&registry), registry.get("q")), (2, None));
    // A policy that was removed first may return with another kind of limit.
    dir.write("policy.q = { algorithm = 'concurrency', max = 3 }\n");
    until("it is taken out", || registry.get("p").is_none()).await;
    dir.write(held);
    until("it is there", || registry.get("p").is_some()).await;
}

/// The rejection depends on the other sources, which may change after the file.
#[tokio::test(start_paused = true)]
async fn rejected_file_is_adopted_after_removal_of_conflicting_policy() {
    let (dir, registry) = (Dir::new("conflict"), PolicyRegistry::new());
    let other = "policy.q = { algorithm = 'concurrency', max = 3 }\n";
    let followed = FileSource::follow(&registry, dir.write(other)).unwrap();
    registry.set(bucket("p", 1, 1));
    dir.write("policy.p = { algorithm = 'concurrency', max = 3 }\n");
    until("it is rejected", || followed.last_error().is_some()).await;
    assert!(registry.remove("p"));
    until("it is adopted", || registry.get("p").is_some()).await;
    assert!(followed.last_error().is_none());
}

/// Gateways find the policies of rules by two reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_of_a_rule_finds_its_policy_or_a_later_revision() {
    let dir = Dir::new("rules-and-policies");
    // The more policies, the longer a change takes.
    let others: String = (0..200)
        .map(|number| sized(1).replace("policy.p", &format!("policy.other{number}")))
        .collect();
    let text = |name: &str| {
        let policy = sized(1).replace("policy.p", &format!("policy.{name}"));
        format!("{policy}{others}[[rule]]\nmatch = ['a']\npolicy = '{name}'\n")
    };
    let texts = [text("one"), text("two")];
    let registry = PolicyRegistry::new();
    let publish = move |registry: &PolicyRegistry, number: usize| {
        let path = dir.write(&texts[number % 2]);
        FileSource::follow(registry, path).unwrap().stop();
    };
    publish(&registry, 0);
    let reader = registry.clone();
    let publishing =
        tokio::task::spawn_blocking(move || (1..200).for_each(|number| publish(&registry, number)));
    while !publishing.is_finished() {
        let revision = reader.revision();
        let rules = reader.rules();
        let is_found = reader.get(rules[0].policy()).is_some();
        assert!(is_found || reader.revision() != revision, "{}", rules[0].policy());
    }
    publishing.await.unwrap();
}
