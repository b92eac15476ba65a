use limiter_core::{Rejection, token_limiter, window_limiter};

#[token_limiter(capacity = 20, rate = 10, wait = "1s")]
#[window_limiter(name = "daily", limit = 5, window = "1d", wait = "2s")]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
