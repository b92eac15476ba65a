//! An API with several kinds of limits: clients by tier, stricter uploads, failed logins by
//! address, a report by an attribute, concurrent exports, and a language model by used tokens; and
//! a bound on the total load of the process.
//!
//! ```sh
//! cargo run -p examples --features axum --bin axum_api      # PORT=3000; replicas with one REDIS_URL share the limits
//!                                                           # AT_ONCE=100: bound on the requests of this process
//! ```
//!
//! The responses are shortened to the lines of the relevant limit; those of the limit by address
//! are listed below:
//!
//! ```sh
//! curl -i 127.0.0.1:3000/search                                         # 401: no key, no client
//! curl -i -H 'x-api-key: bob-secret' 127.0.0.1:3000/search              # 200, five at once, then one a second:
//! #   ratelimit-policy: "free";q=5;w=5
//! #   ratelimit: "free";r=4;t=4
//! curl -i -H 'x-api-key: ann-secret' 127.0.0.1:3000/search              # 200, twenty at once: a paying client
//!
//! curl -i -H 'x-api-key: ann-secret' -d data 127.0.0.1:3000/upload      # 200, and when sent again, within ten seconds:
//! #   HTTP/1.1 429 Too Many Requests
//! #   content-type: application/problem+json
//! #   retry-after: 10
//! #   {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",…,"violated-policies":["upload"]}
//!
//! curl -i -H 'x-api-key: ann-secret' -d 'hello there' 127.0.0.1:3000/complete    # 200: charged 500 tokens, then settled by usage
//! #   an answer of 10 tokens
//! curl -i -d 'hello there' 127.0.0.1:3000/complete                      # 401, the rejection of the extractor of key::from_parts:
//! #   www-authenticate: ApiKey
//! curl -i -H 'x-api-key: ann-secret' 127.0.0.1:3000/export              # 200 after a while; 429 for a second one meanwhile
//!
//! curl -i -d guess 127.0.0.1:3000/login                                 # 401, three times in a quarter of an hour, then 429
//! curl -i -d 'correct horse' -H 'x-forwarded-for: 198.51.100.7' 127.0.0.1:3000/login    # 200: another address; not counted
//! curl -i 127.0.0.1:3000/trial                                          # a hundred a day for each address
//! curl -i -H 'x-api-key: ann-secret' 127.0.0.1:3000/reports/sales       # twice a minute, for all clients together
//! curl -i 127.0.0.1:3000/healthz                                        # 200, never limited: a probe
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use examples::Failure;
use limiter_core::{Decision, Limiter, Policy, Rejection, window_limiter};
use limiter_tower::settlement::{ActualCost, ReportedCost};
use limiter_tower::{
    ConcurrencyLimitLayer, LoadShedLayer, Priority, RateLimitLayer, ResponseConfig, key, skip,
};
use tokio::net::TcpListener;
use tokio::time::sleep;

/// The caller, after its key is verified.
#[derive(Clone)]
struct Client {
    name: &'static str,
    pays: bool,
}

impl Client {
    /// Simulates a lookup in the table of keys. A limit by an unverified key could be evaded
    /// with a new key for each request.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let (name, pays) = match headers.get("x-api-key")?.as_bytes() {
            b"ann-secret" => ("ann", true),
            b"bob-secret" => ("bob", false),
            _ => return None,
        };
        Some(Self { name, pays })
    }
}

/// Inserts the client into the extensions of the request, from which inner layers read it.
async fn authenticate(mut request: Request, next: Next) -> Response {
    if let Some(client) = Client::of(request.headers()) {
        request.extensions_mut().insert(client);
    }
    next.run(request).await
}

/// Extracts the client for handlers and limits. The response to a request without a key explains
/// how to send one.
impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = (StatusCode, [(HeaderName, &'static str); 1], &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Self::of(&parts.headers).ok_or((
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "ApiKey")],
            "show your key in x-api-key\n",
        ))
    }
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

/// An expensive report: twice a minute for all clients together. A denial becomes a response,
/// because the error of the handler is a rejection.
#[window_limiter(name = "report", limit = 2, window = "1m", key = "report:{name}")]
async fn report(Path(name): Path<String>) -> Result<String, Rejection> {
    Ok(format!("the report on {name}\n"))
}

/// Simulates a language model, which reports the number of tokens of prompt and answer.
async fn complete(prompt: String) -> (Extension<ReportedCost>, String) {
    let tokens = prompt.split_whitespace().fold(8, |tokens, _| tokens + 1);
    (
        Extension(ReportedCost::new(tokens)),
        format!("an answer of {tokens} tokens\n"),
    )
}

/// The error format that clients of language models expect, in place of the problem document.
fn out_of_tokens(rejection: &Rejection, response: Response<Bytes>) -> Response<String> {
    let (mut head, _problem) = response.into_parts();
    head.headers
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let seconds = rejection
        .retry_after_seconds()
        .map_or("null".to_owned(), |seconds| seconds.to_string());
    let error = format!(r#"{{"error":{{"type":"out_of_tokens","retry_after":{seconds}}}}}"#);
    Response::from_parts(head, error)
}

/// Runs for a while. The client gets no second export meanwhile.
async fn export() -> &'static str {
    sleep(Duration::from_millis(500)).await;
    "name,amount\nferris,1\n"
}

async fn login(body: String) -> (StatusCode, &'static str) {
    if body == "correct horse" {
        (StatusCode::OK, "welcome\n")
    } else {
        (StatusCode::UNAUTHORIZED, "wrong password\n")
    }
}

fn app(limits: &Limiter, at_once: usize) -> Result<Router, Failure> {
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
    let tokens = Policy::token_bucket("tokens")
        .capacity(1_000)
        .rate("10/s")
        .build()?;
    let exports = Policy::concurrency("exports").max(1).lease("30s").build()?;

    let by_client = || key::extension(|client: &Client| client.name).or_reject(StatusCode::UNAUTHORIZED);
    let tier = move |request: &Request| match request.extensions().get::<Client>() {
        Some(client) if client.pays => pro.clone(),
        _ => free.clone(),
    };
    // Forwarding headers of a proxy on this machine are trusted; any other peer is the client
    // itself.
    let by_address = || -> Result<_, Failure> {
        Ok(key::client_ip(key::TrustedProxies::networks([
            "127.0.0.1".parse()?
        ])))
    };

    let for_clients = Router::new()
        .route("/search", get(search))
        .route(
            "/upload",
            post(upload).route_layer(RateLimitLayer::new(limits, uploads).key(by_client())),
        )
        .route("/reports/{name}", get(report))
        .route(
            "/export",
            get(export).route_layer(ConcurrencyLimitLayer::new(limits, exports).key(by_client())),
        )
        .route_layer(
            RateLimitLayer::new(limits, tier)
                .key(by_client())
                .with_decision_extension(),
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
    // An estimate is charged first; the unused part is refunded at the end of the response.
    let model = Router::new().route("/complete", post(complete)).route_layer(
        RateLimitLayer::new(limits, tokens)
            .key(key::from_parts((), |client: Client| client.name))
            .cost(500)
            .settle(ActualCost::reported())
            .responses(&ResponseConfig::new().respond_with(out_of_tokens)),
    );
    let limited = for_clients.merge(for_anybody).merge(model).layer(
        RateLimitLayer::new(limits, flood)
            .key(by_address()?)
            .skip(skip::probes()),
    );
    // Bounds the total load of the process. Logins have reserved capacity.
    let bears = LoadShedLayer::new(at_once)
        .reserve_for(Priority::High, at_once.div_ceil(5))
        .priority(|request: &Request| match request.uri().path() {
            "/login" => Priority::High,
            _ => Priority::Normal,
        })
        .retry_after(Duration::from_secs(1));
    Ok(limited.layer(bears))
}

#[tokio::main]
async fn main() -> ExitCode {
    examples::ended(serve().await)
}

async fn serve() -> Result<(), Failure> {
    let limits = examples::limiter_of_server(&examples::store(), "axum_api").await?;
    limiter_core::annotations::install(limits.clone())?;
    limiter_core::annotations::verify_annotations()?;

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let at_once = env::var("AT_ONCE").map_or(Ok(100), |number| number.parse::<usize>())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Provides the peer address to the layers.
    let app = app(&limits, at_once)?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
