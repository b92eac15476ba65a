//! An API whose clients are limited: each by its key, uploads more strictly, and a report by an attribute.
//!
//! ```sh
//! cargo run -p examples --features axum --bin axum_api      # PORT=3000, and REDIS_URL where replicas shall share the limits
//!
//! curl -i 127.0.0.1:3000/search                                      # 401: no key, no client
//! curl -i -H 'x-api-key: ann-secret' 127.0.0.1:3000/search           # 200, ten at once, then two a second
//! curl -i -H 'x-api-key: ann-secret' -d data 127.0.0.1:3000/upload   # 200, then 429 with Retry-After
//! curl -i -H 'x-api-key: ann-secret' 127.0.0.1:3000/reports/sales    # twice a minute, whoever asks
//! curl -i -H 'x-api-key: bob-secret' 127.0.0.1:3000/search           # 200: a budget of his own
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks")]

use std::env;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use examples::Failure;
use limiter_core::{ConfigError, Decision, Limiter, Policy, Rejection, window_limiter};
use limiter_tower::{RateLimitLayer, key};
use tokio::net::TcpListener;

/// Who calls, once the key is verified.
#[derive(Clone)]
struct Client {
    name: &'static str,
}

/// Stands for a look into the table of keys. A limit by an unverified key could be evaded with a new one each time.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let name = match request.headers().get("x-api-key").map(|key| key.as_bytes()) {
        Some(b"ann-secret") => Some("ann"),
        Some(b"bob-secret") => Some("bob"),
        _ => None,
    };
    if let Some(name) = name {
        request.extensions_mut().insert(Client { name });
    }
    next.run(request).await
}

async fn search(Extension(client): Extension<Client>, Extension(decision): Extension<Decision>) -> String {
    format!(
        "found something for {}; {} more at once\n",
        client.name,
        decision.remaining()
    )
}

async fn upload() -> &'static str {
    "stored\n"
}

/// An expensive report: twice a minute for all clients together. A denial becomes a response by itself, since the error
/// of the handler is a rejection.
#[window_limiter(name = "report", limit = 2, window = "1m", key = "report:{name}")]
async fn report(Path(name): Path<String>) -> Result<String, Rejection> {
    Ok(format!("the report on {name}\n"))
}

fn app(limits: &Limiter) -> Result<Router, ConfigError> {
    let by_client = || key::extension(|client: &Client| client.name).or_refuse(StatusCode::UNAUTHORIZED);
    let each = Policy::token_bucket("api").capacity(10).rate(2).build()?;
    let uploads = Policy::sliding_window("upload").limit(1).window("10s").build()?;

    Ok(Router::new()
        .route("/search", get(search))
        .route(
            "/upload",
            post(upload).route_layer(RateLimitLayer::new(limits, uploads).key(by_client())),
        )
        .route("/reports/{name}", get(report))
        .layer(
            RateLimitLayer::new(limits, each)
                .key(by_client())
                .with_decisions(),
        )
        .layer(middleware::from_fn(authenticate)))
}

#[tokio::main]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", examples::describe(&failure));
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Failure> {
    let limits = examples::limiter(&examples::store(), "axum_api").await?;
    limiter_core::install(limits.clone())?;
    limiter_core::verify_sites()?;

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(&limits)?).await?;
    Ok(())
}
