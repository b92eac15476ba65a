//! Limits, keys and the poll that all groups share.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limiter_core::{Limiter, ManualClock, Policy};

/// Long enough for any machine: a decision without Redis would be another path.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns a limit that admits all calls and stays in memory: a permit takes half a minute to
/// return.
pub(crate) fn ample(name: &str) -> Policy {
    bucket(name, 100_000_000, "1/30s")
}

/// Returns a limit that admits one call a day.
pub(crate) fn spent(name: &str) -> Policy {
    bucket(name, 1, "1/d")
}

fn bucket(name: &str, capacity: u32, rate: &str) -> Policy {
    let bucket = Policy::token_bucket(name).capacity(capacity).rate(rate);
    bucket.deadline(DEADLINE).build().expect("the policy is valid")
}

/// Returns a limiter in process whose clock stands still.
pub(crate) fn in_process() -> Limiter {
    Limiter::in_process().clock(&ManualClock::new()).build()
}

pub(crate) fn names(keys: usize) -> Arc<[String]> {
    (0..keys).map(|key| format!("user-{key:07}")).collect()
}

/// Returns the output of a future that does not wait.
pub(crate) fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a decision in process does not wait"),
    }
}
