//! HTTP and gRPC on one port, behind one layer: a caller has one quota for both protocols, and a
//! denial is sent in the protocol of the call.
//!
//! ```sh
//! cargo run -p examples --features axum,tonic --bin one_port                # the server on a free port, and a caller, and then ends
//! cargo run -p examples --features axum,tonic --bin one_port -- server      # on PORT, 3000 by default; REDIS_URL shares the limits
//!
//! curl -i -H 'x-caller: ann' 127.0.0.1:3000/greet/ann
//! grpcurl -plaintext -proto examples/proto/greeter.proto -rpc-header 'x-caller: ann' -d '{"name": "ann"}' \
//!     127.0.0.1:3000 greeter.Greeter/Greet
//! ```
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example prints its results"
)]

use std::env;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use examples::Failure;
use examples::english::English;
use examples::greeter::GreetRequest;
use examples::greeter::greeter_client::GreeterClient;
use examples::greeter::greeter_server::GreeterServer;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use limiter_core::{ConfigError, Limiter, Policy};
use limiter_tower::{RateLimitLayer, key};
use tokio::net::TcpListener;
use tonic::codegen::http::{self, StatusCode};
use tonic::metadata::MetadataValue;
use tonic::service::Routes;

/// The answer is formed by the content type of the request.
fn app(limits: &Limiter) -> Result<Router, ConfigError> {
    let policy = Policy::sliding_window("greet").limit(3).window("1m").build()?;
    let by_caller = key::header("x-caller").or_reject(StatusCode::UNAUTHORIZED);
    Ok(Routes::new(GreeterServer::new(English))
        .into_axum_router()
        .route(
            "/greet/{name}",
            get(async |Path(name): Path<String>| format!("hello, {name}\n")),
        )
        .layer(RateLimitLayer::new(limits, policy).key(by_caller)))
}

async fn call(address: String) -> Result<(), Failure> {
    let http = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let mut grpc = GreeterClient::connect(address.clone()).await?;
    for call in 1..=3 {
        let request = http::Request::get(format!("{address}/greet/ann"))
            .header("x-caller", "ann")
            .body(Body::empty())?;
        let response = http.request(request).await?;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let header = ["retry-after", "ratelimit"].map(|name| header(name).unwrap_or("-"));
        println!(
            "HTTP, call {call}: {}, RateLimit: {}, Retry-After: {}",
            response.status().as_u16(),
            header[1],
            header[0]
        );

        let mut request = tonic::Request::new(GreetRequest {
            name: "ann".to_owned(),
        });
        request
            .metadata_mut()
            .insert("x-caller", MetadataValue::from_static("ann"));
        match grpc.greet(request).await {
            Ok(reply) => println!("gRPC, call {call}: Ok: {}", reply.into_inner().message),
            Err(status) => println!("gRPC, call {call}: {:?}: {}", status.code(), status.message()),
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] => both().await,
        ["server"] => server().await,
        _ => {
            eprintln!("usage: one_port [server]");
            return ExitCode::from(2);
        }
    };
    examples::ended(outcome)
}

async fn server() -> Result<(), Failure> {
    let limits = examples::limiter_of_server(&examples::store(), "one_port").await?;
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(&limits)?).await?;
    Ok(())
}

/// The server ends with the caller's last call.
async fn both() -> Result<(), Failure> {
    let limits = examples::limiter(&examples::store(), "one_port").await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = format!("http://{}", listener.local_addr()?);
    let server = axum::serve(listener, app(&limits)?);
    tokio::select! {
        ended = server.into_future() => Ok(ended?),
        called = call(address) => called,
    }
}
