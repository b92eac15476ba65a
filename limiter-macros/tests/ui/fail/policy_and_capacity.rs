use limiter_core::{Rejection, token_limiter};

#[token_limiter(policy = "search", capacity = 5, rate = 1, deadline = "20ms")]
async fn search(user: &str) -> Result<u32, Rejection> {
    let _ = user;
    Ok(1)
}

fn main() {}
