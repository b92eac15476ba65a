//! Two replica processes of a service that share one limit in Redis: together they admit exactly
//! the quota of one limit.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1/ cargo run -p examples --features axum --bin replicas               # starts both, calls them, and ends
//! REDIS_URL=redis://127.0.0.1/ PORT=3001 cargo run -p examples --features axum --bin replicas -- replica    # one of them
//!
//! curl -i -H 'x-api-key: ann' 127.0.0.1:3001/
//! ```
//!
//! The number for each replica depends on the order of the calls; the sum does not.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example prints its results"
)]

use std::env;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use examples::Failure;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use limiter_core::{OnStoreFailure, Policy};
use limiter_tower::{RateLimitLayer, key};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const LIMIT: u32 = 50;
const CALLS_TO_EACH: u32 = 100;

/// One replica. It answers 503 if Redis does not answer, so that only grants of the shared limit
/// are counted.
async fn serve(store: &str) -> Result<(), Failure> {
    let limits = examples::limiter_of_server(store, "replicas").await?;
    let policy = Policy::sliding_window("shared")
        .limit(LIMIT)
        .window("1m")
        .on_store_failure(OnStoreFailure::Error)
        .deadline(Duration::from_secs(5))
        .build()?;
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(RateLimitLayer::new(&limits, policy).key(key::header("x-api-key")));
    let port = env::var("PORT").map_or(Ok(0), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// A replica process, which is stopped when this value is dropped.
struct Replica {
    process: Child,
    address: String,
}

impl Replica {
    fn start() -> Result<Self, Failure> {
        let mut process = Command::new(env::current_exe()?)
            .arg("replica")
            .env("PORT", "0")
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take();
        let mut replica = Self {
            process,
            address: String::new(),
        };
        let mut line = String::new();
        BufReader::new(stdout.ok_or("a replica without an output")?).read_line(&mut line)?;
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .ok_or("a replica does not start")?;
        address.clone_into(&mut replica.address);
        Ok(replica)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It has ended already, if that fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Calls both replicas concurrently, and prints the number of calls that each admitted.
async fn call_both() -> Result<(), Failure> {
    let replicas = [Replica::start()?, Replica::start()?];
    let http = Client::builder(TokioExecutor::new()).build_http::<Body>();
    // A new key, which no earlier run has charged.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let caller = format!("run-{}-{}", std::process::id(), now.as_millis());

    let mut calls = JoinSet::new();
    for _ in 0..CALLS_TO_EACH {
        for (at, replica) in replicas.iter().enumerate() {
            let admitted = admitted(http.clone(), replica.address.clone(), caller.clone());
            calls.spawn(async move { Ok::<_, Failure>((at, admitted.await?)) });
        }
    }
    let mut admitted = [0_u32; 2];
    while let Some(call) = calls.join_next().await {
        let (at, is_admitted) = call??;
        if let Some(admitted) = admitted.get_mut(at) {
            *admitted += u32::from(is_admitted);
        }
    }

    for (number, admitted) in (1..).zip(admitted) {
        println!("replica {number} admitted {admitted} of {CALLS_TO_EACH} calls");
    }
    let together: u32 = admitted.iter().sum();
    println!("together {together}, and the limit is {LIMIT}");
    if together != LIMIT {
        return Err("the replicas do not share the limit".into());
    }
    Ok(())
}

async fn admitted(
    http: Client<HttpConnector, Body>,
    address: String,
    caller: String,
) -> Result<bool, Failure> {
    let request = Request::get(address)
        .header("x-api-key", caller)
        .body(Body::empty())?;
    match http.request(request).await?.status() {
        StatusCode::OK => Ok(true),
        StatusCode::TOO_MANY_REQUESTS => Ok(false),
        status => Err(format!("a replica answered {status}").into()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(store) = env::var("REDIS_URL").ok().filter(|url| !url.is_empty()) else {
        eprintln!("replicas share their state in Redis: set REDIS_URL to a server");
        return ExitCode::from(2);
    };
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] => call_both().await,
        ["replica"] => serve(&store).await,
        _ => {
            eprintln!("usage: replicas [replica]");
            return ExitCode::from(2);
        }
    };
    examples::ended(outcome)
}
