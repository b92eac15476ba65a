//! A client that respects the quota of a third party: its requests wait, so the third party refuses
//! none. Another client has no configured quota and follows the responses of the third party.
//!
//! ```sh
//! cargo run -p examples --features axum --bin outbound_client                                 # one process
//! REDIS_URL=redis://127.0.0.1/ cargo run -p examples --features axum --bin outbound_client    # one budget for all processes
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, Uri};
use axum::routing::get;
use examples::Failure;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use limiter_core::{Limiter, Policy};
use limiter_tower::{RateLimitLayer, key};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::{Service, ServiceBuilder, ServiceExt};

const CALLS: usize = 30;

/// The third party admits ten requests at once and twenty per second. A refusal states when to
/// retry.
async fn third_party() -> Result<Uri, Failure> {
    let quota = Policy::token_bucket("quota").capacity(10).rate("20/s").build()?;
    let limits = Limiter::in_process().build();
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(RateLimitLayer::new(&limits, quota).key(key::global()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let uri = format!("http://{}/", listener.local_addr()?).parse()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(uri)
}

/// Returns true if the third party accepted the call.
async fn call<S, B>(client: S, uri: Uri) -> Result<bool, Failure>
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<Failure>>,
{
    let request = Request::get(uri).body(Body::empty())?;
    let response = client.oneshot(request).await.map_err(Into::into)?;
    match response.status() {
        StatusCode::OK => Ok(true),
        StatusCode::TOO_MANY_REQUESTS => Ok(false),
        status => Err(format!("the third party answered {status}").into()),
    }
}

/// Sends concurrent calls. Returns the number of refused calls and the duration of all.
async fn refused<S, B>(client: &S, uri: &Uri) -> Result<(usize, Duration), Failure>
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<Failure>, Future: Send>,
    S: Clone + Send + 'static,
    B: Send + 'static,
{
    let (mut calls, started) = (JoinSet::new(), Instant::now());
    for _ in 0..CALLS {
        calls.spawn(call(client.clone(), uri.clone()));
    }
    let mut refused = 0;
    while let Some(taken) = calls.join_next().await {
        refused += usize::from(!taken??);
    }
    Ok((refused, started.elapsed()))
}

#[tokio::main]
async fn main() -> ExitCode {
    examples::ended(run().await)
}

async fn run() -> Result<(), Failure> {
    let http = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let (careless, _) = refused(&http, &third_party().await?).await?;
    println!("{CALLS} calls at once, without a limiter: {careless} refused");

    // Slightly below the quota: network delays vary, so calls can arrive closer together than they
    // were sent.
    let policy = Policy::token_bucket("them").capacity(5).rate("15/s").build()?;
    let limits = examples::limiter(&examples::store(), "outbound").await?;
    let careful = ServiceBuilder::new()
        .layer(RateLimitLayer::outbound(&limits, policy).max_wait(Duration::from_secs(30)))
        .service(http.clone());
    let (careful, took) = refused(&careful, &third_party().await?).await?;
    println!("{CALLS} calls behind the layer: {careful} refused, in {took:.1?}");
    if careful > 0 {
        return Err("a call was refused".into());
    }

    // Far above the quota of the third party.
    let guessed = Policy::token_bucket("guessed")
        .capacity(1_000)
        .rate("1000/s")
        .build()?;
    let obedient = ServiceBuilder::new()
        .layer(RateLimitLayer::outbound(&limits, guessed).max_wait(Duration::from_secs(30)))
        .service(http);
    let (them, started) = (third_party().await?, Instant::now());
    let (mut obedient_refused, mut taken) = (0, 0);
    while taken < CALLS {
        if call(obedient.clone(), them.clone()).await? {
            taken += 1;
        } else {
            obedient_refused += 1;
        }
    }
    println!(
        "{CALLS} calls one after the other by a client without a configured quota: {obedient_refused} refused, in {:.1?}",
        started.elapsed()
    );
    Ok(())
}
