//! A gRPC service behind a limit, and a client that meets it.
//!
//! ```sh
//! cargo run -p examples --features tonic --bin tonic_greeter                # both, on a free port, and then ends
//! cargo run -p examples --features tonic --bin tonic_greeter -- server      # on PORT, 50051 by default; REDIS_URL shares the limits
//! cargo run -p examples --features tonic --bin tonic_greeter -- client http://127.0.0.1:50051
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks")]

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use examples::Failure;
use examples::greeter::greeter_client::GreeterClient;
use examples::greeter::greeter_server::{Greeter, GreeterServer};
use examples::greeter::{GreetReply, GreetRequest};
use limiter_core::{Limiter, Policy};
use limiter_tower::{RateLimitLayer, key};
use tonic::codegen::http::StatusCode;
use tonic::metadata::MetadataValue;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

struct English;

#[tonic::async_trait]
impl Greeter for English {
    async fn greet(&self, request: Request<GreetRequest>) -> Result<Response<GreetReply>, Status> {
        let message = format!("hello, {}", request.into_inner().name);
        Ok(Response::new(GreetReply { message }))
    }
}

/// Three calls at once for each caller, and one more every ten seconds. The key is metadata, which in a real service is
/// verified by a layer further out.
async fn serve(limits: &Limiter, incoming: TcpIncoming) -> Result<(), Failure> {
    let policy = Policy::token_bucket("greet").capacity(3).rate("1/10s").build()?;
    let by_caller = key::header("x-caller").or_refuse(StatusCode::UNAUTHORIZED);
    Server::builder()
        .layer(RateLimitLayer::new(limits, policy).key(by_caller))
        .add_service(GreeterServer::new(English))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

async fn call(endpoint: String) -> Result<(), Failure> {
    let mut client = GreeterClient::connect(endpoint).await?;
    for (caller, call) in [
        ("ann", 1),
        ("ann", 2),
        ("ann", 3),
        ("ann", 4),
        ("bob", 1),
        ("", 1),
    ] {
        let mut request = Request::new(GreetRequest {
            name: caller.to_owned(),
        });
        if !caller.is_empty() {
            request
                .metadata_mut()
                .insert("x-caller", MetadataValue::from_static(caller));
        }
        let who = if caller.is_empty() { "nobody" } else { caller };
        match client.greet(request).await {
            Ok(reply) => println!("{who}, call {call}: Ok: {}", reply.into_inner().message),
            Err(status) => println!("{who}, call {call}: {:?}: {}", status.code(), status.message()),
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
        ["client"] => call("http://127.0.0.1:50051".to_owned()).await,
        ["client", endpoint] => call((*endpoint).to_owned()).await,
        _ => {
            eprintln!("usage: tonic_greeter [server | client [http://HOST:PORT]]");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", examples::describe(&failure));
            ExitCode::FAILURE
        }
    }
}

async fn server() -> Result<(), Failure> {
    let limits = examples::limiter(&examples::store(), "tonic_greeter").await?;
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
