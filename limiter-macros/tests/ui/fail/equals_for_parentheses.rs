use limiter_core::{Rejection, token_limiter, window_limiter};

#[window_limiter(limit = 5, window = "1m")]
#[token_limiter = "20"]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
