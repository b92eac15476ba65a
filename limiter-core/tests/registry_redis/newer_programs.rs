//! Texts of programs with fields that this one does not know.

use super::*;

/// The text of two policies, each with the quota of a key; `p` also has these lines.
fn two(capacity: u64, of_p: &str) -> String {
    let policies = sized(capacity).replace("[policy.p]\n", &format!("[policy.p]\n{of_p}"));
    let other = sized(capacity).replace("policy.p", "policy.other");
    let own = |name: &str| {
        format!("[[override]]\npolicy = '{name}'\nkey = 'ann'\ncapacity = {capacity}00\nrate = 1\n")
    };
    format!("{policies}{other}{}{}", own("p"), own("other"))
}

fn other(registry: &PolicyRegistry) -> u64 {
    registry.get("other").unwrap().policy().quota().whole()
}

/// The quotas of the key, by policy.
fn own(registry: &PolicyRegistry) -> [Vec<u64>; 2] {
    ["p", "other"].map(|name| {
        let own = registry.overrides(name);
        own.iter().map(|own| own.policy().quota().whole()).collect()
    })
}

/// Writes a text as a newer program would, and waits until the replica has it, or has rejected it.
async fn published_by_a_newer_program(replica: &Replica, server: &RedisServer, namespace: &str, text: &str) {
    let before = replica
        .store
        .read()
        .await
        .unwrap()
        .map_or(0, |(revision, _)| revision);
    let text = format!("revision = {}\n{text}", before + 1);
    server.command(&["SET", &format!("{namespace}|book"), &text]);
    server.command(&["PUBLISH", &format!("{namespace}|book"), "1"]);
}

#[tokio::test]
async fn unreadable_policy_alone_keeps_its_previous_version() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let registry = replica.limits.registry();
    replica.store.publish(&two(2, ""), 0).await.unwrap();

    let newer = two(3, "").replacen("token_bucket", "quantum", 1);
    published_by_a_newer_program(&replica, &server, &namespace, &newer).await;
    let partly = |error: Option<RegistryError>| {
        error.is_some_and(|error| error.to_string().contains("policy.p.algorithm is \"quantum\""))
    };
    replica.reports("one policy is rejected", partly).await;
    assert_eq!((capacity(registry), other(registry)), (Some(2), 3));
    assert_eq!(own(registry), [[200], [300]]);

    // The error remains while this text applies; a restarted reader without a previous version has
    // only the other policy.
    assert!(replica.source.synced().await.is_err());
    let late = Replica::new(Limiter::redis(server.url()), &namespace);
    assert!(matches!(
        late.source.synced().await,
        Err(RegistryError::Parse { .. })
    ));
    assert_eq!(
        (capacity(late.limits.registry()), other(late.limits.registry())),
        (None, 3)
    );

    // A key override belongs to its policy.
    let newer = two(4, "").replacen("capacity = 400\n", "capacity = 'many'\n", 1);
    published_by_a_newer_program(&replica, &server, &namespace, &newer).await;
    let of_key = |error: Option<RegistryError>| {
        error.is_some_and(|error| error.to_string().contains("override[0].capacity"))
    };
    replica.reports("the quota of a key is rejected", of_key).await;
    assert_eq!((capacity(registry), other(registry)), (Some(2), 4));
    assert_eq!(own(registry), [[200], [400]]);

    // A policy that changes between rate and concurrency is also rejected.
    let turned = two(5, "").replacen(
        "algorithm = \"token_bucket\"\ncapacity = 5\nrate = \"1/h\"",
        "algorithm = \"concurrency\"\nmax = 5",
        1,
    );
    let turned = turned.replacen(
        "[[override]]\npolicy = 'p'\nkey = 'ann'\ncapacity = 500\nrate = 1\n",
        "",
        1,
    );
    published_by_a_newer_program(&replica, &server, &namespace, &turned).await;
    let of_kind = |error: Option<RegistryError>| {
        error.is_some_and(|error| error.to_string().contains("policy `p` changes from"))
    };
    replica
        .reports("a policy of another kind is rejected", of_kind)
        .await;
    assert_eq!((capacity(registry), other(registry)), (Some(2), 5));

    published_by_a_newer_program(&replica, &server, &namespace, &two(6, "")).await;
    replica.reports("all is well", |error| error.is_none()).await;
    assert_eq!((capacity(registry), other(registry)), (Some(6), 6));
    assert_eq!(own(registry), [[600], [600]]);
}

#[tokio::test]
async fn unknown_fields_warn_subscriber_and_fail_publisher() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let newer = format!("[[tariff]]\npolicy = 'p'\n{}", two(2, "colour = 'red'\n"));
    let strict = replica.store.publish(&newer, 0).await.unwrap_err().to_string();
    assert!(
        strict.contains("tariff is unknown") && strict.contains("policy.p.colour is unknown"),
        "{strict}"
    );

    published_by_a_newer_program(&replica, &server, &namespace, &newer).await;
    replica.has(2, SOON).await;
    replica.reports("the text applies", |error| error.is_none()).await;
    let about = || {
        let warnings = warnings.all().into_iter();
        let about: Vec<String> = warnings
            .filter(|warning| warning.contains("unknown fields"))
            .collect();
        about
    };
    let result = about();
    assert_eq!(result.len(), 1, "{result:?}");
    assert!(
        result.concat().contains("tariff is unknown")
            && result.concat().contains("policy.p.colour is unknown"),
        "{result:?}"
    );

    // An edit by this version would lose them, also where Redis has lost the text.
    let edited = replica.store.edit(|_| Ok(())).await.unwrap_err().to_string();
    assert!(edited.contains("policy.p.colour is unknown"), "{edited}");
    server.command(&["DEL", &format!("{namespace}|book")]);
    let restored = replica.store.edit(|_| Ok(())).await;
    assert!(
        matches!(restored, Err(RegistryError::Older { found: 0, .. })),
        "{restored:?}"
    );
}

#[tokio::test]
async fn text_for_newer_readers_changes_nothing_and_is_reported() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    replica.store.publish(&two(2, ""), 0).await.unwrap();
    let newer = format!("format = 4\nmin_reader = 4\n{}", two(3, ""));
    published_by_a_newer_program(&replica, &server, &namespace, &newer).await;
    let is_newer = |error: Option<RegistryError>| {
        matches!(error, Some(RegistryError::NewerFormat { min_reader: 4, .. }))
    };
    replica.reports("the text needs a newer reader", is_newer).await;
    assert_eq!(
        (
            capacity(replica.limits.registry()),
            other(replica.limits.registry())
        ),
        (Some(2), 2)
    );
    published_by_a_newer_program(
        &replica,
        &server,
        &namespace,
        &newer.replace("min_reader = 4", "min_reader = 1"),
    )
    .await;
    replica.has(3, SOON).await;
}

/// An overlay may protect a service, so an unreadable one does not remove the others.
#[tokio::test]
async fn unreadable_overlay_alone_is_rejected() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let registry = replica.limits.registry();
    replica.store.publish(&sized(2), 0).await.unwrap();

    let overlays = "[[suspend]]\nscope = 'all'\nenforcement = 'throttle'\n\
                    [[block]]\nsubnet = 'a'\n[[block]]\nkey = 'ann'\n";
    let newer = format!("{}{overlays}", sized(3));
    published_by_a_newer_program(&replica, &server, &namespace, &newer).await;
    let both = |error: Option<RegistryError>| {
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        ["suspend[0].enforcement", "block[0]"]
            .iter()
            .all(|place| error.contains(place))
    };
    replica.reports("two overlays are rejected", both).await;
    assert_eq!(capacity(registry), Some(3));
    assert!(registry.suspensions().is_empty());
    assert_eq!(registry.blocks().len(), 1);
    let named = replica.limits.named("p");
    let denied = named.check("ann").await.unwrap();
    assert!(!denied.is_allowed() && named.check("bob").await.unwrap().is_allowed());
}
