use limiter_core::{Rejection, token_limiter, window_limiter};

#[token_limiter(capacity = 20, rate = 10)]
#[window_limiter(limit = 5, window = "1d")]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
