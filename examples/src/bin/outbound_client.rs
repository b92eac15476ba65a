//! A client that keeps to the quota of a third party: it waits for a permit before each call, so that not one is refused.
//!
//! ```sh
//! cargo run -p examples --bin outbound_client                                 # one process
//! REDIS_URL=redis://127.0.0.1/ cargo run -p examples --bin outbound_client    # one budget for all processes
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks")]

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use examples::Failure;
use limiter_core::{Limiter, Policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const CALLS: usize = 30;

/// Ten at once, and twenty a second: what the third party says of itself.
async fn answer(State((limits, quota)): State<(Limiter, Policy)>) -> StatusCode {
    match limits.check(&quota, "us").await {
        Ok(decision) if decision.is_allowed() => StatusCode::OK,
        _ => StatusCode::TOO_MANY_REQUESTS,
    }
}

async fn third_party() -> Result<SocketAddr, Failure> {
    let quota = Policy::token_bucket("quota").capacity(10).rate("20/s").build()?;
    let app = Router::new()
        .route("/", get(answer))
        .with_state((Limiter::in_process().build(), quota));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// Whether the third party took the call.
async fn call(address: SocketAddr) -> Result<bool, Failure> {
    let mut socket = TcpStream::connect(address).await?;
    socket
        .write_all(b"GET / HTTP/1.1\r\nhost: them\r\nconnection: close\r\n\r\n")
        .await?;
    let mut response = String::new();
    socket.read_to_string(&mut response).await?;
    if response.starts_with("HTTP/1.1 200") {
        Ok(true)
    } else if response.starts_with("HTTP/1.1 429") {
        Ok(false)
    } else {
        Err(format!("they answered {response:?}").into())
    }
}

/// The client. Its limit stays a little below the quota: calls take different times on their way, and arrive closer together
/// than they left.
struct Client {
    limits: Limiter,
    policy: Policy,
    address: SocketAddr,
}

impl Client {
    async fn call(&self) -> Result<bool, Failure> {
        let permit = self.limits.acquire(&self.policy, "them");
        permit.up_to(Duration::from_secs(30)).await?;
        call(self.address).await
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", examples::describe(&failure));
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let mut careless = JoinSet::new();
    let address = third_party().await?;
    for _ in 0..CALLS {
        careless.spawn(call(address));
    }
    println!(
        "{CALLS} calls at once, without a limiter: {} refused",
        refused(careless).await?
    );

    let client = Arc::new(Client {
        limits: examples::limiter(&examples::store(), "outbound").await?,
        policy: Policy::token_bucket("them").capacity(5).rate("15/s").build()?,
        address: third_party().await?,
    });
    let (mut careful, started) = (JoinSet::new(), Instant::now());
    for _ in 0..CALLS {
        let client = Arc::clone(&client);
        careful.spawn(async move { client.call().await });
    }
    let refused = refused(careful).await?;
    println!(
        "{CALLS} calls behind `acquire`: {refused} refused, in {:.1?}",
        started.elapsed()
    );
    if refused > 0 {
        return Err("a call was refused".into());
    }
    Ok(())
}

async fn refused(mut calls: JoinSet<Result<bool, Failure>>) -> Result<usize, Failure> {
    let mut refused = 0;
    while let Some(taken) = calls.join_next().await {
        refused += usize::from(!taken??);
    }
    Ok(refused)
}
