//! An API in front of which limits stand: each client's by its tier, uploads more strictly, failed logins by address, and a report by
//! an attribute.
//!
//! ```sh
//! cargo run -p examples --bin axum_api            # PORT=3000, and REDIS_URL where replicas shall share the limits
//! ```
//!
//! Of the answers the lines are shown that tell of the limit that is meant; those of the address stand below them:
//!
//! ```sh
//! curl -i 127.0.0.1:3000/search                                         # 401: no key, no client
//! curl -i -H 'x-api-key: bob-secret' 127.0.0.1:3000/search              # 200, five at once, then one a second:
//! #   ratelimit-policy: "free";q=5;w=5
//! #   ratelimit: "free";r=4;t=4
//! curl -i -H 'x-api-key: ann-secret' 127.0.0.1:3000/search              # 200, twenty at once: she pays
//!
//! curl -i -H 'x-api-key: ann-secret' -d data 127.0.0.1:3000/upload      # 200, and when sent again, within ten seconds:
//! #   HTTP/1.1 429 Too Many Requests
//! #   content-type: application/problem+json
//! #   retry-after: 10
//! #   {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",…,"violated-policies":["upload"]}
//!
//! curl -i -d guess 127.0.0.1:3000/login                                 # 401, three times in a quarter of an hour, then 429
//! curl -i -d 'correct horse' -H 'x-forwarded-for: 198.51.100.7' 127.0.0.1:3000/login    # 200: from elsewhere; not counted
//! curl -i 127.0.0.1:3000/trial                                          # a hundred a day for each address
//! curl -i -H 'x-api-key: ann-secret' 127.0.0.1:3000/reports/sales       # twice a minute, whoever asks
//! curl -i 127.0.0.1:3000/healthz                                        # 200, as often as one likes: a probe
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks")]

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use examples::Failure;
use limiter_core::{Decision, Limiter, Policy, Rejection, window_limiter};
use limiter_tower::{RateLimitLayer, key, skip};
use tokio::net::TcpListener;

/// Who calls, once the key is verified.
#[derive(Clone)]
struct Client {
    name: &'static str,
    pays: bool,
}

/// Stands for a look into the table of keys. A limit by an unverified key could be evaded with a new one each time.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let (name, pays) = match request.headers().get("x-api-key").map(|key| key.as_bytes()) {
        Some(b"ann-secret") => ("ann", true),
        Some(b"bob-secret") => ("bob", false),
        _ => return next.run(request).await,
    };
    request.extensions_mut().insert(Client { name, pays });
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

async fn login(body: String) -> (StatusCode, &'static str) {
    if body == "correct horse" {
        (StatusCode::OK, "welcome\n")
    } else {
        (StatusCode::UNAUTHORIZED, "wrong password\n")
    }
}

fn app(limits: &Limiter) -> Result<Router, Failure> {
    let free = Policy::token_bucket("free").capacity(5).rate("1/s").build()?;
    let pro = Policy::token_bucket("pro").capacity(20).rate("10/s").build()?;
    let uploads = Policy::sliding_window("upload").limit(1).window("10s").build()?;
    let failures = Policy::sliding_window("failed-logins")
        .limit(3)
        .window("15m")
        .build()?;
    let trial = Policy::fixed_window("trial").limit(100).window("1d").build()?;
    let flood = Policy::token_bucket("address")
        .capacity(200)
        .rate("100/s")
        .build()?;

    let by_client = || key::extension(|client: &Client| client.name).or_refuse(StatusCode::UNAUTHORIZED);
    let tier = move |request: &Request| match request.extensions().get::<Client>() {
        Some(client) if client.pays => pro.clone(),
        _ => free.clone(),
    };
    // What a proxy on this machine says of its clients is believed; who comes from elsewhere is the client itself.
    let by_address = || -> Result<_, Failure> { Ok(key::client_ip(key::trusted(["127.0.0.0/8".parse()?]))) };

    let for_clients = Router::new()
        .route("/search", get(search))
        .route(
            "/upload",
            post(upload).route_layer(RateLimitLayer::new(limits, uploads).key(by_client())),
        )
        .route("/reports/{name}", get(report))
        .route_layer(
            RateLimitLayer::new(limits, tier)
                .key(by_client())
                .with_decisions(),
        )
        .route_layer(middleware::from_fn(authenticate));
    let for_anybody = Router::new()
        .route(
            "/trial",
            get(async || "have a look\n").route_layer(RateLimitLayer::new(limits, trial).key(by_address()?)),
        )
        .route(
            "/login",
            post(login).route_layer(
                RateLimitLayer::new(limits, failures)
                    .key(by_address()?)
                    .count_if(|response| response.status() == StatusCode::UNAUTHORIZED),
            ),
        )
        .route("/healthz", get(async || "well\n"));
    Ok(for_clients.merge(for_anybody).layer(
        RateLimitLayer::new(limits, flood)
            .key(by_address()?)
            .skip(skip::probes()),
    ))
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
    // Tells the layers who has connected.
    let app = app(&limits)?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
