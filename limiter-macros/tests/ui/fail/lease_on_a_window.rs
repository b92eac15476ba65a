use limiter_core::{Rejection, window_limiter};

#[window_limiter(limit = 20, window = "1m", lease = "1s")]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
