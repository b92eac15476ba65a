//! TLS to Redis: accepted and rejected certificates, and the time until a rejection is reported.
#![cfg(feature = "tls")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::error::Error;
use std::time::{Duration, Instant};

use limiter_core::{ConfigError, Limiter, OnStoreFailure, Policy, RedisBuilder, Rejection, StoreErrorKind};
use limiter_testing::tls::{Authority, serve};
use limiter_testing::{RedisCluster, RedisServer};
use support::{SLACK, answers_again, namespace, patient};

fn limiter(url: &str, configure: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Result<Limiter, ConfigError> {
    configure(Limiter::redis(url).namespace(namespace())).build()
}

/// The error of a call; it is returned within its deadline.
async fn rejection_text(limits: &Limiter) -> String {
    let deadline = Duration::from_millis(900);
    let policy = Policy::token_bucket("p").capacity(100).rate(1).deadline(deadline);
    let policy = policy.on_store_failure(OnStoreFailure::Error).build().unwrap();
    let started = Instant::now();
    let Err(Rejection::Unavailable { error, .. }) = limits.check(&policy, "k").await else {
        panic!("such a connection must not come about");
    };
    assert!(started.elapsed() < deadline + SLACK, "{:?}", started.elapsed());
    assert_eq!(error.kind(), StoreErrorKind::Connection);
    format!("{error}: {}", error.source().unwrap())
}

#[tokio::test]
async fn server_signed_by_given_authority_is_trusted() {
    let (server, authority) = (RedisServer::start(), Authority::new());
    let identity = authority.server(&["localhost"]);
    let Some(url) = serve(&server, &authority, &identity, false) else {
        return;
    };
    let limits = limiter(&url, |builder| builder.root_certificate(authority.certificate())).unwrap();
    limits.ready().await.unwrap();
    for left in (90..100).rev() {
        assert_eq!(limits.check(&patient(), "k").await.unwrap().remaining(), left);
    }
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    answers_again(&limits, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn plain_url_of_tls_port_suggests_tls_scheme() {
    let (server, authority) = (RedisServer::start(), Authority::new());
    let identity = authority.server(&["localhost"]);
    let Some(url) = serve(&server, &authority, &identity, false) else {
        return;
    };
    let limits = limiter(&url.replace("rediss://", "redis://"), |builder| builder).unwrap();
    let reason = rejection_text(&limits).await;
    assert!(
        reason.contains("if this port expects TLS, write rediss:// in place of redis://"),
        "{reason}"
    );
    let at_start = limits.ready().await.unwrap_err();
    assert!(at_start.to_string().contains("write rediss://"), "{at_start:?}");
}

/// A URL with a TLS scheme uses TLS in every notation of the scheme: without TLS, the password
/// would be sent in clear text.
#[tokio::test]
async fn scheme_in_capitals_or_after_blank_uses_tls() {
    let (server, authority) = (RedisServer::start(), Authority::new());
    let identity = authority.server(&["localhost"]);
    let Some(url) = serve(&server, &authority, &identity, false) else {
        return;
    };
    for written in [
        url.replace("rediss://", "REDISS://"),
        format!(" {url}"),
        url.replace("rediss://", "\tRediss://"),
        url.replace("rediss://", "re\ndiss://"),
        url.replace("rediss://", "ValkeyS://"),
    ] {
        let limits = limiter(&written, |builder| {
            builder.root_certificate(authority.certificate())
        });
        assert!(limits.unwrap().check(&patient(), "k").await.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn server_with_untrusted_certificate_is_rejected() {
    let (server, authority) = (RedisServer::start(), Authority::new());
    let identity = authority.server(&["localhost"]);
    let Some(url) = serve(&server, &authority, &identity, false) else {
        return;
    };
    let other = Authority::new();
    let limits = limiter(&url, |builder| builder.root_certificate(other.certificate())).unwrap();
    let result = rejection_text(&limits).await;
    assert!(result.contains("certificate"), "{result}");
    assert!(result.contains("localhost"), "{result}");
    assert!(limits.ready().await.is_err());
}

#[tokio::test]
async fn server_with_other_name_is_rejected() {
    let (server, authority) = (RedisServer::start(), Authority::new());
    let identity = authority.server(&["redis.example"]);
    let Some(url) = serve(&server, &authority, &identity, false) else {
        return;
    };
    let limits = limiter(&url, |builder| builder.root_certificate(authority.certificate())).unwrap();
    let result = rejection_text(&limits).await;
    assert!(result.contains("not valid for name"), "{result}");
}

#[tokio::test]
async fn client_certificate_is_sent_on_request() {
    let (server, authority) = (RedisServer::start(), Authority::new());
    let identity = authority.server(&["localhost"]);
    let Some(url) = serve(&server, &authority, &identity, true) else {
        return;
    };
    let trusting = |builder: RedisBuilder| builder.root_certificate(authority.certificate());
    let client = authority.client();
    let known = limiter(&url, |builder| {
        trusting(builder).client_certificate(client.certificate.as_str(), client.key.as_str())
    })
    .unwrap();
    assert!(known.check(&patient(), "k").await.unwrap().is_allowed());
    let shown = format!("{known:?}");
    assert!(
        !shown.contains("PRIVATE") && !shown.contains("limits@"),
        "{shown}"
    );

    let result = rejection_text(&limiter(&url, trusting).unwrap()).await;
    assert!(result.to_lowercase().contains("certificate"), "{result}");
}

#[tokio::test]
async fn cluster_nodes_use_tls_settings_of_seed() {
    let cluster = RedisCluster::builder().primaries(1).start();
    let authority = Authority::new();
    let identity = authority.server(&["localhost", "127.0.0.1"]);
    let Some(url) = serve(cluster.node(0), &authority, &identity, false) else {
        return;
    };
    // Set again on the second server, so that the node announces it.
    let port = cluster.node(0).command(&["CONFIG", "GET", "tls-port"]).items()[1].text();
    let announce = [
        "CONFIG",
        "SET",
        "tls-cluster",
        "yes",
        "cluster-announce-tls-port",
        &port,
    ];
    cluster.node(0).command(&announce);
    let limits = Limiter::redis_cluster([url])
        .root_certificate(authority.certificate())
        .namespace(namespace())
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
}

#[tokio::test]
async fn server_without_tls_is_rejected_within_deadline() {
    let server = RedisServer::start();
    let authority = Authority::new();
    let url = server.url().replace("redis://", "rediss://");
    let limits = limiter(&url, |builder| builder.root_certificate(authority.certificate())).unwrap();
    let result = rejection_text(&limits).await;
    assert!(result.contains("TLS handshake timed out"), "{result}");
}

#[test]
fn unusable_settings_are_named_by_builder() {
    let url = "rediss://user:secret@localhost/";
    let (authority, other) = (Authority::new(), Authority::new());
    let (mine, not_mine) = (authority.client(), other.client());
    let root = authority.certificate();
    for (built, message) in [
        (
            limiter(url, |builder| builder.root_certificate("no certificate")),
            "root certificate is `without a certificate`",
        ),
        (
            limiter(url, |builder| {
                builder
                    .root_certificate(root)
                    .client_certificate("", mine.key.as_str())
            }),
            "client certificate is `without a certificate`",
        ),
        (
            limiter(url, |builder| {
                builder
                    .root_certificate(root)
                    .client_certificate(mine.certificate.as_str(), "")
            }),
            "key of the client certificate is",
        ),
        (
            limiter(url, |builder| {
                let builder = builder.root_certificate(root);
                builder.client_certificate(mine.certificate.as_str(), not_mine.key.as_str())
            }),
            "client certificate is",
        ),
        (
            limiter("redis://user:secret@localhost/", |builder| {
                builder.root_certificate(root)
            }),
            "expected rediss://, since a certificate is given",
        ),
        (
            limiter("rediss://user:secret@localhost/#insecure", |builder| {
                builder.root_certificate(root)
            }),
            "always verified",
        ),
    ] {
        let result = built.unwrap_err().to_string();
        assert!(result.contains(message), "{result}");
        assert!(
            !result.contains("secret") && !result.contains("PRIVATE"),
            "{result}"
        );
    }
    let seeds = ["rediss://user:secret@a/", "redis://user:secret@b/"];
    let built = Limiter::redis_cluster(seeds)
        .root_certificate(root)
        .namespace("n")
        .build();
    let result = built.unwrap_err().to_string();
    assert!(
        result.contains("`redis://…@b/`, expected rediss://, as the first URL of the cluster"),
        "{result}"
    );
    // Without a certificate, the authorities of the system apply.
    assert!(limiter(url, |builder| builder).is_ok());
}
