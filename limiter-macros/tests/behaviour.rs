//! The behaviour of annotated functions.
#![warn(clippy::all, clippy::pedantic)]
#![allow(
    clippy::drop_non_drop,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::needless_borrowed_reference,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::trivially_copy_pass_by_ref,
    clippy::unnecessary_wraps,
    clippy::unused_async,
    clippy::unwrap_used,
    reason = "the annotated functions are there for their shapes"
)]

#[path = "behaviour/blocks.rs"]
mod blocks;
#[path = "behaviour/concurrency.rs"]
mod concurrency;
#[path = "behaviour/counting.rs"]
mod counting;
#[path = "behaviour/fallbacks.rs"]
mod fallbacks;
#[path = "behaviour/keys.rs"]
mod keys;
#[path = "behaviour/limiters.rs"]
mod limiters;
#[path = "behaviour/lines.rs"]
mod lines;
#[path = "behaviour/named.rs"]
mod named;
#[path = "behaviour/plain.rs"]
mod plain;
#[path = "behaviour/several.rs"]
mod several;
#[path = "behaviour/shapes.rs"]
mod shapes;
#[path = "behaviour/sites.rs"]
mod sites;
#[path = "behaviour/windows.rs"]
mod windows;

use limiter_core::annotations::with_limiter;
use limiter_core::{Limiter, ManualClock};

/// A limiter of the test's own, and its clock.
fn fresh() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::in_process().clock(&clock).build(), clock)
}

/// Runs a test with its own limiter.
async fn isolated<F: Future>(test: F) -> F::Output {
    with_limiter(fresh().0, test).await
}

fn is_send<T: Send>(value: T) -> T {
    value
}
