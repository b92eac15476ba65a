//! Every kind of window, and a paced funnel.

use std::time::Duration;

use limiter_core::{Rejection, funnel_limiter, window_limiter};

const WINDOW: Duration = Duration::from_secs(60);

#[window_limiter(limit = 20_000, window = "1m", kind = exact)]
async fn exact() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(limit = 20_000_000, window = WINDOW, kind = counter)]
async fn counter() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(limit = 5, window = "week", kind = fixed)]
async fn week() -> Result<(), Rejection> {
    Ok(())
}

#[window_limiter(limit = limit, window = "month", kind = fixed, align = "-05:30")]
async fn month(limit: u64) -> Result<(), Rejection> {
    Ok(())
}

#[funnel_limiter(capacity = 5, rate = 1, paced)]
async fn paced() -> Result<(), Rejection> {
    Ok(())
}

#[test]
fn all_windows_compile() {
    drop((exact(), counter(), week(), month(5), paced()));
    assert_eq!(limiter_core::annotations::verify_annotations(), Ok(()));
}
