//! A gRPC service behind a limit, and a client that retries after the delay that the server sends.
//!
//! ```sh
//! cargo run -p examples --features tonic --bin tonic_greeter                # both, on a free port, and then ends
//! cargo run -p examples --features tonic --bin tonic_greeter -- server      # on PORT, 50051 by default; REDIS_URL shares the limits
//! cargo run -p examples --features tonic --bin tonic_greeter -- client http://127.0.0.1:50051
//! ```
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example prints its results"
)]

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use examples::Failure;
use examples::english::English;
use examples::greeter::GreetRequest;
use examples::greeter::greeter_client::GreeterClient;
use examples::greeter::greeter_server::GreeterServer;
use limiter_core::{Limiter, Policy};
use limiter_tower::{RateLimitLayer, ResponseConfig, key};
use tokio::time::sleep;
use tonic::codegen::http::StatusCode;
use tonic::metadata::MetadataValue;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Status};
use tonic_types::StatusExt;

/// Maximum number of attempts of a call.
const TRIES: u32 = 3;

/// Three calls at once for each caller, and one more every two seconds. The key is metadata, which
/// in a real service is verified by a layer further out.
async fn serve(limits: &Limiter, incoming: TcpIncoming) -> Result<(), Failure> {
    let policy = Policy::token_bucket("greet").capacity(3).rate("1/2s").build()?;
    let by_caller = key::metadata("x-caller").or_reject(StatusCode::UNAUTHORIZED);
    Server::builder()
        .layer(
            RateLimitLayer::new(limits, policy)
                .key(by_caller)
                .responses(&ResponseConfig::new().grpc_domain("greeter.example.com")),
        )
        .add_service(GreeterServer::new(English))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

async fn greet(client: &mut GreeterClient<Channel>, caller: &'static str) -> Result<String, Status> {
    let mut request = Request::new(GreetRequest {
        name: caller.to_owned(),
    });
    if !caller.is_empty() {
        request
            .metadata_mut()
            .insert("x-caller", MetadataValue::from_static(caller));
    }
    Ok(client.greet(request).await?.into_inner().message)
}

/// Returns the retry delay that the server sends. It is present only if a retry can succeed.
fn retry_delay(status: &Status) -> Option<Duration> {
    status.get_details_retry_info()?.retry_delay
}

/// Retries a call after the delay that the server sent, and not without one. The second value is
/// the number of attempts.
async fn patiently(
    client: &mut GreeterClient<Channel>,
    caller: &'static str,
    longest: Duration,
) -> (Result<String, Status>, u32) {
    let mut tries = 1;
    loop {
        let outcome = greet(client, caller).await;
        match outcome.as_ref().err().and_then(retry_delay) {
            Some(wait) if wait <= longest && tries < TRIES => sleep(wait).await,
            _ => return (outcome, tries),
        }
        tries += 1;
    }
}

async fn call(endpoint: String) -> Result<(), Failure> {
    let mut client = GreeterClient::connect(endpoint).await?;
    let show = |name: &str, outcome: Result<String, Status>| match outcome {
        Ok(message) => println!("{name}: Ok: {message}"),
        Err(status) => println!("{name}: {:?}: {}", status.code(), status.message()),
    };
    for call in 1..=4 {
        show(&format!("ann, call {call}"), greet(&mut client, "ann").await);
    }
    show("bob, call 1", greet(&mut client, "bob").await);
    for (name, caller) in [("ann", "ann"), ("anonymous", "")] {
        let (outcome, tries) = patiently(&mut client, caller, Duration::from_secs(10)).await;
        show(&format!("{name}, patiently, tries: {tries}"), outcome);
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
        ["client"] => call("http://127.0.0.1:50051".to_owned()).await,
        ["client", endpoint] => call((*endpoint).to_owned()).await,
        _ => {
            eprintln!("usage: tonic_greeter [server | client [http://HOST:PORT]]");
            return ExitCode::from(2);
        }
    };
    examples::ended(outcome)
}

async fn server() -> Result<(), Failure> {
    let limits = examples::limiter_of_server(&examples::store(), "tonic_greeter").await?;
    let port = env::var("PORT").map_or(Ok(50051), |port| port.parse::<u16>())?;
    let incoming = TcpIncoming::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    println!("listening on http://{}", incoming.local_addr()?);
    serve(&limits, incoming).await
}

/// The server ends with the client's last call.
async fn both() -> Result<(), Failure> {
    let limits = examples::limiter(&examples::store(), "tonic_greeter").await?;
    let incoming = TcpIncoming::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let endpoint = format!("http://{}", incoming.local_addr()?);
    tokio::select! {
        ended = serve(&limits, incoming) => ended,
        called = call(endpoint) => called,
    }
}
