//! An annotated function brings no warning and no unsafe code into a crate that allows neither.

#![deny(
    warnings,
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unused,
    unreachable_pub
)]
#![forbid(unsafe_code)]

use limiter_core::{Rejection, token_limiter, window_limiter};

/// Takes things apart.
///
/// # Errors
///
/// When it is limited, and the sum is too large.
#[token_limiter(capacity = 20, rate = 10, key = "{a}", fallback = both, pass_args)]
#[window_limiter(name = "daily", limit = 5, window = "1d", key = "{a}")]
pub async fn limited((a, b): (u32, u32), _: u32) -> Result<u32, Rejection> {
    Ok(a + b)
}

fn both((a, b): (u32, u32), c: u32) -> Result<u32, Rejection> {
    let sum = a.checked_add(b).and_then(|sum| sum.checked_add(c));
    sum.ok_or(Rejection::NotConfigured {
        policy: String::new(),
    })
}

/// Never returns.
///
/// # Errors
///
/// When it is limited.
#[token_limiter(name = "endless", capacity = 20, rate = 10, count_if = Result::is_err)]
pub async fn endless() -> Result<u32, Rejection> {
    loop {
        tokio::task::yield_now().await;
    }
}

#[test]
fn annotations_compile_in_strict_crate() {
    verify();
    drop(limited((1, 2), 3));
    drop(endless());
}

fn verify() {
    assert_eq!(limiter_core::annotations::verify_annotations(), Ok(()));
}
