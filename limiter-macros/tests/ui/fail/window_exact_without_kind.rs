use limiter_core::{Rejection, window_limiter};

#[window_limiter(limit = 20_000, window = "1m")]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
