use limiter_core::{Rejection, token_limiter};

#[token_limiter(policy = SEARCH)]
async fn search(user: &str) -> Result<u32, Rejection> {
    let _ = user;
    Ok(1)
}

fn main() {}
