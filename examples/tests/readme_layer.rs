//! The first layer of the README: its router serves plain HTTP requests.
//!
//! The README does not run this code, because it needs Redis and a fixed port. This test has the
//! same router on a free port, with a limiter in process and a clock that stands still.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use axum::{Router, routing::get};
use limiter_core::{Limiter, ManualClock, Policy};
use limiter_tower::{RateLimitLayer, key};

const README: &str = include_str!("../../README.md");

/// The status of a request without headers of its own.
fn status(address: SocketAddr) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET /search HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn plain_request_is_allowed_and_request_above_quota_denied() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    let policy = Policy::token_bucket("api")
        .capacity(20)
        .rate("10/s")
        .build()
        .unwrap();
    let app = Router::new()
        .route("/search", get(|| async { "found" }))
        .layer(RateLimitLayer::new(&limits, policy).key(key::peer_ip()));
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
        Ok::<(), std::io::Error>(())
    });

    for number in 1..=20 {
        assert_eq!(status(address), 200, "request {number}");
    }
    assert_eq!(status(address), 429);
}

/// A change of the README needs the same change of the router above.
#[test]
fn router_is_the_one_of_the_readme() {
    let code = README.split("```rust,no_run\n").nth(1).unwrap();
    let code = code.split("```").next().unwrap();
    let is_of_router = |line: &&str| {
        let starts = ["let app", ".route(", ".layer(", "axum::serve("];
        starts.iter().any(|start| line.starts_with(start))
    };
    let router: Vec<&str> = code.lines().map(str::trim).filter(is_of_router).collect();
    assert_eq!(router.len(), 4, "{router:?}");
    let test = include_str!("readme_layer.rs");
    let policy = r#"Policy::token_bucket("api").capacity(20).rate("10/s").build()"#;
    assert!(code.contains(policy), "{code}");
    for line in router {
        assert!(test.contains(line), "the test lacks {line}");
    }
}
