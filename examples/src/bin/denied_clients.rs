//! A log of denied clients: which client, which policy, and when it may call again.
//!
//! ```sh
//! cargo run -p examples --features axum --bin denied_clients
//! # 198.51.100.7 GET /search denied by `api`, retry after 333 ms
//! ```
//!
//! The layer puts the decision into the extensions of each denied response. A middleware outside
//! the layer logs it with the client, which the decision does not contain. The log is limited
//! itself, to one line per client and second, so that a client that ignores its limit cannot fill
//! the disk.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Router, routing::get};
use examples::Failure;
use limiter_core::{Decision, Limiter, Policy};
use limiter_tower::{RateLimitLayer, key};
use tower::ServiceExt;

/// The log, and the limit of its lines.
#[derive(Clone)]
struct DenialLog {
    limits: Limiter,
    lines: Policy,
}

impl DenialLog {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            // In process: each replica writes a log of its own.
            limits: Limiter::in_process().build(),
            lines: Policy::token_bucket("denial-log")
                .capacity(1)
                .rate("1/s")
                .build()?,
        })
    }

    async fn record(&self, client: IpAddr, call: &str, decision: &Decision) {
        // Only denied clients spend lines. An error of the log's limit does not end the request.
        let has_line = self.limits.check(&self.lines, client.to_string()).await;
        if !has_line.is_ok_and(|line| line.is_allowed()) {
            return;
        }
        let policy = decision.denied_by().map_or("none", |limit| limit.policy().name());
        let wait = decision.retry_after().unwrap_or_default().as_millis();
        println!("{client} {call} denied by `{policy}`, retry after {wait} ms");
    }
}

async fn log_denials(
    State(log): State<DenialLog>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let call = format!("{} {}", request.method(), request.uri().path());
    let response = next.run(request).await;
    if let Some(decision) = response
        .extensions()
        .get::<Decision>()
        .filter(|of| !of.is_allowed())
    {
        log.record(peer.ip(), &call, decision).await;
    }
    response
}

#[tokio::main]
async fn main() -> ExitCode {
    examples::ended(run().await)
}

async fn run() -> Result<(), Failure> {
    let limits = examples::limiter(&examples::store(), "denied-clients").await?;
    let policy = Policy::token_bucket("api").capacity(2).rate("3/s").build()?;
    let app = Router::new()
        .route("/search", get(async || "found"))
        .layer(RateLimitLayer::new(&limits, policy).key(key::peer_ip()))
        // Added after the rate limit, so it is outside of it.
        .layer(middleware::from_fn_with_state(DenialLog::new()?, log_denials));
    for last in [7, 7, 7, 7, 8] {
        let peer = SocketAddr::from((Ipv4Addr::new(198, 51, 100, last), 40_000));
        let mut request = Request::get("/search").body(Body::empty())?;
        request.extensions_mut().insert(ConnectInfo(peer));
        let status = app.clone().oneshot(request).await?.status();
        println!("{} {status}", peer.ip());
    }
    Ok(())
}
