use limiter_core::{Rejection, window_limiter};

#[window_limiter()]
async fn search(user: &str) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

fn main() {}
