use limiter_core::{Rejection, token_limiter};

#[token_limiter(capacity = 5, rate = 1, except(search))]
async fn search(user: &str) -> Result<u32, Rejection> {
    let _ = user;
    Ok(1)
}

fn main() {}
