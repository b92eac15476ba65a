//! Stored values of other versions of the library.

use std::time::Duration;

use limiter_core::{Limiter, OnStoreFailure, Policy, Rejection, StoreErrorKind};
use limiter_testing::RedisServer;

use crate::trial::{Trial, namespace};

/// A value of an older and of a newer layout cause a typed error and are not changed.
pub(crate) fn of_other_versions(trial: &Trial) {
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url())
        .namespace(namespace())
        .build()
        .expect("a valid limiter");
    for policy in policies() {
        for (version, named) in [(0, "older"), (2, "newer")] {
            let result = call_on(trial, &server, &limits, &policy, version);
            let figure = format!("{} of {} layout: {result:?}", policy.name(), named);
            let ok = result
                == ForeignValueResult {
                    kind: Some(StoreErrorKind::UnknownLayout),
                    untouched: true,
                    forgotten: true,
                };
            trial
                .report
                .row(figure, "UnknownLayout, untouched, no trace once it is gone", ok);
        }
    }
}

/// The result of a call on a foreign value.
#[derive(Debug, PartialEq, Eq)]
struct ForeignValueResult {
    kind: Option<StoreErrorKind>,
    /// Value and expiry are as they were.
    untouched: bool,
    /// Calls are decided again as soon as the value has gone.
    forgotten: bool,
}

fn call_on(
    trial: &Trial,
    server: &RedisServer,
    limits: &Limiter,
    policy: &Policy,
    version: u8,
) -> ForeignValueResult {
    let key = format!("{}:{version}", policy.name());
    let check = || trial.wait(async { limits.check(policy, key.as_str()).await });
    assert!(check().is_ok_and(|decision| decision.is_allowed()), "a fresh key");
    let names = server.command(&["KEYS", &format!("*{key}*")]);
    let name = names.items().first().expect("a stored value").bytes().to_vec();
    let mut value = server.command(&[b"GET", name.as_slice()]).bytes().to_vec();
    *value.first_mut().expect("a version") = version;
    server.command(&[b"SET", name.as_slice(), &value, b"PX", b"600000"]);

    let kind = match check() {
        Err(Rejection::Unavailable { error, .. }) => Some(error.kind()),
        _ => None,
    };
    let remaining_ttl = server.command(&[b"PTTL", name.as_slice()]).integer();
    let untouched = server.command(&[b"GET", name.as_slice()]).bytes() == value && remaining_ttl > 500_000;
    server.command(&[b"DEL", name.as_slice()]);
    let forgotten = check().is_ok_and(|decision| decision.is_allowed());
    ForeignValueResult {
        kind,
        untouched,
        forgotten,
    }
}

fn policies() -> [Policy; 3] {
    let patience = Duration::from_secs(10);
    let error = OnStoreFailure::Error;
    let bucket = Policy::token_bucket("bucket").capacity(5).rate("1/h");
    let funnel = Policy::funnel("funnel").capacity(5).rate("1/h");
    let window = Policy::sliding_window("window").limit(5).window("1h");
    [
        bucket.deadline(patience).on_store_failure(error).build(),
        funnel.deadline(patience).on_store_failure(error).build(),
        window.deadline(patience).on_store_failure(error).build(),
    ]
    .map(|policy| policy.expect("a valid policy"))
}
