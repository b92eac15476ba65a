//! Shared code of the examples: the choice of a limiter, and the code of a gRPC service.

#[cfg(feature = "tonic")]
pub mod english;
#[cfg(feature = "tonic")]
pub mod greeter;

use std::env;
use std::error::Error;
use std::process::ExitCode;

use limiter_core::Limiter;

/// The error that ends an example.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The store in this process.
pub const MEMORY: &str = "memory";

/// Returns the store of `REDIS_URL`, or the store in this process.
#[must_use]
pub fn store() -> String {
    env::var("REDIS_URL").unwrap_or_else(|_| MEMORY.to_owned())
}

/// Returns a limiter that decides in `store`: [`MEMORY`], or the URL of an available Redis server.
///
/// # Errors
///
/// When the URL cannot be used, or the server does not answer.
pub async fn limiter(store: &str, namespace: &str) -> Result<Limiter, Failure> {
    if store == MEMORY {
        return Ok(Limiter::in_process().build());
    }
    let limits = in_redis(store, namespace)?;
    limits.ready().await?;
    Ok(limits)
}

/// Returns the limiter of a server, in `store`. If Redis is unavailable, the server starts anyway,
/// and each policy decides as configured for an outage.
///
/// # Errors
///
/// When the URL cannot be used.
#[expect(clippy::print_stderr, reason = "an example prints its results")]
pub async fn limiter_of_server(store: &str, namespace: &str) -> Result<Limiter, Failure> {
    if store == MEMORY {
        return Ok(Limiter::in_process().build());
    }
    let limits = in_redis(store, namespace)?;
    if let Err(error) = limits.ready().await {
        eprintln!("starting without Redis: {error}");
    }
    Ok(limits)
}

#[cfg(feature = "redis")]
fn in_redis(url: &str, namespace: &str) -> Result<Limiter, Failure> {
    Ok(Limiter::redis(url).namespace(namespace).build()?)
}

#[cfg(not(feature = "redis"))]
fn in_redis(_url: &str, namespace: &str) -> Result<Limiter, Failure> {
    Err(format!("cannot decide for `{namespace}` in Redis: built without the feature `redis`").into())
}

/// Returns the exit code of an example; prints its error.
#[expect(clippy::print_stderr, reason = "an example prints its results")]
pub fn ended(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", describe(&failure));
            ExitCode::FAILURE
        }
    }
}

/// Returns a failure and its causes in one line.
#[must_use]
pub fn describe(failure: &Failure) -> String {
    let mut text = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
