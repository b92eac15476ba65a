//! No public type, error or log event contains a secret, for every way in which the application
//! passes it.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::error::Error;
use std::fmt::{self, Debug, Display};

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use limiter_core::{Limiter, OnStoreFailure, Policy, RedisBuilder, Rejection};
use limiter_testing::log::Everything;
use limiter_testing::{RedisSentinel, RedisServer};
use support::{PATIENT, namespace};

/// Part of every secret of these tests, and of nothing else.
const SECRET: &str = "s3cr3t";

/// Everything that is shown of one case.
#[derive(Default)]
struct Shown(Vec<(&'static str, String)>);

impl Shown {
    fn debug(&mut self, operation: &'static str, value: &impl Debug) {
        self.0.push((operation, format!("{value:?} {value:#?}")));
    }

    /// An error with all of its sources.
    fn error(&mut self, operation: &'static str, error: &(dyn Error + 'static)) {
        let mut next = Some(error);
        while let Some(error) = next {
            self.0.push((operation, format!("{error} {error:?} {error:#?}")));
            next = error.source();
        }
    }

    /// A value that is shown to people.
    fn text(&mut self, operation: &'static str, value: impl Display) {
        self.0.push((operation, value.to_string()));
    }

    fn assert_without_secrets(&self, case: &str) {
        assert!(!self.0.is_empty());
        for (operation, text) in &self.0 {
            assert!(
                !text.contains(SECRET),
                "{case}: {operation} shows the secret: {text}"
            );
        }
    }
}

fn failing() -> Policy {
    Policy::token_bucket("p")
        .capacity(1)
        .rate(1)
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

/// Shows the builder, the build error, or else the limiter and all that it creates and logs while
/// it is used.
async fn shown_by(builder: RedisBuilder) -> Shown {
    let mut shown = Shown::default();
    let log = Everything::default();
    // A subscriber of the thread also receives events of tasks that the limiter spawns on this
    // thread.
    let guard = tracing::subscriber::set_default(log.clone());
    let builder = builder.namespace(namespace());
    shown.debug("the builder", &builder);
    match builder.build() {
        Err(error) => shown.error("the build error", &error),
        Ok(limits) => use_limiter(&limits, &mut shown).await,
    }
    drop(guard);
    for event in log.all() {
        shown.text("the log", event);
    }
    shown
}

async fn use_limiter(limits: &Limiter, shown: &mut Shown) {
    let policy = failing();
    shown.debug("the limiter", limits);
    shown.debug("a check", &limits.check(&policy, "k"));
    shown.debug("an acquire", &limits.acquire(&policy, "k"));
    if let Err(error) = limits.ready().await {
        shown.error("the error of ready", &error);
    }
    match limits.check(&policy, "k").await {
        Ok(decision) => shown.debug("the decision", &decision),
        Err(rejection) => {
            if let Rejection::Unavailable { error, .. } = &rejection {
                shown.error("the store error", error);
            }
            shown.error("the rejection", &rejection);
        }
    }
    show_registry(limits, shown).await;
}

#[cfg(feature = "registry")]
async fn show_registry(limits: &Limiter, shown: &mut Shown) {
    use limiter_redisson::Client;

    let client = Client::new(limits);
    shown.debug("the client", &client);
    shown.debug("the rate limiter", &client.rate_limiter("r"));
    match limits.redis_registry() {
        Err(error) => shown.error("the registry error", &error),
        Ok(registry) => {
            shown.debug("the registry", &registry);
            if let Err(error) = registry.read().await {
                shown.error("the error of reading", &error);
            }
            let source = registry.follow();
            shown.debug("the subscription", &source);
            if let Err(error) = source.synced().await {
                shown.error("the error of the subscription", &error);
            }
            if let Some(error) = source.last_error() {
                shown.error("the last error of the subscription", &error);
            }
        }
    }
}

#[cfg(not(feature = "registry"))]
async fn show_registry(_: &Limiter, _: &mut Shown) {}

/// URLs that contain [`SECRET`] where a person may put it, right or wrong.
fn urls() -> Vec<String> {
    let server = RedisServer::shared().port();
    let mut urls = vec![
        // Well formed: a wrong password, a password alone, an unreachable server.
        format!("redis://limiter:{SECRET}@127.0.0.1:{server}/"),
        format!("redis://{SECRET}:limits@127.0.0.1:{server}/"),
        format!("redis://:{SECRET}@127.0.0.1:{server}/"),
        format!("redis://limiter:p%40{SECRET}%2F@127.0.0.1:{server}/"),
        format!("redis://u:{SECRET}@127.0.0.1:1/0"),
        format!("valkey://u:{SECRET}@127.0.0.1:1/0"),
        format!("unix:///no/such/socket?user={SECRET}&pass={SECRET}"),
        format!("redis+unix:///no/such/socket?pass={SECRET}"),
        // A user alone; TLS that is not there, or a parameter that is not.
        format!("redis://{SECRET}@127.0.0.1:{server}/"),
        format!("redis://limiter:limits@127.0.0.1:{server}/?password={SECRET}"),
        format!("rediss://u:{SECRET}@127.0.0.1:1/"),
        format!("rediss://u:{SECRET}@127.0.0.1:1/#insecure"),
        format!("rediss://127.0.0.1:1/#{SECRET}"),
        format!("redis://127.0.0.1:1/?protocol={SECRET}"),
        format!("redis://127.0.0.1:1/{SECRET}"),
        format!("redis://u:{SECRET}@0.0.0.0/"),
        format!("unix:///no/such/socket?db={SECRET}"),
        format!("unix://u:{SECRET}@/no/such/socket"),
        // Characters that should have been percent-encoded.
        format!("redis://u:{SECRET}/more@127.0.0.1:1/"),
        format!("redis://u:more/{SECRET}@127.0.0.1:1/"),
        format!("redis://u:12/{SECRET}@127.0.0.1:1/"),
        format!("redis://u:{SECRET}?more@127.0.0.1:1/"),
        format!("redis://u:more?{SECRET}@127.0.0.1:1/"),
        format!("redis://u:{SECRET}#more@127.0.0.1:1/"),
        format!("redis://u:{SECRET}@more@127.0.0.1:1/"),
        format!("redis://u:{SECRET} more@127.0.0.1:1/"),
        format!("redis://u:{SECRET}%ff@127.0.0.1:1/"),
        format!("redis://{SECRET}%ff@127.0.0.1:1/"),
        // No URL of a Redis server.
        format!("redis://u:{SECRET}"),
        format!("REDIS://u:{SECRET}"),
        format!("redis://u:{SECRET}@"),
        format!("redis://u:{SECRET}@127.0.0.1:port/"),
        format!("redis://u:{SECRET}@[::1/"),
        format!("redis:/u:{SECRET}@127.0.0.1/"),
        format!("redis:u:{SECRET}@127.0.0.1"),
        format!("redis:{SECRET}"),
        format!("http://u:{SECRET}@127.0.0.1:1/"),
        format!("{SECRET}://127.0.0.1:1/"),
        format!("u:{SECRET}@127.0.0.1:1"),
        format!("127.0.0.1:1?password={SECRET}"),
        format!("\n{SECRET}"),
        SECRET.to_owned(),
    ];
    let blank = urls.iter().map(|url| format!(" {url}\t")).collect::<Vec<_>>();
    urls.extend(blank);
    urls
}

#[tokio::test]
async fn standalone_url_shows_no_secret() {
    for url in urls() {
        shown_by(Limiter::redis(&url)).await.assert_without_secrets(&url);
    }
}

#[tokio::test]
async fn cluster_urls_show_no_secret() {
    for url in urls() {
        for urls in [
            vec![url.as_str()],
            vec!["redis://u:p@127.0.0.1:1/", &url],
            vec![&url, "redis://u:p@127.0.0.1:1/"],
        ] {
            let builder = Limiter::redis_cluster(urls);
            shown_by(builder).await.assert_without_secrets(&url);
        }
    }
}

#[tokio::test]
async fn sentinel_and_primary_urls_show_no_secret() {
    for url in urls() {
        for (sentinel, primary) in [
            (url.as_str(), "redis://u:p@name/"),
            ("redis://127.0.0.1:1/", &url),
        ] {
            let builder = Limiter::redis_sentinel([sentinel], primary);
            shown_by(builder).await.assert_without_secrets(&url);
        }
    }
}

#[tokio::test]
async fn refused_sentinel_credentials_show_no_secret() {
    let watched = RedisSentinel::start();
    let name = watched.primary_name();
    let wrong = |url: String| url.replace("limiter:limits", &format!("limiter:{SECRET}"));
    for (sentinels, primary) in [
        (
            watched.urls().into_iter().map(wrong).collect(),
            watched.primary_url(),
        ),
        (watched.urls(), wrong(watched.primary_url())),
        (watched.urls(), format!("redis://{SECRET}@{name}/")),
    ] {
        let builder = Limiter::redis_sentinel(sentinels, primary.clone());
        shown_by(builder).await.assert_without_secrets(&primary);
    }
}

#[tokio::test]
async fn pool_shows_no_secret() {
    let server = RedisServer::shared().port();
    for url in [
        format!("redis://u:{SECRET}@127.0.0.1:1/"),
        format!("redis://{SECRET}:p@127.0.0.1:1/"),
        format!("redis://limiter:{SECRET}@127.0.0.1:{server}/"),
    ] {
        let manager = RedisConnectionManager::new(url.as_str()).unwrap();
        let pool = Pool::builder().build_unchecked(manager);
        shown_by(Limiter::redis_pool(pool))
            .await
            .assert_without_secrets(&url);
    }
}

#[tokio::test]
async fn missing_permission_shows_no_password() {
    let server = RedisServer::start();
    let password = format!(">{SECRET}");
    for permissions in [&["-@all"] as &[&str], &["+eval", "+evalsha"]] {
        let user = ["ACL", "SETUSER", "checkout", "reset", "on", &password, "~*"];
        server.command(&[&user, permissions].concat());
        let url = server.url_as(&format!("checkout:{SECRET}"));
        shown_by(Limiter::redis(&url)).await.assert_without_secrets(&url);
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn client_key_shows_no_secret() {
    let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for key in [
        SECRET.to_owned(),
        format!("-----BEGIN PRIVATE KEY {SECRET}-----\n{SECRET}\n"),
        format!("-----BEGIN PRIVATE KEY-----\n{SECRET}!\n-----END PRIVATE KEY-----\n"),
        format!("-----BEGIN PRIVATE KEY {SECRET}\n-----END {SECRET}-----\n"),
        format!("-----BEGIN {SECRET}-----\nAAAA\n-----END {SECRET}-----\n"),
        format!("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END {SECRET}-----\n"),
    ] {
        let given = Limiter::redis("rediss://127.0.0.1:1/").client_certificate(certificate, key.as_str());
        shown_by(given).await.assert_without_secrets(&key);
        // Passed in the wrong order, the key is parsed as a certificate.
        let swapped = Limiter::redis("rediss://127.0.0.1:1/").client_certificate(key.as_str(), certificate);
        shown_by(swapped).await.assert_without_secrets(&key);
        let root = Limiter::redis("rediss://127.0.0.1:1/").root_certificate(key.as_str());
        shown_by(root).await.assert_without_secrets(&key);
    }
}

/// The test detects a secret.
#[test]
#[should_panic(expected = "the error shows the secret")]
fn secret_in_a_source_is_found() {
    #[derive(Debug)]
    struct Leaks(Option<Box<Leaks>>);

    impl Display for Leaks {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                Some(_) => f.write_str("outer"),
                None => f.write_str(SECRET),
            }
        }
    }

    impl Error for Leaks {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.0.as_deref().map(|source| source as _)
        }
    }

    let mut shown = Shown::default();
    shown.error("the error", &Leaks(Some(Box::new(Leaks(None)))));
    shown.assert_without_secrets("a leak");
}
