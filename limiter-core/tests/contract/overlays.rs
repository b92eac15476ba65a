//! Suspensions and blocks of the registry, on the store.

use limiter_core::concurrency::ConcurrencyPermit;
use limiter_core::registry::{Block, BlockTarget, PolicyEntry, Suspension, SuspensionMode, SuspensionScope};
use limiter_core::{Key, KeyList, OnDenial, Origin, Policy, Rejection};

use crate::support::{KEY, PATIENT, Subject, bucket, secs};

fn suspend(subject: &Subject, scope: &str, mode: SuspensionMode) {
    let scope: SuspensionScope = scope.parse().unwrap();
    let end = subject.clock.now().after(secs(60));
    let suspension = Suspension::new(scope, mode, end).with_reason("test");
    subject.limits.registry().suspend(suspension).unwrap();
}

fn origin_of(rejection: &Rejection) -> Option<Origin> {
    match rejection {
        Rejection::Forbidden { decision, .. } => Some(decision.origin()),
        _ => None,
    }
}

/// The deny cache contains a denial, and a lease contains permits.
pub(crate) async fn suspension_applies_in_spite_of_caches(subject: Subject) {
    let leased = Policy::token_bucket("leased")
        .capacity(1_000)
        .rate("1/h")
        .lease(secs(10))
        .deadline(PATIENT)
        .build()
        .unwrap();
    let small = bucket("small", 1, "1/h");
    for policy in [&leased, &small] {
        assert!(subject.limits.check(policy, KEY).await.unwrap().is_allowed());
    }
    assert!(!subject.limits.check(&small, KEY).await.unwrap().is_allowed());
    suspend(&subject, "all", SuspensionMode::Deny);
    for policy in [&leased, &small] {
        let denied = subject.limits.check(policy, KEY).await.unwrap();
        assert_eq!(
            (denied.is_allowed(), denied.origin()),
            (false, Origin::Suspension)
        );
        assert_eq!(denied.retry_after(), None);
        let rejection = denied.require().unwrap_err();
        assert_eq!((rejection.http_status(), rejection.grpc_code()), (403, 7));
        assert!(rejection.diagnostic().to_string().contains("is suspended"));
    }
    suspend(&subject, "all", SuspensionMode::Off);
    for policy in [&leased, &small] {
        let allowed = subject.limits.check(policy, KEY).cost(1_000_u64).await.unwrap();
        assert_eq!((allowed.is_allowed(), allowed.origin()), (true, Origin::Off));
    }
    suspend(&subject, "all", SuspensionMode::Shadow);
    let shadow = subject.limits.check(&small, KEY).await.unwrap();
    assert!(shadow.is_allowed() && shadow.would_deny());
}

pub(crate) async fn suspension_ends_by_the_clock(subject: Subject) {
    let policy = bucket("p", 1, "1/h");
    subject.limits.registry().set(&policy);
    suspend(&subject, "policy:p", SuspensionMode::Deny);
    suspend(&subject, "policy:q", SuspensionMode::Off);
    let named = subject.limits.named("p");
    subject.clock.advance(secs(59));
    let denied = named.check(KEY).await.unwrap();
    assert_eq!(denied.origin(), Origin::Suspension);
    subject.clock.advance(secs(1));
    assert!(named.check(KEY).await.unwrap().is_allowed());
    assert!(!named.check(KEY).await.unwrap().is_allowed());
}

/// The suspension of a policy, then that of an app, then that of all.
pub(crate) async fn narrower_suspension_takes_precedence(subject: Subject) {
    let (p, q) = (bucket("p", 1, "1/h"), bucket("q", 1, "1/h"));
    suspend(&subject, "all", SuspensionMode::Deny);
    suspend(&subject, "policy:p", SuspensionMode::Off);
    let origin = async |policy: &Policy| subject.limits.check(policy, KEY).await.unwrap().origin();
    assert_eq!(
        (origin(&p).await, origin(&q).await),
        (Origin::Off, Origin::Suspension)
    );
    let both = [(&p, KEY), (&q, KEY)];
    let denied = subject.limits.check_all(both).await.unwrap();
    assert_eq!(
        (denied.is_allowed(), denied.origin()),
        (false, Origin::Suspension)
    );
    assert_eq!(denied.denied_by().unwrap().policy(), &q);
    let registry = subject.limits.registry();
    assert!(
        registry.end_suspension(&SuspensionScope::All) && !registry.end_suspension(&SuspensionScope::All)
    );
    assert!(subject.limits.check_all(both).await.unwrap().is_allowed());
    assert!(
        !subject.limits.check(&q, KEY).await.unwrap().is_allowed(),
        "charged"
    );
}

pub(crate) async fn suspension_applies_to_concurrency(subject: Subject) {
    let export = Policy::concurrency("export")
        .max(1)
        .deadline(PATIENT)
        .build()
        .unwrap();
    let limits = &subject.limits;
    let held = limits.acquire_concurrency(&export, KEY).await.unwrap();
    suspend(&subject, "policy:export", SuspensionMode::Off);
    let free = limits.acquire_concurrency(&export, KEY).await.unwrap();
    assert_eq!(free.decision().origin(), Origin::Off);
    suspend(&subject, "policy:export", SuspensionMode::Shadow);
    let shadow = limits.acquire_concurrency(&export, KEY).await.unwrap();
    assert!(shadow.decision().would_deny());
    suspend(&subject, "policy:export", SuspensionMode::Deny);
    drop(held);
    let denied = limits.acquire_concurrency(&export, KEY).await.unwrap_err();
    assert_eq!(origin_of(&denied), Some(Origin::Suspension));
    let waited = limits.acquire_concurrency(&export, KEY).timeout(secs(1)).await;
    assert_eq!(origin_of(&waited.unwrap_err()), Some(Origin::Suspension));
    subject.clock.advance(secs(60));
    assert!(
        limits
            .acquire_concurrency(&export, KEY)
            .timeout(secs(30))
            .await
            .is_ok()
    );
}

pub(crate) async fn block_denies_its_keys_under_every_policy(subject: Subject) {
    let limits = &subject.limits;
    let registry = limits.registry();
    let degrading = Policy::token_bucket("degrading")
        .capacity(5)
        .rate("1/h")
        .allow_keys(["*"])
        .on_denial(OnDenial::Degrade)
        .deadline(PATIENT)
        .build()
        .unwrap();
    let policies = [bucket("p", 5, "1/h"), degrading];
    let end = subject.clock.now().after(secs(60));
    for target in [
        BlockTarget::Key("user:7".into()),
        BlockTarget::Key("bot:*".into()),
        BlockTarget::Network("10.0.0.0/8".into()),
        BlockTarget::Network("2001:db8::1".into()),
        BlockTarget::part("tenant=acme").unwrap(),
    ] {
        registry.block(Block::new(target).until(end)).unwrap();
    }
    registry
        .block(Block::new(BlockTarget::Key("eve".into())).for_app("other"))
        .unwrap();
    let user = |id: &str| Key::from("user:").part(id);
    let tenant = |id: &str| Key::from("tenant:").part(id);
    let blocked = [
        user("7"),
        Key::from("bot:x:y"),
        Key::from("10.1.2.3"),
        Key::from("::ffff:10.1.2.3"),
        Key::global().part("2001:db8::1"),
        tenant("acme"),
        tenant("acme").text(":user:").part("1"),
        Key::from("v2:").text("tenant:").part("acme"),
    ];
    let free = [
        user("70"),
        Key::from("11.1.2.3"),
        tenant("acme2"),
        Key::from("acme:tenant"),
        Key::from("subtenant:acme"),
        user("tenant:acme"),
        Key::from("eve"),
    ];
    for policy in &policies {
        for key in &blocked {
            let denied = limits.check(policy, key).await.unwrap();
            assert_eq!(
                (denied.is_allowed(), denied.origin()),
                (false, Origin::Block),
                "{policy} {key:?}"
            );
            for answer in [
                limits.admit(policy, key).await.map(drop),
                limits.acquire(policy, key).await.map(drop),
                limits.reserve(policy, key).await.map(drop),
            ] {
                assert_eq!(origin_of(&answer.unwrap_err()), Some(Origin::Block));
            }
        }
        for key in &free {
            assert!(limits.check(policy, key).await.unwrap().is_allowed(), "{key:?}");
        }
    }
    subject.clock.advance(secs(60));
    for key in &blocked {
        assert!(
            limits.check(&policies[0], key).await.unwrap().is_allowed(),
            "{key:?}"
        );
    }
}

pub(crate) async fn block_of_a_part_denies_keys_with_the_declared_part(subject: Subject) {
    let limits = &subject.limits;
    let registry = limits.registry();
    let entry = |name: &str, parts: &[&str]| {
        let entry = PolicyEntry::new(bucket(name, 5, "1/h"));
        entry.with_key_parts(parts.iter().copied()).unwrap()
    };
    registry.set(entry("declared", &["tenant", "user"]));
    registry.set(entry("reversed", &["user", "tenant"]));
    registry.set(entry("undeclared", &[]));
    let target = BlockTarget::part("tenant=a:b").unwrap();
    let end = subject.clock.now().after(secs(60));
    registry.block(Block::new(target).until(end)).unwrap();
    let key = |parts: &[&str]| {
        let (first, others) = parts.split_first().unwrap();
        let first = Key::global().part(first);
        others.iter().fold(first, |key, part| key.text(":").part(part))
    };
    let origin =
        async |policy: &str, parts: &[&str]| limits.named(policy).check(key(parts)).await.unwrap().origin();
    assert_eq!(origin("declared", &["a:b", "ann"]).await, Origin::Block);
    assert_eq!(origin("reversed", &["ann", "a:b"]).await, Origin::Block);
    for (policy, parts) in [
        ("declared", &["ann", "a:b"][..]),
        ("declared", &["a:b"]),
        ("declared", &["a:b", "ann", "x"]),
        ("declared", &["a:bc", "ann"]),
        ("reversed", &["a:b", "ann"]),
        ("undeclared", &["a:b", "ann"]),
    ] {
        assert_ne!(origin(policy, parts).await, Origin::Block, "{policy} {parts:?}");
    }
    subject.clock.advance(secs(60));
    assert_ne!(origin("declared", &["a:b", "ann"]).await, Origin::Block);
}

pub(crate) async fn key_list_entry_does_not_match_after_its_end(subject: Subject) {
    let now = subject.clock.now();
    let deny = KeyList::parse(["eve"]).unwrap();
    let deny = deny.with_entry_until("mallory", now.after(secs(10))).unwrap();
    let allow = KeyList::default();
    let allow = allow.with_entry_until("10.0.0.0/8", now.after(secs(20))).unwrap();
    let policy = Policy::token_bucket("p")
        .capacity(1)
        .rate("1/h")
        .deny_keys(deny)
        .allow_keys(allow)
        .deadline(PATIENT)
        .build()
        .unwrap();
    let origin = async |key: &str| subject.limits.peek(&policy, key).await.unwrap().origin();
    assert_eq!(origin("mallory").await, Origin::KeyList);
    assert_eq!(origin("10.1.1.1").await, Origin::KeyList);
    subject.clock.advance(secs(10));
    assert_ne!(origin("mallory").await, Origin::KeyList);
    assert_eq!(origin("10.1.1.1").await, Origin::KeyList);
    subject.clock.advance(secs(10));
    assert_ne!(origin("10.1.1.1").await, Origin::KeyList);
    assert_eq!(origin("eve").await, Origin::KeyList);
}

/// Permits that a call awaits, holds or detaches obey the entries of lists until their end.
pub(crate) async fn key_list_entry_of_concurrency_does_not_match_after_its_end(subject: Subject) {
    let now = subject.clock.now();
    let deny = KeyList::default()
        .with_entry_until("mallory", now.after(secs(10)))
        .unwrap();
    let allow = KeyList::default()
        .with_entry_until("ann", now.after(secs(20)))
        .unwrap();
    let export = Policy::concurrency("export").max(100).deny_keys(deny);
    let export = export.allow_keys(allow).deadline(PATIENT).build().unwrap();
    let limits = &subject.limits;
    limits.registry().set(&export);
    let origins = async |key: &str| {
        let acquire = || limits.acquire_concurrency(&export, key);
        let of = |permit: Result<ConcurrencyPermit, Rejection>| match permit {
            Ok(permit) => Some(permit.decision().origin()),
            Err(rejection) => origin_of(&rejection),
        };
        let detached = match acquire().detached().await {
            Ok(permit) => {
                let released = limits.release_permit(&export, key, permit.id()).await;
                released.unwrap();
                Some(permit.decision().origin())
            }
            Err(rejection) => origin_of(&rejection),
        };
        let named = of(limits.named("export").acquire_concurrency(key).await);
        let waited = of(acquire().timeout(secs(1)).await);
        [of(acquire().await), waited, named, detached]
    };
    let listed = [Some(Origin::KeyList); 4];
    let unlisted = limits.acquire_concurrency(&export, "bob").await.unwrap();
    let from_store = [Some(unlisted.decision().origin()); 4];
    assert_ne!(from_store, listed);
    assert_eq!((origins("mallory").await, origins("ann").await), (listed, listed));
    subject.clock.advance(secs(10));
    assert_eq!(
        (origins("mallory").await, origins("ann").await),
        (from_store, listed)
    );
    subject.clock.advance(secs(10));
    assert_eq!(origins("ann").await, from_store);
}
