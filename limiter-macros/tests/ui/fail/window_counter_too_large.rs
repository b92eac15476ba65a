use limiter_core::{Rejection, window_limiter};

#[window_limiter(limit = 5_000_000_000_000, window = "1m", kind = counter)]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
