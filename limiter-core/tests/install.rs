//! The limiter of annotated functions before and after `install`. It is set once in a process, so
//! this file is one test.
#![cfg(feature = "macros")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use limiter_core::{ConfigError, Limiter, Policy, Rejection, token_limiter};
use limiter_testing::log::Warnings;

#[token_limiter(name = "greet", capacity = 2, rate = "1/h", key = "user:{name}")]
async fn greet(name: &str) -> Result<String, Rejection> {
    Ok(format!("hello {name}"))
}

#[tokio::test]
async fn installed_limiter_replaces_implicit_one() {
    let log = Warnings::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let warnings = |text: &str| log.all().iter().filter(|line| line.contains(text)).count();

    // A debug build decides in process, and warns once. A release build rejects every call, and
    // logs one error.
    let is_debug = cfg!(debug_assertions);
    for is_allowed in [true, true, false] {
        assert_eq!(greet("ann").await.is_ok(), is_allowed && is_debug);
    }
    assert_eq!(warnings("no limiter is installed"), 1);

    let limits = Limiter::in_process().build();
    limiter_core::annotations::install(limits.clone()).unwrap();
    assert_eq!(
        warnings("were called before limiter_core::annotations::install"),
        usize::from(is_debug)
    );

    // The installed limiter starts without the usage of the implicit limiter.
    for is_allowed in [true, true, false] {
        assert_eq!(greet("ann").await.is_ok(), is_allowed);
    }
    let policy = Policy::token_bucket("greet")
        .capacity(2)
        .rate("1/h")
        .build()
        .unwrap();
    assert_eq!(limits.peek(&policy, "user:ann").await.unwrap().remaining(), 0);

    let again = limiter_core::annotations::install(Limiter::in_process().build());
    assert!(matches!(again, Err(ConfigError::AlreadyInstalled)), "{again:?}");
    assert_eq!(log.all().len(), 1 + usize::from(is_debug), "{:?}", log.all());
}
